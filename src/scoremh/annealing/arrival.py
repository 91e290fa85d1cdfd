r"""Have chains arrived at a noise level? The noise that they carry, over the noise that they should.

With D(x) = x + sigma^2 s(x), the denoiser of a level, the residual x - D(x) is the noise that a chain seems to carry.
At equilibrium Stein's identity E[div s + |s|^2] = 0 says how large it has to be:

    rho^2 = E|x - D|^2 / (sigma^2 E[tr(I - dD/dx)]) = E|s|^2 / E[-div s]

which is 1 for every distribution, not only for one that noise dominates, and rho where chains of N(0, sigma^2 I) are
rho times too wide. Narrow directions count most, as they do in |s|^2. The divergence is taken along one vector of
random signs per chain, by a difference of scores: two score calls for each of a few chains, and no derivative.

Chains are early where a t-test over them rejects rho <= `RHO_LIMIT`, E[|s|^2 + RHO_LIMIT^2 div s] <= 0. Both terms
have their long tail upwards, which makes the test conservative: chains that have arrived are early with a probability
of at most `FALSE_ALARM_RATE`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import rng
from scoremh.types import Kernel, Point

RHO_LIMIT = 1.05  # a variance a tenth too large, in the narrow directions
FALSE_ALARM_RATE = 0.01  # of one test, and of all those of a run together
MEASURED_NUMBERS = 40_000  # coordinates over all measured chains: a standard error of rho of about sqrt(1/2 / 40,000)
LEAST_CHAINS = 16  # of a t-test; fewer where there are not so many
WATCHED_SHARE = 0.03  # of the transitions of a run, in score calls; of its score calls it is less
RELATIVE_STEP = 0.01  # of the difference of scores, in units of the noise
COARSEST_ROUNDING = 1e-3  # of a dtype in which a difference of scores means something: not of bfloat16
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
        p_value: Probability of so large a ratio where rho is `RHO_LIMIT`; NaN where nothing could be measured.
    """

    rho: float
    standard_error: float
    score_calls: int
    p_value: float

    @property
    def early(self) -> bool:
        """Whether the chains have more noise than the level, beyond the limit and what is due to chance."""
        return self.p_value < FALSE_ALARM_RATE


def noise_ratio(kernel: Kernel, x: Tensor, level: float, *, chains: int | None = None) -> NoiseRatio:
    """Return the actual over the expected noise of the first chains.

    Args:
        kernel: Kernel of the level, which knows the score.
        x: Points of the chains.
        level: Noise level sigma.
        chains: Number of chains to measure; as many as rho to half a per cent takes by default.
    """
    measured = x[: enough_chains(x) if chains is None else chains]
    signs = rng.normal(tuple(measured.shape), measured, rng.seeded(SIGNS_SEED, x.device)).sign()
    step = RELATIVE_STEP * level
    both = torch.cat([measured, measured + step * signs])
    # never more rows at once than there are chains: the memory of a network may be as large as they need
    scores = [_score(kernel, rows) for rows in both.split(len(x))]
    if any(score is None for score in scores):
        return NoiseRatio(math.nan, math.nan, 0, math.nan)
    here, there = torch.cat(scores).chunk(2)  # type: ignore[arg-type]
    square = here.flatten(1).square().sum(1).double()
    bend = -((there - here) * signs).flatten(1).sum(1).double() / step
    return _compared(square, bend)._replace(score_calls=len(both))


@torch.inference_mode()
def _score(kernel: Kernel, x: Tensor) -> Tensor | None:
    """Return the score that a kernel knows at x, and nothing else that its points would hold."""
    point = kernel.init(x) if kernel.target is None else Point.at(x, kernel.target, frozenset({"score"}))
    return point.score


def _compared(square: Float[Tensor, " chain"], bend: Float[Tensor, " chain"]) -> NoiseRatio:
    """Return the ratio of |s|^2 to -div s, of which one per chain is given; not finite ones are left out."""
    from scipy import special  # here, so that `import scoremh` stays light

    finite = (square + bend).isfinite()
    square, bend = square[finite], bend[finite]
    if len(square) < 2:  # one chain is no sample
        return NoiseRatio(math.nan, math.nan, 0, math.nan)
    excess, ratio = square - RHO_LIMIT**2 * bend, float(square.mean() / bend.mean())
    p_value = float(special.stdtr(len(excess) - 1, -float(excess.mean() / _standard_error(excess))))
    if not ratio > 0:  # where the density is convex along most directions, no ratio of noise is defined
        return NoiseRatio(math.inf, math.inf, 0, p_value)
    error = float(_standard_error(square - ratio * bend) / bend.mean())
    return NoiseRatio(math.sqrt(ratio), error / (2 * math.sqrt(ratio)), 0, p_value)


def _standard_error(values: Float[Tensor, " chain"]) -> Float[Tensor, ""]:
    """Return the standard error of a mean."""
    return values.std() / math.sqrt(len(values))


def enough_chains(x: Float[Tensor, "chain *event"]) -> int:
    """Return how many of the chains tell rho to half a per cent."""
    return min(len(x), max(LEAST_CHAINS, math.ceil(MEASURED_NUMBERS / x[0].numel())))


def affordable_chains(x: Float[Tensor, "chain *event"], steps: Sequence[int]) -> list[int]:
    """Return how many chains to measure at the end of every stage for a small share of the score calls of a run.

    Where the share is not enough for all stages, some of them are measured, the last one among them.

    Args:
        x: Points of the chains.
        steps: Transitions per stage.
    """
    budget = int(WATCHED_SHARE * len(x) * sum(steps)) // 2 if len(x) > 1 else 0  # two score calls for each
    enough = enough_chains(x)
    least, each = min(LEAST_CHAINS, enough), budget // len(steps)
    if each >= least:
        return [min(each, enough)] * len(steps)
    count = budget // least
    ends = {round(len(steps) * (i + 1) / count) - 1 for i in range(count)}
    return [least * (number in ends) for number in range(len(steps))]


def is_measurable(kernel: Kernel, x: Tensor) -> bool:
    """Return whether rho of a kernel's chains means something, and takes nothing but score calls.

    It does not where the kernel asks for no score or does not say what it knows; for a truncated distribution, at whose
    edge Stein's identity fails; and in a dtype whose rounding is as large as a difference of scores.
    """
    target = kernel.target
    known = target is not None and target.score is not None and target.support is None
    return known and torch.finfo(x.dtype).eps <= COARSEST_ROUNDING
