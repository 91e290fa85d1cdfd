r"""What Simpson's rule misses of the integral of the score along a move, at random places.

With `f(t) = s(x + t v) . v` and its quadratic interpolant g through t = 0, 1/2, 1, whose integral is Simpson's,

    D = int_0^1 g dt + int_0^1 (f - g) dt

Rules that decide for the true D (`exact_decision`, `two_coin`) ask for R = f - g at uniform places, and for a bound of
it. For the reversed move R changes its sign, and a bound has to have the same distribution. One from the three scores
alone, the second difference |f(0) - 2 f(1/2) + f(1)|, is falsely small where a move begins, halves and ends at places
that look alike (modes at equal distances), so R is also asked for at random places, the probes: the more of them, the
longer the move is in units of the score's own scale. Where R is clipped to a bound, D is another one, still
antisymmetric.

An exact decision from scores alone: a Poisson product over what Simpson's rule misses.

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

What is left of the integral of the score along a move after five nodes, those of Lobatto's rule.

Simpson's rule is Lobatto's with three nodes, 0, 1/2 and 1; two more, a and 1 - a with `a = (1 - sqrt(3/7)) / 2`, make
the next one. With R = f - g what Simpson's interpolant misses (`acceptance.residual`), its integral becomes

    S + (49/180) (R(a) + R(1 - a))

and what the quartic through all five misses is R(t) - h(t), `h(t) = t (t - 1/2) (t - 1) (c0 + c1 (t - 1/2))`.

An exact decision from scores alone, which asks for no more of them than it takes.

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
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scoremh._shared import rng
from scoremh._shared.algebra import inner, per_chain, scores_along
from scoremh.types import Point, ScoreFn, Target


@dataclass
class Tally:
    """Random factors, and how many of them were clipped to their bound."""

    factors: int = 0
    clipped: int = 0

    def add(self, clipped: Bool[Tensor, " factor"]) -> None:
        """Count factors, and those that were clipped."""
        self.factors += len(clipped)
        self.clipped += int(clipped.sum())


MAX_BOUND = 100.0  # B beyond which a move is refused, as is the reversed one: it would take 2 B score calls


class Slopes(NamedTuple):
    """The slope f of log p along a move, at its ends and half way, and how long the move is.

    Args:
        first: f(0).
        middle: f(1/2).
        last: f(1).
        length: |v| |s| / sqrt(d), with the rms of the three scores.
    """

    first: Float[Tensor, " chain"]
    middle: Float[Tensor, " chain"]
    last: Float[Tensor, " chain"]
    length: Float[Tensor, " chain"]

    @classmethod
    def along(cls, v: Tensor, first: Tensor, middle: Tensor, last: Tensor) -> "Slopes":
        """Return the slopes along v of three scores."""
        scores = (first, middle, last)
        mean_square = sum((inner(s, s) for s in scores), v.new_zeros(len(v))) / 3
        length = (inner(v, v) * mean_square / v[0].numel()).sqrt()
        return cls(inner(first, v), inner(middle, v), inner(last, v), length)

    @property
    def integral(self) -> Float[Tensor, " chain"]:
        """Simpson's estimate of the integral."""
        return (self.first + 4 * self.middle + self.last) / 6

    def of(self, rows: Tensor) -> "Slopes":
        """Return those of some chains."""
        return Slopes(*(part[rows] for part in self))

    def at(self, t: Float[Tensor, " place"], rows: Tensor) -> Float[Tensor, " place"]:
        """Return the quadratic interpolant at t, for these chains."""
        first, middle, last, _ = self.of(rows)
        return first * (1 - t) * (1 - 2 * t) + 4 * middle * t * (1 - t) + last * t * (2 * t - 1)


