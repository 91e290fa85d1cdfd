r"""Leapfrog trajectories of Hamiltonian dynamics, with momenta p ~ N(0, I) in coordinates u, x = L u.

With g = L^T s, one of L steps of size h from (x_k, p_k) makes a segment v_k:

    m = p_k + (h / 2) g_k,    v_k = h L m,    x_{k+1} = x_k + v_k,    p_{k+1} = m + (h / 2) g_{k+1}

The map is reversible (turn the last momentum about, and the trajectory leads back over the same nodes) and preserves
volume. The kinetic terms hold the trapezoid at the nodes with the other sign:

    |p_0|^2 / 2 - |p_L|^2 / 2 = (h^2 / 8) (|g_0|^2 - |g_L|^2) - sum_k v_k.(s_k + s_{k+1}) / 2

so that this rule would leave nothing of the density; see `scoremh.kernel.hamiltonian` for what is done instead.

Scores are carried as `(chain, part, *event)`: that of the whole target, which moves the chains, and behind it, where
the target is a product of known and unknown parts, that of the unknown ones, which a rule integrates.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.algebra import inner, per_chain, rows_finite
from scoremh.proposals.noise import Colored
from scoremh.types import SupportFn


class Trajectory(NamedTuple):
    """Where a trajectory went: its end, its segments, and why it was given up."""

    end: Float[Tensor, "chain *event"]
    """The last node; where a chain was refused, the place that was refused."""
    scores: Float[Tensor, "chain part *event"]
    """The scores at the end; where a chain was refused, those of some earlier node."""
    momentum: Float[Tensor, "chain *event"]
    """The momentum at the end, in coordinates u."""
    nodes: Float[Tensor, "segment chain *event"]
    """Where the segments begin."""
    segments: Float[Tensor, "segment chain *event"]
    """The segments v_k."""
    score_sums: Float[Tensor, "segment chain *event"]
    """s_k + s_{k+1}, of what is integrated."""
    refused: Float[Tensor, " chain"]
    """0; -inf where a node lay outside the support, NaN where a number was not finite."""


def answers_where(
    function: Callable[[Tensor], Tensor], x: Tensor, rows: Bool[Tensor, " chain"], otherwise: Tensor
) -> Tensor:
    """Return what a function answers at these rows of x, asking at no other, and something else elsewhere."""
    if bool(rows.all()):
        return function(x)
    return otherwise.index_put((rows,), function(x[rows])) if bool(rows.any()) else otherwise


@dataclass(frozen=True, eq=False, repr=False)
class Leapfrog(Colored):
    """Leapfrog trajectories.

    Args:
        step_size: Step size h of the integrator.
        steps: Number of steps of a trajectory.
        covariance: C = L L^T, the inverse of the mass matrix, `(d,)` or `(d, d)`; the identity when None.
        random_length: Draw the number of steps anew for every transition, uniformly from 1 to `steps`.
    """

    step_name: ClassVar[str] = "step_size"

    step_size: float
    steps: int
    covariance: Tensor | None = None
    random_length: bool = False

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        super().__post_init__()
        checks.count(self.steps, "steps")
        checks.one_of(self.random_length, (True, False), "random_length")

    def slope(self, score: Tensor) -> Tensor:
        """Return g = L^T s."""
        return score if self.coordinates is None else self.coordinates.pull_gradient(score, score)

    def length(self, like: Tensor, generator: torch.Generator | None) -> int:
        """Return the number of steps of the next trajectory, one for all chains; it does not depend on where they are.

        Args:
            like: Tensor on whose device to draw.
            generator: Random number generator; the same seed gives the same lengths.
        """
        if not self.random_length:
            return int(self.steps)
        uniform = rng.uniform((), torch.empty((), dtype=torch.float64, device=like.device), generator)
        return 1 + int(uniform * self.steps)

    def trajectory(
        self,
        scores: Callable[[Tensor], Tensor],
        support: SupportFn | None,
        x: Tensor,
        at_x: Float[Tensor, "chain part *event"],
        momentum: Tensor,
        steps: int,
    ) -> Trajectory:
        """Follow the dynamics, asking for the scores once at every node but the first, and at none that is refused.

        Args:
            scores: Function of x that returns the scores there, `(chain, part, *event)`.
            support: Where p is positive, or None for everywhere.
            x: First node.
            at_x: Scores there.
            momentum: First momentum, in coordinates u.
            steps: Number of steps.
        """
        h, s, refused, given_up = self.step_size, at_x, x.new_zeros(len(x)), x
        nodes, segments, sums, p = [], [], [], torch.add(momentum, self.slope(at_x[:, 0]), alpha=h / 2)
        for step in range(1, steps + 1):
            v = h * self.color(p)
            there = x + v
            moving, before = self._possible(there, support), refused == 0
            if not bool((moving & before).all()):
                reason = torch.where(rows_finite(there), -math.inf, math.nan).to(refused)
                given_up = torch.where(per_chain(before & ~moving, x), there, given_up)
                refused = torch.where(before & ~moving, reason, refused)
                there, v = (torch.where(per_chain(refused == 0, x), a, b) for a, b in ((there, x), (v, 0.0)))
            nodes.append(x)
            segments.append(v)
            at_there = answers_where(scores, there, refused == 0, s)
            sums.append(s[:, -1] + at_there[:, -1])
            x, s = there, at_there
            p = torch.add(p, self.slope(s[:, 0]), alpha=h if step < steps else h / 2)
        refused = torch.where((refused == 0) & ~rows_finite(s), math.nan, refused)
        end = torch.where(per_chain(refused == -math.inf, x), given_up, x)
        return Trajectory(end, s, p, torch.stack(nodes), torch.stack(segments), torch.stack(sums), refused)

    def kinetic_change(self, momentum: Tensor, path: Trajectory) -> Float[Tensor, " chain"]:
        """Return |p|^2 / 2 - |p'|^2 / 2."""
        return (inner(momentum, momentum) - inner(path.momentum, path.momentum)) / 2

    def _possible(self, x: Tensor, support: SupportFn | None) -> Bool[Tensor, " chain"]:
        """Return which chains are at finite places inside the support."""
        finite = rows_finite(x)
        return finite if support is None else finite & support(x)
