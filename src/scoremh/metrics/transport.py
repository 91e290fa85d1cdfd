r"""Optimal transport between samples: the least cost of moving one onto the other.

    W_p = (min over couplings of E|X - Y|^p)^(1/p)

`w1` and `w2` are exact. `sinkhorn_divergence` is what the paper's table calls W1 and W2: entropic transport made 0 for
equal samples (Feydy et al. 2019), with the cost |x - y| for p = 1 and |x - y|^2 / 2 for p = 2, and no root,

    S(x, y) = OT(x, y) - OT(x, x) / 2 - OT(y, y) / 2,    OT(x, y) = mean f(x_i) + mean g(y_j)

where f and g solve f(x_i) = -e log mean_j exp((g(y_j) - c(x_i, y_j)) / e), and the same with x and y exchanged, at
e = blur^p. The temperature e falls from the diameter of the points to there, one iteration at each.
"""

import math
import warnings
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.extras import extra
from scoremh._shared.samples import Samples
from scoremh.metrics._points import Points, as_matrices, distance_blocks

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
