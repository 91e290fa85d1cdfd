"""Do draws agree with rows? Eight checks, in standard coordinates of the rows.

Columns are divided by their standard deviations, so that one in thousands hides no other; those with heavy tails are
replaced by normal scores, the normal quantiles of their ranks among the rows, since a few far rows would decide every
distance. P-values of shares and correlations are those of random exchanges of draws and rows (`PERMUTATIONS`).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from torch import Tensor

from scoremh import metrics
from scoremh._shared import rng
from scoremh.evaluation.checks import USABLE_RATE, Check, corrected

Matrix = NDArray[np.float64]

MAX_ROWS, MAX_DRAWS = 2000, 1000  # that are compared
MAX_TRANSPORTED = 1000  # points of an exact W1
PERMUTATIONS = 999
MAX_JOINT_COLUMNS = 64  # beyond, no correlations, ranges, classifier or log p
CLUSTERS, ROWS_PER_CLUSTER = 5, 20
LOW_DENSITY = 0.001  # quantile of the rows' log p, below which a draw counts
HEAVY_TAILS = 12.0  # distance of the farthest row from the median, in robust standard deviations; normal rows have 4
FARTHEST = 1e9  # standard deviations that a draw is taken to be away at most, so that squares do not overflow
MAX_LEVELS = 10  # of a column that is not taken as a number by the power of the comparison
POWER = 0.9  # probability with which a shift would be noticed


class Agreement(NamedTuple):
    """What the checks found.

    Args:
        checks: Checks, with p-values corrected for their number.
        noticed_shift: Shift of one column, in standard deviations, that would have been noticed nine times out of ten.
        rows: Number of rows that draws were compared with.
    """

    checks: tuple[Check, ...]
    noticed_shift: float
    rows: int


def agreement(
    draws: Tensor,
    held_out: Tensor,
    columns: Sequence[str],
    *,
    seen: Tensor | None = None,
    log_densities: tuple[Tensor, Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> Agreement:
    """Return how well draws agree with rows.

    Args:
        draws: Independent draws `(draw, *event)`, finite.
        held_out: Rows `(row, *event)` that nothing was learned from.
        columns: Names of the coordinates of an event.
        seen: Rows that were learned from. With them there are more rows to compare with, since a sampler that was
            fitted to rows is nearer to them than to others only where it copies them, which is checked.
        log_densities: Log densities by the model, of some draws and of some rows.
        generator: Random number generator; the same seed gives the same numbers.
    """
    random = np.random.default_rng(rng.seeds(1, generator)[0])
    x = _some(_matrix(draws), MAX_DRAWS, random)
    held = _some(_matrix(held_out), MAX_ROWS, random)
    known = None if seen is None else _some(_matrix(seen), MAX_ROWS - min(len(held), MAX_ROWS // 2), random)
    y = held if known is None else np.concatenate([held, known])
    u, v = standard(x, y)
    found = [_distance(u, v, random, generator), _columns(x, y, columns), _clusters(u, v, random)]
    if x.shape[1] <= MAX_JOINT_COLUMNS:
        found += [_range(x, y, random), _classifier(u, v, generator)]
        found += [_correlations(x, y, columns, random)] if x.shape[1] > 1 else []
        if log_densities is not None:
            of_draws, of_rows = (values.detach().cpu().double().numpy() for values in log_densities)
            found.append(_density(of_draws, of_rows, random))
    if known is not None:
        found.append(_copies(u, v[: len(held)], v[len(held) :]))
    return Agreement(corrected(found), noticed_shift(v, len(u), len(found)), len(y))


def standard(x: Matrix, y: Matrix) -> tuple[Matrix, Matrix]:
    """Return draws x and rows y in standard coordinates of y; columns with heavy tails in normal scores.

    Args:
        x: Draws.
        y: Rows.
    """
    centre, spread = np.median(y, 0), y.std(0)
    robust = stats.iqr(y, 0) / 1.349  # of a normal distribution, the standard deviation
    heavy = (np.abs(y - centre).max(0) > HEAVY_TAILS * robust) & (robust > 0)
    scale = np.where(spread > 0, spread, 1.0)
    with np.errstate(over="ignore"):
        u, v = (x - centre) / scale, (y - centre) / scale
    u = u.clip(-FARTHEST, FARTHEST)
    for column in np.flatnonzero(heavy):
        ordered = np.sort(y[:, column])
        for one, values in ((u, x), (v, y)):
            ranks = sum(np.searchsorted(ordered, values[:, column], side) for side in ("left", "right")) / 2
            one[:, column] = stats.norm.ppf((ranks + 0.5) / (len(y) + 1))
    return u, v


def noticed_shift(v: Matrix, draws: int, checks: int) -> float:
    """Return the shift of one column that its Kolmogorov-Smirnov test would notice with probability `POWER`.

    Columns of few levels count where there are no others: the standard deviation of a rare level is no measure for it.

    Args:
        v: Rows in standard coordinates.
        draws: Number of draws.
        checks: Number of checks that p-values are corrected for.
    """
    rate = 1 / len(v) + 1 / draws
    level = USABLE_RATE / (checks * v.shape[1])
    critical = stats.kstwobign.isf(level) * math.sqrt(rate)
    needed = critical + stats.norm.ppf(POWER) * math.sqrt(rate) / 2  # the standard error of a share is at most 1/2
    shifts = np.geomspace(0.01, 10, 61)
    varied = [column for column in v.T[:MAX_JOINT_COLUMNS] if column.std() > 0]
    numeric = [column for column in varied if len(np.unique(column)) > MAX_LEVELS]
    columns = [_spread_out(column) for column in numeric or varied]
    for shift in shifts:
        if all(_share_between(column, shift) >= needed for column in columns):
            return float(shift)
    return float(shifts[-1])  # no smaller one


def _spread_out(column: Matrix) -> Matrix:
    """Return values of which equal ones are spread evenly up to the next larger one: a shift moves a part of them."""
    levels, place, counts = np.unique(column, return_inverse=True, return_counts=True)
    gaps = np.diff(levels, append=2 * levels[-1] - levels[-2])
    order = np.argsort(column, kind="stable")
    within = np.empty(len(column))
    within[order] = np.arange(len(column)) - np.repeat(np.cumsum(counts) - counts, counts)
    found: Matrix = column + gaps[place] * (within + 0.5) / counts[place]
    return found


def _share_between(column: Matrix, shift: float) -> float:
    """Return the Kolmogorov-Smirnov distance between rows and the same rows shifted."""
    ordered = np.sort(column)
    below = np.searchsorted(ordered, ordered) / len(ordered)
    return float(np.max(below - np.searchsorted(ordered, ordered - shift) / len(ordered)))


def transport_distance(u: Matrix, v: Matrix) -> float:
    """Return the exact W1 between as many points of each.

    Args:
        u: Points.
        v: As many other points.
    """
    if u.shape[1] == 1:
        return float(np.abs(np.sort(u[:, 0]) - np.sort(v[:, 0])).mean())
    costs = cdist(u, v)
    return float(costs[linear_sum_assignment(costs)].mean())


def _distance(u: Matrix, v: Matrix, random: np.random.Generator, generator: torch.Generator | None) -> Check:
    n = min(MAX_TRANSPORTED, len(u), len(v) // 2)
    order = random.permutation(len(v))
    first, second = v[order[:n]], v[order[n : 2 * n]]
    floor = transport_distance(first, second)
    ratio = (transport_distance(u[:n], first) + transport_distance(u[-n:], second)) / (2 * floor)
    test = metrics.two_sample_test(
        torch.from_numpy(u), torch.from_numpy(v), permutations=PERMUTATIONS, generator=generator
    )
    text = f"draws are {ratio:.2f} times as far from the rows (W1) as rows are from each other"
    return Check("distance", ratio, 1.15, 1.5, test.p_value, text)


def _columns(x: Matrix, y: Matrix, columns: Sequence[str]) -> Check:
    found = [stats.ks_2samp(x[:, i], y[:, i], method="asymp") for i in range(x.shape[1])]
    worst = int(np.argmax([one.statistic for one in found]))
    value, p = float(found[worst].statistic), min(one.pvalue for one in found)
    text = f"the distribution of {columns[worst]} is off by a share of {value:.2g} (Kolmogorov-Smirnov)"
    return Check("columns", value, 0.04, 0.15, min(1.0, len(found) * float(p)), text)


def _clusters(u: Matrix, v: Matrix, random: np.random.Generator) -> Check:
    from sklearn.cluster import KMeans

    count = min(CLUSTERS, max(1, len(v) // ROWS_PER_CLUSTER))
    pool = np.concatenate([u, v])
    labels = KMeans(count, n_init=2, random_state=0).fit(v).predict(pool)  # of rows, whatever draws there are

    def difference(first: NDArray[np.intp], second: NDArray[np.intp]) -> float:
        shares = [np.bincount(labels[part], minlength=count) / len(part) for part in (first, second)]
        return float(np.abs(shares[0] - shares[1]).max())

    value, p = _exchanged(difference, len(u), len(v), random)
    return Check("clusters", value, 0.03, 0.12, p, f"the share of a cluster is off by {value:.2g}")


def _range(x: Matrix, y: Matrix, random: np.random.Generator) -> Check:
    pool = np.concatenate([x, y])

    def beyond(first: NDArray[np.intp], second: NDArray[np.intp]) -> float:
        low, high = pool[second].min(0), pool[second].max(0)
        return float(((pool[first] < low) | (pool[first] > high)).any(1).mean())

    value, p = _exchanged(beyond, len(x), len(y), random)
    fresh = _expected_beyond(y)
    text = f"{100 * value:.1f} % of the draws lie beyond the range of the rows, {100 * fresh:.1f} % of fresh rows would"
    return Check("range", max(0.0, value - fresh), 0.005, 0.03, p, text)


def _expected_beyond(y: Matrix) -> float:
    """Return the share of rows that would lie beyond the range of all the others: those that alone hold an end."""
    ends = [(y == end(y, 0)) for end in (np.min, np.max)]
    alone = [held & (held.sum(0) == 1) for held in ends]
    return float((alone[0] | alone[1]).any(1).mean())


def _density(of_draws: Matrix, of_rows: Matrix, random: np.random.Generator) -> Check:
    pool = np.concatenate([of_draws, of_rows])

    def below(first: NDArray[np.intp], second: NDArray[np.intp]) -> float:
        return float((pool[first] < np.quantile(pool[second], LOW_DENSITY)).mean())

    value, p = _exchanged(below, len(of_draws), len(of_rows), random)
    text = f"{100 * value:.1f} % of the draws have a log density below the {100 * LOW_DENSITY:g} % quantile of the rows"
    return Check("density", max(0.0, value - LOW_DENSITY), 0.005, 0.03, p, text)


def _correlations(x: Matrix, y: Matrix, columns: Sequence[str], random: np.random.Generator) -> Check:
    ranks = stats.rankdata(np.concatenate([x, y]), axis=0)
    varied = np.flatnonzero(ranks.std(0) > 0)
    ranks = ranks[:, varied]

    def change(first: NDArray[np.intp], second: NDArray[np.intp]) -> Matrix:
        with np.errstate(invalid="ignore", divide="ignore"):
            parts = [np.corrcoef(ranks[part], rowvar=False) for part in (first, second)]
        found: Matrix = np.abs(np.nan_to_num(parts[0] - parts[1])).reshape(len(varied), len(varied))
        return found

    value, p = _exchanged(lambda first, second: float(change(first, second).max()), len(x), len(y), random)
    own = change(np.arange(len(x)), np.arange(len(x), len(ranks)))
    i, j = np.unravel_index(int(own.argmax()), own.shape)
    pair = f"{columns[varied[i]]} and {columns[varied[j]]}"
    return Check("correlations", value, 0.1, 0.3, p, f"the rank correlation of {pair} is off by {value:.2g}")


def _classifier(u: Matrix, v: Matrix, generator: torch.Generator | None) -> Check:
    n = min(len(u), len(v))
    value = metrics.c2st(torch.from_numpy(u), torch.from_numpy(v), generator=generator)
    error = 0.5 / math.sqrt(2 * n)  # of the share of 2 n points, each right with probability 1/2
    p = float(stats.norm.sf((value - 0.5) / error))
    text = f"a classifier tells draws from rows with accuracy {value:.3f}; guessing has {0.5:g} +- {error:.2g}"
    return Check("classifier", value, 0.52, 0.62, p, text)


def _copies(u: Matrix, held: Matrix, seen: Matrix) -> Check:
    nearest = [cdist(points, seen).min(1) for points in (u, held)]
    test = stats.mannwhitneyu(nearest[0], nearest[1], alternative="less")
    value = max(0.0, 0.5 - float(test.statistic) / (len(u) * len(held)))
    text = f"a draw is nearer to a row that was learned from than a held-out row is with probability 0.5 + {value:.2g}"
    return Check("copies", value, 0.1, 0.25, float(test.pvalue), text)


def _exchanged(
    statistic: Callable[[NDArray[np.intp], NDArray[np.intp]], float], n: int, m: int, random: np.random.Generator
) -> tuple[float, float]:
    """Return a statistic of the indices of n draws and m rows, and its p-value under exchanges of both."""
    own = statistic(np.arange(n), np.arange(n, n + m))
    at_least = 0
    for _ in range(PERMUTATIONS):
        order = random.permutation(n + m)
        at_least += statistic(order[:n], order[n:]) >= own - 1e-12
    return own, (1 + at_least) / (1 + PERMUTATIONS)


def _matrix(x: Tensor) -> Matrix:
    found: Matrix = x.detach().cpu().flatten(1).double().numpy()
    return found


def _some(x: Matrix, most: int, random: np.random.Generator) -> Matrix:
    return x if len(x) <= most else x[random.permutation(len(x))[:most]]
