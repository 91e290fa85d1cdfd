"""The paper's heavy tails, second figure: learned scores and acceptances on GEV(0, 1, xi), beside MALA.

All samplers take the same Langevin step. An acceptance in the paper's free form is trained with the true score or with
one learned from samples; the potential form, a line integral and no accept step at all use the same learned score. One
more score is learned in coordinates that suit a heavy tail.
"""

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

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
    sample,
)
from scoremh.acceptance import Rule
from scoremh.balance_matching import MATCHING, RECIPE, FormName
from scoremh.score_matching import LONG_RECIPE
from scoremh.targets import GeneralizedExtremeValue
from scoremh.types import TargetLike
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.framework.study import values
from studies.gev import common
from studies.gev.common import METRICS, seeded

EXACT, TRUE, FREE = "MALA", "Score MALA, true score", "Score MALA, learned score"
POTENTIAL, LINE, ULA = "potential, learned score", "line integral, learned score", "ULA, learned score"
HEAVY = "line integral, heavy-tailed score"
SAMPLERS = (EXACT, TRUE, FREE, POTENTIAL, LINE, ULA, HEAVY)
PAPER = (TRUE, FREE)  # what the paper calls competitive with MALA
MAX_RATIO = 2.0  # times MALA's error, or the floor's where that is more, for a sampler that is competitive
BODY = ("w1", "mmd")


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...]  # random seeds of samples, trainings and chains
    xis: tuple[float, ...] = (-0.5, -0.2, 0.0, 0.3, 0.6, 0.9)  # shapes of the distribution
    step_size: float = 0.1  # step size h. The paper's "step .1" is taken for h
    samples: int = 10_000  # samples to learn from
    score_steps: int = 1500  # training steps of a score
    acceptance_steps: int = 500  # training steps of an acceptance
    clip: float = 10.0  # largest gradient C of a pair; the paper gives no number
    chains: int = 2000  # chains of every sampler
    warmup: int = 300  # steps before the first kept draw
    draws: int = 5  # draws kept of every chain, which are judged together
    thin: int = 50  # steps between kept draws


QUICK = Config(
    seeds=(11,), xis=(-0.5, 0.3, 0.9), score_steps=400, acceptance_steps=200, chains=1000, warmup=100, thin=20
)
PRESETS = {"quick": QUICK, "paper": Config(seeds=(1, 2, 3))}


class Fit(Cell, kind="fit"):
    """A learned score, one with heavy tails, and acceptances with the first and with the true score."""

    xi: float
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        target, generator = GeneralizedExtremeValue(self.xi), seeded(self.seed, self.xi, 5)
        x = target.sample(config.samples, generator=generator)
        score = fit_score(x, recipe=Recipe(config.score_steps), generator=generator)
        score.save(self.path(folder, "score"))
        long = replace(LONG_RECIPE, steps=config.score_steps, check_every=100)
        heavy = fit_score(x, heavy_tails=True, recipe=long, generator=generator)
        heavy.save(self.path(folder, "heavy"))
        seconds = {"score seconds": score.seconds, "heavy seconds": heavy.seconds}
        recipe = replace(RECIPE, steps=config.acceptance_steps, check_every=100)
        trained: dict[str, tuple[TargetLike, FormName]] = {
            TRUE: (target, "free"),
            FREE: (score, "free"),
            POTENTIAL: (score, "potential"),
        }
        for name, (known, form) in trained.items():
            base = MATCHING[form]
            matching = BalanceMatching(clip=config.clip, pairs=base.pairs, alpha=base.alpha, scale=base.scale)
            options: dict[str, Any] = {"form": form, "matching": matching, "recipe": recipe, "generator": generator}
            fit = fit_acceptance(known, MALA(config.step_size), x, **options)
            fit.save(self.path(folder, name))
            seconds[f"{name}: seconds"] = fit.seconds
        return seconds

    def path(self, folder: Path, name: str) -> Path:
        """Return the file of a fit."""
        return folder / f"{name}_{self.xi:g}_{self.seed}.safetensors"


