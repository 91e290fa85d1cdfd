"""Which sampler? Each at its own setting and at equal score calls, by many distances beside their floors."""

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from scoremh import (
    Always,
    LineIntegral,
    ScoreFit,
    anneal,
    annealing,
    datasets,
    hamiltonian,
    metropolis_hastings,
)
from scoremh.proposals import ScaledMALA
from scoremh.types import Kernel
from studies import plots
from studies.framework import Cell, Record, Records, Study, grid
from studies.framework.tables import markdown, number
from studies.mnist import by_level, judging, sampling
from studies.mnist.by_level import LEVELS, AtLevel
from studies.mnist.images import mnist_test, score_file
from studies.mnist.sampling import HIGH, LOW, reverse_step
from studies.mnist.tau import Floor

ULA_TAU, MALA_TAU, CORRECTOR_TAU = 0.5, 0.7, 0.2  # near the best of each by mnist-tau, with another seed
GATE = 0.3  # noise level below which no move is judged, for the gated sampler
LEAP, LEAPS = 0.7, 2  # step over the noise level, and steps, of Hamiltonian moves
SHOWN = 16
Found = tuple[Tensor, float]
"""Images with the noise of the last level, and score calls per chain."""


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (2,)
    n: int = 500  # images
    levels: int = 100  # of a sampler that costs three calls a level; others have more or fewer
    score_steps: int = 0  # of a score of its own; 0 for the one that is kept
    floor_repeats: int = 5


PRESETS = {
    "quick": Config((11,), n=40, levels=30, score_steps=2000),
    "paper": Config(),
}


def annealed(model: ScoreFit, kernel_at: Callable[[float], Kernel], config: Config, draws: torch.Generator) -> Found:
    """Return images by annealing with a step of some kernel at every level."""
    levels = annealing.geometric(HIGH, LOW, config.levels)
    found = anneal(kernel_at, levels, noise(config.n, draws), steps_per_level=1, watch=False, generator=draws)
    return found.draws, found.score_calls / config.n


def noise(n: int, draws: torch.Generator) -> Tensor:
    """Return images of noise of the highest level."""
    return HIGH * torch.randn(n, 1, 28, 28, generator=draws)


def ula(model: ScoreFit, config: Config, draws: torch.Generator) -> Found:
    """Two steps of ULA a level."""
    levels = annealing.geometric(HIGH, LOW, config.levels)

    def kernel_at(level: float) -> Kernel:
        return metropolis_hastings(model.at(level), ScaledMALA(ULA_TAU), Always())

    found = anneal(kernel_at, levels, noise(config.n, draws), steps_per_level=2, watch=False, generator=draws)
    return found.draws, found.score_calls / config.n


def simpson(model: ScoreFit, config: Config, draws: torch.Generator) -> Found:
    """A step of MALA with Simpson's rule a level."""
    return annealed(
        model, lambda s: metropolis_hastings(model.at(s), ScaledMALA(MALA_TAU), LineIntegral()), config, draws
    )


def exact(model: ScoreFit, config: Config, draws: torch.Generator) -> Found:
    """A step of MALA with the exact rule a level."""
    rule = LineIntegral("exact")
    return annealed(model, lambda s: metropolis_hastings(model.at(s), ScaledMALA(MALA_TAU), rule), config, draws)


def gated(model: ScoreFit, config: Config, draws: torch.Generator) -> Found:
    """MALA with Simpson's rule above a noise level, ULA below it."""

    def kernel_at(level: float) -> Kernel:
        tau, rule = (MALA_TAU, LineIntegral()) if level >= GATE else (ULA_TAU, Always())
        return metropolis_hastings(model.at(level), ScaledMALA(tau), rule)

    return annealed(model, kernel_at, config, draws)


def leaping(model: ScoreFit, config: Config, draws: torch.Generator) -> Found:
    """A Hamiltonian move a level."""
    return annealed(model, lambda s: hamiltonian(model.at(s), LEAP * s, LEAPS, LineIntegral()), config, draws)


def flow(model: ScoreFit, config: Config, draws: torch.Generator) -> Found:
    """The probability flow by Heun's method, two calls a level."""
    levels = annealing.karras(HIGH, LOW, round(1.5 * config.levels))
    return annealing.flow(model.at, levels, noise(config.n, draws)), 2.0 * (len(levels) - 1)


def predictor(model: ScoreFit, config: Config, draws: torch.Generator) -> Found:
    """Steps of the reverse diffusion, one call each."""
    levels, x = annealing.geometric(HIGH, LOW, 3 * config.levels), noise(config.n, draws)
    for high, low in itertools.pairwise(levels):
        x = reverse_step(model, x, high, low, draws)
    return x, float(len(levels) - 1)


def corrected(model: ScoreFit, config: Config, draws: torch.Generator) -> Found:
    """Steps of the reverse diffusion, each with a step of ULA after it."""
    levels, x = annealing.geometric(HIGH, LOW, config.levels), noise(config.n, draws)
    corrector = annealing.Corrector(model, lambda _: ScaledMALA(CORRECTOR_TAU), Always())
    for high, low in itertools.pairwise(levels):
        x = corrector(reverse_step(model, x, high, low, draws), low, generator=draws)
    return x, 3.0 * (len(levels) - 1)


