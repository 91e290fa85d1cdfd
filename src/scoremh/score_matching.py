r"""A score from samples: losses, and `fit_score`, which chooses all that is not given.

| loss | what it minimises | needs |
|---|---|---|
| `ImplicitScoreMatching` | E[ \|s\|^2 / 2 + tr J ] (Hyvarinen 2005) | a divergence |
| `SlicedScoreMatching` | E[ \|s\|^2 / 2 + v.Jv ], or with (v.s)^2 for \|s\|^2 (Song et al. 2020) | one product with J |
| `DenoisingScoreMatching` | E[ \|sigma s(x + sigma z) + z\|^2 ] / 2 (Vincent 2011) | nothing |
| `MultilevelDenoising` | the same over a range of noise levels | a network that takes sigma |

s is the score, J its Jacobian, v and z are standard normal. The first two losses estimate the score itself, up to a
constant half its mean square, and are unbounded below where samples have no width in some direction. The others
estimate the score of the samples blurred by noise, which always exists. A noise-conditional score is read at the level
at which its implicit loss on held-out samples is least.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scoremh import diffusion
from scoremh._shared import checks, rng
from scoremh._shared.algebra import inner, per_chain
from scoremh.coordinates import MAX_WHITENED_SIZE, Affine, Compose, Coordinates, Sinh, SquareRoot
from scoremh.networks import AtNoiseLevel, InCoordinates, NoiseConditionalMLP, ScoreMLP
from scoremh.training import Fit, Loss, Recipe, split, train
from scoremh.types import Box, LogDensityFn, Middle, Target

__all__ = [
    "MIN_SAMPLES",
    "DenoisingScoreMatching",
    "ImplicitScoreMatching",
    "MultilevelDenoising",
    "ScoreFit",
    "SlicedScoreMatching",
    "best_noise_level",
    "fit_score",
    "implicit_losses",
    "score_and_divergence",
]


CALL_COORDINATES = 200_000  # of the samples at which a network is differentiated in one call: images need memory
MAX_EXACT_TRACE_SIZE = 32  # coordinates up to which a held-out trace is summed exactly; beyond, it is estimated


def score_and_divergence(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the score and the trace of its Jacobian: the network's own closed form, or a batch of d products."""
    own = getattr(net, "score_and_divergence", None)
    if own is not None:
        score, divergence = own(x)
        return score, divergence
    score, pull = torch.func.vjp(net, x)[:2]
    size = x[0].numel()
    basis = torch.eye(size, dtype=x.dtype, device=x.device).reshape(size, 1, *x.shape[1:]).expand(size, *x.shape)
    rows = torch.func.vmap(lambda v: pull(v)[0])(basis)
    return score, torch.diagonal(rows.flatten(2), dim1=0, dim2=2).sum(1)


