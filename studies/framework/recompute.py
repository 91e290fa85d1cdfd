"""Compute cells again and compare them with the records that are kept."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from studies.framework import runner
from studies.framework.study import Cell, Record, Records, Study
from studies.framework.tables import spread


def recompute(study: Study, preset: str, wanted: Sequence[str], out: Path, docs: Path, workers: int | None) -> None:
    """Compute the cells on these axes, and print each number beside the kept one.

    Args:
        study: Whose cells.
        preset: Name of its preset; that of the kept records.
        wanted: Axes with the values to compute, as `seed=1` or `rule=ula|simpson`; `records` is the kind. A cell
            without such an axis is computed.
        out: Folder for runs.
        docs: Folder with the kept records, `results/NAME.json`.
        workers: Number of cells to compute at the same time; the number of cores if None.
    """
    config, folder = study.presets[preset], out / study.name / preset
    axes = {axis: values.split("|") for axis, _, values in (word.partition("=") for word in wanted)}
    if study.prepare is not None:
        folder.mkdir(parents=True, exist_ok=True)
        study.prepare(config, folder)
    stages = [[cell for cell in stage if matches(cell, axes)] for stage in study.cells(config)]
    for stage in stages:
        folder.mkdir(parents=True, exist_ok=True)
        runner.compute_stage(stage, config, study.settings(config), folder, workers=workers)
    records = Records({}, _by_kind(study, runner.cells_in(folder, study.kinds)))
    summary = study.summary(records) if study.summary else records
    kept = Records.from_json(json.loads((docs / "results" / f"{study.name}.json").read_text()))
    Console().print(comparison(summary, kept))


def matches(cell: Cell, axes: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a cell has these values on those of the axes that it has."""
    place = cell.axes | {"records": cell.kind}
    return all(str(place[axis]) in values for axis, values in axes.items() if axis in place)


def _by_kind(study: Study, cells: Mapping[Cell, Record]) -> dict[str, list[Record]]:
    return {kind.kind: [record for cell, record in cells.items() if isinstance(cell, kind)] for kind in study.kinds}


def comparison(new: Records, kept: Records) -> Table:
    """Return a table of the numbers in both, and the spread of the kept ones over seeds."""
    found = Table("cell", "number", "kept", "new", "difference", "spread over seeds")
    for kind, records in new.kinds.items():
        for record in records:
            place = {key: value for key, value in record.items() if not isinstance(value, float | dict | list)}
            same = [r for r in kept.kinds.get(kind, []) if _at(r, place, {"seed"})]
            for key in [key for key, value in record.items() if isinstance(value, float)]:
                old = [r[key] for r in same if _at(r, place, set()) and isinstance(r.get(key), float)]
                every = [r[key] for r in same if isinstance(r.get(key), float)]
                if len(old) == 1 and "seconds" not in key:
                    numbers = (old[0], record[key], record[key] - old[0], spread(every))
                    found.add_row(f"{kind} {place}", key, *(f"{number:.6g}" for number in numbers))
    return found


def _at(record: Record, place: Mapping[str, Any], but: set[str]) -> bool:
    return all(record.get(key) == value for key, value in place.items() if key not in but)
