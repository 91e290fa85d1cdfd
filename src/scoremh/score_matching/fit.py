"""A learned score: a target, with what is known of its training."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scoremh import diffusion
from scoremh._shared import checks
from scoremh._shared.support import Box
from scoremh.coordinates import Affine, Compose, Coordinates, Sinh
from scoremh.networks import AtNoiseLevel, InCoordinates, NoiseConditionalMLP, NoiseConditionalPotential
from scoremh.score_matching.losses import implicit_losses_of
from scoremh.training import Fit
from scoremh.types import LogDensityFn, Middle, Target

ROUNDING = 1e-6  # relative: schedules of noise levels are rounded


@dataclass(eq=False, repr=False)
class ScoreFit(Fit):
    """A learned score. It is a target: `metropolis_hastings(fit, MALA(0.1), LineIntegral())`.

    Args:
        net: The network, called with samples: `net(x)`, or `net(x, sigma)` for a noise-conditional one.
        history: From "step", "loss", "held_out" and "rate" to a number per check of the held-out loss.
        recipe: How it was trained.
        seed: Random seed of the training; the same seed gives the same weights.
        seconds: Time it took.
        best: Step whose weights these are.
        support: The box of the samples, a tenth of their range wider on either side; in coordinates of heavy tails
            where the score was learned in those.
        noise_level: The noise level at which a noise-conditional network is read, in its coordinates; None for others.
        noise_range: Lowest and highest noise level that a noise-conditional network has learned; None for others.
        loss: What was minimised, as text.
    """

    own_fields: ClassVar[tuple[str, ...]] = ("noise_level", "noise_range", "loss")

    support: Box
    noise_level: float | None
    noise_range: tuple[float, float] | None
    loss: str

    variance: ClassVar[float] = 1.0
    density_is_estimated: ClassVar[bool] = True

    @property
    def log_density(self) -> LogDensityFn | None:
        """The function x -> log p(x) at the fit's noise level, normalised, through noise; None without noise levels.

        `scoremh.diffusion.log_density` has its options.
        """
        return None if self.noise_range is None else diffusion.LogDensity(self)

    @property
    def potential(self) -> LogDensityFn:
        """The function x -> log p(x) + const whose gradient is this score exactly, for a fit with `net="potential"`.

        One forward of the network. `Target(fit.score, fit.potential, fit.support)` with `Exact()` is reversible for it
        to the last digit, with no quadrature. It does not know the weights of modes, since it was learned from
        gradients alone: `log_density`, through noise, does.
        """
        if not isinstance(self._inside, NoiseConditionalPotential) or self.noise_level is None:
            got, fix = f"one by {type(self._inside).__name__}", 'Fit it with net="potential", or use log_density.'
            raise ValueError(checks.message("a score that is the gradient of a potential", got, fix))
        return self._potential

    def _potential(self, x: Float[Tensor, "chain *event"]) -> Float[Tensor, " chain"]:
        u = self.coordinates.inverse(x)
        phi: Tensor = self._inside.potential(u, self.noise_level)  # type: ignore[operator]
        return phi - self.coordinates.log_det(u)

    def score(self, x: Float[Tensor, "chain *event"]) -> Float[Tensor, "chain *event"]:
        """Return the score at x."""
        score: Tensor = self.net(x) if self.noise_level is None else self.net(x, self.noise_level)
        return score

    def at(self, noise_level: float) -> Target:
        """Return the score of the samples blurred by noise of this level, as a target; for `anneal`.

        Args:
            noise_level: Noise level in the coordinates of the network: in units of the samples' spread where it is
                standardised.
        """
        self._require(noise_level)
        return Target(AtNoiseLevel(self.net, noise_level), levels=replace(self, noise_level=noise_level))

    def level_score(
        self, x: Float[Tensor, "chain *event"], sigma: Tensor | float
    ) -> tuple[Float[Tensor, "chain *event"], Float[Tensor, " chain"]]:
        """Return the score of the samples blurred by a noise level, and its divergence.

        Args:
            x: Points.
            sigma: Noise level in the coordinates of the network, a number or one per chain.
        """
        inside, coordinates = self._inside, self.coordinates
        if not isinstance(inside, NoiseConditionalMLP | NoiseConditionalPotential) or not isinstance(
            coordinates, Affine
        ):
            return diffusion.level_score(self.net, x, sigma)
        u = coordinates.inverse(x)
        # tr J_x = sum_i (L^-1 e_i) . J_u (L^-1 e_i)
        directions = coordinates.whiten(
            torch.eye(u[0].numel(), dtype=x.dtype, device=x.device).reshape(-1, *u.shape[1:])
        )
        score, divergence = inside.level_score(u, sigma, directions.flatten(1))
        return coordinates.push_score(score, u), divergence

    @property
    def event(self) -> Tensor:
        """A corner of the box of the samples: an event of their shape, dtype and device."""
        return self.support.low

    @property
    def standard(self) -> "ScoreFit":
        """The same score in the coordinates u of the network: what is inside, with nothing around it."""
        everywhere = torch.full_like(self.support.low, math.inf)
        return replace(self, net=self._inside, support=Box(-everywhere, everywhere))

    def _require(self, noise_level: float) -> None:
        """Refuse a noise level that the score has not learned."""
        if self.noise_range is None:
            got = f"one by {type(self._inside).__name__}"
            fix = "Fit it with MultilevelDenoising(), the default but for heavy tails."
            raise ValueError(checks.message("a score that takes a noise level", got, fix))
        low, high = self.noise_range
        if not low * (1 - ROUNDING) <= noise_level <= high * (1 + ROUNDING):
            fix = "Choose one of these, or fit with MultilevelDenoising(low, high) of your own."
            raise ValueError(checks.message(f"a noise level from {low:g} to {high:g}, as learned", noise_level, fix))

    @property
    def coordinates(self) -> Coordinates:
        """The map x = f(u) from the coordinates u of the network; the identity where nothing is standardised."""
        if isinstance(self.net, InCoordinates):
            return self.net.coordinates
        return Affine(self.support.low.new_zeros(()), self.support.low.new_ones(()))

    @property
    def _inside(self) -> nn.Module:
        """The network in its coordinates."""
        return self.net.net if isinstance(self.net, InCoordinates) else self.net

    @property
    def covariance(self) -> Tensor | None:
        """Covariance of noise of level 1 in the coordinates of the samples: their own where they are standardised.

        For `annealing.flow`, and for proposals that are to fit the samples. None stands for the identity.
        """
        if not isinstance(self.net, InCoordinates):
            return None
        if not isinstance(self.coordinates, Affine):
            fix = "Fit it without heavy_tails."
            raise ValueError(checks.message("noise with a covariance", "noise in coordinates of heavy tails", fix))
        covariance = self.coordinates.covariance
        return covariance if covariance.ndim else covariance.expand(self.support.low.numel())

    @property
    def _sinh(self) -> Sinh | None:
        """The outermost coordinates, where they are those of heavy tails."""
        outermost = self.coordinates
        while isinstance(outermost, Compose):
            outermost = outermost.outer
        return outermost if isinstance(outermost, Sinh) else None

    @property
    def middle(self) -> Middle:
        """Where the samples of a score with heavy tails lie and how wide they are, for `LineIntegral(bend=...)`."""
        if (sinh := self._sinh) is None:
            fix = "Fit it with heavy_tails=True, or write LineIntegral() without a bend."
            raise ValueError(checks.message("a score with heavy tails", "one without", fix))
        mean, scale = (tuple(part.flatten().tolist()) for part in (sinh.mean, sinh.scale))
        return mean, scale

    def __repr__(self) -> str:
        """Show what was learned, how long it took, and how well it went."""
        heavy = "" if self._sinh is None else ", in coordinates of heavy tails"
        level = self.noise_level
        read = "" if level is None else f", read at noise level {level:.3g} of the samples' spread"
        return f"score by {type(self._inside).__name__} and {self.loss}{heavy}{read}\n{super().__repr__()}"

    def _tensors(self) -> dict[str, Tensor]:
        return {"support.low": self.support.low, "support.high": self.support.high}

    @classmethod
    def _restored(cls, fields: dict[str, Any], tensors: Mapping[str, Tensor]) -> "ScoreFit":
        fields["noise_range"] = fields["noise_range"] and tuple(fields["noise_range"])
        return cls(**fields, support=Box(tensors["support.low"], tensors["support.high"]))


def implicit_losses(fit: ScoreFit, x: Float[Tensor, "sample *event"]) -> Float[Tensor, " sample"]:
    """Return the implicit score-matching loss of a learned score at every sample, in the samples' own coordinates.

    Args:
        fit: Learned score.
        x: Samples that it was not learned from, `(sample, *event)`.
    """
    return implicit_losses_of(fit.net if fit.noise_level is None else AtNoiseLevel(fit.net, fit.noise_level), x)
