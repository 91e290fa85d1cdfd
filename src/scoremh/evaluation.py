"""Evaluation of draws against reference rows: distances with their floors, checks with their limits, and a verdict.

`evaluate` measures distances between draws and rows. The floor of a distance is its value between two samples of the
rows themselves: no sampler comes closer, except by chance. Every column is divided by the standard deviation of its
rows, since otherwise a column in thousands would hide all others. P-values and verdict use up to 2,000 rows and 1,000
draws; distances use half the rows, since the floor needs a second sample of the same size.

`agreement` makes up to nine checks in standardised coordinates. Columns with heavy tails are replaced by normal scores
(normal quantiles of their ranks among the rows), since a few far rows would dominate every distance. P-values of shares
and correlations come from random permutations of draws and rows.

Missing values (NaN) are replaced by the median, and an indicator of missing values becomes a column of its own.

A check fails only if its value exceeds the limit by more than a standard deviation of chance and its p-value,
corrected for the number of checks (Holm 1979), is below a rate. If the draws are fresh rows, the verdict is "usable" or
worse with probability at most `USABLE_RATE`, and "do not use" with probability at most `DO_NOT_USE_RATE`. It is
"undecided" if there are so few rows that chance alone may exceed both limits, or hide a large shift.
"""

import html
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import stats
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from torch import Tensor

from scoremh import metrics
from scoremh._shared import checks, rng
from scoremh._shared.checks import Samples, as_tensor
from scoremh._shared.files import replacing
from scoremh._shared.progress import progress_bar
from scoremh.coordinates import MAX_WHITENED_SIZE
from scoremh.diagnostics.summary import Caution

__all__ = [
    "MAX_POINTS",
    "MIN_ROWS",
    "P_VALUE_LIMIT",
    "Agreement",
    "Check",
    "Evaluation",
    "Verdict",
    "agreement",
    "evaluate",
    "floor_ratio",
    "verdict",
]


Level = Literal["good", "undecided", "usable", "do not use"]
LEVELS: tuple[Level, ...] = ("good", "undecided", "usable", "do not use")
USABLE_RATE, DO_NOT_USE_RATE = 0.1, 0.01  # largest probability of each verdict for a perfect sampler


@dataclass(frozen=True)
class Check:
    """One check of draws against rows.

    Args:
        name: What was checked.
        value: The number; larger is worse.
        good: Limit up to which it is good.
        usable: Limit up to which it is usable.
        p_value: Probability of a value as large for fresh rows; after `corrected`, corrected for the number of checks.
        text: The value in words, without a full stop.
        chance: Standard deviation of the value for fresh rows. A limit counts as exceeded only by more than that, so
            that draws close to a limit keep their verdict.
    """

    name: str
    value: float
    good: float
    usable: float
    p_value: float
    text: str
    chance: float = 0.0

    @property
    def level(self) -> Level:
        """The verdict of this check."""
        beyond_usable = self.value > self.usable + self.chance
        if self.p_value >= USABLE_RATE:
            return "undecided" if beyond_usable else "good"
        if self.value <= self.good + self.chance:
            return "good"
        return "do not use" if beyond_usable and self.p_value < DO_NOT_USE_RATE else "usable"


def corrected(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Return the checks with p-values corrected for their number, by Holm's method."""
    order = sorted(range(len(checks)), key=lambda i: checks[i].p_value)
    largest, found = 0.0, list(checks)
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(checks) - rank) * checks[i].p_value))
        found[i] = replace(checks[i], p_value=largest)
    return tuple(found)


def worst(checks: Sequence[Check]) -> Check | None:
    """Return the check that decides the verdict; None if all are good."""
    bad = [check for check in checks if check.level != "good"]
    return max(bad, key=lambda check: (LEVELS.index(check.level), check.value / check.usable), default=None)


ONLY_COLUMN = "only column"  # the beginning of a reason that names one column
MAX_NOTICED_SHIFT = 0.6  # standard deviations; draws are good only if a shift of this size would have been detected
TABLE_WIDTH = 140  # characters
MIN_SHOWN_P = 0.001
P_NOTE = (
    f"p: the probability that fresh rows give any check a value as extreme; a check fails only below {USABLE_RATE:g}, "
    f"and gives 'do not use' only below {DO_NOT_USE_RATE:g}."
)
HEAD = ("check", "value", "good up to", "usable up to", "p", "result")
COLOURS: dict[Level, str] = {"good": "#2e7d32", "undecided": "#5a636e", "usable": "#b3540b", "do not use": "#c62828"}


