"""A study to be killed: cells that sample, in a module that worker processes can import."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.soak.damage import LAW, digest, seeded
from scoremh import MALA, LineIntegral, metropolis_hastings, sample
from studies.framework import Cell, Record, Study, grid


@dataclass(frozen=True)
class Config:
    """How much to compute."""

    seeds: tuple[int, ...] = tuple(range(8))
    draws: int = 3000


class Draws(Cell, kind="draws"):
    """A hash of draws."""

    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        """Return it."""
        kernel, start = metropolis_hastings(LAW, MALA(0.4), LineIntegral()), LAW.sample(100, generator=seeded())
        return {"value": digest(sample(kernel, start, draws=config.draws, generator=seeded(self.seed)).draws)}


STUDY = Study("killed", "draws", Config(), lambda config: [grid(Draws, seed=config.seeds)], None, {})