@dataclass(frozen=True)
class ImplicitScoreMatching:
    """E[ |s|^2 / 2 + tr J ], with the exact trace."""

    def each(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Float[Tensor, " sample"]:
        """Return the loss of every sample; nothing is random."""
        score, divergence = score_and_divergence(net, x)
        return inner(score, score) / 2 + divergence

    def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Float[Tensor, ""]:
        """Return the mean over a batch."""
        return self.each(net, x).mean()


@dataclass(frozen=True)
class SlicedScoreMatching:
    """The trace by random normal projections v.

    Args:
        variance_reduced: Whether to use |s|^2 / 2, the mean over v of (v.s)^2 / 2: what the paper calls sliced.
        projections: Number of vectors v per sample.
    """

    variance_reduced: bool = True
    projections: int = 1

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        checks.count(self.projections, "projections")

    def each(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Float[Tensor, " sample"]:
        """Return the loss of every sample, a mean over its projections."""
        many = x.detach().repeat(self.projections, *(1,) * (x.ndim - 1)).requires_grad_()
        v = rng.normal(tuple(many.shape), many, generator)
        score = net(many)
        along = inner(score, v)
        (product,) = torch.autograd.grad(along.sum(), many, create_graph=True)  # J^T v, and v.J^T v = v.Jv
        size = inner(score, score) if self.variance_reduced else along.square()
        return (inner(product, v) + size / 2).reshape(self.projections, len(x)).mean(0)

    def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Float[Tensor, ""]:
        """Return the mean over a batch."""
        return self.each(net, x, generator=generator).mean()


@dataclass(frozen=True)
class DenoisingScoreMatching:
    """The score of samples blurred by Gaussian noise of one level.

    Args:
        noise_level: Standard deviation of the noise, in the coordinates of the network.
    """

    noise_level: float

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        checks.positive(self.noise_level, "noise_level")

    def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Float[Tensor, ""]:
        """Return the mean over a batch, weighted by sigma^2."""
        z = rng.normal(tuple(x.shape), x, generator)
        error = self.noise_level * net(x + self.noise_level * z) + z
        return inner(error, error).mean() / 2


@dataclass(frozen=True)
class MultilevelDenoising:
    """The scores of samples blurred by noise of all levels from low to high, log-uniformly, for `net(x, sigma)`.

    The weight sigma^2 (1 + sigma^2) makes the targets of all levels as large, for samples of unit variance (Karras et
    al. 2022).

    Args:
        low: Lowest noise level, in the coordinates of the network.
        high: Highest noise level; a few times the spread of the samples, so that their modes merge.
    """

    low: float = 0.02
    high: float = 5.0

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        checks.positive(self.low, "low")
        checks.positive(self.high, "high")
        if self.low >= self.high:
            got = f"low={self.low} and high={self.high}"
            raise ValueError(checks.message("low below high", got, "Swap or correct them."))

    def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Float[Tensor, ""]:
        """Return the mean over a batch, each sample at a noise level of its own."""
        sigma = self.low * (math.log(self.high / self.low) * rng.uniform((len(x),), x, generator)).exp()
        z = rng.normal(tuple(x.shape), x, generator)
        wide = per_chain(sigma, x)
        error = wide * net(x + wide * z, sigma) + z
        return ((1 + sigma.square()) * inner(error, error)).mean() / 2

    def noise_levels(self) -> list[float]:
        """Return the noise levels at which to consider reading the score: seven, up to fifteen times the lowest."""
        top = min(15 * self.low, self.high)
        return [self.low * (top / self.low) ** (i / 6) for i in range(7)]


def implicit_losses_of(net: nn.Module, x: Float[Tensor, "sample *event"]) -> Float[Tensor, " sample"]:
    """Return the implicit loss of every sample; the same projections every time make networks comparable."""
    loss = ImplicitScoreMatching() if x[0].numel() <= MAX_EXACT_TRACE_SIZE else SlicedScoreMatching()
    generator, rows = rng.seeded(0, x.device), max(1, CALL_COORDINATES // x[0].numel())
    return torch.cat([loss.each(net, part, generator=generator).detach() for part in x.split(rows)])


def best_noise_level(net: nn.Module, noise_levels: Sequence[float], x: Float[Tensor, "sample *event"]) -> float:
    """Return the noise level at which a score is best, by its implicit loss on samples it has not seen.

    A low level is near the score of the samples themselves but hard to learn, a high one is blurred. From the middle
    level on, the next one is taken as long as it is better by more than a standard error.

    Args:
        net: Noise-conditional network, `net(x, sigma)`.
        noise_levels: Noise levels to choose from, in order.
        x: Held-out samples, in the coordinates of the network.
    """
    each = [implicit_losses_of(AtNoiseLevel(net, level), x) for level in noise_levels]

    def better(there: int) -> bool:
        gain = each[here] - each[there]
        return len(x) > 1 and float(gain.mean()) > float(gain.std()) / math.sqrt(len(x))

    here = len(noise_levels) // 2
    while steps := [there for there in (here - 1, here + 1) if 0 <= there < len(noise_levels) and better(there)]:
        here = steps[0]
    return noise_levels[here]


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
    def probes(self) -> int | None:
        """None: the divergence is exact."""
        return None

    @property
    def log_density(self) -> LogDensityFn | None:
        """The function x -> log p(x) at the fit's noise level, normalised, through noise; None without noise levels.

        `scoremh.diffusion.log_density` has its options.
        """
        return None if self.noise_range is None else diffusion.LogDensity(self)

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
        if not isinstance(inside, NoiseConditionalMLP) or not isinstance(coordinates, Affine):
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
        """Middle and width of the samples of a score with heavy tails, for `LineIntegral(coordinates=...)`."""
        if (sinh := self._sinh) is None:
            fix = "Fit it with heavy_tails=True, or write LineIntegral() without coordinates."
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


MIN_SAMPLES = 8  # to learn from
# An implicit loss below -d times this, at unit scale, is taken for unbounded: in a plane, 4 % wide samples have it.
MAX_LOSS_BELOW_ZERO = 150.0
SUPPORT_MARGIN = 0.1  # by which a support is wider than the samples, as a share of their range, on either side


def fit_score(
    samples: Tensor,
    loss: Loss | None = None,
    net: nn.Module | None = None,
    *,
    standardize: bool = True,
    heavy_tails: bool = False,
    recipe: Recipe | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
    checkpoint: str | Path | None = None,
) -> ScoreFit:
    """Learn the score of the distribution that samples were drawn from.

    With no options: a noise-conditional network in standard coordinates, trained on all noise levels, with averaged
    weights and early stopping, read at the level where held-out samples say that its score is best.

    Args:
        samples: Samples to learn from, `(sample, *event)`.
        loss: Loss to minimise; `MultilevelDenoising` where the network takes a level, `ImplicitScoreMatching` where a
            network is given that does not.
        net: Network, `net(x)` or `net(x, sigma)` for `MultilevelDenoising`, trained in place; one for the loss if None.
        standardize: Whether to learn in coordinates where the samples have mean 0 and unit covariance (unit variance
            on average, beyond 32 coordinates). Noise levels are in these.
        heavy_tails: Whether to learn in coordinates in which tails like powers of x are like those of a normal
            distribution (`Sinh`, then `SquareRoot`): in x the score then falls off as 1 / |x|. The loss is
            `ImplicitScoreMatching` if None, since noise that suits the middle blurs such a tail; the support is wider
            than the samples by a tenth of their range in these coordinates. Long steps want
            `LineIntegral("adaptive", coordinates=fit.middle)`.
        recipe: How to train.
        generator: Random number generator; the same seed gives the same weights.
        progress: Show a progress bar.
        checkpoint: File to write checkpoints to; the same call with the same file resumes an interrupted training.

    Returns:
        The score, ready for `metropolis_hastings`, with the box of the samples as its support.

    Example:
        >>> import torch
        >>> from scoremh import MALA, LineIntegral, Recipe, datasets, fit_score, metropolis_hastings
        >>> g = torch.Generator().manual_seed(0)
        >>> fit = fit_score(datasets.moons(1000, generator=g), recipe=Recipe(steps=100, check_every=50), generator=g)
        >>> fit.score(torch.zeros(5, 2)).shape
        torch.Size([5, 2])
        >>> kernel = metropolis_hastings(fit, MALA(0.01), LineIntegral())
    """
    checks.events(samples, "samples")
    samples = checks.to_learn_from(samples)
    checks.optional(loss, Loss, "loss")
    checks.optional(net, nn.Module, "net")
    checks.optional(recipe, Recipe, "recipe")
    checks.one_of(heavy_tails, (True, False), "heavy_tails")
    event = tuple(samples.shape[1:])
    if net is None:
        if isinstance(loss, MultilevelDenoising) or (loss is None and not heavy_tails):
            net = NoiseConditionalMLP(event, generator=rng.child(generator))
        else:
            net = ScoreMLP(event, hidden=128, generator=rng.child(generator))
        net.to(samples)
    takes_level = _takes_level(net)
    loss = _matching_loss(loss, takes_level=takes_level)
    _require_enough(samples, loss)

    heavy = Compose(Sinh.of(samples), SquareRoot()) if heavy_tails else None
    light = samples if heavy is None else heavy.inverse(samples)
    coordinates: Coordinates | None = heavy
    if standardize:
        standard = Affine.whitening(light)
        coordinates = standard if heavy is None else Compose(heavy, standard)
    data = samples if coordinates is None else coordinates.inverse(samples)
    _require_answer(net, data[:2], *([1.0] if takes_level else []))
    spread = 1.0 if standardize else float(light.flatten(1).std(0).mean())
    fit = train(
        net,
        loss,
        data,
        floor=-MAX_LOSS_BELOW_ZERO * samples[0].numel() / spread**2,
        recipe=recipe,
        generator=generator,
        progress=progress,
        checkpoint=checkpoint,
    )

    noise_level = noise_range = None
    if isinstance(loss, MultilevelDenoising):
        held_out = split(data, fit.recipe, fit.seed)[1]
        with rng.for_layers_of(net, 0):
            noise_level = best_noise_level(net, loss.noise_levels(), held_out)
        noise_range = loss.low, loss.high
    whole = net if coordinates is None else InCoordinates(net, coordinates)
    return ScoreFit(
        net=whole.requires_grad_(False).eval(),
        history=fit.history,
        recipe=fit.recipe,
        seed=fit.seed,
        seconds=fit.seconds,
        best=fit.best,
        support=_box(light, heavy),
        noise_level=noise_level,
        noise_range=noise_range,
        loss=checks.named(loss),
    )


def _takes_level(net: nn.Module) -> bool:
    """Return whether a network is called with x and a noise level."""
    parameters = inspect.signature(net.forward).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len([p for p in positional if p.default is p.empty]) == 2


def _matching_loss(loss: Loss | None, *, takes_level: bool) -> Loss:
    """Return the loss for a network, having refused one that does not fit it."""
    if loss is None:
        return MultilevelDenoising() if takes_level else ImplicitScoreMatching()
    if takes_level != isinstance(loss, MultilevelDenoising):
        got = f"{loss} for a network of {'x and a level' if takes_level else 'x alone'}"
        fix = "Leave loss or net out, and the other is chosen to fit."
        raise TypeError(checks.message("MultilevelDenoising for networks that take a level, and no others", got, fix))
    return loss


def _require_enough(samples: Tensor, loss: Loss) -> None:
    """Refuse too few samples, and coordinates that are constant where no noise gives them some width."""
    if len(samples) < MIN_SAMPLES:
        got, fix = f"{len(samples)} samples", "Thousands are needed for a score one can trust."
        raise ValueError(checks.message(f"at least {MIN_SAMPLES} samples", got, fix))
    constant = (samples == samples[0]).all(0)
    blurred = isinstance(loss, DenoisingScoreMatching | MultilevelDenoising)
    if constant.any() and not (blurred and samples[0].numel() > MAX_WHITENED_SIZE):  # images have dark corners
        fix = "Leave it out: a constant has no score."
        got = f"a constant at {constant.nonzero()[0].tolist()}"
        raise ValueError(checks.message("samples that vary in every coordinate", got, fix))


@torch.no_grad()
def _require_answer(net: nn.Module, x: Tensor, *sigma: float) -> None:
    """Refuse a network that does not answer with scores of these samples."""
    try:
        with rng.for_layers_of(net, 0):
            answer = net(x, *sigma)
    except (RuntimeError, ValueError) as error:
        fix = "Check its input size, and its dtype: net.to(samples) takes that of the samples."
        raise ValueError(checks.message(f"a net for {checks.describe(x)}", f"an error: {error}", fix)) from error
    checks.returned(answer, x, x.shape, "net")


def _box(light: Tensor, heavy: Coordinates | None) -> Box:
    """Return the box of samples with its margin, in coordinates of heavy tails where they are given."""
    low, high = light.amin(0), light.amax(0)
    # Images are scaled by one number, and so is their margin: pixels that are always dark get some as well.
    width = high - low if light[0].numel() <= MAX_WHITENED_SIZE else (high - low).amax()
    ends = low - SUPPORT_MARGIN * width, high + SUPPORT_MARGIN * width
    return Box(*ends) if heavy is None else Box(*(heavy(end[None])[0] for end in ends))
