"""What the paper's figures share: cells that are kept, their records in JSON, a section of the page, a picture."""

import importlib.metadata
import json
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markdown import Markdown

from scoremh._shared import checks
from scoremh._shared.files import replacing
from scoremh.experiments._cells import SEPARATOR, Task, compute, fill_in, known, same

Record = Mapping[str, Any]
Found = Mapping[str, Any]
"""Settings, and the records of every kind of cell."""
VERSIONS = ("scoremh", "torch", "numpy", "scipy", "scikit-learn", "pot")


@dataclass(frozen=True)
class Figure:
    """A figure of the paper.

    Args:
        name: As `scoremh reproduce` knows it; of its picture, its results and its place on the page, too.
        presets: By name, each a dataclass of all that decides the numbers.
        words: From a kind of cell to what the words of its tasks are called, the kind itself left out.
        stages: From a preset to its tasks, each stage after those it needs.
        cell: `cell(task, config=preset, folder=folder)`; what later cells need goes into files in the folder.
        section: Says what was found.
        picture: Draws it into a file.
    """

    name: str
    presets: Mapping[str, Any]
    words: Mapping[str, Sequence[str]]
    stages: Callable[[Any], Sequence[Sequence[Task]]]
    cell: Callable[..., dict[str, Any]]
    section: Callable[[Found], str]
    picture: Callable[[Found, Path], None]

    def run(
        self, preset: str, out: Path, docs: Path | None = None, *, workers: int | None = None, as_is: bool = False
    ) -> None:
        """Compute what is missing, and write results, section and picture.

        Args:
            preset: A name in `presets`.
            out: Folder of the cells, in one of the figure's own; the page too, where no other is given.
            docs: Folder of the page and its picture.
            workers: Cells at the same time.
            as_is: Compute nothing, and write what is there.
        """
        torch.set_num_threads(1)
        config, folder = self.presets[preset], out / self.name / preset
        docs, path = docs or folder, folder / "cells.json"
        results = preset_file(docs, self.name, preset)
        if as_is and not path.exists():
            fix = "Run the same without --as-is."
            raise ValueError(checks.message(f"results of {self.name} in {folder}", "none", fix))
        folder.mkdir(parents=True, exist_ok=True)
        same(folder / "settings.json", plain(config), path)
        if not as_is:
            for tasks in self.stages(config):
                compute(tasks, partial(self.cell, config=config, folder=folder), path, workers=workers)
        found = self.found(known(path), config, preset)
        docs.mkdir(parents=True, exist_ok=True)
        section = self.text(found)
        self.picture(found, docs / f"{self.name}.png")
        write(without_lists(found), results)
        fill_in(docs / "reproduction.md", {self.name: f"{section}\n\n![{self.name}]({self.name}.png)"})
        Console().print(Markdown(section))

    def found(self, cells: Mapping[str, Record], config: Any, preset: str) -> dict[str, Any]:
        """Return settings, and records of the seeds whose cells are all there.

        Args:
            cells: By their names.
            config: The preset, a dataclass with seeds.
            preset: Its name.
        """
        tasks = {SEPARATOR.join(task): self._named(task).get("seed") for stage in self.stages(config) for task in stage}
        missing = {seed for name, seed in tasks.items() if name not in cells}
        seeds = [seed for seed in config.seeds if seed not in missing]
        if not seeds or None in missing:
            got = f"{len(tasks.keys() & cells.keys())} of {len(tasks)} parts, and no seed that is whole"
            fix = "Run the same without --as-is."
            raise ValueError(checks.message(f"results of {self.name}, {preset}", got, fix))
        settings = plain(config) | {"preset": preset, "seeds": seeds}
        settings |= {"missing_seeds": [seed for seed in config.seeds if seed in missing], "versions": versions()}
        return self.gathered({name: cells[name] for name, seed in tasks.items() if seed not in missing}, settings)

    def gathered(self, cells: Mapping[str, Record], settings: Record) -> dict[str, Any]:
        """Return settings and the records of cells, by their kind."""
        found: dict[str, Any] = {"settings": settings, **{kind: [] for kind in self.words}}
        for name, cell in cells.items():
            task = tuple(name.split(SEPARATOR))
            found[task[0]].append(self._named(task) | dict(cell))
        return found

    def _named(self, task: Task) -> dict[str, Any]:
        kind, *words = task
        return dict(zip(self.words[kind], map(_value, words), strict=True))

    def text(self, found: Found) -> str:
        """Return the section, and which seeds are not there yet."""
        missing = found["settings"]["missing_seeds"]
        return self.section(found) + (
            f"\n\n**Not computed yet**: seeds {', '.join(map(str, missing))}." * bool(missing)
        )


def plain(config: Any) -> dict[str, Any]:
    """Return a preset as JSON has it."""
    return json.loads(json.dumps(asdict(config)))  # type: ignore[no-any-return]


def _value(word: str) -> str | int | float:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return word


def versions(*more: str) -> dict[str, str]:
    """Return the versions of what the numbers come from."""
    return {name: importlib.metadata.version(name) for name in (*VERSIONS, *more)} | {
        "python": platform.python_version()
    }


def preset_file(docs: Path, name: str, preset: str) -> Path:
    """Return the file of results in a folder, and refuse one that holds another preset's."""
    path = docs / "results" / f"{name}.json"
    kept = json.loads(path.read_text())["settings"]["preset"] if path.exists() else preset
    if kept != preset:
        fix = "Leave --docs out, or choose another folder."
        raise ValueError(checks.message(f"{path} to hold the preset {preset!r}", f"those of {kept!r}", fix))
    return path


def write(found: Found, path: Path) -> None:
    """Write results as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial_file:
        partial_file.write_text(json.dumps(found, indent=1) + "\n")


def without_lists(found: Found) -> dict[str, Any]:
    """Return results without draws and maps, which pictures alone need."""
    return {
        kind: records
        if kind == "settings"
        else [{key: value for key, value in record.items() if not isinstance(value, list)} for record in records]
        for kind, records in found.items()
    }


def where(records: Sequence[Record], **words: Any) -> list[Record]:
    """Return the records with these words."""
    return [record for record in records if all(record[key] == value for key, value in words.items())]


def mean(records: Sequence[Record], key: str) -> float:
    """Return the mean of a number over records."""
    return statistics.mean(values(records, key))


def values(records: Sequence[Record], key: str) -> list[float]:
    """Return a number of every record, infinite where chains ran away."""
    return [float("inf") if record[key] is None else float(record[key]) for record in records]
