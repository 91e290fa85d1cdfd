"""What `fit_score` will train, and how: every default chosen, every argument checked."""

import inspect
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from scoremh._shared import checks, rng
from scoremh._shared.support import Box
from scoremh.coordinates import MAX_WHITENED_SIZE, Affine, Compose, Coordinates, Sinh, SquareRoot
from scoremh.networks import NoiseConditionalMLP, NoiseConditionalPotential, ScoreMLP
from scoremh.score_matching.losses import (
    DenoisingScoreMatching,
    ImplicitScoreMatching,
    MultilevelDenoising,
    SlicedScoreMatching,
)
from scoremh.score_matching.presets import PRESETS
from scoremh.training import Loss, Recipe, plan_text

NAMED_NETWORKS = ("potential",)
MIN_SAMPLES = 8  # to learn from
# An implicit loss below -d times this, at unit scale, is taken for unbounded: in a plane, 4 % wide samples have it.
MAX_LOSS_BELOW_ZERO = 150.0
SUPPORT_MARGIN = 0.1  # by which a support is wider than the samples, as a share of their range, on either side


@dataclass(frozen=True, eq=False)
class ScorePlan:
    """What to train. Printing it shows all that was chosen.

    Args:
        net: Network in its coordinates, with its first weights.
        loss: Loss to minimise.
        recipe: How to train.
        coordinates: Coordinates to learn in; None where those of the samples are taken as they are.
        support: Box of the samples, in their own coordinates.
        data: Samples in the coordinates of the network.
        floor: Held-out loss below which a training is taken for one that has no least loss.
    """

    net: nn.Module
    loss: Loss
    recipe: Recipe
    coordinates: Coordinates | None
    support: Box
    data: Tensor = field(repr=False)
    floor: float

    def __str__(self) -> str:
        """Show the plan in a few lines."""
        return plan_text("score", self.net, self.loss, self.coordinates, self.data, self.recipe)


def score_plan(
    samples: Tensor,
    loss: Loss | None = None,
    net: nn.Module | str | None = None,
    *,
    preset: str | None = None,
    standardize: bool = True,
    heavy_tails: bool = False,
    recipe: Recipe | None = None,
    generator: torch.Generator | None = None,
) -> ScorePlan:
    """Return what `fit_score` would train with these arguments, which are its own."""
    checks.events(samples, "samples")
    samples = checks.to_learn_from(samples)
    checks.optional(loss, Loss, "loss")
    if not isinstance(net, str):
        checks.optional(net, nn.Module, "net")
    checks.optional(recipe, Recipe, "recipe")
    checks.one_of(heavy_tails, (True, False), "heavy_tails")
    event = tuple(samples.shape[1:])
    if preset is not None:
        _require_preset_alone(preset, loss, net, recipe, heavy_tails=heavy_tails)
        row = PRESETS[preset]
        loss, net, standardize, recipe = SlicedScoreMatching(), row.network(event, generator), False, row.recipe
        net.to(samples)
    if not isinstance(net, nn.Module):
        net = _network(net, loss, event, generator, heavy_tails=heavy_tails).to(samples)
    loss = _matching_loss(loss, takes_level=_takes_level(net))
    _require_enough(samples, loss)
    heavy = Compose(Sinh.of(samples), SquareRoot()) if heavy_tails else None
    light = samples if heavy is None else heavy.inverse(samples)
    coordinates = _coordinates(heavy, light, standardize=standardize)
    data = samples if coordinates is None else coordinates.inverse(samples)
    _require_answer(net, data[:2], *([1.0] if _takes_level(net) else []))
    spread = 1.0 if standardize else float(light.flatten(1).std(0).mean())
    floor = -MAX_LOSS_BELOW_ZERO * samples[0].numel() / spread**2
    return ScorePlan(net, loss, recipe or Recipe(), coordinates, _box(light, heavy), data, floor)


def _require_preset_alone(
    preset: str, loss: Loss | None, net: object, recipe: Recipe | None, *, heavy_tails: bool
) -> None:
    """Refuse an unknown preset, and one with what it stands for."""
    if heavy_tails:
        fix = "Leave one of them out: the paper has nothing for heavy tails."
        raise ValueError(checks.message("a preset alone", "a preset with heavy_tails", fix))
    checks.one_of(preset, tuple(PRESETS), "preset")
    if loss is not None or net is not None or recipe is not None:
        fix = f"Leave the preset out, and start from scoremh.score_matching.PRESETS[{preset!r}]."
        raise ValueError(checks.message("a preset alone", "a preset with a loss, a net or a recipe", fix))


def _network(
    name: str | None,
    loss: Loss | None,
    event: tuple[int, ...],
    generator: torch.Generator | None,
    *,
    heavy_tails: bool,
) -> nn.Module:
    """Return the network of a name, or the one for a loss."""
    if name is not None:
        checks.one_of(name, NAMED_NETWORKS, "net")
        return NoiseConditionalPotential(event, generator=rng.child(generator))
    if isinstance(loss, MultilevelDenoising) or (loss is None and not heavy_tails):
        return NoiseConditionalMLP(event, generator=rng.child(generator))
    return ScoreMLP(event, hidden=128, generator=rng.child(generator))


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


def _coordinates(heavy: Coordinates | None, light: Tensor, *, standardize: bool) -> Coordinates | None:
    """Return the coordinates to learn in: those of heavy tails, standardised where asked for."""
    if not standardize:
        return heavy
    standard = Affine.whitening(light)
    return standard if heavy is None else Compose(heavy, standard)


@torch.no_grad()
def _require_answer(net: nn.Module, x: Tensor, *sigma: float) -> None:
    """Refuse a network that does not answer with scores of these samples."""
    try:
        with rng.for_layers_of(net, 0):
            answer = net(x, *sigma)
    except (RuntimeError, ValueError) as error:
        fix = "Check its input size, and its dtype: net.to(samples) takes that of the samples."
        raise ValueError(checks.message(f"a net for {checks.describe(x)}", f"an error: {error}", fix)) from error
    checks.answer(answer, x, x.shape, "net")


def _box(light: Tensor, heavy: Coordinates | None) -> Box:
    """Return the box of samples with its margin, in coordinates of heavy tails where they are given."""
    low, high = light.amin(0), light.amax(0)
    # Images are scaled by one number, and so is their margin: pixels that are always dark get some as well.
    width = high - low if light[0].numel() <= MAX_WHITENED_SIZE else (high - low).amax()
    ends = low - SUPPORT_MARGIN * width, high + SUPPORT_MARGIN * width
    return Box(*ends) if heavy is None else Box(*(heavy(end[None])[0] for end in ends))
