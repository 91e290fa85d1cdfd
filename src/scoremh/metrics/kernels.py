r"""Distances between samples that are means over pairs.

    energy = 2 E|X - Y| - E|X - X'| - E|Y - Y'|,    MMD^2 = E k(X, X') + E k(Y, Y') - 2 E k(X, Y)

Both are squared distances between distributions, 0 only where they agree. `unbiased` leaves the pairs of a point with
itself out of the means: the expectation is then 0 for equal distributions, and a value may be negative.
"""

import torch
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.samples import Samples
from scoremh.metrics._points import Points, as_matrices, sum_over_pairs

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
