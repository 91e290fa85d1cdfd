r"""Score Balance Matching over noise levels and steps: one acceptance for all of them.

A batch has one step tau, and for every sample x0 a noise level sigma and a lag rho, all log-uniform. Its pairs are

    x = x0 + rho sigma z,   x' ~ q(. | x) with the score at level sigma and the step tau

A chain that is annealed lags behind its level, by up to rho = sqrt(1 + tau^2) where its step follows the score
(`ScaledMALA`): pairs without a lag are not those it will ask for. Gradients are compared in units of the noise, sigma
times those in x, so that all levels count alike.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from scoremh._shared import rng
from scoremh._shared.algebra import per_chain
from scoremh._shared.probe import Probe
from scoremh.balance_matching import BalanceMatching, FormName
from scoremh.coordinates import Elementwise
from scoremh.networks import FORMS, Form
from scoremh.proposals import ScaledMALA
from scoremh.training import Fit
from scoremh.types import Target
from studies.mnist.networks import AtLevelAndStep, SiameseAcceptance

LAG = (1.0, 1.5)  # smallest and largest rho


class _UnitsOfNoise(Elementwise):
    """The map x = sigma u with a sigma per chain; points may be those of pairs, all first ones and then all second."""

    def __init__(self, sigma: Tensor) -> None:
        super().__init__()
        self.sigma = sigma

    def slope(self, u: Tensor) -> Tensor:
        """Return sigma."""
        return per_chain(self.sigma.repeat(len(u) // len(self.sigma)), u)

    def forward(self, u: Tensor) -> Tensor:
        """Return sigma u."""
        return self.slope(u) * u

    def inverse(self, x: Tensor) -> Tensor:
        """Return x / sigma."""
        return x / self.slope(x)

    def log_det_gradient(self, u: Tensor) -> Tensor:
        """Return 0."""
        return torch.zeros_like(u)


@dataclass(frozen=True, eq=False)
class LevelMatching:
    """The loss over noise levels and steps, as `train` takes it.

    Args:
        matching: The loss of pairs; they are proposed ones.
        score: Score at a noise level per chain, (x, sigma) -> s, such as the network of a `ScoreFit`.
        form: "free" or "antisymmetric".
        noise_range: Lowest and highest noise level.
        steps: Smallest and largest step tau of `ScaledMALA`.
        probe: Values of the score; a checkpoint with other values belongs to another training.
    """

    matching: BalanceMatching
    score: Callable[[Tensor, Tensor], Tensor]
    form: FormName
    noise_range: tuple[float, float]
    steps: tuple[float, float]
    probe: Probe = field(default_factory=Probe)

    def __repr__(self) -> str:
        """Show the loss, the same in every process."""
        return f"{self.matching}, {self.form}, over noise {self.noise_range}, steps {self.steps}, lag {LAG}"

    def terms(
        self, net: nn.Module, x: Tensor, *, progress: float, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Return the loss of a batch and its terms, as `BalanceMatching.terms` does."""
        assert isinstance(net, SiameseAcceptance)
        (step,) = _log_uniform(self.steps, 1, x, generator)
        sigma, lag = (_log_uniform(pair, len(x), x, generator) for pair in (self.noise_range, LAG))
        blurred = x + per_chain(sigma * lag, x) * rng.normal(tuple(x.shape), x, generator)
        target, proposal = Target(score=lambda y: self.score(y, sigma)), ScaledMALA(float(step))
        form = FORMS[self.form](AtLevelAndStep(net, sigma, step))
        current, proposed = self.matching.draw(target, proposal, blurred, progress=progress, generator=generator)
        return self.matching.between(form, target, proposal, current, proposed, _UnitsOfNoise(sigma), progress)

    def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the held-out loss, without the graph of the gradients."""
        with torch.no_grad():
            return self.terms(net, x, progress=1.0, generator=generator)["loss"]


def _log_uniform(pair: tuple[float, float], n: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return n numbers between two, uniform in their logarithm."""
    return pair[0] * (math.log(pair[1] / pair[0]) * rng.uniform((n,), like, generator)).exp()


@dataclass(eq=False, repr=False)
class LevelAcceptanceFit(Fit):
    """A learned acceptance for all noise levels and steps: `Learned(fit.at(noise_level, step))` is a rule."""

    own_fields: ClassVar[tuple[str, ...]] = ("form", "loss")

    form: FormName
    loss: str

    def at(self, noise_level: float, step: float) -> Form:
        """Return the acceptance at a noise level, for the proposal with this step."""
        assert isinstance(self.net, SiameseAcceptance)
        return FORMS[self.form](AtLevelAndStep(self.net, noise_level, step))
