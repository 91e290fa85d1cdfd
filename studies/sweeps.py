"""Acceptance rules over MALA's step size: W1 on Swiss roll, and the Taylor rules of Appendix A on Moons.

Scores, starts, chains and distances are those of Table 1.
"""

import math
import statistics
import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from scoremh import AcceptanceFit, Always, DegenerateRuleWarning, LineIntegral, Taylor
from scoremh.acceptance import Rule
from scoremh.balance_matching import RECIPE, FormName
from studies import plots, table1
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.framework.runner import earlier
from studies.framework.tables import mean, spread
from studies.table1 import Problem, distances, floor, seeded

METRICS = {"mmd": "MMD", "w1": "W1"}
CLOSE = 1.5  # times the least W1
MAX_RATIO_TO_FLOOR = 1000  # above, chains have diverged
POTENTIAL_STEPS = 4  # times as many training steps for a potential, each of which costs half as much and less
ANY_STEP: Literal["any"] = "any"  # a potential serves every step


class SweptRule(NamedTuple):
    """A line of the figure: a rule, or the form of one that is learned."""

    label: str
    rule: Rule | None = None
    form: FormName | None = None


RULES = {
    "ula": SweptRule("ULA", Always()),
    "taylor1": SweptRule("Taylor-1", Taylor(1)),
    "taylor1_averaged": SweptRule("Taylor-1, averaged", Taylor(1, average=True)),
    "taylor2": SweptRule("Taylor-2", Taylor(2)),
    "taylor2_averaged": SweptRule("Taylor-2, averaged", Taylor(2, average=True)),
    "score_mala": SweptRule("Score MALA, free", form="free"),
    "potential": SweptRule("Score MALA, potential", form="potential"),
    "simpson": SweptRule("Simpson", LineIntegral("simpson")),
}
LABELS = {name: rule.label for name, rule in RULES.items()}


@dataclass(frozen=True)
class Sweep:
    """All that decides the numbers."""

    dataset: str  # name of a dataset of Table 1
    rules: tuple[str, ...]  # names in `RULES`
    factors: tuple[float, ...]  # step sizes, as multiples of the tuned one
    draws: int  # number of chains, and of points to compare them with
    training: int  # training steps of a learned acceptance
    seeds: tuple[int, ...] = (1, 2, 3)  # random seeds of samples, trainings and chains
    chain_steps: int = 300  # steps of a chain
    floors: int = 5  # fresh samples whose distances give the floor, for every seed


class Tuned(Cell, kind="tuned"):
    """The step size that is accepted at MALA's most efficient rate; the score is learned first."""

    seed: int

    def measure(self, config: Sweep, folder: Path) -> Record:
        problem = Problem(config.dataset, self.seed, folder)
        problem.fit_score()
        return table1.tuned(problem.sampler(), self.seed)


class Training(Cell, kind="acceptance"):
    """An acceptance, learned for one step size, or for any."""

    form: FormName
    factor: float | Literal["any"]
    seed: int

    def measure(self, config: Sweep, folder: Path) -> Record:
        problem, generator = Problem(config.dataset, self.seed, folder), seeded(3, self.seed)
        tuned = earlier(Tuned(self.seed), folder)["step"]
        steps = POTENTIAL_STEPS * config.training if self.form == "potential" else config.training
        sampler = problem.sampler(step=tuned * (1 if self.factor == ANY_STEP else self.factor))
        recipe = replace(RECIPE, steps=steps)
        fit = sampler.learn_acceptance(problem.x, self.form, recipe=recipe, generator=generator).acceptance
        assert isinstance(fit, AcceptanceFit)
        fit.save(self.path(problem))
        return {"seconds": fit.seconds}

    def path(self, problem: Problem) -> Path:
        """Return the file of the fit."""
        return problem.path(self.form, "mala", str(self.factor))


class Draws(Cell, kind="draws"):
    """Chains of one rule with one step size."""

    rule: str
    factor: float
    seed: int

    def measure(self, config: Sweep, folder: Path) -> Record:
        problem, (_, rule, form) = Problem(config.dataset, self.seed, folder), RULES[self.rule]
        step = self.factor * earlier(Tuned(self.seed), folder)["step"]
        learned: AcceptanceFit | None = None
        if form is not None:
            factor = ANY_STEP if form == "potential" else self.factor
            learned = AcceptanceFit.load(Training(form, factor, self.seed).path(problem))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegenerateRuleWarning)  # the paper has such a rule; the page says so
            sampler = problem.sampler("mala", step, learned or rule)
            draws, rate = table1.run(sampler, config.draws, config.chain_steps, self.seed)
        found = distances(draws, problem.fresh(config.draws))
        return {metric: found[metric] for metric in METRICS} | {"acceptance": rate}


class Floor(Cell, kind="floor"):
    """Distances between fresh samples."""

    seed: int
    number: int

    def measure(self, config: Sweep, folder: Path) -> Record:
        found = floor(Problem(config.dataset, self.seed, folder), config.draws, self.number)
        return {metric: found[metric] for metric in METRICS}


def stages(config: Sweep) -> list[list[Cell]]:
    """Return tuned steps, trainings, and chains with their floor."""
    forms = {form for name in config.rules if (form := RULES[name].form)}
    trainings = [
        *grid(Training, form=forms - {"potential"}, factor=config.factors, seed=config.seeds),
        *grid(Training, form=forms & {"potential"}, factor=[ANY_STEP], seed=config.seeds),
    ]
    floors = grid(Floor, seed=config.seeds, number=range(config.floors))
    draws = grid(Draws, seed=config.seeds, rule=config.rules, factor=config.factors)
    return [grid(Tuned, seed=config.seeds), trainings, draws + floors]


