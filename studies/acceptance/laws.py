"""Distributions that rules are compared on: with narrow structure, which a long step crosses, and smooth ones."""

import math
from typing import Protocol

import torch
from torch import Tensor

from scoremh import targets
from scoremh.types import TargetLike
from studies.acceptance.rules import OVERLAPPING
from studies.learning import seeded

TEETH = 9  # of the comb
RADIUS, WIDTH = 1.0, 0.1  # of a ring


class Sampled(TargetLike, Protocol):
    """A target with exact draws."""

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw n independent events."""
        ...


class Logistic:
    """The distribution on the line with the score -2 tanh x."""

    support = None

    def log_density(self, x: Tensor) -> Tensor:
        """Return log p."""
        return -2 * torch.nn.functional.softplus(2 * x).sum(1) + 2 * x.sum(1)

    def score(self, x: Tensor) -> Tensor:
        """Return the gradient of log p."""
        return -2 * x.tanh()

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw n independent events."""
        return torch.rand(n, 1, generator=generator, dtype=torch.float64).logit() / 2


class Rings:
    """Two rings in the plane, with weights 0.3 and 0.7."""

    support = None
    weights, centres = torch.tensor([0.3, 0.7]).double(), torch.tensor([[-1.5, 0.0], [1.5, 0.0]]).double()

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the log density of each ring, the way from its centre, and the length of that way."""
        away = x[:, None] - self.centres
        radius = away.norm(dim=2)
        return self.weights.log() - (radius - RADIUS).square() / (2 * WIDTH**2), away, radius

    def log_density(self, x: Tensor) -> Tensor:
        """Return log p."""
        return self._parts(x)[0].logsumexp(1)

    def score(self, x: Tensor) -> Tensor:
        """Return the gradient of log p."""
        logits, away, radius = self._parts(x)
        pull = logits.softmax(1) * (RADIUS - radius) / WIDTH**2 / radius
        return (pull[..., None] * away).sum(1)

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw n independent events."""
        radius = RADIUS + WIDTH * torch.randn(3 * n, dtype=torch.float64, generator=generator)
        kept = torch.rand(3 * n, dtype=torch.float64, generator=generator) < radius / 1.6  # p(r) has a factor r
        angle = 2 * math.pi * torch.rand(n, dtype=torch.float64, generator=generator)
        ring = (torch.rand(n, generator=generator) > self.weights[0]).long()
        return self.centres[ring] + radius[kept][:n, None] * torch.stack([angle.cos(), angle.sin()], 1)


def mixture(means: Tensor, std: float) -> targets.GaussianMixture:
    """Return round modes of one width, with weights in proportion to their number."""
    modes, dimension = means.shape
    weights = torch.arange(1, modes + 1).double() / (modes * (modes + 1) / 2)
    return targets.GaussianMixture(weights, means, std**2 * torch.eye(dimension).double().expand(modes, -1, -1))


def on_a_line(weights: Tensor, means: Tensor, std: float) -> targets.GaussianMixture:
    """Return a mixture of normal distributions with the same standard deviation in one dimension."""
    return targets.GaussianMixture(weights, means[:, None], torch.full((len(means), 1, 1), std**2).double())


_TOOTH = torch.arange(TEETH).double()
NARROW: dict[str, Sampled] = {
    "narrow modes": on_a_line(torch.tensor([0.3, 0.7]).double(), torch.tensor([-1.0, 1.0]).double(), 0.15),
    "comb": on_a_line((_TOOTH % 3 + 1) / 18, _TOOTH / 2 - 2, 0.06),
    "rings": Rings(),
}
# standard deviations of a random walk, from the width of the structure to the size of the distribution
STDS: dict[str, tuple[float, ...]] = {
    "narrow modes": (0.15, 0.25, 0.5, 1.0, 2.0),
    "comb": (0.06, 0.2, 0.5, 1.5, 4.0),
    "rings": (0.1, 0.3, 0.6, 1.0, 2.0),
}
SMOOTH: dict[str, Sampled] = {"logistic": Logistic(), "banana": targets.Banana(), "mixture": OVERLAPPING}
_PLACES = torch.linspace(-2, 2, 5).double()
ELSEWHERE: dict[str, Sampled] = {  # none of the numbers of the exact rule were chosen on these
    "25 modes": mixture(torch.cartesian_prod(_PLACES, _PLACES), 0.3),
    "funnel": targets.Funnel(2, 1.0),
    "Student t, 3-d": targets.StudentT(5.0, [0.0, 0.0, 0.0]),
    "three modes, 10-d": mixture(1.2 * torch.randn(3, 10, generator=seeded(10)).double(), 0.7),
}
