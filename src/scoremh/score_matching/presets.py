"""The rows of the paper's Table 2."""

from typing import NamedTuple

import torch

from scoremh._shared import rng
from scoremh.networks import ScoreMLP
from scoremh.training import Recipe


class Preset(NamedTuple):
    """A row of the paper's Table 2: softplus network, sliced loss, Adam at a constant rate, nothing standardised.

    The paper gives no batch size. An epoch is taken as one step.
    """

    hidden: int
    rate: float
    steps: int

    def network(self, event: tuple[int, ...], generator: torch.Generator | None = None) -> ScoreMLP:
        """Return the row's network."""
        return ScoreMLP(event, self.hidden, generator=rng.child(generator))

    @property
    def recipe(self) -> Recipe:
        """The row as a recipe: no averaging, no clipping, no early stop."""
        return Recipe(self.steps, rate=self.rate, schedule="constant", average=0.0, clip=None, patience=None)


PRESETS = {
    "moons": Preset(64, 1e-3, 5000),
    "pinwheel": Preset(512, 5e-4, 2000),
    "s_curve": Preset(512, 5e-4, 2000),
    "swiss_roll": Preset(512, 5e-4, 2000),
}
