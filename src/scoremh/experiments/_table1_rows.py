"""The rows of Table 1: what is learned for them from samples, and how each draws."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from scipy.stats import qmc
from torch import Tensor

from scoremh import (
    MALA,
    PCN,
    AcceptanceFit,
    Always,
    Learned,
    LineIntegral,
    RandomWalk,
    ScoreFit,
    anneal,
    annealing,
    datasets,
    fit_acceptance,
    fit_score,
    metropolis_hastings,
    sample,
    tune,
)
from scoremh._shared import rng
from scoremh.balance_matching import PRESETS, RECIPE, FormName
from scoremh.experiments import _outsiders
from scoremh.networks import FORMS, Free, NoiseConditionalMLP
from scoremh.types import Acceptance, Kernel, Proposal

LAWS: dict[str, Callable[..., Tensor]] = {
    "moons": datasets.moons,
    "pinwheel": datasets.pinwheel,
    "s_curve": datasets.s_curve,
    "swiss_roll": datasets.swiss_roll,
}
EVEN = ("moons",)  # of n points scikit-learn puts exactly half on either moon, evenly spaced: they are not independent
SAMPLES = 10_000  # to learn from, as in the paper
LEVEL = 0.3  # noise at which chains run, in units of the samples' spread: their modes are connected there
DOWN = annealing.geometric(LEVEL, 0.02, 8)  # from there down
ANNEALED = (5.0, 0.02, 25, 20, 0.5)  # highest and lowest noise, levels, steps at each, step size over noise squared
FLOW = (5.0, 0.02, 40)  # highest and lowest noise, levels: the flow alone
RATE = 0.5  # of the training of a paper's network, times its width
POTENTIAL = 4  # times as many steps for a potential, each of which costs half as much and less
PROPOSED = ("rw", "mala", "pcn")


@dataclass(frozen=True)
class Method:
    """A row of the table.

    Args:
        words: What it is.
        proposal: "rw", "mala" or "pcn"; None where there are no chains of one kernel.
        form: Of a learned acceptance.
        rule: One that is not learned.
        low: Whether its chains run at the fit's own level, in its box.
    """

    words: str
    proposal: str | None = None
    form: FormName | None = None
    rule: Acceptance | None = None
    low: bool = False


METHODS: dict[str, Method] = {
    "ula": Method("ULA", "mala", rule=Always()),
    "score_rw": Method("Score RW, free", "rw", "free"),
    "score_mala": Method("Score MALA, free", "mala", "free"),
    "score_pcn": Method("Score pCN, free", "pcn", "free"),
    "antisymmetric": Method("Score MALA, antisymmetric", "mala", "antisymmetric"),
    "potential": Method("Score MALA, potential", "mala", "potential"),
    "simpson": Method("MALA, Simpson", "mala", rule=LineIntegral()),
    "adaptive": Method("MALA, adaptive integral", "mala", rule=LineIntegral("adaptive")),
    "simpson_low": Method("MALA, Simpson, at the fit's own level", "mala", rule=LineIntegral(), low=True),
    "annealed": Method("Annealed MALA, Simpson", rule=LineIntegral()),
    "annealed_ula": Method("Annealed ULA", rule=Always()),
    "sobol_flow": Method("Probability flow from Sobol points"),
    "kde": Method("Kernel density estimate"),
    "spline_flow": Method("Neural spline flow"),
}
PAPER_METHODS = ("ula", "score_rw", "score_mala", "score_pcn")


def seeded(offset: int, seed: int) -> torch.Generator:
    """Return a generator: 0 samples, 1 score, 2 judged on, 3 acceptances, 4 chains, 5 starts, 6 floor, 7 tests."""
    return torch.Generator().manual_seed(1000 * seed + offset)


@dataclass(frozen=True)
class Problem:
    """A dataset with a seed: its samples, the files of what was learned from them, and the proposals.

    Args:
        name: Of the dataset.
        seed: Of everything.
        out: Folder of the files.
    """

    name: str
    seed: int
    out: Path

    @cached_property
    def x(self) -> Tensor:
        """The samples to learn from."""
        return LAWS[self.name](SAMPLES, generator=seeded(0, self.seed))

    def judged(self, n: int) -> Tensor:
        """Return the samples that draws are judged on, of which nothing else knows."""
        return LAWS[self.name](n, generator=seeded(2, self.seed))

    def path(self, *words: str) -> Path:
        """Return where something is kept."""
        return self.out / (" ".join([self.name, str(self.seed), *words]) + ".safetensors")

    @cached_property
    def score(self) -> ScoreFit:
        """The learned score."""
        return ScoreFit.load(self.path("score"))

    def start(self, n: int, level: float, generator: torch.Generator) -> Tensor:
        """Draw from a normal law with the mean of the samples, and their covariance with noise of this level."""
        return self.spread_out(torch.randn(n, self.x.shape[1], generator=generator), level)

    def spread_out(self, z: Tensor, level: float) -> Tensor:
        """Return draws of that law from those of a standard normal one."""
        return torch.addmm(self.x.mean(0), z, self.root.mT, alpha=math.sqrt(1 + level**2))

    def blurred(self, generator: torch.Generator) -> Tensor:
        """Return the samples with noise of `LEVEL`, to learn acceptances from."""
        return self.x + LEVEL * torch.randn(self.x.shape, generator=generator) @ self.root.mT

    @cached_property
    def covariance(self) -> Tensor:
        """That of noise of level 1: the samples' own."""
        covariance = self.score.covariance
        assert covariance is not None
        return covariance

    @cached_property
    def root(self) -> Tensor:
        """L of the covariance L L^T."""
        root: Tensor = torch.linalg.cholesky(self.covariance)
        return root

    def carried(self, draws: Tensor, *levels: float) -> Tensor:
        """Return draws at the first of these levels, carried over the others down to the samples themselves."""
        return annealing.flow(self.score.at, [*levels, 0.0], draws, covariance=self.covariance)

    def proposal(self, kind: str, step: float, level: float = LEVEL) -> Proposal:
        """Return a proposal that fits the samples with noise of this level."""
        wide = (1 + level**2) * self.covariance
        if kind == "rw":
            return RandomWalk(step, covariance=wide)
        return MALA(step, covariance=self.covariance) if kind == "mala" else PCN(step, self.x.mean(0), covariance=wide)


