"""Measurements of posteriors and annealed chains, with an accept step and without."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from scipy import stats
from torch import Tensor

from scoremh import MALA, Always, LineIntegral, anneal, annealing, metropolis_hastings, targets
from scoremh.acceptance import Rule
from scoremh.types import Kernel
from studies.framework import Cell, Record
from studies.posteriors.problems import (
    DIMENSIONS,
    TAU,
    Mixture,
    known_posterior,
    observed,
    operator,
    prior,
    seen,
    separated,
)

RULES: dict[str, Rule] = {"mala": LineIntegral("simpson"), "ula": Always()}
CALLS = {"mala": 2, "ula": 1}  # scores of the prior in a step
SEGMENT = 10  # steps of one call


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1, 2)
    low: float = 0.05  # noise level of the prior, and the last of the annealed chains
    pool: int = 500  # draws of the prior, of which those that fit an observation are where its chains start
    steps: int = 300  # of MALA; of ULA twice as many
    observations: tuple[int, int] = (100, 60)  # for the calibration, in 2 and 784 dimensions,
    draws: tuple[int, int] = (9, 4)  # each with as many chains
    step: tuple[float, float] = (1.5, 0.25)  # h of MALA in 2 and 784 dimensions, over the narrowest variance
    annealed_chains: tuple[int, int] = (4000, 200)  # in 2 and 784 dimensions
    annealed_high: float = 10.0
    annealed_levels: int = 20
    annealed_steps: int = 20  # at every level, for both rules
    annealed_final: int = 200  # at the last
    particles: tuple[int, ...] = (4000, 4000, 8000)  # of the MCGdiff setting in 8, 80 and 800 dimensions
    published_draws: int = 2000
    published_problems: tuple[int, ...] = (20, 10, 1)  # in the same
    learned_from: int = 10_000  # draws of the prior
    learned_problems: int = 5
    many_modes_problems: int = 5
    tall_draws: int = 1000
    tall_seeds: int = 3
    evidence_seeds: int = 5


def sampled(problem: str, y: Tensor, d: int, rule: str, config: Config, seed: int) -> tuple[Tensor, float, int]:
    """Return the ends of chains with one observation y for each, their acceptance and their cost in scores."""
    generator, own = torch.Generator().manual_seed(seed), prior(d)
    model = own.model(generator)
    size = config.step[DIMENSIONS.index(d)]
    y, steepest = y.float(), float(torch.linalg.matrix_norm(operator(problem, d), 2)) ** 2 / TAU**2

    def log_likelihood(x: Tensor) -> Tensor:
        return -(seen(problem, x) - y).square().sum(1) / (2 * TAU**2)

    pool = own.sample(config.pool, config.low, generator).float()
    fits = -(seen(problem, pool) - y[:, None]).square().sum(-1) / (2 * TAU**2)
    x = pool[torch.multinomial(fits.softmax(1), 1, generator=generator)[:, 0]]
    target = targets.posterior(model.at(config.low), log_likelihood)
    narrowest = 1 / (1 / (float(own.variances.min()) + config.low**2) + steepest)
    kernel = metropolis_hastings(target, MALA(size * narrowest), RULES[rule])
    assert kernel.run is not None  # all chains at once: each has an observation of its own
    point, steps = kernel.init(x), 2 // CALLS[rule] * config.steps  # the same number of scores
    for _ in range(steps // SEGMENT):  # a trace of all steps would not fit into memory
        point, trace = kernel.run(point, SEGMENT, generator=generator)
    return point.x.double(), float(trace.accepted.double().mean()), CALLS[rule] * steps


def against_truth(x: Tensor, truth: targets.GaussianMixture) -> Record:
    """Return means and variances of draws in units in which those of the truth are 0 and 1, with their z-scores."""
    middle = truth.weights @ truth.means
    away = truth.means - middle
    covariance = torch.einsum("k,kij->ij", truth.weights, truth.covariances) + away.mT @ (truth.weights[:, None] * away)
    u = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (x - middle).mT, upper=False).mT
    n, d = u.shape
    squares = u.square().mean(1)
    offset = n * float(u.mean(0).square().sum())  # chi-square with d degrees of freedom
    variance_z = float((squares.mean() - 1) / (squares.std() / math.sqrt(n)))
    return {
        "mean_z": (offset - d) / math.sqrt(2 * d),
        "mean_p": float(stats.chi2.sf(offset, d)),
        "variance": float(squares.mean()),
        "variance_z": variance_z,
    }


def calibrated(x: Tensor, true: Tensor, functions: list[Callable[[Tensor], Tensor]]) -> float:
    """Return the p-value of uniform ranks of the true events among their draws `(observation, draw, d)`."""
    p_values = []
    for function in functions:
        ranks = (function(x) < function(true[:, None])).sum(1)
        counts = torch.bincount(ranks, minlength=x.shape[1] + 1).double()
        p_values.append(float(stats.chisquare(counts.numpy()).pvalue))
    return min(1.0, len(p_values) * min(p_values))


class Posterior(Cell, kind="posterior"):
    """The posterior of one observation, and the calibration over many."""

    problem: str
    d: int
    rule: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        g, place = torch.Generator().manual_seed(100 + self.seed), DIMENSIONS.index(self.d)
        observations, draws = config.observations[place], config.draws[place]
        true = prior(self.d).sample(observations, config.low, g)
        y, chains = observed(self.problem, true, g), observations * draws
        truth = known_posterior(self.problem, self.d, y[0], config.low)
        if self.rule == "exact":
            return against_truth(truth.sample(chains, generator=g), truth)
        x, rate, calls = sampled(self.problem, y[:1].expand(chains, -1), self.d, self.rule, config, self.seed)
        many, _, _ = sampled(self.problem, y.repeat_interleave(draws, 0), self.d, self.rule, config, self.seed + 50)

        def misfit(x: Tensor) -> Tensor:
            return (seen(self.problem, x) - y[:, None]).square().sum(-1)

        functions = [lambda x: x[..., 0], lambda x: x[..., -1], misfit, lambda x: x.square().sum(-1)]
        p_value = calibrated(many.reshape(observations, draws, self.d), true, functions)
        return against_truth(x, truth) | {"calibration_p": p_value, "acceptance": rate, "calls": calls}


class Annealed(Cell, kind="annealed"):
    """Chains annealed from noise to two modes: the weight of the first, and variances within modes."""

    d: int
    rule: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        law, g = separated(self.d), torch.Generator().manual_seed(300 + self.seed)
        model = law.model(g)
        levels = annealing.geometric(config.annealed_high, config.low, config.annealed_levels)
        chains = config.annealed_chains[DIMENSIONS.index(self.d)]
        start = law.sample(chains, levels[0], g).float()

        def kernel_at(level: float, step: float, rule: str = "mala") -> Kernel:
            return metropolis_hastings(model.at(level), MALA(step * level**2), RULES[rule])

        steps = annealing.tune_steps(kernel_at, levels, start[:50], steps_per_level=config.annealed_steps, generator=g)
        found = anneal(
            lambda level: kernel_at(level, steps[level], self.rule),
            levels,
            start,
            steps_per_level=config.annealed_steps,
            final_steps=config.annealed_final,
            predict=True,
            measure_noise=False,
            generator=g,
        )
        return within_modes(found.draws.double(), law, config.low) | {
            "acceptance": found.acceptance_rates[-1],
            "calls": found.score_calls / chains,
        }


def within_modes(x: Tensor, law: Mixture, sigma: float) -> Record:
    """Return the weight of the first mode and the variances within modes, over the true ones, with z-scores."""
    n, d = x.shape
    weight, share = float(law.weights[0]), float((x[:, 0] > 0).double().mean())
    middle = torch.where(x[:, :1] > 0, law.means[0], law.means[1])
    squares = (x - middle).square() / (law.variances[0] + sigma**2)
    found: Record = {"weight": share, "weight_z": (share - weight) / math.sqrt(weight * (1 - weight) / n)}
    for name, part in (("wide", squares[:, : d - d // 2]), ("narrow", squares[:, d - d // 2 :])):
        error = math.sqrt(2 / part.numel())
        found |= {name: float(part.mean()), f"{name}_z": (float(part.mean()) - 1) / error}
    return found
