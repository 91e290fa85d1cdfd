"""What the entropy's maps and its curve share: acceptances of Moons, trained as the paper does with some lambda."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scoremh import (
    AcceptanceFit,
    Learned,
    LineIntegral,
    RandomWalk,
    Recipe,
    ScoreFit,
    datasets,
    fit_acceptance,
)
from scoremh.balance_matching import PRESETS
from scoremh.experiments import _figures as figures
from scoremh.experiments._acceptance_cells import REFERENCE, acceptance_rate, error, learned_score, metropolis, seeded
from scoremh.experiments._cells import Task, markdown, over_seeds

UNCLIPPED, ANTISYMMETRIC = "free", "antisymmetric"
WITHOUT = (
    "The antisymmetric form needs no entropy: its a is r / (1 + r), Barker's rule, for the ratio r that it learned."
)
WORDS = {"score": ("dataset",), "reference": ("dataset",), "entropy": ("lambda", "form", "seed")}
EXTENT, GRID_SHAPE = (-1.5, 2.25, -1.0, 1.5), (76, 51)  # the paper's ranges of x', for x = (0, 0)
GRID = torch.cartesian_prod(
    torch.linspace(*EXTENT[:2], GRID_SHAPE[0]),
    torch.linspace(*EXTENT[2:], GRID_SHAPE[1]),
)


@dataclass(frozen=True)
class Config:
    """What decides the numbers.

    Args:
        seeds: Of the acceptances' trainings; the first one also of the samples, the score and what is judged on.
        lambdas: Weights of the entropy, for the free form.
        steps: Of an acceptance's training.
        score_steps: Of the score's training, at most.
        samples: To learn from.
        fresh: To judge on.
        std: Of the random walk.
        clips: C, where gradients are clipped: the paper does not say.
    """

    seeds: tuple[int, ...]
    lambdas: tuple[float, ...]
    steps: int = PRESETS["moons"].steps
    score_steps: int = Recipe().steps
    samples: int = 10_000
    fresh: int = 10_000
    std: float = 0.3
    clips: tuple[float, ...] = (1.0, 10.0)


def stages(config: Config) -> list[list[Task]]:
    """Return the tasks: the score, then all trainings, the paper's clipped ones first."""
    forms = [(form, weight) for form in free_forms(config.clips) for weight in config.lambdas] + [(ANTISYMMETRIC, 0.0)]
    trainings = [("entropy", str(weight), form, str(seed)) for seed in config.seeds for form, weight in forms]
    return [[("score", "moons")], [("reference", "moons"), *trainings]]


def free_forms(clips: Sequence[float]) -> list[str]:
    """Return the names of the free form's trainings, clipped and not."""
    return [*(f"free, clip {clip:g}" for clip in clips), UNCLIPPED]


def clip_of(form: str) -> float | None:
    """Return C, or None where nothing is clipped."""
    return float(form.split()[-1]) if "clip" in form else None


def scored(config: Config, folder: Path) -> tuple[ScoreFit, Tensor]:
    """Return the score of Moons, and the samples it is of."""
    recipe = Recipe(steps=config.score_steps)
    return learned_score("moons", folder, samples=config.samples, recipe=recipe, seed=config.seeds[0])


def cell(task: Task, *, config: Config, folder: Path) -> dict[str, Any]:
    """Compute one cell.

    Args:
        task: Its words.
        config: The preset.
        folder: Of the score.
    """
    kind, *words = task
    score, x = scored(config, folder)
    if kind == "score":
        return {"seconds": score.seconds}
    first = config.seeds[0]
    fresh, proposal = datasets.moons(config.fresh, generator=seeded(2, first)), RandomWalk(config.std)
    if kind == "reference":
        accept = metropolis(REFERENCE, score, proposal, fresh, first)
        return {
            "acceptance": float(accept.mean()),
            **coin(accept),
            "simpson_error": error(LineIntegral(), score, proposal, fresh, first),
        }
    weight, form, seed = words
    fit = trained(score, x, float(weight), form, int(seed), config)
    with torch.inference_mode():
        accept = fit.net(GRID, torch.zeros_like(GRID)).exp()
    return {
        "mean": float(accept.mean()),
        "on_proposals": acceptance_rate(Learned(fit), score, proposal, fresh, first),
        "error": error(Learned(fit, "metropolis"), score, proposal, fresh, first),
        "balance": fit.history["balance"][-1],
        "map": [round(value, 5) for value in accept.tolist()],
    }