class Floor(Cell, kind="floor"):
    """Exact draws."""

    xi: float
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        generator = seeded(self.seed, self.xi, 1)
        return common.errors(common.exact_draws(config.chains * config.draws, self.xi, generator), self.xi)


class Chains(Cell, kind="chains"):
    """The chains of a sampler."""

    sampler: str
    xi: float
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        generator, (target, rule) = seeded(self.seed, self.xi, 0), self.target_and_rule(folder)
        initial = common.normal_starts(config.chains, self.xi, generator)
        kernel = metropolis_hastings(target, MALA(config.step_size), rule)
        options: dict[str, Any] = {"draws": config.draws, "burn_in": config.warmup, "thin": config.thin}
        chains = sample(kernel, initial, **options, generator=generator)
        outside = float(chains.outside.double().mean()) / config.thin
        return common.errors(chains.draws, self.xi) | {"acceptance": chains.acceptance_rate, "outside": outside}

    def target_and_rule(self, folder: Path) -> tuple[TargetLike, Rule]:
        """Return the target and the acceptance rule."""
        fit = Fit(self.xi, self.seed)
        known: TargetLike = GeneralizedExtremeValue(self.xi)
        if self.sampler not in (EXACT, TRUE):
            known = ScoreFit.load(fit.path(folder, "heavy" if self.sampler == HEAVY else "score"))
        if self.sampler in (TRUE, FREE, POTENTIAL):
            acceptance = AcceptanceFit.load(fit.path(folder, self.sampler))
            return known, Learned(acceptance, "metropolis" if self.sampler == POTENTIAL else "direct")
        rules: dict[str, Rule] = {EXACT: Exact(), ULA: Always()}
        return known, rules.get(self.sampler, LineIntegral("simpson"))


def stages(config: Config) -> list[list[Cell]]:
    """Return trainings, then chains and the floor."""
    axes: dict[str, Any] = {"xi": config.xis, "seed": config.seeds}
    return [grid(Fit, **axes), [*grid(Floor, **axes), *grid(Chains, **axes, sampler=SAMPLERS)]]


def rows(records: Records) -> dict[str, list[Record]]:
    """Return the records of every line by its name."""
    lines = {sampler: records.where("chains", sampler=sampler) for sampler in SAMPLERS}
    return {"exact draws": list(records.kinds["floor"]), **lines}


def competitive(records: Records, sampler: str, key: str) -> list[float]:
    """Return the xi at which a sampler's error is at most twice that of MALA, or of exact draws where that is more."""

    def error(found: list[Record]) -> float:
        sizes = [abs(value) for value in values(found, key)]
        return sum(sizes) / len(sizes)

    good = []
    for xi in records.settings["xis"]:
        own, mala = (records.where("chains", sampler=name, xi=xi) for name in (sampler, EXACT))
        if error(own) <= MAX_RATIO * max(error(mala), error(records.where("floor", xi=xi))):
            good.append(xi)
    return good


def paper_is_competitive(records: Records) -> dict[str, bool]:
    """Return for every sampler of the paper, metric and xi whether it is competitive with MALA."""
    places = product(PAPER, BODY, records.settings["xis"])
    return {f"{s}, {METRICS[key]}, xi = {xi:g}": xi in competitive(records, s, key) for s, key, xi in places}


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw the errors over xi, a panel for every metric."""
    panels = {name: common.curves(rows(records), records.settings["xis"], key) for key, name in METRICS.items()}
    title = "GEV(0, 1, xi): learned scores and acceptances beside MALA"
    common.draw(panels, docs / "gev-learned.png", columns=2, title=title)


STUDY = Study(
    "gev-learned",
    "heavy tails, second figure: learned scores and acceptances on GEV(0, 1, xi), beside MALA",
    PRESETS,
    stages,
    (Fit, Chains, Floor),
    picture,
    vars(common) | globals(),
    {"competitive": Claim("score-based MALA is competitive with MALA, by W1 and MMD", paper_is_competitive)},
)
