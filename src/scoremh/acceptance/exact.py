r"""Exact decisions from scores alone, the rule `LineIntegral("exact")`.

Let f(t) = s(x + t v) . v be the slope of log p along a move v = x' - x, and g its quadratic interpolant through
t = 0, 1/2, 1. The integral of g is Simpson's estimate S, and

    D = log p(x') - log p(x) = S + int_0^1 R dt,    R = f - g

The integral of R is unknown, but R can be evaluated at random places t. Let a_S be Metropolis's or Barker's probability
for log r = S + log q ratio, alpha = -log a_S(x', x) and beta = -log a_S(x, x'), and P = (R(t) + R(1 - t)) / 2 at a
uniform t, with the mean of R, clipped to [-B, B]. Then

    a(x', x) = exp(-alpha (1 - m))  prod_{j <= J} (B + P_j) / (2 B),    J ~ Poisson(rho)
    m = min(1, B / (alpha + beta)),    rho = 2 alpha m + max(0, B - alpha - beta)

The mean of the product is exp(rho (E[P] - B) / (2 B)). For the reversed move, P changes its sign, alpha and beta change
places, B stays, and both rho add up to 2 B. Since beta - alpha = S + log q ratio, the mean of a(x', x) over that of
a(x, x') is exp(D + log q ratio), with the true D. The direction with the larger alpha carries more of the correction:
with Metropolis, if |S + log q ratio| >= B, a is the true ratio in one direction and 1 in the other: no acceptance is
lost.

B is proportional to |f(0) - 2 f(1/2) + f(1)|, which is too small by chance if a move begins, halves and ends at places
that look alike (modes at equal distances). So if a move would be accepted, |R| is evaluated at random places, called
probes, the more the longer the move, and may raise the bound to B' > B. The part of P between the two bounds has a
product of its own, with Poisson(B' - B) factors (1 + (clip(P, B') - clip(P, B)) / (B' - B)) / 2. The probes of the
reversed move have the same law, so a and its ratio are as above given the probes. A factor with |P| > B' is clipped,
and counted: the chain is then in balance for another D, which is still antisymmetric.

Factors are drawn only until the uniform number decides. Most moves need none: one score call between x and x' suffices.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scoremh._shared import rng
from scoremh._shared.algebra import inner, per_chain, scores_along
from scoremh.types import Point, ScoreFn, Target

# Chosen on lattices, combs, rings, twisted normals, logistic and Student's distributions and mixtures, none of which is
# in docs/acceptance.md. The share is at most 1/2: if the even part of f is monotone from the middle to the ends, |P|
# never exceeds half of |f(0) - 2 f(1/2) + f(1)|.
BOUND_PER_LENGTH, MAX_SHARE = 0.125, 0.5  # B = length |f(0) - 2 f(1/2) + f(1)| / 8
PROBED_LENGTHS = (1.0, 2.0, 4.0, 8.0)  # a move has one probe for each of these lengths that it exceeds
PROBE_MARGIN = 1.5  # B' over the largest |R| at the probes
ROUGH, MORE_PROBES = 0.1, 3  # if B' - B, the mean number of factors that probes add, exceeds .1, three more follow
NEGLIGIBLE_RATE = 1e-9  # mean number of factors that rounding errors cause
MAX_BOUND = 100.0  # B' above which a move and its reverse are rejected: the product would take 2 B' score calls


@dataclass
class Tally:
    """Number of random factors, and of those that were clipped to their bound."""

    factors: int = 0
    clipped: int = 0

    def add(self, clipped: Bool[Tensor, " factor"]) -> None:
        """Count these factors, and the clipped ones among them."""
        self.factors += len(clipped)
        self.clipped += int(clipped.sum())


class Slopes(NamedTuple):
    """The slope f of log p at both ends and the middle of a move."""

    first: Float[Tensor, " chain"]
    """f(0)."""
    middle: Float[Tensor, " chain"]
    """f(1/2)."""
    last: Float[Tensor, " chain"]
    """f(1)."""

    @property
    def integral(self) -> Float[Tensor, " chain"]:
        """Simpson's estimate of the integral."""
        return (self.first + 4 * self.middle + self.last) / 6

    def at(self, t: Float[Tensor, " place"], chains: Int[Tensor, " place"]) -> Float[Tensor, " place"]:
        """Return the quadratic interpolant g of these chains at t."""
        first, middle, last = (part[chains] for part in self)
        return first * (1 - t) * (1 - 2 * t) + 4 * middle * t * (1 - t) + last * t * (2 * t - 1)


