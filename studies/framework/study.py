"""The nouns: a `Study` has presets and `Cell`s, its `Records` decide its `Claim`s."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Self, dataclass_transform

Record = dict[str, Any]
"""What was measured in a cell, as JSON holds it, together with the axes of the cell where it is kept."""


@dataclass_transform(frozen_default=True)
class Cell(ABC):
    """One measurement: a frozen dataclass whose fields are its axes; a field `lambda_` is the axis "lambda".

    A subclass, `class Chains(Cell, kind="chains")`, names the records it belongs to.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str | None = None) -> None:
        """Make the subclass a frozen dataclass, of a kind of its own or of its parent's."""
        cls.kind = kind or cls.kind
        dataclass(frozen=True)(cls)

    @abstractmethod
    def measure(self, config: Any, folder: Path) -> Record:
        """Measure the cell with a config, with one thread of torch.

        Files that later cells need go into the folder; the records of earlier cells are read with `runner.earlier`.
        """

    @property
    def axes(self) -> dict[str, Any]:
        """The axes by name."""
        return {axis.name.rstrip("_"): getattr(self, axis.name) for axis in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the cell that a kept record belongs to."""
        return cls(**{axis.name: record[axis.name.rstrip("_")] for axis in fields(cls)})  # type: ignore[arg-type]

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
        settings: The config as JSON, and versions.
        kinds: Records of every kind of cell, each with its axes.
    """

    settings: Mapping[str, Any]
    kinds: Mapping[str, Sequence[Record]]

    def where(self, kind: str, **axes: Any) -> list[Record]:
        """Return the records of a kind with these values on these axes."""
        wanted = {name.rstrip("_"): value for name, value in axes.items()}
        return [r for r in self.kinds.get(kind, ()) if all(r[name] == value for name, value in wanted.items())]

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
        statement: The claim, in one sentence.
        holds: Whether the records agree: one result, or one for every case by name.
    """

    statement: str
    holds: Callable[[Records], bool | Mapping[str, bool]]


def as_json(config: Any) -> dict[str, Any]:
    """Return a config as JSON holds it."""
    return json.loads(json.dumps(asdict(config)))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Study:
    """A table or a figure. Its template is `templates/NAME.md`."""

    name: str  # on the command line, of results, template, and place on the page
    shows: str  # what it shows, in one line
    config: Any  # all that decides the numbers, a frozen dataclass
    stages: Callable[[Any], Sequence[Sequence[Cell]]]  # stages of cells of a config, each after those before it
    # of records and the folder of the cells' files, into a folder
    picture: Callable[[Records, Path, Path], None] | None
    names: Mapping[str, Any]  # what the template uses besides records, settings and claims: the module's globals()
    claims: Mapping[str, Claim] = field(default_factory=dict)  # what the paper claims
    prepare: Callable[[Any, Path], None] | None = None  # of the config and a folder, once before the first cell
    page: str = "reproduction.md"  # file of the section; one of the name of the study is written whole
    excerpts: Mapping[str, str] = field(default_factory=dict)  # templates for other files that have a place for them

    @property
    def kinds(self) -> list[type[Cell]]:
        """The types of cells, in the order in which they are computed."""
        return list(dict.fromkeys(type(cell) for stage in self.stages(self.config) for cell in stage))

    def verdicts(self, records: Records) -> dict[str, bool | Mapping[str, bool]]:
        """Return which claims the records agree with, by name."""
        return {name: claim.holds(records) for name, claim in self.claims.items()}
