"""The rows of the paper's Tables 2 and 3: how it trains scores and acceptance functions.

Adam at a constant rate, nothing standardised, averaged, clipped or stopped early. The paper gives no batch size; an
epoch is taken as one step. Nor does it give C, the bound of its clipping.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from scoremh import AcceptanceFit, BalanceMatching, Recipe, ScoreFit, SlicedScoreMatching, fit_acceptance, fit_score
from scoremh._shared import rng
from scoremh.networks import AcceptanceMLP, ScoreMLP
from scoremh.types import Proposal, TargetLike


class ScoreRow(NamedTuple):
    """A row of Table 2: a softplus network and the sliced loss."""

    hidden: int
    rate: float
    steps: int

    def network(self, event: tuple[int, ...], generator: torch.Generator | None = None) -> ScoreMLP:
        """Return the row's network."""
        return ScoreMLP(event, self.hidden, generator=rng.child(generator))

    @property
    def recipe(self) -> Recipe:
        """The row as a recipe."""
        return Recipe(
            self.steps,
            batch=512,
            rate=self.rate,
            schedule="constant",
            average=0.0,
            clip=None,
            check_every=min(200, self.steps),
            patience=None,
        )


class AcceptanceRow(NamedTuple):
    """A row of Table 3: the free form on all pairs; a step of its Algorithm 2 is taken on 16 x 16 of them."""

    hidden: int
    blocks: int
    steps: int
    entropy: float
    rate: float = 5e-4

    def network(self, event: tuple[int, ...], generator: torch.Generator | None = None) -> AcceptanceMLP:
        """Return the row's network."""
        return AcceptanceMLP(event, self.hidden, self.blocks, generator=rng.child(generator))

    @property
    def matching(self) -> BalanceMatching:
        """The row's loss."""
        return BalanceMatching(self.entropy, pairs="independent", all_pairs=True)

    @property
    def recipe(self) -> Recipe:
        """The row as a recipe."""
        return Recipe(
            self.steps,
            batch=32,
            rate=self.rate,
            schedule="constant",
            average=0.0,
            clip=None,
            check_every=min(200, self.steps),
            patience=None,
        )


TABLE_2 = {
    "moons": ScoreRow(64, 1e-3, 5000),
    "pinwheel": ScoreRow(512, 5e-4, 2000),
    "s_curve": ScoreRow(512, 5e-4, 2000),
    "swiss_roll": ScoreRow(512, 5e-4, 2000),
}
TABLE_3 = {
    "moons": AcceptanceRow(256, 3, 1000, 2.0),
    "pinwheel": AcceptanceRow(256, 4, 200, 2.0),
    "s_curve": AcceptanceRow(512, 4, 200, 2.0),
    "swiss_roll": AcceptanceRow(512, 4, 200, 1.0),
}


def paper_score(samples: Tensor, name: str, *, generator: torch.Generator | None = None) -> ScoreFit:
    """Learn a score as a row of Table 2 says."""
    row = TABLE_2[name]
    net = row.network(tuple(samples.shape[1:]), generator).to(samples)
    return fit_score(samples, SlicedScoreMatching(), net, standardize=False, recipe=row.recipe, generator=generator)


def paper_acceptance(
    target: TargetLike, proposal: Proposal, samples: Tensor, name: str, *, generator: torch.Generator | None = None
) -> AcceptanceFit:
    """Learn an acceptance function as a row of Table 3 says."""
    row = TABLE_3[name]
    return fit_acceptance(
        target,
        proposal,
        samples,
        form="free",
        matching=row.matching,
        net=row.network(tuple(samples.shape[1:]), generator),
        standardize=False,
        recipe=row.recipe,
        generator=generator,
    )
