"""The rows of Table 1: the training of each, and its sampler."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from scipy.stats import qmc
from torch import Tensor

from scoremh import MALA, AcceptanceFit, Always, LineIntegral, ScoreMH, ThroughNoise, annealing, metropolis_hastings
from scoremh._shared import rng
from scoremh.acceptance import Rule
from scoremh.balance_matching import RECIPE, FormName
from scoremh.networks import FORMS
from scoremh.sampler import ANNEALING_STEP_SIZE, ProposalName
from scoremh.types import Kernel
from studies.framework import Record
from studies.presets import TABLE_3
from studies.table1 import outsiders
from studies.table1.problem import Problem, run, seeded

ANNEALING = (5.0, 0.02, 25, 20, 0.5)  # highest and lowest noise, levels, steps at each, step size over noise squared
FLOW = (5.0, 0.02)  # highest and lowest noise: the flow alone
EXCHANGE = (5.0, 8, 4)  # highest noise, levels down to the fit's own, local moves between swaps
RATE_TIMES_WIDTH = 0.5  # learning rate of a network of the paper's: with RECIPE's the widest do not learn
POTENTIAL_STEPS = 4  # times as many training steps for a potential, each of which costs half as much and less
VERSION = 2  # of the code that draws a row, which is kept with it: 1 is before `scoremh.Sampler`
Drawn = tuple[Tensor, Record]
"""Draws, and what was counted on the way."""
Steps = Mapping[tuple[ProposalName, bool], float]
"""Tuned steps by proposal, and by whether it moves at the fit's own noise level."""


class Method(Protocol):
    """A row of the table."""

    @property
    def label(self) -> str: ...

    def draw(self, problem: Problem, n: int, seed: int, length: int, steps: Steps) -> Drawn:
        """Return n draws, by chains of this length if the method runs chains of one kernel."""


@dataclass(frozen=True)
class Chains:
    """Chains of one kernel, whose draws are carried down by the flow; a rule is given, or learned in a form.

    With anchors, log p through noise at the level of the chains joins the training. A step is tuned if None.
    """

    label: str
    proposal: ProposalName
    rule: Rule | None = None
    form: FormName | None = None
    anchored: bool = False
    own_level: bool = False
    step: float | None = None

    def step_size(self, steps: Steps) -> float:
        """Return the step: a given one, or the tuned one."""
        return steps[self.proposal, self.own_level] if self.step is None else self.step

    def path(self, problem: Problem) -> Path:
        """Return the file of the learned acceptance."""
        names = (self.form or "", self.proposal, "anchored" * self.anchored, "own level" * self.own_level)
        return problem.path(*(name for name in names if name))

    def draw(self, problem: Problem, n: int, seed: int, length: int, steps: Steps) -> Drawn:
        rule = self.rule if self.form is None else AcceptanceFit.load(self.path(problem))
        sampler = problem.sampler(self.proposal, self.step_size(steps), rule, own_level=self.own_level)
        return run(sampler, n, length, seed)


@dataclass(frozen=True)
class Annealed:
    """MALA or ULA from the highest noise level to the lowest, a few steps at each."""

    label: str
    rule: Rule

    def draw(self, problem: Problem, n: int, seed: int, length: int, steps: Steps) -> Drawn:
        high, low, count, each, _ = ANNEALING
        sampler, levels = problem.sampler(acceptance=self.rule), annealing.karras(high, low, int(count))
        found = sampler.anneal(n, int(each), levels=levels, measure_noise=False, generator=seeded(4, seed))
        rate = sum(found.acceptance_rates) / len(found.acceptance_rates)
        counted = {"acceptance": rate, "score_calls": found.score_calls, "steps": sum(found.steps)}
        return sampler.carry_down(found.draws, [low]), counted


