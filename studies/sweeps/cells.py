"""The cells of a sweep: acceptance rules over a range of MALA's step sizes on one dataset.

Scores, starts, chains and distances are those of Table 1.
"""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from scoremh import AcceptanceFit, Always, DegenerateRuleWarning, LineIntegral, Taylor
from scoremh.acceptance import Rule
from scoremh.balance_matching import RECIPE, FormName
from studies.framework import Cell, Record, grid
from studies.framework.runner import earlier
from studies.table1 import problem as table1
from studies.table1.judging import distances, floor
from studies.table1.problem import Problem, seeded


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
    "simpson": SweptRule("Simpson", LineIntegral("simpson")),
    "gauss3": SweptRule("Gauss, 3 nodes", LineIntegral("gauss", nodes=3)),
    "score_mala": SweptRule("Score MALA, free", form="free"),
    "potential": SweptRule("Score MALA, potential", form="potential"),
}
LABELS = {name: rule.label for name, rule in RULES.items()}
POTENTIAL_STEPS = 4  # times as many training steps for a potential, each of which costs half as much and less
ANY_STEP: Literal["any"] = "any"  # a potential serves every step


@dataclass(frozen=True)
class Sweep:
    """All that decides the numbers."""

    dataset: str  # name of a dataset of Table 1
    rules: tuple[str, ...]  # names in `RULES`
    factors: tuple[float, ...]  # step sizes, as multiples of the tuned one
    seeds: tuple[int, ...]  # random seeds of samples, trainings and chains
    draws: int  # number of chains, and of points to compare them with
    chain_steps: int  # steps of a chain
    training: int  # training steps of a learned acceptance
    floors: int  # fresh samples whose distances give the floor, for every seed


class Score(Cell, kind="score"):
    """The learned score."""

    seed: int

    def measure(self, config: Sweep, folder: Path) -> Record:
        return Problem(config.dataset, self.seed, folder).fit_score()


class Tuned(Cell, kind="tuned"):
    """The step size that is accepted at MALA's most efficient rate."""

    seed: int

    def measure(self, config: Sweep, folder: Path) -> Record:
        return table1.tuned(Problem(config.dataset, self.seed, folder).sampler(), self.seed)


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
        return {"seconds": fit.seconds, "held_out": fit.history["held_out"][-1]}

    def path(self, problem: Problem) -> Path:
        """Return the file of the fit."""
        return problem.path(self.form, "mala", str(self.factor))


class Draws(Cell, kind="draws"):
    """Chains of one rule with one step size."""

    rule: str
    factor: float
    seed: int

    def measure(self, config: Sweep, folder: Path) -> Record:
        problem, form = Problem(config.dataset, self.seed, folder), RULES[self.rule].form
        rule: Rule | AcceptanceFit | None = RULES[self.rule].rule
        step = self.factor * earlier(Tuned(self.seed), folder)["step"]
        if form is not None:
            factor = ANY_STEP if form == "potential" else self.factor
            rule = AcceptanceFit.load(Training(form, factor, self.seed).path(problem))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegenerateRuleWarning)  # the paper has such a rule; the page says so
            sampler = problem.sampler("mala", step, rule)
            draws, counted = table1.run(sampler, config.draws, config.chain_steps, self.seed)
        return {**distances(draws, problem.fresh(config.draws)), **counted}


class Floor(Cell, kind="floor"):
    """Distances between fresh samples."""

    seed: int
    number: int

    def measure(self, config: Sweep, folder: Path) -> Record:
        return floor(Problem(config.dataset, self.seed, folder), config.draws, self.number)


def stages(config: Sweep) -> list[list[Cell]]:
    """Return scores, tuned steps, trainings, and chains with their floor."""
    forms = {form for name in config.rules if (form := RULES[name].form)}
    seeds, trainings = config.seeds, []
    for seed in seeds:
        trainings += grid(Training, form=forms - {"potential"}, factor=config.factors, seed=[seed])
        trainings += grid(Training, form=forms & {"potential"}, factor=[ANY_STEP], seed=[seed])
    return [
        grid(Score, seed=seeds),
        grid(Tuned, seed=seeds),
        trainings,
        [
            *grid(Draws, seed=seeds, rule=config.rules, factor=config.factors),
            *grid(Floor, seed=seeds, number=range(config.floors)),
        ],
    ]


KINDS = (Score, Tuned, Training, Draws, Floor)
