r"""Kernel Stein discrepancy: the distance of samples from p, computed from its score (Gorham and Mackey 2017).

With the inverse multiquadric `k(x, y) = (c^2 + |x - y|^2)^(-1/2)`, which detects samples that escape to infinity, and

    k_p(x, y) = s(x).s(y) k + s(x).grad_y k + s(y).grad_x k + div_x grad_y k

the discrepancy is the square root of the mean of k_p over all pairs of samples.
"""

import math

import torch
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.checks import Samples, as_tensor
from scoremh.types import ScoreFn


def kernel_stein_discrepancy(x: Samples, score: ScoreFn, *, bandwidth: float | None = None, chunk: int = 1024) -> float:
    """Return the kernel Stein discrepancy, not squared, between samples and the distribution with this score.

    Like the score, it is insensitive to the relative weights of modes that are far apart.

    Args:
        x: Samples, `(sample, *event)`.
        score: x -> grad log p(x).
        bandwidth: c in the kernel; by default the median distance between the first 1,000 samples.
        chunk: Number of rows of the matrix of pairs held in memory at once.
    """
    x = as_tensor(x, "x", torch.get_default_dtype())
    checks.events(x)
    with torch.no_grad():
        value = score(x)
        checks.returned(value, x, x.shape, "score")
        points, scores = x.flatten(1).double(), value.flatten(1).double()
        if bandwidth is None:
            distances = torch.nn.functional.pdist(points[:1000])
            bandwidth = float(distances.median()) if len(distances) else 1.0
        checks.positive(bandwidth, "bandwidth")
        total = 0.0
        for first in range(0, len(x), chunk):
            rows = slice(first, first + chunk)
            total += float(_stein_kernel(points[rows], scores[rows], points, scores, bandwidth).sum())
    return math.sqrt(max(total, 0.0)) / len(x)


def _stein_kernel(x: Tensor, s: Tensor, y: Tensor, t: Tensor, c: float) -> Tensor:
    """Return k_p for all pairs; s and t are the scores at x and y."""
    squared = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()
    base = c**2 + squared
    # with k = base^(-1/2): grad_x k = -(x - y) base^(-3/2), and grad_y k is its negative
    cross = s @ y.mT - (s * x).sum(1, keepdim=True) - (t * y).sum(1) + x @ t.mT  # (t - s).(x - y)
    divergence = x.shape[1] * base**-1.5 - 3 * squared * base**-2.5
    return (s @ t.mT) * base**-0.5 - cross * base**-1.5 + divergence