def means(records: Records, rule: str, metric: str) -> dict[float, float]:
    """Return the means of a number over seeds by step size; infinity where chains left the samples behind."""
    tuned, found = mean(records.values("tuned", "step")), {}
    limit = MAX_RATIO_TO_FLOOR * floor_of(records, metric) if metric in METRICS else 1.0
    for factor in records.settings["factors"]:
        value = mean(records.values("draws", metric, rule=rule, factor=factor))
        found[factor * tuned] = value if value <= limit else math.inf
    return found


def floor_of(records: Records, metric: str) -> float:
    """Return the mean floor of a metric."""
    return mean(records.values("floor", metric))


def reach(records: Records) -> dict[str, float]:
    """Return the largest step size of every rule at which W1 is close to its least over all rules; 0 if none."""
    found = {rule: means(records, rule, "w1") for rule in records.settings["rules"]}
    least = min(value for by_step in found.values() for value in by_step.values())
    return {r: max((h for h, w1 in by.items() if w1 <= CLOSE * least), default=0.0) for r, by in found.items()}


def compared(records: Records, rule: str, other: str) -> tuple[int, int]:
    """Return at how many steps MMD by a rule is better than by another, and at how many worse, beyond its noise.

    The noise is twice the standard error of their difference over seeds, and counts as 0 with one seed.
    """
    better = worse = 0
    for factor in records.settings["factors"]:
        own, theirs = (records.values("draws", "mmd", rule=name, factor=factor) for name in (rule, other))
        gaps = [0.0 if a == b else a - b for a, b in zip(own, theirs, strict=True)]
        finite = all(map(math.isfinite, gaps)) and len(gaps) > 1
        noise = 2 * statistics.stdev(gaps) / math.sqrt(len(gaps)) if finite else 0.0
        better += mean(gaps) < -noise
        worse += mean(gaps) > noise
    return better, worse


def robust(records: Records) -> bool:
    """Return whether Score MALA is good up to a larger step size than ULA."""
    return reach(records)["score_mala"] > reach(records)["ula"]


def averaged_is_better(records: Records) -> bool:
    """Return whether averaged Taylor-1 is better than both rules without averaging at more steps than worse."""
    counts = [compared(records, "taylor1_averaged", other) for other in ("taylor1", "taylor2")]
    return all(better > worse for better, worse in counts)


def averaged_is_second_order(records: Records) -> bool:
    """Return whether averaged Taylor-1 is as good as averaged Taylor-2 at half of the steps or more."""
    return 2 * compared(records, "taylor1_averaged", "taylor2_averaged")[1] <= len(records.settings["factors"])


def learned_is_better(records: Records) -> bool:
    """Return whether score-based MALA is better than averaged Taylor-1 at more steps than it is worse."""
    better, worse = compared(records, "score_mala", "taylor1_averaged")
    return better > worse


def picture(records: Records, folder: Path, docs: Path, *, name: str, metric: str, title: str) -> None:
    """Draw the metric and the acceptance over step sizes."""
    panels = {
        head: {LABELS[rule]: curve(records, rule, key) for rule in records.settings["rules"]}
        for head, key in {METRICS[metric]: metric, "acceptance": "acceptance"}.items()
    }
    levels = {METRICS[metric]: {"floor": floor_of(records, metric)}}
    labels = ("step size h", "")
    plots.curve_panels(panels, docs / f"{name}.png", labels=labels, levels=levels, log=True, shared=False, title=title)


def curve(records: Records, rule: str, key: str) -> plots.Curve:
    """Return a number over step sizes, with its spread over seeds; not 0, which a logarithmic axis cannot show."""
    found = zip(records.settings["factors"], means(records, rule, key).items(), strict=True)
    good = [(factor, h, value) for factor, (h, value) in found if 0 < value < math.inf]
    bars = [spread(records.values("draws", key, rule=rule, factor=factor)) for factor, _, _ in good]
    return [h for _, h, _ in good], [value for _, _, value in good], bars


SWISS_ROLL = Sweep(
    "swiss_roll",
    ("ula", "score_mala", "potential", "simpson"),
    (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0),
    draws=2000,
    training=300,
)
MOONS = Sweep(
    "moons",
    ("ula", "taylor1", "taylor1_averaged", "taylor2", "taylor2_averaged", "score_mala", "simpson"),
    (0.1, 0.25, 0.5, 1.0, 2.0, 4.0),
    draws=1000,
    training=1000,
)
STEP_SIZE = Study(
    "step-size",
    "W1 against the step size on Swiss roll: how far does an accept step let steps grow?",
    SWISS_ROLL,
    stages,
    partial(picture, name="step-size", metric="w1", title="Swiss roll: W1 against the step size"),
    globals(),
    {"robust": Claim("Score MALA is more robust to the step size than ULA, by W1 on Swiss roll", robust)},
)
TAYLOR = Study(
    "taylor",
    "Appendix A: Taylor rules, learned acceptances and Simpson's rule over step sizes, on Moons",
    MOONS,
    stages,
    partial(picture, name="taylor", metric="mmd", title="Taylor rules and learned acceptances on Moons"),
    globals(),
    {
        "better": Claim("averaged Taylor-1 is better than Taylor-1 and Taylor-2 without averaging", averaged_is_better),
        "second_order": Claim("averaged Taylor-1 is about as good as averaged Taylor-2", averaged_is_second_order),
        "learned": Claim("score-based MALA outperforms the averaged Taylor rule", learned_is_better),
    },
)
