r"""Losses that learn a score from samples, and `fit_score`, which puts all together.

| loss | what it minimises | needs |
|---|---|---|
| `ImplicitScoreMatching` | E[ \|s\|^2 / 2 + tr J ] (Hyvarinen 2005) | a divergence |
| `SlicedScoreMatching` | E[ \|s\|^2 / 2 + v.Jv ], or with (v.s)^2 for \|s\|^2 (Song et al. 2020) | one product with J |
| `DenoisingScoreMatching` | E[ \|std s(x + std z) + z\|^2 ] / 2 (Vincent 2011) | nothing |
| `MultilevelDenoising` | the same over a range of levels | a network that takes the level |

The first two estimate the score itself, up to a constant half its mean square, and are unbounded below where samples
have no width in some direction. The others estimate the score of the samples blurred by noise, which always exists.
"""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scoremh import _checks, _random
from scoremh._algebra import inner, per_chain
from scoremh._support import Box
from scoremh.networks import AtLevel, HeavyTailed, NoiseConditionalMLP, ScoreMLP, Standardized
from scoremh.networks.wrappers import WHITENED
from scoremh.training import Fit, Loss, Recipe, load_fit, save_fit, split, train
from scoremh.types import Target

EXACT_TRACE = 32  # coordinates up to which a held-out trace is summed exactly; beyond, it is estimated
LEAST = 8  # samples to learn from
# An implicit loss below -d times this, at unit scale, is taken for unbounded: in a plane, 4 % wide samples have it.
UNBOUNDED = 150.0
MARGIN = 0.1  # by which a support is wider than the samples, as a share of their range, on either side


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
        variance_reduced: Use |s|^2 / 2, the mean over v of (v.s)^2 / 2: what the paper calls sliced.
        projections: Vectors v per sample.
    """

    variance_reduced: bool = True
    projections: int = 1

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        _checks.count(self.projections, "projections")

    def each(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Float[Tensor, " sample"]:
        """Return the loss of every sample, a mean over its projections."""
        many = x.detach().repeat(self.projections, *(1,) * (x.ndim - 1)).requires_grad_()
        v = _random.normal(tuple(many.shape), many, generator)
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
        std: Of the noise, in the coordinates of the network.
    """

    std: float

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        _checks.positive(self.std, "std")

    def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Float[Tensor, ""]:
        """Return the mean over a batch, weighted by std^2."""
        z = _random.normal(tuple(x.shape), x, generator)
        error = self.std * net(x + self.std * z) + z
        return inner(error, error).mean() / 2


@dataclass(frozen=True)
class MultilevelDenoising:
    """The scores of samples blurred by noise of all levels from low to high, log-uniformly, for `net(x, sigma)`.

    The weight sigma^2 (1 + sigma^2) makes the targets of all levels as large, for samples of unit variance (Karras et
    al. 2022).

    Args:
        low: The least noise, in the coordinates of the network.
        high: The most; a few times the spread of the samples, so that their modes merge.
    """

    low: float = 0.02
    high: float = 5.0

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        _checks.positive(self.low, "low")
        _checks.positive(self.high, "high")
        if self.low >= self.high:
            got = f"low={self.low} and high={self.high}"
            raise ValueError(_checks.message("low below high", got, "Swap or correct them."))

    def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Float[Tensor, ""]:
        """Return the mean over a batch, each sample at a level of its own."""
        sigma = self.low * (math.log(self.high / self.low) * _random.uniform((len(x),), x, generator)).exp()
        z = _random.normal(tuple(x.shape), x, generator)
        wide = per_chain(sigma, x)
        error = wide * net(x + wide * z, sigma) + z
        return ((1 + sigma.square()) * inner(error, error)).mean() / 2

    def levels(self) -> list[float]:
        """Return the levels at which to consider reading the score: seven, up to fifteen times the lowest."""
        top = min(15 * self.low, self.high)
        return [self.low * (top / self.low) ** (i / 6) for i in range(7)]


