"""The rows of Table 1: what is learned for each, and how it draws."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from scipy.stats import qmc
from torch import Tensor

from scoremh import AcceptanceFit, Always, LineIntegral, ScoreMH, annealing
from scoremh._shared import rng
from scoremh.balance_matching import PRESETS, RECIPE, FormName
from scoremh.networks import FORMS
from scoremh.sampler import ProposalName
from scoremh.types import Acceptance
from studies.framework import Record
from studies.table1 import outsiders
from studies.table1.problem import Problem, run, seeded

ANNEALING = (5.0, 0.02, 25, 20, 0.5)  # highest and lowest noise, levels, steps at each, step size over noise squared
FLOW = (5.0, 0.02, 40)  # highest and lowest noise, levels: the flow alone
RATE_TIMES_WIDTH = 0.5  # learning rate of a network of the paper's: with RECIPE's the widest do not learn
POTENTIAL_STEPS = 4  # times as many training steps for a potential, each of which costs half as much and less
Drawn = tuple[Tensor, Record]
"""Draws, and what was counted on the way."""


class Method(Protocol):
    """A row of the table."""

    @property
    def label(self) -> str: ...

    def draw(self, problem: Problem, n: int, seed: int, length: int, steps: Mapping[str, float]) -> Drawn:
        """Return n draws, by chains of this length where there are chains of one kernel.

        `steps` has the tuned steps by proposal, and that of MALA at the fit's own level ("low").
        """


@dataclass(frozen=True)
class Chains:
    """Chains of one kernel, whose draws are carried down by the flow; a rule is given, or learned in a form."""

    label: str
    proposal: ProposalName
    rule: Acceptance | None = None
    form: FormName | None = None
    own_level: bool = False

    def draw(self, problem: Problem, n: int, seed: int, length: int, steps: Mapping[str, float]) -> Drawn:
        rule: Acceptance | AcceptanceFit | None = self.rule
        if self.form is not None:
            rule = AcceptanceFit.load(problem.path(self.form, self.proposal))
        step = steps["low" if self.own_level else self.proposal]
        return run(problem.sampler(self.proposal, step, rule, own_level=self.own_level), n, length, seed)


@dataclass(frozen=True)
class Annealed:
    """MALA or ULA from the highest noise level to the lowest, a few steps at each."""

    label: str
    rule: Acceptance

    def draw(self, problem: Problem, n: int, seed: int, length: int, steps: Mapping[str, float]) -> Drawn:
        high, low, count, each, _ = ANNEALING
        sampler, levels = problem.sampler(acceptance=self.rule), annealing.karras(high, low, int(count))
        found = sampler.anneal(n, int(each), levels=levels, generator=seeded(4, seed))
        rate = sum(found.acceptance_rates) / len(found.acceptance_rates)
        counted = {"acceptance": rate, "score_calls": found.score_calls, "steps": sum(found.steps)}
        return sampler.carry_down(found.draws, [low]), counted


@dataclass(frozen=True)
class Estimator:
    """`ScoreMH` as it is."""

    label: str

    def draw(self, problem: Problem, n: int, seed: int, length: int, steps: Mapping[str, float]) -> Drawn:
        model = ScoreMH(random_state=seed).fit(problem.x.numpy())
        chains, sampler = model.sample_chains(n, draws=1), model.sampler_  # the last draws are those of `sample`
        counted = {"acceptance": chains.acceptance_rate, "score_calls": chains.score_calls}
        return chains.last, counted | {"step": sampler.step_size, "level": sampler.noise_level}


@dataclass(frozen=True)
class Direct:
    """No chains: a function of the problem, the number of draws and a random seed."""

    label: str
    function: Callable[[Problem, int, int], Tensor]

    def draw(self, problem: Problem, n: int, seed: int, length: int, steps: Mapping[str, float]) -> Drawn:
        return self.function(problem, n, seed), {}


def sobol_flow(problem: Problem, n: int, seed: int) -> Tensor:
    """Return evenly spread points of the broad normal distribution, carried down to the samples."""
    high, low, levels = FLOW
    u = torch.from_numpy(qmc.Sobol(problem.x.shape[1], seed=seed).random_base2(math.ceil(math.log2(n)))[:n])
    z = torch.special.ndtri(u.clamp(1e-9, 1 - 1e-9)).to(problem.x)
    return problem.sampler().carry_down(math.sqrt(1 + high**2) * z, annealing.karras(high, low, levels))


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
    "scoremh": Estimator("ScoreMH, defaults"),
    "kde": Direct("Kernel density estimate", kernel_density),
    "spline_flow": Direct("Neural spline flow", spline_flow),
}
PAPER_METHODS = ("ula", "score_rw", "score_mala", "score_pcn")
NOT_INDEPENDENT = ("sobol_flow",)
OUTSIDERS = ("kde", "spline_flow")


def learned_rows() -> dict[str, Chains]:
    """Return the rows whose acceptance is learned."""
    return {name: row for name, row in METHODS.items() if isinstance(row, Chains) and row.form is not None}


def trainings() -> list[tuple[ProposalName, FormName]]:
    """Return the proposals and forms for which acceptances are learned."""
    return sorted({(row.proposal, row.form) for row in learned_rows().values() if row.form is not None})


def train(problem: Problem, proposal: ProposalName, form: FormName, step: float, steps: int) -> Record:
    """Learn an acceptance for a tuned step, with the paper's network but for a potential; return time and loss."""
    generator, row = seeded(3, problem.seed), PRESETS[problem.name]
    if form == "potential":
        net, recipe = None, replace(RECIPE, steps=POTENTIAL_STEPS * steps)
    else:
        sizes = {"hidden": row.hidden, "blocks": row.blocks}
        net = FORMS[form].network(tuple(problem.x.shape[1:]), generator=rng.child(generator), **sizes)
        recipe = replace(RECIPE, steps=steps, rate=RATE_TIMES_WIDTH / row.hidden)
    sampler = problem.sampler(proposal, step)
    fit = sampler.learn_acceptance(problem.x, form, net=net, recipe=recipe, generator=generator).acceptance
    assert isinstance(fit, AcceptanceFit)
    fit.save(problem.path(form, proposal))
    return {"seconds": fit.seconds, "held_out": fit.history["held_out"][-1]}
