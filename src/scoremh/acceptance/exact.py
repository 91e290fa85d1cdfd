r"""Exact decisions from scores alone, the rule `LineIntegral("exact")`.

Let f(t) = s(x + t v) . v be the slope of log p along a move v = x' - x, and g its quadratic interpolant through
t = 0, 1/2, 1. The integral of g is Simpson's estimate S, and

    D = log p(x') - log p(x) = S + int_0^1 R dt,    R = f - g

The integral of R is unknown, but R can be evaluated at random places t. If |R| <= B, a product over a Poisson number of
random factors (`log_accept_rough`) is a random a(x', x) whose mean satisfies a(x', x) / a(x, x') = r with the true D.
If R is clipped to [-B, B], the chain is in balance for another D, which is still antisymmetric. Since log a lies in a
known interval, the uniform number alone decides most moves. In turn (`log_accept`):

1. Three nodes. Five nodes would change log r = L by at most E, and their bound B would be at most M; both are
   proportional to |f(0) - 2 f(1/2) + f(1)|. A move is accepted if log u is below the lowest log a that is then
   possible, and rejected if it is above the highest. Long moves are never accepted here, because three scores may look
   alike by chance. Nearly long moves are rejected if |R| at a random place, a probe, exceeds all known slopes.
2. Five nodes (`FiveNodes`). B is proportional to |R| at the two new nodes. The change of L is clipped to E, and B to
   M; long moves that would be clipped go on to 3. Moves of which a probe exceeds B are rejected.
3. Rough moves: the Poisson product over R, with a bound from more probes.

Every choice between these is the same for the reversed move, or has the same distribution.
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
    """Number of random factors, and of those that were clipped to their bound."""

    factors: int = 0
    clipped: int = 0

    def add(self, clipped: Bool[Tensor, " factor"]) -> None:
        """Count these factors, and the clipped ones among them."""
        self.factors += len(clipped)
        self.clipped += int(clipped.sum())


MAX_BOUND = 100.0  # B above which a move and its reverse are rejected: the product would take 2 B score calls


class Slopes(NamedTuple):
    """The slope f of log p at both ends and the middle of a move, and the length of the move."""

    first: Float[Tensor, " chain"]
    """f(0)."""
    middle: Float[Tensor, " chain"]
    """f(1/2)."""
    last: Float[Tensor, " chain"]
    """f(1)."""
    length: Float[Tensor, " chain"]
    """|v| |s| / sqrt(d), with the root mean square of the three scores."""

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
        """Return the slopes of some chains."""
        return Slopes(*(part[rows] for part in self))

    def at(self, t: Float[Tensor, " place"], rows: Tensor) -> Float[Tensor, " place"]:
        """Return the quadratic interpolant g of these chains at t."""
        first, middle, last, _ = self.of(rows)
        return first * (1 - t) * (1 - 2 * t) + 4 * middle * t * (1 - t) + last * t * (2 * t - 1)


@dataclass(frozen=True)
class Residual:
    """The residual R = f - g of Simpson's rule along moves v from x.

    For the reversed move R changes its sign, and a bound of |R| must have the same distribution. The second difference
    |f(0) - 2 f(1/2) + f(1)| alone is too small by chance if a move begins, halves and ends at places that look alike
    (modes at equal distances). So |R| is also evaluated at random places, called probes: the longer the move, the more.
    """

    score: ScoreFn
    x: Float[Tensor, "chain *event"]
    v: Float[Tensor, "chain *event"]
    slopes: Slopes
    generator: torch.Generator | None

    @classmethod
    def between(cls, current: Point, proposed: Point, target: Target, generator: torch.Generator | None) -> "Residual":
        """Return the residual between two points; evaluates the score half way."""
        assert target.score is not None
        first, last = current.integrated_score, proposed.integrated_score
        x, v = current.x, proposed.x - current.x
        middle = scores_along(target.score, x, v, (0.5,))[0]
        return cls(target.score, x, v, Slopes.along(v, first, middle, last), generator)

    def of(self, rows: Int[Tensor, " row"]) -> "Residual":
        """Return the residual of some of the chains."""
        return replace(self, x=self.x[rows], v=self.v[rows], slopes=self.slopes.of(rows))

    def uniform(self, n: int) -> Float[Tensor, " n"]:
        """Draw n uniform numbers."""
        return rng.uniform((n,), self.x, self.generator)

    def poisson(self, rate: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Draw Poisson numbers."""
        return torch.poisson(rate, generator=rng.resolve(self.generator, self.x.device)).long()

    def at(self, chains: Int[Tensor, " place"], t: Float[Tensor, " place"]) -> Float[Tensor, " place"]:
        """Return f - g at t on the moves of these chains; a chain may occur several times."""
        if not len(chains):
            return t  # a user's score may fail on an empty batch
        moves = self.v[chains]
        return inner(self.score(self.x[chains] + per_chain(t, self.x) * moves), moves) - self.slopes.at(t, chains)

    def draw(self, chains: Int[Tensor, " place"]) -> Float[Tensor, " place"]:
        """Return f - g at one uniform t for each of these chains."""
        return self.at(chains, self.uniform(len(chains)))

    def draw_pair(self, chains: Int[Tensor, " place"]) -> Float[Tensor, " place"]:
        """Return the mean of f - g at a uniform t and at 1 - t: the part that is odd about the middle cancels."""
        t = self.uniform(len(chains))
        one, other = self.at(chains.repeat(2), torch.cat([t, 1 - t])).chunk(2)
        return (one + other) / 2

    @property
    def second_difference(self) -> Float[Tensor, " chain"]:
        """|f(0) - 2 f(1/2) + f(1)|."""
        first, middle, last, _ = self.slopes
        return (first - 2 * middle + last).abs()

    def probed(self, chains: Int[Tensor, " row"], lengths: tuple[float, ...]) -> Float[Tensor, " chain"]:
        """Return the largest |f - g| at probes of these chains, one per entry of `lengths` that a move exceeds."""
        length, largest = self.slopes.length, torch.zeros_like(self.slopes.length)
        probes = torch.cat([chains[length[chains] > least] for least in lengths])
        return largest.scatter_reduce(0, probes, self.draw(probes).abs(), "amax")


