"""The paper's heavy tails, second figure: learned scores and acceptances on GEV(0, 1, xi), beside MALA.

All samplers take the same Langevin step. An acceptance in the paper's free form is trained with the true score or with
one learned from samples; the potential form, a line integral and no accept step at all use the same learned score. One
more score is learned in coordinates that suit a heavy tail.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scoremh import (
    MALA,
    AcceptanceFit,
    Always,
    BalanceMatching,
    Exact,
    Learned,
    LineIntegral,
    Recipe,
    ScoreFit,
    fit_acceptance,
    fit_score,
    metropolis_hastings,
    plots,
    sample,
)
from scoremh.balance_matching import MATCHING, RECIPE
from scoremh.experiments import _figures as figures
from scoremh.experiments import _gev as gev
from scoremh.experiments._cells import Task
from scoremh.targets import GeneralizedExtremeValue
from scoremh.types import Acceptance, TargetLike

NAME = "gev-learned"
EXACT, TRUE, FREE = "MALA", "Score MALA, true score", "Score MALA, learned score"
POTENTIAL, LINE, ULA = "potential, learned score", "line integral, learned score", "ULA, learned score"
HEAVY = "line integral, heavy-tailed score"
SAMPLERS = (EXACT, TRUE, FREE, POTENTIAL, LINE, ULA, HEAVY)
PAPER = (TRUE, FREE)  # what the paper calls competitive with MALA
COMPETITIVE = 2.0  # times MALA's error, or the floor's where that is more


@dataclass(frozen=True)
class Config:
    """What decides the numbers.

    Args:
        seeds: One run for each.
        xis: Shapes of the law.
        step_size: h. The paper's "step .1" is taken for h.
        samples: To learn from.
        score_steps: Of the training of a score.
        acceptance_steps: Of the training of an acceptance.
        clip: C, the largest gradient of a pair; the paper gives no number.
        chains: Of every sampler.
        warmup: Steps before the first kept draw.
        draws: Kept of every chain, and judged together.
        thin: Steps per kept draw.
    """

    seeds: tuple[int, ...]
    xis: tuple[float, ...] = (-0.5, -0.2, 0.0, 0.3, 0.6, 0.9)
    step_size: float = 0.1
    samples: int = 10_000
    score_steps: int = 1500
    acceptance_steps: int = 500
    clip: float = 10.0
    chains: int = 2000
    warmup: int = 300
    draws: int = 5
    thin: int = 50


PRESETS = {
    "quick": Config(
        seeds=(11,), xis=(-0.5, 0.3, 0.9), score_steps=400, acceptance_steps=200, chains=1000, warmup=100, thin=20
    ),
    "paper": Config(seeds=(1, 2, 3)),
}


def stages(config: Config) -> list[list[Task]]:
    """Return the tasks: trainings by xi and seed, then chains by sampler, xi and seed, and the floor."""
    each = [(str(xi), str(seed)) for xi in config.xis for seed in config.seeds]
    fits: list[Task] = [("fit", *words) for words in each]
    runs: list[Task] = [("chains", sampler, *words) for words in each for sampler in SAMPLERS]
    return [fits, [("floor", *words) for words in each] + runs]


def cell(task: Task, *, config: Config, folder: Path) -> dict[str, Any]:
    """Train what a law and a seed need, or run one sampler.

    Args:
        task: As `stages` made it.
        config: The preset.
        folder: Of the trained networks.
    """
    kind, *words = task
    xi, seed = float(words[-2]), int(words[-1])
    if kind == "fit":
        return _fit(config, folder, xi, seed)
    generator = torch.Generator().manual_seed(1_000_000 * seed + 10 * round(100 * (xi + 1)) + (kind == "floor"))
    if kind == "floor":
        return dict(gev.measures(gev.fresh(config.chains * config.draws, xi, generator), xi))
    target, acceptance = _parts(words[0], folder, xi, seed)
    initial = gev.starts(config.chains, xi, generator)
    kernel = metropolis_hastings(target, MALA(config.step_size), acceptance)
    chains = sample(kernel, initial, draws=config.draws, warmup=config.warmup, thin=config.thin, generator=generator)
    return dict(gev.measures(chains.draws, xi)) | {
        "acceptance": chains.acceptance_rate,
        "outside": float(chains.outside.double().mean()) / config.thin,
    }


def _file(folder: Path, what: str, xi: float, seed: int) -> Path:
    return folder / f"{what}_{xi:g}_{seed}.safetensors"


def _fit(config: Config, folder: Path, xi: float, seed: int) -> dict[str, Any]:
    """Learn a score, and acceptances with it and with the true one.

    The true score is no number outside the support; pairs with a candidate there do not count.
    """
    law, proposal = GeneralizedExtremeValue(xi), MALA(config.step_size)
    generator = torch.Generator().manual_seed(1_000_000 * seed + 10 * round(100 * (xi + 1)) + 5)
    x = law.sample(config.samples, generator=generator)
    score = fit_score(x, recipe=Recipe(config.score_steps, check_every=100), generator=generator)
    score.save(_file(folder, "score", xi, seed))
    heavy = fit_score(x, heavy_tails=True, recipe=score.recipe, generator=generator)
    heavy.save(_file(folder, "heavy", xi, seed))
    seconds = {"score seconds": score.seconds, "heavy seconds": heavy.seconds}
    recipe = Recipe(config.acceptance_steps, batch=RECIPE.batch, rate=RECIPE.rate, check_every=100)
    targets: dict[str, tuple[TargetLike, Any]] = {
        TRUE: (law, "free"),
        FREE: (score, "free"),
        POTENTIAL: (score, "potential"),
    }
    for name, (target, form) in targets.items():
        base = MATCHING[form]
        matching = BalanceMatching(clip=config.clip, pairs=base.pairs, alpha=base.alpha, scale=base.scale)
        fit = fit_acceptance(target, proposal, x, form=form, matching=matching, recipe=recipe, generator=generator)
        fit.save(_file(folder, name, xi, seed))
        seconds[f"{name}: seconds"] = fit.seconds
    return seconds


def _parts(sampler: str, folder: Path, xi: float, seed: int) -> tuple[TargetLike, Acceptance]:
    """Return the target and the rule of a sampler."""
    law = GeneralizedExtremeValue(xi)
    if sampler == EXACT:
        return law, Exact()
    if sampler == TRUE:
        return law, Learned(AcceptanceFit.load(_file(folder, TRUE, xi, seed)))
    score = ScoreFit.load(_file(folder, "heavy" if sampler == HEAVY else "score", xi, seed))
    if sampler == FREE:
        return score, Learned(AcceptanceFit.load(_file(folder, FREE, xi, seed)))
    if sampler == POTENTIAL:
        return score, Learned(AcceptanceFit.load(_file(folder, POTENTIAL, xi, seed)), "metropolis")
    return score, Always() if sampler == ULA else LineIntegral()


def rows(found: figures.Found) -> dict[str, list[figures.Record]]:
    """Return the records of every line, by its name."""
    lines = {sampler: figures.where(found["chains"], sampler=sampler) for sampler in SAMPLERS}
    return {"exact draws": list(found["floor"]), **lines}


def competitive(found: figures.Found, sampler: str, key: str) -> list[float]:
    """Return the xi at which a sampler's error is at most twice that of MALA, or of exact draws where that is more.

    Args:
        found: Settings and records.
        sampler: One of `SAMPLERS`.
        key: In `METRICS`.
    """

    def error(records: list[figures.Record]) -> float:
        values = [abs(value) for value in figures.values(records, key)]
        return sum(values) / len(values)

    good = []
    for xi in found["settings"]["xis"]:
        own, theirs = (figures.where(found["chains"], sampler=s, xi=xi) for s in (sampler, EXACT))
        if error(own) <= COMPETITIVE * max(error(theirs), error(figures.where(found["floor"], xi=xi))):
            good.append(xi)
    return good


def section(found: figures.Found) -> str:
    """Say what was found.

    Args:
        found: Settings and records.
    """
    given, lines = found["settings"], rows(found)
    steps = given["warmup"] + given["draws"] * given["thin"]
    seeds = ", ".join(map(str, given["seeds"]))
    parts = [
        "## Heavy tails: learned scores and acceptances (Appendix B, score-based MALA)",
        "The paper shows W1 and MMD over xi without numbers, and finds score-based MALA, with the true score and with "
        "a learned one, competitive with MALA.",
        f"{given['samples']:,} samples to learn from; a score of {given['score_steps']:,} training steps "
        "(`fit_score` as it is; the heavy-tailed one with `heavy_tails=True`), acceptances of "
        f"{given['acceptance_steps']:,} with gradients clipped at {given['clip']:g}; all samplers take "
        f"h = {given['step_size']:g} (the paper's .1 taken for h). "
        f"{given['chains']:,} chains of {steps:,} steps from N(0, 1), a draw outside the middle 98 % of the law moved "
        f"to its ends; {given['draws']} draws of each, {given['thin']} steps apart, are judged together, beside as "
        f"many exact draws. Seeds {seeds}; mean +- standard deviation. A learned score is part of a target whose "
        "support is the box of the samples, a tenth wider (in its own coordinates for the heavy-tailed one): on the "
        "long side it cuts the tail off, and the error of the quantiles holds that, and the tail that chains had no "
        "time to reach.",
    ]
    parts += [f"{name}:\n\n{gev.table(lines, given['xis'], key)}" for key, name in gev.METRICS.items()]
    rates = {name: records for name, records in lines.items() if name in SAMPLERS}
    parts.append(f"Acceptance rate:\n\n{gev.table(rates, given['xis'], 'acceptance')}")
    said = []
    for sampler in SAMPLERS[1:]:
        good = {key: competitive(found, sampler, key) for key in ("w1", "mmd")}
        counts = [
            f"{name} at {len(good[key])} of {len(given['xis'])} xi" for key, name in gev.METRICS.items() if key in good
        ]
        said.append(f"- {sampler}: {', '.join(counts)}.")
    every = [len(competitive(found, s, key)) for s in PAPER for key in ("w1", "mmd")]
    share = sum(every) / (len(every) * len(given["xis"]))
    word = "agrees" if share == 1 else "agrees in part" if share >= 0.5 else "does not agree"
    parts.append(
        f"Competitive, with at most {COMPETITIVE:g} times the error of MALA or of exact draws, whichever is more:\n\n"
        + "\n".join(said)
        + f"\n\nOf the paper's two samplers this holds in {share:.0%} of all cases: this {word} with the paper."
    )
    return "\n\n".join(parts)


def picture(found: figures.Found, path: Path) -> None:
    """Draw the errors over xi, a panel per metric.

    Args:
        found: Settings and records.
        path: The file to write.
    """
    panels: dict[str, Mapping[str, plots.Curve]] = {
        name: gev.curves(rows(found), found["settings"]["xis"], key) for key, name in gev.METRICS.items()
    }
    gev.draw(panels, path, columns=2, title="GEV(0, 1, xi): learned scores and acceptances beside MALA")


FIGURE = figures.Figure(
    NAME,
    PRESETS,
    {"fit": ("xi", "seed"), "chains": ("sampler", "xi", "seed"), "floor": ("xi", "seed")},
    stages,
    cell,
    section,
    picture,
)
run = FIGURE.run
