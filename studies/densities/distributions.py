"""Distributions whose log density is known after any Gaussian blur, mode by mode.

A fit with noise levels knows the distribution of its samples blurred by N(0, sigma^2 C), so that is what its log p is
held against: `log_density(x, sigma^2 C)` is exact, and `modes` are the components that p is the sum of.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scoremh import datasets, targets
from studies.learning import FIGURE_1

ROWS = 1000  # points at once, each with its distance to all points of a curve
ARMS, RADIAL_STD, TANGENTIAL_STD, RATE = 5, 0.5, 0.05, 0.25  # of `datasets.pinwheel`


class Known(ABC):
    """A distribution that is a sum of modes."""

    @abstractmethod
    def sample(self, n: int, *, generator: torch.Generator) -> Float[Tensor, "draw d"]:
        """Draw n points."""

    @abstractmethod
    def components(self, x: Float[Tensor, "draw d"], blur: Tensor | None = None) -> Float[Tensor, "draw mode"]:
        """Return the log of every mode's part of the density at x, in float64, blurred by N(0, blur) if given."""

    def log_density(self, x: Float[Tensor, "draw d"], blur: Tensor | None = None) -> Float[Tensor, " draw"]:
        """Return log p, in float64, of the distribution blurred by N(0, blur) if given."""
        return self.components(x, blur).logsumexp(1)

    def modes(self, x: Float[Tensor, "draw d"], blur: Tensor) -> Int[Tensor, " draw"]:
        """Return which mode has the largest part of the density at x."""
        return self.components(x, blur).argmax(1)


@dataclass(frozen=True)
class Normals(Known):
    """A mixture of normal distributions."""

    mixture: targets.GaussianMixture

    def sample(self, n: int, *, generator: torch.Generator) -> Float[Tensor, "draw d"]:
        return self.mixture.sample(n, generator=generator)

    def components(self, x: Float[Tensor, "draw d"], blur: Tensor | None = None) -> Float[Tensor, "draw mode"]:
        of = self.mixture
        added = 0.0 if blur is None else blur.double()
        parts = zip(of.weights.double(), of.means.double(), of.covariances.double() + added, strict=True)
        columns = [targets.Gaussian(mean, cov).log_density(x.double()) + weight.log() for weight, mean, cov in parts]
        return torch.stack(columns, 1)


def near_curves(
    x: Tensor, curves: Float[Tensor, "mode point 2"], log_weights: Float[Tensor, " point"], covariance: Tensor
) -> Float[Tensor, "draw mode"]:
    """Return log sum_i w_i N(x; c_i, covariance) for every curve of points c_i."""
    root = torch.linalg.cholesky(covariance)
    whiten = torch.linalg.inv(root).T
    constant = math.log(2 * math.pi) + float(root.diagonal().log().sum())

    def part(some: Tensor, curve: Tensor) -> Tensor:
        return (log_weights - torch.cdist(some @ whiten, curve @ whiten).square() / 2).logsumexp(1) - constant

    columns = [torch.cat([part(some, curve) for some in x.double().split(ROWS)]) for curve in curves]
    return torch.stack(columns, 1)


class Moons(Known):
    """Two half circles with isotropic noise, as `datasets.moons` draws them."""

    def __init__(self, points: int = 3000) -> None:
        angle = (torch.arange(points, dtype=torch.float64) + 0.5) / points * math.pi
        outer, inner = (angle.cos(), angle.sin()), (1 - angle.cos(), 0.5 - angle.sin())
        self.curves = torch.stack([torch.stack(curve, 1) for curve in (outer, inner)])
        self.log_weights = torch.full((points,), -math.log(2 * points), dtype=torch.float64)

    def sample(self, n: int, *, generator: torch.Generator) -> Float[Tensor, "draw d"]:
        return datasets.moons(n, generator=generator)

    def components(self, x: Float[Tensor, "draw d"], blur: Tensor | None = None) -> Float[Tensor, "draw mode"]:
        noise = 0.1**2 * torch.eye(2, dtype=torch.float64)
        covariance = noise if blur is None else noise + blur.double()
        return near_curves(x, self.curves, self.log_weights, covariance)


