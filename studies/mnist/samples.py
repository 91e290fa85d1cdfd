"""The paper's grids of images: annealed MALA and ULA at four tau, by every acceptance rule, at equal score calls."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from safetensors.torch import load_file, save_file
from torch import Tensor

from scoremh import ScoreFit
from studies import plots
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.framework.tables import markdown
from studies.mnist import sampling
from studies.mnist.acceptances import ACCEPTANCE_RECIPE
from studies.mnist.images import mnist_test, score_file
from studies.mnist.sampling import METHODS, Plan

TAUS = (0.5, 0.7, 0.9, 1.1)  # the paper's
LEAST_LITERAL = 0.458  # sigmoid of the least value of a GELU
ACCEPTANCE_STEPS, ACCEPTANCE_BATCH = ACCEPTANCE_RECIPE.steps, ACCEPTANCE_RECIPE.batch
ROW = 3  # images in a row of a panel
MAX_INK = 1.5  # times that of real images, beyond which images are spoiled


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1,)
    n: int = 9  # images
    levels: int = 100
    final: int = 500  # steps at the last level with Simpson's rule, 1,000 of the others
    taus: tuple[float, ...] = TAUS
    methods: tuple[str, ...] = tuple(METHODS)
    score_steps: int = 0  # of a score of its own; 0 for the one that is kept


PRESETS = {
    "quick": Config((11,), levels=40, final=50, methods=("ula", "simpson"), score_steps=2000),
    "paper": Config(),
}


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
        model = ScoreFit.load(score_file(folder))
        plan, real = Plan(self.method, self.tau, config.levels, config.final), sampling.reference(folder, 64, 0)
        found = sampling.draw(model, plan, config.n, self.seed, real)
        save_file({"images": found.images.contiguous()}, folder / self.file)
        return found.record | {"ink": ink(found.images) / ink(mnist_test())}


def ink(images: Tensor) -> float:
    """Return the share of bright pixels."""
    return float((images > 0).float().mean())


def stages(config: Config) -> list[list[Cell]]:
    """Return all cells, those of the paper's own two samplers first."""
    return [grid(Drawn, method=config.methods, tau=config.taus, seed=config.seeds)]


def prepare(config: Config, folder: Path) -> None:
    """Train a score where the preset has one of its own."""
    sampling.prepare(config.score_steps, folder)


def table(records: Records) -> str:
    """Return ink and lag by method and tau."""
    rows: dict[str, dict[str, str]] = {}
    for record in records.kinds["drawn"]:
        found = f"{record['ink']:.2f} ({record['lag']:.2f})"
        rows.setdefault(METHODS[record["method"]].label, {})[f"tau {record['tau']:g}"] = found
    return markdown(pd.DataFrame(rows).T, "ink (rho)")


def spoiled(records: Records, method: str) -> dict[str, bool]:
    """Return at which tau images are blots, or have diverged."""
    return {f"tau {r['tau']:g}": r["ink"] > MAX_INK for r in records.where("drawn", method=method)}


def robust(records: Records) -> dict[str, bool]:
    """Return at which tau MALA's images are whole."""
    return {tau: not broken for tau, broken in spoiled(records, "simpson").items()}


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw all images: a row for every method, a column for every tau."""
    cells = [Drawn.of(record) for record in records.kinds["drawn"]]
    panels = {
        f"{METHODS[cell.method].label}\ntau {cell.tau:g}": load_file(folder / cell.file)["images"] for cell in cells
    }
    plots.image_panels(panels, docs / "mnist-samples.png", columns=len(records.settings["taus"]), images_per_row=ROW)


STUDY = Study(
    "mnist-samples",
    "MNIST: images by annealed MALA and ULA at the paper's four tau",
    PRESETS,
    stages,
    (Drawn,),
    picture,
    globals(),
    {"robust": Claim("annealed MALA gives images at every tau", robust)},
    prepare,
    page="images.md",
    partial=True,
    shows_draws=True,
)
