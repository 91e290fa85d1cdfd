"""A dataset of Table 1 with a random seed: its samples, what is learned from them, and chains from noise to draws.

Chains run on the distribution blurred by noise of `NOISE_LEVEL`, at which its modes are connected, and the probability
flow carries their draws down to the samples. The noise has the covariance of the samples; levels are in its units.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from scoremh import (
    MALA,
    PCN,
    AcceptanceFit,
    Learned,
    LineIntegral,
    RandomWalk,
    ScoreFit,
    annealing,
    datasets,
    fit_score,
    metropolis_hastings,
    sample,
    tune,
)
from scoremh._shared import rng
from scoremh.networks import Free, NoiseConditionalMLP
from scoremh.types import Acceptance, Proposal
from studies.framework import Record

DATASETS: dict[str, Callable[..., Tensor]] = {
    "moons": datasets.moons,
    "pinwheel": datasets.pinwheel,
    "s_curve": datasets.s_curve,
    "swiss_roll": datasets.swiss_roll,
}
EVENLY_SPACED = ("moons",)  # scikit-learn puts exactly half of n points on either moon: they are not independent
SAMPLES = 10_000  # to learn from, as in the paper
NOISE_LEVEL = 0.3
LOWER_LEVELS = annealing.geometric(NOISE_LEVEL, 0.02, 8)  # from there down to the samples
PROPOSALS = ("rw", "mala", "pcn")


def seeded(use: int, seed: int) -> torch.Generator:
    """Return a generator: 0 samples, 1 score, 2 judged on, 3 acceptances, 4 chains, 5 starts, 6 floor, 7 tests."""
    return torch.Generator().manual_seed(1000 * seed + use)


@dataclass(frozen=True)
class Problem:
    """A dataset with a random seed.

    Args:
        name: Name of the dataset.
        seed: Random seed of samples, trainings and chains.
        folder: Folder of the files.
    """

    name: str
    seed: int
    folder: Path

    @cached_property
    def x(self) -> Tensor:
        """The samples to learn from."""
        return DATASETS[self.name](SAMPLES, generator=seeded(0, self.seed))

    def fresh(self, n: int) -> Tensor:
        """Return the samples that draws are judged on, which nothing else has seen."""
        return DATASETS[self.name](n, generator=seeded(2, self.seed))

    def path(self, *names: str) -> Path:
        """Return the file of something that is learned or drawn."""
        return self.folder / (" ".join([self.name, str(self.seed), *names]) + ".safetensors")

    @cached_property
    def score(self) -> ScoreFit:
        """The learned score."""
        return ScoreFit.load(self.path("score"))

    @cached_property
    def covariance(self) -> Tensor:
        """The covariance of noise of level 1: that of the samples."""
        covariance = self.score.covariance
        assert covariance is not None
        return covariance

    @cached_property
    def root(self) -> Tensor:
        """The Cholesky factor of the covariance."""
        root: Tensor = torch.linalg.cholesky(self.covariance)
        return root

    def broad(self, z: Tensor, level: float) -> Tensor:
        """Return standard normal draws with the mean of the samples, and their covariance plus noise of this level."""
        return torch.addmm(self.x.mean(0), z, self.root.mT, alpha=math.sqrt(1 + level**2))

    def start(self, n: int, level: float, generator: torch.Generator) -> Tensor:
        """Return starts of chains from that broad normal distribution: none is near data."""
        return self.broad(torch.randn(n, self.x.shape[1], generator=generator), level)

    def blurred(self, generator: torch.Generator) -> Tensor:
        """Return the samples with noise of `NOISE_LEVEL`, to learn acceptances from."""
        return self.x + NOISE_LEVEL * torch.randn(self.x.shape, generator=generator) @ self.root.mT

    def carried(self, draws: Tensor, *levels: float) -> Tensor:
        """Return draws at the first of these levels, carried down over the others to the samples by the flow."""
        return annealing.flow(self.score.at, [*levels, 0.0], draws, covariance=self.covariance)

    def proposal(self, kind: str, step: float, level: float = NOISE_LEVEL) -> Proposal:
        """Return a proposal that fits the samples with noise of this level."""
        wide = (1 + level**2) * self.covariance
        if kind == "rw":
            return RandomWalk(step, covariance=wide)
        return MALA(step, covariance=self.covariance) if kind == "mala" else PCN(step, self.x.mean(0), covariance=wide)

    def fit_score(self) -> Record:
        """Learn the score with residual layers: the surfaces are bent in two directions and flat in the third."""
        generator = seeded(1, self.seed)
        with rng.weights(generator):
            net = NoiseConditionalMLP(tuple(self.x.shape[1:]), residual=True)
        fit = fit_score(self.x, net=net, generator=generator)
        fit.save(self.path("score"))
        return {"seconds": fit.seconds, "level": fit.level}

    def tune(self, kind: str, level: float = NOISE_LEVEL) -> Record:
        """Find the step at which a proposal is accepted at its most efficient rate by the integrated score."""
        target = self.score.at(level)
        rule = LineIntegral() if kind == "mala" else LineIntegral("adaptive")
        step = tune(
            lambda step: metropolis_hastings(target, self.proposal(kind, step, level), rule),
            self.start(500, level, seeded(5, self.seed + 100)),
            start=0.05,
            upper=1.0 if kind == "pcn" else math.inf,
            generator=seeded(4, self.seed + 100),
        )
        return {"step": step}

    def run(
        self, kind: str, step: float, rule: Acceptance, *, length: int, n: int, seed: int, own_level: bool = False
    ) -> tuple[Tensor, Record]:
        """Return the last draws of n chains, carried down to the samples, and what was counted.

        Args:
            kind: Proposal: "rw", "mala" or "pcn".
            step: Step size, standard deviation or beta of the proposal.
            rule: Acceptance rule.
            length: Number of steps of a chain.
            n: Number of chains.
            seed: Random seed of starts and steps.
            own_level: Whether to run at the fit's own noise level, in its box, in place of `NOISE_LEVEL`.
        """
        fit = self.score
        assert fit.level is not None
        level, target = (fit.level, fit) if own_level else (NOISE_LEVEL, fit.at(NOISE_LEVEL))
        start = self.start(n, level, seeded(5, seed))
        if own_level:
            start = start.clamp(fit.support.low, fit.support.high)
        kernel = metropolis_hastings(target, self.proposal(kind, step, level), rule)
        chains = sample(kernel, start, draws=1, thin=length, generator=seeded(4, seed), threads=1)
        levels = (level,) if own_level else LOWER_LEVELS
        return self.carried(chains.draws[:, -1], *levels), {
            "acceptance": chains.acceptance_rate,
            "score_calls": chains.score_calls,
            "steps": length,
            "step": step,
            "level": level,
        }


def learned_rule(path: Path) -> Learned:
    """Return the rule of a learned acceptance: the free form as trained, as in the paper; the others by their ratio."""
    fit = AcceptanceFit.load(path)
    return Learned(fit, "direct" if isinstance(fit.net, Free) else "metropolis")
