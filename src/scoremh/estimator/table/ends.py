r"""Whether the values of a column end at a bound, and where.

Next to a bound b, P(x < b + t) grows like t^a: a = 1 where a density starts at once, 2 where it starts from 0 along a
line, 1 / 2 where it has a pole. The distances of the k outermost values from the next one then have the Gini
coefficient

    G = 1 / (2 + 1 / a):  1/4, 1/3 and 2/5 for a = 1/2, 1 and 2; 1/2 for an exponential tail, and more for a heavy one;

near .465 for a normal one, as far out as samples reach. G is averaged over three scales, k = 2 sqrt(n), k / 2 and
k / 4, nearly independent next to a bound; its distance from a normal tail is `z`, in standard deviations. The outermost
value is less than `reach` = (5 / k)^(1 / a) of the k values' width away from b, but for 1 % of samples. So the second
piece of evidence is a round number there: a multiple of `step` (1, 2 or 5 times a power of ten, or pi / 2) is within
that reach of a random end with probability reach / step. 0 is a multiple of every step, and where the other end is a
bound b, -b is as good.

An end is a bound where z is below -4.2; below -3.2 and the round number has a probability of at most .1; or below -1.7
and it has at most .01 (.1 where the other end is a bound). Values that thin out on both sides of a dense middle are a
small mode of their own, and no bound, unless 0 or -b is next to them.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
NORMAL_GINI, GINI_STD = 0.465, 0.21  # of normal tails of 200 to 10,000 rows; the latter times sqrt(k), of the average
SCALE_WEIGHTS = (4, 2, 1)  # of k, k / 2 and k / 4: the numbers of values
LIMITS = ((4.2, math.inf), (3.2, 0.1), (1.7, 0.01))  # least -z, and the largest probability of a round number
LIMITS_OF_THE_OTHER_END = (*LIMITS, (1.7, 0.1))
MAX_JUMP = 1.0, 1.4  # by which G may be larger at k / 2 and at k / 4, over 1 / sqrt(k): 2.4 standard deviations
REACH_ROWS = 5.0  # of k values, that a gap between the bound and the outermost value stands for: exp(-5) < 1 %
ZERO_REACH = 2.0  # over the reach of others: where 0 would be missed, a bound above it would be taken
VALLEY = 1.5  # ratio of the widths of neighbouring quarters of the k values


@dataclass(frozen=True)
class End:
    """The lower end of values.

    Args:
        bound: Roundest number within reach.
        z: Distance of G from that of a normal tail, in standard deviations.
        chance: Probability of a number as round within reach of a random end.
        is_mode: Whether the outermost values look like a small mode.
    """

    bound: float
    z: float
    chance: float
    is_mode: bool

    def is_bound(self, limits: tuple[tuple[float, float], ...]) -> bool:
        """Return whether there is evidence enough.

        Args:
            limits: Pairs of the least -z and the largest probability of a round number.
        """
        possible = self.chance == 0 or not self.is_mode
        return possible and any(self.z < -least and self.chance <= largest for least, largest in limits)


def find_bounds(values: Values) -> tuple[float, float]:
    """Return the bounds at the ends of values; infinity where there is none.

    Args:
        values: Values of a column, at least 100.
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
    """Return what the least values say about a bound below them.

    Args:
        values: Values of a column.
        mirrored: Number that is as good as 0.
    """
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
    """Return half the mean difference of two distances over their mean; 0 where all are 0."""
    k, ordered = len(distances), np.sort(distances)
    total = float(ordered.sum())
    return float((2 * np.arange(k) - k + 1) @ ordered) / ((k - 1) * total) if total > 0 else 0.0


def _has_valley(x: Values) -> bool:
    """Return whether sorted values are densest in the middle: sparser at their end, and again where they go on."""
    first, second, third, last = np.diff(x[[round(i * (len(x) - 1) / 4) for i in range(5)]])
    return bool(first > VALLEY * second and last > VALLEY * min(second, third))


def roundest(end: float, reach: float, mirrored: float = 0.0) -> tuple[float, float]:
    """Return the roundest number from end - reach to end, and its step, which is infinite for 0.

    Args:
        end: Least value.
        reach: Largest distance of a bound from it.
        mirrored: Number that is as good as 0.
    """
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