def fitted(problem: Problem) -> dict[str, Any]:
    """Learn the score, with residual layers: the surfaces are bent in two directions and flat in the third."""
    x, generator = problem.x, seeded(1, problem.seed)
    net = NoiseConditionalMLP(tuple(x.shape[1:]), residual=True, generator=rng.child(generator))
    fit = fit_score(x, net=net, generator=generator)
    fit.save(problem.path("score"))
    return {"seconds": fit.seconds, "level": fit.noise_level}


def tuned(problem: Problem, kind: str, level: float = LEVEL) -> dict[str, Any]:
    """Find the step at which a proposal is accepted at its most efficient rate by the integrated score."""
    target = problem.score.at(level)
    rule = LineIntegral() if kind == "mala" else LineIntegral("adaptive")
    step = tune(
        lambda step: metropolis_hastings(target, problem.proposal(kind, step, level), rule),
        problem.start(500, level, seeded(5, problem.seed + 100)),
        start=0.05,
        upper=1.0 if kind == "pcn" else math.inf,
        generator=seeded(4, problem.seed + 100),
    )
    return {"step": step}


def trained(problem: Problem, kind: str, form: FormName, step: float, steps: int) -> dict[str, Any]:
    """Learn an acceptance for the law blurred by `LEVEL`, with the paper's network where the form is the paper's."""
    generator, row = seeded(3, problem.seed), PRESETS[problem.name]
    x, blurred = problem.x, problem.blurred(generator)
    if form == "potential":
        net, recipe = None, replace(RECIPE, steps=POTENTIAL * steps)
    else:  # wide networks take small steps: with RECIPE's rate the widest do not learn
        sizes = {"hidden": row.hidden, "blocks": row.blocks}
        net = FORMS[form].network(tuple(x.shape[1:]), generator=rng.child(generator), **sizes)
        recipe = replace(RECIPE, steps=steps, rate=RATE / row.hidden)
    fit = fit_acceptance(
        problem.score.at(LEVEL),
        problem.proposal(kind, step),
        blurred,
        form=form,
        net=net,
        recipe=recipe,
        generator=generator,
    )
    fit.save(problem.path(form, kind))
    return {"seconds": fit.seconds, "held_out": fit.history["held_out"][-1]}


