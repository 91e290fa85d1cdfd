"""Digits of 8 x 8 pixels: from nothing to pictures."""

import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from scoremh import Recipe, ScoreFit, datasets, fit_score, metrics
from scoremh.networks import UNet
from studies import plots
from studies.framework import Cell, Record, Records, Study, grid
from studies.framework.tables import markdown
from studies.mnist import sampling
from studies.mnist.judging import subset
from studies.mnist.sampling import METHODS, Plan
from studies.mnist.training import LOSS

COMPARED = ("ula", "simpson")
SHOWN = 36


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1,)
    channels: tuple[int, ...] = (16, 32, 64)
    steps: int = 1000  # of the score's training
    n: int = 100  # images
    levels: int = 50
    final: int = 10
    taus: tuple[float, ...] = (0.5, 0.9)


PRESETS = {"paper": Config()}


def split(seed: int) -> tuple[Tensor, Tensor]:
    """Return the images to learn from, and those to compare with."""
    shuffled = subset(datasets.digits(), 1797, seed)
    return shuffled[:1397], shuffled[1397:]


class Learned(Cell, kind="learned"):
    """The score of the digits."""

    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        draws = torch.Generator().manual_seed(self.seed)
        net = UNet((1, 8, 8), config.channels, generator=draws)
        recipe = Recipe(
            config.steps, batch=64, rate=2e-3, schedule="cosine", check_every=min(100, config.steps), patience=None
        )
        began = time.process_time()
        fit = fit_score(split(self.seed)[0], LOSS, net, standardize=False, recipe=recipe, generator=draws)
        fit.save(folder / f"score-{self.seed}.safetensors")
        return {"cpu_seconds": time.process_time() - began, "held_out": fit.history["held_out"][-1]}


class Drawn(Cell, kind="drawn"):
    """Images by a method at a tau."""

    method: str
    tau: float
    seed: int

    @property
    def file(self) -> str:
        """Name of the file with its images."""
        return f"{self.method}-{self.tau}-{self.seed}.safetensors"

    def measure(self, config: Config, folder: Path) -> Record:
        model, real = ScoreFit.load(folder / f"score-{self.seed}.safetensors"), split(self.seed)[1]
        plan = Plan(self.method, self.tau, config.levels, config.final)
        began = time.process_time()
        images, record = sampling.draw(model, plan, config.n, self.seed, real)
        seconds = time.process_time() - began
        save_file({"images": images}, folder / self.file)
        distance = metrics.w1(images.flatten(1), real[: config.n].flatten(1))
        return {"w1": distance, "cpu_seconds": seconds} | record


class Floor(Cell, kind="floor"):
    """Real images in the place of drawn ones."""

    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        known, real = split(self.seed)
        return {"w1": metrics.w1(known[: config.n].flatten(1), real[: config.n].flatten(1))}


def stages(config: Config) -> list[list[Cell]]:
    """Return the score, then the images."""
    drawn = grid(Drawn, method=COMPARED, tau=config.taus, seed=config.seeds)
    return [grid(Learned, seed=config.seeds), [*grid(Floor, seed=config.seeds), *drawn]]


def table(records: Records) -> str:
    """Return what was measured."""
    rows = {
        f"{METHODS[r['method']].label}, tau {r['tau']:g}": {
            "W1": f"{r['w1']:.2f}",
            "accepted, descending": f"{r['acceptance']:.2f}",
            "score calls": f"{r['calls']:.0f}",
        }
        for r in records.kinds["drawn"]
    }
    return markdown(pd.DataFrame(rows).T, "")


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw images of every sampler, and real ones."""
    cells = [
        cell for record in records.kinds["drawn"] if (cell := Drawn.of(record)).seed == records.settings["seeds"][0]
    ]
    panels = {f"{METHODS[c.method].label}, tau {c.tau:g}": load_file(folder / c.file)["images"][:SHOWN] for c in cells}
    panels["real"] = split(records.settings["seeds"][0])[1][:SHOWN]
    plots.image_panels(panels, docs / "digits.png", columns=len(panels), images_per_row=6)


STUDY = Study(
    "digits",
    "digits of 8 x 8 pixels, from nothing to pictures in three minutes",
    PRESETS,
    stages,
    (Learned, Floor, Drawn),
    picture,
    globals(),
    page="images.md",
    shows_draws=True,
)
