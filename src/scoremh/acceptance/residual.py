r"""What Simpson's rule misses of the integral of the score along a move, at random places.

With `f(t) = s(x + t v) . v` and its quadratic interpolant g through t = 0, 1/2, 1, whose integral is Simpson's,

    D = int_0^1 g dt + int_0^1 (f - g) dt

Rules that decide for the true D (`poisson_product`, `two_coin`) ask for f - g at uniform places, and for a bound B of
(f - g) / 2. For the reversed move f - g changes its sign, and B has to have the same distribution. One from the three
scores alone is falsely small where a move begins, halves and ends at places that look alike (modes at equal distances),
so the interpolant is also compared with f at random places,

    B = c max(|f(0) - 2 f(1/2) + f(1)|,  |f(t_i) - g(t_i)|)

the more of them, the longer the move is in units of the score's own scale. Where (f - g) / 2 is clipped to [-B, B], D
is another one, still antisymmetric.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scoremh._shared import rng
from scoremh._shared.algebra import inner, per_chain, scores_along
from scoremh.types import Point, ScoreFn, Target

BOUND = (
    0.5  # c: at .1 moves are clipped on smooth targets (an eighth of the places at `tune`'s step), at .5 a hundredth
)
LENGTHS = (1.5, 3.0)  # |v| |s| / sqrt(d), rms over the three scores, from which a move has one probe, and two
MAX_BOUND = 50.0  # B beyond which a move is refused, as is the reversed one: it would be accepted once in e^B


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

    def at(self, t: Float[Tensor, " place"], rows: Tensor) -> Float[Tensor, " place"]:
        """Return the quadratic interpolant at t, for these chains."""
        first, middle, last, _ = (part[rows] for part in self)
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
        assert current.score is not None
        assert proposed.score is not None
        x, v = current.x, proposed.x - current.x
        middle = scores_along(target.score, x, v, (0.5,))[0]
        return cls(target.score, x, v, Slopes.along(v, current.score, middle, proposed.score), generator)

    def uniform(self, n: int) -> Float[Tensor, " n"]:
        """Draw n uniform numbers."""
        return rng.uniform((n,), self.x, self.generator)

    def poisson(self, rate: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Draw Poisson numbers."""
        return torch.poisson(rate, generator=rng.resolve(self.generator, self.x.device)).long()

    def draw(self, chains: Int[Tensor, " place"]) -> Float[Tensor, " place"]:
        """Return f - g at a uniform place for each of these chains, which may be named several times."""
        t, moves = self.uniform(len(chains)), self.v[chains]
        return inner(self.score(self.x[chains] + per_chain(t, self.x) * moves), moves) - self.slopes.at(t, chains)

    def bound(self, asked: Int[Tensor, " row"]) -> Float[Tensor, " chain"]:
        """Return B for all chains, with probes for those that are asked for."""
        first, middle, last, length = self.slopes
        bound = (first - 2 * middle + last).abs()
        probes = torch.cat([asked[length[asked] > least] for least in LENGTHS])
        if len(probes):
            bound = bound.scatter_reduce(0, probes, self.draw(probes).abs(), "amax")
        return BOUND * bound