@dataclass(frozen=True)
class Residual:
    """The residual R = f - g of Simpson's rule along moves v from x, and random numbers."""

    score: ScoreFn
    x: Float[Tensor, "chain *event"]
    v: Float[Tensor, "chain *event"]
    slopes: Slopes
    length: Float[Tensor, " chain"]
    """|v| |s| / sqrt(d), with the root mean square of the three scores."""
    generator: torch.Generator | None

    @classmethod
    def between(cls, current: Point, proposed: Point, target: Target, generator: torch.Generator | None) -> "Residual":
        """Return the residual between two points; evaluates the score half way."""
        assert target.score is not None
        x, v = current.x, proposed.x - current.x
        middle = scores_along(target.score, x, v, (0.5,))[0]
        scores = current.integrated_score, middle, proposed.integrated_score
        mean_square = sum((inner(s, s) for s in scores), x.new_zeros(len(x))) / 3
        length = (inner(v, v) * mean_square / x[0].numel()).sqrt()
        return cls(target.score, x, v, Slopes(*(inner(s, v) for s in scores)), length, generator)

    def uniform(self, n: int) -> Float[Tensor, " n"]:
        """Draw n uniform numbers."""
        return rng.uniform((n,), self.x, self.generator)

    def poisson(self, rate: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Draw Poisson numbers."""
        return torch.poisson(rate, generator=rng.resolve(self.generator, self.x.device)).long()

    def at(self, chains: Int[Tensor, " place"], t: Float[Tensor, " place"]) -> Float[Tensor, " place"]:
        """Return R(t) on the moves of these chains; a chain may occur several times."""
        if not len(chains):
            return t  # a user's score may fail on an empty batch
        moves = self.v[chains]
        return inner(self.score(self.x[chains] + per_chain(t, self.x) * moves), moves) - self.slopes.at(t, chains)

    def draw(self, chains: Int[Tensor, " place"]) -> Float[Tensor, " place"]:
        """Return R(t) at one uniform t for each of these chains."""
        return self.at(chains, self.uniform(len(chains)))

    def draw_pair(self, chains: Int[Tensor, " place"]) -> Float[Tensor, " place"]:
        """Return (R(t) + R(1 - t)) / 2 at a uniform t: the part that is odd about the middle cancels."""
        t = self.uniform(len(chains))
        one, other = self.at(chains.repeat(2), torch.cat([t, 1 - t])).chunk(2)
        return (one + other) / 2

    @property
    def second_difference(self) -> Float[Tensor, " chain"]:
        """|f(0) - 2 f(1/2) + f(1)|."""
        first, middle, last = self.slopes
        return (first - 2 * middle + last).abs()

    @property
    def bound(self) -> Float[Tensor, " chain"]:
        """B, from three scores."""
        return (BOUND_PER_LENGTH * self.length).clamp(max=MAX_SHARE) * self.second_difference

    def probed(self, bound: Float[Tensor, " chain"], chains: Int[Tensor, " row"]) -> Float[Tensor, " chain"]:
        """Return B', the bound raised by probes of these chains."""
        length = self.length[chains]
        wide = self.raised(bound, torch.cat([chains[length > least] for least in PROBED_LENGTHS]))
        return self.raised(wide, (wide - bound > ROUGH).nonzero().flatten().repeat(MORE_PROBES))

    def raised(self, bound: Float[Tensor, " chain"], probes: Int[Tensor, " place"]) -> Float[Tensor, " chain"]:
        """Return the bound, raised by one probe for each of these chains, which may repeat."""
        return bound.scatter_reduce(0, probes, PROBE_MARGIN * self.draw(probes).abs(), "amax")


def shared_correction(log_ratio: Tensor, log_simpson: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Return -alpha (1 - m), the log of the factor before the product, and rho, the mean number of its factors."""
    alpha, both = -log_simpson, log_ratio - 2 * log_simpson  # both = alpha + beta, with beta = alpha + log_ratio
    m = torch.where(bound < both, bound / both, 1.0)
    return alpha * (m - 1), 2 * alpha * m + (bound - both).clamp(min=0)


def log_accept(
    residual: Residual,
    log_ratio: Float[Tensor, " chain"],
    log_simpson: Float[Tensor, " chain"],
    log_uniform: Float[Tensor, " chain"],
    tally: Tally,
) -> Float[Tensor, " chain"]:
    """Decide about the candidates: return 0 to accept and a low number to reject, and NaN if a score is NaN.

    If there is nothing to draw, as for a normal distribution up to rounding, or if u = 0, return log a itself.

    Args:
        residual: Residual of Simpson's rule along the moves.
        log_ratio: S + log q ratio.
        log_simpson: log a_S.
        log_uniform: log u.
        tally: Counts the factors.
    """
    bound = residual.bound
    first, rate = shared_correction(log_ratio, log_simpson, bound)
    total = torch.where(log_ratio.isfinite(), first, log_simpson)
    wide = residual.probed(bound, (log_uniform < total).nonzero().flatten())
    total = torch.where(wide <= MAX_BOUND, total, _lowest(total))
    total = torch.where(wide.isfinite(), total, math.nan)
    _add_log_factors(total, residual, (bound, wide), rate, log_uniform, tally)
    verdict = torch.zeros_like(total).masked_fill(~(log_uniform < total), _lowest(total))
    drawn = (rate + wide - bound > NEGLIGIBLE_RATE) & log_uniform.isfinite() & total.isfinite()
    return torch.where(drawn, verdict, total)


def _lowest(log_accept: Tensor) -> float:
    """Return log a of a certain rejection: not -inf, which means that p(x') is 0."""
    return math.log(torch.finfo(log_accept.dtype).tiny)


def _add_log_factors(
    total: Float[Tensor, " chain"],
    residual: Residual,
    bounds: tuple[Tensor, Tensor],
    rate: Float[Tensor, " chain"],
    log_uniform: Float[Tensor, " chain"],
    tally: Tally,
) -> None:
    """Add to log a the logs of Poisson(rate) factors for B and of Poisson(B' - B) for B', while log u < log a.

    A factor is about 1/2, so a few of many decide: the first round draws two, and each further round as many as all
    rounds before it.
    """
    bound, wide = bounds
    rows = (log_uniform < total).nonzero().flatten()
    narrow, more = residual.poisson(rate[rows]), residual.poisson((wide - bound)[rows])
    done = 0
    while len(alive := ((log_uniform < total)[rows] & (narrow + more > done)).nonzero().flatten()):
        most = max(2, done)
        counts = (narrow + more - done)[alive].clamp(max=most)
        place = alive.repeat_interleave(counts)
        before = (counts.cumsum(0) - counts).repeat_interleave(counts)  # places of other chains before this one's
        nth, chains = done + torch.arange(len(place), device=place.device) - before, rows[place]
        first = nth < narrow[place]
        low, high = torch.where(first, 0.0, bound[chains]), torch.where(first, bound[chains], wide[chains])
        missed = residual.draw_pair(chains)
        part = missed.clamp(-high, high) - missed.clamp(-low, low)
        factor = ((1 + part / (high - low)) / 2).log().clamp(min=_lowest(total))
        # An infinite score must not be clipped to B: the move is rejected.
        total.index_add_(0, chains, torch.where(missed.isfinite(), factor, math.nan))
        tally.add(missed.abs() > wide[chains])
        done += most
