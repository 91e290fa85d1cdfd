r"""Distances between two samples: true distances, the paper's three numbers, and tests. Usable on anyone's samples.

Samples are `(point, *event)` tensors or arrays of any event shape, or data frames of numbers; everything is computed in
float64, in pieces that fit into memory. A name carries its power: `w2` is a distance, `mmd_squared` is squared. A
number means little without its `floor`, its value between two fresh samples of the distribution itself. `w1`, `w2` need
`pip install 'scoremh[metrics]'`.

Two samples as matrices in float64, and sums over all pairs of their points in pieces that fit into memory.

Distances between samples that are means over pairs.

    energy = 2 E|X - Y| - E|X - X'| - E|Y - Y'|,    MMD^2 = E k(X, X') + E k(Y, Y') - 2 E k(X, Y)

Both are squared distances between distributions, 0 only where they agree. `unbiased` leaves the pairs of a point with
itself out of the means: the expectation is then 0 for equal distributions, and a value may be negative.

Optimal transport between samples: the least cost of moving one onto the other.

    W_p = (min over couplings of E|X - Y|^p)^(1/p)

`w1` and `w2` are exact. `sinkhorn_divergence` is what the paper's table calls W1 and W2: entropic transport made 0 for
equal samples (Feydy et al. 2019), with the cost |x - y| for p = 1 and |x - y|^2 / 2 for p = 2, and no root,

    S(x, y) = OT(x, y) - OT(x, x) / 2 - OT(y, y) / 2,    OT(x, y) = mean f(x_i) + mean g(y_j)

where f and g solve f(x_i) = -e log mean_j exp((g(y_j) - c(x_i, y_j)) / e), and the same with x and y exchanged, at
e = blur^p. The temperature e falls from the diameter of the points to there, one iteration at each.

Are two samples from one distribution? A permutation test of their energy distance, and a classifier.

The three metrics of the paper's Table 1, in the definitions that fit all of its cells, and their best values.
"""

import math
import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.checks import Samples, as_tensor
from scoremh._shared.names import extra

__all__ = [
    "Floor",
    "PaperMetrics",
    "TwoSampleTest",
    "c2st",
    "energy_distance",
    "floor",
    "mmd_squared",
    "paper_metrics",
    "sinkhorn_divergence",
    "sliced_w2",
    "two_sample_test",
    "w1",
    "w2",
]


Points = Float[Tensor, "_ coordinate"]
MAX_DISTANCES = 2**25  # distances held at a time: 256 MB in float64


def as_matrix(x: Samples, name: str = "x") -> Points:
    """Return a sample `(point, *event)` as a matrix in float64; in float32 a distance far from 0 loses its digits."""
    points = as_tensor(x, name)
    checks.events(points, name)
    return points.detach().flatten(1).double()


def as_matrices(x: Samples, y: Samples) -> tuple[Points, Points]:
    """Return two samples as matrices; refuse samples whose events differ in shape."""
    x, y = as_tensor(x, "x"), as_tensor(y, "y")
    first, second = as_matrix(x, "x"), as_matrix(y, "y")
    if x.shape[1:] != y.shape[1:]:
        got = f"{checks.describe(x)} and {checks.describe(y)}"
        fix = "Compare samples of the same variables; the first axis is the point."
        raise ValueError(checks.message("two samples of one event shape", got, fix))
    return first, second.to(first.device)


