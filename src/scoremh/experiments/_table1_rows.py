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
from torch import Tensor, nn

from scoremh import (
    MALA,
    PCN,
    AcceptanceFit,
    Always,
    Learned,
    LineIntegral,
    RandomWalk,
    ScoreFit,
    Target,
    _random,
    anneal,
    annealing,
    datasets,
    fit_acceptance,
    fit_score,
    metropolis_hastings,
    sample,
    tune,
)
from scoremh.balance_matching import PRESETS, RECIPE, FormName
from scoremh.balance_matching.fitting import LOW
from scoremh.experiments import _outsiders
from scoremh.networks import AcceptanceMLP, NoiseConditionalMLP
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
DOWN = (*annealing.geometric(LEVEL, 0.02, 8), 0.0)  # from there to the samples themselves
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
    """

    words: str
    proposal: str | None = None
    form: FormName | None = None
    rule: Acceptance | None = None


METHODS: dict[str, Method] = {
    "ula": Method("ULA", "mala", rule=Always()),
    "score_rw": Method("Score RW, free", "rw", "free"),
    "score_mala": Method("Score MALA, free", "mala", "free"),
    "score_pcn": Method("Score pCN, free", "pcn", "free"),
    "antisymmetric": Method("Score MALA, antisymmetric", "mala", "antisymmetric"),
    "potential": Method("Score MALA, potential", "mala", "potential"),
    "simpson": Method("MALA, Simpson", "mala", rule=LineIntegral()),
    "adaptive": Method("MALA, adaptive integral", "mala", rule=LineIntegral("adaptive")),
    "simpson_low": Method("MALA, Simpson, at the fit's own level", "mala", rule=LineIntegral()),
    "annealed": Method("Annealed MALA, Simpson"),
    "annealed_ula": Method("Annealed ULA"),
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
        z = torch.randn(n, self.x.shape[1], generator=generator)
        root = torch.linalg.cholesky(_covariance(self.score))
        return torch.addmm(self.x.mean(0), z, root.mT, alpha=math.sqrt(1 + level**2))

    def proposal(self, kind: str, step: float, level: float = LEVEL) -> Proposal:
        """Return a proposal that fits the samples with noise of this level."""
        covariance = _covariance(self.score)
        wide = (1 + level**2) * covariance
        if kind == "rw":
            return RandomWalk(step, covariance=wide)
        return MALA(step, covariance=covariance) if kind == "mala" else PCN(step, self.x.mean(0), covariance=wide)


def _covariance(score: ScoreFit) -> Tensor:
    assert score.covariance is not None
    return score.covariance


def fitted(problem: Problem) -> dict[str, Any]:
    """Learn the score, with residual layers: the surfaces are bent in two directions and flat in the third."""
    x, generator = problem.x, seeded(1, problem.seed)
    with _random.weights(generator):
        net = NoiseConditionalMLP(tuple(x.shape[1:]), residual=True)
    fit = fit_score(x, net=net, generator=generator)
    fit.save(problem.path("score"))
    return {"seconds": fit.seconds, "level": fit.level}


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
    x = problem.x
    root = torch.linalg.cholesky(_covariance(problem.score))
    blurred = x + LEVEL * torch.randn(x.shape, generator=generator) @ root.mT
    net = None
    if form != "potential":
        with _random.weights(generator):
            net = AcceptanceMLP(tuple(x.shape[1:]), row.hidden, row.blocks)
        if form == "free":
            nn.init.constant_(net.last.bias, LOW)
    recipe = replace(RECIPE, steps=POTENTIAL * steps)
    if net is not None:  # wide ones take small steps: with RECIPE's rate the widest do not learn
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
        draws, counted = _annealed(problem, n, begin, generator, Always() if name == "annealed_ula" else LineIntegral())
    else:
        draws, counted = _chains(problem, name, method, length, steps, n, begin, generator)
    return draws, counted | {"seconds": time.perf_counter() - started}


def _sobol_flow(problem: Problem, n: int, seed: int) -> Tensor:
    """Carry evenly spread points of the broad normal law down to the samples: no chains, no further randomness."""
    high, low, levels = FLOW
    x, fit = problem.x, problem.score
    u = torch.from_numpy(qmc.Sobol(x.shape[1], seed=seed).random_base2(math.ceil(math.log2(n)))[:n])
    z = torch.special.ndtri(u.clamp(1e-9, 1 - 1e-9)).to(x)
    start = torch.addmm(x.mean(0), z, torch.linalg.cholesky(_covariance(fit)).mT, alpha=math.sqrt(1 + high**2))
    return annealing.flow(fit.at, [*annealing.karras(high, low, levels), 0.0], start, covariance=fit.covariance)


def _annealed(
    problem: Problem, n: int, begin: torch.Generator, generator: torch.Generator, rule: Acceptance
) -> tuple[Tensor, dict[str, Any]]:
    high, low, count, steps, ratio = ANNEALED
    fit = problem.score

    def kernel_at(level: float) -> Kernel:
        return metropolis_hastings(fit.at(level), problem.proposal("mala", ratio * level**2), rule)

    start = problem.start(n, high, begin)
    found = anneal(
        kernel_at, annealing.karras(high, low, int(count)), start, steps_per_level=int(steps), generator=generator
    )
    sharp = annealing.flow(fit.at, [low, 0.0], found.draws, covariance=fit.covariance)
    rates = found.acceptance_rates
    return sharp, {"acceptance": sum(rates) / len(rates), "score_calls": found.score_calls, "steps": sum(found.steps)}


def _chains(
    problem: Problem,
    name: str,
    method: Method,
    length: int,
    steps: Mapping[str, float],
    n: int,
    begin: torch.Generator,
    generator: torch.Generator,
) -> tuple[Tensor, dict[str, Any]]:
    fit, kind = problem.score, method.proposal
    assert kind is not None
    assert fit.level is not None
    low = name.endswith("_low")
    level = fit.level if low else LEVEL
    target = fit.at(level)
    target = Target(target.score, None, fit.support) if low else target
    start = problem.start(n, level, begin)
    if low:
        start = start.clamp(fit.support.low, fit.support.high)
    rule = method.rule
    if rule is None:
        assert method.form is not None
        saved = AcceptanceFit.load(problem.path(method.form, kind))
        rule = Learned(saved, "direct" if method.form == "free" else "metropolis")
    step = steps["low" if low else kind]
    kernel = metropolis_hastings(target, problem.proposal(kind, step, level), rule)
    chains = sample(kernel, start, draws=1, thin=length, generator=generator, threads=1)
    down = (level, 0.0) if low else DOWN
    draws = annealing.flow(fit.at, down, chains.draws[:, -1], covariance=fit.covariance)
    return draws, {
        "acceptance": chains.acceptance_rate,
        "score_calls": chains.score_calls,
        "steps": length,
        "step": step,
        "level": level,
    }
