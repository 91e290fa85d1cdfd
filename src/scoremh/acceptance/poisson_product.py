r"""An exact decision from scores alone: a Poisson product over what Simpson's rule misses.

With `f(t) = s(x + t v) . v`, its quadratic interpolant g through t = 0, 1/2, 1, whose integral is Simpson's S, and
`W = (f(t) - g(t)) / 2` at a uniform t, clipped to [-B, B]:

    a(x', x) = a_S(x', x)  prod_{j <= J} (B + W_j) / (2 B),    J ~ Poisson(2 B)

where a_S is Metropolis's or Barker's probability for S. The mean of the product is `exp(E[W] - B)`; for the reversed
move W changes its sign and B stays, so that `a(x', x) / a(x, x') = exp(D + log q ratio)` with the true D, and no loop.

B may be any number that has the same distribution for the reversed move. A bound from the three scores alone is falsely
small where a move begins, halves and ends at places that look alike (modes at equal distances), so the interpolant is
also compared with f at random places, `B = c max(|f(0) - 2 f(1/2) + f(1)|, |f(t_i) - g(t_i)|)`: the more of them, the
longer the move is in units of the score's own scale. Where W is clipped the ratio is another one, still antisymmetric.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scoremh._shared import rng
from scoremh._shared.algebra import inner, per_chain
from scoremh.types import ScoreFn

BOUND = 0.5  # c: at .1 a third of the factors is clipped where a step crosses narrow modes, at .5 a hundredth
LENGTHS = (1.5, 3.0)  # |v| |s| / sqrt(d), rms over the three scores, from which a move has one probe, and two


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


def log_product(
    score: ScoreFn,
    x: Tensor,
    v: Tensor,
    slopes: Slopes,
    rows: Bool[Tensor, " chain"],
    generator: torch.Generator | None,
) -> Float[Tensor, " chain"]:
    """Return the log of the Poisson product for the chains that are asked for, and 0 for the others.

    Args:
        score: Score, asked in one call for all probes, and in one for all factors.
        x: Current points.
        v: Moves.
        slopes: Slopes along the moves.
        rows: Chains whose decision is still open.
        generator: Random number generator; the same seed gives the same products.
    """
    total = x.new_zeros(len(x))
    asked = rows.nonzero().flatten()
    if not len(asked):
        return total

    def missed(chains: Tensor) -> Tensor:
        """Return f - g at a uniform place for each of these chains, which may be named several times."""
        t = rng.uniform((len(chains),), x, generator)
        moves = v[chains]
        return inner(score(x[chains] + per_chain(t, x) * moves), moves) - slopes.at(t, chains)

    probes = torch.cat([asked[slopes.length[asked] > length] for length in LENGTHS])
    bound = (slopes.first - 2 * slopes.middle + slopes.last).abs()
    if len(probes):
        bound = bound.scatter_reduce(0, probes, missed(probes).abs(), "amax")
    bound = BOUND * bound
    known = bound[asked].isfinite()
    total[asked[~known]] = math.nan
    asked = asked[known]
    counts = torch.poisson(2 * bound[asked], generator=rng.resolve(generator, x.device)).long()
    chains = asked.repeat_interleave(counts)
    if len(chains):
        width = bound[chains]
        factor = (width + (missed(chains) / 2).clamp(-width, width)) / (2 * width)
        # a factor of 0 rejects; its log is kept finite, since minus infinity says that p is 0 at the candidate
        total.index_add_(0, chains, factor.clamp(min=torch.finfo(x.dtype).tiny).log())
    return total