def drawn(
    problem: Problem, name: str, length: int, steps: Mapping[str, float], n: int, chain_seed: int
) -> tuple[Tensor, dict[str, Any]]:
    """Return n draws by a method, from chains of this length where it has any, and what was counted on the way."""
    method, generator, begin = METHODS[name], seeded(4, chain_seed), seeded(5, chain_seed)
    started = time.perf_counter()
    counted: dict[str, Any] = {}
    if name == "kde":
        draws = _outsiders.kernel_density(problem.x, n, generator)
    elif name == "spline_flow":
        draws = _outsiders.spline_flow(problem.x, n, generator)
    elif name == "sobol_flow":
        draws = _sobol_flow(problem, n, chain_seed)
    elif method.proposal is None:
        draws, counted = _annealed(problem, method, n, begin, generator)
    else:
        draws, counted = _chains(problem, method, length, steps, n, begin, generator)
    return draws, counted | {"seconds": time.perf_counter() - started}


def _sobol_flow(problem: Problem, n: int, seed: int) -> Tensor:
    """Carry evenly spread points of the broad normal law down to the samples: no chains, no further randomness."""
    high, low, levels = FLOW
    u = torch.from_numpy(qmc.Sobol(problem.x.shape[1], seed=seed).random_base2(math.ceil(math.log2(n)))[:n])
    start = problem.spread_out(torch.special.ndtri(u.clamp(1e-9, 1 - 1e-9)).to(problem.x), high)
    return problem.carried(start, *annealing.karras(high, low, levels))


def _annealed(
    problem: Problem, method: Method, n: int, begin: torch.Generator, generator: torch.Generator
) -> tuple[Tensor, dict[str, Any]]:
    high, low, count, steps, ratio = ANNEALED
    rule = method.rule
    assert rule is not None

    def kernel_at(level: float) -> Kernel:
        return metropolis_hastings(problem.score.at(level), problem.proposal("mala", ratio * level**2), rule)

    start = problem.start(n, high, begin)
    found = anneal(
        kernel_at, annealing.karras(high, low, int(count)), start, steps_per_level=int(steps), generator=generator
    )
    rates = found.acceptance_rates
    return problem.carried(found.draws, low), {
        "acceptance": sum(rates) / len(rates),
        "score_calls": found.score_calls,
        "steps": sum(found.steps),
    }


def _chains(
    problem: Problem,
    method: Method,
    length: int,
    steps: Mapping[str, float],
    n: int,
    begin: torch.Generator,
    generator: torch.Generator,
) -> tuple[Tensor, dict[str, Any]]:
    kind, rule = method.proposal, method.rule
    assert kind is not None
    if rule is None:
        assert method.form is not None
        rule = learned_rule(problem.path(method.form, kind))
    step = steps["low" if method.low else kind]
    return chained(problem, kind, step, rule, length, n, begin, generator, low=method.low)


def learned_rule(path: Path) -> Learned:
    """Return the rule of a learned acceptance: the free form as trained, as in the paper; the others by their ratio."""
    fit = AcceptanceFit.load(path)
    return Learned(fit, "direct" if isinstance(fit.net, Free) else "metropolis")


def chained(
    problem: Problem,
    kind: str,
    step: float,
    rule: Acceptance,
    length: int,
    n: int,
    begin: torch.Generator,
    generator: torch.Generator,
    *,
    low: bool = False,
) -> tuple[Tensor, dict[str, Any]]:
    """Return the last draws of n chains, carried down to the samples, and what was counted on the way.

    Args:
        problem: What to sample.
        kind: Of the proposal.
        step: Of the proposal.
        rule: Accepts.
        length: Of a chain.
        n: Chains.
        begin: Source of the start.
        generator: Source of the steps.
        low: Run at the fit's own level, in its box, in place of `LEVEL`.
    """
    fit = problem.score
    assert fit.noise_level is not None
    level, target = (fit.noise_level, fit) if low else (LEVEL, fit.at(LEVEL))
    start = problem.start(n, level, begin)
    if low:
        start = start.clamp(fit.support.low, fit.support.high)
    kernel = metropolis_hastings(target, problem.proposal(kind, step, level), rule)
    chains = sample(kernel, start, draws=1, thin=length, generator=generator, threads=1)
    return problem.carried(chains.draws[:, -1], *((level,) if low else DOWN)), {
        "acceptance": chains.acceptance_rate,
        "score_calls": chains.score_calls,
        "steps": length,
        "step": step,
        "level": level,
    }