@dataclass(frozen=True)
class Residual:
    """What Simpson's rule misses along the moves of some chains.

    Args:
        score: Score.
        x: Current points.
        v: Moves.
        slopes: Slopes along the moves.
        generator: Random number generator; the same seed gives the same places.
    """

    score: ScoreFn
    x: Float[Tensor, "chain *event"]
    v: Float[Tensor, "chain *event"]
    slopes: Slopes
    generator: torch.Generator | None

    @classmethod
    def between(cls, current: Point, proposed: Point, target: Target, generator: torch.Generator | None) -> "Residual":
        """Ask for the score half way between points that have theirs."""
        assert target.score is not None
        first, last = current.integrated_score, proposed.integrated_score
        x, v = current.x, proposed.x - current.x
        middle = scores_along(target.score, x, v, (0.5,))[0]
        return cls(target.score, x, v, Slopes.along(v, first, middle, last), generator)

    def of(self, rows: Int[Tensor, " row"]) -> "Residual":
        """Return what is missed along the moves of some of the chains."""
        return replace(self, x=self.x[rows], v=self.v[rows], slopes=self.slopes.of(rows))

    def uniform(self, n: int) -> Float[Tensor, " n"]:
        """Draw n uniform numbers."""
        return rng.uniform((n,), self.x, self.generator)

    def poisson(self, rate: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Draw Poisson numbers."""
        return torch.poisson(rate, generator=rng.resolve(self.generator, self.x.device)).long()

    def at(self, chains: Int[Tensor, " place"], t: Float[Tensor, " place"]) -> Float[Tensor, " place"]:
        """Return f - g at these places of the moves of these chains, which may be named several times."""
        if not len(chains):
            return t  # a score may not like to be asked for nothing
        moves = self.v[chains]
        return inner(self.score(self.x[chains] + per_chain(t, self.x) * moves), moves) - self.slopes.at(t, chains)

    def draw(self, chains: Int[Tensor, " place"]) -> Float[Tensor, " place"]:
        """Return f - g at a uniform place for each of these chains."""
        return self.at(chains, self.uniform(len(chains)))

    def draw_pair(self, chains: Int[Tensor, " place"]) -> Float[Tensor, " place"]:
        """Return the mean of f - g at a uniform place and at its mirror image: what is odd about the middle cancels."""
        t = self.uniform(len(chains))
        one, other = self.at(chains.repeat(2), torch.cat([t, 1 - t])).chunk(2)
        return (one + other) / 2

    @property
    def second_difference(self) -> Float[Tensor, " chain"]:
        """|f(0) - 2 f(1/2) + f(1)|."""
        first, middle, last, _ = self.slopes
        return (first - 2 * middle + last).abs()

    def probed(self, asked: Int[Tensor, " row"], lengths: tuple[float, ...]) -> Float[Tensor, " chain"]:
        """Return the largest |f - g| at probes of these chains, one for each of these lengths that a move exceeds."""
        length, largest = self.slopes.length, torch.zeros_like(self.slopes.length)
        probes = torch.cat([asked[length[asked] > least] for least in lengths])
        return largest.scatter_reduce(0, probes, self.draw(probes).abs(), "amax")


# B in units of the second difference, by the length of a move: chosen on five distributions, not those of
# docs/acceptance.md. At most 1/2: P exceeds it nowhere if the even part of f is monotone from the middle to the ends.
BOUND_PER_LENGTH, MAX_SHARE = 0.125, 0.5
NEGLIGIBLE_RATE = 1e-9  # of factors: that of rounding errors
ROUGH_PROBED_LENGTHS = (1.5, 3.0, 6.0, 12.0)  # lengths from which a move has a probe more


def shared_correction(log_ratio: Tensor, log_simpson: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Return -alpha (1 - m) and rho: what is left before the product, and its mean number of factors."""
    alpha, both = -log_simpson, log_ratio - 2 * log_simpson  # beta is alpha + log_ratio
    m = torch.where(bound < both, bound / both, 1.0)
    return alpha * (m - 1), 2 * alpha * m + (bound - both).clamp(min=0)


def log_accept_rough(
    residual: Residual,
    log_ratio: Float[Tensor, " chain"],
    log_simpson: Float[Tensor, " chain"],
    log_uniform: Float[Tensor, " chain"],
    tally: Tally,
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
    wide = torch.maximum(bound, residual.probed((log_uniform < total).nonzero().flatten(), ROUGH_PROBED_LENGTHS))
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
    tally: Tally,
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
        tally.add(missed.abs() > wide)
        left, done = left - most, done + most


NODE = (1 - math.sqrt(3 / 7)) / 2
WEIGHT = 49 / 180
CUBIC = NODE * (NODE - 0.5) * (NODE - 1)  # t (t - 1/2) (t - 1) at the node


@dataclass(frozen=True)
class FiveNodes:
    """Moves of some chains with two more nodes.

    Args:
        residual: What three nodes miss, of all chains.
        chains: Chains whose moves have two more.
        early: R(a).
        late: R(1 - a).
    """

    residual: Residual
    chains: Int[Tensor, " row"]
    early: Float[Tensor, " row"]
    late: Float[Tensor, " row"]

    @classmethod
    def ask(cls, residual: Residual, chains: Int[Tensor, " row"]) -> "FiveNodes":
        """Ask for the score at the two nodes, in one call."""
        places = residual.x.new_tensor([NODE, 1 - NODE]).repeat_interleave(len(chains))
        early, late = residual.at(chains.repeat(2), places).chunk(2)
        return cls(residual, chains, early, late)

    def of(self, rows: Bool[Tensor, " row"]) -> "FiveNodes":
        """Return those of some rows."""
        return replace(self, chains=self.chains[rows], early=self.early[rows], late=self.late[rows])

    @property
    def correction(self) -> Float[Tensor, " row"]:
        """What five nodes add to Simpson's integral."""
        return WEIGHT * (self.early + self.late)

    @property
    def largest(self) -> Float[Tensor, " row"]:
        """The larger |R| of both nodes."""
        return torch.maximum(self.early.abs(), self.late.abs())

    def draw(self, rows: Int[Tensor, " place"]) -> Float[Tensor, " place"]:
        """Return what five nodes miss at a uniform place for each of these rows, which may be named several times."""
        t, chains = self.residual.uniform(len(rows)), self.chains[rows]
        early, late = self.early[rows], self.late[rows]
        c0, c1 = (early - late) / (2 * CUBIC), (early + late) / (2 * CUBIC * (NODE - 0.5))
        return self.residual.at(chains, t) - t * (t - 0.5) * (t - 1) * (c0 + c1 * (t - 0.5))


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
    tally: Tally,
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
    result[rough] = log_accept_rough(
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
    tally: Tally,
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