def _implicit(net: nn.Module, x: Float[Tensor, "sample *event"]) -> Float[Tensor, " sample"]:
    """Return the implicit loss of every sample, with the same projections every time: differences are what counts."""
    judge = ImplicitScoreMatching() if x[0].numel() <= EXACT_TRACE else SlicedScoreMatching()
    return judge.each(net, x, generator=_random.seeded(0, x.device)).detach()


def choose_level(net: nn.Module, levels: Sequence[float], x: Float[Tensor, "sample *event"]) -> float:
    """Return the level at which to read a noise-conditional score, by its implicit loss on samples it has not seen.

    A low level is near the score of the samples themselves but hard to learn, a high one is blurred. From the middle
    level on, the next one is taken as long as it is better by more than a standard error.
    """
    each = [_implicit(AtLevel(net, level), x) for level in levels]

    def better(there: int) -> bool:
        gain = each[here] - each[there]
        return len(x) > 1 and float(gain.mean()) > float(gain.std()) / math.sqrt(len(x))

    here = len(levels) // 2
    while steps := [there for there in (here - 1, here + 1) if 0 <= there < len(levels) and better(there)]:
        here = steps[0]
    return levels[here]


class Preset(NamedTuple):
    """A row of the paper's Table 2: softplus network, sliced loss, Adam at a constant rate, nothing standardised.

    The paper gives no batch size. An epoch is taken as one step.
    """

    hidden: int
    rate: float
    steps: int

    @property
    def recipe(self) -> Recipe:
        """The row as a recipe: no averaging, no clipping, no early stop."""
        return Recipe(self.steps, rate=self.rate, schedule="constant", average=0.0, clip=None, patience=None)


PRESETS = {
    "moons": Preset(64, 1e-3, 5000),
    "pinwheel": Preset(512, 5e-4, 2000),
    "s_curve": Preset(512, 5e-4, 2000),
    "swiss_roll": Preset(512, 5e-4, 2000),
}


