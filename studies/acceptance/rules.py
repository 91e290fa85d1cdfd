"""The rules and proposals that are compared."""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from scoremh import MALA, Always, BalanceMatching, Exact, LineIntegral, RandomWalk, Target, Taylor, targets
from scoremh.acceptance import Rule
from scoremh.acceptance.rules import LearnedBalance
from scoremh.balance_matching import MATCHING, FormName, Pairs
from scoremh.types import Need, Point, Proposal
from studies.acceptance.two_coin import TwoCoin
from studies.learning import PAPER_ENTROPY, REFERENCE

PROPOSALS: dict[str, dict[str, Proposal]] = {
    "mixture": {"random walk": RandomWalk(1.7), "MALA": MALA(0.5)},
    "moons": {"random walk": RandomWalk(0.3), "MALA": MALA(0.02)},  # eps = .2
}
WALKS = tuple(PROPOSALS["moons"])
BOTH = "both"  # a potential is trained once and serves both proposals
FORMS: tuple[FormName, ...] = ("potential", "antisymmetric", "free")
PAIRS: tuple[Pairs, ...] = ("independent", "proposed", "mixed")
# The pairing of each form with the least error after the shortest training: the first to be trained longer.
BEST_PAIRS = {"potential": "independent", "antisymmetric": "proposed", "free": "proposed"}
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
# Rules for steps from the width of a structure to the size of the distribution: these, and variants of them.
STEPPED: dict[str, Rule] = RULES | {
    'Exact(balance="barker")': Exact(balance="barker"),
    "Taylor(1, average=True)": Taylor(1, average=True),
    'LineIntegral("trapezoid", nodes=3)': LineIntegral("trapezoid", nodes=3),
    'LineIntegral("simpson", nodes=3)': LineIntegral("simpson", nodes=3),
    'LineIntegral(balance="barker")': LineIntegral(balance="barker"),
    'LineIntegral("simpson", balance="barker")': LineIntegral("simpson", balance="barker"),
    'LineIntegral("gauss", nodes=1)': LineIntegral("gauss", nodes=1),
    'LineIntegral("exact", balance="barker")': LineIntegral("exact", balance="barker"),
}


class Trained(NamedTuple):
    """A rule that is learned."""

    form: FormName
    balance: LearnedBalance
    matching: BalanceMatching


LEARNED = {
    "free, direct, entropy for scale": Trained("free", "direct", PAPER_ENTROPY),
    "free, direct": Trained("free", "direct", MATCHING["free"]),
    "free, metropolis": Trained("free", "metropolis", MATCHING["free"]),
    "antisymmetric, metropolis": Trained("antisymmetric", "metropolis", MATCHING["antisymmetric"]),
    "potential, metropolis": Trained("potential", "metropolis", MATCHING["potential"]),
}


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
