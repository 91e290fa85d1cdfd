r"""An exact decision from scores alone: a Poisson product over what Simpson's rule misses.

With `R = f - g` of `acceptance.residual` at a uniform place t, `P = (R(t) + R(1 - t)) / 2`, whose mean is that of R,
and what Metropolis's or Barker's probability for Simpson's S leaves to lower, `alpha = -log a_S(x', x)` and `beta =
-log a_S(x, x')`,

    a(x', x) = exp(-alpha (1 - m))  prod_{j <= J} (B + P_j) / (2 B),    J ~ Poisson(rho)
    m = min(1, B / (alpha + beta)),    rho = 2 alpha m + max(0, B - alpha - beta)

with P clipped to [-B, B]. The mean of the product is `exp(rho (E[P] - B) / (2 B))`. For the reversed move P changes its
sign, alpha and beta change places, B stays, and both rho sum to 2 B. As `beta - alpha` is S + log q ratio, `a(x', x) /
a(x, x') = exp(D + log q ratio)` with the true D. The direction with more to lower has more of the correction: by
Metropolis, where |S + log q ratio| is at least B, a is the true ratio, or 1, and no acceptance is lost.

B is known from three scores. Where a long move would be accepted, R at some more places, the probes, says whether there
is more to miss, B' > B, and what was clipped has a product of its own, over Poisson(B' - B) places, with the factors
`(1 + (clip(P, B') - clip(P, B)) / (B' - B)) / 2`.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh.acceptance.residual import MAX_BOUND, Residual
from scoremh.types import Tally

# B in units of the second difference, by the length of a move: chosen on five distributions, not those of
# docs/acceptance.md. At most 1/2: P exceeds it nowhere if the even part of f is monotone from the middle to the ends.
BOUND_PER_LENGTH, MAX_SHARE = 0.125, 0.5
NEGLIGIBLE_RATE = 1e-9  # of factors: that of rounding errors
PROBED_LENGTHS = (1.5, 3.0, 6.0, 12.0)  # lengths from which a move has a probe more


def shared_correction(log_ratio: Tensor, log_simpson: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Return -alpha (1 - m) and rho: what is left before the product, and its mean number of factors."""
    alpha, both = -log_simpson, log_ratio - 2 * log_simpson  # beta is alpha + log_ratio
    m = torch.where(bound < both, bound / both, 1.0)
    return alpha * (m - 1), 2 * alpha * m + (bound - both).clamp(min=0)


def log_accept(
    residual: Residual,
    log_ratio: Float[Tensor, " chain"],
    log_simpson: Float[Tensor, " chain"],
    log_uniform: Float[Tensor, " chain"],
    tally: Tally | None,
) -> Float[Tensor, " chain"]:
    """Return the outcome of comparing log a, drawn, with these uniforms: 0 to accept, a low number to reject.

    It is drawn only as far as the comparison needs it, and so of no use itself. With uniforms of 0 it is returned, and
    so is log a where there is nothing to draw, as on a normal distribution.

    Args:
        residual: What Simpson's rule misses.
        log_ratio: S + log q ratio.
        log_simpson: Metropolis's or Barker's log a for this ratio.
        log_uniform: Log of the uniforms that log a will be compared with.
        tally: Where factors are counted, and those that were clipped.
    """
    bound = (BOUND_PER_LENGTH * residual.slopes.length).clamp(max=MAX_SHARE) * residual.second_difference
    total, rate = shared_correction(log_ratio, log_simpson, bound)
    total = torch.where(log_ratio.isfinite(), total, log_simpson)
    wide = torch.maximum(bound, residual.probed((log_uniform < total).nonzero().flatten(), PROBED_LENGTHS))
    lowest = math.log(torch.finfo(total.dtype).tiny)  # minus infinity would say that p is 0 at the candidate
    total = torch.where(wide <= MAX_BOUND, total, lowest)
    total = torch.where(wide.isfinite(), total, math.nan)
    for low, high, mean in ((torch.zeros_like(bound), bound, rate), (bound, wide, wide - bound)):
        _lower(total, residual, (low, high, wide), mean, log_uniform, tally)
    verdict = torch.zeros_like(total).masked_fill(~(log_uniform < total), lowest)
    drawn = (rate + wide - bound > NEGLIGIBLE_RATE) & log_uniform.isfinite() & total.isfinite()
    return torch.where(drawn, verdict, total)


def _lower(
    total: Float[Tensor, " chain"],
    residual: Residual,
    bounds: tuple[Tensor, Tensor, Tensor],
    rate: Float[Tensor, " chain"],
    log_uniform: Float[Tensor, " chain"],
    tally: Tally | None,
) -> None:
    """Add to log a the log of a Poisson product over P between two bounds, while the uniform lies below.

    A factor is near 1/2, so that a few of many decide: a round has one, and then as many as all rounds before it.
    """
    left, done, lowest = torch.zeros_like(log_uniform).long(), 0, math.log(torch.finfo(total.dtype).tiny)
    rows = ((log_uniform < total) & (rate > 0)).nonzero().flatten()
    left[rows] = residual.poisson(rate[rows])
    while len(rows := ((log_uniform < total) & (left > 0)).nonzero().flatten()):
        most = max(1, done)
        chains = rows.repeat_interleave(left[rows].clamp(max=most))
        missed = residual.draw_pair(chains)
        low, high, wide = (bound[chains] for bound in bounds)
        part = missed.clamp(-high, high) - missed.clamp(-low, low)
        factor = ((1 + part / (high - low)) / 2).log().clamp(min=lowest)
        # an infinite score is no number to clip
        total.index_add_(0, chains, torch.where(missed.isfinite(), factor, math.nan))
        if tally is not None:
            tally.add(missed.abs() > wide)
        left, done = left - most, done + most
