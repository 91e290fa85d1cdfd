r"""Romberg's integral of a score along a move, refined only where a decision needs it.

With T_k the trapezoid rule with 2^k intervals, `R_{k,0} = T_k` and `R_{k,j} = R_{k,j-1} + (R_{k,j-1} - R_{k-1,j-1}) /
(4^j - 1)`; the estimate is R_{k,k}, and R_{1,1} is Simpson's. What it differs by from R_{k-1,k-1} bounds its error.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scoremh._shared.algebra import scores_along
from scoremh.types import ScoreFn

INTERVAL_LENGTH = 4.0  # |v| |s| / sqrt(d) of a move per interval, beyond which no bound is believed
SLOWEST = 16  # two estimates may agree by chance: the error is not believed to fall faster than Simpson's, as 2^-4

Undecided = Callable[[Tensor, Tensor, Tensor], Tensor]


def too_long(length: Float[Tensor, " row"], intervals: int) -> Bool[Tensor, " row"]:
    """Return which moves are too long, in units of the score's own scale, for a bound from so many intervals."""
    return length > INTERVAL_LENGTH * intervals


def refined(
    score: ScoreFn,
    x: Float[Tensor, "row *event"],
    v: Float[Tensor, "row *event"],
    trapezoid: Float[Tensor, " row"],
    simpson: Float[Tensor, " row"],
    length: Float[Tensor, " row"],
    undecided: Undecided,
    max_nodes: int,
) -> Float[Tensor, " row"]:
    """Return integrals of moves that Simpson's rule has not decided, with twice the intervals while they are open.

    Args:
        score: Score, asked in one call for all new nodes.
        x: Where the moves begin.
        v: Moves.
        trapezoid: Integral by the trapezoid rule with one interval.
        simpson: Integral by Simpson's rule.
        length: Length of the moves in units of the score's own scale.
        undecided: From estimates, their error bounds and their rows to whether to go on.
        max_nodes: Number of inner nodes not to be exceeded.
    """
    change, rows, intervals = simpson.clone(), torch.arange(len(x), device=x.device), 2
    # T_1 and Simpson's, which is (4 T_1 - T_0) / 3
    triangle, last = [(trapezoid + 3 * simpson) / 4, simpson], (simpson - trapezoid).abs()
    while len(rows) and intervals <= max_nodes:
        between = tuple((i + 0.5) / intervals for i in range(intervals))
        middle = (scores_along(score, x, v, between) * v).flatten(2).sum((0, 2)) / intervals
        coarse, triangle = triangle, [(triangle[0] + middle) / 2]
        for power, estimate in enumerate(coarse, start=1):
            triangle.append(triangle[-1] + (triangle[-1] - estimate) / (4**power - 1))
        change[rows] = triangle[-1]
        error = torch.maximum((triangle[-1] - coarse[-1]).abs(), last / SLOWEST)
        still = (undecided(triangle[-1], error, rows) | too_long(length, intervals)).nonzero().flatten()
        intervals *= 2
        x, v = torch.stack((x, v))[:, still]
        rows, (length, last, *triangle) = rows[still], torch.stack((length, error, *triangle))[:, still]
    return change
