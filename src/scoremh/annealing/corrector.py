"""Metropolis-Hastings steps inside a sampler of one's own: the corrector of a predictor-corrector loop."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks
from scoremh.acceptance import LineIntegral
from scoremh.kernel import metropolis_hastings
from scoremh.proposals import MALA
from scoremh.sampling import sample
from scoremh.types import Acceptance, Kernel, Proposal, ScoreModel


@dataclass(frozen=True)
class Corrector:
    """Steps that leave the distribution at a noise level as it is, for a predictor-corrector loop of one's own.

    `x = corrector(x, sigma)` makes `steps` transitions at the level that the predictor has arrived at; x is in the
    coordinates x0 + sigma z.

    Args:
        model: Scores at all noise levels, of `scoremh.diffusion` or `fit_score`.
        proposal_at: Function from a noise level to the proposal for it, or a number c for `MALA(c * sigma**2)`.
        rule: Acceptance rule; `Always()` for unadjusted Langevin steps.
        steps: Number of transitions in one call.

    Example:
        >>> from scoremh import annealing, targets
        >>> normal, g = targets.Gaussian([0.0, 0.0]), torch.Generator().manual_seed(0)
        >>> corrector = Corrector(normal, lambda sigma: MALA(0.3 * sigma**2), steps=2)
        >>> x = 5 * torch.randn(100, 2, generator=g)
        >>> for high, low in [(5.0, 2.0), (2.0, 1.0)]:
        ...     x = annealing.flow(normal.at, [high, low], x)  # a predictor
        ...     x = corrector(x, low, generator=g)
        >>> x.shape
        torch.Size([100, 2])
    """

    model: ScoreModel
    proposal_at: Callable[[float], Proposal] | float = 0.3
    rule: Acceptance = field(default_factory=LineIntegral)
    steps: int = 1

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        checks.kind(self.model, ScoreModel, "a model of all noise levels", "Use an adapter of scoremh.diffusion.")
        checks.kind(self.rule, Acceptance, "an Acceptance", "Pass LineIntegral(), for example.")
        checks.count(self.steps, "steps")
        if not callable(self.proposal_at):
            checks.positive(self.proposal_at, "proposal_at", ", or a function from a noise level to a proposal")

    def kernel_at(self, noise_level: float) -> Kernel:
        """Return the kernel of a noise level, which also serves `anneal`.

        Args:
            noise_level: sigma.
        """
        if callable(self.proposal_at):
            proposal = self.proposal_at(noise_level)
        else:
            proposal = MALA(self.proposal_at * noise_level**2)
        return metropolis_hastings(self.model.at(noise_level), proposal, self.rule)

    def __call__(
        self, x: Float[Tensor, "chain *event"], sigma: Tensor | float, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "chain *event"]:
        """Return where the chains are after the steps.

        Args:
            x: Points at this noise level, one per chain.
            sigma: Noise level, one for all chains.
            generator: Random number generator; the same seed gives the same points.
        """
        chains = sample(self.kernel_at(float(sigma)), x, draws=1, thin=self.steps, generator=generator)
        return chains.draws[:, 0]
