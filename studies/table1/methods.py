"""The rows of Table 1: what is learned for each, and how it draws."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from scipy.stats import qmc
from torch import Tensor

from scoremh import Always, LineIntegral, anneal, annealing, fit_acceptance, metropolis_hastings
from scoremh.balance_matching import PRESETS, RECIPE, FormName
from scoremh.balance_matching.fitting import pair_network
from scoremh.types import Acceptance, Kernel
from studies.framework import Record
from studies.table1 import outsiders
from studies.table1.problem import NOISE_LEVEL, Problem, learned_rule, seeded

ANNEALING = (5.0, 0.02, 25, 20, 0.5)  # highest and lowest noise, levels, steps at each, step size over noise squared
FLOW = (5.0, 0.02, 40)  # highest and lowest noise, levels: the flow alone
RATE_TIMES_WIDTH = 0.5  # learning rate of a network of the paper's: with RECIPE's the widest do not learn
POTENTIAL_STEPS = 4  # times as many training steps for a potential, each of which costs half as much and less
Drawn = tuple[Tensor, Record]
"""Draws, and what was counted on the way."""


class Method(Protocol):
    """A row of the table."""

    @property
    def label(self) -> str:
        """What the table calls it."""

    def draw(self, problem: Problem, n: int, seed: int, length: int, steps: Mapping[str, float]) -> Drawn:
        """Return n draws.

        Args:
            problem: Dataset, samples and score.
            n: Number of draws.
            seed: Random seed of the chains.
            length: Number of steps of a chain, where there are chains of one kernel.
            steps: Tuned steps by proposal, and of MALA at the fit's own level ("low").
        """


@dataclass(frozen=True)
class Chains:
    """Chains of one kernel, whose draws are carried down by the flow; a rule is given, or learned in a form."""

    label: str
    proposal: str
    rule: Acceptance | None = None
    form: FormName | None = None
    own_level: bool = False

    def draw(self, problem: Problem, n: int, seed: int, length: int, steps: Mapping[str, float]) -> Drawn:
        """Return the last draws of the chains."""
        rule, step = self.rule, steps["low" if self.own_level else self.proposal]
        if rule is None:
            assert self.form is not None
            rule = learned_rule(problem.path(self.form, self.proposal))
        return problem.run(self.proposal, step, rule, length=length, n=n, seed=seed, own_level=self.own_level)


@dataclass(frozen=True)
class Annealed:
    """MALA or ULA from the highest noise level to the lowest, a few steps at each."""

    label: str
    rule: Acceptance

    def draw(self, problem: Problem, n: int, seed: int, length: int, steps: Mapping[str, float]) -> Drawn:
        """Return the draws at the lowest level, carried down to the samples."""
        high, low, count, each, ratio = ANNEALING

        def kernel_at(level: float) -> Kernel:
            return metropolis_hastings(problem.score.at(level), problem.proposal("mala", ratio * level**2), self.rule)

        start, levels = problem.start(n, high, seeded(5, seed)), annealing.karras(high, low, int(count))
        found = anneal(kernel_at, levels, start, steps_per_level=int(each), generator=seeded(4, seed))
        return problem.carried(found.draws, low), {
            "acceptance": sum(found.acceptance_rates) / len(found.acceptance_rates),
            "score_calls": found.score_calls,
            "steps": sum(found.steps),
        }


@dataclass(frozen=True)
class Direct:
    """No chains: a function of the problem, the number of draws and a random seed."""

    label: str
    function: Callable[[Problem, int, int], Tensor]

    def draw(self, problem: Problem, n: int, seed: int, length: int, steps: Mapping[str, float]) -> Drawn:
        """Return the draws."""
        return self.function(problem, n, seed), {}


def sobol_flow(problem: Problem, n: int, seed: int) -> Tensor:
    """Return evenly spread points of the broad normal distribution, carried down to the samples."""
    high, low, levels = FLOW
    u = torch.from_numpy(qmc.Sobol(problem.x.shape[1], seed=seed).random_base2(math.ceil(math.log2(n)))[:n])
    start = problem.broad(torch.special.ndtri(u.clamp(1e-9, 1 - 1e-9)).to(problem.x), high)
    return problem.carried(start, *annealing.karras(high, low, levels))


def kernel_density(problem: Problem, n: int, seed: int) -> Tensor:
    """Return draws from a kernel density estimate."""
    return outsiders.kernel_density(problem.x, n, seeded(4, seed))


def spline_flow(problem: Problem, n: int, seed: int) -> Tensor:
    """Return draws from a neural spline flow."""
    return outsiders.spline_flow(problem.x, n, seeded(4, seed))


METHODS: dict[str, Method] = {
    "ula": Chains("ULA", "mala", rule=Always()),
    "score_rw": Chains("Score RW, free", "rw", form="free"),
    "score_mala": Chains("Score MALA, free", "mala", form="free"),
    "score_pcn": Chains("Score pCN, free", "pcn", form="free"),
    "antisymmetric": Chains("Score MALA, antisymmetric", "mala", form="antisymmetric"),
    "potential": Chains("Score MALA, potential", "mala", form="potential"),
    "simpson": Chains("MALA, Simpson", "mala", rule=LineIntegral()),
    "adaptive": Chains("MALA, adaptive integral", "mala", rule=LineIntegral("adaptive")),
    "simpson_low": Chains("MALA, Simpson, at the fit's own level", "mala", rule=LineIntegral(), own_level=True),
    "annealed": Annealed("Annealed MALA, Simpson", LineIntegral()),
    "annealed_ula": Annealed("Annealed ULA", Always()),
    "sobol_flow": Direct("Probability flow from Sobol points", sobol_flow),
    "kde": Direct("Kernel density estimate", kernel_density),
    "spline_flow": Direct("Neural spline flow", spline_flow),
}
PAPER_METHODS = ("ula", "score_rw", "score_mala", "score_pcn")
NOT_INDEPENDENT = ("sobol_flow",)
OUTSIDERS = ("kde", "spline_flow")


def learned_rows() -> dict[str, Chains]:
    """Return the rows whose acceptance is learned."""
    return {name: row for name, row in METHODS.items() if isinstance(row, Chains) and row.form is not None}


def trainings() -> list[tuple[str, FormName]]:
    """Return the proposals and forms for which acceptances are learned."""
    return sorted({(row.proposal, row.form) for row in learned_rows().values() if row.form is not None})


def train(problem: Problem, proposal: str, form: FormName, step: float, steps: int) -> Record:
    """Learn an acceptance for the blurred distribution, with the paper's network but for a potential.

    Args:
        problem: Dataset, samples and score.
        proposal: Proposal that it is for.
        form: Form of the acceptance.
        step: Tuned step of the proposal.
        steps: Number of training steps.
    """
    generator, row = seeded(3, problem.seed), PRESETS[problem.name]
    blurred = problem.blurred(generator)
    if form == "potential":
        net, recipe = None, replace(RECIPE, steps=POTENTIAL_STEPS * steps)
    else:
        net = pair_network(form, tuple(problem.x.shape[1:]), row.hidden, row.blocks, generator=generator)
        recipe = replace(RECIPE, steps=steps, rate=RATE_TIMES_WIDTH / row.hidden)
    fit = fit_acceptance(
        problem.score.at(NOISE_LEVEL),
        problem.proposal(proposal, step),
        blurred,
        form=form,
        net=net,
        recipe=recipe,
        generator=generator,
    )
    fit.save(problem.path(form, proposal))
    return {"seconds": fit.seconds, "held_out": fit.history["held_out"][-1]}
