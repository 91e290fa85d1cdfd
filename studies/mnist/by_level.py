"""What an accept step is worth at every noise level of images: curl, acceptance, and whether rules agree."""

import math
from pathlib import Path
from typing import Any

import torch

from scoremh import LineIntegral, ScoreFit, annealing, diagnostics
from scoremh.proposals import ScaledMALA
from studies.framework import Cell, Record
from studies.mnist import sampling
from studies.mnist.images import score_file
from studies.mnist.sampling import HIGH, LOW

TAU = 0.7
LAG = math.sqrt(1 + TAU**2)  # noise that annealed chains carry, over that of their level
IMAGES = 100
LEVELS = tuple(round(level, 3) for level in annealing.geometric(HIGH, LOW, 7))


class AtLevel(Cell, kind="level"):
    """Real images with the noise that annealed chains carry at a level, and a candidate for each."""

    level: float

    def measure(self, config: object, folder: Path) -> Record:
        torch.set_num_threads(1)
        model, real = ScoreFit.load(score_file(folder)), sampling.reference(folder, IMAGES, 1)
        generator = torch.Generator().manual_seed(1)
        curl = diagnostics.conservativity_by_level(
            model.at, [self.level], real, step=2 * TAU / LAG, nodes=4, generator=generator
        )[self.level]
        x = real + LAG * self.level * torch.randn(real.shape, generator=generator)
        rules = {"gauss": LineIntegral("gauss", nodes=16), "exact": LineIntegral("exact")}
        how: dict[str, Any] = {"target": model.at(self.level), "proposal": ScaledMALA(TAU), "x": x}
        found = {
            name: diagnostics.disagreement(
                LineIntegral("simpson"), rule, generator=torch.Generator().manual_seed(2), **how
            )
            for name, rule in rules.items()
        }
        record = {"asymmetry": curl.asymmetry, "circulation": curl.circulation, "side": curl.side}
        record |= {f"{name}_accepted": one.acceptance_rates[1] for name, one in found.items()}
        return record | {"accepted": found["gauss"].acceptance_rates[0], "disagreement": found["gauss"].rate}
