r"""Learning a score from samples: losses, and `fit_score`, which chooses what is not given.

| loss | minimises | needs |
|---|---|---|
| `ImplicitScoreMatching` | E[ \|s\|^2 / 2 + tr J ] (Hyvarinen 2005) | a divergence |
| `SlicedScoreMatching` | E[ \|s\|^2 / 2 + v.Jv ], or with (v.s)^2 for \|s\|^2 (Song et al. 2020) | one product with J |
| `DenoisingScoreMatching` | E[ \|sigma s(x + sigma z) + z\|^2 ] / 2 (Vincent 2011) | nothing |
| `MultilevelDenoising` | the same over a range of noise levels | a network `net(x, sigma)` |

s is the score, J its Jacobian, v and z are standard normal. The first two losses are, up to a constant, half the mean
square error of the score itself. They are unbounded below if the samples have no width in some direction. The others
estimate the score of the samples blurred by noise, which always exists. The default noise level of a noise-conditional
score is the one with the smallest implicit loss on held-out samples.
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


CALL_COORDINATES = 200_000  # coordinates (samples x size) per call that differentiates a network, to limit memory
MAX_EXACT_TRACE_SIZE = 32  # coordinates up to which a held-out trace is summed exactly; above, it is estimated


def score_and_divergence(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the score and the trace of its Jacobian, by the network's own closed form or by d products.

    Args:
        net: Score network.
        x: Points `(sample, *event)`.
    """
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
        """Return the loss of each sample; it is deterministic."""
        score, divergence = score_and_divergence(net, x)
        return inner(score, score) / 2 + divergence

    def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Float[Tensor, ""]:
        """Return the mean over a batch."""
        return self.each(net, x).mean()