@dataclass(eq=False, repr=False)
class ScoreFit(Fit):
    """A learned score. It is a target: `metropolis_hastings(fit, MALA(0.1), LineIntegral())`.

    Args:
        net: The network, in the coordinates of the samples: `net(x)`, or `net(x, level)` for a noise-conditional one.
        history: From "step", "loss", "held_out" and "rate" to a number per look.
        recipe: How it was trained.
        seed: Of the training's own generator.
        seconds: Time it took.
        best: Step whose weights these are.
        support: The box of the samples, a tenth of their range wider on either side; in the coordinates of
            `HeavyTailed` where the score was learned in those.
        level: The noise level at which a noise-conditional network is read, in its own coordinates; None for others.
        loss: What was minimised, as text.
    """

    support: Box
    level: float | None
    loss: str

    log_density = None

    def score(self, x: Float[Tensor, "chain *event"]) -> Float[Tensor, "chain *event"]:
        """Return the score at x."""
        score: Tensor = self.net(x) if self.level is None else self.net(x, self.level)
        return score

    def at(self, level: float) -> Target:
        """Return the score of the samples blurred by noise of this level, as a target; for `anneal`.

        Args:
            level: In the coordinates of the network: in units of the samples' spread where it is standardised.
        """
        if self.level is None:
            got = f"one by {type(getattr(self.net, 'net', self.net)).__name__}"
            fix = "Fit it with MultilevelDenoising, the default."
            raise ValueError(_checks.message("a score that takes a noise level", got, fix))
        return Target(AtLevel(self.net, level))

    @property
    def covariance(self) -> Tensor | None:
        """Covariance of noise of level 1 in the coordinates of the samples: their own where they are standardised.

        For `annealing.flow`, and for proposals that are to fit the samples. None stands for the identity; with
        `heavy_tails` noise has no covariance in the coordinates of the samples, and there is no such flow.
        """
        if not isinstance(self.net, Standardized):
            return None
        root = self.net.root
        return root @ root.mT if root.ndim == 2 else root.square().expand(self.net.mean.numel())

    def __repr__(self) -> str:
        """Say what was learned, how long it took, and how well it went."""
        inside = self.net
        while isinstance(inside, Standardized | HeavyTailed):
            inside = inside.net
        read = "" if self.level is None else f", read at noise level {self.level:.3g} of the samples' spread"
        return f"score by {type(inside).__name__} and {self.loss}{read}\n{super().__repr__()}"

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, whose header says in JSON what was fitted and how."""
        box = {"support.low": self.support.low, "support.high": self.support.high}
        save_fit(self, path, {"level": self.level, "loss": self.loss}, box)

    @classmethod
    def load(cls, path: str | Path, net: nn.Module | None = None) -> "ScoreFit":
        """Read what `save` wrote; no code in the file is run.

        Args:
            path: The file.
            net: A network like the one that was fitted, where that was not one of `scoremh.networks`.
        """
        fields, tensors = load_fit(path, cls.__name__, net)
        return cls(**fields, support=Box(tensors["support.low"], tensors["support.high"]))


def fit_score(
    samples: Tensor,
    loss: Loss | None = None,
    net: nn.Module | None = None,
    *,
    preset: str | None = None,
    standardize: bool = True,
    heavy_tails: bool = False,
    recipe: Recipe | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
    checkpoint: str | Path | None = None,
) -> ScoreFit:
    """Learn the score of the law that samples were drawn from.

    With no options: a noise-conditional network in standard coordinates, trained on all noise levels, with averaged
    weights and early stopping, read at the level where held-out samples say that its score is best.

    Args:
        samples: `(sample, *event)`.
        loss: What to minimise; `MultilevelDenoising` where the network takes a level, `ImplicitScoreMatching` where a
            network is given that does not.
        net: `net(x)`, or `net(x, sigma)` for `MultilevelDenoising`, trained in place; one for the loss if None.
        preset: A row of the paper's Table 2 by name, instead of loss, net, standardize and recipe.
        standardize: Learn in coordinates where the samples have mean 0 and unit covariance (unit variance on average,
            beyond 32 coordinates). Noise levels are in these.
        heavy_tails: Learn in coordinates in which tails like powers of x are like those of a normal law
            (`networks.HeavyTailed`): the score falls off in them as 1 / |x|, and not with a network's guess. The loss
            is `ImplicitScoreMatching` if None, since noise that suits the middle blurs such a tail; and the support is
            wider than the samples by a tenth of their range in these coordinates.
        recipe: How to train.
        generator: Source of randomness; also of the first weights of a network made here.
        progress: Show a progress bar.
        checkpoint: A file from which the same call goes on if it was interrupted.

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
    _checks.events(samples, "samples")
    samples = samples.detach()
    for part, kind, name in ((loss, Loss, "loss"), (net, nn.Module, "net"), (recipe, Recipe, "recipe")):
        if part is not None:
            _checks.kind(part, kind, f"{name} to be a {kind.__name__}", f"Leave {name} out for a good choice.")
    if preset is not None:
        loss, net, standardize, recipe = _preset(preset, samples, loss, net, recipe, generator)
    if net is None:
        event = tuple(samples.shape[1:])
        with _random.weights(generator):
            conditional = isinstance(loss, MultilevelDenoising) or (loss is None and not heavy_tails)
            net = NoiseConditionalMLP(event) if conditional else ScoreMLP(event, hidden=128)
        net.to(samples)
    levelled = _takes_level(net)
    if loss is None:
        loss = MultilevelDenoising() if levelled else ImplicitScoreMatching()
    if levelled != isinstance(loss, MultilevelDenoising):
        got = f"{loss} for a network of {'x and a level' if levelled else 'x alone'}"
        fix = "Leave loss or net out, and the other is chosen to fit."
        raise TypeError(_checks.message("MultilevelDenoising for networks that take a level, and no others", got, fix))
    size = samples[0].numel()
    flat_is_fine = isinstance(loss, DenoisingScoreMatching | MultilevelDenoising) and size > WHITENED
    _enough(samples, flat_is_fine=flat_is_fine)
    light = HeavyTailed.of(net, samples) if heavy_tails else None
    inside = samples if light is None else light.lighten(samples)
    whole: nn.Module = Standardized.of(net, inside) if standardize else net
    data = whole.standardize(inside) if isinstance(whole, Standardized) else inside
    _answers(net, data[:2], *([1.0] if levelled else []))
    spread = 1.0 if standardize else float(inside.flatten(1).std(0).mean())
    fit = train(
        net,
        loss,
        data,
        floor=-UNBOUNDED * size / spread**2,
        recipe=recipe,
        generator=generator,
        progress=progress,
        checkpoint=checkpoint,
    )
    level = None
    if isinstance(loss, MultilevelDenoising):
        level = choose_level(net, loss.levels(), split(data, fit.recipe, fit.seed)[1])
    if light is not None:
        light.net, whole = whole, light
    fields = vars(fit) | {"net": whole.requires_grad_(False).eval()}
    box = _box_of(inside)
    if light is not None:
        box = Box(*(light.weigh_down(end[None])[0] for end in (box.low, box.high)))
    return ScoreFit(**fields, support=box, level=level, loss=_checks.named(loss))


