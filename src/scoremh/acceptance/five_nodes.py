r"""What is left of the integral of the score along a move after five nodes, those of Lobatto's rule.

Simpson's rule is Lobatto's with three nodes, 0, 1/2 and 1; two more, a and 1 - a with `a = (1 - sqrt(3/7)) / 2`, make
the next one. With R = f - g what Simpson's interpolant misses (`acceptance.residual`), its integral becomes

    S + (49/180) (R(a) + R(1 - a))

and what the quartic through all five misses is R(t) - h(t), `h(t) = t (t - 1/2) (t - 1) (c0 + c1 (t - 1/2))`.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scoremh.acceptance.residual import Residual

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
