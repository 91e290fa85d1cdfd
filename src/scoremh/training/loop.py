"""The loop: steps, looks at held-out samples, and checkpoints."""

import json
import math
import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from scoremh._shared import checks, rng
from scoremh._shared.files import fingerprint, reading, require_file, require_same, save_tensors
from scoremh._shared.progress import progress_bar
from scoremh.training.fits import Fit, versions
from scoremh.training.recipe import DetailedLoss, DivergenceError, Loss, Recipe

SAVE_SECONDS = 10.0  # between two checkpoints
TIE = 0.02  # held-out losses this near, as a share of what was gained since the first, are equal, and the later wins
HELD = 5000  # samples held out at most
PARTS, SMALLEST = 20, 8  # of the held-out samples, at most, and samples in a part: their losses say how sure a look is
LOOKS = 2  # draws of a loss's random numbers on every part
NUMBERS = ("seed", "step", "best_step", "least", "waited", "seconds", "history")


def train(
    net: nn.Module,
    loss: Loss,
    samples: Tensor,
    *,
    floor: float = -math.inf,
    recipe: Recipe | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
    checkpoint: str | Path | None = None,
) -> Fit:
    """Train a network, in place, to the least held-out loss.

    Args:
        net: The network; its weights are changed.
        loss: What is minimised.
        samples: What to draw batches from, `(sample, *event)`; some are held out.
        floor: A held-out loss below this is taken for one without a bound.
        recipe: How to train.
        generator: Source of randomness.
        progress: Show a progress bar with the losses and the rate.
        checkpoint: A file to write to every ten seconds. The same call with the same file goes on from there, and ends
            with the same weights as one that was never interrupted.

    Returns:
        The network with its best averaged weights, and its history.
    """
    checks.events(samples, "samples")
    recipe = recipe or Recipe()
    state = _State.begin(net, recipe, rng.seeds(1, generator)[0], samples.device)
    what = {"net": str(net), "loss": checks.named(loss), "recipe": asdict(recipe), "samples": fingerprint(samples)}
    header = what | {"versions": versions()}
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None:
        require_file(path)
    if path is not None and path.exists():
        state.load(path, header, any_seed=generator is None)
    kept, held = split(samples, recipe, state.seed)
    with torch.enable_grad(), progress_bar(recipe.steps, "training", unit="steps", show=progress) as tick:
        tick(state.step, "")
        saved = time.monotonic()
        while state.step < recipe.steps and (recipe.patience is None or state.waited < recipe.patience):
            steps = min(recipe.check_every, recipe.steps - state.step)
            started = time.monotonic()
            with rng.layers(state.seed + 1 + state.step):  # another stream than that of the batches
                state.advance(loss, kept, steps)
            state.look(loss, held, floor)
            state.seconds += time.monotonic() - started
            last = {name: values[-1] for name, values in state.history.items()}
            tick(steps, f"loss {last['loss']:.4g}, held out {last['held_out']:.4g}, rate {last['rate']:.2g}")
            if path is not None and time.monotonic() - saved > SAVE_SECONDS:
                state.save(path, header)
                saved = time.monotonic()
    if path is not None:
        state.save(path, header)
    net.load_state_dict(state.best)
    net.requires_grad_(False).eval()
    return Fit(net, state.history, recipe, state.seed, state.seconds, state.best_step)


def split(samples: Tensor, recipe: Recipe, seed: int) -> tuple[Tensor, Tensor]:
    """Return what `train` draws batches from, and what it holds out."""
    order = torch.randperm(len(samples), generator=rng.seeded(seed, torch.device("cpu"))).to(samples.device)
    held = min(HELD, math.ceil(recipe.held_out * len(samples)))
    if held == len(samples):
        fix = "Bring more samples."
        raise ValueError(checks.message("samples to train on and to hold out", f"{len(samples)} samples", fix))
    return samples[order[held:]], samples[order[:held]]


