"""Acceptances of Moons, trained as the paper does with some weight of the entropy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from scoremh import AcceptanceFit, Learned, LineIntegral, RandomWalk, ScoreFit, datasets, fit_acceptance
from scoremh.score_matching import LONG_RECIPE
from studies.framework import Cell, Record, grid
from studies.learning import REFERENCE, acceptance_rate, error, learned_score, metropolis, seeded
from studies.presets import TABLE_3

UNCLIPPED, ANTISYMMETRIC = "free", "antisymmetric"
EXTENT, GRID_SHAPE = (-1.5, 2.25, -1.0, 1.5), (76, 51)  # the paper's ranges of x', for x = (0, 0)
GRID = torch.cartesian_prod(
    torch.linspace(*EXTENT[:2], GRID_SHAPE[0]),
    torch.linspace(*EXTENT[2:], GRID_SHAPE[1]),
)


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    # random seeds of the acceptances' trainings; the first is also the seed of samples, score and test samples
    seeds: tuple[int, ...]
    lambdas: tuple[float, ...]  # weights of the entropy, for the free form
    steps: int = TABLE_3["moons"].steps  # training steps of an acceptance
    score_steps: int = LONG_RECIPE.steps  # maximal number of training steps of the score
    samples: int = 10_000  # samples to learn from
    fresh: int = 10_000  # test samples
    std: float = 0.3  # standard deviation of the random walk
    clips: tuple[float, ...] = (1.0, 10.0)  # lengths C at which gradients are clipped, which the paper does not give


def free_forms(clips: Sequence[float]) -> dict[str, float | None]:
    """Return the trainings of the free form with the length at which each clips gradients, None where it does not."""
    return {f"free, clip {clip:g}": clip for clip in clips} | {UNCLIPPED: None}


def label(form: str, clips: Sequence[float]) -> str:
    """Return a form with its settings."""
    clip = free_forms(clips).get(form)
    return f"{form}, not clipped" if clip is None else f"free, clipped at C = {clip:g}"


def score_and_samples(config: Config, folder: Path) -> tuple[ScoreFit, Tensor]:
    """Return the score of Moons and its samples."""
    recipe, seed = replace(LONG_RECIPE, steps=config.score_steps), config.seeds[0]
    return learned_score("moons", folder, samples=config.samples, recipe=recipe, seed=seed)


def fresh_samples(config: Config) -> Tensor:
    """Return the samples on which acceptances are tested."""
    return datasets.moons(config.fresh, generator=seeded(2, config.seeds[0]))


class Score(Cell, kind="score"):
    """The learned score."""

    dataset: str

    def measure(self, config: Config, folder: Path) -> Record:
        return {"seconds": score_and_samples(config, folder)[0].seconds}


class Reference(Cell, kind="reference"):
    """Rules that need no training: the line integral, and one with the same probability for every candidate."""

    dataset: str

    def measure(self, config: Config, folder: Path) -> Record:
        (score, _), proposal, first = score_and_samples(config, folder), RandomWalk(config.std), config.seeds[0]
        fresh = fresh_samples(config)
        accept = metropolis(REFERENCE, score, proposal, fresh, first)
        simpson = error(LineIntegral("simpson"), score, proposal, fresh, first)
        return {"acceptance": float(accept.mean()), **best_constant(accept), "simpson_error": simpson}


def best_constant(accept: Tensor) -> dict[str, float]:
    """Return the best constant acceptance, the median, and its mean error."""
    median = accept.median()
    return {"coin": float(median), "coin_error": float((accept - median).abs().mean())}


class Training(Cell, kind="entropy"):
    """An acceptance with a weight of the entropy, in a form."""

    lambda_: float
    form: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        score, x = score_and_samples(config, folder)
        fit, proposal = self.fit(score, x, config), RandomWalk(config.std)
        fresh, first = fresh_samples(config), config.seeds[0]
        return {
            "mean": float(acceptance_map(fit).mean()),
            "on_proposals": acceptance_rate(Learned(fit), score, proposal, fresh, first),
            "error": error(Learned(fit, "metropolis"), score, proposal, fresh, first),
            "balance": fit.history["balance"][-1],
            **self.more(fit),
        }

    def fit(self, score: ScoreFit, x: Tensor, config: Config) -> AcceptanceFit:
        """Train with the paper's network and settings for Moons, except lambda, the clipping and the form."""
        row = TABLE_3["moons"]._replace(entropy=self.lambda_, steps=config.steps)
        return fit_acceptance(
            score,
            RandomWalk(config.std),
            x,
            form="antisymmetric" if self.form == ANTISYMMETRIC else "free",
            matching=replace(row.matching, clip=free_forms(config.clips).get(self.form)),
            net=row.network((2,), seeded(3, self.seed)),
            standardize=False,
            recipe=row.recipe,
            generator=seeded(3, self.seed),
        )

    def more(self, fit: AcceptanceFit) -> Record:
        """Return what else is measured."""
        return {}


class MapTraining(Training):
    """The same, with the map."""

    def more(self, fit: AcceptanceFit) -> Record:
        """Return the map."""
        return {"map": [round(value, 5) for value in acceptance_map(fit).tolist()]}


@torch.inference_mode()
def acceptance_map(fit: AcceptanceFit) -> Tensor:
    """Return a(x', (0, 0)) for x' on the grid."""
    return fit.net(GRID, torch.zeros_like(GRID)).exp()  # type: ignore[no-any-return]


def stages(config: Config, kind: type[Training]) -> list[list[Cell]]:
    """Return the score, then all trainings, the paper's clipped ones first."""
    trainings: list[Cell] = []
    for seed in config.seeds:
        trainings += grid(kind, form=free_forms(config.clips), lambda_=config.lambdas, seed=[seed])
        trainings.append(kind(0.0, ANTISYMMETRIC, seed))
    return [[Score("moons")], [Reference("moons"), *trainings]]