def implicit_losses(fit: ScoreFit, x: Float[Tensor, "sample *event"]) -> Float[Tensor, " sample"]:
    """Return the implicit score-matching loss of a learned score at every sample, in the samples' own coordinates.

    Args:
        fit: The score.
        x: Samples that it was not learned from.
    """
    return _implicit(fit.net if fit.level is None else AtLevel(fit.net, fit.level), x)


def _enough(samples: Tensor, *, flat_is_fine: bool) -> None:
    if len(samples) < LEAST:
        got, fix = f"{len(samples)} samples", "Thousands are needed for a score one can trust."
        raise ValueError(_checks.message(f"at least {LEAST} samples", got, fix))
    constant = (samples == samples[0]).all(0)
    if constant.any() and not flat_is_fine:  # noise gives the dark corners of images some width
        fix = "Leave it out: a constant has no score."
        got = f"a constant at {constant.nonzero()[0].tolist()}"
        raise ValueError(_checks.message("samples that vary in every coordinate", got, fix))


@torch.no_grad()
def _answers(net: nn.Module, x: Tensor, *level: float) -> None:
    """Refuse a network that does not answer with scores of these samples."""
    try:
        answer = net(x, *level)
    except (RuntimeError, ValueError) as error:
        fix = "Check its input size, and its dtype: net.to(samples) takes that of the samples."
        raise ValueError(_checks.message(f"a net for {_checks.describe(x)}", f"an error: {error}", fix)) from error
    _checks.answer(answer, x, x.shape, "net")


def _preset(
    preset: str,
    samples: Tensor,
    loss: Loss | None,
    net: nn.Module | None,
    recipe: Recipe | None,
    generator: torch.Generator | None,
) -> tuple[Loss, nn.Module, bool, Recipe]:
    _checks.one_of(preset, tuple(PRESETS), "preset")
    if loss is not None or net is not None or recipe is not None:
        fix = f"Leave the preset out, and start from scoremh.score_matching.PRESETS[{preset!r}]."
        raise ValueError(_checks.message("a preset alone", "a preset with a loss, a net or a recipe", fix))
    row = PRESETS[preset]
    with _random.weights(generator):
        network = ScoreMLP(tuple(samples.shape[1:]), row.hidden).to(samples)
    return SlicedScoreMatching(), network, False, row.recipe


def _takes_level(net: nn.Module) -> bool:
    """Say whether a network is called with x and a level."""
    parameters = inspect.signature(net.forward).parameters.values()
    required = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len([p for p in required if p.default is p.empty]) == 2


def _box_of(samples: Tensor) -> Box:
    low, high = samples.amin(0), samples.amax(0)
    # Images are scaled by one number, and so is their margin: pixels that are always dark get some as well.
    width = high - low if samples[0].numel() <= WHITENED else (high - low).amax()
    return Box(low - MARGIN * width, high + MARGIN * width)