# B = BOUND_PER_LENGTH * length, in units of the second difference. Chosen on five distributions, none of which is in
# docs/acceptance.md. At most 1/2: if the even part of f is monotone from the middle to the ends, |P| never exceeds it.
BOUND_PER_LENGTH, MAX_SHARE = 0.125, 0.5
NEGLIGIBLE_RATE = 1e-9  # mean number of factors that rounding errors cause
ROUGH_PROBED_LENGTHS = (1.5, 3.0, 6.0, 12.0)  # a move has one probe for each of these lengths that it exceeds


# The Poisson product. Let a_S be Metropolis's or Barker's probability for log r = S + log q ratio, alpha =
# -log a_S(x', x) and beta = -log a_S(x, x'), and P = (R(t) + R(1 - t)) / 2 at a uniform t, with the mean of R, clipped
# to [-B, B]. Then
#
#     a(x', x) = exp(-alpha (1 - m))  prod_{j <= J} (B + P_j) / (2 B),    J ~ Poisson(rho)
#     m = min(1, B / (alpha + beta)),    rho = 2 alpha m + max(0, B - alpha - beta)
#
# The mean of the product is exp(rho (E[P] - B) / (2 B)). For the reversed move, P changes its sign, alpha and beta
# change places, B stays, and both rho add up to 2 B. Since beta - alpha = S + log q ratio, a(x', x) / a(x, x') =
# exp(D + log q ratio) with the true D. The direction with the larger alpha carries more of the correction: with
# Metropolis, if |S + log q ratio| >= B, a is the true ratio in one direction and 1 in the other, and no acceptance is
# lost.
#
# B is computed from three scores. If a long move would be accepted, probes may raise the bound to B' > B. The part of P
# between the two bounds has a product of its own, with Poisson(B' - B) factors
# (1 + (clip(P, B') - clip(P, B)) / (B' - B)) / 2.


