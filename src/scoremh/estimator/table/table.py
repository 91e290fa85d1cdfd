"""`Table`: rows of numbers as points of R^d in which there is a density, and back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scoremh._shared import checks
from scoremh.estimator.table.columns import Column, Constant, Smooth
from scoremh.estimator.table.detection import find_column, given_column
from scoremh.estimator.table.discrete import Category, PointMasses, Steps

KINDS: Mapping[str, type[Any]] = {cls.__name__: cls for cls in (Constant, Smooth, Steps, Category, PointMasses)}
Kinds = Mapping[Any, Any] | None


@dataclass(frozen=True)
class Table:
    """The columns of a table: everything behind it sees tensors with a density.

    Args:
        names: Names of the columns.
        columns: What each of them is.
    """

    names: tuple[str, ...]
    columns: tuple[Column, ...]

    @classmethod
    def find(
        cls,
        rows: NDArray[Any],
        names: Sequence[str],
        kinds: Kinds = None,
        categories: Mapping[str, bool] | None = None,
    ) -> "Table":
        """Return the table that rows are.

        Args:
            rows: Rows as numbers.
            names: Names of the columns.
            kinds: Kinds that are given, by name or position.
            categories: Columns that stand for categories, and whether these have an order.
        """
        given = {_name(key, names): kind for key, kind in (kinds or {}).items()}
        categories = categories or {}
        columns = [
            given_column(values, given[name], name)
            if name in given
            else find_column(values, name, text=name in categories, ordered=categories.get(name, False))
            for name, values in zip(names, np.asarray(rows, np.float64).T, strict=True)
        ]
        if not any(column.width for column in columns):
            raise ValueError(checks.message("columns that vary", "a constant at each", "Pass rows that differ."))
        return cls(tuple(names), tuple(columns))

    @property
    def width(self) -> int:
        """Number of coordinates of a row."""
        return sum(column.width for column in self.columns)

    @property
    def is_plain(self) -> bool:
        """Whether coordinates are the numbers themselves."""
        return all(column == Smooth() for column in self.columns)

    @property
    def coordinate_names(self) -> list[str]:
        """The names of the coordinates: that of the column, numbered where it has several."""
        return [
            name if column.width == 1 else f"{name} [{i}]"
            for name, column in zip(self.names, self.columns, strict=True)
            for i in range(column.width)
        ]

    def coordinates(self, rows: NDArray[Any], generator: torch.Generator | None = None) -> Tensor:
        """Return rows of numbers as points `(row, width)`, with noise where values are discrete.

        Args:
            rows: Rows as numbers.
            generator: Random number generator; the same seed gives the same points.
        """
        if self.is_plain:
            return torch.from_numpy(np.array(rows))
        return torch.cat(
            [
                column.coordinates(torch.from_numpy(values.copy()), generator)
                for column, values in zip(self.columns, np.asarray(rows, np.float64).T, strict=True)
            ],
            1,
        )

    def centre(self, rows: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """Return the middle of all points that stand for rows, and the log volume that a density there stands for.

        Args:
            rows: Rows as numbers.
        """
        columns = [
            column.centre(torch.from_numpy(values.copy()))
            for column, values in zip(self.columns, np.asarray(rows, np.float64).T, strict=True)
        ]
        return torch.cat([u for u, _ in columns], 1), torch.stack([volume for _, volume in columns]).sum(0)

    def numbers(self, points: Tensor) -> Tensor:
        """Return the rows of numbers of points `(..., width)`.

        Args:
            points: Points of R^width, of any number of leading axes.
        """
        if self.is_plain:
            return points
        groups = points.reshape(-1, self.width).double().split([column.width for column in self.columns], 1)
        rows = [column.values(group) for column, group in zip(self.columns, groups, strict=True)]
        return torch.stack(rows, 1).reshape(*points.shape[:-1], len(self.columns))

    def possible(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which rows have a probability above 0: levels that are known, values between their bounds.

        Args:
            rows: Rows as numbers.
        """
        values = np.asarray(rows, np.float64).T
        found = [c.possible(torch.from_numpy(v.copy())) for c, v in zip(self.columns, values, strict=True)]
        return torch.stack(found).all(0).numpy()

    def within_bounds(self, rows: NDArray[Any], dtype: Any) -> NDArray[Any]:
        """Return rows of numbers in a dtype and within their bounds, which rounding might break, or its range.

        Args:
            rows: Rows as numbers, of any floating dtype.
            dtype: Floating dtype of the result. A number beyond its range, where the map of heavy tails may lead,
                becomes its largest; those of real columns, which no map has made, stay what they are.
        """
        with np.errstate(over="ignore"):
            found, largest = rows.astype(dtype), np.finfo(dtype).max
        for j, column in enumerate(self.columns):
            if column.kind == "real":
                found[:, j] = found[:, j].clip(*column.bounds)
                continue
            low, high = (found.dtype.type(bound) for bound in column.bounds)
            if isinstance(column, Smooth):
                low, high = np.nextafter(low, np.inf, dtype=dtype), np.nextafter(high, -np.inf, dtype=dtype)
            found[:, j] = found[:, j].clip(max(low, -largest), min(high, largest))
        return found

    def __str__(self) -> str:
        """Return one line for every kind, with the names of its columns."""
        by_kind: dict[str, list[str]] = {}
        for name, column in zip(self.names, self.columns, strict=True):
            by_kind.setdefault(str(column), []).append(name)
        return "\n".join(f"{kind}: {', '.join(names)}" for kind, names in by_kind.items())

    def to_json(self) -> dict[str, Any]:
        """Return the table as JSON holds it."""
        return {"names": list(self.names), "columns": [_to_json(column) for column in self.columns]}

    @classmethod
    def from_json(cls, spec: Mapping[str, Any]) -> "Table":
        """Return the table that `to_json` wrote.

        Args:
            spec: What `to_json` returned.
        """
        return cls(tuple(spec["names"]), tuple(_from_json(column) for column in spec["columns"]))


def _name(key: object, names: Sequence[str]) -> str:
    """Return the name of a column that is given by name or position."""
    if isinstance(key, int | np.integer) and 0 <= int(key) < len(names):
        return names[int(key)]
    if key in names:
        return str(key)
    fix = "Name a column, or give its position from 0."
    raise ValueError(checks.message(f"columns among {', '.join(map(repr, names))}", repr(key), fix))


def _to_json(column: Column) -> dict[str, Any]:
    fields: dict[str, Any] = asdict(column)  # type: ignore[call-overload]
    return {"class": type(column).__name__} | {name: _finite(value) for name, value in fields.items()}


def _finite(value: Any) -> Any:
    """Return a value whose infinities are text, which JSON holds."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_finite(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _from_json(spec: Mapping[str, Any]) -> Column:
    fields = {name: _value(value) for name, value in spec.items() if name != "class"}
    if "inside" in fields:
        fields["inside"] = Smooth(**{name: _value(value) for name, value in spec["inside"].items()})
    column: Column = KINDS[spec["class"]](**fields)
    return column


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(part) for part in value)
    return float(value) if value in ("inf", "-inf") else value
