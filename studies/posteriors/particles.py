"""Measurements of `smc` where posteriors are known: distances to exact draws beside their floor, and evidence."""

import math
import time
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from scoremh import MALA, Always, Recipe, fit_score, metropolis_hastings, smc, targets
from scoremh.annealing import Particles
from scoremh.types import Kernel, TargetLike
from studies.framework import Cell, Record
from studies.posteriors.cells import Config
from studies.posteriors.problems import Observed, Singles, known_model

DIRECTIONS = {"w1": 100, "w2": 1000}
DIMENSIONS = (8, 80, 800)
FLOORS = 10  # pairs of exact draws, of which the floor is the mean
RECIPE: Recipe | None = None  # the default
FRESH = 1000  # number of the first problem: none of them was looked at while `smc` was written


def projected(x: Tensor, y: Tensor, n: int) -> Tensor:
    """Return the differences of sorted projections of as many draws, `(draw, direction)`."""
    g = torch.Generator().manual_seed(0)
    directions = torch.randn(x.shape[1], n, generator=g, dtype=torch.float64)
    directions = directions / directions.norm(dim=0)
    difference: Tensor = (x @ directions).sort(0).values - (y @ directions).sort(0).values
    return difference


def sliced_w1(x: Tensor, y: Tensor) -> float:
    """Return the mean over random directions of W1 between as many draws."""
    return float(projected(x, y, DIRECTIONS["w1"]).abs().mean())


def sliced_w2(x: Tensor, y: Tensor) -> float:
    """Return sliced W2: the root of the mean over random directions of W2^2."""
    return math.sqrt(float(projected(x, y, DIRECTIONS["w2"]).square().mean()))


def max_sliced_w2(x: Tensor, y: Tensor) -> float:
    """Return the largest W2 over random directions."""
    return math.sqrt(float(projected(x, y, DIRECTIONS["w2"]).square().mean(0).max()))


def mmd_squared(x: Tensor, y: Tensor) -> float:
    """Return MMD^2 without bias, of the kernel exp(-r^2 log M / m^2), m the median distance of M + M draws."""
    both = torch.cat([x, y])
    squares, n = torch.cdist(both, both).square(), len(x)
    median = squares[torch.triu_indices(2 * n, 2 * n, 1).unbind()].sqrt().median()
    kernel = (-squares * math.log(n) / median**2).exp()
    within = sum((part.sum() - n) / (n * (n - 1)) for part in (kernel[:n, :n], kernel[n:, n:]))
    return float(within - 2 * kernel[:n, n:].mean())


def run(posterior: TargetLike, own: Observed, *, accept: bool, **options: Any) -> tuple[Particles, float]:
    """Return particles and their seconds; without an accept step at the levels and step sizes of those with one."""
    start = time.process_time()
    found = smc(posterior, **options)
    if accept:
        return found, time.process_time() - start
    steps = {stage.level: stage.step_size for stage in found.stages}
    assert isinstance(posterior, targets.Posterior)

    def kernel_at(level: float) -> Kernel:
        proposal = MALA(steps[level], covariance=own.covariance(level))
        return metropolis_hastings(posterior.at(level), proposal, Always())

    start = time.process_time()
    found = smc(posterior, levels=found.levels[:-1], kernel_at=kernel_at, **options)
    return found, time.process_time() - start


def against_exact(found: Particles, own: Observed, draws: int, floors: int, g: torch.Generator) -> Record:
    """Return the distance of particles to exact draws, that of exact draws, and how weights of modes are off."""
    exact = [own.draws(draws, g) for _ in range(floors + 1)]
    x = found.draws[torch.randperm(len(found.draws), generator=g)[:draws]].double()
    shares = torch.bincount(torch.cdist(found.draws.double(), own.prior.means).argmin(1), minlength=len(own.log_joint))
    return {
        "w1": sum(sliced_w1(x, y) for y in exact[1:]) / floors,
        "floor": sum(sliced_w1(exact[0], y) for y in exact[1:]) / floors,
        "weights_off": float((shares / len(found.draws) - own.log_joint.softmax(0)).abs().sum() / 2),
        "evidence_z": (found.log_evidence - float(own.log_joint.logsumexp(0))) / found.log_evidence_error,
        "calls": found.score_calls / len(found.draws),
    }


class Published(Cell, kind="published"):
    """Particles on one problem of the setting of MCGdiff."""

    d: int
    observations: int
    accept: bool
    problem: int

    def measure(self, config: Config, folder: Path) -> Record:
        own = Observed.published(self.d, self.observations, FRESH + self.problem)
        g = torch.Generator().manual_seed(self.problem)
        particles = config.particles[DIMENSIONS.index(self.d)]
        draws = min(config.published_draws, particles)
        posterior = targets.posterior(own.model, own.likelihood)
        found, seconds = run(posterior, own, accept=self.accept, particles=particles, generator=g)
        return against_exact(found, own, draws, FLOORS, g) | {"seconds": seconds}


class Learned(Cell, kind="learned"):
    """The same with a prior whose score is learned from draws, one for all problems."""

    d: int
    observations: int

    def measure(self, config: Config, folder: Path) -> Record:
        g = torch.Generator().manual_seed(FRESH)
        weights = Observed.published(self.d, 1, FRESH).prior.weights
        prior = Observed.published(self.d, 1, FRESH, weights).prior
        start = time.process_time()
        fit = fit_score(prior.sample(config.learned_from, 0.0, g).float(), recipe=RECIPE, generator=g)
        trained, records = time.process_time() - start, []
        for problem in range(config.learned_problems):
            own = Observed.published(self.d, self.observations, FRESH + problem, weights)
            options: dict[str, Any] = {"particles": config.particles[0], "generator": g}
            start = time.process_time()
            found = smc(targets.posterior(fit, own.likelihood), **options)
            seconds = time.process_time() - start
            records.append(against_exact(found, own, config.published_draws, 10, g) | {"seconds": seconds})
        return {key: sum(record[key] for record in records) / len(records) for key in records[0]} | {"trained": trained}