def shared_correction(log_ratio: Tensor, log_simpson: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Return -alpha (1 - m), the log of the factor before the product, and rho, the mean number of its factors."""
    alpha, both = -log_simpson, log_ratio - 2 * log_simpson  # both = alpha + beta, with beta = alpha + log_ratio
    m = torch.where(bound < both, bound / both, 1.0)
    return alpha * (m - 1), 2 * alpha * m + (bound - both).clamp(min=0)


def log_accept_rough(
    residual: Residual,
    log_ratio: Float[Tensor, " chain"],
    log_simpson: Float[Tensor, " chain"],
    log_uniform: Float[Tensor, " chain"],
    tally: Tally,
) -> Float[Tensor, " chain"]:
    """Draw log a by the Poisson product and compare it with log u: return 0 to accept, a low number to reject.

    Factors are drawn only until the comparison is decided, so the product itself is not returned. Exceptions: log a is
    returned if u = 0, and if there is nothing to draw, as for a normal distribution. `log_ratio` is S + log q ratio,
    `log_simpson` is log a_S, and `tally` counts the factors.
    """
    bound = (BOUND_PER_LENGTH * residual.slopes.length).clamp(max=MAX_SHARE) * residual.second_difference
    total, rate = shared_correction(log_ratio, log_simpson, bound)
    total = torch.where(log_ratio.isfinite(), total, log_simpson)
    wide = torch.maximum(bound, residual.probed((log_uniform < total).nonzero().flatten(), ROUGH_PROBED_LENGTHS))
    lowest = math.log(torch.finfo(total.dtype).tiny)  # not -inf, which means that p(x') is 0
    total = torch.where(wide <= MAX_BOUND, total, lowest)
    total = torch.where(wide.isfinite(), total, math.nan)
    for low, high, mean in ((torch.zeros_like(bound), bound, rate), (bound, wide, wide - bound)):
        _add_log_factors(total, residual, (low, high, wide), mean, log_uniform, tally)
    verdict = torch.zeros_like(total).masked_fill(~(log_uniform < total), lowest)
    drawn = (rate + wide - bound > NEGLIGIBLE_RATE) & log_uniform.isfinite() & total.isfinite()
    return torch.where(drawn, verdict, total)


def _add_log_factors(
    total: Float[Tensor, " chain"],
    residual: Residual,
    bounds: tuple[Tensor, Tensor, Tensor],
    rate: Float[Tensor, " chain"],
    log_uniform: Float[Tensor, " chain"],
    tally: Tally,
) -> None:
    """Add to log a the logs of Poisson(rate) factors for the part of P between two bounds, while log u < log a.

    A factor is about 1/2, so a few of many decide. The first round draws one factor, and each further round as many as
    all rounds before it.
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
        # An infinite score must not be clipped to B: the move is rejected.
        total.index_add_(0, chains, torch.where(missed.isfinite(), factor, math.nan))
        tally.add(missed.abs() > wide)
        left, done = left - most, done + most


# Simpson's rule is Lobatto's rule with the three nodes 0, 1/2 and 1. Two more nodes, a and 1 - a, make the next one:
# the integral becomes S + (49/180) (R(a) + R(1 - a)). The quartic through all five nodes misses R(t) - h(t) with
# h(t) = t (t - 1/2) (t - 1) (c0 + c1 (t - 1/2)).
NODE = (1 - math.sqrt(3 / 7)) / 2  # a
WEIGHT = 49 / 180
CUBIC = NODE * (NODE - 0.5) * (NODE - 1)  # t (t - 1/2) (t - 1) at the node


@dataclass(frozen=True)
class FiveNodes:
    """The moves of some chains, integrated with five nodes."""

    residual: Residual
    """The residual of three nodes, for all chains."""
    chains: Int[Tensor, " row"]
    """The chains with five nodes."""
    early: Float[Tensor, " row"]
    """R(a)."""
    late: Float[Tensor, " row"]
    """R(1 - a)."""

    @classmethod
    def evaluate(cls, residual: Residual, chains: Int[Tensor, " row"]) -> "FiveNodes":
        """Evaluate the score at the two new nodes of these chains, in one call."""
        places = residual.x.new_tensor([NODE, 1 - NODE]).repeat_interleave(len(chains))
        early, late = residual.at(chains.repeat(2), places).chunk(2)
        return cls(residual, chains, early, late)

    def of(self, rows: Bool[Tensor, " row"]) -> "FiveNodes":
        """Return the moves in some of the rows."""
        return replace(self, chains=self.chains[rows], early=self.early[rows], late=self.late[rows])

    @property
    def correction(self) -> Float[Tensor, " row"]:
        """The correction of Simpson's integral by five nodes."""
        return WEIGHT * (self.early + self.late)

    @property
    def largest(self) -> Float[Tensor, " row"]:
        """The larger |R| at the two new nodes."""
        return torch.maximum(self.early.abs(), self.late.abs())

    def draw(self, rows: Int[Tensor, " place"]) -> Float[Tensor, " place"]:
        """Return the residual R - h of five nodes at one uniform t for each of these rows, which may repeat."""
        t, chains = self.residual.uniform(len(rows)), self.chains[rows]
        early, late = self.early[rows], self.late[rows]
        c0, c1 = (early - late) / (2 * CUBIC), (early + late) / (2 * CUBIC * (NODE - 0.5))
        return self.residual.at(chains, t) - t * (t - 0.5) * (t - 1) * (c0 + c1 * (t - 0.5))


Balanced = Callable[[Tensor], Tensor]


class Shares(NamedTuple):
    """Limits of what five nodes may change, relative to the second difference (times the length of moves below 1)."""

    change: float
    """E: the largest change of the integral."""
    bound: float
    """M: the largest bound B."""
    node: float
    """B, relative to the larger |R| at the two new nodes."""


# Lengths and shares were chosen on the distributions of docs/acceptance.md, with other seeds. For long moves, E + M is
# at least the bound of `log_accept_rough`, so that no move that it would accept is rejected before.
LONG_MOVE, NEARLY_LONG, LONGEST = 4.0, 2.5, 16.0  # in units of `Slopes.length`
SHORT, LONG = Shares(0.2, 0.15, 0.3), Shares(0.3, 0.2, 0.3)
ROUNDING_ERRORS = 100  # of a score, in units of the last place: the only residual on a normal distribution
MOST_FACTORS = 2.0  # B of five nodes above which a move is rough
PROBED_LENGTHS = (LONG_MOVE, 8.0)  # a smooth move has one probe for each of these lengths that it exceeds


def bounds(log_ratio: Tensor, bound: Tensor, balanced: Balanced) -> tuple[Tensor, Tensor, Tensor]:
    """Return the lowest and the highest possible log a, and the mean number of factors that decide in between."""
    highest, rate = shared_correction(log_ratio, balanced(log_ratio), bound)
    return highest - rate, highest, rate


def limits(log_ratio: Tensor, change: Tensor, most: Tensor, balanced: Balanced) -> tuple[Tensor, Tensor]:
    """Return the lowest and highest log a of all ratios within `change` of this one, with bounds of at most `most`."""
    return bounds(log_ratio - change, most, balanced)[0], (balanced(log_ratio + change) + most).clamp(max=0)


def log_accept(
    residual: Residual,
    log_ratio: Float[Tensor, " chain"],
    balanced: Balanced,
    log_uniform: Float[Tensor, " chain"],
    tally: Tally,
) -> Float[Tensor, " chain"]:
    """Decide about the candidates: return 0 to accept and a low number to reject.

    If Simpson's rule is exact, up to rounding, return log a itself; if a score is NaN, return NaN. `log_ratio` is
    S + log q ratio, `balanced` is Metropolis's or Barker's log a as a function of log r; `tally` counts the factors.
    """
    length, difference = residual.slopes.length, residual.second_difference
    short = length <= LONG_MOVE
    scale = difference * length.clamp(max=1)
    change, most, _ = (torch.where(short, a * scale, b * scale) for a, b in zip(SHORT, LONG, strict=True))
    lowest, highest = limits(log_ratio, change, most, balanced)
    accepted, open_ = short & (log_uniform < lowest), log_ratio.isfinite() & (log_uniform < highest)
    excess = _excess(residual, (open_ & short & (length > NEARLY_LONG)).nonzero().flatten())
    hidden = ~(excess <= 0)  # True for NaN
    result = _outcome(accepted & ~hidden, log_uniform).masked_fill_(~excess.isfinite(), math.nan)
    rows = (open_ & ~accepted & ~hidden & (length <= LONGEST)).nonzero().flatten()
    five = FiveNodes.evaluate(residual, rows)
    largest = torch.where(short[rows], SHORT.node * five.largest, LONG.node * five.largest)
    smooth = (five.correction.abs() <= change[rows]) & (largest <= most[rows].clamp(max=MOST_FACTORS)) | short[rows]
    rough = torch.cat([(open_ & (length > LONGEST)).nonzero().flatten(), rows[~smooth]])
    five, chains = five.of(smooth), rows[smooth]
    sizes = change[chains], torch.minimum(largest[smooth], most[chains])
    result[chains] = _decide_smooth(five, log_ratio[chains], sizes, balanced, log_uniform[chains], tally)
    result[rough] = log_accept_rough(
        residual.of(rough), log_ratio[rough], balanced(log_ratio[rough]), log_uniform[rough], tally
    )
    known = (change + most <= NEGLIGIBLE_RATE) & (short & ~hidden | ~open_) | ~log_ratio.isfinite()
    return torch.where(known, balanced(log_ratio), result)


def _outcome(accepted: Bool[Tensor, " row"], like: Tensor) -> Float[Tensor, " row"]:
    """Return 0 for accepted rows and a low number for the others; not -inf, which means that p(x') is 0."""
    return torch.zeros_like(like).masked_fill_(~accepted, math.log(torch.finfo(like.dtype).tiny))


def _excess(residual: Residual, chains: Int[Tensor, " row"]) -> Float[Tensor, " chain"]:
    """Return |f - g| at a random place minus the largest |f| at the three nodes; 0 for chains that are not listed."""
    excess = residual.draw(chains).abs() - _largest_slope(residual, chains)
    return torch.zeros_like(residual.slopes.first).index_copy_(0, chains, excess)


def _largest_slope(residual: Residual, chains: Int[Tensor, " row"]) -> Float[Tensor, " row"]:
    """Return the largest |f| at the three nodes."""
    first, middle, last, _ = residual.slopes.of(chains)
    return torch.stack((first, middle, last)).abs().amax(0)


def _decide_smooth(
    five: FiveNodes,
    log_ratio: Float[Tensor, " row"],
    sizes: tuple[Float[Tensor, " row"], Float[Tensor, " row"]],
    balanced: Balanced,
    log_uniform: Float[Tensor, " row"],
    tally: Tally,
) -> Float[Tensor, " row"]:
    """Decide about moves with five nodes: by the uniform number if it suffices, otherwise by probes and factors.

    `log_ratio` is L with three nodes; `sizes` are the limit of its change and the bound B.
    """
    change, bound = sizes
    log_ratio = log_ratio + five.correction.clamp(-change, change)
    lowest, highest, rate = bounds(log_ratio, bound, balanced)
    accepted = log_uniform < highest
    length = five.residual.slopes.length[five.chains]
    probes = torch.cat([(accepted & (length > least)).nonzero().flatten() for least in PROBED_LENGTHS])
    probed, rounding = five.draw(probes), ROUNDING_ERRORS * torch.finfo(bound.dtype).eps
    allowed = bound[probes] + rounding * _largest_slope(five.residual, five.chains[probes])
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
    """Draw from Poisson(rate), given that the number is not 0: the first arrival before 1, and those after it."""
    first = -torch.log1p(residual.uniform(len(rate)) * torch.expm1(-rate))
    return 1 + residual.poisson((rate - first).clamp(min=0))