@dataclass(frozen=True)
class SlicedScoreMatching:
    """E[ |s|^2 / 2 + v.Jv ]: the trace is estimated by random normal projections v.

    Args:
        variance_reduced: Use |s|^2 / 2, the mean of (v.s)^2 / 2 over v, as the paper's sliced score matching does.
        projections: Number of vectors v per sample.
    """

    variance_reduced: bool = True
    projections: int = 1

    def __post_init__(self) -> None:
        """Check the parameters."""
        checks.count(self.projections, "projections")

    def each(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Float[Tensor, " sample"]:
        """Return the loss of each sample, a mean over its projections."""
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
    """Denoising at one noise level: learns the score of the samples blurred by Gaussian noise of this level.

    Args:
        noise_level: Standard deviation of the noise, in the coordinates of the network.
    """

    noise_level: float

    def __post_init__(self) -> None:
        """Check the parameters."""
        checks.positive(self.noise_level, "noise_level")

    def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Float[Tensor, ""]:
        """Return the mean over a batch, weighted by sigma^2."""
        z = rng.normal(tuple(x.shape), x, generator)
        error = self.noise_level * net(x + self.noise_level * z) + z
        return inner(error, error).mean() / 2


@dataclass(frozen=True)
class MultilevelDenoising:
    """Denoising at all noise levels from low to high, drawn log-uniformly, for a network `net(x, sigma)`.

    The weight sigma^2 (1 + sigma^2) makes the regression targets of all levels equally large for samples of unit
    variance (Karras et al. 2022).

    Three things reduce the variance of the gradient without changing its mean: the levels of a batch are stratified,
    every noise z is used with -z as well, and the target at a blurred sample y is the mean of the samples x_j of the
    batch, each weighted by the probability that y came from it (Xu et al. 2023),

        p(x_j | y) ~ exp(-|y - x_j|^2 / (2 sigma^2))

    Args:
        low: Lowest noise level, in the coordinates of the network.
        high: Highest noise level; a few times the standard deviation of the samples, so that their modes merge.
        variance_reduced: Whether to do so, which evaluates the network twice per sample. Images have little to learn
            from each other: for them, more steps on more samples are better.
    """

    low: float = 0.02
    high: float = 5.0
    variance_reduced: bool = True

    def __post_init__(self) -> None:
        """Check the parameters."""
        checks.positive(self.low, "low")
        checks.positive(self.high, "high")
        if self.low >= self.high:
            got = f"low={self.low} and high={self.high}"
            raise ValueError(checks.message("low below high", got, "Swap or correct them."))

    def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Float[Tensor, ""]:
        """Return the mean over a batch; each sample has its own noise level."""
        place, z, clean = rng.uniform((len(x),), x, generator), rng.normal(tuple(x.shape), x, generator), x
        if self.variance_reduced:
            place = ((torch.arange(len(x), dtype=x.dtype, device=x.device) + place) / len(x)).repeat(2)
            z, clean = torch.cat([z, -z]), torch.cat([x, x])
        sigma = self.low * (math.log(self.high / self.low) * place).exp()
        wide = per_chain(sigma, x)
        noisy = clean + wide * z
        if self.variance_reduced:
            z = (noisy - posterior_mean(noisy, sigma, x)) / wide
        error = wide * net(noisy, sigma) + z
        return ((1 + sigma.square()) * inner(error, error)).mean() / 2

    def noise_levels(self) -> list[float]:
        """Return seven candidates for the default noise level of the score, up to fifteen times the lowest level."""
        top = min(15 * self.low, self.high)
        return [self.low * (top / self.low) ** (i / 6) for i in range(7)]


def posterior_mean(
    noisy: Float[Tensor, "point *event"], sigma: Float[Tensor, " point"], samples: Float[Tensor, "sample *event"]
) -> Float[Tensor, "point *event"]:
    """Return E[x | x + sigma z = noisy], where x is one of the samples with equal probability."""
    middle = samples.mean(0)  # far from 0, squares would lose digits
    x, y = (samples - middle).flatten(1), (noisy - middle).flatten(1)
    log_weights = torch.addmm(-x.square().sum(1) / 2, y, x.mT) / sigma.square()[:, None]
    return middle + (log_weights.softmax(1) @ x).reshape(noisy.shape)


def implicit_losses_of(net: nn.Module, x: Float[Tensor, "sample *event"]) -> Float[Tensor, " sample"]:
    """Return the implicit loss of each sample; the projections are always the same, so that networks are comparable."""
    loss = ImplicitScoreMatching() if x[0].numel() <= MAX_EXACT_TRACE_SIZE else SlicedScoreMatching()
    generator, rows = rng.seeded(0, x.device), max(1, CALL_COORDINATES // x[0].numel())
    return torch.cat([loss.each(net, part, generator=generator).detach() for part in x.split(rows)])


def best_noise_level(net: nn.Module, noise_levels: Sequence[float], x: Float[Tensor, "sample *event"]) -> float:
    """Return the noise level at which a score is best, by its implicit loss on held-out samples.

    At a low level the score is close to that of the samples, but hard to learn; at a high level it is blurred. The
    search starts at the middle level and moves to a neighbour as long as that is better by more than a standard error.

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


ROUNDING = 1e-6  # relative tolerance, because schedules of noise levels are rounded


@dataclass(eq=False, repr=False)
class ScoreFit(Fit):
    """A learned score. It is a target: `metropolis_hastings(fit, MALA(0.1), LineIntegral())`.

    Args:
        net: Network in the coordinates of the samples: `net(x)`, or `net(x, sigma)` if it is noise-conditional.
        history: Lists by "step", "loss", "held_out" and "rate", with one number per check of the held-out loss.
        recipe: Options of the training.
        seed: Random seed of the training; the same seed gives the same weights.
        seconds: Duration of the training.
        best: Step at which the network had these weights.
        support: Box of the samples, wider by a tenth of their range on either side; with `heavy_tails`, a tenth of the
            range in the coordinates of heavy tails.
        noise_level: Noise level of `score`, in the coordinates of the network; None if it is not noise-conditional.
        noise_range: Lowest and highest learned noise level; None if the network is not noise-conditional.
        loss: Text that describes the loss.
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
        """The function x -> log p(x), normalised, at the fit's noise level; None if the fit has no noise levels.

        It is computed from the scores of all noise levels; `scoremh.diffusion.log_density` has options for it.
        """
        return None if self.noise_range is None else diffusion.LogDensity(self)

    def score(self, x: Float[Tensor, "chain *event"]) -> Float[Tensor, "chain *event"]:
        """Return the score at x."""
        score: Tensor = self.net(x) if self.noise_level is None else self.net(x, self.noise_level)
        return score

    def at(self, noise_level: float) -> Target:
        """Return the score of the samples blurred by noise of this level, as a target, for example for `anneal`.

        Args:
            noise_level: Noise level in the coordinates of the network. If samples are standardised, it is in units of
                their standard deviation.
        """
        self._require(noise_level)
        return Target(AtNoiseLevel(self.net, noise_level), levels=replace(self, noise_level=noise_level))

    def level_score(
        self, x: Float[Tensor, "chain *event"], sigma: Tensor | float
    ) -> tuple[Float[Tensor, "chain *event"], Float[Tensor, " chain"]]:
        """Return the score of the samples blurred by noise of a level, and its divergence.

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
        """An event of the shape, dtype and device of the samples: a corner of their box."""
        return self.support.low

    @property
    def standard(self) -> "ScoreFit":
        """The same score in the coordinates u of the network, without a support."""
        everywhere = torch.full_like(self.support.low, math.inf)
        return replace(self, net=self._inside, support=Box(-everywhere, everywhere))

    def _require(self, noise_level: float) -> None:
        """Raise an error unless the score was learned at this noise level."""
        if self.noise_range is None:
            got = f"a score by {type(self._inside).__name__}, which takes none"
            fix = "Fit it with MultilevelDenoising(), the default without heavy_tails."
            raise ValueError(checks.message("a score that takes a noise level", got, fix))
        low, high = self.noise_range
        if not low * (1 - ROUNDING) <= noise_level <= high * (1 + ROUNDING):
            fix = "Choose a level in this range, or fit with another MultilevelDenoising(low, high)."
            raise ValueError(checks.message(f"a noise level from {low:g} to {high:g}, as learned", noise_level, fix))

    @property
    def coordinates(self) -> Coordinates:
        """The map x = f(u) from the coordinates u of the network; the identity if samples are not standardised."""
        if isinstance(self.net, InCoordinates):
            return self.net.coordinates
        return Affine(self.support.low.new_zeros(()), self.support.low.new_ones(()))

    @property
    def _inside(self) -> nn.Module:
        """The network in its coordinates."""
        return self.net.net if isinstance(self.net, InCoordinates) else self.net

    @property
    def covariance(self) -> Tensor | None:
        """Covariance of noise of level 1; that of the samples if they are standardised. None means the identity.

        Pass it to `annealing.flow`, or to proposals that should have the shape of the samples.
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
        """The outermost coordinates if they are `Sinh`, for heavy tails; else None."""
        outermost = self.coordinates
        while isinstance(outermost, Compose):
            outermost = outermost.outer
        return outermost if isinstance(outermost, Sinh) else None

    @property
    def middle(self) -> Middle:
        """Middle and width of the samples, for `LineIntegral(coordinates=...)`; only for a fit with `heavy_tails`."""
        if (sinh := self._sinh) is None:
            fix = "Fit it with heavy_tails=True, or write LineIntegral() without coordinates."
            raise ValueError(checks.message("a score with heavy tails", "one without", fix))
        mean, scale = (tuple(part.flatten().tolist()) for part in (sinh.mean, sinh.scale))
        return mean, scale

    def __repr__(self) -> str:
        """Show the network, the loss, the noise level, and how the training went."""
        heavy = "" if self._sinh is None else ", in coordinates of heavy tails"
        level = self.noise_level
        read = "" if level is None else f", at noise level {level:.3g} of the samples' spread"
        return f"score by {type(self._inside).__name__} and {self.loss}{heavy}{read}\n{super().__repr__()}"

    def _tensors(self) -> dict[str, Tensor]:
        return {"support.low": self.support.low, "support.high": self.support.high}

    @classmethod
    def _restored(cls, fields: dict[str, Any], tensors: Mapping[str, Tensor]) -> "ScoreFit":
        fields["noise_range"] = fields["noise_range"] and tuple(fields["noise_range"])
        return cls(**fields, support=Box(tensors["support.low"], tensors["support.high"]))


def implicit_losses(fit: ScoreFit, x: Float[Tensor, "sample *event"]) -> Float[Tensor, " sample"]:
    """Return the implicit score-matching loss of a learned score at each sample, in the coordinates of the samples.

    Args:
        fit: Learned score.
        x: Held-out samples, `(sample, *event)`.
    """
    return implicit_losses_of(fit.net if fit.noise_level is None else AtNoiseLevel(fit.net, fit.noise_level), x)


MIN_SAMPLES = 8  # smallest number of samples to learn from
# For images, and for losses without `variance_reduced`: noisier gradients need more and smaller steps.
LONG_RECIPE = Recipe(8000, batch=512, rate=2e-3, schedule="cosine", check_every=200, patience=20)
STEPS_PER_ROOT = 50  # training steps over the square root of the number of samples: few samples are soon known by heart
# An implicit loss below -d times this, at unit scale, counts as unbounded. In a plane, samples 4 % wide reach it.
MAX_LOSS_BELOW_ZERO = 150.0
SUPPORT_MARGIN = 0.1  # margin of the support on either side of the samples, as a fraction of their range


def recipe_for(rows: int) -> Recipe:
    """Return the recipe for a number of rows of a table: `50 sqrt(rows)` steps, and at most 3,000.

    Args:
        rows: Number of rows to learn from.
    """
    return Recipe(min(Recipe.steps, math.ceil(STEPS_PER_ROOT * math.sqrt(rows))))


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

    By default, it trains a noise-conditional network in standard coordinates at all noise levels, and returns the
    averaged weights that are best on held-out samples. `noise_level` of the result is the level with the best score
    on held-out samples.

    Args:
        samples: Samples to learn from, `(sample, *event)`.
        loss: Loss to minimise. By default, `MultilevelDenoising` if the network takes a noise level, and
            `ImplicitScoreMatching` if a network is given that does not.
        net: Network `net(x)`, or `net(x, sigma)` for `MultilevelDenoising`; trained in place. By default, one that
            suits the loss.
        standardize: Learn in coordinates in which the samples have mean 0 and unit covariance (with more than 32
            coordinates, unit variances; images, unit variance on average). Noise levels are in these coordinates.
        heavy_tails: Learn in coordinates in which power-law tails become Gaussian (`Sinh`, then `SquareRoot`); as a
            function of x, the score then decreases as 1 / |x|. The default loss is then `ImplicitScoreMatching`,
            because noise that is right for the middle blurs such tails. The support is wider than the samples by a
            tenth of their range in these coordinates. For long steps use
            `LineIntegral("exact", coordinates=fit.middle)`.
        recipe: Options of the training. By default, `recipe_for(len(samples))` for tables with `MultilevelDenoising`,
            and `LONG_RECIPE` for images and other losses.
        generator: Random number generator; the same seed gives the same weights.
        progress: Show a progress bar.
        checkpoint: File to write checkpoints to; the same call with the same file resumes an interrupted training.

    Returns:
        The learned score, a target for `metropolis_hastings`, with the box of the samples as its support.

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
    loss = _matching_loss(loss, takes_level=takes_level, reduced=len(event) == 1)
    if recipe is None:
        reduced = isinstance(loss, MultilevelDenoising) and loss.variance_reduced
        recipe = recipe_for(len(samples)) if reduced else LONG_RECIPE
    _require_enough(samples, loss)

    heavy = Compose(Sinh.of(samples), SquareRoot()) if heavy_tails else None
    light = samples if heavy is None else heavy.inverse(samples)
    coordinates: Coordinates | None = heavy
    if standardize:
        standard = Affine.whitening(light)
        coordinates = standard if heavy is None else Compose(heavy, standard)
    data = samples if coordinates is None else coordinates.inverse(samples)
    _check_output(net, data[:2], *([1.0] if takes_level else []))
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
    """Return whether a network takes x and a noise level."""
    parameters = inspect.signature(net.forward).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len([p for p in positional if p.default is p.empty]) == 2


def _matching_loss(loss: Loss | None, *, takes_level: bool, reduced: bool) -> Loss:
    """Return the loss for a network; raise an error if the given loss does not fit it."""
    if loss is None:
        return MultilevelDenoising(variance_reduced=reduced) if takes_level else ImplicitScoreMatching()
    if takes_level != isinstance(loss, MultilevelDenoising):
        got = f"{loss} for a network of {'x and a level' if takes_level else 'x alone'}"
        fix = "Leave loss or net out; a matching one is chosen."
        raise TypeError(checks.message("MultilevelDenoising for networks that take a level, and no others", got, fix))
    return loss


def _require_enough(samples: Tensor, loss: Loss) -> None:
    """Raise an error for too few samples, and for constant coordinates unless the loss adds noise to an image."""
    if len(samples) < MIN_SAMPLES:
        got, fix = f"{len(samples)} samples", "A reliable score needs thousands."
        raise ValueError(checks.message(f"at least {MIN_SAMPLES} samples", got, fix))
    constant = (samples == samples[0]).all(0)
    blurred = isinstance(loss, DenoisingScoreMatching | MultilevelDenoising)
    if constant.any() and not (blurred and samples[0].numel() > MAX_WHITENED_SIZE):  # images have dark corners
        fix = "Remove this coordinate: a constant has no score."
        got = f"a constant at {constant.nonzero()[0].tolist()}"
        raise ValueError(checks.message("samples that vary in every coordinate", got, fix))


@torch.no_grad()
def _check_output(net: nn.Module, x: Tensor, *sigma: float) -> None:
    """Raise an error unless a network returns scores of the shape, dtype and device of the samples."""
    try:
        with rng.for_layers_of(net, 0):
            output = net(x, *sigma)
    except (RuntimeError, ValueError) as error:
        fix = "Check its input size, and its dtype: net.to(samples) converts it to the dtype of the samples."
        raise ValueError(checks.message(f"a net for {checks.describe(x)}", f"an error: {error}", fix)) from error
    checks.returned(output, x, x.shape, "net")


def _box(light: Tensor, heavy: Coordinates | None) -> Box:
    """Return the box of the samples with a margin, mapped from the coordinates of heavy tails if they are given."""
    low, high = light.amin(0), light.amax(0)
    width = high - low
    # Images are scaled by one number, and their margin too. What is always dark has a margin in any case.
    small = light.ndim == 2 or width.numel() <= MAX_WHITENED_SIZE
    width = width.where(width > 0, width.amax()) if small else width.amax()
    ends = low - SUPPORT_MARGIN * width, high + SUPPORT_MARGIN * width
    return Box(*ends) if heavy is None else Box(*(heavy(end[None])[0] for end in ends))
