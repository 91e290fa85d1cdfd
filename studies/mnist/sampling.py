"""Images from noise: annealed chains with and without an accept step, at equal score calls."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from scoremh import Always, Learned, LineIntegral, ScoreFit, anneal, annealing, metropolis_hastings
from scoremh.acceptance import Rule
from scoremh.proposals import ScaledMALA
from scoremh.types import Kernel
from studies.framework import Record
from studies.mnist.images import WEIGHTS, mnist_test, score_file, train_score
from studies.mnist.judging import judged, subset
from studies.mnist.levels import LevelAcceptanceFit
from studies.mnist.networks import acceptance_network

HIGH, LOW = 10.0, 0.05  # first and last noise level, for pixels in [-1, 1]
GROUPS = 10  # of levels, after each of which the lag of the chains is measured
QUICK_IMAGES = 8000  # of the test images, which the score of a quick preset learns from
LAG_IMAGES = 64  # real ones that it is compared with


class Method(NamedTuple):
    """An acceptance rule, and the number of its steps at the cost of one with Simpson's rule."""

    label: str
    steps: int
    learned: str | None = None  # file of the acceptance


METHODS = {
    "ula": Method("ULA", 2),
    "batch_ula": Method("ULA, one step for all", 2),
    "simpson": Method("MALA, Simpson", 1),
    "literal": Method("MALA, Siamese as printed", 2, "mnist-literal"),
    "free": Method("MALA, Siamese, free", 2, "mnist-free"),
    "antisymmetric": Method("MALA, Siamese, antisymmetric", 2, "mnist-antisymmetric"),
    "potential": Method("MALA, potential", 2, "mnist-potential"),
}


@dataclass(frozen=True)
class Plan:
    """How images are drawn.

    Args:
        method: One of `METHODS`.
        tau: The snr of `ScaledMALA`.
        levels: Number of noise levels.
        final: Steps at the last level of a rule that costs two score calls a step; others make more.
        predictor: Whether a step of the reverse diffusion leads from level to level.
    """

    method: str
    tau: float
    levels: int = 100
    final: int = 50
    predictor: bool = False

    @property
    def noise_levels(self) -> list[float]:
        """The noise levels, from high to low."""
        return annealing.geometric(HIGH, LOW, self.levels)


