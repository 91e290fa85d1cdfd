"""A dataset of Table 1 with a random seed: its samples, what is learned from them, and its samplers.

`scoremh.Sampler` runs chains on the distribution blurred by noise of `NOISE_LEVEL`, at which its modes are connected,
and carries their draws down to the samples along the probability flow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from scoremh import AcceptanceFit, LineIntegral, ScoreFit, datasets, fit_score, sample
from scoremh._shared import rng
from scoremh.acceptance import Rule
from scoremh.networks import NoiseConditionalMLP
from scoremh.sampler import ProposalName, Sampler
from scoremh.types import Target
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
TUNING_CHAINS = 500
ROUNDING = 1e-5  # share of a box's width by which starts stay inside


def seeded(use: int, seed: int) -> torch.Generator:
    """Return a generator: 0 samples, 1 score, 2 test samples, 3 acceptances, 4 chains, 5 starts, 6 floor, 7 tests."""
    return torch.Generator().manual_seed(1000 * seed + use)


@dataclass(frozen=True)
class Problem:
    """A dataset with a random seed, and the folder of its files."""

    name: str
    seed: int
    folder: Path

    @cached_property
    def x(self) -> Tensor:
        """The samples to learn from."""
        return DATASETS[self.name](SAMPLES, generator=seeded(0, self.seed))

    def fresh(self, n: int) -> Tensor:
        """Return the samples to compare draws with, which are used for nothing else."""
        return DATASETS[self.name](n, generator=seeded(2, self.seed))

    def path(self, *names: str) -> Path:
        """Return the file of something that is learned, or of draws."""
        return self.folder / (" ".join([self.name, str(self.seed), *names]) + ".safetensors")

    @cached_property
    def score(self) -> ScoreFit:
        """The learned score."""
        return ScoreFit.load(self.path("score"))

    def fit_score(self) -> Record:
        """Learn the score with residual layers: the surfaces are bent in two directions and flat in the third."""
        generator = seeded(1, self.seed)
        net = NoiseConditionalMLP(tuple(self.x.shape[1:]), residual=True, generator=rng.child(generator))
        fit = fit_score(self.x, net=net, generator=generator)
        fit.save(self.path("score"))
        return {"seconds": fit.seconds, "level": fit.noise_level}

    def sampler(
        self,
        proposal: ProposalName = "mala",
        step: float | None = None,
        acceptance: Rule | AcceptanceFit | None = None,
        *,
        own_level: bool = False,
    ) -> Sampler:
        """Return a sampler at `NOISE_LEVEL`, or in the box of the samples at the fit's own noise level."""
        level = self.score.noise_level if own_level else NOISE_LEVEL
        assert level is not None
        kind = BoundedSampler if own_level else Sampler
        return kind(self.score, level, proposal, acceptance or LineIntegral("simpson"), step, group_size=None)


class BoundedSampler(Sampler):
    """A sampler whose chains stay in the box of the samples."""

    score: ScoreFit

    @property
    def target(self) -> Target:
        """The samples blurred by the noise level, in their box."""
        to_data, box, blurred = self.score.coordinates, self.score.support, super().target
        assert isinstance(blurred, Target)
        return blurred._replace(support=lambda u: box(to_data(u)))


def broad_start(sampler: Sampler, n: int, seed: int) -> Tensor:
    """Return starts from broad noise; those outside the box of a bounded sampler are moved to its sides."""
    u = sampler.start(n, noise_level=sampler.noise_level, generator=seeded(5, seed))
    if not isinstance(sampler, BoundedSampler):
        return u
    to_data, (low, high) = sampler.score.coordinates, (sampler.score.support.low, sampler.score.support.high)
    margin = ROUNDING * (high - low)
    return to_data.inverse(to_data(u).clamp(low + margin, high - margin))


def tuned(sampler: Sampler, seed: int) -> Record:
    """Return the step at which a proposal is accepted at its most efficient rate by the integrated score."""
    start = broad_start(sampler, TUNING_CHAINS, seed + 100)
    return {"step": sampler.tune(start, generator=seeded(4, seed + 100)).step_size}


def run(sampler: Sampler, n: int, length: int, seed: int) -> tuple[Tensor, Record]:
    """Return the last draws of n chains from broad noise, carried down to the samples, and what was counted."""
    start = broad_start(sampler, n, seed)
    chains = sample(sampler.kernel, start, draws=1, thin=length, generator=seeded(4, seed))
    levels = [sampler.noise_level] if isinstance(sampler, BoundedSampler) else None
    draws, calls = sampler.carry_down(chains.last, levels), chains.score_calls  # of the chains alone
    counted = {"acceptance": chains.acceptance_rate, "score_calls": calls, "steps": length}
    return draws, counted | {"step": sampler.step_size, "level": sampler.noise_level}
