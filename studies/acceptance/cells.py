"""Measurements of acceptance rules: bias, and the quality of learned rules for their training time."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scipy import stats
from torch import Tensor

from scoremh import AcceptanceFit, Learned, ScoreFit, datasets, fit_acceptance, metropolis_hastings, sample
from scoremh.balance_matching import MATCHING, RECIPE, FormName
from scoremh.types import Kernel, Proposal
from studies.acceptance import exactness
from studies.acceptance.exactness import kernel_of
from studies.acceptance.rules import BIAS_PROPOSALS, BOTH, FORMS, LEARNED, OVERLAPPING, PROPOSALS, RULES, UNTRAINED
from studies.framework import Cell, Record, grid
from studies.learning import error, learned_score, seeded


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1, 2, 3)  # random seeds of the acceptances' trainings
    budgets: tuple[int, ...] = (25, 100, 400)  # CPU seconds of training
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


def score_of_moons(config: Config, folder: Path) -> tuple[ScoreFit, Tensor]:
    """Return the learned score of Moons and its samples."""
    return learned_score("moons", folder, samples=config.samples)


def fresh_moons(config: Config) -> Tensor:
    """Return the samples of Moons on which acceptances are tested."""
    return datasets.moons(config.fresh, generator=seeded(2))


class Untrained(Cell, kind="untrained"):
    """The errors of rules that need no training, on Moons."""

    proposal: str

    def measure(self, config: Config, folder: Path) -> Record:
        (score, _), proposal, fresh = score_of_moons(config, folder), PROPOSALS[self.proposal], fresh_moons(config)
        return {name: error(rule, score, proposal, fresh) for name, rule in UNTRAINED.items()}


class Quality(Cell, kind="quality"):
    """The error of a form after a time of training on Moons."""

    form: FormName
    proposal: str
    budget: int
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        score, x = score_of_moons(config, folder)
        judged = PROPOSALS if self.proposal == BOTH else {self.proposal: PROPOSALS[self.proposal]}
        proposal = next(iter(judged.values()))

        def train(steps: int) -> tuple[AcceptanceFit, float]:
            started = time.process_time()
            return self._fit(score, proposal, x, steps), time.process_time() - started

        train(5)
        (_, few), (_, more) = train(20), train(120)
        fit, _ = train(max(20, int(100 * (self.budget - few) / (more - few))))
        fresh, rule = fresh_moons(config), Learned(fit, "metropolis")
        return {"errors": {name: error(rule, score, one, fresh) for name, one in judged.items()}}

    def _fit(self, score: ScoreFit, proposal: Proposal, x: Tensor, steps: int) -> AcceptanceFit:
        recipe = replace(RECIPE, steps=steps, check_every=max(1, steps // 5), patience=None)
        matching = replace(MATCHING[self.form], pairs=FORMS[self.form])
        options: dict[str, Any] = {"form": self.form, "matching": matching, "recipe": recipe}
        return fit_acceptance(score, proposal, x, **options, generator=seeded(3, self.seed))


class Bias(Cell, kind="bias"):
    """How far chains from exact draws of two overlapping modes drift away, with the true score."""

    rule: str
    proposal: str

    def measure(self, config: Config, folder: Path) -> Record:
        start = OVERLAPPING.sample(config.chains, generator=seeded(2))
        chains = sample(self._kernel(config), start, draws=1, burn_in=config.chain_steps, generator=seeded(4))
        exact = OVERLAPPING.sample(config.exact, generator=seeded(2, 2))
        columns = zip(chains.last.double().T, exact.double().T, strict=True)
        return {
            "distance": max(float(stats.ks_2samp(a.numpy(), b.numpy()).statistic) for a, b in columns),
            "acceptance": chains.acceptance_rate,
            "calls": chains.score_calls / (config.chains * (config.chain_steps + 1)),
        }

    def _kernel(self, config: Config) -> Kernel:
        proposal = BIAS_PROPOSALS[self.proposal]
        if self.rule in RULES:
            return kernel_of(OVERLAPPING, proposal, self.rule)
        form, x = self.rule.split(",")[0], OVERLAPPING.sample(config.samples, generator=seeded(0))
        fit = fit_acceptance(OVERLAPPING, proposal, x, form=form, generator=seeded(3))  # type: ignore[arg-type]
        return metropolis_hastings(OVERLAPPING, proposal, Learned(fit, "metropolis"))


def stages(config: Config) -> list[list[Cell]]:
    """Return all cells, short trainings first."""
    trainings = [
        cell
        for budget in config.budgets
        for form in FORMS
        for cell in grid(
            Quality,
            form=[form],
            proposal=[BOTH] if form == "potential" else PROPOSALS,
            budget=[budget],
            seed=config.seeds,
        )
    ]
    bias = grid(Bias, proposal=BIAS_PROPOSALS, rule=[*RULES, *(f"{form}, metropolis" for form in LEARNED)])
    return [[*grid(Untrained, proposal=PROPOSALS), *exactness.cells(), *bias, *trainings]]
