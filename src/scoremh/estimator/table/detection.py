"""The kind of a column, found from its values where it is not given.

The rules, in order; each is conservative, so that a column is real unless its values say otherwise:

- **constant**: one value.
- **category**: text, truth values and unordered categories of a data frame; numbers of two values.
- **ordered**: ordered categories of a data frame; whole numbers of 3 to 10 values.
- **count**: whole numbers of more values. **rounded**: decimals with up to four digits after the point, of which less
  than half are different.
- **positive, bounded, interval**: 1 % of the values or more lie next to an end, within 2 % of the range; the bound is a
  round number within 1 % of the range beyond that end. At one end alone, the values must be skewed (by 1 or more), and
  where none is below 0 and the least within a quarter of the range of it, the bound is 0.
- **heavy-tailed**: 99 % of the values span more than 7 times what the middle half spans (3.8 times for a normal
  distribution, 7.6 for Student's t with three degrees of freedom).
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

Values = NDArray[np.float64]
KIND_NAMES = "real", "positive", "heavy-tailed", "ordered", "count", "category"
MAX_LEVELS = 10  # of whole numbers that are taken as ordered
MAX_CATEGORIES = 32  # corners of a simplex need a coordinate for each but one
EDGE, MIN_EDGE_SHARE, BOUND_DISTANCE = 0.02, 0.01, 0.01  # of the range; of the rows; of the range
MIN_ROWS_FOR_BOUNDS = 100  # with fewer, an end of the values says little about a bound
MIN_SKEWNESS, ZERO_DISTANCE = 1.0, 0.25  # the latter of the least value from 0, over the range
HEAVY_SPAN = 7.0  # of 99 % of the values, over that of half of them
MIN_MASS_SHARE, MIN_MASS_ROWS = 0.01, 5
PEAKED_BELOW = 2.0  # standard deviation in steps, below which neighbouring steps differ much in probability
MAX_DECIMALS, MAX_POSITIONS = 4, 10_000


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
        return _ordered(values) if step == 1 and len(levels) <= MAX_LEVELS else _on_grid(values, step)
    return _with_masses(values, _bounds(values))


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
        if np.allclose(values / step, np.round(values / step), rtol=0, atol=1e-6 * span / step):
            return step if not decimals or len(levels) < len(values) / 2 else None
    return None


def _on_grid(values: Values, step: float) -> Steps:
    positions = np.round(values / step)
    low, high = _bounds(positions + np.linspace(-0.49, 0.49, len(positions)))  # ties have no range of their own
    first = 0.0 if positions.min() >= 0 else -math.inf
    skewed = first == 0 and math.isfinite(low) and not math.isfinite(high)
    inside = Smooth(-0.5) if skewed and low < 1 else Smooth(middle=None if skewed else _middle(positions))
    ends = (first, math.inf)
    return Steps((), step, ends, bool(positions.std() < PEAKED_BELOW), inside)


def _bounds(values: Values) -> tuple[float, float]:
    """Return round numbers that values reach with some of their mass; infinity where there are none."""
    low, high = float(values.min()), float(values.max())
    span = high - low
    if len(values) < MIN_ROWS_FOR_BOUNDS:
        return -math.inf, math.inf
    near = [float((distance < EDGE * span).mean()) for distance in (values - low, high - values)]
    within = (values - low) / span  # whose squares do not underflow
    skewness = float(np.mean(((within - within.mean()) / within.std()) ** 3))
    reached = [share >= MIN_EDGE_SHARE for share in near]
    if all(reached):
        return _round_below(low, span), -_round_below(-high, span)
    if reached[0] and skewness > MIN_SKEWNESS:  # it leans on a bound at one end alone
        return (0.0 if 0 <= low <= ZERO_DISTANCE * span else _round_below(low, span)), math.inf
    if reached[1] and skewness < -MIN_SKEWNESS:
        return -math.inf, -_round_below(-high, span)
    return -math.inf, math.inf


def _round_below(end: float, span: float) -> float:
    """Return the roundest number below an end of the values, within 1 % of their range."""
    unit = 10.0 ** math.floor(math.log10(span))
    for step in (unit, unit / 2, unit / 10, unit / 20, unit / 100):
        bound = round(math.floor(end / step + 1e-9) * step, 12)
        if 0 <= end - bound + 1e-12 * span <= BOUND_DISTANCE * span:
            return bound
    return -math.inf


def _middle(values: Values) -> tuple[float, float] | None:
    """Return middle and width of values with heavy tails; None for others."""
    q = np.quantile(values, [0.005, 0.25, 0.75, 0.995])
    return _heavy(values).middle if q[2] > q[1] and q[3] - q[0] > HEAVY_SPAN * (q[2] - q[1]) else None


def _heavy(values: Values) -> Smooth:
    middle = float(np.median(values))
    width = float(np.median(np.abs(values - middle)))
    return Smooth(middle=(middle, width if width > 0 else float(values.std())))


def _with_masses(values: Values, bounds: tuple[float, float]) -> Column:
    """Return the column between bounds, with masses at those that many values have."""
    if not any(map(math.isfinite, bounds)):
        return Smooth(middle=_middle(values))
    needed = max(MIN_MASS_ROWS, MIN_MASS_SHARE * len(values))
    masses = tuple(bound for bound in bounds if int((values == bound).sum()) >= needed)
    others = values[(values > bounds[0]) & (values < bounds[1])]
    if len(np.unique(others)) < 2:
        return Category(tuple(np.unique(values).tolist()))
    nearest = _halfway(bounds[0], others.min()), _halfway(bounds[1], others.max())
    inside = Smooth(*bounds, nearest=nearest)
    if not masses:
        return inside
    u = inside.coordinates(torch.from_numpy(others.copy()), None)
    ends, at = (float(u.min()), float(u.max())), (bounds[0] in masses, bounds[1] in masses)
    return PointMasses(inside, at, ends, float(u.std()))


def _halfway(bound: float, value: float) -> float:
    """Return the middle between a bound and the nearest value; that value where there is no bound."""
    return float((bound + value) / 2 if math.isfinite(bound) else value)
