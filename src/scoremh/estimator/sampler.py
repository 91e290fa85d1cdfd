"""What a fit draws with: chains led down from noise, steps of the learned kernel, and the flow to the rows.

The kernel's target is the law of the rows blurred by some noise. A learned score is wrong between modes, and what lies
between decides how much weight each gets; noise connects them, and the flow takes it away again.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from scoremh import annealing
from scoremh._shared import rng
from scoremh.acceptance import Always, Learned, LineIntegral
from scoremh.balance_matching import AcceptanceFit
from scoremh.coordinates import Affine
from scoremh.kernel import metropolis_hastings
from scoremh.proposals import MALA, PCN, RandomWalk
from scoremh.sampling import sample
from scoremh.sampling.chains import Chains
from scoremh.sampling.tuning import tune
from scoremh.score_matching import MultilevelDenoising, ScoreFit
from scoremh.types import Acceptance, Kernel, Proposal, Target

ProposalName = Literal["mala", "rw", "pcn"]
AcceptanceName = Literal["potential", "antisymmetric", "free", "simpson", "adaptive", "always"]
HIGH = MultilevelDenoising().high
LEVELS, RATIO = 15, 0.5  # of the annealing: levels, step over noise squared
DOWN, LEAST = 8, MultilevelDenoising().low  # of the flow: levels, and the noise that is taken away in one stroke
AT_ONCE = 10_000  # draws that are carried down in one piece


@dataclass(frozen=True, eq=False)
class Sampler:
    """A learned score with a proposal and a rule.

    Args:
        score: Noise-conditional, in standard coordinates.
        noise: Level at which the kernel runs, in units of the rows' spread.
        proposal: Its name.
        acceptance: The rule's name.
        step: Of the proposal.
        learned: The acceptance, where the rule is a learned one.
    """

    score: ScoreFit
    noise: float
    proposal: ProposalName
    acceptance: AcceptanceName
    step: float = math.nan
    learned: AcceptanceFit | None = None

    @property
    def target(self) -> Target:
        """The law of the rows, blurred."""
        return self.score.at(self.noise)

    @property
    def _standard(self) -> Affine:
        assert isinstance(self.score.coordinates, Affine)
        return self.score.coordinates

    @property
    def _covariance(self) -> Tensor:
        assert self.score.covariance is not None
        return self.score.covariance

    def proposed(self, step: float) -> Proposal:
        """Return the proposal with a step, in the shape of the blurred rows."""
        wide = (1 + self.noise**2) * self._covariance
        if self.proposal == "mala":
            return MALA(step, covariance=self._covariance)
        if self.proposal == "rw":
            return RandomWalk(step, covariance=wide)
        return PCN(step, self._standard.mean, covariance=wide)

    def rule(self) -> Acceptance:
        """Return the rule."""
        if self.learned is not None:
            return Learned(self.learned, "direct" if self.acceptance == "free" else "metropolis")
        return Always() if self.acceptance == "always" else LineIntegral(self.acceptance)  # type: ignore[arg-type]

    def tuned(self, start: Tensor, steps: int, *, generator: torch.Generator, progress: bool) -> "Sampler":
        """Find the step by the integrated score: an acceptance is learned for one step, and always accepting has none.

        As for `tune`, a few hundred steps find it well.

        Args:
            start: Where chains have come down to.
            steps: To tune on.
            generator: Source of randomness.
            progress: Show a progress bar.
        """
        rule = LineIntegral("simpson" if self.proposal == "mala" else "adaptive")
        step = tune(
            lambda step: metropolis_hastings(self.target, self.proposed(step), rule),
            start,
            start=0.05,
            upper=1.0 if self.proposal == "pcn" else math.inf,
            steps=steps,
            generator=generator,
            progress=progress,
        )
        return replace(self, step=step)

    def blurred(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Return rows with the kernel's noise added."""
        return rows + self.noise * self._spread(rng.normal(tuple(rows.shape), rows, generator))

    def start(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw from a normal law with the rows' mean, and their covariance with noise of the highest level."""
        mean = self._standard.mean
        return mean + math.sqrt(1 + HIGH**2) * self._spread(rng.normal((n, *mean.shape), mean, generator))

    def _spread(self, z: Tensor) -> Tensor:
        """Give standard normal numbers the covariance of the rows."""
        return self._standard.color(z)

    def annealed(
        self, n: int, steps: int, *, generator: torch.Generator, progress: bool, store: Path | None = None
    ) -> annealing.Annealed:
        """Lead n chains from high noise down to that of the kernel.

        Args:
            n: How many.
            steps: At every level.
            generator: Source of randomness.
            progress: Show a progress bar.
            store: A folder from which the same call goes on.
        """
        rule = Always() if self.acceptance == "always" else LineIntegral()

        def kernel_at(level: float) -> Kernel:
            proposal = MALA(RATIO * level**2, covariance=self._covariance)
            return metropolis_hastings(self.score.at(level), proposal, rule)

        levels, start = annealing.karras(HIGH, self.noise, LEVELS), self.start(n, generator)
        return annealing.anneal(
            kernel_at, levels, start, steps_per_level=steps, generator=generator, progress=progress, store=store
        )

    def run(
        self,
        begun: annealing.Annealed,
        steps: int,
        draws: int,
        *,
        generator: torch.Generator,
        progress: bool,
        store: Path | None = None,
    ) -> Chains:
        """Make steps of the kernel, and carry its draws down to the rows themselves.

        Args:
            begun: The way down; its score calls are counted.
            steps: Of each.
            draws: To keep of them, the last among them.
            generator: Source of randomness.
            progress: Show a progress bar.
            store: A folder from which the same call goes on.
        """
        kernel = metropolis_hastings(self.target, self.proposed(self.step), self.rule())
        thin = steps // draws
        warmup = steps - thin * draws
        chains = sample(
            kernel,
            begun.draws,
            draws=draws,
            warmup=warmup,
            thin=thin,
            generator=generator,
            progress=progress,
            store=store,
        )
        down = [*annealing.geometric(self.noise, LEAST, DOWN), 0.0]
        flat = chains.draws.flatten(0, 1)
        ends = [annealing.flow(self.score.at, down, part, covariance=self._covariance) for part in flat.split(AT_ONCE)]
        carried = (2 * DOWN - 1) * len(flat)  # two calls per level, one for the last
        calls = begun.score_calls + chains.score_calls + carried
        return replace(chains, draws=torch.cat(ends).reshape(chains.draws.shape), score_calls=calls)
