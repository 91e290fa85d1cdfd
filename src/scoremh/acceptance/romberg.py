r"""Romberg's integral of a score along a move, refined only where a decision needs it.

With T_k the trapezoid rule with 2^k intervals, `R_{k,0} = T_k` and `R_{k,j} = R_{k,j-1} + (R_{k,j-1} - R_{k-1,j-1}) /
(4^j - 1)`; the estimate of level k is R_{k,k}, and that of level 1 is Simpson's. What it differs by from that of the
level before bounds its error. All of it is linear in the excess g of the slope at the nodes over the mean slope at the
ends, so that matrix products have the estimates and the bounds of several levels at once:

    R_{k,k} - T_0 = sum_i w_{k,i} g_i,    g_i = (s(x + t_i v) - (s(x) + s(x + v)) / 2) . v

Simpson's estimate is T_0 + 2/3 g(1/2). Integrals and errors are in units of this 2/3 here.
"""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scoremh.types import ScoreFn

UNIT = 2 / 3  # Simpson's inner weight
INTERVAL_LENGTH = 4.0  # |v| |s| / sqrt(d) of a move per interval, beyond which no bound is believed
SLOWEST = 16.0  # two estimates may agree by chance: the error is not believed to fall faster than Simpson's, as 2^-4
# Score calls for each chain that may be made before it is known that they are needed, a quarter of Simpson's: with a
# cheap score, another round of calls takes longer than another hundred of nodes.
SPARE_CALLS = 0.5


class Refinement(NamedTuple):
    """The nodes of one or two more levels, and the weights of the excesses at all nodes, from coarse to fine."""

    nodes: Float[Tensor, "new_node ..."]
    """New nodes t."""
    changes: Float[Tensor, "new_level node"]
    """Weights in what the estimate of a level differs by from Simpson's."""
    errors: Float[Tensor, "terms node"]
    """Weights in the terms, as many for every new level, of which the largest bounds the error."""
    reach: Float[Tensor, "new_level 1"]
    """Square of the longest move for which the bound is believed."""


def romberg_weights(levels: int) -> tuple[Float[np.ndarray, " node"], Float[np.ndarray, "level node"]]:
    """Return the inner nodes, from coarse to fine, and their weights in the estimates of level 0 and up."""
    nodes = np.array([(i + 0.5) / 2**k for k in range(levels) for i in range(2**k)])
    triangle, estimates = [np.zeros(len(nodes))], [np.zeros(len(nodes))]
    for level in range(1, levels + 1):
        coarse, triangle = triangle, [np.where(nodes * 2**level % 1 == 0, 0.5**level, 0.0)]
        for power, estimate in enumerate(coarse, start=1):
            triangle.append(triangle[-1] + (triangle[-1] - estimate) / (4**power - 1))
        estimates.append(triangle[-1])
    return nodes, np.array(estimates)


@cache
def refinement(level: int, finer: int, dimensions: int, dtype: torch.dtype, device: torch.device) -> Refinement:
    """Return nodes and weights from one level to a finer one, for tensors `(row, *event)` of so many dimensions."""
    nodes, estimates = romberg_weights(finer)
    new, each = np.arange(level + 1, finer + 1)[:, None], np.arange(1, finer + 1)
    believed = np.where(each <= new, SLOWEST ** np.minimum(each - new, 0), 0.0)
    parts = (
        nodes[2**level - 1 :].reshape(-1, *(1,) * dimensions),
        (estimates[level + 1 :] - estimates[1]) / UNIT,
        (believed[..., None] * np.diff(estimates, axis=0)).reshape(-1, len(nodes)) / UNIT,
        (INTERVAL_LENGTH * 2.0 ** (new - 1)) ** 2,
    )
    with torch.inference_mode(False):  # whoever asks first: others may differentiate
        return Refinement(*(torch.tensor(part, dtype=dtype, device=device) for part in parts))


@dataclass(frozen=True)
class Romberg:
    """Corrections of Simpson's rule where it leaves a decision open.

    Every estimate is judged in its turn, also where the nodes of two levels are asked for at once: what is decided does
    not depend on how many score calls there are to spare.

    Args:
        score: Score.
        max_nodes: Number of inner nodes not to be exceeded.
        deciding: Whether goals are what the integral is compared with; else they are errors at which to stop.
    """

    score: ScoreFn
    max_nodes: int
    deciding: bool = True

    def corrections(
        self, lines: tuple[Tensor, Tensor, Tensor], known: Float[Tensor, "3 chain"]
    ) -> tuple[Int[Tensor, " row"], Float[Tensor, " row"]]:
        """Return the chains that Simpson's rule leaves open, and what to add to its integral there.

        Args:
            lines: Where moves begin, the moves, and the sum of the scores at their ends.
            known: The excess half way; the goal, less Simpson's integral where that is compared with it; the square of
                the length of the moves in units of the score's own scale, |v| |s| / sqrt(d).
        """
        excess, goal, square = known.unbind()
        margin = goal.abs() if self.deciding else goal
        rows = (margin < excess.abs()).logical_or_(square > INTERVAL_LENGTH**2).nonzero().view(-1)
        if not rows.shape[0] or self.max_nodes == 1:
            return rows[:0], excess[:0]
        spare, known = SPARE_CALLS * square.shape[0], known.index_select(1, rows)
        return rows, self._refined(torch.stack(lines).index_select(1, rows), known[:1], known[1:], spare)

    def _refined(
        self,
        lines: Float[Tensor, "3 row *event"],
        excesses: Float[Tensor, "node row"],
        known: Float[Tensor, "2 row"],
        spare: float,
    ) -> Float[Tensor, " row"]:
        """Return what to add to Simpson's integrals of open moves, with one or two levels more than so far."""
        level, top = excesses.shape[0].bit_length(), self.max_nodes.bit_length()
        finer = min(level + 2, top)
        if excesses.shape[1] * (2**finer - 2**level) > spare:
            finer = level + 1
        nodes, changes, errors, reach = refinement(level, finer, lines.ndim - 1, lines.dtype, lines.device)
        new, (goal, square) = self._excesses(lines, nodes), known.unbind()
        excesses = torch.cat((excesses, new))
        change, error = changes.mm(excesses), errors.mm(excesses).abs_().view(finer - level, finer, -1).amax(1)
        margin = (change - goal).abs() if self.deciding else goal
        open_ = (margin < error).logical_or_(square > reach)
        found, still = change[-1], open_[-1]
        if finer > level + 1:
            found, still = torch.where(open_[0], found, change[0]), still & open_[0]
        rows = still.nonzero().view(-1)
        if finer < top and rows.shape[0]:
            lines, excesses, known = (part.index_select(1, rows) for part in (lines, excesses, known))
            found = found.index_copy(0, rows, self._refined(lines, excesses, known, spare - new.numel()))
        return found

    def _excesses(
        self, lines: Float[Tensor, "3 row *event"], nodes: Float[Tensor, "node ..."]
    ) -> Float[Tensor, "node row"]:
        """Return the excesses at nodes of all moves, by one call of the score."""
        x, v, ends = lines.unbind()
        places = torch.addcmul(x, v, nodes)
        scores = self.score(places.flatten(0, 1)).view_as(places)
        return torch.sub(scores, ends, alpha=0.5).mul_(v).flatten(2).sum(2)
