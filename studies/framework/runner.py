"""Compute the cells that are missing, on a pool; a run that is stopped is resumed by the same command."""

import importlib
import importlib.metadata
import json
import pkgutil
import platform
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import scoremh
import studies
from scoremh._shared.files import replacing, require_same
from scoremh.sampling.pools import Pool, run_jobs, started
from studies.framework import pages
from studies.framework.study import Cell, Record, Records, Study, as_json

FILE = "records.json"
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "pot", "pandas", "zuko")


def all_studies() -> dict[str, Study]:
    """Return the studies by name: every `Study` in a module of this package."""
    modules = [importlib.import_module(f"studies.{module.name}") for module in pkgutil.iter_modules(studies.__path__)]
    found = {one.name: one for module in modules for one in vars(module).values() if isinstance(one, Study)}
    return dict(sorted(found.items()))


def run(study: Study, out: Path, docs: Path | None = None, *, pool: Pool = None) -> None:
    """Compute missing cells, and write results, page and picture.

    Args:
        study: What to compute.
        out: Folder for runs; this one has a folder of its own in it.
        docs: Folder of the page, the pictures and `results/NAME.json`; that of the run if None.
        pool: Where cells are computed, as `scoremh.sample` has it: None for here, one after the other.
    """
    torch.set_num_threads(1)
    folder = out / study.name
    docs = folder if docs is None else docs
    compute(study, folder, pool=pool)
    found = json.loads((folder / FILE).read_text())
    there = cells_in(folder, study.kinds)
    wanted = [cell for stage in study.stages(study.config) for cell in stage]
    records = Records(
        found["settings"], {kind.kind: [there[cell] for cell in wanted if type(cell) is kind] for kind in study.kinds}
    )
    docs.mkdir(parents=True, exist_ok=True)
    if study.picture is not None:
        study.picture(records, folder, docs)
    write_json(records.as_json(), docs / "results" / f"{study.name}.json")
    pages.write(study, records, docs)


def compute(study: Study, folder: Path, *, pool: Pool = None) -> None:
    """Compute the missing cells, stage by stage; cells of another version or of other settings are an error."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = as_json(study.config) | {"versions": versions()}
    if (folder / FILE).exists():
        require_same(settings, json.loads((folder / FILE).read_text())["settings"], folder, "study", "folder")
    if study.prepare is not None:
        study.prepare(study.config, folder)
    with started(pool) as workers:
        for stage in study.stages(study.config):
            compute_stage(stage, study.config, settings, folder, pool=workers)


def compute_stage(
    stage: Sequence[Cell], config: Any, settings: Mapping[str, Any], folder: Path, *, pool: Pool = None
) -> None:
    """Compute those cells of a stage that are not in the folder yet, and keep each as soon as it is done."""
    cells = cells_in(folder, list({type(cell): None for cell in stage}))
    missing, console = [cell for cell in stage if cell not in cells], Console()
    computed = run_jobs(pool, partial(measured, config, folder.resolve()), missing)
    for number, (cell, record) in enumerate(computed, len(stage) - len(missing) + 1):
        add(cell, record, settings, folder)
        short = {key: value for key, value in record.items() if not isinstance(value, list | dict)}
        console.print(f"{number} of {len(stage)}:", str(cell), short)


def measured(config: Any, folder: Path, cell: Cell) -> Record:
    """Return what a cell measures."""
    return cell.measure(config, folder)


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


def versions() -> dict[str, str]:
    """Return the versions of what the numbers depend on."""
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"scoremh": scoremh.__version__, **packages, "python": platform.python_version()}


def write_json(found: Mapping[str, Any], path: Path) -> None:
    """Write JSON, all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial_file:
        partial_file.write_text(json.dumps(found, indent=1) + "\n")
