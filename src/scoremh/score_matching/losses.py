r"""Losses that learn a score from samples.

| loss | what it minimises | needs |
|---|---|---|
| `ImplicitScoreMatching` | E[ \|s\|^2 / 2 + tr J ] (Hyvarinen 2005) | a divergence |
| `SlicedScoreMatching` | E[ \|s\|^2 / 2 + v.Jv ], or with (v.s)^2 for \|s\|^2 (Song et al. 2020) | one product with J |
| `DenoisingScoreMatching` | E[ \|sigma s(x + sigma z) + z\|^2 ] / 2 (Vincent 2011) | nothing |
| `MultilevelDenoising` | the same over a range of noise levels | a network that takes sigma |

The first two estimate the score itself, up to a constant half its mean square, and are unbounded below where samples
have no width in some direction. The others estimate the score of the samples blurred by noise, which always exists.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scoremh._shared import checks, rng
from scoremh._shared.algebra import inner, per_chain

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
