"""The paper's map over denoising steps and tau: where W1 is below a threshold, for MALA and for ULA."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from studies import plots
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.mnist import sampling
from studies.mnist.sampling import Plan
from studies.mnist.tau import Floor

PAPER_THRESHOLDS = (30.0, 32.0, 34.0)
FLOOR_THRESHOLDS = (1.1, 1.25, 1.5)  # times the floor
COMPARED = ("batch_ula", "simpson")
REGIONS = ("both above", "MALA below, ULA above", "ULA below, MALA above", "both below")


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1,)
    n: int = 100  # images
    levels: tuple[int, ...] = (10, 20, 50, 100)
    final: int = 50  # steps at the last level, of MALA; twice as many of ULA
    taus: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3)
    score_steps: int = 0  # of a score of its own; 0 for the one that is kept
    floor_repeats: int = 5


PRESETS = {
    "quick": Config((11,), n=32, levels=(10, 30), final=10, taus=(0.3, 0.7, 1.1), score_steps=2000),
    "paper": Config(),
}


class Drawn(Cell, kind="drawn"):
    """Images by a method, with a number of levels and a tau."""

    levels: int
    tau: float
    method: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        plan = Plan(self.method, self.tau, self.levels, config.final)
        return sampling.drawn_and_judged(plan, config.n, self.seed, folder)[1]


def stages(config: Config) -> list[list[Cell]]:
    """Return the floor, then all cells."""
    cells = grid(Drawn, levels=config.levels, tau=config.taus, method=COMPARED, seed=config.seeds)
    return [grid(Floor, n=(config.n,)), cells]


def prepare(config: Config, folder: Path) -> None:
    """Train a score where the preset has one of its own."""
    sampling.prepare(config.score_steps, folder)


def complete_levels(records: Records) -> list[int]:
    """Return the numbers of levels for which every cell is there."""
    wanted = len(records.settings["taus"]) * len(COMPARED) * len(records.settings["seeds"])
    every = records.settings["levels"]
    return [levels for levels in every if len(records.where("drawn", levels=levels)) == wanted]


def w1(records: Records, method: str) -> Tensor:
    """Return W1 by tau and number of levels; infinity where chains diverged."""
    places = [
        [records.values("drawn", "w1", method=method, levels=levels, tau=tau) for levels in complete_levels(records)]
        for tau in records.settings["taus"]
    ]
    return torch.tensor(places).mean(2)


def regions(records: Records, threshold: float) -> Tensor:
    """Return the number of the region in every place."""
    ula, mala = (w1(records, method) < threshold for method in COMPARED)
    return torch.where(mala & ula, 3, torch.where(mala, 1, torch.where(ula, 2, 0)))


def floor_w1(records: Records) -> float:
    """Return W1 between real images."""
    return records.values("floor", "w1")[0]


def shares(records: Records, threshold: float) -> list[float]:
    """Return the share of places in every region."""
    found = regions(records, threshold)
    return [float((found == region).float().mean()) for region in range(len(REGIONS))]


def thresholds(records: Records) -> dict[str, float]:
    """Return all thresholds by name."""
    own = {f"W1 below {share:g} x floor": share * floor_w1(records) for share in FLOOR_THRESHOLDS}
    return {f"W1 below {value:g}": value for value in PAPER_THRESHOLDS} | own


def more_orange(records: Records) -> dict[str, bool]:
    """Return by which threshold MALA alone is below it in more places than ULA alone."""
    found = {name: shares(records, threshold) for name, threshold in thresholds(records).items()}
    return {name: each[1] > each[2] for name, each in found.items()}


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw the map with every threshold."""
    panels = {name: regions(records, threshold) for name, threshold in thresholds(records).items()}
    mala, ula = (look.colour for look in plots.looks_of(["MALA, Simpson", "ULA"]).values())
    looks = [("#e3e7ec", ""), (mala, "//"), (ula, "\\\\"), ("#5a636e", "")]
    plots.region_panels(
        panels,
        docs / "mnist-map.png",
        names=REGIONS,
        regions=looks,
        columns_at=[str(levels) for levels in complete_levels(records)],
        rows_at=[f"{tau:g}" for tau in records.settings["taus"]],
        labels=("noise levels", "tau"),
        columns=3,
    )


STUDY = Study(
    "mnist-map",
    "MNIST: where W1 is below a threshold, over denoising steps and tau",
    PRESETS,
    stages,
    (Floor, Drawn),
    picture,
    globals(),
    {"robust": Claim("MALA alone is below the threshold in more places than ULA alone", more_orange)},
    prepare,
    page="images.md",
    partial=True,
    goes_on_from_kept=True,
)
