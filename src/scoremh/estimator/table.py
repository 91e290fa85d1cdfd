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
| constant | nothing | the constant |

`centre` returns the centre of all u that represent x, and a log volume: the log of the factor that turns p(u) there
into the density of x (the inverse slope of the map) or the probability of a discrete value (the volume of its noise).

`find_bounds` infers the bounds of values, `find_column` the kind of a column, and `Table` maps whole rows.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh.coordinates import Affine, Compose, Coordinates, Log, Logit, Sinh, SquareRoot

__all__ = ["Column", "Kinds", "Table"]


LARGEST = 1e150  # largest value that a map returns, so that sums of squares stay finite


class Column(ABC):
    """A column of a table; values are float64."""

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
        """Bounds that all draws respect."""
        return -math.inf, math.inf

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
        low: Lower bound; infinite if there is none.
        high: Upper bound; infinite if there is none.
        middle: Middle and width of a column with heavy tails, the parameters of `Sinh`; None for other columns.
        nearest: Replacements for values at the lower and upper bound, where u would be infinite: halfway to the nearest
            other value. None if values at a bound are impossible.
        limits: Natural limits near which values do not accumulate: 0, or 1 or 100 for shares. Draws beyond them are
            reflected; the density ignores them.
    """

    low: float = -math.inf
    high: float = math.inf
    middle: tuple[float, float] | None = None
    nearest: tuple[float, float] | None = None
    limits: tuple[float, float] = (-math.inf, math.inf)

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
        """Return x = f(u), clipped to the bounds for extreme u."""
        x: Tensor = self.map(u)[:, 0]
        for limit, beyond in zip(self.limits, (torch.lt, torch.gt), strict=True):
            x = torch.where(beyond(x, limit), 2 * limit - x, x) if math.isfinite(limit) else x
        x = x.clamp(*self.limits)
        if self.kind == "real":
            return x
        low, high = math.nextafter(self.low, math.inf), math.nextafter(self.high, -math.inf)
        return x.clamp(max(low, -LARGEST), min(high, LARGEST))

    def possible(self, values: Tensor) -> Tensor:
        """Return which values lie between the bounds; values at a bound are possible if `nearest` replaces them."""
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


# Half the distance of two corners of a simplex is 1. Noise of std 0.25 would cross it with probability 1 in 30,000;
# noise longer than 0.95 is shortened, so that it never does.
CORNER_STD = 0.25
MAX_CORNER_NOISE = 0.95
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
    def kind(self) -> str:
        """Name of the kind."""
        return "ordered" if self.levels else "count" if self.step == 1 else "rounded"

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
        decimals = max(0, -math.floor(math.log10(self.step) + 1e-9))
        return position if self.step == 1 else (position * self.step).round(decimals=decimals)

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
        return f"rounded to {self.step:g}" if self.kind == "rounded" else self.kind


@dataclass(frozen=True)
class Category(Column):
    """A column of levels without order: corners of a simplex, with normal noise around them.

    Args:
        levels: Levels, as numbers.
    """

    levels: tuple[float, ...]

    @property
    def kind(self) -> str:
        """Name of the kind."""
        return "category"

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
    """A column with a density between bounds and point masses at one or both, such as zeros in a positive column.

    On the axis of the other values' coordinate, a point mass becomes normal noise around a point beyond the outermost
    of them.

    Args:
        inside: Column of the other values.
        at: Whether there is a point mass at the lower and at the upper bound.
        ends: Smallest and largest coordinate of the other values.
        std: Standard deviation of the coordinate of the other values.
    """

    inside: Smooth
    at: tuple[bool, bool]
    ends: tuple[float, float]
    std: float

    @property
    def kind(self) -> str:
        """Kind of the other values."""
        return self.inside.kind

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of the other values, where the point masses are."""
        return self.inside.bounds

    @property
    def _masses(self) -> list[tuple[float, float, float]]:
        """Value, centre and inner edge of the coordinates of each point mass."""
        signed = zip(self.at, self.bounds, self.ends, (-1, 1), strict=True)
        return [
            (bound, end + 2 * sign * MASS_GAP * self.std, end + sign * MASS_GAP * self.std)
            for there, bound, end, sign in signed
            if there
        ]

    def coordinates(self, values: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return u of values between the bounds, and noise around the centre of the mass for values at a bound."""
        limit = MASS_GAP * self.std
        noise = (limit * CORNER_STD * rng.normal((len(values), 1), values, generator)).clamp(
            -0.95 * limit, 0.95 * limit
        )
        u = self.inside.coordinates(values, generator)
        for bound, middle, _ in self._masses:
            u = torch.where((values == bound)[:, None], middle + noise, u)
        return u

    def centre(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return u and its log volume, of a value between the bounds or of a point mass."""
        u, log_volume = self.inside.centre(values)
        of_mass = math.log(MASS_GAP * self.std * CORNER_STD * math.sqrt(2 * math.pi))
        for bound, middle, _ in self._masses:
            u = torch.where((values == bound)[:, None], u.new_full((), middle), u)
            log_volume = torch.where(values == bound, log_volume.new_full((), of_mass), log_volume)
        return u, log_volume

    def values(self, u: Tensor) -> Tensor:
        """Return the bound for u beyond an edge, and f(u) elsewhere."""
        x = self.inside.values(u)
        for bound, middle, edge in self._masses:
            beyond = u[:, 0] < edge if middle < edge else u[:, 0] > edge
            x = torch.where(beyond, x.new_full((), bound), x)
        return x

    def possible(self, values: Tensor) -> Tensor:
        """Return which values lie between the bounds or at a point mass."""
        found = self.inside.possible(values)
        for bound, _, _ in self._masses:
            found = found | (values == bound)
        return found

    def __str__(self) -> str:
        """Return the kind in words."""
        return f"{self.inside}, and exactly {' or '.join(f'{bound:g}' for bound, _, _ in self._masses)}"


Values = NDArray[np.float64]
NORMAL_GINI, GINI_STD = 0.465, 0.21  # mean of G in normal tails of 200 to 10,000 rows, and its std times sqrt(k)
SCALE_WEIGHTS = (4, 2, 1)  # weights of the scales k, k / 2 and k / 4, proportional to their numbers of values
LIMITS = ((4.2, math.inf), (3.2, 0.1), (1.7, 0.01))  # smallest -z, and largest probability of a number as round
LIMITS_OF_THE_OTHER_END = (*LIMITS, (1.7, 0.1))
MAX_JUMP = 1.0, 1.4  # largest increase of G from k to k / 2 and k / 4, times sqrt(k): 2.4 standard deviations
REACH_ROWS = 5.0  # number of values expected between the bound and the outermost value, at most: exp(-5) < 1 %
ZERO_REACH = 2.0  # reach for 0, over that of other numbers: if 0 were missed, a bound above it would be found
VALLEY = 1.5  # ratio of the widths of neighbouring quarters of the k values


@dataclass(frozen=True)
class End:
    """The lower end of values.

    Args:
        bound: Roundest number within reach.
        z: Difference of G from its mean in a normal tail, in standard deviations.
        chance: Probability of a number as round within reach of a random end.
        is_mode: Whether the outermost values look like a small mode.
    """

    bound: float
    z: float
    chance: float
    is_mode: bool

    def is_bound(self, limits: tuple[tuple[float, float], ...]) -> bool:
        """Return whether the evidence for a bound is strong enough."""
        possible = self.chance == 0 or not self.is_mode
        return possible and any(self.z < -least and self.chance <= largest for least, largest in limits)


def find_bounds(values: Values) -> tuple[float, float]:
    """Return the bounds at the ends of at least 100 values; infinity if none is found.

    Next to a bound b, P(x < b + t) grows like t^a: a = 1 if the density is positive at b, 2 if it rises linearly from
    0, 1 / 2 if it has a pole. The distances of the k outermost values from the next one then have the Gini coefficient

        G = 1 / (2 + 1 / a):  1/4, 1/3 and 2/5 for a = 1/2, 1 and 2; 1/2 for an exponential tail, more for a heavy one;

    and about .465 for a normal tail at the usual sample sizes. G is averaged over three scales, k = 2 sqrt(n), k / 2
    and k / 4, which are nearly independent next to a bound; `z` is its difference from a normal tail in standard
    deviations. In 99 % of samples, the outermost value is closer to b than `reach` = (5 / k)^(1 / a) times the width of
    the k values. The second piece of evidence is therefore a round number there: a multiple of `step` (1, 2 or 5 times
    a power of ten, or pi / 2) is within reach of a random end with probability reach / step. 0 is a multiple of every
    step, and if the other end is a bound b, -b counts as one too.

    An end is a bound if z < -4.2; if z < -3.2 and the round number has probability at most .1; or if z < -1.7 and the
    round number has probability at most .01 (.1 if the other end is a bound). If values become sparse on both sides of
    a dense middle, they are a small mode and not a bound, unless 0 or -b is next to them.
    """
    low, high = lower_end(values), lower_end(-values)
    found = [end.is_bound(LIMITS) for end in (low, high)]
    if sum(found) == 1:
        if found[0]:
            high = lower_end(-values, mirrored=low.bound)
        else:
            low = lower_end(values, mirrored=high.bound)
        found = [there or end.is_bound(LIMITS_OF_THE_OTHER_END) for there, end in zip(found, (low, high), strict=True)]
    return low.bound if found[0] else -math.inf, -high.bound if found[1] else math.inf


def lower_end(values: Values, mirrored: float = 0.0) -> End:
    """Return the evidence for a bound below the smallest values."""
    k = int(2 * math.sqrt(len(values)))
    x = np.sort(np.partition(values, k)[: k + 1])
    ginis = [_gini(x[scale] - x[:scale]) for scale in (k, k // 2, k // 4)]
    mean = float(np.average(ginis, weights=SCALE_WEIGHTS))
    reach = float(x[k] - x[0]) * (REACH_ROWS / k) ** max(1 / mean - 2, 0.0) if mean > 0 else 0.0
    bound, step = roundest(float(x[0]), reach, mirrored)
    jumps = [gini - ginis[0] for gini in ginis[1:]]
    is_mode = _has_valley(x) or any(jump > most / math.sqrt(k) for jump, most in zip(jumps, MAX_JUMP, strict=True))
    z = (mean - NORMAL_GINI) / GINI_STD * math.sqrt(k)
    return End(bound, z, reach / step, is_mode)


def _gini(distances: Values) -> float:
    """Return the Gini coefficient: half the mean difference of two distances over their mean; 0 if all are 0."""
    k, ordered = len(distances), np.sort(distances)
    total = float(ordered.sum())
    return float((2 * np.arange(k) - k + 1) @ ordered) / ((k - 1) * total) if total > 0 else 0.0


def _has_valley(x: Values) -> bool:
    """Return whether sorted values are densest in the middle and sparser on both sides."""
    first, second, third, last = np.diff(x[[round(i * (len(x) - 1) / 4) for i in range(5)]])
    return bool(first > VALLEY * second and last > VALLEY * min(second, third))


def roundest(end: float, reach: float, mirrored: float = 0.0) -> tuple[float, float]:
    """Return the roundest number from end - reach to end, and its step, which is infinite for 0."""
    for bound in (0.0, mirrored):
        if end - ZERO_REACH * reach <= bound <= end:
            return bound, math.inf
    if reach <= 0:
        return end, math.inf
    for exponent in range(math.ceil(math.log10(abs(end) + reach)), math.floor(math.log10(reach)) - 2, -1):
        unit = 10.0**exponent
        for step in sorted(
            (5 * unit, 2 * unit, unit, *[math.pi / 2] * (unit <= math.pi / 2 < 10 * unit)), reverse=True
        ):
            bound = math.floor(end / step + 1e-9) * step
            if end - reach <= bound:
                return min(round(bound, 12) if step != math.pi / 2 else bound, end), step
    return end, reach


KIND_NAMES = "real", "positive", "heavy-tailed", "ordered", "count", "category"
MAX_LEVELS = 10  # number of different whole numbers up to which a column is ordered
MAX_CATEGORIES = 32  # a category needs a coordinate for each level but one
EDGE, MIN_EDGE_SHARE = 0.02, 0.01  # width of an edge over the range; share of the rows in it
MIN_ROWS_FOR_BOUNDS = 100  # fewer rows are little evidence for a bound
MIN_SKEWNESS, ZERO_DISTANCE = 1.0, 0.25  # skewness; distance of the smallest value from 0 over the range
HEAVY_SPAN = 7.0  # span of the middle 99 % of the values over that of the middle half
MIN_MASS_SHARE, MIN_MASS_ROWS = 0.01, 5
PEAKED_BELOW = 2.0  # standard deviation in steps, below which neighbouring steps differ much in probability
MAX_DECIMALS, MAX_POSITIONS = 4, 10_000
MAX_OFF_GRID = 1e-3  # in steps: the rounding error of float32 at 10,000 positions
LARGEST_WHOLE, FLOAT32_WHOLE = 2.0**53, 2.0**22  # beyond, every float64 is whole, and float32 are multiples of a step
SHARE_TOTALS = 1.0, 100.0  # of proportions and percentages
LIMIT_REACH = 0.5  # distance of a limit from the values over their range, at most


def find_column(values: Values, name: str, *, text: bool = False, ordered: bool = False) -> Column:
    """Infer the kind of a column from its values; values of a category are positions of levels.

    The rules, in order; they are conservative, so that a column is real unless there is clear evidence against it:

    - **constant**: one value.
    - **category**: text, booleans and unordered categories of a data frame; numbers with two different values.
    - **ordered**: ordered categories of a data frame; whole numbers with 3 to 10 different values.
    - **count**: whole numbers with more values. **rounded**: multiples of a number larger than 1 (5, 25, 1,000), and
      decimals with up to four digits after the point of which less than half are different.
    - **positive, bounded, interval**: the outermost values are denser than in a normal tail, and a round number (or a
      multiple of pi / 2) lies next to them: the rounder the number, the weaker the evidence needed from the density.
      `find_bounds` has the details. With fewer than 100 rows no bound is found.
    - **positive** also if the skewness is at least 1, no value is negative, the smallest is closer to 0 than a quarter
      of the range, and 1 % of the values lie at that end, within 2 % of the range.
    - **heavy-tailed**: the middle 99 % of the values span more than 7 times what the middle half spans (3.8 times for a
      normal distribution, 7.6 for Student's t with three degrees of freedom).
    - **limits**, at an end without a bound: 0 if no value is negative, and also 1 or 100 if the largest value is
      between half the limit and the limit (100 only if the values are neither skewed nor heavy-tailed). A limit must
      be closer to the values than half their range. Draws beyond a limit are reflected, or on a grid moved to its end.
    - **ends of a grid**: the smallest or largest value of a count or rounded column, if 1 % of the rows and at least
      five have it (months, ages from 18).
    - **point masses**: values at a bound, if 1 % of the rows and at least five are there; fewer are moved inside.
    - **real**: all other columns.
    """
    levels = np.unique(values)
    if len(levels) == 1:
        return Constant(float(levels[0]))
    if text or ordered or len(levels) == 2:
        return _ordered(values) if ordered and len(levels) > 2 else _category(levels, name)
    if (step := _step(values, levels)) is not None:
        is_short = step >= 1 and len(levels) <= MAX_LEVELS
        return _ordered(values) if is_short else _on_grid(values, step, _limits(values)[1])
    return _with_masses(values, _bounds(values), _limits(values))


def given_column(values: Values, kind: object, name: str) -> Column:
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
        return _on_grid(values, 1.0)
    if kind in ("real", "heavy-tailed"):
        return Smooth() if kind == "real" else _heavy(values)
    low, high = (0.0, math.inf) if kind == "positive" else _pair(kind, name)
    wanted = "numbers of at least 0" if kind == "positive" else f"numbers from {low:g} to {high:g}"
    _require(values, (values >= low) & (values <= high), name, wanted)
    return _with_masses(values, (low, high))


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


def _on_grid(values: Values, step: float, high: float = math.inf) -> Steps:
    positions = np.round(values / step)
    first = 0.0 if positions.min() >= 0 else -math.inf
    # ties are spread out, as values without rounding would be
    skewed = first == 0 and _leans_on_zero(positions + np.linspace(-0.49, 0.49, len(positions)))
    inside = Smooth(-0.5) if skewed else Smooth(middle=_middle(positions))
    ends = positions.min(), positions.max()
    held = [_is_mass(positions, end) for end in ends]
    last = float(np.floor(high / step + 1e-9))
    found = float(ends[0]) if held[0] else first, float(ends[1]) if held[1] else last
    return Steps((), step, found, bool(positions.std() < PEAKED_BELOW), inside)


def _bounds(values: Values) -> tuple[float, float]:
    """Return the bounds of values; infinite if there is none."""
    if len(values) < MIN_ROWS_FOR_BOUNDS:
        return -math.inf, math.inf
    low, high = find_bounds(values)
    if not math.isfinite(low) and values.min() >= 0 and _leans_on_zero(values):
        low = 0.0
    return low, high


def _limits(values: Values) -> tuple[float, float]:
    """Return the limits of values: 0 if none is negative, 1 or 100 for proportions and percentages, else infinity."""
    low, high = float(values.min()), float(values.max())
    if low < 0:
        return -math.inf, math.inf
    reach = LIMIT_REACH * (high - low)
    total = next((total for total in SHARE_TOTALS if total / 2 < high <= total <= high + reach), math.inf)
    if total > 1 and (_leans_on_zero(values) or _middle(values) is not None):
        total = math.inf  # the end of a long tail is near 100 by chance
    return 0.0 if low <= reach else -math.inf, total


def _leans_on_zero(values: Values) -> bool:
    """Return whether values are skewed, dense at the lower end but not at the upper one, and begin near 0."""
    low, high = float(values.min()), float(values.max())
    span = high - low
    if len(values) < MIN_ROWS_FOR_BOUNDS or low > ZERO_DISTANCE * span:
        return False
    near = [float((distance < EDGE * span).mean()) for distance in (values - low, high - values)]
    within = (values - low) / span  # scaled, so that squares do not underflow
    skewness = float(np.mean(((within - within.mean()) / within.std()) ** 3))
    return near[0] >= MIN_EDGE_SHARE > near[1] and skewness > MIN_SKEWNESS


def _middle(values: Values) -> tuple[float, float] | None:
    """Return the middle and width of values with heavy tails; None for other values."""
    q = np.quantile(values, [0.005, 0.25, 0.75, 0.995])
    return _heavy(values).middle if q[2] > q[1] and q[3] - q[0] > HEAVY_SPAN * (q[2] - q[1]) else None


def _heavy(values: Values) -> Smooth:
    middle = float(np.median(values))
    width = float(np.median(np.abs(values - middle)))
    return Smooth(middle=(middle, width if width > 0 else float(values.std())))


def _with_masses(
    values: Values, bounds: tuple[float, float], limits: tuple[float, float] = (-math.inf, math.inf)
) -> Column:
    """Return the column between bounds and limits, with point masses at bounds that many values equal."""
    if not any(map(math.isfinite, bounds)):
        return Smooth(middle=_middle(values), limits=limits)
    masses = tuple(bound for bound in bounds if _is_mass(values, bound))
    others = values[(values > bounds[0]) & (values < bounds[1])]
    if len(np.unique(others)) < 2:
        return Category(tuple(np.unique(values).tolist()))
    nearest = _halfway(bounds[0], others.min()), _halfway(bounds[1], others.max())
    free = [-math.inf if math.isfinite(bounds[0]) else limits[0], math.inf if math.isfinite(bounds[1]) else limits[1]]
    inside = Smooth(*bounds, nearest=nearest, limits=(free[0], free[1]))
    if not masses:
        return inside
    u = inside.coordinates(torch.from_numpy(others.copy()), None)
    ends, at = (float(u.min()), float(u.max())), (bounds[0] in masses, bounds[1] in masses)
    return PointMasses(inside, at, ends, float(u.std()))


def _is_mass(values: Values, value: float) -> bool:
    """Return whether 1 % of the rows and at least five have this value."""
    return int((values == value).sum()) >= max(MIN_MASS_ROWS, MIN_MASS_SHARE * len(values))


def _halfway(bound: float, value: float) -> float:
    """Return the midpoint of a bound and the nearest value; the value itself if there is no bound."""
    return float((bound + value) / 2 if math.isfinite(bound) else value)


KINDS: Mapping[str, type[Any]] = {cls.__name__: cls for cls in (Constant, Smooth, Steps, Category, PointMasses)}
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
    ) -> "Table":
        """Return the table of rows, with kinds that are given or inferred.

        Args:
            rows: Rows as numbers.
            names: Names of the columns.
            kinds: Given kinds, by name or position.
            categories: Names of categorical columns, and whether their levels are ordered.
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
            if column.kind == "real":
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
        return "\n".join(f"{kind}: {', '.join(names)}" for kind, names in by_kind.items())

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


def _name(key: object, names: Sequence[str]) -> str:
    """Return the name of a column from its name or position."""
    if isinstance(key, int | np.integer) and 0 <= int(key) < len(names):
        return names[int(key)]
    if key in names:
        return str(key)
    fix = "Pass the name of a column, or its position, counted from 0."
    raise ValueError(checks.message(f"columns among {', '.join(map(repr, names))}", repr(key), fix))


def _to_json(column: Column) -> dict[str, Any]:
    fields: dict[str, Any] = asdict(column)  # type: ignore[call-overload]
    return {"class": type(column).__name__} | {name: _finite(value) for name, value in fields.items()}


def _finite(value: Any) -> Any:
    """Return a value with infinities as text, for JSON."""
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
