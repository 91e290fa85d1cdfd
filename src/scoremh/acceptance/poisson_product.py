r"""An exact decision from scores alone: a Poisson product over what Simpson's rule misses.

With `W = (f - g) / 2` of `acceptance.residual` at a uniform place, clipped to [-B, B],

    a(x', x) = a_S(x', x)  prod_{j <= J} (B + W_j) / (2 B),    J ~ Poisson(2 B)

where a_S is Metropolis's or Barker's probability for Simpson's S. The mean of the product is `exp(E[W] - B)`; for the
reversed move W changes its sign and B stays, so that `a(x', x) / a(x, x') = exp(D + log q ratio)` with the true D, and
no loop.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scoremh.acceptance.residual import MAX_BOUND, Residual
from scoremh.types import Tally


def log_product(residual: Residual, rows: Bool[Tensor, " chain"], tally: Tally | None) -> Float[Tensor, " chain"]:
    """Return the log of the Poisson product for the chains that are asked for, and 0 for the others.

    Args:
        residual: What Simpson's rule misses; its score is asked in one call for all probes, and in one for all factors.
        rows: Chains whose decision is still open.
        tally: Where factors are counted, and those that were clipped.
    """
    # a factor of 0 rejects; its log is kept finite, since minus infinity says that p is 0 at the candidate
    tiny = torch.finfo(residual.x.dtype).tiny
    total = residual.x.new_zeros(len(residual.x))
    asked = rows.nonzero().flatten()
    bound = residual.bound(asked)
    total[asked[bound[asked] > MAX_BOUND]] = math.log(tiny)
    total[asked[~bound[asked].isfinite()]] = math.nan
    asked = asked[bound[asked] <= MAX_BOUND]
    chains = asked.repeat_interleave(residual.poisson(2 * bound[asked]))
    if len(chains):
        width, missed = bound[chains], residual.draw(chains) / 2
        factor = (width + missed.clamp(-width, width)) / (2 * width)
        # an infinite score is no number to clip
        factor = torch.where(missed.isfinite(), factor.clamp(min=tiny), math.nan)
        total.index_add_(0, chains, factor.log())
        if tally is not None:
            tally.add(missed.abs() > width)
    return total
