"""The nouns: a `Study` has presets and `Cell`s, its `Records` decide its `Claim`s."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Self

Record = dict[str, Any]
"""What was measured in a cell, as JSON holds it, together with the axes of the cell where it is kept."""


@dataclass(frozen=True)
class Cell(ABC):
    """One measurement. The fields of a subclass are its axes; `kind` names the records it belongs to.

    A field `lambda_` is the axis "lambda".
    """

    kind: ClassVar[str]

    @abstractmethod
    def measure(self, config: Any, folder: Path) -> Record:
        """Return what is measured, in a process with one thread.

        Args:
            config: The preset.
            folder: Folder for files that later cells need; their records are read with `runner.earlier`.
        """

    @property
    def axes(self) -> dict[str, Any]:
        """The axes by name."""
        return {axis.name.rstrip("_"): getattr(self, axis.name) for axis in fields(self)}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the cell that a kept record belongs to."""
        return cls(**{axis.name: record[axis.name.rstrip("_")] for axis in fields(cls)})

    def __str__(self) -> str:
        """Return kind and axes on one line."""
        return f"{self.kind}({', '.join(f'{name}={value}' for name, value in self.axes.items())})"


def grid(kind: type[Cell], **axes: Iterable[Any]) -> list[Cell]:
    """Return a cell for every combination of values on the axes; the last axis varies fastest."""
    return [kind(**dict(zip(axes, place, strict=True))) for place in product(*axes.values())]


@dataclass(frozen=True)
class Records:
    """The settings of a run and its records by kind.

    Args:
        settings: The preset as JSON, with its name, the seeds that are complete, and versions.
        kinds: Records of every kind of cell, each with its axes.
    """

    settings: Mapping[str, Any]
    kinds: Mapping[str, Sequence[Record]]

    def where(self, kind: str, **axes: Any) -> list[Record]:
        """Return the records of a kind with these values on these axes."""
        wanted = {name.rstrip("_"): value for name, value in axes.items()}
        return [r for r in self.kinds[kind] if all(r[name] == value for name, value in wanted.items())]

    def values(self, kind: str, key: str, **axes: Any) -> list[float]:
        """Return one number of every such record; infinity where chains diverged."""
        return values(self.where(kind, **axes), key)

    def as_json(self) -> dict[str, Any]:
        """Return all of it as JSON, without draws and maps, which only pictures need."""
        return {"settings": dict(self.settings)} | {
            kind: [{key: value for key, value in record.items() if not isinstance(value, list)} for record in records]
            for kind, records in self.kinds.items()
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return what `as_json` gave."""
        return cls(found["settings"], {kind: records for kind, records in found.items() if kind != "settings"})


def values(records: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    """Return one number of every record; infinity where chains diverged."""
    return [math.inf if record[key] is None else float(record[key]) for record in records]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and the predicate that decides it.

    Args:
        statement: What is claimed, in one sentence.
        holds: Whether the records agree: one answer, or one for every case by name.
    """

    statement: str
    holds: Callable[[Records], bool | Mapping[str, bool]]


def as_json(config: Any) -> dict[str, Any]:
    """Return a preset as JSON holds it."""
    return json.loads(json.dumps(asdict(config)))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Study:
    """A table or a figure. Its template is `templates/NAME.md`.

    Args:
        name: Name on the command line, of the results, of the template and of the place on the page.
        shows: What it shows, in one line.
        presets: Configurations by name, each a frozen dataclass with seeds; the first is the default.
        cells: Stages of cells for a preset; a stage is computed after those before it.
        kinds: The types of cells, in the order in which they are kept.
        numbers: What the template needs besides `settings` and `claims`.
        picture: `picture(records, folder, docs)` draws into `docs`; `folder` has the files of the cells.
        claims: What the paper claims, by name.
        prepare: `prepare(config, folder)`, called once before the first cell.
        settings: All that decides the numbers of a preset; its fields if not given.
        summary: What is kept of the records; all but lists if not given.
        page: File that the section is in; one of the name of the study is written whole.
        partial: Whether a page can be written while cells are missing; else only complete seeds count.
        packages: Packages whose versions are kept besides the usual ones.
        excerpts: Templates by the file, relative to the page, that has a place for them.
    """

    name: str
    shows: str
    presets: Mapping[str, Any]
    cells: Callable[[Any], Sequence[Sequence[Cell]]]
    kinds: Sequence[type[Cell]]
    numbers: Callable[[Records], Mapping[str, Any]]
    picture: Callable[[Records, Path, Path], None]
    claims: Mapping[str, Claim] = field(default_factory=dict)
    prepare: Callable[[Any, Path], None] | None = None
    settings: Callable[[Any], dict[str, Any]] = as_json
    summary: Callable[[Records], Records] | None = None
    page: str = "reproduction.md"
    partial: bool = False
    packages: tuple[str, ...] = ()
    excerpts: Mapping[str, str] = field(default_factory=dict)

    def verdicts(self, records: Records) -> dict[str, bool | Mapping[str, bool]]:
        """Return which claims the records agree with, by name."""
        return {name: claim.holds(records) for name, claim in self.claims.items()}