def distance_blocks(x: Points, y: Points) -> Iterator[Float[Tensor, "_ _"]]:
    """Yield the Euclidean distances from the points of x to all of y, some rows at a time."""
    for rows in x.split(max(1, MAX_DISTANCES // len(y))):
        yield torch.cdist(rows, y, compute_mode="donot_use_mm_for_euclid_dist")


def sum_over_pairs(x: Points, y: Points, function: Callable[[Tensor], Tensor] = lambda distance: distance) -> float:
    """Return the sum over all pairs of a function of their distance."""
    return sum(float(function(distance).sum()) for distance in distance_blocks(x, y))


MAX_MEDIAN_POINTS = 1000  # points whose distances give a median


def energy_distance(x: Samples, y: Samples, *, unbiased: bool = False) -> float:
    """Return 2 E|X - Y| - E|X - X'| - E|Y - Y'|, a squared distance between distributions.

    Args:
        x: First sample, `(point, *event)`.
        y: Second sample, with events of the same shape; its number of points may differ.
        unbiased: Whether to leave out the pairs of a point with itself.
    """
    first, second = as_matrices(x, y)
    within = [sum_over_pairs(one, one) / _pairs(one, unbiased=unbiased) for one in (first, second)]
    return 2 * sum_over_pairs(first, second) / (len(first) * len(second)) - sum(within)


def mmd_squared(x: Samples, y: Samples, *, bandwidth: float | None = None, unbiased: bool = True) -> float:
    """Return the squared maximum mean discrepancy with the kernel exp(-|x - y|^2 / (2 bandwidth^2)).

    Args:
        x: First sample, `(point, *event)`.
        y: Second sample, with events of the same shape; its number of points may differ.
        bandwidth: Standard deviation of the Gaussian kernel; the median distance between points of y if None.
        unbiased: Whether to leave out the pairs of a point with itself.
    """
    first, second = as_matrices(x, y)
    width = median_distance(second) if bandwidth is None else bandwidth
    checks.positive(width, "bandwidth")

    def kernel(distance: Tensor) -> Tensor:
        return distance.square().mul_(-0.5 / width**2).exp_()

    own = len(first) if unbiased else 0, len(second) if unbiased else 0  # k(x, x) = 1
    within = [
        (sum_over_pairs(one, one, kernel) - n) / _pairs(one, unbiased=unbiased)
        for one, n in zip((first, second), own, strict=True)
    ]
    return sum(within) - 2 * sum_over_pairs(first, second, kernel) / (len(first) * len(second))


def median_distance(x: Points) -> float:
    """Return the median distance between two points, of the first thousand."""
    few = x[:MAX_MEDIAN_POINTS]
    if len(few) < 2:
        raise ValueError(checks.message("at least two points for a median distance", len(few), "Pass a bandwidth."))
    median = float(torch.pdist(few).median())
    if median == 0:
        raise ValueError(checks.message("points that differ", "a median distance of 0", "Pass a bandwidth."))
    return median


def _pairs(x: Points, *, unbiased: bool) -> int:
    if unbiased and len(x) < 2:
        raise ValueError(checks.message("at least two points for an unbiased mean", len(x), "Bring more points."))
    return len(x) * (len(x) - 1 if unbiased else len(x))


MAX_ITERATIONS = 10_000_000  # with its default POT stops early at 10,000 points and only warns
MIN_EXPONENT = -80.0  # exponents below are as good as this one; numbers that underflow take four times as long
CACHED_ROWS = 256  # rows of costs at a time: they stay in the cache
MAX_KEPT_COSTS = 2**26  # costs kept in memory: 512 MB, four times


def w1(x: Samples, y: Samples) -> float:
    """Return the exact 1-Wasserstein distance, with the Euclidean distance as cost.

    Args:
        x: First sample, `(point, *event)`.
        y: Second sample, with events of the same shape; its number of points may differ.
    """
    return _exact(x, y, "euclidean")


def w2(x: Samples, y: Samples) -> float:
    """Return the exact 2-Wasserstein distance: the root of the least mean squared distance.

    Args:
        x: First sample, `(point, *event)`.
        y: Second sample, with events of the same shape; its number of points may differ.
    """
    return math.sqrt(max(0.0, _exact(x, y, "sqeuclidean")))


def _exact(x: Samples, y: Samples, metric: str) -> float:
    with extra("metrics"):
        import ot  # 3 s, and only where it is needed

    first, second = (points.cpu().numpy() for points in as_matrices(x, y))
    if first.shape[1] == 1:
        return float(ot.emd2_1d(first, second, metric=metric))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # not converged is not exact
        return float(ot.lp.emd2_lazy(first, second, metric=metric, numItermax=MAX_ITERATIONS, return_matrix=False))


def sliced_w2(x: Samples, y: Samples, *, projections: int = 200, generator: torch.Generator | None = None) -> float:
    """Return the root mean square over random directions of W2 between the projections onto them.

    Args:
        x: First sample, `(point, *event)`.
        y: Second sample, with events of the same shape; its number of points may differ.
        projections: Number of random directions.
        generator: Random number generator; the same seed gives the same draws.
    """
    checks.count(projections, "projections")
    first, second = as_matrices(x, y)
    directions = rng.normal((first.shape[1], projections), first, generator)
    directions = directions / directions.norm(dim=0)
    a, b = ((points @ directions).sort(0).values for points in (first, second))
    if len(a) != len(b):  # both quantile functions at the steps of either
        steps = torch.cat([torch.arange(1, n + 1, dtype=torch.float64) / n for n in (len(a), len(b))]).sort().values
        ends = torch.cat([steps.new_zeros(1), steps])
        middles, widths = ((ends[1:] + ends[:-1]) / 2).to(a.device), ends.diff().to(a.device)
        a, b = (points[(middles * len(points)).long().clamp(max=len(points) - 1)] for points in (a, b))
        return math.sqrt(float((widths[:, None] * (a - b).square()).sum(0).mean()))
    return math.sqrt(float((a - b).square().mean()))


def sinkhorn_divergence(
    x: Samples, y: Samples, *, p: Literal[1, 2] = 1, blur: float = 0.05, cooling: float = 0.5
) -> float:
    """Return the debiased Sinkhorn divergence with cost |x - y|^p / p; for p = 2 about W2^2 / 2.

    Args:
        x: First sample, `(point, *event)`.
        y: Second sample, with events of the same shape; its number of points may differ.
        p: Power of the cost.
        blur: Length scale of the entropic regularisation, in the units of x; finer differences are not resolved.
        cooling: Factor by which e^(1/p) shrinks per iteration. 0.5, the default of geomloss, is fast and stops before
            the potentials have converged; 0.9 and more is nearer to the definition.
    """
    checks.one_of(p, (1, 2), "p")
    checks.positive(blur, "blur")
    if not 0 < cooling < 1:
        raise ValueError(checks.message("cooling between 0 and 1", cooling, "0.5 is fast, 0.9 is more exact."))
    first, second = as_matrices(x, y)
    widest = torch.cat([first, second])
    diameter = float((widest.amax(0) - widest.amin(0)).norm())
    if diameter == 0:
        return 0.0
    temperatures = [diameter**p, diameter**p, *_cooling(diameter, blur, p, cooling)]
    across, back = _Costs(first, second, p), _Costs(second, first, p)
    of_x, of_y = _Costs(first, first, p), _Costs(second, second, p)
    f, g, a, b = (costs.new_zeros(len(costs)) for costs in (first[:, 0], second[:, 0], first[:, 0], second[:, 0]))
    for number, e in enumerate(temperatures):
        step = 1.0 if number == 0 else 0.5
        news = across.soften(g, e), back.soften(f, e), of_x.soften(a, e), of_y.soften(b, e)
        f, g, a, b = (torch.lerp(old, new, step) for old, new in zip((f, g, a, b), news, strict=True))
    e = temperatures[-1]
    f, g, a, b = across.soften(g, e), back.soften(f, e), of_x.soften(a, e), of_y.soften(b, e)
    return float((f - a).mean() + (g - b).mean())


def _cooling(diameter: float, blur: float, p: int, cooling: float) -> list[float]:
    """Return the temperatures e from the diameter of the points to the blur."""
    steps = np.arange(p * math.log(diameter), p * math.log(blur), p * math.log(cooling))
    return [float(e) for e in np.exp(steps)] + [blur**p]


class _Costs:
    """The costs between two samples; kept where they fit, else computed anew in pieces."""

    def __init__(self, x: Points, y: Points, p: int) -> None:
        self.x, self.y, self.p = x, y, p
        self.kept = torch.cat(list(self._pieces(x, y))) if len(x) * len(y) <= MAX_KEPT_COSTS else None

    def _pieces(self, x: Points, y: Points) -> Iterator[Tensor]:
        for distance in distance_blocks(x, y):
            yield distance if self.p == 1 else distance.square_().div_(2)

    def soften(self, potential: Float[Tensor, " other"], e: float) -> Float[Tensor, " point"]:
        """Return -e log mean_j exp((potential_j - c_ij) / e), j over y."""
        shift = potential / e - math.log(len(self.y))
        costs = self._pieces(self.x, self.y) if self.kept is None else self.kept.split(CACHED_ROWS)
        return -e * torch.cat([_log_sum_exp(torch.add(shift, part, alpha=-1 / e)) for part in costs])


def _log_sum_exp(z: Float[Tensor, "point other"]) -> Float[Tensor, " point"]:
    """Return log sum exp of rows; the exponentials, and nothing else, in float32: a third of the time, 1e-7 off."""
    top = z.amax(1, keepdim=True)
    return top[:, 0] + z.sub_(top).float().clamp_(min=MIN_EXPONENT).exp_().sum(1, dtype=z.dtype).log()


@dataclass(frozen=True)
class TwoSampleTest:
    """The result of a permutation test of the hypothesis that both samples are from one distribution.

    Args:
        p_value: Share of permutations, the identity included, with at least this energy distance; uniform under the
            hypothesis.
        energy_distance: Energy distance between the samples.
        permutations: Number of random permutations.
    """

    p_value: float
    energy_distance: float
    permutations: int


def two_sample_test(
    x: Samples, y: Samples, *, permutations: int = 999, generator: torch.Generator | None = None
) -> TwoSampleTest:
    """Test whether two samples are from one distribution, by the energy distance and permutations of all points.

    Args:
        x: First sample, `(point, *event)`.
        y: Second sample, with events of the same shape; its number of points may differ.
        permutations: Number of random permutations; the smallest p-value is 1 / (permutations + 1).
        generator: Random number generator; the same seed gives the same draws.
    """
    checks.count(permutations, "permutations")
    first, second = as_matrices(x, y)
    points, n, m = torch.cat([first, second]), len(first), len(second)
    keys = rng.uniform((permutations + 1, n + m), points, generator)
    keys[0] = torch.arange(n + m, device=keys.device)  # the samples as they are
    # A column per permutation: 1 / n where a point counts for x, -1 / m where it does for y.
    sign = torch.full((n + m, permutations + 1), -1 / m, dtype=points.dtype, device=points.device)
    sign.scatter_(0, keys.argsort(1)[:, :n].T, 1 / n)
    done, energies = 0, torch.zeros(permutations + 1, dtype=points.dtype, device=points.device)
    for distance in distance_blocks(points, points):  # the energy distance is -sign^T D sign
        energies -= (sign[done : done + len(distance)] * (distance @ sign)).sum(0)
        done += len(distance)
    energy = energies[0]
    rounding = 1e-12 * energies.abs().max()  # a permutation may give the same distance by another order of sums
    at_least = int((energies[1:] >= energy - rounding).sum())
    return TwoSampleTest((1 + at_least) / (1 + permutations), float(energy), permutations)


def c2st(x: Samples, y: Samples, *, folds: int = 5, generator: torch.Generator | None = None) -> float:
    """Return the accuracy of a classifier that separates two samples, on held-out points: 0.5 is perfect, 1 is bad.

    A network of two hidden layers on standardised coordinates, cross-validated; the larger sample is cut to the size of
    the smaller, so that guessing gives 0.5.

    Args:
        x: First sample, `(point, *event)`.
        y: Second sample, with events of the same shape; its number of points may differ.
        folds: Number of folds of the cross-validation.
        generator: Random number generator; the same seed gives the same draws.
    """
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    checks.count(folds, "folds", at_least=2)
    first, second = as_matrices(x, y)
    n = min(len(first), len(second))
    if n < folds:
        raise ValueError(checks.message(f"at least {folds} points in each sample", n, "Pass more points."))
    seed = rng.seeds(1, generator)[0] % 2**32
    chosen = [
        one[torch.randperm(len(one), generator=rng.seeded(seed, torch.device("cpu")))[:n]] for one in (first, second)
    ]
    points, labels = torch.cat(chosen).cpu().numpy(), [0] * n + [1] * n
    hidden = max(32, 10 * points.shape[1])
    network = MLPClassifier((hidden, hidden), early_stopping=True, max_iter=500, random_state=seed)
    split = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return float(cross_val_score(make_pipeline(StandardScaler(), network), points, labels, cv=split).mean())


Metric = Callable[[Tensor, Tensor], float]
Sampler = Callable[..., Tensor]


class PaperMetrics(NamedTuple):
    """What the paper calls W1, W2 and MMD.

    Args:
        w1: The Sinkhorn divergence with cost |x - y| and a blur of 0.05.
        w2: The Sinkhorn divergence with cost |x - y|^2 / 2, and no root: about half of W2 squared.
        mmd: Half of the energy distance, E|X - Y| - E|X - X'| / 2 - E|Y - Y'| / 2.
    """

    w1: float
    w2: float
    mmd: float


def paper_metrics(x: Samples, y: Samples) -> PaperMetrics:
    """Return what the paper's Table 1 calls W1, W2 and MMD.

    The paper does not define them. Its W2 is smaller than its W1 and its MMD reaches 6.9: of the common definitions
    only these fit.

    Args:
        x: First sample, `(point, *event)`.
        y: Second sample, with events of the same shape; its number of points may differ.
    """
    return PaperMetrics(sinkhorn_divergence(x, y, p=1), sinkhorn_divergence(x, y, p=2), energy_distance(x, y) / 2)


@dataclass(frozen=True)
class Floor:
    """The value of a metric between two fresh samples of one distribution: a smaller one is chance.

    Args:
        mean: Mean over repetitions.
        spread: Standard deviation over repetitions.
        n: Number of points in each sample.
        values: Value of the metric in each repetition.
    """

    mean: float
    spread: float
    n: int
    values: tuple[float, ...]

    def __str__(self) -> str:
        """Return mean and spread in a sentence."""
        return f"{self.mean:.4g} +- {self.spread:.2g} between two samples of {self.n}, {len(self.values)} times"


def floor(
    distribution: Sampler | Samples,
    metric: Metric,
    n: int,
    *,
    repeats: int = 10,
    generator: torch.Generator | None = None,
) -> Floor:
    """Return the value of a metric between two fresh samples of n points, and its spread over repetitions.

    Args:
        distribution: Function `distribution(n, generator=...)` that draws n points, such as `datasets.moons`, or a
            sample of at least 2 n points, from which disjoint samples are drawn.
        metric: Function `metric(x, y)` of two samples.
        n: Number of points in each sample.
        repeats: Number of pairs of samples.
        generator: Random number generator; the same seed gives the same draws.
    """
    checks.count(n, "n")
    checks.count(repeats, "repeats")
    values = []
    for seed in rng.seeds(repeats, generator):
        own = rng.seeded(seed, torch.device("cpu"))
        if callable(distribution):
            x, y = distribution(n, generator=own), distribution(n, generator=own)
        else:
            points = as_tensor(distribution, "distribution")
            as_matrix(points, "distribution")
            if len(points) < 2 * n:
                fix = "Pass more points, or a smaller n."
                raise ValueError(checks.message(f"at least {2 * n} points", f"{len(points)} points", fix))
            x, y = points[torch.randperm(len(points), generator=own)[: 2 * n]].chunk(2)
        values.append(float(metric(x, y)))
    spread = statistics.stdev(values) if repeats > 1 else 0.0
    return Floor(statistics.mean(values), spread, n, tuple(values))