@dataclass(frozen=True, eq=False)
class Sampled:
    """What a plan gave: images without their last noise, and what is known of the way.

    Args:
        images: One per chain.
        descent: Acceptance rates while descending, over tenths of the levels.
        last: Acceptance rate of the steps at the last level.
        lags: Noise that chains carry over that of real images with noise, after every tenth of the levels.
        calls: Score calls per chain.
    """

    images: Tensor
    descent: list[float]
    last: float
    lags: list[float]
    calls: float

    @property
    def record(self) -> Record:
        """The record to keep."""
        first, middle = self.lags[0], self.lags[len(self.lags) // 2]
        return {
            "acceptance": sum(self.descent) / len(self.descent),
            "first_acceptance": self.descent[0],
            "descent_acceptance": self.descent[-1],
            "last_acceptance": self.last,
            "first_lag": first,
            "middle_lag": middle,
            "lag": self.lags[-1],
            "calls": self.calls,
        }


@cache
def acceptance_fit(name: str) -> LevelAcceptanceFit:
    """Return a learned acceptance that is kept."""
    return LevelAcceptanceFit.load(WEIGHTS / f"{name}.safetensors", acceptance_network(name.removeprefix("mnist-")))


def rule(method: str, level: float, tau: float) -> Rule:
    """Return the acceptance rule of a method at a noise level."""
    learned = METHODS[method].learned
    if learned is not None:
        return Learned(acceptance_fit(learned).at(level, tau))
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


def draw(model: ScoreFit, plan: Plan, n: int, seed: int, real: Tensor) -> Sampled:
    """Draw images from noise as planned.

    Args:
        model: Scores at all noise levels.
        plan: How.
        n: Number of images.
        seed: Random seed.
        real: Images that the noise of the chains is compared with.
    """
    draws = torch.Generator().manual_seed(seed)
    x = HIGH * torch.randn(n, *real.shape[1:], generator=draws)
    real, steps = real[:LAG_IMAGES], METHODS[plan.method].steps
    descent, lags, calls = [], [], 0

    def kernel_at(level: float) -> Kernel:
        return metropolis_hastings(model.at(level), ScaledMALA(plan.tau), rule(plan.method, level, plan.tau))

    def moved(x: Tensor, levels: Sequence[float], steps: int) -> tuple[Tensor, list[float], int]:
        """Return images after these levels, acceptance rates and score calls."""
        if plan.method == "batch_ula":
            calls = n * steps * len(levels)
            return batch_ula(model, levels, x, steps=steps, tau=plan.tau, draws=draws), [1.0] * len(levels), calls
        found = anneal(kernel_at, levels, x, steps_per_level=steps, measure_noise=False, generator=draws)
        return found.draws, list(found.acceptance_rates), found.score_calls

    previous = None
    for group in grouped(plan.noise_levels):
        rates: list[float] = []
        for levels in [[level] for level in group] if plan.predictor else [group]:
            if plan.predictor and previous is not None:
                x, calls = reverse_step(model, x, previous, levels[0], draws), calls + n
            x, accepted, more = moved(x, levels, steps)
            calls, previous, rates = calls + more, levels[-1], rates + accepted
        descent.append(sum(rates) / len(rates))
        lags.append(lag(model, x, real, group[-1]))
    last = math.nan
    if plan.final:
        x, (last,), more = moved(x, [LOW], steps * plan.final)
        calls += more
        lags[-1] = lag(model, x, real, LOW)
    with torch.inference_mode():
        return Sampled((x + LOW**2 * model.net(x, LOW)).clone(), descent, last, lags, calls / n)


def grouped(levels: Sequence[float]) -> list[list[float]]:
    """Return the levels in groups, as many as the lag is measured after."""
    size = -(-len(levels) // GROUPS)
    return [list(levels[i : i + size]) for i in range(0, len(levels), size)]


def reverse_step(model: ScoreFit, x: Tensor, high: float, low: float, draws: torch.Generator) -> Tensor:
    """Return points of a lower noise level by a step of the reverse diffusion (Song et al. 2021, ancestral)."""
    gap = high**2 - low**2
    with torch.inference_mode():
        noise = torch.randn(x.shape, generator=draws) * low / high * math.sqrt(gap)
        lower: Tensor = x + gap * model.net(x, high) + noise
        return lower.clone()


@torch.inference_mode()
def lag(model: ScoreFit, x: Tensor, real: Tensor, level: float) -> float:
    """Return rho: the score's root mean square at chains, over that at real images with noise of this level."""
    noise = torch.randn(real.shape, generator=torch.Generator().manual_seed(1))
    here, there = (model.net(y, level).square().mean().sqrt() for y in (x, real + level * noise))
    return float(here / there)


def prepare(score_steps: int, folder: Path) -> None:
    """Train a small score on test images if the preset requires it; other presets use the kept score."""
    if score_steps:
        train_score(mnist_test()[:QUICK_IMAGES], score_steps, folder / "score.safetensors", progress=True)


def reference(folder: Path, n: int, seed: int) -> Tensor:
    """Return as many real images, of those that the score has not seen."""
    unseen = mnist_test()[QUICK_IMAGES:] if score_file(folder).parent == folder else mnist_test()
    return subset(unseen, n, seed)


def drawn_and_judged(plan: Plan, n: int, seed: int, folder: Path) -> tuple[Sampled, Record]:
    """Return images drawn as planned, and all that is kept of them."""
    torch.set_num_threads(1)
    began = time.process_time()
    found = draw(ScoreFit.load(score_file(folder)), plan, n, seed, reference(folder, LAG_IMAGES, 0))
    seconds = time.process_time() - began
    return found, judged(found.images, reference(folder, n, seed)) | found.record | {"cpu_seconds": seconds}
