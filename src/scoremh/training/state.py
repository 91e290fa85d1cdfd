"""The state of a training: optimiser steps, and checks of the held-out loss."""

import math
import statistics
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from scoremh._shared import rng
from scoremh.training.divergence import DivergenceError
from scoremh.training.losses import DetailedLoss, Loss
from scoremh.training.recipe import Recipe

TIE_SHARE = 0.02  # held-out losses this near, as a share of what was gained since the first, are equal; the later wins
MAX_PARTS = 20  # of the held-out samples, whose losses give the standard error of their mean
MIN_PART_ROWS = 8
DRAWS_PER_PART = 2  # of a loss's random numbers


@dataclass
class State:
    """All that the next step of a training needs."""

    net: nn.Module
    recipe: Recipe
    seed: int
    generator: torch.Generator
    optimiser: torch.optim.Adam
    average: AveragedModel
    best: dict[str, Tensor] = field(default_factory=dict)
    step: int = 0
    best_step: int = 0
    least: list[float] = field(default_factory=list)  # the losses of the parts, where their mean was least
    waited: int = 0
    seconds: float = 0.0
    history: dict[str, list[float]] = field(
        default_factory=lambda: {"step": [], "loss": [], "held_out": [], "rate": []}
    )

    @classmethod
    def begin(cls, net: nn.Module, recipe: Recipe, seed: int, device: torch.device) -> "State":
        """Return the state before the first step."""
        net.requires_grad_(True).train()
        optimiser = torch.optim.Adam(net.parameters(), lr=recipe.rate)

        def lerp(average: Tensor, weight: Tensor, n: Tensor | int) -> Tensor:
            return average.lerp(weight, 1 - min(recipe.average, float((1 + n) / (10 + n))))

        average = AveragedModel(net, avg_fn=lerp).eval()
        return cls(net, recipe, seed, rng.seeded(seed, device), optimiser, average)

    def rate(self) -> float:
        """Return the learning rate of the next step."""
        if self.recipe.schedule == "constant":
            return self.recipe.rate
        return self.recipe.rate * 0.5 * (1 + math.cos(math.pi * self.step / self.recipe.steps))

    def advance(self, loss: Loss, samples: Tensor, steps: int) -> None:
        """Make some optimiser steps."""
        totals: dict[str, Tensor] = {}
        for _ in range(steps):
            for group in self.optimiser.param_groups:
                group["lr"] = self.rate()
            rows = torch.randint(len(samples), (self.recipe.batch,), generator=self.generator, device=samples.device)
            terms = self.terms(loss, samples[rows])
            self.optimiser.zero_grad()
            terms["loss"].backward()
            if self.recipe.clip is not None:
                nn.utils.clip_grad_norm_(self.net.parameters(), self.recipe.clip)
            self.optimiser.step()
            self.average.update_parameters(self.net)
            totals = {name: value.detach() + totals.get(name, 0.0) for name, value in terms.items()}
            self.step += 1
        for name, total in totals.items():
            self.history.setdefault(name, []).append(float(total) / steps)
        self.history["step"].append(float(self.step))
        self.history["rate"].append(self.rate())

    def terms(self, loss: Loss, x: Tensor) -> dict[str, Tensor]:
        """Return the loss of a batch, and its parts where it has some."""
        if isinstance(loss, DetailedLoss):
            return loss.terms(self.net, x, progress=self.step / self.recipe.steps, generator=self.generator)
        return {"loss": loss.loss(self.net, x, generator=self.generator)}

    def evaluate(self, loss: Loss, held: Tensor, floor: float) -> None:
        """Judge the averaged weights on the held-out samples, and keep them if none were better."""
        losses = self._part_losses(loss, held)
        value = statistics.fmean(losses)
        self.history["held_out"].append(value)
        for name, last in (("training", self.history["loss"][-1]), ("held-out", value)):
            if not floor <= last < math.inf:
                raise DivergenceError.at(self.step, name, last, floor, self.history)
        if not self.least or value < statistics.fmean(self.least):
            self.least = losses
        if self._as_good_as_best(losses) or self.recipe.patience is None:
            self.best = {name: tensor.clone() for name, tensor in self.average.module.state_dict().items()}
            self.best_step, self.waited = self.step, 0
        else:
            self.waited += 1

    def _part_losses(self, loss: Loss, held: Tensor) -> list[float]:
        """Return the losses of parts of the held-out samples, with the same random numbers every time."""
        judged, generator = self.average.module, rng.seeded(0, held.device)
        parts = held.tensor_split(max(1, min(MAX_PARTS, len(held) // MIN_PART_ROWS)))
        return [
            sum(float(loss.loss(judged, part, generator=generator).detach()) for _ in range(DRAWS_PER_PART))
            / DRAWS_PER_PART
            for part in parts
        ]

    def _as_good_as_best(self, losses: list[float]) -> bool:
        """Return whether losses of the parts are the least, up to a standard error or a share of what was gained."""
        behind = [mine - best for mine, best in zip(losses, self.least, strict=True)]
        error = statistics.stdev(behind) / math.sqrt(len(losses)) if len(losses) > 1 else 0.0
        least = statistics.fmean(self.least)
        gained = self.history["held_out"][0] - least
        return statistics.fmean(losses) - least <= max(error, TIE_SHARE * gained)