@dataclass(frozen=True)
class Verdict:
    """A verdict on draws; prints as one line.

    Args:
        level: "good", "undecided" (too few rows), "usable" or "do not use".
        reason: Why, with the number and its limit.
        advice: What to do next; empty if nothing has to be done.
        against: The rows that the draws were compared with.
    """

    level: Level
    reason: str
    advice: str = ""
    against: str = ""

    def __str__(self) -> str:
        """Return the verdict on one line."""
        return f"{self.title}: {self.reason}.{' ' * bool(self.advice)}{self.advice}"

    @property
    def title(self) -> str:
        """The level, and the rows that the draws were compared with."""
        return self.level.capitalize() + f" (against {self.against})" * bool(self.against)


def verdict(found: "Agreement", advice: str = "") -> Verdict:
    """Return the verdict of all checks together.

    Args:
        found: Result of `agreement`.
        advice: What to do if a check is not good.
    """
    checks, noticed_shift, rows = found.checks, found.noticed_shift, found.rows
    bad = worst(checks)
    if bad is not None and bad.level != "undecided":
        limit = bad.usable if bad.level == "do not use" else bad.good
        reason = f"{bad.text}; the limit of {bad.name} is {number(limit)}"
        if found.suspect is None:
            return Verdict(bad.level, reason, advice)
        kind = f"Give its kind with columns={{{found.suspect!r}: ...}}, or leave it out."
        fix = f"Is {found.suspect} a date, an identifier or a code? {kind}"
        return Verdict(bad.level, f"{ONLY_COLUMN} {found.suspect} differs: {reason}", fix)
    needed = [rows * (check.value / check.good) ** 2 for check in checks if check.level == "undecided"]
    if bad is not None:
        reason = f"{rows:,} rows are too few: {bad.text}, but so may fresh rows be (p = {probability(bad.p_value)})"
    elif noticed_shift > MAX_NOTICED_SHIFT:
        needed = [rows * (noticed_shift / MAX_NOTICED_SHIFT) ** 2]  # the detectable shift falls like 1 / sqrt(rows)
        few = f"{rows:,} rows can only detect a shift of {noticed_shift:.2g} standard deviations or more in one column"
        reason = f"no difference was found, but {few}; the limit is {MAX_NOTICED_SHIFT:g}"
    else:
        return Verdict("good", f"all {len(checks)} checks passed; {power_line(noticed_shift, rows)}")
    return Verdict("undecided", reason, f"Compare at least {_rounded_up(max(needed)):,} rows with as many draws.")


def power_line(noticed_shift: float, rows: int) -> str:
    """Return the smallest shift that a comparison with so many rows detects, as text."""
    return f"with {rows:,} rows a shift of {noticed_shift:.2g} standard deviations in one column would be detected"


def number(value: float, digits: int = 3) -> str:
    """Return a number as text with significant digits, without an exponent if possible.

    >>> number(44.234), number(19.7, 1), number(0.00123), number(12345.6), number(float("inf"))
    ('44.2', '20', '0.00123', '12,300', 'inf')
    """
    short = float(f"{value:.{digits}g}")
    return f"{short:,.0f}" if 10 ** (digits - 1) <= abs(short) < 1e15 else f"{short:.{digits}g}"


