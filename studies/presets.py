"""The rows of the paper's Tables 2 and 3: how it trains scores and acceptance functions.

Adam at a constant rate, nothing standardised, averaged, clipped or stopped early. The paper gives no batch size; an
epoch is taken as one step. Nor does it give C, the bound of its clipping.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from scoremh import BalanceMatching, Recipe, ScoreFit, SlicedScoreMatching, fit_score
from scoremh._shared import rng
from scoremh.networks import AcceptanceMLP, ScoreMLP

CONSTANT = Recipe(schedule="constant", average=0.0, clip=None, patience=None)


class ScoreRow(NamedTuple):
    """A row of Table 2: a softplus network and the sliced loss."""

    hidden: int
    rate: float
    steps: int


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
        return replace(CONSTANT, steps=self.steps, batch=32, rate=self.rate, check_every=min(200, self.steps))


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
    net = ScoreMLP(tuple(samples.shape[1:]), row.hidden, generator=rng.child(generator)).to(samples)
    recipe = replace(CONSTANT, steps=row.steps, batch=512, rate=row.rate, check_every=min(200, row.steps))
    return fit_score(samples, SlicedScoreMatching(), net, standardize=False, recipe=recipe, generator=generator)