def coin(accept: Tensor) -> dict[str, float]:
    """Return the best constant acceptance, the median, and its mean error: what one achieves that looks at nothing."""
    median = accept.median()
    return {"coin": float(median), "coin_error": float((accept - median).abs().mean())}


def trained(score: ScoreFit, x: Tensor, weight: float, form: str, seed: int, config: Config) -> AcceptanceFit:
    """Train with the paper's network and settings for Moons, but for lambda, the clipping and the form."""
    row = PRESETS["moons"]._replace(entropy=weight, steps=config.steps)
    return fit_acceptance(
        score,
        RandomWalk(config.std),
        x,
        form="antisymmetric" if form == ANTISYMMETRIC else "free",
        matching=replace(row.matching, clip=clip_of(form)),
        net=row.network((2,), seeded(3, seed)),
        standardize=False,
        recipe=row.recipe,
        generator=seeded(3, seed),
    )


def runs(found: figures.Found, form: str, weight: float) -> list[figures.Record]:
    """Return the records of a form and a lambda, one for each seed that is there."""
    return figures.where(found["entropy"], **{"form": form, "lambda": weight})


def named(form: str) -> str:
    """Return a form with what is particular about it."""
    clip = clip_of(form)
    return f"{form}, not clipped" if clip is None else f"free, clipped at C = {clip:g}"


def table(found: figures.Found) -> str:
    """Return all forms and lambdas, with what a coin and Simpson's rule have beside them."""
    settings = found["settings"]
    rows = [["form", "lambda", "mean over the grid", "acceptance of proposals", "error of the ratio", "seeds"]]
    for form in (*free_forms(settings["clips"]), ANTISYMMETRIC):
        for weight in (0.0,) if form == ANTISYMMETRIC else settings["lambdas"]:
            there = runs(found, form, weight)
            numbers = [over_seeds(figures.values(there, key)) for key in ("mean", "on_proposals", "error")]
            rows.append([named(form), f"{weight:g}", *numbers, str(len(there))])
    for reference in found["reference"]:
        coin = f"the same answer to every candidate, {reference['coin']:.3f}"
        rules = {"Simpson's rule": "simpson_error", coin: "coin_error"}
        rows += [[f"no training: {name}", "", "", "", f"{reference[key]:.3f}", ""] for name, key in rules.items()]
    return markdown(rows)


def setting(found: figures.Found) -> str:
    """Say how it was measured."""
    settings = found["settings"]
    seeds = sorted({record["seed"] for record in found["entropy"]})
    left, right, below, above = EXTENT
    return (
        f"Moons, {settings['samples']:,} samples; a score by the defaults of `fit_score` (at most "
        f"{settings['score_steps']:,} steps); a random walk of std {settings['std']:g}; the paper's network and "
        f'settings, `fit_acceptance(preset="moons")`, but for lambda, the clipping and the form '
        f"({settings['steps']:,} steps of 16 x 16 pairs; the paper says neither the number of pairs, nor the walk's "
        f"std, nor where it clips). The mean is over {GRID_SHAPE[0]} x {GRID_SHAPE[1]} points x' of [{left:g}, "
        f"{right:g}] x [{below:g}, {above:g}], for x = (0, 0); beside it the share of a random walk's proposals from "
        f"{settings['fresh']:,} fresh samples that is accepted, and the mean of |a - a_16| on them: a by the ratio "
        f"a(x', x) / a(x, x'), a_16 by a line integral of the score with 16 nodes, both under Metropolis's balance. "
        f"Trainings with {len(seeds)} seed{'s' * (len(seeds) > 1)} ({', '.join(map(str, seeds))}), all of "
        f"one score and one set of samples."
    )


def judged(found: figures.Found, form: str) -> str:
    """Say how a form's ratio compares with a coin."""
    errors = [
        figures.mean(there, "error") for weight in found["settings"]["lambdas"] if (there := runs(found, form, weight))
    ]
    if not errors or not found["reference"]:
        return ""
    bar = found["reference"][0]["coin_error"]
    verdict = "no better than" if min(errors) >= bar else "better than" if max(errors) < bar else "at best better than"
    return (
        f"As an acceptance it is {verdict} the same answer to every candidate: the error of its ratio is "
        f"{min(errors):.3f} to {max(errors):.3f} over lambda, against {bar:.3f}."
    )
