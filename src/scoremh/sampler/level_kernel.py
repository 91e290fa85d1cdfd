"""The kernel that moves chains at one noise level of a score."""

import math
from dataclasses import dataclass
from typing import get_args

from scoremh._shared import checks
from scoremh._shared.names import ProposalName
from scoremh.acceptance import Learned, LineIntegral, ThroughNoise
from scoremh.balance_matching import AcceptanceFit
from scoremh.kernel import metropolis_hastings, names_its_ratio, surrogate
from scoremh.networks import Free
from scoremh.proposals import MALA, PCN, RandomWalk, StudentWalk
from scoremh.types import Acceptance, Kernel, Proposal, ScoreModel, TargetLike


@dataclass(frozen=True, eq=False)
class LevelKernel:
    """A proposal, a rule and a step at one noise level of a score, in its coordinates u.

    Its arguments are those of `Sampler`.
    """

    score: ScoreModel
    noise_level: float = 0.3
    proposal: ProposalName = "mala"
    acceptance: Acceptance | AcceptanceFit | None = None
    step_size: float | None = None
    moves: int | None = 10
    adjust_above: float = 0.0

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        fix = "Pass what fit_score returned, a model of scoremh.diffusion or a normal mixture of scoremh.targets."
        checks.kind(self.score, ScoreModel, "the scores of all noise levels", fix)
        checks.one_of(self.proposal, get_args(ProposalName), "proposal")
        if not isinstance(self.acceptance, AcceptanceFit | None):
            checks.kind(self.acceptance, Acceptance, "an Acceptance", "Pass LineIntegral(), for example.")
        checks.positive(self.noise_level, "noise_level")
        self.score.at(self.noise_level)  # refuses a level that the score does not know
        if self.moves is not None:
            checks.count(self.moves, "moves")
        if self.step_size is not None:
            checks.positive(self.step_size, "step_size", ", or leave it out and call tune()")

    @property
    def noise_range(self) -> tuple[float, float]:
        """The lowest and the highest noise level of the score."""
        return self.score.noise_range or (math.nan, math.nan)

    @property
    def target(self) -> TargetLike:
        """The data blurred by the noise level."""
        return self.score.standard.at(self.noise_level)

    def proposal_at(self, step_size: float) -> Proposal:
        """Return the proposal with a step size, in the shape of the blurred data."""
        spread = math.sqrt(self.score.variance + self.noise_level**2)
        if self.proposal == "mala":
            return MALA(step_size)
        if self.proposal == "student":
            return StudentWalk(step_size * spread, freedom=1)
        return RandomWalk(step_size * spread) if self.proposal == "rw" else PCN(step_size, scale=spread)

    @property
    def rule(self) -> Acceptance:
        """The acceptance rule."""
        if isinstance(self.acceptance, LineIntegral) and self.proposal == "student":
            return self.integral
        if not isinstance(self.acceptance, AcceptanceFit):
            return self.acceptance or self.integral
        return Learned(self.acceptance, "direct" if isinstance(self.acceptance.net, Free) else "metropolis")

    @property
    def integral(self) -> LineIntegral:
        """The rule that integrates the score, for moves as long as those of the proposal."""
        if self.proposal == "student":  # u has mean 0 and unit covariance: what its long steps must not miss
            return LineIntegral("adaptive", bend=(0.0, 1.0))
        return LineIntegral("simpson" if self.proposal == "mala" else "adaptive")

    @property
    def tuned_proposal(self) -> Proposal:
        """The proposal with the step size of the sampler."""
        if self.step_size is None:
            raise ValueError(checks.message("a step size", "none", "Call tune() first, or pass step_size=..."))
        return self.proposal_at(self.step_size)

    @property
    def kernel(self) -> Kernel:
        """The kernel that `run` makes steps of."""
        if self.moves is None or not names_its_ratio(self.rule):
            return metropolis_hastings(self.target, self.tuned_proposal, self.rule)
        return surrogate(self.target, self.tuned_proposal, self.rule, ThroughNoise(), moves=self.moves)
