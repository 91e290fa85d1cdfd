"""Which sampler? Each at its own setting and at equal score calls, by many distances beside their floors."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from scoremh import ScoreFit
from studies import plots
from studies.framework import Cell, Claim, Record, Records, Study, grid, runner
from studies.framework.tables import markdown, mean, number, number_and_spread
from studies.mnist import by_level, judging, sampling
from studies.mnist.by_level import LEVELS, AtLevel
from studies.mnist.images import mnist_test, score_file
from studies.mnist.samplers import SAMPLERS, Choice, Start
from studies.mnist.sampling import HIGH, LOW
from studies.mnist.source import mnist
from studies.mnist.tau import Floor

SHOWN = 16


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (2, 3)
    n: int = 500  # images
    trial_seed: int = 12  # of the images that settings are chosen by
    trial_n: int = 100
    levels: int = 100  # of a sampler that costs three calls a level; others have more or fewer
    score_steps: int = 0  # of a score of its own; 0 for the one that is kept
    floor_repeats: int = 5


PRESETS = {
    "quick": Config((11,), n=40, trial_n=40, levels=30, score_steps=2000),
    "paper": Config(),
}


def images_of(sampler: str, choice: Choice, n: int, seed: int, config: Config, folder: Path) -> tuple[Tensor, Record]:
    """Return images by a sampler with a setting, without their last noise, and what they cost."""
    torch.set_num_threads(1)
    model, draws = ScoreFit.load(score_file(folder)), torch.Generator().manual_seed(seed)
    began, noise = time.process_time(), HIGH * torch.randn(n, 1, 28, 28, generator=draws)
    x, calls = SAMPLERS[sampler].draw(Start(model, noise, round(choice.levels * config.levels), draws), choice.value)
    with torch.inference_mode():
        images = (x + LOW**2 * model.net(x, LOW)).contiguous().clone()
    return images, {"calls": calls, "cpu_seconds": time.process_time() - began}


class Tried(Cell, kind="tried"):
    """A setting of a sampler, by few images of another seed."""

    sampler: str
    value: float

    def measure(self, config: Config, folder: Path) -> Record:
        choice = next(one for one in SAMPLERS[self.sampler].choices if one.value == self.value)
        images, cost = images_of(self.sampler, choice, config.trial_n, config.trial_seed, config, folder)
        return judging.judged(images, sampling.reference(folder, config.trial_n, config.trial_seed)) | cost


def chosen_setting(sampler: str, folder: Path) -> Choice:
    """Return the setting of a sampler with the least Frechet distance in the trials."""
    choices = SAMPLERS[sampler].choices
    if len(choices) == 1:
        return choices[0]
    found = {choice: runner.earlier(Tried(sampler, choice.value), folder)["frechet"] for choice in choices}
    return min(found, key=lambda choice: math.inf if found[choice] is None else found[choice])


class Drawn(Cell, kind="drawn"):
    """Images by a sampler."""

    sampler: str
    seed: int

    @property
    def file(self) -> str:
        """Name of the file with its images."""
        return f"{self.sampler}-{self.seed}.safetensors"

    def measure(self, config: Config, folder: Path) -> Record:
        choice = chosen_setting(self.sampler, folder)
        images, cost = images_of(self.sampler, choice, config.n, self.seed, config, folder)
        save_file({"images": images}, folder / self.file)
        found = judging.judged(images, sampling.reference(folder, config.n, self.seed))
        return found | {"nearest": nearest(images, learned_from(folder)), "value": choice.value} | cost


class Nearest(Cell, kind="nearest"):
    """How near real images that were not learned from are to those that were."""

    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        return {"nearest": nearest(sampling.reference(folder, config.n, self.seed), learned_from(folder))}


def learned_from(folder: Path) -> Tensor:
    """Return the images that the score has learned from."""
    own = score_file(folder).parent == folder
    return mnist_test()[: sampling.QUICK_IMAGES] if own else mnist("train")


def nearest(images: Tensor, known: Tensor) -> float:
    """Return the median distance of images to the nearest that was learned from."""
    flat, others = images.flatten(1), known.flatten(1)
    least = torch.stack([torch.cdist(flat, part).amin(1) for part in others.split(10_000)]).amin(0)
    return float(least.median()) if bool(least.isfinite().all()) else math.inf


def stages(config: Config) -> list[list[Cell]]:
    """Return what real images have and the settings that are tried, then all samplers."""
    first = [*grid(Floor, n=(config.n,)), *grid(Nearest, seed=config.seeds), *grid(AtLevel, level=LEVELS)]
    tried: list[Cell] = [
        Tried(name, choice.value)
        for name, sampler in SAMPLERS.items()
        for choice in sampler.choices
        if len(sampler.choices) > 1
    ]
    return [[*first, *tried], grid(Drawn, seed=config.seeds, sampler=SAMPLERS)]


def prepare(config: Config, folder: Path) -> None:
    """Train a score where the preset has one of its own."""
    sampling.prepare(config.score_steps, folder)


def label(records: Records, sampler: str) -> str:
    """Return the name of a sampler with the setting that was chosen."""
    return SAMPLERS[sampler].label.format(records.where("drawn", sampler=sampler)[0]["value"])


def shown(records: Records) -> list[str]:
    """Return the samplers that were computed."""
    return [name for name in SAMPLERS if records.where("drawn", sampler=name)]


def table(records: Records) -> str:
    """Return both distances of every sampler, with those of real images in the first row."""
    shown_here = {key: judging.DISTANCES[key] for key in ("w1", "frechet")}
    rows = {"real images": {name: number(records.kinds["floor"][0][key]) for key, name in shown_here.items()}}
    for sampler in shown(records):
        rows[label(records, sampler)] = {
            name: number_and_spread(records.values("drawn", key, sampler=sampler)) for key, name in shown_here.items()
        }
    return markdown(pd.DataFrame(rows).T, "sampler")


def best(records: Records, key: str) -> str:
    """Return the label of the sampler with the least distance, in the mean over seeds."""
    return label(records, min(shown(records), key=lambda sampler: mean(records.values("drawn", key, sampler=sampler))))


def accept_step_helps(records: Records) -> dict[str, bool]:
    """Return, by distance, whether the reverse diffusion is nearer with MALA's steps than with ULA's."""
    both = ("corrected_simpson", "corrected")
    found = {key: [mean(records.values("drawn", key, sampler=name)) for name in both] for key in ("w1", "frechet")}
    return {judging.DISTANCES[key]: with_step < without for key, (with_step, without) in found.items()}


def beside(records: Records, key: str) -> str:
    """Return a distance of the reverse diffusion with MALA's steps beside that with ULA's."""
    both = (
        number_and_spread(records.values("drawn", key, sampler=name)) for name in ("corrected_simpson", "corrected")
    )
    return " beside ".join(both)


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
    panels = {label(records, cell.sampler): load_file(folder / cell.file)["images"][:SHOWN] for cell in cells}
    panels["real"] = sampling.reference(folder, SHOWN, 0)
    plots.image_panels(panels, docs / "mnist-panel.png", columns=3)


STUDY = Study(
    "mnist-panel",
    "MNIST: which sampler, at equal score calls",
    PRESETS,
    stages,
    (Floor, Nearest, AtLevel, Tried, Drawn),
    picture,
    globals() | vars(by_level),
    {"accept": Claim("an accept step makes the best images better", accept_step_helps)},
    prepare=prepare,
    page="images.md",
    partial=True,
    shows_draws=True,
)
