"""The fits: one for every distribution and seed, kept in a file, and their evaluations."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from scoremh import Recipe, ScoreFit, fit_score
from studies.densities.distributions import DISTRIBUTIONS, Known
from studies.framework import Cell, Record
from studies.learning import seeded

T = TypeVar("T")


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1, 2, 3)  # random seeds of samples, trainings and fresh points
    samples: int = 10_000  # samples to learn from
    points: int = 4000  # fresh points for the error of log p
    rows: int = 5000  # fresh rows for a held-out likelihood
    draws: int = 2000  # draws of the probability flow, for normalisation beyond the plane
    cells: int = 320  # cells of a side of the grid, for normalisation in the plane
    steps: int = 8000  # of a training: the default
    dimensions: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    dimension_steps: int = 4000  # of a training as the dimension grows
    probes: int = 4  # directions of Hutchinson's estimate
    chains: int = 500  # chains from noise, of every rule
    chain_steps: int = 200  # steps of such a chain


class Fit(Cell, kind="fit"):
    """A fit by the defaults to samples of a known distribution, which is kept in a file."""

    distribution: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        fit, seconds = trained(DISTRIBUTIONS[self.distribution][1], config, config.steps, self.seed)
        fit.save(self.path(folder))
        return {"seconds": seconds, "level": fit.noise_level, "steps": fit.history["step"][-1]}

    def path(self, folder: Path) -> Path:
        """Return the file of the fit."""
        return folder / f"{self.distribution} {self.seed}.safetensors"

    def load(self, folder: Path) -> ScoreFit:
        """Return the fit from its file."""
        return ScoreFit.load(self.path(folder))


def trained(known: Known, config: Config, steps: int, seed: int) -> tuple[ScoreFit, float]:
    """Return a fit to samples of a distribution, and the CPU seconds that it took."""
    x = known.sample(config.samples, generator=seeded(0, seed))
    return timed(lambda: fit_score(x, recipe=Recipe(steps=steps), generator=seeded(1, seed)))


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """Return what a call returns, and its CPU seconds."""
    start = time.process_time()
    return call(), time.process_time() - start


def blur(fit: ScoreFit) -> Tensor:
    """Return the covariance of the noise at the level of a fit, in the coordinates of its samples."""
    covariance, level = fit.covariance, fit.noise_level
    assert covariance is not None  # the samples are standardised,
    assert level is not None  # and the network knows levels
    return level**2 * (covariance if covariance.ndim == 2 else torch.diag(covariance)).double()