class ManyModes(Cell, kind="many_modes"):
    """Ten components in 256 dimensions: error of the mean, MMD^2 and sliced W2 of 256 draws."""

    accept: bool
    problem: int

    def measure(self, config: Config, folder: Path) -> Record:
        own, g = Observed.many_modes(FRESH + self.problem), torch.Generator().manual_seed(self.problem)
        found, seconds = run(targets.posterior(own.model, own.likelihood), own, accept=self.accept, generator=g)
        exact = [own.draws(256, g) for _ in range(11)]
        covariance, shares = own.covariance(0.0), own.log_joint.softmax(0)
        mean = shares @ ((own.prior.means / own.variance + own.matrix.mT @ own.y / own.std**2) @ covariance)
        record: Record = {"seconds": seconds, "calls": found.score_calls / len(found.draws)}
        for name, x in (("", found.draws[torch.randperm(len(found.draws), generator=g)[:256]]), ("exact_", exact[0])):
            record |= {
                f"{name}mean_error": float((x.mean(0) - mean).norm()),
                f"{name}mmd_squared": sum(mmd_squared(x, y) for y in exact[1:]) / 10,
                f"{name}w2": sum(sliced_w2(x, y) for y in exact[1:]) / 10,
            }
        return record


class Tall(Cell, kind="tall"):
    """The posterior of n observations from the scores of single ones, exact or perturbed."""

    toy: str
    d: int
    n: int
    error: float
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        make = {"normal": Singles.normal, "mixture": Singles.mixture}[self.toy]
        own, g = make(self.d, self.n, FRESH + self.seed), torch.Generator().manual_seed(self.seed)
        target = targets.product(*own.models(self.error, self.seed), own.prior, weights=[1.0] * self.n + [1.0 - self.n])
        start = time.process_time()
        found = smc(target, particles=config.tall_draws, generator=g)
        seconds = time.process_time() - start
        exact = [own.scale * own.truth.sample(config.tall_draws, generator=g) for _ in range(6)]
        return {
            "w2": sum(max_sliced_w2(own.scale * found.draws, y) for y in exact[1:]) / 5,
            "floor": sum(max_sliced_w2(exact[0], y) for y in exact[1:]) / 5,
            "calls": found.score_calls / config.tall_draws,
            "seconds": seconds,
        }


EVIDENCE_CASES = (  # dimensions, observations, standard deviation of the noise, width of the widest direction
    (1, 1, 0.5, 1.0),
    (1, 1, 0.01, 1.0),
    (2, 1, 0.1, 10.0),
    (3, 3, 0.1, 3.0),
    (10, 3, 0.3, 1.0),
    (10, 10, 0.1, 10.0),
    (10, 2, 0.01, 3.0),
    (30, 5, 0.3, 3.0),
    (30, 30, 0.5, 1.0),
    (50, 2, 0.2, 1.0),
)
EVIDENCE_PARTICLES, EVIDENCE_ERRORS = 500, 3.0
WAYS = {
    "known prior": "known prior",
    "scores": "scores",
    "powers": "scores, likelihood raised to powers",
    "reverse": 'scores, `transport="reverse"`',
}


class Evidence(Cell, kind="evidence"):
    """How often the log evidence of 500 particles is within three of its own standard errors, with a normal prior."""

    case: int
    way: str

    def measure(self, config: Config, folder: Path) -> Record:
        d, observations, std, widest = EVIDENCE_CASES[self.case]
        z_scores = []
        for seed in range(config.evidence_seeds):
            g = torch.Generator().manual_seed(FRESH + 100 * self.case + seed)
            rotation = torch.linalg.qr(torch.randn(d, d, generator=g, dtype=torch.float64))[0]
            variances = torch.logspace(0, 2 * math.log10(widest), d, dtype=torch.float64)
            mean = 3 * torch.randn(d, generator=g, dtype=torch.float64)
            prior = targets.Gaussian(mean, rotation @ variances.diag() @ rotation.mT)
            matrix = torch.randn(observations, d, generator=g, dtype=torch.float64) / math.sqrt(d)
            noise = std * torch.randn(observations, generator=g, dtype=torch.float64)
            y = matrix @ prior.sample(1, generator=g)[0] + noise
            wide = matrix @ prior.covariance @ matrix.mT + std**2 * torch.eye(observations).double()
            known = torch.distributions.MultivariateNormal(matrix @ mean, wide).log_prob(y)
            likelihood = targets.linear_observation(matrix, y, std)
            posterior = targets.posterior(
                prior if self.way == "known prior" else known_model(prior, g),
                likelihood.log_density if self.way == "powers" else likelihood,
            )
            transport: Literal["flow", "reverse"] = "reverse" if self.way == "reverse" else "flow"
            found = smc(posterior, particles=EVIDENCE_PARTICLES, transport=transport, generator=g)
            z_scores.append((found.log_evidence - float(known)) / found.log_evidence_error)
        within = sum(abs(z) < EVIDENCE_ERRORS for z in z_scores)
        return {"runs": len(z_scores), "within": within, "z": max(z_scores, key=abs)}
