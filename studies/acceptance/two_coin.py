r"""Barker's probability for the true ratio, from scores alone, by tossing two coins (Lam et al., arXiv:2605.09654).

With S by Simpson's rule, `R = int (f - g) dt` what it misses (`scoremh.acceptance.exact`) and `M >= |f - g|`, a loop
shows heads with the probability `c = sigmoid(S + log q ratio)`, and then

    heads: accept with probability exp(-(M - R) / 2);  tails: reject with probability exp(-(M + R) / 2);  else again

Either probability is that of no point in a Poisson process, thinned by f - g at random places. One of both happens in a
loop with the probability `Z = c exp(-(M - R) / 2) + (1 - c) exp(-(M + R) / 2)`. Loops without end would accept with `c
exp(-(M - R) / 2) / Z = r / (1 + r)`; those that end after N tosses, and reject, accept with

    a(x', x) = c exp(-(M - R) / 2)  (1 - (1 - Z)^N) / Z

For the reversed move c becomes 1 - c, R changes its sign and Z stays: the cap costs acceptance, not detailed balance.
(Vats, Goncalves, Latuszynski and Roberts, 2022, give up with a fixed probability at every loop, for the same reason.)
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh.acceptance.exact import MAX_BOUND, Residual, Tally
from scoremh.acceptance.rules import Decision, LineIntegral, Rule
from scoremh.types import Need, Point, Proposal, Target

PROBED_LENGTHS = (1.5, 3.0)  # lengths from which M has a probe more


@dataclass(frozen=True, repr=False)
class TwoCoin(Rule):
    """Decide by Barker's probability for the true integral of the score, with two coins and a limited number of loops.

    It draws random numbers of its own. `LineIntegral("exact")` decides for the same ratio, accepts more and has no
    loop; this is the exact rule of others, to compare with.

    Args:
        loops: Number of tosses after which a move is rejected.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"score"})
    integrates: ClassVar[bool] = True
    antisymmetric: ClassVar[bool] = False
    straight: ClassVar[bool] = True
    balance = "barker"
    loops: int = 20  # a move that crosses much structure takes all of them, two score calls each

    def __post_init__(self) -> None:
        """Raise an error for invalid parameters."""
        checks.count(self.loops, "loops")

    def log_density_change(self, current: Point, proposed: Point, *, target: Target) -> Float[Tensor, " chain"]:
        """Return Simpson's estimate of log p(proposed) - log p(current), with which the first coin is tossed."""
        return LineIntegral("simpson").log_density_change(current, proposed, target=target)

    def log_accept(
        self, current: Point, proposed: Point, *, target: Target, proposal: Proposal
    ) -> Float[Tensor, " chain"]:
        """Return log a, drawn."""
        log_uniform = rng.log_uniform((len(current.x),), current.x, None)
        return self.decide(current, proposed, log_uniform, target=target, proposal=proposal).log_accept

    def decide(
        self,
        current: Point,
        proposed: Point,
        log_uniform: Tensor,
        *,
        target: Target,
        proposal: Proposal,
        generator: torch.Generator | None = None,
    ) -> Decision:
        """Return log a: of the first coin if no other was tossed, else 0 to accept and a low value to reject.

        The first coin is the kernel's own uniform number.
        """
        residual, tally = Residual.between(current, proposed, target, generator), Tally()
        known = self.known_log_ratio(current, proposed, target=target, proposal=proposal)
        log_heads = self.log_balanced(residual.slopes.integral + known)
        every = torch.arange(len(log_uniform), device=log_uniform.device)
        probes = torch.cat([every[residual.length > least] for least in PROBED_LENGTHS])
        rate = residual.second_difference.scatter_reduce(0, probes, residual.draw(probes).abs(), "amax")
        log_accept = torch.where(rate.isfinite(), log_heads, math.nan)
        lowest = math.log(torch.finfo(log_accept.dtype).tiny)  # minus infinity would mean that p is 0 at the candidate
        log_accept.masked_fill_((rate > MAX_BOUND) & log_accept.isfinite(), lowest)
        rows = every[log_accept.isfinite() & (rate <= MAX_BOUND)]
        points = residual.poisson(rate[rows])
        rows, points = rows[points > 0], points[points > 0]
        heads = (log_uniform < log_heads)[rows]
        log_accept[rows] = self._tossed(residual, rows, points, heads, rate[rows], log_heads[rows].exp(), tally)
        return Decision(log_accept, tally.factors, tally.clipped)

    def _tossed(
        self,
        residual: Residual,
        rows: Tensor,
        points: Tensor,
        heads: Tensor,
        rate: Tensor,
        share: Tensor,
        tally: Tally,
    ) -> Float[Tensor, " row"]:
        """Return 0 for rows whose coins accept, a low number for those that they reject or that ran out of loops.

        Args:
            residual: What Simpson's rule misses.
            rows: Chains that toss.
            points: Number of points of the Poisson process that are still to be thinned in this loop.
            heads: Side of the first coin in this loop.
            rate: M.
            share: Probability of heads.
            tally: Where points are counted, and those at which f - g was clipped.
        """
        low, loops = math.log(torch.finfo(rate.dtype).tiny), torch.ones_like(points)
        verdict, place = torch.full_like(rate, low), torch.arange(len(rows), device=rows.device)
        while len(place):
            missed, m = residual.draw(rows[place]), rate[place]
            tally.add(missed.abs() > m)
            against = torch.where(heads, -missed, missed).clamp(-m, m)
            again = residual.uniform(len(place)) < (m + against) / (2 * m)
            loops, points = loops + again, torch.where(again, residual.poisson(m), points - 1)
            heads = torch.where(again, residual.uniform(len(place)) < share[place], heads)
            broken = ~missed.isfinite()
            decided = ((points == 0) & (loops <= self.loops)) & ~broken
            verdict[place[decided & heads]] = 0
            verdict[place[broken]] = math.nan
            place, loops, points, heads = (
                part[~decided & ~broken & (loops <= self.loops)] for part in (place, loops, points, heads)
            )
        return verdict
