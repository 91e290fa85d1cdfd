"""Compute cells again and compare them with the records that are kept."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from scoremh.sampling.pools import Pool, started
from studies.framework import runner
from studies.framework.study import Cell, Record, Records, Study
from studies.framework.tables import spread


def recompute(study: Study, preset: str, wanted: Sequence[str], out: Path, docs: Path, pool: Pool) -> None:
    """Compute the cells on these axes, and print each number beside the kept one.

    Args:
        study: Whose cells.
        preset: Name of its preset; that of the kept records.
        wanted: Axes with the values to compute, as `seed=1` or `rule=ula|simpson`; `records` is the kind. A cell
            without such an axis is computed.
        out: Folder for runs.
        docs: Folder with the kept records, `results/NAME.json`.
        pool: Where cells are computed.
    """
    config, folder = study.presets[preset], out / study.name / preset
    axes = {axis: values.split("|") for axis, _, values in (word.partition("=") for word in wanted)}
    folder.mkdir(parents=True, exist_ok=True)
    if study.prepare is not None:
        study.prepare(config, folder)
    stages = [[cell for cell in stage if matches(cell, axes)] for stage in study.stages(config)]
    with started(pool) as workers:
        for stage in stages:
            runner.compute_stage(stage, config, study.settings(config), folder, pool=workers)
    records = Records(study.settings(config), runner.by_kind(study, runner.cells_in(folder, study.kinds)))
    summary = study.summary(records) if study.summary else records
    kept = Records.from_json(json.loads((docs / "results" / f"{study.name}.json").read_text()))
    Console().print(comparison(study, summary, kept))


def matches(cell: Cell, axes: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a cell has these values on its own axes."""
    place = cell.axes | {"records": cell.kind}
    return all(str(place[axis]) in values for axis, values in axes.items() if axis in place)


def comparison(study: Study, new: Records, kept: Records) -> Table:
    """Return a table of the numbers in both, and the spread of the kept ones over seeds."""
    found = Table("cell", "number", "kept", "new", "difference", "spread over seeds")
    cells = {kind.kind: kind for kind in study.kinds}
    for kind, records in new.kinds.items():
        for record in records:
            place = cells[kind].of(record).axes if kind in cells else axes_of_summary(record)
            for row in compared(record, place, kept.kinds.get(kind, [])):
                found.add_row(f"{kind} {place}", *row)
    return found


def axes_of_summary(record: Record) -> Record:
    """Return the axes of a record that belongs to no single cell: its names and its seed."""
    return {key: value for key, value in record.items() if isinstance(value, str) or key == "seed"}


def compared(record: Record, place: Record, kept: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return pairs of numbers at the same place of a record and of the kept one, without times."""
    others = {axis: value for axis, value in place.items() if axis != "seed"}
    by_seed = {one.get("seed"): one for one in kept if all(one.get(axis) == value for axis, value in others.items())}
    rows, old = [], by_seed.get(place.get("seed"), {})
    for key, value in record.items():
        if key not in place and is_number(value) and is_number(old.get(key)) and "seconds" not in key:
            every = [one[key] for one in by_seed.values() if is_number(one.get(key))]
            rows.append((key, *(f"{number:.6g}" for number in (old[key], value, value - old[key], spread(every)))))
    return rows


def is_number(value: Any) -> bool:
    """Return whether a value is a number."""
    return isinstance(value, int | float)
