"""What a fit draws with: chains led down from noise, some steps of the learned kernel, and the flow to the rows."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from scoremh import _random, annealing
from scoremh.acceptance import Always, Learned, LineIntegral
from scoremh.balance_matching import AcceptanceFit
from scoremh.chains import Chains
from scoremh.kernel import metropolis_hastings
from scoremh.networks import Standardized
from scoremh.proposals import MALA, PCN, RandomWalk
from scoremh.sampling import sample
from scoremh.score_matching import ScoreFit
from scoremh.tuning import tune
from scoremh.types import Acceptance, Kernel, Proposal

ProposalName = Literal["mala", "rw", "pcn"]
AcceptanceName = Literal["potential", "antisymmetric", "free", "simpson", "adaptive", "always"]
HIGH, LEVELS, RATIO = 5.0, 25, 0.5  # of the annealing: most noise, levels, step over noise squared
DOWN, LEAST = 4, 0.02  # of the flow: levels, and the noise that is taken away in one stroke
AT_ONCE = 10_000  # draws that are carried down in one piece


@dataclass(frozen=True, eq=False)
class Sampler:
    """A learned score with a proposal and a rule.

    Args:
        score: Noise-conditional, in standard coordinates.
        proposal: Its name.
        acceptance: The rule's name.
        step: Of the proposal.
        learned: The acceptance, where the rule is a learned one.
    """

    score: ScoreFit
    proposal: ProposalName
    acceptance: AcceptanceName
    step: float = math.nan
    learned: AcceptanceFit | None = None

    @property
    def level(self) -> float:
        """The noise level of the last kernel."""
        assert self.score.level is not None
        return self.score.level

    def proposed(self, step: float) -> Proposal:
        """Return the proposal with a step, in the shape of the rows."""
        covariance = self.score.covariance
        if self.proposal == "mala":
            return MALA(step, covariance=covariance)
        if self.proposal == "rw":
            return RandomWalk(step, covariance=covariance)
        assert isinstance(self.score.net, Standardized)
        return PCN(step, self.score.net.mean, covariance=covariance)

    def rule(self) -> Acceptance:
        """Return the rule."""
        if self.learned is not None:
            return Learned(self.learned, "direct" if self.acceptance == "free" else "metropolis")
        return Always() if self.acceptance == "always" else LineIntegral(self.acceptance)  # type: ignore[arg-type]

    def tuned(self, start: Tensor, steps: int, *, generator: torch.Generator, progress: bool) -> "Sampler":
        """Find the step by the integrated score: an acceptance is learned for one step, and always accepting has none.

        Args:
            start: Where chains have come down to.
            steps: To tune on.
            generator: Source of randomness.
            progress: Show a progress bar.
        """
        rule = LineIntegral("simpson" if self.proposal == "mala" else "adaptive")
        step = tune(
            lambda step: metropolis_hastings(self.score, self.proposed(step), rule),
            start,
            start=0.05,
            upper=1.0 if self.proposal == "pcn" else math.inf,
            steps=steps,
            generator=generator,
            progress=progress,
        )
        return replace(self, step=step)

    def noise(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw from a normal law with the rows' mean, and their covariance with noise of the highest level."""
        net = self.score.net
        assert isinstance(net, Standardized)
        z = math.sqrt(1 + HIGH**2) * _random.normal((n, *net.mean.shape), net.mean, generator)
        return net.mean + (z * net.root if net.root.ndim == 0 else z @ net.root.mT)

    def annealed(
        self, n: int, steps: int, *, generator: torch.Generator, progress: bool, store: Path | None = None
    ) -> Tensor:
        """Lead n chains from noise down to the level of the last kernel, and into the box of the rows.

        Args:
            n: How many.
            steps: At every level.
            generator: Source of randomness.
            progress: Show a progress bar.
            store: A folder from which the same call goes on.
        """
        fit = self.score
        rule = Always() if self.acceptance == "always" else LineIntegral()

        def kernel_at(level: float) -> Kernel:
            return metropolis_hastings(fit.at(level), MALA(RATIO * level**2, covariance=fit.covariance), rule)

        levels = annealing.karras(HIGH, self.level, LEVELS)
        start = self.noise(n, generator)
        found = annealing.anneal(
            kernel_at, levels, start, steps_per_level=steps, generator=generator, progress=progress, store=store
        )
        return found.draws.clamp(fit.support.low, fit.support.high)

    def run(
        self,
        start: Tensor,
        steps: int,
        draws: int,
        *,
        generator: torch.Generator,
        progress: bool,
        store: Path | None = None,
    ) -> Chains:
        """Make steps of the kernel, and carry its draws down to the rows themselves.

        Args:
            start: Where chains have come down to.
            steps: Of each.
            draws: To keep of them, the last among them.
            generator: Source of randomness.
            progress: Show a progress bar.
            store: A folder from which the same call goes on.
        """
        kernel = metropolis_hastings(self.score, self.proposed(self.step), self.rule())
        thin = steps // draws
        warmup = steps - thin * draws
        chains = sample(
            kernel,
            start,
            draws=draws,
            warmup=warmup,
            thin=thin,
            generator=generator,
            progress=progress,
            store=store,
        )
        down = [*annealing.geometric(self.level, min(LEAST, self.level), DOWN), 0.0]
        covariance = self.score.covariance
        ends = [
            annealing.flow(self.score.at, down, part, covariance=covariance)
            for part in chains.draws.flatten(0, 1).split(AT_ONCE)
        ]
        return replace(chains, draws=torch.cat(ends).reshape(chains.draws.shape))
