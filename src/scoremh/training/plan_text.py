"""What is to be trained, as text."""

from torch import Tensor, nn

from scoremh._shared import checks
from scoremh.coordinates import Compose, Coordinates
from scoremh.training.recipe import Recipe


def plan_text(
    what: str, net: nn.Module, loss: object, coordinates: Coordinates | None, samples: Tensor, recipe: Recipe
) -> str:
    """Return a plan as a few lines.

    Args:
        what: Name of what is to be learned.
        net: Network, without its coordinates.
        loss: Loss to minimise.
        coordinates: Coordinates to learn in; None for those of the samples.
        samples: Samples to learn from.
        recipe: How to train.
    """
    weights = sum(weight.numel() for weight in net.parameters())
    rows = {
        "network": f"{type(net).__name__}, {weights:,} weights",
        "loss": checks.named(loss),
        "coordinates": "those of the samples" if coordinates is None else coordinates_text(coordinates),
        "samples": f"{len(samples):,} of shape {tuple(samples.shape[1:])}, {str(samples.dtype).removeprefix('torch.')}",
        "recipe": repr(recipe),
    }
    return "\n".join([f"{what}, to be trained", *(f"  {name}: {text}" for name, text in rows.items())])


def coordinates_text(coordinates: Coordinates) -> str:
    """Return the names of coordinates, the outermost first."""
    if isinstance(coordinates, Compose):
        return " of ".join(map(coordinates_text, (coordinates.outer, coordinates.inner)))
    return type(coordinates).__name__
