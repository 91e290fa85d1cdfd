"""What one would use instead of chains: a kernel density estimate, and a normalizing flow."""

from dataclasses import replace

import torch
from torch import Tensor

from scoremh import Recipe
from scoremh._shared import rng
from scoremh.coordinates import Affine
from scoremh.score_matching import LONG_RECIPE
from scoremh.training import Fit, train

BANDWIDTHS = torch.logspace(-2, 0, 15).tolist()  # of a kernel, in standard coordinates
HELD_OUT = 1000  # samples that choose it
SIZES = {"bins": 16, "transforms": 4, "hidden_features": [64, 64]}
RECIPE = replace(LONG_RECIPE, steps=3000)  # of the flow, which stops early where held-out samples say so


def best_bandwidth(u: Tensor) -> float:
    """Return the bandwidth that gives held-out samples, in standard coordinates, the most likelihood."""
    from sklearn.neighbors import KernelDensity

    held, kept = u[:HELD_OUT].numpy(), u[HELD_OUT:].numpy()
    best: float = max(BANDWIDTHS, key=lambda width: KernelDensity(bandwidth=width).fit(kept).score(held))
    return best


class _Likelihood:
    """The negative log likelihood of a flow, as `train` takes a loss."""

    def __repr__(self) -> str:
        return "negative log likelihood"

    def loss(self, net: torch.nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        loss: Tensor = -net().log_prob(x).mean()
        return loss


def spline_flow(x: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Draw from a neural spline flow (zuko) of maximal likelihood, trained as scores are.

    Args:
        x: Samples `(sample, d)`.
        n: Number of draws.
        generator: Random number generator; the same seed gives the same draws.
    """
    coordinates = Affine.whitening(x)
    fit = trained_flow(coordinates.inverse(x), RECIPE, generator)
    with torch.no_grad(), rng.global_fork(rng.seeds(1, generator)[0]):
        draws: Tensor = fit.net().sample((n,))
    return coordinates.forward(draws)


def trained_flow(u: Tensor, recipe: Recipe, generator: torch.Generator) -> Fit:
    """Return a neural spline flow (zuko) of maximal likelihood for samples in standard coordinates."""
    import zuko

    with rng.global_fork(rng.seeds(1, generator)[0]):
        net = zuko.flows.NSF(u.shape[1], **SIZES)
    return train(net, _Likelihood(), u, recipe=recipe, generator=generator)