@dataclass
class _State:
    """All that the next step needs."""

    net: nn.Module
    recipe: Recipe
    seed: int
    generator: torch.Generator
    optimiser: torch.optim.Adam
    average: AveragedModel
    best: dict[str, Tensor] = field(default_factory=dict)
    step: int = 0
    best_step: int = 0
    least: list[float] = field(default_factory=list)  # the losses of the parts, at the look with the least mean
    waited: int = 0
    seconds: float = 0.0
    history: dict[str, list[float]] = field(
        default_factory=lambda: {"step": [], "loss": [], "held_out": [], "rate": []}
    )

    @classmethod
    def begin(cls, net: nn.Module, recipe: Recipe, seed: int, device: torch.device) -> "_State":
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

    def look(self, loss: Loss, held: Tensor, floor: float) -> None:
        """Judge the averaged weights on the held-out samples, and keep them if none were better."""
        judged = self.average.module
        generator = rng.seeded(0, held.device)
        parts = held.tensor_split(max(1, min(PARTS, len(held) // SMALLEST)))
        losses = [
            sum(float(loss.loss(judged, part, generator=generator).detach()) for _ in range(LOOKS)) / LOOKS
            for part in parts
        ]
        value = statistics.fmean(losses)
        self.history["held_out"].append(value)
        for name, last in (("training", self.history["loss"][-1]), ("held-out", value)):
            if not floor <= last < math.inf:
                raise _runaway(self.step, name, last, floor, self.history)
        if not self.least or value < statistics.fmean(self.least):
            self.least = losses
        least = statistics.fmean(self.least)
        behind = [mine - best for mine, best in zip(losses, self.least, strict=True)]
        error = statistics.stdev(behind) / math.sqrt(len(parts)) if len(parts) > 1 else 0.0
        if value - least <= max(error, TIE * (self.history["held_out"][0] - least)) or self.recipe.patience is None:
            self.best = {name: tensor.clone() for name, tensor in judged.state_dict().items()}
            self.best_step, self.waited = self.step, 0
        else:
            self.waited += 1

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors of the state, by part."""
        moments = self.optimiser.state_dict()["state"]
        return {
            "net": self.net.state_dict(),
            "average": self.average.state_dict(),
            "best": self.best,
            "adam": {f"{i}.{name}": value for i, values in moments.items() for name, value in values.items()},
            "generator": {"state": self.generator.get_state()},
        }

    def save(self, path: Path, header: dict[str, Any]) -> None:
        """Write a checkpoint."""
        flat = {f"{part}.{name}": t for part, tensors in self.tensors().items() for name, t in tensors.items()}
        numbers = {name: getattr(self, name) for name in NUMBERS}
        metadata = {"header": json.dumps(header), "numbers": json.dumps(numbers)}
        save_tensors(path, flat, metadata)

    def load(self, path: Path, header: dict[str, Any], *, any_seed: bool) -> None:
        """Go on from a checkpoint of the same training."""
        parts: dict[str, dict[str, Tensor]] = {name: {} for name in self.tensors()}
        with reading(path, "a checkpoint of a training", "Name another file, or delete this one.") as file:
            metadata = file.metadata()
            found, numbers = json.loads(metadata["header"]), json.loads(metadata["numbers"])
            for key in file.keys():  # noqa: SIM118  # a file, not a dict
                part, name = key.split(".", 1)
                parts[part][name] = file.get_tensor(key)
        same = {key: value for key, value in header.items() if key != "versions"}
        seed = {} if any_seed else {"seed": self.seed}
        require_same(same | seed, found | {"seed": numbers["seed"]}, path, "training", "file")
        self.net.load_state_dict(parts["net"])
        self.average.load_state_dict(parts["average"])
        self.best = parts["best"]
        options = self.optimiser.state_dict()
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in parts["adam"].items():
            moments.setdefault(int(name.split(".")[0]), {})[name.split(".", 1)[1]] = value
        self.optimiser.load_state_dict({"state": moments, "param_groups": options["param_groups"]})
        self.generator.set_state(parts["generator"]["state"])
        for name, value in numbers.items():
            setattr(self, name, value)


def _runaway(step: int, name: str, value: float, floor: float, history: dict[str, list[float]]) -> DivergenceError:
    if value < floor:
        expected, got = f"a {name} loss above {floor:.4g}", f"{value:.4g} at step {step}"
        fix = (
            "It has no least value where the samples have no width in some direction. Use DenoisingScoreMatching or "
            "MultilevelDenoising, or add noise to the samples."
        )
    else:
        expected, got = f"a finite {name} loss", f"{value} at step {step}"
        fix = "Lower the rate, set clip, or look for outliers among the samples, and for places without a finite score."
    return DivergenceError(checks.message(expected, got, fix), step, value, history)
