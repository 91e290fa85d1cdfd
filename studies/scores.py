"""How good are learned scores? Against distributions whose score is known, and on datasets by held-out loss."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scoremh import (
    DenoisingScoreMatching,
    DivergenceError,
    ImplicitScoreMatching,
    MultilevelDenoising,
    Recipe,
    ScoreFit,
    SlicedScoreMatching,
    datasets,
    diagnostics,
    fit_score,
    targets,
)
from scoremh.networks import AtNoiseLevel
from scoremh.training import Loss
from studies import plots
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.framework.tables import mean
from studies.learning import FIGURE_1
from studies.presets import paper_score

MAX_ERROR = 0.02  # share of the mean square of the true score
STEPS = Recipe.steps  # at most, of the defaults
CORRELATED = 0.8 ** (torch.arange(10.0)[:, None] - torch.arange(10.0)).abs()
TARGETS: dict[str, tuple[str, Any]] = {
    "mixture": ("0.8 N((5, 5), I) + 0.2 N((-5, -5), I), Figure 1", FIGURE_1),
    "banana": ("Banana", targets.Banana()),
    "gumbel": ("GEV, xi = 0 (Gumbel)", targets.GeneralizedExtremeValue(0.0)),
    "frechet": ("GEV, xi = 0.3 (Frechet: heavy upper tail)", targets.GeneralizedExtremeValue(0.3)),
    "weibull": ("GEV, xi = -0.3 (Weibull: score infinite at its endpoint)", targets.GeneralizedExtremeValue(-0.3)),
    "gaussian": (
        "10-dimensional Gaussian, correlations 0.8 to the distance",
        targets.Gaussian(torch.zeros(10), CORRELATED),
    ),
}
DATASETS: dict[str, Callable[..., Tensor]] = {
    "moons": datasets.moons,
    "pinwheel": datasets.pinwheel,
    "pinwheel, correct": partial(datasets.pinwheel, variant="correct"),
    "s_curve": datasets.s_curve,
    "swiss_roll": datasets.swiss_roll,
}
IMPLICIT, SLICED = "ImplicitScoreMatching, ScoreMLP", "SlicedScoreMatching, ScoreMLP"
MULTILEVEL, PAPER = "MultilevelDenoising, NoiseConditionalMLP", "the paper's preset"
LOSSES: dict[str, Loss | None] = {
    IMPLICIT: ImplicitScoreMatching(),
    SLICED: SlicedScoreMatching(),
    "DenoisingScoreMatching(0.05), ScoreMLP": DenoisingScoreMatching(0.05),
    MULTILEVEL: MultilevelDenoising(),
    PAPER: None,
}


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    # random seeds of samples and trainings; the datasets are fitted with the first
    seeds: tuple[int, ...] = (1, 2, 3)
    samples: int = 10_000  # samples to learn from
    fresh: int = 50_000  # fresh draws for the error of a score
    fresh_for_loss: int = 10_000  # fresh samples for a held-out loss, whose trace takes d products


def seeded(use: int, seed: int) -> torch.Generator:
    """Return a generator: 0 for the samples, 1 for the training, 2 for the samples that test the fit."""
    return torch.Generator().manual_seed(10 * seed + use)


class Known(Cell, kind="known"):
    """A fit by the defaults to samples of a distribution whose score is known."""

    target: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        _, target = TARGETS[self.target]
        fit = fit_score(target.sample(config.samples, generator=seeded(0, self.seed)), generator=seeded(1, self.seed))
        x = target.sample(config.fresh, generator=seeded(2, self.seed))
        true, inside = target.score(x), fit.support(x)
        error, size = (fit.score(x) - true).square().sum(1), true.square().sum(1)
        asymmetry = 0.0
        if x.shape[1] > 1:
            some, generator = x[inside][:2000], seeded(2, self.seed)
            asymmetry = diagnostics.conservativity(fit.score, some, generator=generator).asymmetry
        return {
            "all": float(error.sum() / size.sum()),
            "inside": float(error[inside].sum() / size[inside].sum()),
            "outside": int((~inside).sum()),
            "level": fit.noise_level,
            "asymmetry": asymmetry,
            "seconds": fit.seconds,
        }


class HeldOut(Cell, kind="held_out"):
    """A fit of one loss and network to a dataset, by its loss on fresh samples."""

    dataset: str
    loss: str

    def measure(self, config: Config, folder: Path) -> Record:
        try:
            fit = self.fit(config)
        except DivergenceError as stopped:
            return {"diverged": stopped.step, **history(stopped.history)}
        x = DATASETS[self.dataset](config.fresh_for_loss, generator=seeded(2, config.seeds[0]))
        net = fit.net if fit.noise_level is None else AtNoiseLevel(fit.net, fit.noise_level)
        each = torch.cat([ImplicitScoreMatching().each(net, part) for part in x.split(1000)]).double()
        error = float(each.std()) / math.sqrt(len(each))
        return {"value": float(each.mean()), "error": error, **history(fit.history)}

    def fit(self, config: Config) -> ScoreFit:
        """Return the fit."""
        seed, loss = config.seeds[0], LOSSES[self.loss]
        x = DATASETS[self.dataset](config.samples, generator=seeded(0, seed))
        if loss is None:
            return paper_score(x, self.dataset.removesuffix(", correct"), generator=seeded(1, seed))
        return fit_score(x, loss, generator=seeded(1, seed))


def history(found: dict[str, list[float]]) -> Record:
    """Return the held-out loss over training steps."""
    return {"history_step": found["step"], "history_held_out": found["held_out"]}


def stages(config: Config) -> list[list[Cell]]:
    """Return all fits."""
    return [[*grid(Known, target=TARGETS, seed=config.seeds), *grid(HeldOut, dataset=DATASETS, loss=LOSSES)]]


def reached(records: Records) -> dict[str, bool]:
    """Return on which distributions the mean error over seeds is within 2 %."""
    return {
        name: mean(records.values("known", "inside", target=key)) <= MAX_ERROR for key, (name, _) in TARGETS.items()
    }


def loss_text(record: Record) -> str:
    """Return a held-out loss with its standard error, or where the training diverged."""
    if record.get("diverged") is not None:
        return f"diverged at step {record['diverged']:,}"
    return f"{record['value']:.2f} +- {record['error']:.2f}"


def losses(records: Records, dataset: str) -> list[str]:
    """Return the held-out losses on a dataset."""
    return [loss_text(*records.where("held_out", dataset=dataset, loss=loss)) for loss in LOSSES]


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw the held-out loss on both Pinwheels."""
    lines: dict[str, plots.Curve] = {}
    for name, variant in {"pinwheel": "as printed", "pinwheel, correct": "corrected"}.items():
        for loss, label in {IMPLICIT: "implicit", SLICED: "sliced"}.items():
            (record,) = records.where("held_out", dataset=name, loss=loss)
            lines[f"{label}, {variant}"] = (record["history_step"], record["history_held_out"])
    labels, title = ("training step", "held-out loss (standard coordinates)"), "Two Pinwheels"
    plots.curves(lines, docs / "scores_trap.png", labels=labels, title=title)


STUDY = Study(
    "scores",
    "how good learned scores are, against known ones and by held-out loss on the paper's datasets",
    Config(),
    stages,
    picture,
    globals(),
    {
        "reached": Claim("learned scores are within 2 % of known ones, in mean square", reached),
    },
    page="scores.md",
)