SAMPLERS: dict[str, tuple[str, Callable[[ScoreFit, Config, torch.Generator], Found]]] = {
    "ula": (f"ULA, tau {ULA_TAU}", ula),
    "simpson": (f"MALA, Simpson, tau {MALA_TAU}", simpson),
    "exact": (f"MALA, exact rule, tau {MALA_TAU}", exact),
    "gated": (f"MALA above noise {GATE}, ULA below", gated),
    "hamiltonian": ("Hamiltonian, Simpson", leaping),
    "flow": ("probability flow", flow),
    "predictor": ("reverse diffusion", predictor),
    "corrected": (f"reverse diffusion and ULA, tau {CORRECTOR_TAU}", corrected),
}


class Drawn(Cell, kind="drawn"):
    """Images by a sampler."""

    sampler: str
    seed: int

    @property
    def file(self) -> str:
        """Name of the file with its images."""
        return f"{self.sampler}-{self.seed}.safetensors"

    def measure(self, config: Config, folder: Path) -> Record:
        torch.set_num_threads(1)
        model, draws = ScoreFit.load(score_file(folder)), torch.Generator().manual_seed(self.seed)
        began = time.process_time()
        x, calls = SAMPLERS[self.sampler][1](model, config, draws)
        with torch.inference_mode():
            images = (x + LOW**2 * model.net(x, LOW)).clone()
        seconds = time.process_time() - began
        save_file({"images": images.contiguous()}, folder / self.file)
        found = judging.judged(images, sampling.reference(folder, config.n, self.seed))
        return found | {"nearest": nearest(images, learned_from(folder)), "calls": calls, "cpu_seconds": seconds}


class Nearest(Cell, kind="nearest"):
    """How near real images that were not learned from are to those that were."""

    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        return {"nearest": nearest(sampling.reference(folder, config.n, self.seed), learned_from(folder))}


def learned_from(folder: Path) -> Tensor:
    """Return the images that the score has learned from."""
    own = score_file(folder).parent == folder
    return mnist_test()[: sampling.QUICK_IMAGES] if own else datasets.mnist("train")


def nearest(images: Tensor, known: Tensor) -> float:
    """Return the median distance of images to the nearest that was learned from."""
    flat, others = images.flatten(1), known.flatten(1)
    least = torch.stack([torch.cdist(flat, part).amin(1) for part in others.split(10_000)]).amin(0)
    return float(least.median()) if bool(least.isfinite().all()) else math.inf


def stages(config: Config) -> list[list[Cell]]:
    """Return what real images have, then all samplers."""
    first = [*grid(Floor, n=(config.n,)), *grid(Nearest, seed=config.seeds), *grid(AtLevel, level=LEVELS)]
    return [first, grid(Drawn, seed=config.seeds, sampler=SAMPLERS)]


def prepare(config: Config, folder: Path) -> None:
    """Train a score where the preset has one of its own."""
    sampling.prepare(config.score_steps, folder)


def table(records: Records) -> str:
    """Return all distances, with those of real images in the first row."""
    columns = judging.DISTANCES | {"nearest": "nearest learned image"}
    real = records.kinds["floor"][0] | records.kinds["nearest"][0]
    rows = {"real images": {name: number(real[key]) for key, name in columns.items()} | {"score calls": ""}}
    for key, (label, _) in SAMPLERS.items():
        found = records.where("drawn", sampler=key)
        if not found:
            continue  # not computed yet
        means = {c: sum(r[c] for r in found) / len(found) for c in columns if all(r[c] is not None for r in found)}
        rows[label] = {name: number(means[c]) if c in means else "diverged" for c, name in columns.items()}
        rows[label]["score calls"] = f"{found[0]['calls']:.0f}"
    return markdown(pd.DataFrame(rows).T, "sampler")


def best(records: Records, key: str) -> str:
    """Return the label of the sampler with the least distance."""
    found = [record for record in records.kinds["drawn"] if record[key] is not None]
    return SAMPLERS[min(found, key=lambda record: record[key])["sampler"]][0]


def ladder(dimension: int = 784, rate: float = 0.2) -> int:
    """Return how many levels replica exchange would need for its neighbours to swap at a rate, by noise alone.

    Between N(0, s^2 I) and N(0, (1 + e)^2 s^2 I) the log ratio of a swap is nearly normal with mean -m and variance 2m,
    m = 2 e^2 d, so that swaps are accepted at the rate 2 Phi(-sqrt(m / 2)).
    """
    gap = -NormalDist().inv_cdf(rate / 2) / math.sqrt(dimension)
    return 1 + math.ceil(math.log(HIGH / LOW) / gap)


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw images of every sampler, and real ones."""
    cells = [Drawn.of(record) for record in records.kinds["drawn"] if record["seed"] == records.settings["seeds"][0]]
    panels = {SAMPLERS[cell.sampler][0]: load_file(folder / cell.file)["images"][:SHOWN] for cell in cells}
    panels["real"] = sampling.reference(folder, SHOWN, 0)
    plots.image_panels(panels, docs / "mnist-panel.png", columns=3)


STUDY = Study(
    "mnist-panel",
    "MNIST: which sampler, at equal score calls",
    PRESETS,
    stages,
    (Floor, Nearest, AtLevel, Drawn),
    picture,
    globals() | vars(by_level),
    prepare=prepare,
    page="images.md",
    partial=True,
    shows_draws=True,
)
