r"""Tables: columns of different kinds as one tensor with a density, and back.

A score needs a density, which values at a bound, on a grid or in categories do not have. Every kind of column maps
values x to coordinates u in R^k that have a density, and back to possible values:

| kind | u | back |
|---|---|---|
| real | x | x |
| heavy-tailed | the inverse of `Sinh`, then of `SquareRoot` | the map |
| positive, interval | log(x - b), logit | the map, whose values lie between the bounds |
| ordered, count, rounded | x plus noise within its grid step, then one of the above | the nearest step |
| category of k levels | a corner of a simplex in R^(k-1), plus normal noise | the nearest corner |
| with point masses | u of other values; a value with a mass: noise beyond their range | the mass, or the value |
| date | the count of days (hours, seconds) since the first date, as above | the date |
| with missing values | an indicator, and u of the value, or normal noise if it is missing | the value, or NaN |
| constant | nothing | the constant |

Values of a column with a density are rounded to the decimals of the rows.

`centre` returns the centre of all u that represent x, and a log volume: the log of the factor that turns p(u) there
into the density of x (the inverse slope of the map) or the probability of a discrete value (the volume of its noise).

`find_column` infers the kind of a column, and `Table` maps whole rows.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh.coordinates import Affine, Compose, Coordinates, Log, Logit, Sinh, SquareRoot

__all__ = ["Column", "Kinds", "Table"]


LARGEST = 1e150  # largest value that a map returns, so that sums of squares stay finite
LEAST = 1e-300  # distance in place of 0, by which others are divided


class Column(ABC):
    """A column of a table; values are float64."""

    @property
    def width(self) -> int:
        """Number of coordinates."""
        return 1

    @property
    @abstractmethod
    def bounds(self) -> tuple[float, float]:
        """Bounds that all draws respect."""

    @abstractmethod
    def coordinates(self, values: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the coordinates `(row, width)` of values `(row,)`, with noise for discrete values."""

    @abstractmethod
    def centre(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the centre of all coordinates that represent values, and their log volume."""

    @abstractmethod
    def values(self, u: Tensor) -> Tensor:
        """Return the values of coordinates `(row, width)`."""

    def possible(self, values: Tensor) -> Tensor:
        """Return which values are possible."""
        low, high = self.bounds
        return (values >= low) & (values <= high)

    @abstractmethod
    def __str__(self) -> str:
        """Return the kind in words."""


@dataclass(frozen=True)
class Constant(Column):
    """A column that never changes.

    Args:
        value: Its value.
    """

    value: float

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
        low: Lower bound; infinite if there is none.
        high: Upper bound; infinite if there is none.
        middle: Middle and width of a column with heavy tails, the parameters of `Sinh`; None for other columns.
        nearest: Replacements for values at the lower and upper bound, where u would be infinite: halfway to the nearest
            other value. None if values at a bound are impossible.
        limits: Values that no draw passes: 0, 1 or 100, or the end of the rows. Draws beyond them are reflected; the
            density ignores them.
        reach: Coordinates beyond which draws are reflected, since the maps of heavy tails and positive columns are
            exponential: a draw slightly too far out would be a value out of all proportion.
        decimals: Decimals of the rows, to which draws are rounded; None if the rows are not rounded.
    """

    low: float = -math.inf
    high: float = math.inf
    middle: tuple[float, float] | None = None
    nearest: tuple[float, float] | None = None
    limits: tuple[float, float] = (-math.inf, math.inf)
    reach: tuple[float, float] = (-math.inf, math.inf)
    decimals: int | None = None

    @property
    def kind(self) -> str:
        """Name of the kind."""
        if self.middle is not None:
            return "heavy-tailed"
        bounded = math.isfinite(self.low) + math.isfinite(self.high)
        return ("real", "positive" if self.low == 0 else "bounded", "interval")[bounded]

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds that all draws respect."""
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
        """Return values with those at a bound replaced by `nearest`."""
        if self.nearest is None:
            return values
        first, last = (values.new_tensor(one) for one in self.nearest)
        return torch.where(values == self.low, first, torch.where(values == self.high, last, values))

    def centre(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return u, and log du / dx."""
        u = self.coordinates(values, None)
        return u, -self.map.log_det(u)

    def values(self, u: Tensor) -> Tensor:
        """Return x = f(u), rounded; reflected or clipped to the bounds for extreme u."""
        x = _reflected(self.map(_reflected(u, self.reach))[:, 0], self.limits)
        low, high = self.low, self.high
        if self.kind != "real":
            low, high = max(math.nextafter(low, math.inf), -LARGEST), min(math.nextafter(high, -math.inf), LARGEST)
        if self.decimals is not None:
            x = x.round(decimals=self.decimals)
            low, high = (self._rounded_inwards(*end) for end in ((low, self.limits[0], 1), (high, self.limits[1], -1)))
        return x if self.kind == "real" and self.decimals is None else x.clamp(low, high)

    def _rounded_inwards(self, bound: float, limit: float, sign: int) -> float:
        """Return the outermost number with the decimals of the column between a bound and a limit."""
        end = sign * max(sign * bound, sign * limit)
        if not abs(end) < LARGEST:
            return end
        assert self.decimals is not None
        scaled = round(end * 10.0**self.decimals, 6)  # 0.3 * 10 is 3.0000000000000004
        nearest = math.ceil(scaled) if sign > 0 else math.floor(scaled)
        if nearest == scaled and math.isfinite(bound) and end == bound:
            nearest += sign
        return nearest / 10.0**self.decimals

    def possible(self, values: Tensor) -> Tensor:
        """Return which values lie between the bounds; values at a bound are possible if `nearest` replaces them."""
        values = self._inside(values)
        return (values > self.low) & (values < self.high)

    def __str__(self) -> str:
        """Return the kind in words."""
        if self.kind == "interval":
            low, high = self.bounds
            return f"interval {low:g} to {high:g}"
        if self.kind == "bounded":
            found = f"above {self.low:g}" if math.isfinite(self.low) else f"below {self.high:g}"
        else:
            found = self.kind
        low, high = self.limits
        return found + f", from {low:g}" * math.isfinite(low) + f", up to {high:g}" * math.isfinite(high)


def _reflected(x: Tensor, limits: tuple[float, float]) -> Tensor:
    """Return numbers with those beyond a limit reflected at it; further ones are clipped to the other limit."""
    for limit, beyond in zip(limits, (torch.lt, torch.gt), strict=True):
        x = torch.where(beyond(x, limit), 2 * limit - x, x) if math.isfinite(limit) else x
    return x.clamp(*limits)


def _decimals_of(step: float) -> int:
    """Return the number of decimals of the multiples of a step."""
    return max(0, -math.floor(math.log10(step) + 1e-9))


# Half the distance of two corners of a simplex is 1. Noise of std 0.25 would cross it with probability 1 in 30,000;
# noise longer than 0.95 is shortened, so that it never does.
CORNER_STD = 0.25
MAX_CORNER_NOISE = 0.95
MISSING_STD = 0.25  # standard deviation of the noise of missing values over that of the other values
MASS_GAP = 0.75  # from the outermost value to the edge of a mass, and from there to its centre, in standard deviations


@dataclass(frozen=True)
class Steps(Column):
    """A column on a grid or with ordered levels; noise within a step gives it a density.

    Args:
        levels: Possible levels in order; empty if all multiples of the step are possible.
        step: Step of the grid; 1 for levels, whose positions are ranks.
        ends: Lowest and highest position on the grid: multiples of the step, or ranks of levels.
        peaked: Whether the noise is triangular, with density 0 at the edges of a step, rather than uniform. If
            neighbouring steps differ much in probability, uniform noise would leak across their edges.
        inside: Column of the position plus noise.
    """

    levels: tuple[float, ...]
    step: float
    ends: tuple[float, float]
    peaked: bool
    inside: Smooth

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends of the grid."""
        return (
            (self.levels[0], self.levels[-1]) if self.levels else (self.ends[0] * self.step, self.ends[1] * self.step)
        )

    def _positions(self, values: Tensor) -> Tensor:
        if not self.levels:
            return (values / self.step).round()
        return torch.searchsorted(values.new_tensor(self.levels), values.contiguous()).to(values)

    def coordinates(self, values: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the coordinates of the position plus noise."""
        noise = rng.uniform((2, len(values)), values, generator)
        shift = noise.sum(0) / 2 if self.peaked else noise[0]
        shift = shift.clamp(1e-12, 1 - 1e-12)  # not exactly at an edge, which may be a bound
        return self.inside.coordinates(self._positions(values) + shift - 0.5, generator)

    def centre(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the centre of the step, and the log of du / dx over the density of the noise there."""
        u, log_volume = self.inside.centre(self._positions(values))
        return u, log_volume - (math.log(2) if self.peaked else 0.0)

    def values(self, u: Tensor) -> Tensor:
        """Return the nearest step between the ends."""
        position = self.inside.values(u).round().clamp(*self.ends) + 0.0  # no -0.0
        if self.levels:
            return u.new_tensor(self.levels)[position.long()]
        return position if self.step == 1 else (position * self.step).round(decimals=_decimals_of(self.step))

    def possible(self, values: Tensor) -> Tensor:
        """Return which values are on the grid and between its ends."""
        if self.levels:
            return torch.isin(values, values.new_tensor(self.levels))
        position = values / self.step
        low, high = self.ends
        return ((position - position.round()).abs() < 1e-3) & (position.round() >= low) & (position.round() <= high)

    def __str__(self) -> str:
        """Return the kind in words."""
        if self.levels:
            return f"ordered, {len(self.levels)} levels"
        return "count" if self.step == 1 else f"rounded to {self.step:g}"


@dataclass(frozen=True)
class Category(Column):
    """A column of levels without order: corners of a simplex, with normal noise around them.

    Args:
        levels: Levels, as numbers.
    """

    levels: tuple[float, ...]

    @property
    def width(self) -> int:
        """Number of coordinates: one less than levels."""
        return len(self.levels) - 1

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and largest level."""
        return min(self.levels), max(self.levels)

    @property
    def corners(self) -> Tensor:
        """Corners `(level, width)` of a regular simplex around 0, at a distance of 2 from each other."""
        k = len(self.levels)
        centred = torch.eye(k, dtype=torch.float64) - 1 / k
        basis = torch.linalg.qr(centred.mT[:, :-1])[0]  # of the plane of the corners
        corners: Tensor = math.sqrt(2) * centred @ basis
        return corners

    def _ranks(self, values: Tensor) -> Tensor:
        return (values[:, None] == values.new_tensor(self.levels)).double().argmax(1)

    def coordinates(self, values: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return corners with noise."""
        corners = self.corners[self._ranks(values)]
        noise = CORNER_STD * rng.normal(tuple(corners.shape), corners, generator)
        limited: Tensor = noise * (MAX_CORNER_NOISE / noise.norm(dim=1, keepdim=True)).clamp(max=1)
        return corners + limited

    def centre(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return corners, and minus the log density of the noise there."""
        log_volume = self.width * math.log(CORNER_STD * math.sqrt(2 * math.pi))
        return self.corners[self._ranks(values)], torch.full_like(values, log_volume)

    def values(self, u: Tensor) -> Tensor:
        """Return the levels of the nearest corners."""
        return u.new_tensor(self.levels)[(u @ self.corners.to(u).mT).argmax(1)]

    def possible(self, values: Tensor) -> Tensor:
        """Return which values are levels."""
        return torch.isin(values, values.new_tensor(self.levels))

    def __str__(self) -> str:
        """Return the kind in words."""
        return f"category, {len(self.levels)} levels"


@dataclass(frozen=True)
class PointMasses(Column):
    """A column with point masses at one or both ends, such as zeros among amounts.

    On the axis of the other values' coordinate, a point mass becomes normal noise around a point beyond the outermost
    of them.

    Args:
        inside: Column of the other values.
        masses: Values of the point masses at the lower and at the upper end; None if there is none.
        ends: Smallest and largest coordinate of the other values.
        std: Standard deviation of the coordinate of the other values.
    """

    inside: Smooth | Steps
    masses: tuple[float | None, float | None]
    ends: tuple[float, float]
    std: float

    @property
    def bounds(self) -> tuple[float, float]:
        """The point masses, or the bounds of the other values."""
        low, high = (
            bound if mass is None else mass for mass, bound in zip(self.masses, self.inside.bounds, strict=True)
        )
        return low, high

    @property
    def _masses(self) -> list[tuple[float, float, float]]:
        """Value, centre and inner edge of the coordinates of each point mass."""
        return [
            (mass, end + 2 * sign * MASS_GAP * self.std, end + sign * MASS_GAP * self.std)
            for mass, end, sign in zip(self.masses, self.ends, (-1, 1), strict=True)
            if mass is not None
        ]

    def coordinates(self, values: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return u of the other values, and noise around the centre of the mass for values at a mass."""
        limit = MASS_GAP * self.std
        noise = (limit * CORNER_STD * rng.normal((len(values), 1), values, generator)).clamp(
            -0.95 * limit, 0.95 * limit
        )
        u = self.inside.coordinates(values, generator)
        for mass, middle, _ in self._masses:
            u = torch.where((values == mass)[:, None], middle + noise, u)
        return u

    def centre(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return u and its log volume, of another value or of a point mass."""
        u, log_volume = self.inside.centre(values)
        of_mass = math.log(MASS_GAP * self.std * CORNER_STD * math.sqrt(2 * math.pi))
        for mass, middle, _ in self._masses:
            u = torch.where((values == mass)[:, None], u.new_full((), middle), u)
            log_volume = torch.where(values == mass, log_volume.new_full((), of_mass), log_volume)
        return u, log_volume

    def values(self, u: Tensor) -> Tensor:
        """Return the mass for u beyond an edge, and f(u) elsewhere."""
        x = self.inside.values(u)
        for mass, middle, edge in self._masses:
            beyond = u[:, 0] < edge if middle < edge else u[:, 0] > edge
            x = torch.where(beyond, x.new_full((), mass), x)
        return x

    def possible(self, values: Tensor) -> Tensor:
        """Return which values are possible others, or a point mass."""
        found = self.inside.possible(values)
        for mass, _, _ in self._masses:
            found = found | (values == mass)
        return found

    def __str__(self) -> str:
        """Return the kind in words."""
        return f"{self.inside}, and exactly {' or '.join(f'{mass:g}' for mass, _, _ in self._masses)}"


@dataclass(frozen=True)
class Date(Column):
    """Dates, as seconds since 1970, as a column of the number of units since the first date.

    Args:
        inside: Column of the number of units.
        first: First date.
        unit: Largest of day, hour, minute and second of which all dates are multiples, or one microsecond; in seconds.
    """

    inside: Steps
    first: float
    unit: float

    @property
    def bounds(self) -> tuple[float, float]:
        """First and last date."""
        low, high = self.inside.bounds
        return self.first + low * self.unit, self.first + high * self.unit

    def _units(self, values: Tensor) -> Tensor:
        return (values - self.first) / self.unit

    def coordinates(self, values: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the coordinates of the number of units."""
        return self.inside.coordinates(self._units(values), generator)

    def centre(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the centre of the unit, and the log volume there."""
        return self.inside.centre(self._units(values))

    def values(self, u: Tensor) -> Tensor:
        """Return the nearest date between the first and the last."""
        return self.first + self.unit * self.inside.values(u)

    def possible(self, values: Tensor) -> Tensor:
        """Return which dates are whole units between the first and the last."""
        return self.inside.possible(self._units(values))

    def __str__(self) -> str:
        """Return the kind in words, with the first and the last date."""
        low, high = (date_text(end, whole_days=self.unit >= UNITS[0]) for end in self.bounds)
        return f"date, {low} to {high}"


def date_text(seconds: float, *, whole_days: bool) -> str:
    """Return a date as ISO text; years before 1 and after 9999, which Python does not have, as a number of seconds."""
    try:
        found = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    except OverflowError:
        return f"{seconds:g} s"
    return found.strftime("%Y-%m-%d" if whole_days else "%Y-%m-%d %H:%M:%S")


@dataclass(frozen=True)
class Missing(Column):
    """A column with missing values (NaN): an indicator, whether a value is missing, beside the coordinates of values.

    The coordinates of a missing value are normal noise around the mean of those of the others. The noise is narrow, so
    that no draw between the two lies beyond the range of the values.

    Args:
        inside: Column of the values that are not missing.
        mean: Means of the coordinates of these values.
        std: Standard deviations of the noise.
        present: One of these values.
    """

    inside: Column
    mean: tuple[float, ...]
    std: tuple[float, ...]
    present: float

    @classmethod
    def around(cls, inside: Column, values: NDArray[np.float64]) -> "Missing":
        """Return the column of these values and of missing ones."""
        u = inside.coordinates(torch.from_numpy(values.copy()), torch.Generator().manual_seed(0))
        std = u.std(0, correction=0) if u.numel() else u.new_zeros(u.shape[1])
        return cls(
            inside, tuple(u.mean(0).tolist()), tuple((MISSING_STD * std.where(std > 0, 1.0)).tolist()), float(values[0])
        )

    @property
    def width(self) -> int:
        """Number of coordinates: one more than without missing values."""
        return 1 + self.inside.width

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of the values that are not missing."""
        return self.inside.bounds

    def _filled(self, values: Tensor) -> Tensor:
        return torch.where(values.isnan(), self.present, values)

    def coordinates(self, values: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the indicator with noise, and the coordinates of the value, or noise for a missing value."""
        noise = (CORNER_STD * rng.normal((len(values), 1), values, generator)).clamp(
            -MAX_CORNER_NOISE, MAX_CORNER_NOISE
        )
        missing = values.isnan()[:, None]
        indicator = torch.where(missing, 1.0, -1.0) + noise
        u = self.inside.coordinates(self._filled(values), generator)
        if not self.inside.width:
            return indicator
        other = values.new_tensor(self.mean) + values.new_tensor(self.std) * rng.normal(tuple(u.shape), u, generator)
        return torch.cat([indicator, torch.where(missing, other, u)], 1)

    def centre(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the centre of the indicator and of the value or the noise, and the log volume of both."""
        missing = values.isnan()
        u, log_volume = self.inside.centre(self._filled(values))
        noise_volume = sum(math.log(std * math.sqrt(2 * math.pi)) for std in self.std)
        log_volume = torch.where(missing, noise_volume, log_volume) + math.log(CORNER_STD * math.sqrt(2 * math.pi))
        u = torch.where(missing[:, None], values.new_tensor(self.mean), u)
        return torch.cat([torch.where(missing, 1.0, -1.0).to(u)[:, None], u], 1), log_volume

    def values(self, u: Tensor) -> Tensor:
        """Return NaN where the indicator is positive, the value elsewhere, and infinity for a lost draw."""
        found = torch.where(u[:, 0] > 0, math.nan, self.inside.values(u[:, 1:]))
        return torch.where(u.isnan().any(1), math.inf, found)

    def possible(self, values: Tensor) -> Tensor:
        """Return which values are missing or possible."""
        return values.isnan() | self.inside.possible(self._filled(values))

    def __str__(self) -> str:
        """Return the kind in words."""
        return f"{self.inside}, or missing"


Values = NDArray[np.float64]
KIND_NAMES = "real", "positive", "heavy-tailed", "ordered", "count", "category", "date"
MAX_LEVELS, MAX_RARE_LEVELS = 10, 100  # numbers of different values up to which a column may be ordered
ROWS_PER_LEVEL, ROWS_PER_RARE_LEVEL = 5, 20  # rows for each of these values, at least, in the mean
MAX_CATEGORIES = 32  # a category needs a coordinate for each level but one
EDGE, MIN_EDGE_SHARE, MIN_EDGE_ROWS = 0.02, 0.01, 5  # width of an edge over the range; share of the rows in it; rows
MIN_ROWS_FOR_BOUNDS = 100  # fewer rows are little evidence for a bound
MIN_SKEWNESS, ZERO_DISTANCE = 1.0, 0.25  # skewness; distance of the smallest value from 0 over the range
TAIL_SHARES = 0.05, 0.02, 0.01  # shares of the values, the farthest from the median, in which a tail is measured
MIN_TAIL_ROWS = 10
MIN_TAIL_INDEX = 1 / 3  # the third moment of P(|x| > t) = t^-a is infinite from a = 3
MAX_REACH = 3.0  # distance of the farthest draw over that of the farthest row
MIN_MASS_SHARE, MIN_MASS_ROWS = 0.01, 5
NEXT_STEPS, MASS_RATIO = 0.25, 5.0  # standard deviations of the next steps on a grid; rows at its end over rows there
PEAKED_BELOW = 2.0  # standard deviation in steps, below which neighbouring steps differ much in probability
MAX_DECIMALS, MAX_POSITIONS = 4, 10_000
MAX_SHOWN_DECIMALS = 11
MAX_SCALED = {4: 1e4, 8: 1e12}  # by the bytes of a float: values in steps up to which its decimals are certain
MAX_OFF_GRID = 1e-3  # in steps: the rounding error of float32 at 10,000 positions
LARGEST_WHOLE, FLOAT32_WHOLE = 2.0**53, 2.0**22  # beyond, every float64 is whole, and float32 are multiples of a step
SHARE_TOTALS = 1.0, 100.0  # of proportions and percentages
EMPTY_ROWS = 5  # rows expected between an end and its bound if the density did not end there: none has p = exp(-5)
NEARLY_LINEAR = 0.95  # correlation
LIMIT_REACH = 0.5  # distance of a limit from the values over their range, at most
UNITS = 86400.0, 3600.0, 60.0, 1.0  # day, hour, minute, second
MICROSECOND = 1e-6
MAX_NAMES = 20  # of columns of a kind that are printed


def find_column(
    values: Values, name: str, *, text: bool = False, ordered: bool = False, straight: bool = False, size: int = 8
) -> Column:
    """Infer the kind of a column from its values; values of a category are positions of levels.

    A column is real unless there is clear evidence for another kind. The first rule that applies decides:

    - **constant**: one value.
    - **category**: text, booleans, unordered categories of a data frame, or numbers with two different values.
    - **ordered**: ordered categories of a data frame; 3 to 10 different numbers, with five rows each on average unless
      they are whole; 11 to 100 different numbers that are not on a grid, with 20 rows each on average.
    - **count**: whole numbers with more values. **rounded**: multiples of a number larger than 1 (5, 25, 1,000), or
      decimals with up to four digits, of which less than half are different.
    - **positive**: no negative value, a skewness of at least 1, a smallest value closer to 0 than a quarter of the
      range, and 1 % of the values within 2 % of the range from it.
    - **heavy-tailed**: the largest distances from the median fall like a power below 3: the mean of log(distance /
      smallest of these distances) exceeds 1/3 for the largest 5 %, 2 % and 1 %, for the 5 % by a standard error.
    - **real**: all other columns.

    A real column without negative values has a **limit** at 0, and at 1 or 100 if its largest value is between half of
    that and that (at 100 only without skewness and heavy tails); a limit must be closer to the values than half their
    range. Otherwise the smallest or largest value is a limit if 1 % of the values, and at least five, lie within
    2 % of the range. Draws beyond a limit are reflected. With that many values at both ends the column is learned as a
    logit (**interval**), unless its correlation with another column is above .95. Counts and rounded columns end at
    values that 1 % of the rows, and at least five, have. Such a value of a real column is a **point mass**; on a grid
    only if five times as many rows have it as have each of the next values, on average, and the steps are narrower than
    a quarter of the standard deviation of the other values.
    """
    levels = np.unique(values)
    if len(levels) == 1:
        return Constant(float(levels[0]))
    if text or ordered or len(levels) == 2:
        return _ordered(values) if ordered and len(levels) > 2 else _category(levels, name)
    step, rows_per_level = _step(values, levels), len(values) / len(levels)
    if len(levels) <= MAX_LEVELS and (rows_per_level >= ROWS_PER_LEVEL or (step is not None and step >= 1)):
        return _ordered(values)
    if step is not None:
        return _on_grid(values, step, straight=straight)
    if len(levels) <= MAX_RARE_LEVELS and rows_per_level >= ROWS_PER_RARE_LEVEL:
        return _ordered(values)
    return _continuous(values, size, straight=straight)


def given_column(values: Values, kind: object, name: str, *, size: int = 8) -> Column:
    """Return the column of the user's kind; raise an error for values that this kind cannot have."""
    levels = np.unique(values)
    if len(levels) == 1:
        return Constant(float(levels[0]))
    if kind == "category":
        return _category(levels, name)
    if kind == "ordered":
        return _ordered(values)
    if kind == "count":
        _require(values, values == np.round(values), name, "whole numbers")
        return _on_grid(values, 1.0, limited=False, straight=True)
    decimals = _decimals(values, size)
    if kind == "real":
        return Smooth(decimals=decimals)
    if kind == "heavy-tailed":
        return _heavy(values, decimals)
    low, high = (0.0, math.inf) if kind == "positive" else _pair(kind, name)
    wanted = "numbers of at least 0" if kind == "positive" else f"numbers from {low:g} to {high:g}"
    _require(values, (values >= low) & (values <= high), name, wanted)
    first, last = (bound if _is_mass(values, bound) else None for bound in (low, high))
    others = values[(values > low) & (values < high)]
    if len(np.unique(others)) < 2:
        return Category(tuple(np.unique(values).tolist()))
    nearest = _halfway(low, others.min()), _halfway(high, others.max())
    inside = _reaching(others, Smooth(low, high, nearest=nearest, decimals=decimals))
    return inside if first is None and last is None else _point_masses(inside, others, (first, last))


def _pair(kind: object, name: str) -> tuple[float, float]:
    """Return the bounds of the user's kind."""
    fix = 'For example "positive", "ordered", or (0, 1) for numbers between 0 and 1.'
    if not isinstance(kind, Sequence) or isinstance(kind, str) or len(kind) != 2:
        options = ", ".join(map(repr, KIND_NAMES))
        raise ValueError(checks.message(f"the kind of column {name!r}: {options} or a pair of bounds", repr(kind), fix))
    low, high = (float(bound) for bound in kind)
    if not low < high:
        raise ValueError(checks.message(f"bounds of column {name!r} in order", repr(kind), fix))
    return low, high


def _require(values: Values, possible: NDArray[np.bool_], name: str, wanted: str) -> None:
    if not possible.all():
        got = f"{int((~possible).sum())} other, the first {values[~possible][0]:g}"
        raise ValueError(checks.message(f"column {name!r} of {wanted}", got, "Correct them, or pass another kind."))


def _category(levels: Values, name: str) -> Category:
    if len(levels) > MAX_CATEGORIES:
        fix = "Remove the column, merge rare levels, or correct text among its numbers."
        expected = f"at most {MAX_CATEGORIES} levels in the category {name!r}"
        raise ValueError(checks.message(expected, len(levels), fix))
    return Category(tuple(levels.tolist()))


def _ordered(values: Values) -> Steps:
    levels, ranks = np.unique(values, return_inverse=True)
    ends = (0.0, len(levels) - 1.0)
    return Steps(tuple(levels.tolist()), 1.0, ends, bool(ranks.std() < PEAKED_BELOW), Smooth())


def _step(values: Values, levels: Values) -> float | None:
    """Return the step of the values' grid; None if they do not lie on one."""
    span = levels[-1] - levels[0]
    for decimals in range(MAX_DECIMALS + 1):
        step = 10.0**-decimals
        if span / step > MAX_POSITIONS and decimals:
            return None
        if np.allclose(values / step, np.round(values / step), rtol=0, atol=min(1e-6 * span / step, MAX_OFF_GRID)):
            if decimals:
                return step if len(levels) < len(values) / 2 else None
            return _common_step(np.round(levels))
    return None


def _common_step(levels: Values) -> float | None:
    """Return the greatest common divisor of whole numbers; None if they are so large that every float is whole."""
    largest = float(np.abs(levels).max())
    if largest >= LARGEST_WHOLE:
        return None
    step = float(np.gcd.reduce(levels.astype(np.int64)))
    return None if step > 1 and largest / step >= FLOAT32_WHOLE else step


def _on_grid(values: Values, step: float, *, limited: bool = True, straight: bool) -> Steps | PointMasses:
    """Return the column of values on a grid, with point masses at ends that stand out."""
    positions = np.round(values / step)
    ends = float(positions.min()), float(positions.max())
    first, last = (end if _stands_out(positions, end) else None for end in ends)
    others = positions[(positions != first) & (positions != last)]
    if (first is None and last is None) or len(np.unique(others)) <= MAX_LEVELS:
        return _grid(positions, step, limited=limited, straight=straight)
    inside = _grid(others, step, limited=limited, straight=straight)
    low, high = inside.ends
    inside = replace(inside, ends=(low if first is None else first + 1, high if last is None else last - 1))
    masses = [None if end is None else _multiple(end, step) for end in (first, last)]
    return _point_masses(inside, others * step, (masses[0], masses[1]))


def _multiple(position: float, step: float) -> float:
    """Return a position on a grid as a number with the decimals of the step."""
    return round(position * step, _decimals_of(step))


def _grid(positions: Values, step: float, *, limited: bool, straight: bool) -> Steps:
    """Return the column of positions on a grid; its upper end has no limit, except if it is `limited` or a mass."""
    ends = float(positions.min()), float(positions.max())
    limits = _limits(positions * step)
    low, high = (math.floor(limit / step + 0.5) if math.isfinite(limit) else limit for limit in limits)
    first = ends[0] if _is_mass(positions, ends[0]) else max(low, 0.0 if ends[0] >= 0 else -math.inf)
    last = ends[1] if _is_mass(positions, ends[1]) else high if limited else math.inf
    # ties are spread out, as values without rounding would be
    if _leans_on_zero(positions + np.linspace(0.01, 0.99, len(positions))):
        # all coordinates below 0.5 are 0, however far out
        inside = _reaching(positions, Smooth(-0.5))
        inside = replace(inside, reach=(-math.inf, inside.reach[1]))
    elif _is_heavy(positions):
        inside = _heavy(positions)
    else:
        inside = Smooth(limits=(first - 0.5, last + 0.5))
        inside = inside if straight else _bounded(positions, inside, 1.0)
    return Steps((), step, (first, last), bool(positions.std() < PEAKED_BELOW), inside)


def _stands_out(positions: Values, end: float) -> bool:
    """Return whether one end of a fine grid is a point mass: many more rows than at the next steps."""
    distances = np.abs(positions - end)
    others = distances[distances > 0]
    near = NEXT_STEPS * float(others.std())
    if near < 1 or not _is_mass(positions, end):
        return False
    return bool((distances == 0).sum() > MASS_RATIO * max(1.0, (others <= near).sum() / math.floor(near)))


def _limits(values: Values) -> tuple[float, float]:
    """Return the limits of values: natural ones, or an end at which many values lie; infinite if there is none."""
    low, high = float(values.min()), float(values.max())
    first, last = (low if _is_crowded(values) else -math.inf), (high if _is_crowded(-values) else math.inf)
    if low < 0:
        return first, last
    reaches = [(EDGE if math.isfinite(end) else LIMIT_REACH) * (high - low) for end in (first, last)]
    total = next((total for total in SHARE_TOTALS if total / 2 < high <= total <= high + reaches[1]), math.inf)
    if total > 1 and (_leans_on_zero(values) or _is_heavy(values)):
        total = math.inf  # the end of a long tail is near 100 by chance
    return 0.0 if low <= reaches[0] else first, total if math.isfinite(total) else last


def _bounded(values: Values, column: Smooth, least: float = 0.0) -> Smooth:
    """Return the column with bounds around the values, by a margin of at least `least`, if both ends are crowded.

    A density that ends abruptly is hard to learn; its logit has none of that. The margin is so wide that hardly any
    other row lies beyond it, and that the logit of the outermost values is not far out.
    """
    low, high = float(values.min()), float(values.max())
    margin = max(least, EMPTY_ROWS * (high - low) / len(values))
    if not (_is_crowded(values) and _is_crowded(-values)):
        return column
    return replace(column, low=low - margin, high=high + margin)


def _is_crowded(values: Values) -> bool:
    """Return whether many values lie at the lower end."""
    near = int((values - values.min() < EDGE * (values.max() - values.min())).sum())
    return len(values) >= MIN_ROWS_FOR_BOUNDS and near >= max(MIN_EDGE_ROWS, MIN_EDGE_SHARE * len(values))


def _leans_on_zero(values: Values) -> bool:
    """Return whether values are skewed, dense at the lower end but not at the upper one, and begin near 0."""
    low, high = float(values.min()), float(values.max())
    span = high - low
    if low < 0 or low > ZERO_DISTANCE * span or not _is_crowded(values) or _is_crowded(-values):
        return False
    within = (values - low) / span  # scaled, so that squares do not underflow
    return float(np.mean(((within - within.mean()) / within.std()) ** 3)) > MIN_SKEWNESS


def _is_heavy(values: Values) -> bool:
    """Return whether the distances from the median fall like a power below 3 (Hill 1975)."""
    distances = np.sort(np.abs(values - np.median(values)))[::-1]
    counts = [k for share in TAIL_SHARES if (k := int(share * len(values))) >= MIN_TAIL_ROWS]
    indices = [float(np.log(distances[:k] / max(distances[k], LEAST)).mean()) for k in counts]
    if not indices or min(indices) <= MIN_TAIL_INDEX:
        return False
    return indices[0] * (1 - 1 / math.sqrt(counts[0])) > MIN_TAIL_INDEX  # by a standard error: few rows say little


def _heavy(values: Values, decimals: int | None = None) -> Smooth:
    middle = float(np.median(values))
    width = float(np.median(np.abs(values - middle)))
    found = Smooth(middle=(middle, width if width > 0 else float(values.std())), decimals=decimals)
    return _reaching(values, found)


def _reaching(values: Values, column: Smooth) -> Smooth:
    """Return the column with draws up to a multiple of the distance of the farthest value."""
    if column.middle is not None:
        middle = column.middle[0]
        far = [middle + MAX_REACH * (float(end) - middle) for end in (values.min(), values.max())]
    elif column.kind in ("positive", "bounded"):
        sign, bound = (1, column.low) if math.isfinite(column.low) else (-1, column.high)
        distances = sign * (values - bound)
        inner = float(distances[distances > 0].min())
        far = [bound + sign * inner / MAX_REACH, bound + sign * MAX_REACH * float(distances.max())]
    else:
        return column
    first, last = column.map.inverse(torch.tensor(far, dtype=torch.float64)[:, None])[:, 0].sort().values.tolist()
    return replace(column, reach=(first, last))


def _continuous(values: Values, size: int, *, straight: bool) -> Column:
    """Return the column of values that lie on no grid, with point masses at ends that many values equal."""
    ends = float(values.min()), float(values.max())
    at = _is_mass(values, ends[0]), _is_mass(values, ends[1])
    others = values[~((at[0] & (values == ends[0])) | (at[1] & (values == ends[1])))]
    if len(np.unique(others)) < 2:
        return Category(tuple(np.unique(values).tolist()))
    decimals, (low, high) = _decimals(values, size), _limits(others)
    limits = ends[0] if at[0] else low, ends[1] if at[1] else high
    if (limits[0] == 0 and _leans_on_zero(others)) and not at[1]:
        few_zeros = (0.0, math.inf) if others.min() > 0 else (_halfway(0.0, others[others > 0].min()), math.inf)
        inside = _reaching(others, Smooth(0.0, nearest=few_zeros, decimals=decimals))
    elif not any(map(math.isfinite, limits)) and _is_heavy(others):
        inside = _heavy(others, decimals)
    else:
        inside = Smooth(limits=limits, decimals=decimals)
        inside = inside if straight else _bounded(others, inside)
    masses = ends[0] if at[0] else None, ends[1] if at[1] else None
    return _point_masses(inside, others, masses) if any(at) else inside


def _point_masses(inside: Smooth | Steps, others: Values, masses: tuple[float | None, float | None]) -> PointMasses:
    """Return the column of other values with point masses at its ends."""
    u = inside.coordinates(torch.from_numpy(others.copy()), torch.Generator().manual_seed(0))
    return PointMasses(inside, masses, (float(u.min()), float(u.max())), float(u.std()))


def _is_mass(values: Values, value: float) -> bool:
    """Return whether 1 % of the rows and at least five have this value."""
    return int((values == value).sum()) >= max(MIN_MASS_ROWS, MIN_MASS_SHARE * len(values))


def _halfway(bound: float, value: float) -> float:
    """Return the midpoint of a bound and the nearest value; the value itself if there is no bound."""
    return float((bound + value) / 2 if math.isfinite(bound) else value)


def _decimals(values: Values, size: int) -> int | None:
    """Return the number of decimals of values; None if they are not rounded."""
    largest, span = float(np.abs(values).max()), float(np.ptp(values))
    for decimals in range(MAX_SHOWN_DECIMALS):
        scale = 10.0**decimals
        if largest * scale > MAX_SCALED.get(size, 0.0):
            return None
        if (np.abs(values * scale - np.round(values * scale)) <= min(1e-6 * span * scale, MAX_OFF_GRID)).all():
            return decimals
    return None


def _date(values: Values, *, straight: bool) -> Column:
    """Return the column of dates, given as seconds since 1970."""
    first, last = float(values.min()), float(values.max())
    if first == last:
        return Constant(first)
    unit = next((unit for unit in UNITS if not np.remainder(values - first, unit).any()), MICROSECOND)
    positions = np.round((values - first) / unit)
    end = float(positions.max())
    inside = Smooth(limits=(-0.5, end + 0.5))
    inside = inside if straight else _bounded(positions, inside, 1.0)
    return Date(Steps((), 1.0, (0.0, end), bool(positions.std() < PEAKED_BELOW), inside), first, unit)


def _nearly_linear(rows: Values) -> NDArray[np.bool_]:
    """Return which columns are nearly a linear function of another, such as two dates a few days apart."""
    standard = [
        np.nan_to_num((x - np.nanmean(x)) / (np.nanstd(x) or 1.0)) if not np.isnan(x).all() else x for x in rows.T
    ]
    correlation = np.abs(np.nan_to_num(np.stack(standard) @ np.stack(standard).T / len(rows)))
    np.fill_diagonal(correlation, 0.0)
    found: NDArray[np.bool_] = correlation.max(0) > NEARLY_LINEAR
    return found


class Condition(NamedTuple):
    """What a column is to be: one of some values, or between two.

    Args:
        place: Position of the column.
        values: Values as numbers, NaN for a missing one; None for a range.
        low: Lower end of the range.
        high: Upper end of the range.
    """

    place: int
    values: tuple[float, ...] | None
    low: float = -math.inf
    high: float = math.inf

    def holds(self, rows: Tensor) -> Tensor:
        """Return which rows `(row, column)` of numbers fulfil the condition."""
        x = rows[:, self.place]
        if self.values is None:
            return (x >= self.low) & (x <= self.high)
        return torch.isin(x, x.new_tensor(self.values)) | (x.isnan() & any(map(math.isnan, self.values)))


KINDS: Mapping[str, type[Any]] = {
    cls.__name__: cls for cls in (Constant, Smooth, Steps, Category, PointMasses, Date, Missing)
}
Kinds = Mapping[Any, Any] | None


@dataclass(frozen=True)
class Table:
    """The columns of a table, and the map between rows of numbers and points with a density.

    Args:
        names: Names of the columns.
        columns: Kinds of the columns.
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
        dates: Collection[str] = (),
    ) -> "Table":
        """Return the table of rows, with kinds that are given or inferred.

        Args:
            rows: Rows as numbers; NaN for missing values.
            names: Names of the columns.
            kinds: Given kinds, by name or position.
            categories: Names of categorical columns, and whether their levels are ordered.
            dates: Names of columns of dates, given as seconds since 1970.
        """
        given, categories, size = named_kinds(kinds, names), categories or {}, np.asarray(rows).dtype.itemsize

        straight = dict(zip(names, _nearly_linear(np.asarray(rows, np.float64)), strict=True))

        def find(values: Values, name: str) -> Column:
            if name in dates:
                return _date(values, straight=straight[name])
            if name in given:
                return given_column(values, given[name], name, size=size)
            ordered = categories.get(name, False)
            return find_column(
                values, name, text=name in categories, ordered=ordered, straight=straight[name], size=size
            )

        columns = []
        for name, values in zip(names, np.asarray(rows, np.float64).T, strict=True):
            there = values[~np.isnan(values)]
            if not len(there):
                expected = f"column {name!r} with values"
                raise ValueError(checks.message(expected, "only missing values", "Remove the column."))
            column = find(there, name)
            columns.append(column if len(there) == len(values) else Missing.around(column, there))
        if not any(column.width for column in columns):
            raise ValueError(checks.message("columns that vary", "only constants", "Pass rows that differ."))
        return cls(tuple(names), tuple(columns))

    @property
    def width(self) -> int:
        """Number of coordinates of a row."""
        return sum(column.width for column in self.columns)

    @property
    def is_plain(self) -> bool:
        """Whether the coordinates are the numbers themselves."""
        return all(column == Smooth() for column in self.columns)

    @property
    def coordinate_names(self) -> list[str]:
        """Names of the coordinates: the column's name, numbered if it has several coordinates."""
        return [
            name if column.width == 1 else f"{name} [{i}]"
            for name, column in zip(self.names, self.columns, strict=True)
            for i in range(column.width)
        ]

    def coordinates(self, rows: NDArray[Any], generator: torch.Generator | None = None) -> Tensor:
        """Return the points `(row, width)` of rows, with noise for discrete values.

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
        """Return the centre of all points that represent a row, and their log volume, for every row.

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
            points: Points of R^width, with any number of leading axes.
        """
        if self.is_plain:
            return points
        groups = points.reshape(-1, self.width).double().split([column.width for column in self.columns], 1)
        rows = [column.values(group) for column, group in zip(self.columns, groups, strict=True)]
        return torch.stack(rows, 1).reshape(*points.shape[:-1], len(self.columns))

    def condition(self, name: str, wanted: Sequence[float], *, is_range: bool) -> Condition:
        """Return the condition that a column has one of some values, or lies between two.

        Args:
            name: Name of the column.
            wanted: The values as numbers, or the two ends of the range.
            is_range: Whether `wanted` is a range.
        """
        place = self.names.index(_name(name, self.names))
        column = self.columns[place]
        low, high = column.bounds
        if is_range:
            first, last = wanted
            if not first <= last:
                expected, fix = f"a range of column {name!r} from low to high", "Swap the two ends."
                raise ValueError(checks.message(expected, f"{first:g} to {last:g}", fix))
            if not (first <= high and last >= low):
                expected = f"a range of column {name!r} that meets {low:g} to {high:g}"
                raise ValueError(checks.message(expected, f"{first:g} to {last:g}", "Rows lie between these numbers."))
            return Condition(place, None, first, last)
        inside = column.inside if isinstance(column, Missing) else column
        masses = inside.masses if isinstance(inside, PointMasses) else ()
        if isinstance(_values_alone(column), Smooth) and not all(math.isnan(one) or one in masses for one in wanted):
            fix = "Pass the two ends as a tuple; one number has probability 0."
            raise ValueError(checks.message(f"a range for column {name!r} ({column})", list(wanted), fix))
        if not column.possible(torch.tensor(wanted, dtype=torch.float64)).any():
            fix = "No row fulfils the condition: pass a value that rows have."
            raise ValueError(checks.message(f"values of column {name!r} ({column})", list(wanted), fix))
        return Condition(place, tuple(wanted))

    def log_likelihood(self, points: Tensor, conditions: Sequence[Condition], variance: Tensor) -> Tensor:
        """Return normal log likelihoods of the conditions at points, with a variance for every coordinate.

        Args:
            points: Points `(point, width)`.
            conditions: The conditions.
            variance: Variance `(width,)` of the distance of a point to the coordinates of the values.
        """
        starts = np.cumsum([0, *(column.width for column in self.columns)]).tolist()
        found = points.new_zeros(len(points))
        for one in conditions:
            column, part = self.columns[one.place], slice(starts[one.place], starts[one.place + 1])
            if not column.width:
                continue
            ends = one.values if one.values is not None else np.clip([one.low, one.high], *column.bounds)
            targets = column.centre(torch.tensor(ends, dtype=torch.float64))[0].to(points)
            u = points[:, None, part]
            if one.values is None:  # the last coordinate increases with the value; an indicator may stand before it
                gap = torch.cat(
                    [u[..., :-1] - targets[:1, :-1], u[..., -1:] - u[..., -1:].clamp(targets[0, -1], targets[1, -1])],
                    -1,
                )
            else:
                gap = u - targets
            found = found - (gap.square() / (2 * variance[part])).sum(-1).amin(1)
        return found

    def possible(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which rows are possible: with known levels, and values between their bounds.

        Args:
            rows: Rows as numbers.
        """
        values = np.asarray(rows, np.float64).T
        found = [c.possible(torch.from_numpy(v.copy())) for c, v in zip(self.columns, values, strict=True)]
        return torch.stack(found).all(0).numpy()

    def within_bounds(self, rows: NDArray[Any], dtype: Any) -> NDArray[Any]:
        """Convert rows to a dtype, and keep them within their bounds, which rounding could violate.

        Args:
            rows: Rows as numbers, of any floating dtype.
            dtype: Floating dtype of the result. A number beyond its range, which the map of heavy tails may return,
                becomes the largest of the dtype; real columns have no map and are only clipped to their bounds.
        """
        with np.errstate(over="ignore"):
            found, largest = rows.astype(dtype), np.finfo(dtype).max
        for j, column in enumerate(self.columns):
            values = _values_alone(column)
            if isinstance(values, Smooth) and values.kind == "real":
                found[:, j] = found[:, j].clip(*column.bounds)
                continue
            low, high = (found.dtype.type(bound) for bound in column.bounds)
            if isinstance(column, Smooth):
                low, high = np.nextafter(low, np.inf, dtype=dtype), np.nextafter(high, -np.inf, dtype=dtype)
            found[:, j] = found[:, j].clip(max(low, -largest), min(high, largest))
        return found

    def __str__(self) -> str:
        """Return one line per kind with the names of its columns."""
        by_kind: dict[str, list[str]] = {}
        for name, column in zip(self.names, self.columns, strict=True):
            by_kind.setdefault(str(column), []).append(name)
        return "\n".join(f"{kind}: {_listed(names)}" for kind, names in by_kind.items())

    def to_json(self) -> dict[str, Any]:
        """Return the table in a form for JSON."""
        return {"names": list(self.names), "columns": [_to_json(column) for column in self.columns]}

    @classmethod
    def from_json(cls, spec: Mapping[str, Any]) -> "Table":
        """Return the table that `to_json` wrote.

        Args:
            spec: Result of `to_json`.
        """
        return cls(tuple(spec["names"]), tuple(_from_json(column) for column in spec["columns"]))


def _values_alone(column: Column) -> Column:
    """Return the column of values that are neither missing nor point masses."""
    return _values_alone(column.inside) if isinstance(column, Missing | PointMasses) else column


def _listed(names: Sequence[str]) -> str:
    """Return names separated by commas, the last ones of many as a number."""
    shown, more = names[:MAX_NAMES], len(names) - MAX_NAMES
    return ", ".join(shown) + f" and {more:,} more" * (more > 0)


def named_kinds(kinds: Kinds, names: Sequence[str]) -> dict[str, Any]:
    """Return kinds by the names of columns.

    Args:
        kinds: Kinds by name or position.
        names: Names of all columns.
    """
    return {_name(key, names): kind for key, kind in (kinds or {}).items()}


def _name(key: object, names: Sequence[str]) -> str:
    """Return the name of a column from its name or position."""
    if isinstance(key, int | np.integer) and 0 <= int(key) < len(names):
        return names[int(key)]
    if key in names:
        return str(key)
    fix = "Pass the name of a column, or its position, counted from 0."
    raise ValueError(checks.message(f"columns among {', '.join(map(repr, names))}", repr(key), fix))


def _to_json(value: Any) -> Any:
    """Return a column, or a part of it, in a form for JSON: classes by name, infinities as text."""
    if is_dataclass(value):
        parts = {one.name: _to_json(getattr(value, one.name)) for one in fields(value)}
        return {"class": type(value).__name__} | parts
    if isinstance(value, tuple | list):
        return [_to_json(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _from_json(spec: Any) -> Any:
    if isinstance(spec, Mapping):
        return KINDS[spec["class"]](**{name: _from_json(part) for name, part in spec.items() if name != "class"})
    if isinstance(spec, list):
        return tuple(_from_json(part) for part in spec)
    return float(spec) if spec in ("inf", "-inf") else spec
