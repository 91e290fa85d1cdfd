"""The loop: steps, checks of the held-out loss, and checkpoints."""

import math
import time
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from scoremh._shared import checks, rng
from scoremh._shared.files import fingerprint
from scoremh._shared.probe import Probe
from scoremh._shared.progress import progress_bar
from scoremh.training.checkpoint import Checkpoint
from scoremh.training.fit import Fit, versions
from scoremh.training.losses import Loss, ProbedLoss
from scoremh.training.recipe import Recipe
from scoremh.training.state import State

SAVE_SECONDS = 10.0  # between two checkpoints
MAX_HELD_OUT_ROWS = 5000


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
        net: Network to train; its weights are changed.
        loss: Loss to minimise.
        samples: Samples to draw batches from, `(sample, *event)`; some are held out.
        floor: Held-out loss below which it is taken for one that has no least value.
        recipe: How to train.
        generator: Random number generator; the same seed gives the same weights.
        progress: Show a progress bar.
        checkpoint: File to write a checkpoint to every ten seconds. The same call with the same file resumes the
            training, and ends with the same weights as one that was never interrupted.

    Returns:
        The network with its best averaged weights, and its history.
    """
    checks.events(samples, "samples")
    recipe = recipe or Recipe()
    state = State.begin(net, recipe, rng.seeds(1, generator)[0], samples.device)
    what = {"net": str(net), "loss": checks.named(loss), "recipe": asdict(recipe), "samples": fingerprint(samples)}
    probe = loss.probe if isinstance(loss, ProbedLoss) else Probe()
    path = None if checkpoint is None else Path(checkpoint)
    file = Checkpoint(path, what | {"versions": versions()}, probe, any_seed=generator is None)
    file.resume(state)
    kept, held = split(samples, recipe, state.seed)
    with torch.enable_grad(), progress_bar(recipe.steps, "training", unit="steps", show=progress) as tick:
        tick(state.step, "")
        while state.step < recipe.steps and (recipe.patience is None or state.waited < recipe.patience):
            steps = min(recipe.check_every, recipe.steps - state.step)
            started = time.monotonic()
            with rng.for_layers_of(net, state.seed + 1 + state.step):  # another stream than that of the batches
                state.advance(loss, kept, steps)
                state.evaluate(loss, held, floor)
            state.seconds += time.monotonic() - started
            last = {name: values[-1] for name, values in state.history.items()}
            tick(steps, f"loss {last['loss']:.4g}, held out {last['held_out']:.4g}, rate {last['rate']:.2g}")
            file.save(state, seconds=SAVE_SECONDS)
    file.save(state)
    net.load_state_dict(state.best)
    net.requires_grad_(False).eval()
    return Fit(net, state.history, recipe, state.seed, state.seconds, state.best_step)


def split(samples: Tensor, recipe: Recipe, seed: int) -> tuple[Tensor, Tensor]:
    """Return what `train` draws batches from, and what it holds out."""
    order = torch.randperm(len(samples), generator=rng.seeded(seed, torch.device("cpu"))).to(samples.device)
    held = min(MAX_HELD_OUT_ROWS, math.ceil(recipe.held_out * len(samples)))
    if held == len(samples):
        fix = "Bring more samples."
        raise ValueError(checks.message("samples to train on and to hold out", f"{len(samples)} samples", fix))
    return samples[order[held:]], samples[order[:held]]
