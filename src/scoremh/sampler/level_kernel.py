"""The kernel that moves chains at one noise level of a learned score."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from scoremh._shared import checks
from scoremh.acceptance import Learned, LineIntegral, ThroughNoise
from scoremh.balance_matching import AcceptanceFit
from scoremh.kernel import metropolis_hastings, names_its_ratio, surrogate
from scoremh.networks import Free
from scoremh.proposals import MALA, PCN, RandomWalk
from scoremh.score_matching import ScoreFit
from scoremh.types import Acceptance, Kernel, Proposal, Target

ProposalName = Literal["mala", "rw", "pcn"]


@dataclass(frozen=True, eq=False)
class LevelKernel:
    """A proposal, a rule and a step at one noise level of a learned score, in its coordinates u.

    Its arguments are those of `Sampler`.
    """

    score: ScoreFit
    noise_level: float = 0.3
    proposal: ProposalName = "mala"
    acceptance: Acceptance | AcceptanceFit | None = None
    step_size: float | None = None
    moves: int | None = 10
    adjust_above: float = 0.0

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        checks.kind(self.score, ScoreFit, "a learned score", "Pass what fit_score returned.")
        checks.one_of(self.proposal, get_args(ProposalName), "proposal")
        if not isinstance(self.acceptance, AcceptanceFit | None):
            checks.kind(self.acceptance, Acceptance, "an Acceptance", "Pass LineIntegral(), for example.")
        checks.positive(self.noise_level, "noise_level")
        self.score.at(self.noise_level)  # refuses a level that the score has not learned
        if self.moves is not None:
            checks.count(self.moves, "moves")
        if self.step_size is not None:
            checks.positive(self.step_size, "step_size", ", or leave it out and call tune()")

    @property
    def noise_range(self) -> tuple[float, float]:
        """The lowest and the highest noise level of the score."""
        return self.score.noise_range or (math.nan, math.nan)

    @property
    def target(self) -> Target:
        """The data blurred by the noise level."""
        return self.score.standard.at(self.noise_level)

    def proposal_at(self, step_size: float) -> Proposal:
        """Return the proposal with a step size, in the shape of the blurred data."""
        spread = math.sqrt(1 + self.noise_level**2)
        if self.proposal == "mala":
            return MALA(step_size)
        return RandomWalk(step_size * spread) if self.proposal == "rw" else PCN(step_size, scale=spread)

    @property
    def rule(self) -> Acceptance:
        """The acceptance rule."""
        if not isinstance(self.acceptance, AcceptanceFit):
            return self.acceptance or self.integral
        return Learned(self.acceptance, "direct" if isinstance(self.acceptance.net, Free) else "metropolis")

    @property
    def integral(self) -> LineIntegral:
        """The rule that integrates the score, for moves as long as those of the proposal."""
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
