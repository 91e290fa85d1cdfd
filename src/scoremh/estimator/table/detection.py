"""The kind of a column, found from its values where it is not given.

The rules, in order; each is conservative, so that a column is real unless its values say otherwise:

- **constant**: one value.
- **category**: text, truth values and unordered categories of a data frame; numbers of two values.
- **ordered**: ordered categories of a data frame; whole numbers of 3 to 10 values.
- **count**: whole numbers of more values. **rounded**: multiples of a larger number than 1 (5, 25, 1,000), and decimals
  with up to four digits after the point, of which less than half are different.
- **positive, bounded, interval**: the outermost values crowd at an end, more than a normal tail would let them, and a
  round number lies next to it (multiples of pi / 2 among them): the rounder it is, the less they have to. `ends` has
  the numbers. With fewer than 100 rows no bound is found.
- **positive** as well: skewed by 1 or more, no value below 0 and the least within a quarter of the range of it, 1 % of
  the values next to that end, within 2 % of the range.
- **heavy-tailed**: 99 % of the values span more than 7 times what the middle half spans (3.8 times for a normal
  distribution, 7.6 for Student's t with three degrees of freedom).
- **limits**: where no bound is found at an end, 0 for values that are not negative, and 1 or 100 for such values of
  which the largest is in the upper half of that (100: where they are not skewed and have no heavy tail). Draws beyond a
  limit are reflected, on a grid moved to its end. A limit counts where it is at most half the range of the values away.
- **ends of a grid**: the least or largest value of a count or rounded column, where 1 % of the rows and at least five
  have it (months, ages from 18).
- **point masses**: a value that 1 % of the rows and at least five have, at a bound; fewer are moved within it.
- **real**: all others.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from scoremh._shared import checks
from scoremh.estimator.table.columns import Column, Constant, Smooth
from scoremh.estimator.table.discrete import Category, PointMasses, Steps
from scoremh.estimator.table.ends import find_bounds

Values = NDArray[np.float64]
KIND_NAMES = "real", "positive", "heavy-tailed", "ordered", "count", "category"
MAX_LEVELS = 10  # of whole numbers that are taken as ordered
MAX_CATEGORIES = 32  # corners of a simplex need a coordinate for each but one
EDGE, MIN_EDGE_SHARE = 0.02, 0.01  # of the range; of the rows
MIN_ROWS_FOR_BOUNDS = 100  # with fewer, an end of the values says little about a bound
MIN_SKEWNESS, ZERO_DISTANCE = 1.0, 0.25  # the latter of the least value from 0, over the range
HEAVY_SPAN = 7.0  # of 99 % of the values, over that of half of them
MIN_MASS_SHARE, MIN_MASS_ROWS = 0.01, 5
PEAKED_BELOW = 2.0  # standard deviation in steps, below which neighbouring steps differ much in probability
MAX_DECIMALS, MAX_POSITIONS = 4, 10_000
MAX_OFF_GRID = 1e-3  # steps, which float32 needs for 10,000 positions
LARGEST_WHOLE, FLOAT32_WHOLE = 2.0**53, 2.0**22  # beyond, every float64 is whole, and every float32 some multiple
SHARE_TOTALS = 1.0, 100.0  # of proportions and percentages
LIMIT_REACH = 0.5  # of a limit from the values, over their range


def find_column(values: Values, name: str, *, text: bool = False, ordered: bool = False) -> Column:
    """Return the column that values are.

    Args:
        values: Values as numbers, positions of categories among them.
        name: Name of the column.
        text: Whether they stand for categories.
        ordered: Whether these have an order.
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
    """Return the column of a kind that a user gave; refuse values that cannot be of it.

    Args:
        values: Values as numbers.
        kind: One of `KIND_NAMES`, or a pair of bounds.
        name: Name of the column.
    """
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
    """Return the bounds that a user gave."""
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
        raise ValueError(checks.message(f"column {name!r} of {wanted}", got, "Correct them, or give another kind."))


def _category(levels: Values, name: str) -> Category:
    if len(levels) > MAX_CATEGORIES:
        fix = "Leave it out, merge rare levels, or correct text among its numbers."
        expected = f"at most {MAX_CATEGORIES} levels in the category {name!r}"
        raise ValueError(checks.message(expected, len(levels), fix))
    return Category(tuple(levels.tolist()))


