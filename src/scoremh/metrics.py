r"""Distances between two samples, and tests of whether they come from one distribution.

| function | definition |
|---|---|
| `w1`, `w2` | W_p = (min over couplings of E\|X - Y\|^p)^(1/p), exact |
| `sliced_w2` | the root mean square over directions of W_2 between projections |
| `energy_distance` | 2 E\|X - Y\| - E\|X - X'\| - E\|Y - Y'\| |
| `mmd_squared` | E k(X, X') + E k(Y, Y') - 2 E k(X, Y) |
| `two_sample_test` | a permutation test of the energy distance |
| `c2st` | the accuracy of a classifier that separates the samples |
| `floor` | a metric between two fresh samples of one distribution |

Samples are `(point, *event)` tensors or arrays of any event shape, or data frames of numbers. Everything is computed in
float64, in blocks that fit into memory. `w2` is a distance, `mmd_squared` and `energy_distance` are squared distances;
all are 0 only if the distributions are equal. `unbiased` leaves the pairs of a point with itself out of the means: the
expectation is then 0 for equal distributions, and a value may be negative. Compare every value with its `floor`. `w1`
and `w2` need `pip install 'scoremh[metrics]'`.
"""

import math
import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.checks import Samples, as_tensor
from scoremh._shared.names import extra

__all__ = [
    "Floor",
    "TwoSampleTest",
    "c2st",
    "energy_distance",
    "floor",
    "mmd_squared",
    "sliced_w2",
    "two_sample_test",
    "w1",
    "w2",
]


Points = Float[Tensor, "_ coordinate"]
MAX_DISTANCES = 2**25  # distances in memory at a time: 256 MB in float64


def as_matrix(x: Samples, name: str = "x") -> Points:
    """Return a sample `(point, *event)` as a matrix in float64; float32 distances are inaccurate far from 0."""
    points = as_tensor(x, name)
    checks.events(points, name)
    return points.detach().flatten(1).double()


def as_matrices(x: Samples, y: Samples) -> tuple[Points, Points]:
    """Return two samples as matrices; raise an error if their event shapes differ."""
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


MAX_MEDIAN_POINTS = 1000  # points whose distances give the median


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
    """Return the median distance between two of the first thousand points."""
    few = x[:MAX_MEDIAN_POINTS]
    if len(few) < 2:
        raise ValueError(checks.message("at least two points for a median distance", len(few), "Pass a bandwidth."))
    median = float(torch.pdist(few).median())
    if median == 0:
        raise ValueError(checks.message("points that differ", "a median distance of 0", "Pass a bandwidth."))
    return median


def _pairs(x: Points, *, unbiased: bool) -> int:
    if unbiased and len(x) < 2:
        raise ValueError(checks.message("at least two points for an unbiased mean", len(x), "Pass more points."))
    return len(x) * (len(x) - 1 if unbiased else len(x))


MAX_ITERATIONS = 10_000_000  # POT's default stops too early for 10,000 points, with a warning only


def w1(x: Samples, y: Samples) -> float:
    """Return the exact 1-Wasserstein distance, with the Euclidean distance as cost.

    Args:
        x: First sample, `(point, *event)`.
        y: Second sample, with events of the same shape; its number of points may differ.
    """
    return _exact(x, y, "euclidean")


def w2(x: Samples, y: Samples) -> float:
    """Return the exact 2-Wasserstein distance: the square root of the smallest mean squared distance of a coupling.

    Args:
        x: First sample, `(point, *event)`.
        y: Second sample, with events of the same shape; its number of points may differ.
    """
    return math.sqrt(max(0.0, _exact(x, y, "sqeuclidean")))


def _exact(x: Samples, y: Samples, metric: str) -> float:
    with extra("metrics"):
        import ot  # here, since the import takes 3 s

    first, second = (points.cpu().numpy() for points in as_matrices(x, y))
    if first.shape[1] == 1:
        return float(ot.emd2_1d(first, second, metric=metric))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the result is not exact if POT has not converged
        return float(ot.lp.emd2_lazy(first, second, metric=metric, numItermax=MAX_ITERATIONS, return_matrix=False))


def sliced_w2(x: Samples, y: Samples, *, projections: int = 200, generator: torch.Generator | None = None) -> float:
    """Return the root mean square, over random directions, of W2 between the projections.

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
    if len(a) != len(b):  # evaluate both quantile functions between the steps of either
        steps = torch.cat([torch.arange(1, n + 1, dtype=torch.float64) / n for n in (len(a), len(b))]).sort().values
        ends = torch.cat([steps.new_zeros(1), steps])
        middles, widths = ((ends[1:] + ends[:-1]) / 2).to(a.device), ends.diff().to(a.device)
        a, b = (points[(middles * len(points)).long().clamp(max=len(points) - 1)] for points in (a, b))
        return math.sqrt(float((widths[:, None] * (a - b).square()).sum(0).mean()))
    return math.sqrt(float((a - b).square().mean()))


@dataclass(frozen=True)
class TwoSampleTest:
    """Result of a permutation test of the hypothesis that both samples come from one distribution.

    Args:
        p_value: Share of permutations, including the identity, with at least this energy distance; uniform under the
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
    """Test whether two samples come from one distribution, by a permutation test of the energy distance.

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
    keys[0] = torch.arange(n + m, device=keys.device)  # the identity
    # One column per permutation: 1 / n for points of x, -1 / m for points of y.
    sign = torch.full((n + m, permutations + 1), -1 / m, dtype=points.dtype, device=points.device)
    sign.scatter_(0, keys.argsort(1)[:, :n].T, 1 / n)
    done, energies = 0, torch.zeros(permutations + 1, dtype=points.dtype, device=points.device)
    for distance in distance_blocks(points, points):  # the energy distance is -sign^T D sign
        energies -= (sign[done : done + len(distance)] * (distance @ sign)).sum(0)
        done += len(distance)
    energy = energies[0]
    rounding = 1e-12 * energies.abs().max()  # equal distances may differ by the order of summation
    at_least = int((energies[1:] >= energy - rounding).sum())
    return TwoSampleTest((1 + at_least) / (1 + permutations), float(energy), permutations)


def c2st(x: Samples, y: Samples, *, folds: int = 5, generator: torch.Generator | None = None) -> float:
    """Return the cross-validated accuracy of a classifier that separates two samples: 0.5 is best, 1 is worst.

    The classifier is a network with two hidden layers on standardised coordinates. The larger sample is cut to the size
    of the smaller, so that guessing gives 0.5.

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


@dataclass(frozen=True)
class Floor:
    """The value of a metric between two fresh samples of one distribution; a sampler can only beat it by chance.

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
    """Return the mean value of a metric between two fresh samples of n points, and its spread over repetitions.

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
