"""`fit_score`: a score from samples, with everything chosen that is not given."""

import inspect
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from scoremh._shared import checks, rng
from scoremh._shared.support import Box
from scoremh.coordinates import MAX_WHITENED_SIZE, Affine, Compose, Coordinates, Sinh, SquareRoot
from scoremh.networks import InCoordinates, NoiseConditionalMLP, ScoreMLP
from scoremh.score_matching.fits import ScoreFit
from scoremh.score_matching.losses import (
    DenoisingScoreMatching,
    ImplicitScoreMatching,
    MultilevelDenoising,
    SlicedScoreMatching,
    choose_level,
)
from scoremh.training import Loss, Recipe, split, train

LEAST = 8  # samples to learn from
# An implicit loss below -d times this, at unit scale, is taken for unbounded: in a plane, 4 % wide samples have it.
UNBOUNDED = 150.0
MARGIN = 0.1  # by which a support is wider than the samples, as a share of their range, on either side


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
        heavy_tails: Learn in coordinates in which tails like powers of x are like those of a normal distribution
            (`Sinh`, then `SquareRoot`): in x the score then falls off as 1 / |x|. The loss is `ImplicitScoreMatching`
            if None, since noise that suits the middle blurs such a tail; the support is wider than the samples by a
            tenth of their range in these coordinates. Long steps want `LineIntegral("adaptive", bend=fit.middle)`.
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
    checks.events(samples, "samples")
    samples = checks.to_learn_from(samples)
    for part, kind, name in ((loss, Loss, "loss"), (net, nn.Module, "net"), (recipe, Recipe, "recipe")):
        if part is not None:
            checks.kind(part, kind, f"{name} to be a {kind.__name__}", f"Leave {name} out for a good choice.")
    checks.one_of(heavy_tails, (True, False), "heavy_tails")
    if preset is not None:
        if heavy_tails:
            fix = "Leave one of them out: the paper has nothing for heavy tails."
            raise ValueError(checks.message("a preset alone", "a preset with heavy_tails", fix))
        loss, net, standardize, recipe = _preset(preset, samples, loss, net, recipe, generator)
    if net is None:
        event = tuple(samples.shape[1:])
        with rng.weights(generator):
            conditional = isinstance(loss, MultilevelDenoising) or (loss is None and not heavy_tails)
            net = NoiseConditionalMLP(event) if conditional else ScoreMLP(event, hidden=128)
        net.to(samples)
    levelled = _takes_level(net)
    if loss is None:
        loss = MultilevelDenoising() if levelled else ImplicitScoreMatching()
    if levelled != isinstance(loss, MultilevelDenoising):
        got = f"{loss} for a network of {'x and a level' if levelled else 'x alone'}"
        fix = "Leave loss or net out, and the other is chosen to fit."
        raise TypeError(checks.message("MultilevelDenoising for networks that take a level, and no others", got, fix))
    size = samples[0].numel()
    flat_is_fine = isinstance(loss, DenoisingScoreMatching | MultilevelDenoising) and size > MAX_WHITENED_SIZE
    _enough(samples, flat_is_fine=flat_is_fine)
    heavy = Compose(Sinh.of(samples), SquareRoot()) if heavy_tails else None
    light = samples if heavy is None else heavy.inverse(samples)
    coordinates = _coordinates(heavy, light, standardize=standardize)
    data = samples if coordinates is None else coordinates.inverse(samples)
    _answers(net, data[:2], *([1.0] if levelled else []))
    spread = 1.0 if standardize else float(light.flatten(1).std(0).mean())
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
    whole = net if coordinates is None else InCoordinates(net, coordinates)
    fields = vars(fit) | {"net": whole.requires_grad_(False).eval()}
    box = _box_of(light)
    if heavy is not None:
        box = Box(*(heavy(end[None])[0] for end in (box.low, box.high)))
    return ScoreFit(**fields, support=box, noise_level=level, loss=checks.named(loss))


def _coordinates(heavy: Coordinates | None, light: Tensor, *, standardize: bool) -> Coordinates | None:
    """Return the coordinates to learn in: those of heavy tails, standardised where asked for."""
    if not standardize:
        return heavy
    standard = Affine.whitening(light)
    return standard if heavy is None else Compose(heavy, standard)


def _enough(samples: Tensor, *, flat_is_fine: bool) -> None:
    if len(samples) < LEAST:
        got, fix = f"{len(samples)} samples", "Thousands are needed for a score one can trust."
        raise ValueError(checks.message(f"at least {LEAST} samples", got, fix))
    constant = (samples == samples[0]).all(0)
    if constant.any() and not flat_is_fine:  # noise gives the dark corners of images some width
        fix = "Leave it out: a constant has no score."
        got = f"a constant at {constant.nonzero()[0].tolist()}"
        raise ValueError(checks.message("samples that vary in every coordinate", got, fix))


@torch.no_grad()
def _answers(net: nn.Module, x: Tensor, *level: float) -> None:
    """Refuse a network that does not answer with scores of these samples."""
    try:
        answer = net(x, *level)
    except (RuntimeError, ValueError) as error:
        fix = "Check its input size, and its dtype: net.to(samples) takes that of the samples."
        raise ValueError(checks.message(f"a net for {checks.describe(x)}", f"an error: {error}", fix)) from error
    checks.answer(answer, x, x.shape, "net")


def _preset(
    preset: str,
    samples: Tensor,
    loss: Loss | None,
    net: nn.Module | None,
    recipe: Recipe | None,
    generator: torch.Generator | None,
) -> tuple[Loss, nn.Module, bool, Recipe]:
    checks.one_of(preset, tuple(PRESETS), "preset")
    if loss is not None or net is not None or recipe is not None:
        fix = f"Leave the preset out, and start from scoremh.score_matching.PRESETS[{preset!r}]."
        raise ValueError(checks.message("a preset alone", "a preset with a loss, a net or a recipe", fix))
    row = PRESETS[preset]
    with rng.weights(generator):
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
    width = high - low if samples[0].numel() <= MAX_WHITENED_SIZE else (high - low).amax()
    return Box(low - MARGIN * width, high + MARGIN * width)
