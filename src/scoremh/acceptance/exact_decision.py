r"""An exact decision from scores alone, which asks for no more of them than it takes.

A Poisson product (`acceptance.poisson_product`) over what a quadrature misses, at most B, accepts with a probability in
detailed balance with the true ratio. Its logarithm lies between `lowest(L, B)` and `highest(L, B)`, by Metropolis
min(0, L - B) and min(0, L + B), with L the estimate of log r. So the uniform number alone decides for most moves; in
between, at least one factor decides, and their number is Poisson's, given that it is not 0. In turn:

1. Three nodes. Five would change L by at most E and have a bound of at most M, both shares of the second difference
   |f(0) - 2 f(1/2) + f(1)|. What is below lowest(L - E, M) is accepted, what is above highest(L + E, M) rejected. Long
   moves, whose three scores may look alike by chance, are not accepted so; moves that are nearly long show at a random
   place, a probe, that nothing is hidden there, or are refused.
2. Five nodes (`acceptance.five_nodes`). B is a share of what Simpson's interpolant misses at the two new nodes. The
   change of L is clipped to E, and B to M. Long moves for which they are not enough are decided by 3; the others show
   at probes that they are smooth, or are refused.
3. Rough moves: the product over what three nodes miss, with a bound from more probes.

Everything that chooses between these is the same for the reversed move, or has the same distribution.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scoremh.acceptance import poisson_product
from scoremh.acceptance.five_nodes import FiveNodes
from scoremh.acceptance.poisson_product import NEGLIGIBLE_RATE, shared_correction
from scoremh.acceptance.residual import Residual
from scoremh.types import Tally

Balanced = Callable[[Tensor], Tensor]


class Shares(NamedTuple):
    """How far five nodes are believed to be from three.

    Args:
        change: E, the most that they may change the integral by, in units of the second difference (for moves shorter
            than 1, also of their length).
        bound: M, the most that their bound may be, in the same units.
        node: That bound in units of the larger |f - g| at the new nodes.
    """

    change: float
    bound: float
    node: float


# Lengths and shares were chosen on the distributions of docs/acceptance.md, with other seeds. Of a long move change and
# bound are together at least what `poisson_product` may need, so that what it would accept is not rejected before.
LONG_MOVE, NEARLY_LONG, LONGEST = 4.0, 2.5, 16.0  # in units of the score's own scale, `Slopes.length`
SHORT, LONG = Shares(0.2, 0.15, 0.3), Shares(0.3, 0.2, 0.3)
ROUNDING_ERRORS = 100  # of a score, in units of the last place: on a normal distribution nothing else is missed
MOST_FACTORS = 2.0  # B of five nodes beyond which a move is rough
PROBED_LENGTHS = (LONG_MOVE, 8.0)  # lengths from which a smooth move has a probe more


def bounds(log_ratio: Tensor, bound: Tensor, balanced: Balanced) -> tuple[Tensor, Tensor, Tensor]:
    """Return the lowest and the highest log a, and the mean number of factors that decide between them."""
    highest, rate = shared_correction(log_ratio, balanced(log_ratio), bound)
    return highest - rate, highest, rate


def limits(log_ratio: Tensor, change: Tensor, most: Tensor, balanced: Balanced) -> tuple[Tensor, Tensor]:
    """Return limits of log a for ratios that differ by at most `change`, and bounds of at most `most`."""
    return bounds(log_ratio - change, most, balanced)[0], (balanced(log_ratio + change) + most).clamp(max=0)


def log_accept(
    residual: Residual,
    log_ratio: Float[Tensor, " chain"],
    balanced: Balanced,
    log_uniform: Float[Tensor, " chain"],
    tally: Tally | None,
) -> Float[Tensor, " chain"]:
    """Return 0 to accept and a low number to reject; log a itself where nothing is missed, NaN where a score is NaN.

    Args:
        residual: What Simpson's rule misses.
        log_ratio: S + log q ratio.
        balanced: Metropolis's or Barker's log a from log r.
        log_uniform: Log of the uniforms that the outcome will be compared with.
        tally: Where factors are counted, and those that were clipped.
    """
    length, difference = residual.slopes.length, residual.second_difference
    short = length <= LONG_MOVE
    scale = difference * length.clamp(max=1)
    change, most, _ = (torch.where(short, a * scale, b * scale) for a, b in zip(SHORT, LONG, strict=True))
    lowest, highest = limits(log_ratio, change, most, balanced)
    accepted, open_ = short & (log_uniform < lowest), log_ratio.isfinite() & (log_uniform < highest)
    excess = _excess(residual, (open_ & short & (length > NEARLY_LONG)).nonzero().flatten())
    hidden = ~(excess <= 0)
    result = _outcome(accepted & ~hidden, log_uniform).masked_fill_(~excess.isfinite(), math.nan)
    rows = (open_ & ~accepted & ~hidden & (length <= LONGEST)).nonzero().flatten()
    five = FiveNodes.ask(residual, rows)
    largest = torch.where(short[rows], SHORT.node * five.largest, LONG.node * five.largest)
    smooth = (five.correction.abs() <= change[rows]) & (largest <= most[rows].clamp(max=MOST_FACTORS)) | short[rows]
    rough = torch.cat([(open_ & (length > LONGEST)).nonzero().flatten(), rows[~smooth]])
    five, chains = five.of(smooth), rows[smooth]
    sizes = change[chains], torch.minimum(largest[smooth], most[chains])
    result[chains] = _decided(five, log_ratio[chains], sizes, balanced, log_uniform[chains], tally)
    result[rough] = poisson_product.log_accept(
        residual.of(rough), log_ratio[rough], balanced(log_ratio[rough]), log_uniform[rough], tally
    )
    known = (change + most <= NEGLIGIBLE_RATE) & (short & ~hidden | ~open_) | ~log_ratio.isfinite()
    return torch.where(known, balanced(log_ratio), result)


def _outcome(accepted: Bool[Tensor, " row"], like: Tensor) -> Float[Tensor, " row"]:
    """Return 0 where accepted, else a low number: minus infinity would say that p is 0 at the candidate."""
    return torch.zeros_like(like).masked_fill_(~accepted, math.log(torch.finfo(like.dtype).tiny))


def _excess(residual: Residual, chains: Int[Tensor, " row"]) -> Float[Tensor, " chain"]:
    """Return by how much |f - g| at a random place exceeds every slope that three nodes have shown; 0 for others."""
    excess = residual.draw(chains).abs() - _shown(residual, chains)
    return torch.zeros_like(residual.slopes.first).index_copy_(0, chains, excess)


def _shown(residual: Residual, chains: Int[Tensor, " row"]) -> Float[Tensor, " row"]:
    """Return the largest |f| at three nodes."""
    first, middle, last, _ = residual.slopes.of(chains)
    return torch.stack((first, middle, last)).abs().amax(0)


def _decided(
    five: FiveNodes,
    log_ratio: Float[Tensor, " row"],
    sizes: tuple[Float[Tensor, " row"], Float[Tensor, " row"]],
    balanced: Balanced,
    log_uniform: Float[Tensor, " row"],
    tally: Tally | None,
) -> Float[Tensor, " row"]:
    """Return the outcome for moves with five nodes: by the uniform, else by probes and factors.

    Args:
        five: What five nodes know and miss.
        log_ratio: L by three nodes.
        sizes: The most that five may change it by, and B.
        balanced: Metropolis's or Barker's log a from log r.
        log_uniform: Log of the uniforms.
        tally: Where factors are counted, and those that were clipped.
    """
    change, bound = sizes
    log_ratio = log_ratio + five.correction.clamp(-change, change)
    lowest, highest, rate = bounds(log_ratio, bound, balanced)
    accepted = log_uniform < highest
    length = five.residual.slopes.length[five.chains]
    probes = torch.cat([(accepted & (length > least)).nonzero().flatten() for least in PROBED_LENGTHS])
    probed, rounding = five.draw(probes), ROUNDING_ERRORS * torch.finfo(bound.dtype).eps
    allowed = bound[probes] + rounding * _shown(five.residual, five.chains[probes])
    accepted[probes[~(probed.abs() <= allowed)]] = False
    between = (accepted & (log_uniform >= lowest)).nonzero().flatten()
    factors = between.repeat_interleave(_at_least_one(five.residual, rate[between]))
    missed, most = five.draw(factors), bound[factors]
    tails = ~(five.residual.uniform(len(factors)) < (1 + missed.clamp(-most, most) / most) / 2)
    accepted[factors[tails]] = False
    if tally is not None:
        tally.add(missed.abs() > most)
        tally.add(five.correction[between].abs() > change[between])
    result = torch.where(accepted & (rate <= NEGLIGIBLE_RATE), highest, _outcome(accepted, log_uniform))
    result.masked_fill_(~highest.isfinite(), math.nan)
    result[torch.cat([probes[~probed.isfinite()], factors[~missed.isfinite()]])] = math.nan
    return result


def _at_least_one(residual: Residual, rate: Float[Tensor, " row"]) -> Int[Tensor, " row"]:
    """Draw Poisson numbers that are not 0: one for the first arrival before 1, and those that come after it."""
    first = -torch.log1p(residual.uniform(len(rate)) * torch.expm1(-rate))
    return 1 + residual.poisson((rate - first).clamp(min=0))
