"""Measurements of acceptance rules: bias, and the quality of learned rules for their training time."""

import time
import warnings
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from scipy import stats
from torch import Tensor

from scoremh import (
    AcceptanceFit,
    DegenerateRuleWarning,
    Learned,
    ScoreFit,
    datasets,
    fit_acceptance,
    metropolis_hastings,
    sample,
)
from scoremh.acceptance import Rule
from scoremh.balance_matching import MATCHING, RECIPE, FormName, Pairs
from scoremh.types import Proposal
from studies.acceptance import elsewhere, exactness
from studies.acceptance.rules import (
    BEST_PAIRS,
    BIAS_PROPOSALS,
    BOTH,
    FORMS,
    LEARNED,
    OVERLAPPING,
    PAIRS,
    PROPOSALS,
    RULES,
    UNTRAINED,
    WALKS,
)
from studies.framework import Cell, Record, grid
from studies.learning import acceptance_rate, error, learned_acceptance, learned_score, seeded


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1, 2, 3)  # random seeds of the acceptances' trainings
    budgets: tuple[int, int, int] = (25, 100, 400)  # CPU seconds of training
    samples: int = 10_000  # samples to learn from
    fresh: int = 10_000  # fresh samples for tests
    chains: int = 20_000  # chains whose bias is measured
    chain_steps: int = 200  # steps of such a chain
    exact: int = 1_000_000  # exact draws that they are compared with
    test_chains: int = 10_000  # chains of a test of stationarity
    test_steps: int = 20  # steps of such a chain
    variance_chains: int = 100_000  # chains whose variance is measured
    variance_steps: int = 60  # steps of such a chain
    tuned_chains: int = 64  # chains whose effective draws are counted
    tuned_draws: int = 2_000  # draws of such a chain
    elsewhere_chains: int = 40_000  # chains of a test of stationarity of the exact rule on other distributions
    tuned_runs: int = 8  # runs of all of them, over which effective draws are averaged


def fresh_moons(config: Config) -> Tensor:
    """Return the samples of Moons on which acceptances are tested."""
    return datasets.moons(config.fresh, generator=seeded(2))


def training_and_judging(dataset: str, walk: str) -> tuple[Proposal, dict[str, Proposal]]:
    """Return the proposal to train with, and the proposals to test with: a potential learns with the first."""
    proposals = PROPOSALS[dataset]
    if walk == BOTH:
        return next(iter(proposals.values())), proposals
    return proposals[walk], {walk: proposals[walk]}


class Untrained(Cell, kind="untrained"):
    """The errors of rules that need no training, on Moons."""

    proposal: str

    def measure(self, config: Config, folder: Path) -> Record:
        score, _ = learned_score("moons", folder, samples=config.samples)
        proposal, fresh = PROPOSALS["moons"][self.proposal], fresh_moons(config)
        return {name: error(rule, score, proposal, fresh) for name, rule in UNTRAINED.items()}


class Quality(Cell, kind="quality"):
    """The error of a form after a time of training on Moons."""

    form: FormName
    pairs: Pairs
    proposal: str
    budget: int
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        score, x = learned_score("moons", folder, samples=config.samples)
        proposal, judged = training_and_judging("moons", self.proposal)

        def train(steps: int) -> tuple[AcceptanceFit, float]:
            started = time.process_time()
            return self._fit(score, proposal, x, steps), time.process_time() - started

        train(5)
        (_, few), (_, more) = train(20), train(120)
        steps = max(20, int(100 * (self.budget - few) / (more - few)))
        fit, taken = train(steps)
        fresh = fresh_moons(config)
        return {
            "errors": {name: error(Learned(fit, "metropolis"), score, one, fresh) for name, one in judged.items()},
            "direct": {name: acceptance_rate(Learned(fit), score, one, fresh) for name, one in judged.items()},
            "steps": steps,
            "seconds": taken,
        }

    def _fit(self, score: ScoreFit, proposal: Proposal, x: Tensor, steps: int) -> AcceptanceFit:
        recipe = replace(RECIPE, steps=steps, check_every=max(1, steps // 5), patience=None)
        matching = replace(MATCHING[self.form], pairs=self.pairs)
        options: dict[str, Any] = {"form": self.form, "matching": matching, "recipe": recipe}
        return fit_acceptance(score, proposal, x, **options, generator=seeded(3, self.seed))


class Bias(Cell, kind="bias"):
    """How far chains from exact draws of two overlapping modes drift away, with the true score."""

    rule: str
    proposal: str

    def measure(self, config: Config, folder: Path) -> Record:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegenerateRuleWarning)
            kernel = metropolis_hastings(OVERLAPPING, BIAS_PROPOSALS[self.proposal], self._rule(config))
        start = OVERLAPPING.sample(config.chains, generator=seeded(2))
        chains = sample(kernel, start, draws=1, burn_in=config.chain_steps, generator=seeded(4))
        exact = OVERLAPPING.sample(config.exact, generator=seeded(2, 2))
        return {
            "distance": largest_distance(chains.draws[:, -1], exact),
            "floor": largest_distance(start, exact),
            "acceptance": chains.acceptance_rate,
            "calls": chains.score_calls / (config.chains * (config.chain_steps + 1)),
        }

    def _rule(self, config: Config) -> Rule:
        if self.rule in RULES:
            return RULES[self.rule]
        form, balance, matching = LEARNED[self.rule]
        x = OVERLAPPING.sample(config.samples, generator=seeded(0))
        return Learned(learned_acceptance(OVERLAPPING, BIAS_PROPOSALS[self.proposal], x, form, matching), balance)


def largest_distance(x: Tensor, y: Tensor) -> float:
    """Return the larger Kolmogorov-Smirnov distance of the coordinates."""
    columns = zip(x.double().T, y.double().T, strict=True)
    return max(float(stats.ks_2samp(a.numpy(), b.numpy()).statistic) for a, b in columns)


KINDS = (Untrained, Quality, Bias, *exactness.KINDS, *elsewhere.KINDS)


def stages(config: Config) -> list[list[Cell]]:
    """Return all cells, the most telling first."""
    first: list[Cell] = [*grid(Untrained, proposal=WALKS)]
    short, *longer = config.budgets
    bias = grid(Bias, proposal=BIAS_PROPOSALS, rule=[*RULES, *LEARNED])
    rest = [cell for best in (True, False) for budget in longer for cell in trainings(config, budget, best=best)]
    first += [*exactness.cells(), *elsewhere.cells()]
    return [[*first, *trainings(config, short, best=True), *trainings(config, short, best=False), *bias, *rest]]


def trainings(config: Config, budget: int, *, best: bool) -> list[Cell]:
    """Return the trainings of one budget, with the best pairing of each form or with the others."""
    found = []
    for form, pairs in product(FORMS, PAIRS):
        if (BEST_PAIRS[form] == pairs) == best:
            walks = (BOTH,) if form == "potential" else WALKS
            axes: dict[str, Any] = {
                "form": [form],
                "pairs": [pairs],
                "proposal": walks,
                "budget": [budget],
                "seed": config.seeds,
            }
            found += grid(Quality, **axes)
    return found