def _ordered(values: Values) -> Steps:
    levels, ranks = np.unique(values, return_inverse=True)
    ends = (0.0, len(levels) - 1.0)
    return Steps(tuple(levels.tolist()), 1.0, ends, bool(ranks.std() < PEAKED_BELOW), Smooth())


def _step(values: Values, levels: Values) -> float | None:
    """Return the step of a grid that values lie on; None where there is none."""
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
    """Return the largest number that whole numbers are multiples of; None where floating point has made them whole."""
    largest = float(np.abs(levels).max())
    if largest >= LARGEST_WHOLE:
        return None
    step = float(np.gcd.reduce(levels.astype(np.int64)))
    return None if step > 1 and largest / step >= FLOAT32_WHOLE else step


def _on_grid(values: Values, step: float, high: float = math.inf) -> Steps:
    positions = np.round(values / step)
    first = 0.0 if positions.min() >= 0 else -math.inf
    # ties have no range of their own
    skewed = first == 0 and _leans_on_zero(positions + np.linspace(-0.49, 0.49, len(positions)))
    inside = Smooth(-0.5) if skewed else Smooth(middle=_middle(positions))
    ends = positions.min(), positions.max()
    held = [_is_mass(positions, end) for end in ends]
    last = float(np.floor(high / step + 1e-9))
    found = float(ends[0]) if held[0] else first, float(ends[1]) if held[1] else last
    return Steps((), step, found, bool(positions.std() < PEAKED_BELOW), inside)


def _bounds(values: Values) -> tuple[float, float]:
    """Return the bounds that values end at; infinity where there are none."""
    if len(values) < MIN_ROWS_FOR_BOUNDS:
        return -math.inf, math.inf
    low, high = find_bounds(values)
    if not math.isfinite(low) and values.min() >= 0 and _leans_on_zero(values):
        low = 0.0
    return low, high


def _limits(values: Values) -> tuple[float, float]:
    """Return 0 for values that are not negative, and 1 or 100 for proportions and percentages; infinity for others."""
    low, high = float(values.min()), float(values.max())
    if low < 0:
        return -math.inf, math.inf
    reach = LIMIT_REACH * (high - low)
    total = next((total for total in SHARE_TOTALS if total / 2 < high <= total <= high + reach), math.inf)
    if total > 1 and (_leans_on_zero(values) or _middle(values) is not None):
        total = math.inf  # a long tail ends near 100 by chance
    return 0.0 if low <= reach else -math.inf, total


def _leans_on_zero(values: Values) -> bool:
    """Return whether values are skewed, and their lower end is dense, their upper one not, and the former near 0."""
    low, high = float(values.min()), float(values.max())
    span = high - low
    if len(values) < MIN_ROWS_FOR_BOUNDS or low > ZERO_DISTANCE * span:
        return False
    near = [float((distance < EDGE * span).mean()) for distance in (values - low, high - values)]
    within = (values - low) / span  # whose squares do not underflow
    skewness = float(np.mean(((within - within.mean()) / within.std()) ** 3))
    return near[0] >= MIN_EDGE_SHARE > near[1] and skewness > MIN_SKEWNESS


def _middle(values: Values) -> tuple[float, float] | None:
    """Return middle and width of values with heavy tails; None for others."""
    q = np.quantile(values, [0.005, 0.25, 0.75, 0.995])
    return _heavy(values).middle if q[2] > q[1] and q[3] - q[0] > HEAVY_SPAN * (q[2] - q[1]) else None


def _heavy(values: Values) -> Smooth:
    middle = float(np.median(values))
    width = float(np.median(np.abs(values - middle)))
    return Smooth(middle=(middle, width if width > 0 else float(values.std())))


def _with_masses(
    values: Values, bounds: tuple[float, float], limits: tuple[float, float] = (-math.inf, math.inf)
) -> Column:
    """Return the column between bounds and limits, with masses at those bounds that many values have."""
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
    """Return whether 1 % of the rows and at least five have a value."""
    return int((values == value).sum()) >= max(MIN_MASS_ROWS, MIN_MASS_SHARE * len(values))


def _halfway(bound: float, value: float) -> float:
    """Return the middle between a bound and the nearest value; that value where there is no bound."""
    return float((bound + value) / 2 if math.isfinite(bound) else value)
