"""The names of the forms with their defaults, and the rows of the paper's Table 3."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch

from scoremh._shared import rng
from scoremh.balance_matching.losses import BalanceMatching
from scoremh.networks import AcceptanceMLP
from scoremh.training import Recipe

FormName = Literal["free", "antisymmetric", "potential"]  # the names of `networks.FORMS`
# A potential serves every proposal: it learns from points half way to proposals, nearer to where chains are.
MATCHING: Mapping[str, BalanceMatching] = {
    "free": BalanceMatching(scale=1.0),
    "antisymmetric": BalanceMatching(),
    "potential": BalanceMatching(pairs="independent", alpha=0.5),
}
# With anchors: largest norm of a gradient per root of its size, in standard coordinates. Slopes are steeper off the
# samples, where a learned score is not to be trusted and would outweigh the anchors.
ANCHORED_CLIP = 2.5
RECIPE = Recipe(4000, batch=256, rate=4e-3)  # larger steps than a score's: a pair has 2 d numbers to learn from


def default_matching(form: str, event: tuple[int, ...], *, anchored: bool) -> BalanceMatching:
    """Return the loss of a form: with anchors, gradients are clipped.

    Args:
        form: Name of the form.
        event: Shape of one event.
        anchored: Whether values of log p join the loss.
    """
    clip = ANCHORED_CLIP * math.sqrt(2 * math.prod(event)) if anchored else None
    return replace(MATCHING[form], clip=clip)


class Preset(NamedTuple):
    """A row of the paper's Table 3: the free form, all pairs, Adam at a constant rate, nothing standardised.

    The paper gives neither the size of a batch nor C. An epoch of its Algorithm 2 is one step, here on 16 x 16 pairs,
    and nothing is clipped.
    """

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
        """The row as a recipe: no averaging, no clipping, no early stop."""
        options: dict[str, Any] = {
            "batch": 32,
            "schedule": "constant",
            "average": 0.0,
            "clip": None,
            "check_every": min(200, self.steps),
            "patience": None,
        }
        return Recipe(self.steps, rate=self.rate, **options)


PRESETS = {
    "moons": Preset(256, 3, 1000, 2.0),
    "pinwheel": Preset(256, 4, 200, 2.0),
    "s_curve": Preset(512, 4, 200, 2.0),
    "swiss_roll": Preset(512, 4, 200, 1.0),
}
