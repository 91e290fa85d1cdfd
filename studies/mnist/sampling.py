"""Images from noise: annealed chains with and without an accept step, at equal score calls."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from scoremh import Always, Learned, LineIntegral, ScoreFit, anneal, annealing, metropolis_hastings
from scoremh.acceptance import Rule
from scoremh.proposals import ScaledMALA
from scoremh.types import Kernel
from studies.framework import Record
from studies.mnist.levels import LevelAcceptanceFit
from studies.mnist.networks import SiameseAcceptance
from studies.mnist.source import WEIGHTS, images

HIGH, LOW = 10.0, 0.05  # first and last noise level, for pixels in [-1, 1]
SCORE = WEIGHTS / "mnist-score.safetensors"
LAG_IMAGES = 64  # real ones that the noise of chains is compared with


class Method(NamedTuple):
    """An acceptance rule, and the number of its steps at the cost of one with Simpson's rule."""

    label: str
    steps: int = 2
    learned: bool = False


METHODS = {
    "ula": Method("ULA"),
    "batch_ula": Method("ULA, one step for all"),
    "simpson": Method("MALA, Simpson", steps=1),
    "literal": Method("MALA, Siamese as printed", learned=True),
    "free": Method("MALA, Siamese, free", learned=True),
    "antisymmetric": Method("MALA, Siamese, antisymmetric", learned=True),
}


class Plan(NamedTuple):
    """One of `METHODS`, the snr of `ScaledMALA`, noise levels, and steps at the last of them."""

    method: str
    tau: float
    levels: int = 100
    final: int = 50  # of a rule that costs two score calls a step; others make more


@cache
def kept_score() -> ScoreFit:
    """Return the score of MNIST that is kept."""
    return ScoreFit.load(SCORE)


@cache
def acceptance_fit(name: str) -> LevelAcceptanceFit:
    """Return a learned acceptance that is kept."""
    return LevelAcceptanceFit.load(WEIGHTS / f"mnist-{name}.safetensors", SiameseAcceptance(literal=name == "literal"))


def rule(method: str, level: float, tau: float) -> Rule:
    """Return the acceptance rule of a method at a noise level."""
    if METHODS[method].learned:
        return Learned(acceptance_fit(method).at(level, tau))
    return Always() if method == "ula" else LineIntegral("simpson")


def batch_ula(
    model: ScoreFit, levels: Sequence[float], x: Tensor, *, steps: int, tau: float, draws: torch.Generator
) -> Tensor:
    """Return images by annealed ULA with one step for all chains, from the mean norm of their scores.

    This is how Song et al. (2021) have it. No accept step could stand behind it: a chain's step depends on all chains.
    """
    with torch.inference_mode():
        for level in levels:
            for _ in range(steps):
                score = model.net(x, level)
                h = 2 * tau**2 * x[0].numel() / score.flatten(1).norm(dim=1).mean() ** 2
                x = x + h * score + (2 * h).sqrt() * torch.randn(x.shape, generator=draws)
        return x.clone()


def draw(model: ScoreFit, plan: Plan, n: int, seed: int, real: Tensor) -> tuple[Tensor, Record]:
    """Return n images from noise, without their last noise, and what is known of the way.

    The record has the mean acceptance on the way down, rho (the noise of the chains over that of real images with the
    noise of the last level), and score calls per chain.
    """
    draws = torch.Generator().manual_seed(seed)
    x, steps = HIGH * torch.randn(n, *real.shape[1:], generator=draws), METHODS[plan.method].steps

    def kernel_at(level: float) -> Kernel:
        return metropolis_hastings(model.at(level), ScaledMALA(plan.tau), rule(plan.method, level, plan.tau))

    def moved(x: Tensor, levels: Sequence[float], steps: int) -> tuple[Tensor, float, int]:
        """Return images after these levels, the mean acceptance rate and score calls."""
        if plan.method == "batch_ula":
            return batch_ula(model, levels, x, steps=steps, tau=plan.tau, draws=draws), 1.0, n * steps * len(levels)
        found = anneal(kernel_at, levels, x, steps_per_level=steps, measure_noise=False, generator=draws)
        return found.draws, float(sum(found.acceptance_rates) / len(levels)), found.score_calls

    x, rate, calls = moved(x, annealing.geometric(HIGH, LOW, plan.levels), steps)
    x, _, more = moved(x, [LOW], steps * plan.final)
    record = {"acceptance": rate, "lag": lag(model, x, real[:LAG_IMAGES], LOW), "calls": (calls + more) / n}
    with torch.inference_mode():
        return (x + LOW**2 * model.net(x, LOW)).contiguous().clone(), record


@torch.inference_mode()
def lag(model: ScoreFit, x: Tensor, real: Tensor, level: float) -> float:
    """Return rho: the score's root mean square at chains, over that at real images with noise of this level."""
    noise = torch.randn(real.shape, generator=torch.Generator().manual_seed(1))
    here, there = (model.net(y, level).square().mean().sqrt() for y in (x, real + level * noise))
    return float(here / there)


def reference(n: int, seed: int) -> Tensor:
    """Return random test images, which the score has not seen."""
    real = images("test")
    return real[torch.randperm(len(real), generator=torch.Generator().manual_seed(seed))[:n]]
