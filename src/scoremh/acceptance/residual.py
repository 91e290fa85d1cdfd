r"""What Simpson's rule misses of the integral of the score along a move, at random places.

With `f(t) = s(x + t v) . v` and its quadratic interpolant g through t = 0, 1/2, 1, whose integral is Simpson's,

    D = int_0^1 g dt + int_0^1 (f - g) dt

Rules that decide for the true D (`exact_decision`, `two_coin`) ask for R = f - g at uniform places, and for a bound of
it. For the reversed move R changes its sign, and a bound has to have the same distribution. One from the three scores
alone, the second difference |f(0) - 2 f(1/2) + f(1)|, is falsely small where a move begins, halves and ends at places
that look alike (modes at equal distances), so R is also asked for at random places, the probes: the more of them, the
longer the move is in units of the score's own scale. Where R is clipped to a bound, D is another one, still
antisymmetric.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scoremh._shared import rng
from scoremh._shared.algebra import inner, per_chain, scores_along
from scoremh.types import Point, ScoreFn, Target

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
        assert current.score is not None
        assert proposed.score is not None
        x, v = current.x, proposed.x - current.x
        middle = scores_along(target.score, x, v, (0.5,))[0]
        return cls(target.score, x, v, Slopes.along(v, current.score, middle, proposed.score), generator)

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
