r"""Have chains arrived at a noise level? The noise that they carry, over the noise that they should.

With D(x) = x + sigma^2 s(x), the denoiser of a level, the residual x - D(x) is the noise that a chain seems to carry.
At equilibrium Stein's identity E[div s + |s|^2] = 0 says how large it has to be:

    rho^2 = E|x - D|^2 / (sigma^2 E[tr(I - dD/dx)]) = E|s|^2 / E[-div s]

which is 1 for every distribution, not only for one that noise dominates, and rho where chains of N(0, sigma^2 I) are
rho times too wide. Narrow directions count most, as they do in |s|^2. The divergence is taken along one vector of
random signs per chain, by a difference of scores: two score calls for each of a few chains, and no derivative.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from scoremh._shared import rng
from scoremh.types import Kernel

RHO_LIMIT = 1.05  # a variance a tenth too large, in the narrow directions
CERTAINTY = 2.0  # standard errors by which rho has to exceed the limit
MEASURED_NUMBERS = 40_000  # coordinates over all measured chains: a standard error of rho of about sqrt(1/2 / 40,000)
RELATIVE_STEP = 0.01  # of the difference of scores, in units of the noise
# The signs take nothing from the generator of the chains, whose draws stay what they were, and share no seed with it:
# drawn with the seed of the initial points they would be the signs of those.
SIGNS_SEED = 2_718_281_828


class EarlyAnnealingWarning(UserWarning):
    """Chains left noise levels before they had arrived there: they are wider than the distribution."""


class NoiseRatio(NamedTuple):
    """Actual over expected noise of chains at a noise level.

    Args:
        rho: Square root of E|s|^2 over E[-div s]: 1 at equilibrium.
        standard_error: Standard error of rho.
        score_calls: Points at which the score was evaluated for it.
    """

    rho: float
    standard_error: float
    score_calls: int

    @property
    def early(self) -> bool:
        """Whether the chains have more noise than the level, beyond the limit and the error."""
        return not self.rho - CERTAINTY * self.standard_error <= RHO_LIMIT


@torch.inference_mode()
def noise_ratio(kernel: Kernel, x: Tensor, level: float) -> NoiseRatio:
    """Return the actual over the expected noise of the first chains.

    Args:
        kernel: Kernel of the level, which keeps the score at its points.
        x: Points of the chains.
        level: Noise level sigma.
    """
    size = x[0].numel()
    x = x[: max(2, math.ceil(MEASURED_NUMBERS / size))]
    signs = rng.normal(tuple(x.shape), x, rng.seeded(SIGNS_SEED, x.device)).sign()
    here = kernel.init(x).score
    there = kernel.init(x + RELATIVE_STEP * level * signs).score
    if here is None or there is None:
        return NoiseRatio(math.nan, math.nan, 0)
    square = here.flatten(1).square().sum(1).double()
    bend = -((there - here) * signs).flatten(1).sum(1).double() / (RELATIVE_STEP * level)
    ratio = float(square.mean() / bend.mean())
    if not ratio > 0:
        return NoiseRatio(math.inf, 0.0, 2 * len(x))  # chains where the density is convex: none has arrived
    error = float((square - ratio * bend).std() / bend.mean()) / math.sqrt(len(x))
    return NoiseRatio(math.sqrt(ratio), error / (2 * math.sqrt(ratio)), 2 * len(x))
