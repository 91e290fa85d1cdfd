"""The rules and proposals that are compared."""

from typing import ClassVar

import torch
from torch import Tensor

from scoremh import MALA, Always, Exact, LineIntegral, RandomWalk, Target, Taylor, targets
from scoremh.acceptance import Rule
from scoremh.balance_matching import FormName, Pairs
from scoremh.types import Need, Point, Proposal
from studies.acceptance.two_coin import TwoCoin
from studies.learning import REFERENCE

PROPOSALS: dict[str, Proposal] = {"random walk": RandomWalk(0.3), "MALA": MALA(0.02)}  # on Moons
BOTH = "both"  # a potential is trained once and serves both proposals
# The forms, each with the pairing that has the least error after the shortest training.
FORMS: dict[FormName, Pairs] = {"potential": "independent", "antisymmetric": "proposed", "free": "proposed"}
OVERLAPPING = targets.GaussianMixture([0.7, 0.3], [[1.5, 0.0], [-1.5, 0.0]], 0.6 * torch.eye(2).expand(2, 2, 2))
BIAS_PROPOSALS: dict[str, Proposal] = {"random walk": RandomWalk(1.2), "MALA": MALA(0.35)}
RULES: dict[str, Rule] = {
    "Exact()": Exact(),
    "Always()": Always(),
    "Taylor(1)": Taylor(1),
    "Taylor(2)": Taylor(2),
    "Taylor(2, average=True)": Taylor(2, average=True),
    'LineIntegral("trapezoid")': LineIntegral("trapezoid"),
    "LineIntegral()": LineIntegral(),
    'LineIntegral("simpson")': LineIntegral("simpson"),
    'LineIntegral("gauss")': LineIntegral("gauss"),
    'LineIntegral("exact")': LineIntegral("exact"),
    "TwoCoin()": TwoCoin(),
}
SIMPSON = 'LineIntegral("simpson")'
COMPARED = ("Exact()", "LineIntegral()", SIMPSON, 'LineIntegral("exact")', "TwoCoin()")
LEARNED: tuple[FormName, ...] = ("free", "antisymmetric", "potential")  # by Metropolis with the ratio


class Corner(Rule):
    """Integrate along the sides of a rectangle and not along its diagonal: the same, where the score is a gradient."""

    needs: ClassVar[frozenset[Need]] = frozenset({"score"})

    def log_density_change(self, current: Point, proposed: Point, *, target: Target) -> Tensor:
        """Return the integral by way of the corner that has the first coordinate of x' and the others of x."""
        corner = Point(torch.cat([proposed.x[:, :1], current.x[:, 1:]], 1))
        legs = (current, corner), (corner, proposed)
        first, second = (REFERENCE.log_density_change(*leg, target=target) for leg in legs)
        return first + second


UNTRAINED: dict[str, Rule] = {
    "Simpson": LineIntegral("simpson"),
    "trapezoid": LineIntegral("trapezoid"),
    "16 nodes, around a corner": Corner(),
}
