"""The three metrics of the paper's Table 1, in the definitions that fit all of its cells, and their best values."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.samples import Samples, as_tensor
from scoremh.metrics._points import as_matrix
from scoremh.metrics.kernels import energy_distance
from scoremh.metrics.transport import sinkhorn_divergence

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
