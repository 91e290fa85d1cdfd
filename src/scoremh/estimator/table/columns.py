r"""Kinds of columns: how the values of one become coordinates in R^k, and back.

A score needs a density, which values at a bound, on a grid or in categories do not have. Every kind maps values x to
coordinates u in which there is one, and back without ever leaving the values that are possible:

| kind | u | back |
|---|---|---|
| real | x | x |
| heavy-tailed | the inverse of `Sinh`, then of `SquareRoot` | the map |
| positive, interval | log(x - b), logit | the map, which ends at the bounds |
| ordered, count, rounded | x plus noise within its step of the grid, then one of the above | the nearest step |
| category of k levels | a corner of a simplex in R^(k-1), plus normal noise | the nearest corner |
| with point masses | a category (which mass, or none), and u of the others | the mass, or the value |
| constant | nothing | the constant |

`centre` has, beside the u in the middle of all that stand for x, the logarithm of what p(u) there is multiplied by: the
inverse slope of the map for a density of x; the volume of the noise for the probability of a discrete value.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from scoremh.coordinates import Affine, Compose, Coordinates, Log, Logit, Sinh, SquareRoot

LARGEST = 1e150  # that a map leads to: sums of squares of values stay finite


class Column(ABC):
    """A column of a table, `values` in float64."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Name of the kind."""

    @property
    def width(self) -> int:
        """Number of coordinates."""
        return 1

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds that no draw may break."""
        return -math.inf, math.inf

    @abstractmethod
    def coordinates(self, values: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return coordinates `(row, width)` of values `(row,)`, with noise where values are discrete."""

    @abstractmethod
    def centre(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the middle of all coordinates that stand for values, and the log volume that p there stands for."""

    @abstractmethod
    def values(self, u: Tensor) -> Tensor:
        """Return the values of coordinates `(row, width)`."""

    def possible(self, values: Tensor) -> Tensor:
        """Return which values there can be."""
        low, high = self.bounds
        return (values >= low) & (values <= high)

    def __str__(self) -> str:
        """Return the kind in words."""
        return self.kind


@dataclass(frozen=True)
class Constant(Column):
    """A column that never changes.

    Args:
        value: Its value.
    """

    value: float

    @property
    def kind(self) -> str:
        """Name of the kind."""
        return "constant"

    @property
    def width(self) -> int:
        """No coordinate."""
        return 0

    @property
    def bounds(self) -> tuple[float, float]:
        """The constant."""
        return self.value, self.value

    def coordinates(self, values: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return no coordinate."""
        return values.new_empty(len(values), 0)

    def centre(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return no coordinate, and 0."""
        return self.coordinates(values, None), torch.zeros_like(values)

    def values(self, u: Tensor) -> Tensor:
        """Return the constant."""
        return u.new_full((len(u),), self.value)

    def __str__(self) -> str:
        """Return the constant in words."""
        return f"constant {self.value:g}"


@dataclass(frozen=True)
class Smooth(Column):
    """A column with a density.

    Args:
        low: Lower bound; none where infinite.
        high: Upper bound; none where infinite.
        middle: Middle and width of a column with heavy tails, as `Sinh` has them; None for others.
        nearest: Values that stand for those at the bounds, which have no density: halfway to the nearest others; None
            where no value is at a bound.
        limits: Numbers that no value has passed, though none crowd there: 0, or 1 or 100 for shares. Draws beyond are
            reflected; the density does not know of them.
    """

    low: float = -math.inf
    high: float = math.inf
    middle: tuple[float, float] | None = None
    nearest: tuple[float, float] | None = None
    limits: tuple[float, float] = (-math.inf, math.inf)

    @property
    def kind(self) -> str:
        """The kind by its bounds."""
        if self.middle is not None:
            return "heavy-tailed"
        bounded = math.isfinite(self.low) + math.isfinite(self.high)
        return ("real", "positive" if self.low == 0 else "bounded", "interval")[bounded]

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds that no draw may break."""
        return max(self.low, self.limits[0]), min(self.high, self.limits[1])

    @property
    def map(self) -> Coordinates:
        """The map x = f(u)."""
        low, high, *middle = (
            torch.tensor([number], dtype=torch.float64) for number in (self.low, self.high, *(self.middle or ()))
        )
        if middle:
            return Compose(Sinh(*middle), SquareRoot())
        if math.isfinite(self.low) and math.isfinite(self.high):
            return Logit(low, high)
        if math.isfinite(self.low) or math.isfinite(self.high):
            return Log(low) if math.isfinite(self.low) else Log(high, torch.full_like(high, -1))
        return Affine(torch.zeros(()), torch.ones(()))

    def coordinates(self, values: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return u = f^-1(x)."""
        return self.map.inverse(self._inside(values)[:, None])

    def _inside(self, values: Tensor) -> Tensor:
        """Return values of which those at a bound are moved to the nearest that stands for them."""
        if self.nearest is None:
            return values
        first, last = (values.new_tensor(one) for one in self.nearest)
        return torch.where(values == self.low, first, torch.where(values == self.high, last, values))

    def centre(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return u, and log du / dx."""
        u = self.coordinates(values, None)
        return u, -self.map.log_det(u)

    def values(self, u: Tensor) -> Tensor:
        """Return x = f(u), within the bounds however far u is."""
        x: Tensor = self.map(u)[:, 0]
        for limit, beyond in zip(self.limits, (torch.lt, torch.gt), strict=True):
            x = torch.where(beyond(x, limit), 2 * limit - x, x) if math.isfinite(limit) else x
        x = x.clamp(*self.limits)
        if self.kind == "real":
            return x
        low, high = math.nextafter(self.low, math.inf), math.nextafter(self.high, -math.inf)
        return x.clamp(max(low, -LARGEST), min(high, LARGEST))

    def possible(self, values: Tensor) -> Tensor:
        """Return which values lie between the bounds; those at a bound where one stands for them."""
        values = self._inside(values)
        return (values > self.low) & (values < self.high)

    def __str__(self) -> str:
        """Return the kind in words."""
        if self.kind == "interval":
            return f"interval {self.low:g} to {self.high:g}"
        if self.kind == "bounded":
            found = f"above {self.low:g}" if math.isfinite(self.low) else f"below {self.high:g}"
        else:
            found = self.kind
        low, high = self.limits
        return found + f", from {low:g}" * math.isfinite(low) + f", up to {high:g}" * math.isfinite(high)