def probability(p: float) -> str:
    """Return a p-value as text, or "< 0.001" below 0.001.

    >>> probability(0.0123), probability(1e-30)
    ('0.012', '< 0.001')
    """
    return number(p, 2) if p >= MIN_SHOWN_P else f"< {MIN_SHOWN_P:g}"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> str:
    """Return a table for a terminal."""
    table = Table(*head, title=title or None, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console = Console(width=TABLE_WIDTH)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def html_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML, with its texts escaped."""
    names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in lines)}</tbody></table>"


def text_table(checks: Sequence[Check]) -> str:
    """Return the checks as a table for a terminal."""
    return f"{aligned(HEAD, [cells(check) for check in checks])}\n{P_NOTE}"


def html_table(checks: Sequence[Check]) -> str:
    """Return the checks as an HTML table."""
    return html_rows(HEAD, [cells(check) for check in checks])


def html_verdict(found: Verdict) -> str:
    """Return a verdict as HTML."""
    word = f'<strong style="color: {COLOURS[found.level]}">{found.level.capitalize()}</strong>'
    rest = f"{found.title[len(found.level) :]}: {found.reason}. {found.advice}"
    return f"<p>{word}{html.escape(rest)}</p>"


def cells(check: Check) -> tuple[str, ...]:
    """Return the cells of a check's row in a table."""
    numbers = map(number, (check.value, check.good, check.usable))
    return check.name, *numbers, probability(check.p_value), check.level


def _rounded_up(rows: float) -> int:
    """Return a number of rows rounded up to two significant digits."""
    step = 10 ** max(0, len(str(int(rows))) - 2)
    return int(-(-rows // step) * step)


Matrix = NDArray[np.float64]

MAX_ROWS, MAX_DRAWS = 2000, 1000  # numbers of rows and draws that are compared
MAX_TRANSPORTED = 1000  # points of an exact W1
PERMUTATIONS = 999
MAX_JOINT_COLUMNS = 64  # with more columns, correlations, ranges, classifier and log p are skipped
CLUSTERS, ROWS_PER_CLUSTER = 5, 20
LOW_DENSITY = 0.01  # quantile of the rows' log p, below which a draw counts
HEAVY_TAILS = 12.0  # distance of the farthest row from the median, in robust standard deviations; about 4 if normal
FARTHEST = 1e9  # standard deviations to which draws are clipped, so that squares do not overflow
MIN_ROWS_OF_TREES, TREES = 100, 30  # rows and draws from which trees can learn; number of trees
ALONE = 0.7  # share of what all columns give away, by which one column is the only one that differs
MAX_LEVELS = 10  # distinct values up to which a column is not numeric when the power is computed
POWER = 0.9  # probability of detecting a shift


class Agreement(NamedTuple):
    """Results of the checks.

    Args:
        checks: Checks, with p-values corrected for their number.
        noticed_shift: Shift of one column, in standard deviations, that would be detected with probability 0.9.
        rows: Number of rows that the draws were compared with.
        p_value: P-value of the two-sample test of the distance check, not corrected.
        suspect: Name of the only column that differs, if one alone does.
    """

    checks: tuple[Check, ...]
    noticed_shift: float
    rows: int
    p_value: float
    suspect: str | None = None


def agreement(
    draws: Tensor,
    held_out: Tensor,
    columns: Sequence[str],
    *,
    seen: Tensor | None = None,
    log_densities: tuple[Tensor, Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> Agreement:
    """Check how well draws agree with rows.

    Args:
        draws: Independent draws `(draw, *event)`, finite.
        held_out: Held-out rows `(row, *event)`.
        columns: Names of the coordinates of an event.
        seen: Training rows, as further rows to compare with. A sampler is closer to its training rows than to others
            only if it copies them, and one of the checks looks for copies.
        log_densities: The model's log densities of some draws and of some rows.
        generator: Random number generator; the same seed gives the same numbers.
    """
    random = np.random.default_rng(rng.seeds(1, generator)[0])
    (draws, *others, held_out), columns = complete([draws, *([] if seen is None else [seen]), held_out], columns)
    seen = others[0] if others else None
    x = _some(_matrix(draws), MAX_DRAWS, random)
    held = _some(_matrix(held_out), MAX_ROWS, random)
    known = None if seen is None else _some(_matrix(seen), MAX_ROWS - min(len(held), MAX_ROWS // 2), random)
    y = held if known is None else np.concatenate([held, known])
    u, v = standard(x, y)
    found = [_distance(u, v, random, generator), _columns(x, y, columns), _clusters(u, v, random)]
    if x.shape[1] <= MAX_JOINT_COLUMNS:
        found += [_range(x, y, random), _classifier(u, v, generator)]
        found += [_trees(x, y)] if min(len(x), len(y)) >= MIN_ROWS_OF_TREES else []
        found += [_correlations(x, y, columns, random)] if x.shape[1] > 1 else []
        if log_densities is not None:
            of_draws, of_rows = (values.detach().cpu().double().numpy() for values in log_densities)
            found.append(_density(of_draws, of_rows, random))
    if known is not None:
        found.append(_copies(u, v[: len(held)], v[len(held) :]))
    p_value = found[0].p_value
    final = corrected(found)
    suspect = _suspect(x, y, final) if worst(final) is not None else None
    shift = noticed_shift(v, len(u), len(final))
    return Agreement(final, shift, len(y), p_value, None if suspect is None else columns[suspect])


def complete(samples: Sequence[Tensor], columns: Sequence[str]) -> tuple[list[Tensor], Sequence[str]]:
    """Return samples without missing values, and the names of their columns.

    Missing values are replaced by the median of the last sample, the rows; for every column that has some, an indicator
    of missing values is appended. A sample with only missing values in a row has lost this row, unless all have such
    rows: its values become infinite.
    """
    missing = [x.isnan() for x in samples]
    if samples[0].ndim != 2 or not any(bool(one.any()) for one in missing):
        return list(samples), columns
    empty = [one.all(1, keepdim=True) & (one.shape[1] > 1 or not missing[-1].any()) for one in missing]
    missing = [one & ~lost for one, lost in zip(missing, empty, strict=True)]
    gaps = torch.stack([one.any(0) for one in missing]).any(0)
    median = samples[-1].nanmedian(0).values.nan_to_num()
    found = []
    for x, gap, lost in zip(samples, missing, empty, strict=True):
        filled = torch.where(gap, median.to(x), x).masked_fill(lost, math.inf)
        found.append(torch.cat([filled, gap[:, gaps].to(x)], 1))
    return found, [*columns, *(f"{columns[j]} missing" for j in gaps.nonzero().flatten().tolist())]


def standard(x: Matrix, y: Matrix) -> tuple[Matrix, Matrix]:
    """Return draws x and rows y, standardised by y; columns with heavy tails become normal scores."""
    centre, spread = np.median(y, 0), y.std(0)
    robust = stats.iqr(y, 0) / 1.349  # the standard deviation if y is normal
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
    """Return the shift of one column that a Kolmogorov-Smirnov test detects with probability `POWER`.

    Columns with few distinct values count only if there are no others: the standard deviation is a poor unit for them.
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
    return float(shifts[-1])  # no smaller shift is detected


def _spread_out(column: Matrix) -> Matrix:
    """Return values with ties spread evenly up to the next larger value, so that a shift moves some of them."""
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
    """Return the exact W1 between two samples of equal size."""
    if u.shape[1] == 1:
        return float(np.abs(np.sort(u[:, 0]) - np.sort(v[:, 0])).mean())
    costs = cdist(u, v)
    return float(costs[linear_sum_assignment(costs)].mean())


def _distance(u: Matrix, v: Matrix, random: np.random.Generator, generator: torch.Generator | None) -> Check:
    n = min(MAX_TRANSPORTED, len(u), len(v) // 2)
    order = random.permutation(len(v))
    first, second = v[order[:n]], v[order[n : 2 * n]]
    floor = transport_distance(first, second)
    halves = transport_distance(u[:n], first) / floor, transport_distance(u[-n:], second) / floor
    ratio = sum(halves) / 2
    text = f"draws are {ratio:.2f} times as far from the rows (W1) as rows are from each other"
    chance = abs(halves[0] - halves[1]) / 2
    return Check("distance", ratio, 1.15, 1.5, _two_sample_p_value(u, v, generator), text, chance)


def _two_sample_p_value(u: Matrix, v: Matrix, generator: torch.Generator | None) -> float:
    x, y = torch.from_numpy(u), torch.from_numpy(v)
    return metrics.two_sample_test(x, y, permutations=PERMUTATIONS, generator=generator).p_value


def _columns(x: Matrix, y: Matrix, columns: Sequence[str]) -> Check:
    found = [stats.ks_2samp(x[:, i], y[:, i], method="asymp") for i in range(x.shape[1])]
    worst = int(np.argmax([one.statistic for one in found]))
    value, p = float(found[worst].statistic), min(one.pvalue for one in found)
    text = f"the distribution of {columns[worst]} is off by a share of {value:.2g} (Kolmogorov-Smirnov)"
    chance = stats.kstwobign.std() * math.sqrt(1 / len(x) + 1 / len(y))
    return Check("columns", value, 0.04, 0.15, min(1.0, len(found) * float(p)), text, chance)


def _clusters(u: Matrix, v: Matrix, random: np.random.Generator) -> Check:
    from sklearn.cluster import KMeans

    count = min(CLUSTERS, max(1, len(v) // ROWS_PER_CLUSTER))
    pool = np.concatenate([u, v])
    labels = KMeans(count, n_init=2, random_state=0).fit(v).predict(pool)  # fitted to the rows only

    def difference(first: NDArray[np.intp], second: NDArray[np.intp]) -> float:
        shares = [np.bincount(labels[part], minlength=count) / len(part) for part in (first, second)]
        return float(np.abs(shares[0] - shares[1]).max())

    value, p, chance = _exchanged(difference, len(u), len(v), random)
    return Check("clusters", value, 0.03, 0.12, p, f"the share of a cluster is off by {value:.2g}", chance)


def _range(x: Matrix, y: Matrix, random: np.random.Generator) -> Check:
    pool = np.concatenate([x, y])

    def beyond(first: NDArray[np.intp], second: NDArray[np.intp]) -> float:
        low, high = pool[second].min(0), pool[second].max(0)
        return float(((pool[first] < low) | (pool[first] > high)).any(1).mean())

    value, p, chance = _exchanged(beyond, len(x), len(y), random)
    fresh = _expected_beyond(y)
    text = f"{100 * value:.1f} % of the draws lie beyond the range of the rows; of fresh rows {100 * fresh:.1f} % would"
    return Check("range", max(0.0, value - fresh), 0.005, 0.03, p, text, chance)


def _expected_beyond(y: Matrix) -> float:
    """Return the share of rows that lie beyond the range of all other rows."""
    ends = [(y == end(y, 0)) for end in (np.min, np.max)]
    alone = [held & (held.sum(0) == 1) for held in ends]
    return float((alone[0] | alone[1]).any(1).mean())


def _density(of_draws: Matrix, of_rows: Matrix, random: np.random.Generator) -> Check:
    pool = np.concatenate([of_draws, of_rows])

    def below(first: NDArray[np.intp], second: NDArray[np.intp]) -> float:
        return float((pool[first] < np.quantile(pool[second], LOW_DENSITY)).mean())

    value, p, chance = _exchanged(below, len(of_draws), len(of_rows), random)
    text = f"{100 * value:.1f} % of the draws have a log density below the {100 * LOW_DENSITY:g} % quantile of the rows"
    return Check("density", max(0.0, value - LOW_DENSITY), 0.05, 0.15, p, text, chance)


def _correlations(x: Matrix, y: Matrix, columns: Sequence[str], random: np.random.Generator) -> Check:
    ranks = stats.rankdata(np.concatenate([x, y]), axis=0)
    varied = np.flatnonzero(ranks.std(0) > 0)
    ranks = ranks[:, varied]

    def change(first: NDArray[np.intp], second: NDArray[np.intp]) -> Matrix:
        with np.errstate(invalid="ignore", divide="ignore"):
            parts = [np.corrcoef(ranks[part], rowvar=False) for part in (first, second)]
        found: Matrix = np.abs(np.nan_to_num(parts[0] - parts[1])).reshape(len(varied), len(varied))
        return found

    value, p, chance = _exchanged(lambda first, second: float(change(first, second).max()), len(x), len(y), random)
    own = change(np.arange(len(x)), np.arange(len(x), len(ranks)))
    i, j = np.unravel_index(int(own.argmax()), own.shape)
    pair = f"{columns[varied[i]]} and {columns[varied[j]]}"
    return Check("correlations", value, 0.1, 0.3, p, f"the rank correlation of {pair} is off by {value:.2g}", chance)


def _classifier(u: Matrix, v: Matrix, generator: torch.Generator | None) -> Check:
    n = min(len(u), len(v))
    value = metrics.c2st(torch.from_numpy(u), torch.from_numpy(v), generator=generator)
    error = 0.5 / math.sqrt(2 * n)  # standard error of the accuracy on 2 n points if each is right with probability 1/2
    p = float(stats.norm.sf((value - 0.5) / error))
    text = f"a classifier separates draws from rows with accuracy {value:.3f}; chance is {0.5:g} +- {error:.2g}"
    return Check("classifier", value, 0.52, 0.62, p, text, error)


def _trees(x: Matrix, y: Matrix) -> Check:
    value = tree_auc(x, y)
    chance = _auc_error(len(x) - len(x) // 2, len(y) - len(y) // 2)
    p = float(stats.norm.sf((value - 0.5) / chance))
    text = f"boosted trees separate draws from rows with an AUC of {value:.2f}; chance is 0.5 +- {chance:.2g}"
    return Check("trees", value, 0.6, 0.75, p, text, chance)


def tree_auc(x: Matrix, y: Matrix) -> float:
    """Return the AUC of boosted trees that learn to separate half of the draws from half of the rows, on the others."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    points, labels = np.concatenate([x, y]), np.repeat([0, 1], [len(x), len(y)])
    learned = np.concatenate([np.arange(len(x)) < len(x) // 2, np.arange(len(y)) < len(y) // 2])
    trees = HistGradientBoostingClassifier(
        max_iter=TREES, max_leaf_nodes=8, learning_rate=0.2, early_stopping=False, random_state=0
    )
    trees.fit(points[learned], labels[learned])
    found = trees.decision_function(points[~learned])
    of_draws, of_rows = found[labels[~learned] == 0], found[labels[~learned] == 1]
    return float(stats.mannwhitneyu(of_rows, of_draws).statistic) / (len(of_draws) * len(of_rows))


def _auc_error(n: int, m: int) -> float:
    """Return the standard deviation of an AUC between n and m points of the same distribution."""
    return math.sqrt((n + m + 1) / (12 * n * m))


def _suspect(x: Matrix, y: Matrix, found: Sequence[Check]) -> int | None:
    """Return the only column that differs, while the others pass as single columns; None if there is none."""
    if not 2 <= x.shape[1] <= MAX_JOINT_COLUMNS:
        return None
    levels = {check.name: check.level for check in found}
    if levels["columns"] in LEVELS[2:]:
        limit = next(check.good + check.chance for check in found if check.name == "columns")
        each = [stats.ks_2samp(x[:, j], y[:, j], method="asymp") for j in range(x.shape[1])]
        bad = [j for j, one in enumerate(each) if one.statistic > limit and len(each) * one.pvalue < USABLE_RATE]
        if len(bad) == 1 and each[bad[0]].statistic > 2 * limit:
            return bad[0]
    if levels.get("trees") in LEVELS[2:]:
        whole = tree_auc(x, y) - 0.5
        scores = np.array([tree_auc(x[:, [j]], y[:, [j]]) - 0.5 for j in range(x.shape[1])])
        order = scores.argsort()
        alone = scores[order[-1]] > ALONE * whole and scores[order[-2]] < (1 - ALONE) * whole
        return int(order[-1]) if alone else None
    return None


def _copies(u: Matrix, held: Matrix, seen: Matrix) -> Check:
    nearest = [cdist(points, seen).min(1) for points in (u, held)]
    test = stats.mannwhitneyu(nearest[0], nearest[1], alternative="less")
    value = max(0.0, 0.5 - float(test.statistic) / (len(u) * len(held)))
    text = f"a draw is closer to a training row than a held-out row is with probability 0.5 + {value:.2g}"
    return Check("copies", value, 0.1, 0.25, float(test.pvalue), text, _auc_error(len(u), len(held)))


def _exchanged(
    statistic: Callable[[NDArray[np.intp], NDArray[np.intp]], float], n: int, m: int, random: np.random.Generator
) -> tuple[float, float, float]:
    """Return a statistic of the indices of n draws and m rows; its p-value and standard deviation if all are fresh.

    Draws and rows are permuted at random.
    """
    own, found = statistic(np.arange(n), np.arange(n, n + m)), []
    for _ in range(PERMUTATIONS):
        order = random.permutation(n + m)
        found.append(statistic(order[:n], order[n:]))
    at_least = sum(value >= own - 1e-12 for value in found)
    return own, (1 + at_least) / (1 + PERMUTATIONS), float(np.std(found))


def _matrix(x: Tensor) -> Matrix:
    found: Matrix = x.detach().cpu().flatten(1).double().numpy()
    return found


def _some(x: Matrix, most: int, random: np.random.Generator) -> Matrix:
    return x if len(x) <= most else x[random.permutation(len(x))[:most]]


MAX_POINTS = 1000  # default number of points of a sample to compare
MIN_ROWS = 20  # smallest number of rows of a reference
FLOOR_REPEATS = 5  # pairs of reference samples that a floor is averaged over
P_VALUE_LIMIT = 0.01  # p-value below which samples differ from the reference
FLOOR_LINE = "floor: the distance between two samples of the rows themselves; 1 x means: as close as a fresh sample."
P_LINE = "p: the probability of a difference this large between two samples of the same distribution."
LOOK = "See where they differ in a report."

Metric = Callable[[Tensor, Tensor], float]
Floor = tuple[float, float]  # mean and spread over pairs of samples of the reference


@dataclass(frozen=True)
class Evaluation:
    """Distances between samples and a reference; prints as a table.

    Args:
        points: Number of points of each sample that were compared.
        floors: By metric, mean and spread of its value between two samples of the reference.
        metrics: By sampler and metric, the distance to the reference, in units of its standard deviations; None if
            draws were not finite.
        p_values: By sampler, the p-value of a two-sample test; 0 if draws were not finite.
        reference: Name of the rows that samples were compared with.
        rows: Number of rows that p-values, checks and verdict use.
        noticed_shift: Shift of one column, in standard deviations, that the checks would detect.
        verdict: Verdict on the first sampler: good, usable, or do not use.
        checks: Checks of the first sampler's draws.
    """

    points: int
    floors: Mapping[str, Floor]
    metrics: Mapping[str, Mapping[str, float | None]]
    p_values: Mapping[str, float]
    reference: str = "reference rows"
    rows: int = 0
    noticed_shift: float | None = None
    verdict: Verdict | None = None
    checks: tuple[Check, ...] = ()

    def __str__(self) -> str:
        """Return the verdict, the checks, and the distances with their multiples of the floor, with explanations."""
        parts = [] if self.verdict is None else [str(self.verdict)]
        parts += [text_table(self.checks)] if self.checks else []
        title = f"{self.points} points each, in standard deviations"
        notes = [FLOOR_LINE, P_LINE]
        if self.noticed_shift is not None:
            notes.append(f"power: {power_line(self.noticed_shift, self.rows)}.")
        return "\n".join([*parts, aligned(self._head, self._table, title), *notes])

    def _repr_html_(self) -> str:
        """Return the same as HTML, for a notebook."""
        parts = "" if self.verdict is None else html_verdict(self.verdict) + html_table(self.checks)
        return f"{parts}{html_rows(self._head, self._table)}<p>{FLOOR_LINE}<br>{P_LINE}</p>"

    @property
    def _head(self) -> list[str]:
        return ["", *self.floors, "p"]

    @property
    def _table(self) -> list[list[str]]:
        rows = [
            [
                name,
                *(_cell(values[metric], floor) for metric, floor in self.floors.items()),
                number(self.p_values[name]),
            ]
            for name, values in self.metrics.items()
        ]
        floors = (f"{number(mean)} +- {number(spread, 2)}" for mean, spread in self.floors.values())
        return [*rows, ["floor: fresh rows", *floors, ""]]

    @property
    def warnings(self) -> list[Caution]:
        """One caution for each sampler whose draws differ from the reference."""
        return [
            Caution("p_value", p, f"{_subject(name)} differ significantly from {self.reference} (p = {p:.2g}).")
            for name, p in self.p_values.items()
            if p < P_VALUE_LIMIT
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers in a form for JSON."""
        return {
            "points": self.points,
            "floors": {name: list(floor) for name, floor in self.floors.items()},
            "samplers": {name: {**values, "p_value": self.p_values[name]} for name, values in self.metrics.items()},
            "reference": self.reference,
            "rows": self.rows,
            "noticed_shift": self.noticed_shift,
            "verdict": None if self.verdict is None else asdict(self.verdict),
            "checks": [asdict(check) for check in self.checks],
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Evaluation":
        """Return the evaluation that `to_dict` wrote.

        Args:
            record: Result of `to_dict`.
        """
        samplers = record["samplers"]
        return cls(
            points=record["points"],
            floors={name: (mean, spread) for name, (mean, spread) in record["floors"].items()},
            metrics={name: {key: one[key] for key in record["floors"]} for name, one in samplers.items()},
            p_values={name: one["p_value"] for name, one in samplers.items()},
            reference=record["reference"],
            rows=record.get("rows", 0),  # older files have no verdict
            noticed_shift=record.get("noticed_shift"),
            verdict=Verdict(**record["verdict"]) if record.get("verdict") else None,
            checks=tuple(Check(**one) for one in record.get("checks", ())),
        )

    def save(self, path: str | Path) -> None:
        """Write the numbers to a JSON file.

        Args:
            path: File to write.
        """
        with replacing(Path(path)) as partial_file:
            partial_file.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")


def evaluate(
    samples: Samples | Mapping[str, Samples],
    reference: Samples,
    *,
    points: int = MAX_POINTS,
    seed: int = 0,
    columns: Sequence[str] = (),
    name: str = "reference rows",
    log_densities: tuple[Tensor, Tensor] | None = None,
    progress: bool = False,
) -> Evaluation:
    """Compare samples with reference rows: distances with floors, p-values, checks and a verdict.

    Args:
        samples: Draws `(draw, *event)`, or a dict of them by sampler; NaN for missing values.
        reference: Held-out rows `(row, *event)`.
        points: Largest number of points to compare; the floor uses twice as many rows of the reference.
        seed: Random seed; the same seed gives the same numbers.
        columns: Names of the coordinates of an event; x0, x1, ... if empty.
        name: Name of the reference rows.
        log_densities: Log densities of the model, of some draws of the first sampler and of some rows, for one more
            check.
        progress: Show a progress bar.
    """
    given = samples if isinstance(samples, Mapping) else {"draws": samples}
    clouds = {name: as_tensor(draws, f"samples[{name!r}]") for name, draws in given.items()}
    rows = as_tensor(reference, "reference")
    found = _evaluation(clouds, rows, points, seed, columns, log_densities, progress=progress)
    said = found.verdict and replace(
        found.verdict, against=name if name == "reference rows" else f"{len(rows):,} {name}"
    )
    return replace(found, reference=name, verdict=said)


def _evaluation(
    samples: Mapping[str, Tensor],
    reference: Tensor,
    points: int,
    seed: int,
    columns: Sequence[str],
    log_densities: tuple[Tensor, Tensor] | None,
    *,
    progress: bool,
) -> Evaluation:
    """Return the evaluation of tensors."""
    _check(samples, reference, points)
    names = columns or [f"x{i}" for i in range(reference[0].numel())]
    (*parts, reference), names = complete([*samples.values(), reference], names)
    checks.events(reference, "reference")
    samples = dict(zip(samples, parts, strict=True))
    generator = torch.Generator().manual_seed(seed)
    measures = _metrics(generator)
    scale = _scale(reference)
    rows = reference[torch.randperm(len(reference), generator=generator).to(reference.device)] / scale
    n = min(points, len(rows) // 2, *map(len, samples.values()))
    limit = FARTHEST * max(1.0, float(rows.abs().max()))
    compared = {name: (draws / scale.to(draws)).clamp(-limit, limit) for name, draws in samples.items()}
    finite = {name: bool(draws.isfinite().all()) for name, draws in samples.items()}
    floors: dict[str, Floor] = {}
    distances: dict[str, dict[str, float | None]] = {name: {} for name in samples}
    with progress_bar(len(measures) * (1 + len(samples)), "evaluating", unit="metrics", show=progress) as tick:
        for metric, measure in measures.items():
            floor = metrics.floor(rows, measure, n, repeats=FLOOR_REPEATS, generator=generator)
            floors[metric] = (floor.mean, floor.spread)
            tick(1, metric)
            for name, draws in compared.items():
                distances[name][metric] = measure(draws[:n], rows[:n]) if finite[name] else None
                tick(1, metric)
    first, *others = samples
    found = Evaluation(n, floors, distances, {}, rows=min(len(rows), MAX_ROWS))
    with progress_bar(1, "checks", unit="samplers", show=progress) as tick:
        found = _with_verdict(found, first, samples[first], reference, names, log_densities, generator)
        tick(1)
    p_values = {name: _p_value(samples[name], reference, generator) for name in others}
    return replace(found, p_values={**found.p_values, **p_values})


def _with_verdict(
    found: Evaluation,
    name: str,
    draws: Tensor,
    reference: Tensor,
    columns: Sequence[str],
    log_densities: tuple[Tensor, Tensor] | None,
    generator: torch.Generator,
) -> Evaluation:
    """Return the evaluation with the verdict, checks and p-value of the first sampler."""
    lost = _lost(draws)
    if lost:
        reason = f"{lost:,} of {len(draws):,} draws are not finite; the limit is 0"
        return replace(found, verdict=Verdict("do not use", reason, LOOK), p_values={name: 0.0})
    checked = agreement(draws, reference, columns, log_densities=log_densities, generator=generator)
    return replace(
        found,
        verdict=verdict(checked, LOOK),
        checks=checked.checks,
        noticed_shift=checked.noticed_shift,
        p_values={name: checked.p_value},
    )


def _p_value(draws: Tensor, reference: Tensor, generator: torch.Generator) -> float:
    """Return the p-value of the two-sample test in `agreement`; 0 for draws that are not finite."""
    if _lost(draws):
        return 0.0
    random = np.random.default_rng(rng.seeds(1, generator)[0])
    x, y = _some(_matrix(draws), MAX_DRAWS, random), _some(_matrix(reference), MAX_ROWS, random)
    return _two_sample_p_value(*standard(x, y), generator)


def _lost(draws: Tensor) -> int:
    """Return the number of draws that are not finite."""
    return int((~draws.flatten(1).isfinite().all(1)).sum())


def _scale(reference: Tensor) -> Tensor:
    """Return the standard deviation of every column, 1 for constants; for images, one number for all pixels."""
    spread = reference.double().std(0)
    if spread.numel() > MAX_WHITENED_SIZE:
        spread = spread.square().mean().sqrt()
    return torch.where(spread > 0, spread, 1.0).to(reference)


def floor_ratio(value: float, floor: Floor) -> float | None:
    """Return a metric as a multiple of its floor; None for an unbiased metric, whose floor is about 0.

    Args:
        value: Value of the metric.
        floor: Mean and spread of its value between two samples of the reference.
    """
    mean, spread = floor
    return value / mean if value >= 0 and mean > spread else None


def _metrics(generator: torch.Generator) -> dict[str, Metric]:
    return {
        "w1": metrics.w1,
        "w2": metrics.w2,
        "sliced_w2": partial(metrics.sliced_w2, generator=generator),
        "energy_distance": metrics.energy_distance,
        "mmd_squared": metrics.mmd_squared,
    }


def _check(samples: Mapping[str, Tensor], reference: Tensor, points: int) -> None:
    """Raise an error if samples and rows cannot be compared."""
    if not samples:
        raise ValueError(checks.message("samples of at least one sampler", "none", "Pass draws, or a dict of draws."))
    checks.events(reference, "reference", finite=False)
    for name, draws in samples.items():
        checks.events(draws, f"samples[{name!r}]", finite=False)
        if draws.shape[1:] != reference.shape[1:]:
            expected = f"samples[{name!r}] to have events of shape {tuple(reference.shape[1:])}, like the reference"
            fix = "Compare samples and rows of the same columns."
            raise ValueError(checks.message(expected, tuple(draws.shape[1:]), fix))
    if len(reference) < MIN_ROWS:
        fix = "Pass a reference with more rows."
        raise ValueError(checks.message(f"at least {MIN_ROWS} rows to compare with", len(reference), fix))
    checks.count(points, "points")


def _subject(name: str) -> str:
    return "The draws" if name == "draws" else f"The draws of {name}"


def _cell(value: float | None, floor: Floor) -> str:
    if value is None:
        return "not finite"
    ratio = floor_ratio(value, floor)
    return number(value) if ratio is None else f"{number(value)} ({number(ratio, 2)} x)"
