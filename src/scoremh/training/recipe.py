"""How to train."""

from dataclasses import dataclass
from typing import Literal, get_args

from scoremh._shared import checks

Schedule = Literal["cosine", "constant"]


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Args:
        steps: Largest number of optimiser steps.
        batch: Number of samples per step, drawn with replacement.
        rate: Adam's learning rate, at the start.
        schedule: "cosine" down to 0, or "constant".
        average: Decay of the weights' moving average; 0 takes the weights as they are.
        clip: Largest norm of a gradient; None clips nothing.
        check_every: Number of steps between two checks of the held-out loss.
        patience: Number of checks without a better loss after which to stop; the best weights are returned, of those
            within a standard error, or within 2 % of the gain, the latest. None runs to the end and returns the last.
        held_out: Share of the samples held out for those checks, 5,000 of them at most.
    """

    steps: int = 8000
    batch: int = 512
    rate: float = 2e-3
    schedule: Schedule = "cosine"
    average: float = 0.999
    clip: float | None = 10.0
    check_every: int = 200
    patience: int | None = 20
    held_out: float = 0.1

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        for name in ("steps", "batch", "check_every"):
            checks.count(getattr(self, name), name)
        if self.patience is not None:
            checks.count(self.patience, "patience")
        checks.positive(self.rate, "rate")
        if self.clip is not None:
            checks.positive(self.clip, "clip")
        checks.one_of(self.schedule, get_args(Schedule), "schedule")
        if not 0 <= self.average < 1:
            raise ValueError(checks.message("average in [0, 1)", self.average, "0 takes the weights as they are."))
        if not 0 < self.held_out < 1:
            fix = "Training cannot be judged on what it has seen: 0.1 is a good share."
            raise ValueError(checks.message("held_out between 0 and 1", self.held_out, fix))