@dataclass(frozen=True)
class Exchanged:
    """Replica exchange from the highest noise level to the fit's own, as many local moves at each as a chain has steps.

    Every level starts from broad noise of its own, as chains do.
    """

    label: str

    def draw(self, problem: Problem, n: int, seed: int, length: int, steps: Steps) -> Drawn:
        sampler, (high, count, each) = problem.sampler(own_level=True), EXCHANGE
        standard, levels = problem.score.standard, annealing.geometric(high, sampler.noise_level, count)

        def kernel_at(level: float) -> Kernel:
            return metropolis_hastings(
                standard.at(level), MALA(ANNEALING_STEP_SIZE * level**2), LineIntegral("simpson")
            )

        generator, sweeps = seeded(5, seed), max(2, length // each)
        starts = [sampler.start(n, noise_level=level, generator=generator) for level in levels]
        options: Any = {"draws": 2, "burn_in": sweeps - 2, "steps_per_swap": each, "generator": seeded(4, seed)}
        found = annealing.replica_exchange(kernel_at, levels, starts, model=standard, **options)
        counted = {"acceptance": found.acceptance_rates[-1], "score_calls": found.score_calls, "steps": sweeps * each}
        counted |= {"level": levels[-1], "least_swap_rate": min(found.swap_rates)}
        return sampler.carry_down(found.last[-1], [sampler.noise_level]), counted


@dataclass(frozen=True)
class Estimator:
    """`ScoreMH` as it is."""

    label: str

    def draw(self, problem: Problem, n: int, seed: int, length: int, steps: Steps) -> Drawn:
        model = ScoreMH(random_state=seed).fit(problem.x.numpy())
        chains, sampler = model.sample_chains(n, draws=1), model.sampler_  # the last draws are those of `sample`
        counted = {"acceptance": chains.acceptance_rate, "score_calls": chains.score_calls}
        return chains.last, counted | {"step": sampler.step_size, "level": sampler.noise_level}


@dataclass(frozen=True)
class Direct:
    """No chains: a function of the problem, the number of draws and a random seed."""

    label: str
    function: Callable[[Problem, int, int], Tensor]

    def draw(self, problem: Problem, n: int, seed: int, length: int, steps: Steps) -> Drawn:
        return self.function(problem, n, seed), {}


def sobol_flow(problem: Problem, n: int, seed: int) -> Tensor:
    """Return evenly spread points of the broad normal distribution, carried down to the samples."""
    high = FLOW[0]
    u = torch.from_numpy(qmc.Sobol(problem.x.shape[1], seed=seed).random_base2(math.ceil(math.log2(n)))[:n])
    z = torch.special.ndtri(u.clamp(1e-9, 1 - 1e-9)).to(problem.x)
    return problem.sampler().carry_down(math.sqrt(1 + high**2) * z, annealing.flow_levels(*FLOW))


def flow(problem: Problem, n: int, seed: int) -> Tensor:
    """Return independent points of the broad normal distribution, carried down to the samples."""
    sampler = problem.sampler()
    start = sampler.start(n, noise_level=FLOW[0], generator=seeded(5, seed))
    return sampler.carry_down(start, annealing.flow_levels(*FLOW))


def kernel_density(problem: Problem, n: int, seed: int) -> Tensor:
    """Return draws from a kernel density estimate."""
    return outsiders.kernel_density(problem.x, n, seeded(4, seed))


def spline_flow(problem: Problem, n: int, seed: int) -> Tensor:
    """Return draws from a neural spline flow."""
    return outsiders.spline_flow(problem.x, n, seeded(4, seed))


# a walk as wide as the samples' spread: it reaches every mode in one move
LOW = partial(Chains, proposal="rw", own_level=True, step=1.0)

METHODS: dict[str, Method] = {
    "ula": Chains("ULA", "mala", rule=Always()),
    "score_rw": Chains("Score RW, free", "rw", form="free"),
    "score_mala": Chains("Score MALA, free", "mala", form="free"),
    "score_pcn": Chains("Score pCN, free", "pcn", form="free"),
    "rw_anchored": Chains("Score RW, free, anchored", "rw", form="free", anchored=True),
    "mala_anchored": Chains("Score MALA, free, anchored", "mala", form="free", anchored=True),
    "pcn_anchored": Chains("Score pCN, free, anchored", "pcn", form="free", anchored=True),
    "antisymmetric": Chains("Score MALA, antisymmetric", "mala", form="antisymmetric"),
    "potential": Chains("Score MALA, potential", "mala", form="potential"),
    "simpson": Chains("MALA, Simpson", "mala", rule=LineIntegral("simpson")),
    "adaptive": Chains("MALA, adaptive integral", "mala", rule=LineIntegral("adaptive")),
    "simpson_low": Chains(
        "MALA, Simpson, at the fit's own level", "mala", rule=LineIntegral("simpson"), own_level=True
    ),
    "rw_low": LOW("Score RW, free, own level", form="free"),
    "rw_low_anchored": LOW("Score RW, free, anchored, own level", form="free", anchored=True),
    "antisymmetric_low_anchored": LOW(
        "Score RW, antisymmetric, anchored, own level", form="antisymmetric", anchored=True
    ),
    "potential_low_anchored": LOW("Score RW, potential, anchored, own level", form="potential", anchored=True),
    "through_noise": LOW("RW, through noise, own level", rule=ThroughNoise()),
    "replica_exchange": Exchanged("Replica exchange, own level"),
    "annealed": Annealed("Annealed MALA, Simpson", LineIntegral("simpson")),
    "annealed_ula": Annealed("Annealed ULA", Always()),
    "flow": Direct("Probability flow from independent noise", flow),
    "sobol_flow": Direct("Probability flow from Sobol points", sobol_flow),
    "scoremh": Estimator("ScoreMH, defaults"),
    "kde": Direct("Kernel density estimate", kernel_density),
    "spline_flow": Direct("Neural spline flow", spline_flow),
}
PAPER_METHODS = ("ula", "score_rw", "score_mala", "score_pcn")
ANCHORED = {"rw_anchored": "score_rw", "mala_anchored": "score_mala", "pcn_anchored": "score_pcn"}  # to the paper's
NOT_INDEPENDENT = ("sobol_flow",)
OUTSIDERS = ("kde", "spline_flow")


def learned_rows() -> dict[str, Chains]:
    """Return the rows whose acceptance is learned."""
    return {name: row for name, row in METHODS.items() if isinstance(row, Chains) and row.form is not None}


def tunings() -> list[tuple[ProposalName, bool]]:
    """Return the proposals whose steps are tuned, each with whether it is at the fit's own noise level."""
    rows = [row for row in METHODS.values() if isinstance(row, Chains) and row.step is None]
    return sorted({(row.proposal, row.own_level) for row in rows})


def train(problem: Problem, row: Chains, steps: Steps, length: int) -> Record:
    """Learn the acceptance of a row, with the paper's network except for a potential; return time and loss."""
    assert row.form is not None
    generator, preset = seeded(3, problem.seed), TABLE_3[problem.name]
    if row.form == "potential":
        net, recipe = None, replace(RECIPE, steps=POTENTIAL_STEPS * length)
    else:
        sizes = {"hidden": preset.hidden, "blocks": preset.blocks}
        net = FORMS[row.form].network(tuple(problem.x.shape[1:]), generator=rng.child(generator), **sizes)
        recipe = replace(RECIPE, steps=length, rate=RATE_TIMES_WIDTH / preset.hidden)
    sampler = problem.sampler(row.proposal, row.step_size(steps), own_level=row.own_level)
    options: Any = {"net": net, "recipe": recipe, "anchors": row.anchored, "generator": generator}
    started = time.perf_counter()
    fit = sampler.learn_acceptance(problem.x, row.form, **options).acceptance
    assert isinstance(fit, AcceptanceFit)
    fit.save(row.path(problem))
    return {"seconds": time.perf_counter() - started, "held_out": fit.history["held_out"][-1]}
