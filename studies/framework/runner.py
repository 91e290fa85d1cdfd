"""Compute the cells that are missing, on a pool; a run that is stopped is resumed by the same command."""

import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import scoremh
from scoremh._shared import checks
from scoremh._shared.files import replacing, require_same
from scoremh.sampling.pools import Pool, run_jobs, started
from studies.framework import pages
from studies.framework.study import Cell, Record, Records, Study, as_json

FILE = "records.json"
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "pot")
COMPUTE = "Run the same without --as-is."


def run(
    study: Study, preset: str, out: Path, docs: Path | None = None, *, pool: Pool = None, as_is: bool = False
) -> None:
    """Compute missing cells, and write results, page and picture.

    Args:
        study: What to compute.
        preset: Name of one of its presets.
        out: Folder for runs; this one has a folder of its own in it.
        docs: Folder of the page, the pictures and `results/NAME.json`; that of the run if None.
        pool: Where cells are computed, as `scoremh.sample` has it: None for here, one after the other.
        as_is: Whether to compute nothing and write the existing records.
    """
    torch.set_num_threads(1)
    config, folder = study.presets[preset], out / study.name / preset
    docs = folder if docs is None else docs
    results = results_file(study, preset, docs)
    if not as_is:
        if study.goes_on_from_kept and results.exists() and not (folder / FILE).exists():
            go_on_from(results, as_json(config), folder)
        compute(study, config, folder, pool=pool)
    elif not (folder / FILE).exists():
        raise ValueError(checks.message(f"results of {study.name} in {folder}", "none", COMPUTE))
    records = gather(study, preset, cells_in(folder, study.kinds))
    docs.mkdir(parents=True, exist_ok=True)
    if study.picture is not None:
        study.picture(records, folder, docs)
    write_json(records.as_json(), results)
    pages.write(study, records, docs)


def go_on_from(results: Path, settings: Mapping[str, Any], folder: Path) -> None:
    """Start a run with the kept records, where they have the same settings: a new clone need not begin again."""
    kept = json.loads(results.read_text())
    if all(kept["settings"].get(name) == value for name, value in settings.items() if name != "seeds"):
        write_json(kept | {"settings": settings}, folder / FILE)


def redraw(study: Study, docs: Path) -> None:
    """Write the page from the kept results, and draw the picture where they suffice; compute nothing.

    Args:
        study: Whose page and picture.
        docs: Folder of the page, the pictures and `results/NAME.json`.
    """
    path = docs / "results" / f"{study.name}.json"
    if not path.exists():
        raise ValueError(checks.message(f"results of {study.name} in {path}", "none", "Run the same without --redraw."))
    records = Records.from_json(json.loads(path.read_text()))
    if study.picture is not None and not study.shows_draws:
        study.picture(records, docs, docs)
    pages.write(study, records, docs)


def compute(study: Study, config: Any, folder: Path, *, pool: Pool = None) -> None:
    """Compute the missing cells of a preset, stage by stage."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = as_json(config)
    if (folder / FILE).exists():
        require_same(settings, json.loads((folder / FILE).read_text())["settings"], folder, "study", "folder")
    if study.prepare is not None:
        study.prepare(config, folder)
    with started(pool) as workers:
        for stage in study.stages(config):
            compute_stage(stage, config, settings, folder, pool=workers)


def compute_stage(
    stage: Sequence[Cell], config: Any, settings: Mapping[str, Any], folder: Path, *, pool: Pool = None
) -> None:
    """Compute those cells of a stage that are not in the folder yet, and keep each as soon as it is done."""
    cells = cells_in(folder, list({type(cell): None for cell in stage}))
    missing, console = [cell for cell in stage if cell not in cells], Console()
    computed = run_jobs(pool, partial(measured, config, folder.resolve()), missing)
    for number, (cell, record) in enumerate(computed, len(stage) - len(missing) + 1):
        add(cell, record, settings, folder)
        console.print(f"{number} of {len(stage)}:", str(cell), brief(record))


def measured(config: Any, folder: Path, cell: Cell) -> Record:
    """Return what a cell measures."""
    return cell.measure(config, folder)


def brief(record: Record) -> Record:
    """Return a record without long entries."""
    return {key: value for key, value in record.items() if not isinstance(value, list | dict)}


def add(cell: Cell, record: Record, settings: Mapping[str, Any], folder: Path) -> None:
    """Add the record of a cell to the file in a folder."""
    path = folder / FILE
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"settings": settings}
    found.setdefault(cell.kind, []).append(cell.axes | record)
    write_json(found, path)


def cells_in(folder: Path, kinds: Sequence[type[Cell]]) -> dict[Cell, Record]:
    """Return the records in a folder by their cells."""
    path = folder / FILE
    found = json.loads(path.read_text()) if path.exists() else {}
    return {kind.of(record): record for kind in kinds for record in found.get(kind.kind, [])}


def earlier(cell: Cell, folder: Path) -> Record:
    """Return the record of a cell of an earlier stage."""
    return cells_in(folder, [type(cell)])[cell]


def gather(study: Study, preset: str, cells: Mapping[Cell, Record]) -> Records:
    """Return the records of seeds whose cells are complete; all records for a study that may be partial."""
    config = study.presets[preset]
    wanted = list(chain.from_iterable(study.stages(config)))
    missing = set() if study.partial else {cell.axes.get("seed") for cell in wanted if cell not in cells}
    seeds = [seed for seed in config.seeds if seed not in missing]
    there = [cell for cell in wanted if cell in cells and cell.axes.get("seed") not in missing]
    if not seeds or None in missing or not there:
        got = f"{len(cells)} of {len(wanted)} cells, and no seed that is complete"
        raise ValueError(checks.message(f"results of {study.name}, {preset}", got, COMPUTE))
    settings = as_json(config) | {"preset": preset, "seeds": seeds}
    settings["missing_seeds"] = sorted(set(config.seeds) - set(seeds))
    settings["versions"] = versions(*study.packages)
    return Records(settings, by_kind(study, {cell: cells[cell] for cell in there}))


def by_kind(study: Study, cells: Mapping[Cell, Record]) -> dict[str, list[Record]]:
    """Return records by their kind."""
    return {kind.kind: [record for cell, record in cells.items() if isinstance(cell, kind)] for kind in study.kinds}


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of what the numbers depend on."""
    every = {name: importlib.metadata.version(name) for name in (*PACKAGES, *packages)}
    return {"scoremh": scoremh.__version__} | every | {"python": platform.python_version()}


def results_file(study: Study, preset: str, docs: Path) -> Path:
    """Return the file of kept results in a folder; raise an error if it contains another preset."""
    path = docs / "results" / f"{study.name}.json"
    kept = json.loads(path.read_text())["settings"]["preset"] if path.exists() else preset
    if kept != preset:
        fix = "Leave --docs out, or choose another folder."
        raise ValueError(checks.message(f"{path} to hold the preset {preset!r}", f"those of {kept!r}", fix))
    return path


def write_json(found: Mapping[str, Any], path: Path) -> None:
    """Write JSON, all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial_file:
        partial_file.write_text(json.dumps(found, indent=1) + "\n")