class Pinwheel(Known):
    """Five bent arms, as the paper prints them: c_k(r) + delta (1, 1), with r and delta normal."""

    def __init__(self, points: int = 3000) -> None:
        self.r = 1 + RADIAL_STD * torch.linspace(-6, 6, points, dtype=torch.float64)
        angles = 2 * math.pi / ARMS * torch.arange(ARMS)[:, None] + RATE * self.r
        self.curves = self.r[:, None] * torch.stack([angles.cos(), angles.sin()], 2)
        self.log_weights = log_normal(self.r - 1, RADIAL_STD) + float((self.r[1] - self.r[0]).log()) - math.log(ARMS)

    def sample(self, n: int, *, generator: torch.Generator) -> Float[Tensor, "draw d"]:
        return datasets.pinwheel(n, generator=generator)

    def components(self, x: Float[Tensor, "draw d"], blur: Tensor | None = None) -> Float[Tensor, "draw mode"]:
        if blur is None:
            return torch.stack([self.sharp(x.double(), curve) for curve in self.curves], 1)
        same = TANGENTIAL_STD**2 * torch.ones(2, 2, dtype=torch.float64)
        return near_curves(x, self.curves, self.log_weights, same + blur.double())

    def sharp(self, x: Tensor, curve: Float[Tensor, "point 2"]) -> Float[Tensor, " draw"]:
        """Return the log of an arm's part without blur: a sum over all (r, delta) that x can come from.

        delta (1, 1) leaves x_1 - x_2 as it is, so that r solves f(r) = c_1(r) - c_2(r) = x_1 - x_2, and the volume of
        the map from (r, delta) to x is |f'(r)|; between two points of the curve f is taken for a line.
        """
        across, slope, step = curve[:, 0] - curve[:, 1], (curve[:, 0] - curve[:, 1]).diff(), self.r.diff()
        parts = []
        for some in x.split(ROWS):
            share = (
                (some[:, :1] - some[:, 1:]) - across[:-1]
            ) / slope  # where between two points of the curve f is met
            r, delta = self.r[:-1] + share * step, some[:, :1] - (curve[:-1, 0] + share * curve[:, 0].diff())
            log_part = log_normal(r - 1, RADIAL_STD) + log_normal(delta, TANGENTIAL_STD) - (slope / step).abs().log()
            parts.append(log_part.where((share >= 0) & (share < 1), torch.tensor(-math.inf).double()).logsumexp(1))
        return torch.cat(parts) - math.log(ARMS)


@dataclass(frozen=True)
class Student(Known):
    """The Student t with two degrees of freedom in the plane: N(0, I / e) with e exponential."""

    nodes: int = 600

    def sample(self, n: int, *, generator: torch.Generator) -> Float[Tensor, "draw d"]:
        return targets.StudentT(2.0, [0.0, 0.0]).sample(n, generator=generator)

    def components(self, x: Float[Tensor, "draw d"], blur: Tensor | None = None) -> Float[Tensor, "draw mode"]:
        y = torch.linspace(-25, 5, self.nodes, dtype=torch.float64)  # log e, of density e exp(-e)
        log_weights = y - y.exp() + float((y[1] - y[0]).log())
        added = torch.zeros(2, 2, dtype=torch.float64) if blur is None else blur.double()
        covariances = (-y).exp()[:, None, None] * torch.eye(2, dtype=torch.float64) + added
        parts = zip(log_weights, covariances, strict=True)
        each = [
            targets.Gaussian(torch.zeros(2).double(), cov).log_density(x.double()) + weight for weight, cov in parts
        ]
        return torch.stack(each, 1).logsumexp(1, keepdim=True)


def log_normal(x: Tensor, std: float) -> Tensor:
    """Return log N(x; 0, std^2)."""
    return -(x / std).square() / 2 - math.log(std * math.sqrt(2 * math.pi))


def three_modes() -> Normals:
    """Return three modes in the plane, of different shapes."""
    covariances = [[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.0], [0.0, 2.0]], [[2.0, 0.0], [0.0, 0.5]]]
    means = [[-4.0, 0.0], [4.0, 0.0], [0.0, 6.0]]
    return Normals(targets.GaussianMixture([0.5, 0.3, 0.2], means, covariances))


def corners(weights: list[float], variances: list[float], dimension: int) -> Normals:
    """Return modes at 5 times the first unit vectors."""
    eye, count = torch.eye(dimension), len(weights)
    covariances = torch.stack([variance * eye for variance in variances])
    return Normals(targets.GaussianMixture(weights, 5 * eye[:count], covariances))


def two_modes(dimension: int, *, whitened: bool = False) -> Normals:
    """Return 0.7 N(3 e_1, I) + 0.3 N(-3 e_1, I); with the first coordinate divided by its deviation if whitened."""
    scale = torch.ones(dimension)
    scale[0] = (1 + 4 * 0.7 * 0.3 * 3**2) ** -0.5 if whitened else 1.0
    mean, covariance = 3 * scale * torch.eye(dimension)[0], torch.diag(scale.square())
    return Normals(targets.GaussianMixture([0.7, 0.3], torch.stack([mean, -mean]), torch.stack([covariance] * 2)))


DISTRIBUTIONS: dict[str, tuple[str, Known]] = {
    "figure 1": ("0.8 N((5, 5), I) + 0.2 N((-5, -5), I), Figure 1", Normals(FIGURE_1)),
    "three modes": ("three modes of different shapes, 2-D", three_modes()),
    "moons": ("Moons", Moons()),
    "pinwheel": ("Pinwheel as printed: arms without width", Pinwheel()),
    "ten": ("three modes of different widths, 10-D", corners([0.5, 0.3, 0.2], [1.0, 0.6, 1.5], 10)),
    "twenty": ("four modes, 20-D", corners([0.4, 0.3, 0.2, 0.1], [1.0, 1.0, 1.0, 1.0], 20)),
}
