r"""Score Balance Matching over noise levels and steps: one acceptance for all of them.

A batch has one step tau, and for every sample x0 a noise level sigma and a lag rho, all log-uniform. Its pairs are

    x = x0 + rho sigma z,   x' ~ q(. | x) with the score at level sigma and the step tau

A chain that is annealed lags behind its level, by up to rho = sqrt(1 + tau^2) where its step follows the score
(`ScaledMALA`): pairs without a lag are not those it will ask for. Gradients are compared in units of the noise, sigma
times those in x, so that all levels count alike.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from scoremh._shared import checks, rng
from scoremh._shared.algebra import per_chain
from scoremh._shared.probe import Probe
from scoremh.balance_matching import MATCHING, BalanceMatching, FormName
from scoremh.coordinates import Elementwise
from scoremh.networks import FORMS, Form
from scoremh.training import Fit, Recipe, train
from scoremh.types import Proposal, Target
from studies.mnist.networks import AtLevelAndStep

PROBED_SAMPLES = 4
LevelScore = Callable[[Tensor, Tensor], Tensor]
"""A score at a noise level per chain, (x, sigma) -> s."""


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
        score: Score at a noise level per chain, such as the network of a `ScoreFit`.
        proposal_of: Function from a step to the proposal, such as `ScaledMALA`.
        form: "free", "antisymmetric" or "potential".
        noise_range: Lowest and highest noise level.
        steps: Smallest and largest step.
        lag: Smallest and largest ratio rho of the noise that a sample carries to its level.
        probe: Values of the score; a checkpoint with other values belongs to another training.
    """

    matching: BalanceMatching
    score: LevelScore
    proposal_of: Callable[[float], Proposal]
    form: FormName
    noise_range: tuple[float, float]
    steps: tuple[float, float]
    lag: tuple[float, float] = (1.0, 1.5)
    probe: Probe = field(default_factory=Probe)

    def __post_init__(self) -> None:
        """Raise an error for invalid parameters."""
        checks.one_of(self.form, tuple(FORMS), "form")
        for name in ("noise_range", "steps", "lag"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                fix = "Pass a pair of positive numbers, the smaller one first."
                raise ValueError(checks.message(f"{name} from low to high", (low, high), fix))
        if self.matching.pairs != "proposed":
            fix = 'Use pairs="proposed": a pair belongs to one noise level.'
            raise ValueError(checks.message("proposed pairs", f"pairs={self.matching.pairs!r}", fix))

    def __repr__(self) -> str:
        """Show the loss, the same in every process."""
        ranges = f"noise {self.noise_range}, steps {self.steps}, lag {self.lag}"
        return f"{self.matching}, {self.form}, over {ranges}, for {checks.steady(self.proposal_of(self.steps[0]))}"

    def terms(
        self, net: nn.Module, x: Tensor, *, progress: float, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Return the loss of a batch and its terms, as `BalanceMatching.terms` does."""
        (step,) = _log_uniform(self.steps, 1, x, generator)
        sigma, lag = (_log_uniform(pair, len(x), x, generator) for pair in (self.noise_range, self.lag))
        blurred = x + per_chain(sigma * lag, x) * rng.normal(tuple(x.shape), x, generator)
        target, proposal = Target(score=lambda y: self.score(y, sigma)), self.proposal_of(float(step))
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
    """A learned acceptance for all noise levels and steps: `Learned(fit.at(noise_level, step))` is a rule.

    Args:
        net: Network of pairs, a noise level and a step, or a potential of points and a noise level.
        history: From "step", "loss", "held_out", "rate", and the terms of `BalanceMatching`, to a number per check of
            the held-out loss.
        recipe: How it was trained.
        seed: Random seed of the training; the same seed gives the same weights.
        seconds: Time it took.
        best: Step whose weights these are.
        form: "free", "antisymmetric" or "potential".
        loss: What was minimised, as text.
    """

    own_fields: ClassVar[tuple[str, ...]] = ("form", "loss")

    form: FormName
    loss: str

    def at(self, noise_level: float, step: float) -> Form:
        """Return the acceptance at a noise level, for the proposal with this step."""
        return FORMS[self.form](AtLevelAndStep(self.net, noise_level, step))

    def __repr__(self) -> str:
        """Show what was learned, how long it took, and how well it went."""
        return f"{self.form} acceptance by {self.loss}\n{super().__repr__()}"


def fit_acceptance_at_levels(
    score: LevelScore,
    proposal_of: Callable[[float], Proposal],
    samples: Tensor,
    net: nn.Module,
    *,
    form: FormName,
    noise_range: tuple[float, float],
    steps: tuple[float, float],
    lag: tuple[float, float] = (1.0, 1.5),
    matching: BalanceMatching | None = None,
    recipe: Recipe | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
    checkpoint: str | Path | None = None,
) -> LevelAcceptanceFit:
    """Learn when to accept at every noise level, and with every step, with one network.

    Args:
        score: Score at a noise level per chain, (x, sigma) -> s, such as `fit.net` of a `ScoreFit`.
        proposal_of: Function from a step to the proposal, such as `ScaledMALA`.
        samples: Samples without noise, `(sample, *event)`.
        net: `SiameseAcceptance`, or another network called in the same way; `PotentialUNet` for a potential. It is
            trained in place.
        form: "free" (the paper's), "antisymmetric" or "potential".
        noise_range: Lowest and highest noise level.
        steps: Smallest and largest step.
        lag: Smallest and largest ratio of the noise that chains carry to their level.
        matching: The loss of pairs; that of the form if None, with proposed pairs.
        recipe: How to train.
        generator: Random number generator; the same seed gives the same weights.
        progress: Show a progress bar.
        checkpoint: File to write checkpoints to; the same call with the same file resumes an interrupted training.
    """
    matching = matching or replace(MATCHING[form], pairs="proposed")
    few = samples[:PROBED_SAMPLES]
    probe = Probe.of(score(few, few.new_full((len(few),), math.sqrt(math.prod(noise_range)))))
    loss = LevelMatching(matching, score, proposal_of, form, noise_range, steps, lag, probe)
    fit = train(net, loss, samples, recipe=recipe, generator=generator, progress=progress, checkpoint=checkpoint)
    return LevelAcceptanceFit(**vars(fit), form=form, loss=repr(loss))
