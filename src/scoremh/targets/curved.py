"""Curved distributions, on which samplers are commonly tested.

- `Banana`: x1 ~ N(0, width^2), x2 | x1 ~ N(curvature (x1^2 - width^2), 1);
  score = (2 curvature x1 r - x1 / width^2, -r), where r = x2 - curvature (x1^2 - width^2).
- `Funnel`: v = x[0] ~ N(0, width^2), x[i] | v ~ N(0, exp(v)).
"""

import torch
from torch import Generator, Tensor

from scoremh._shared import checks, rng
from scoremh._shared.parameters import Values, parameter, shared_dtype
from scoremh.targets.distribution import LOG_2PI, Distribution


class Banana(Distribution):
    """A Gaussian in two dimensions bent along a parabola, with mean 0; curvature 0 leaves it straight."""

    def __init__(self, curvature: Values = 0.5, width: Values = 1.0) -> None:
        like = shared_dtype(curvature, width)
        self.curvature = parameter(curvature, like, "curvature")
        self.width = parameter(width, like, "width", positive=True)
        self._event = (2,)

    def _ridge(self, x1: Tensor) -> Tensor:
        return self.curvature.to(x1) * (x1.square() - self.width.to(x1).square())

    def _score(self, x: Tensor) -> Tensor:
        x1, residual = x[:, 0], x[:, 1] - self._ridge(x[:, 0])
        first = 2 * self.curvature.to(x) * x1 * residual - x1 / self.width.to(x).square()
        return torch.stack([first, -residual], dim=1)

    def _log_density(self, x: Tensor) -> Tensor:
        x1, residual, width = x[:, 0], x[:, 1] - self._ridge(x[:, 0]), self.width.to(x)
        return -((x1 / width).square() + residual.square()) / 2 - width.log() - LOG_2PI

    def _sample(self, n: int, generator: Generator | None) -> Tensor:
        z = rng.normal((n, 2), self.width, generator)
        x1 = self.width * z[:, 0]
        return torch.stack([x1, self._ridge(x1) + z[:, 1]], dim=1)


class Funnel(Distribution):
    """Neal's funnel: the first coordinate, with this standard deviation, is the log variance of the others."""

    def __init__(self, dimension: int = 2, width: Values = 3.0) -> None:
        checks.count(dimension, "dimension", at_least=2)
        self.dimension, self.width = dimension, parameter(width, shared_dtype(width), "width", positive=True)
        self._event = (dimension,)

    def _score(self, x: Tensor) -> Tensor:
        v, rest = x[:, :1], x[:, 1:]
        precision = (-v).exp()
        tilt = (precision * rest.square() - 1).sum(1, keepdim=True) / 2
        return torch.cat([tilt - v / self.width.to(x).square(), -precision * rest], dim=1)

    def _log_density(self, x: Tensor) -> Tensor:
        v, rest, width = x[:, :1], x[:, 1:], self.width.to(x)
        quadratic = (v / width).square()[:, 0] + ((-v).exp() * rest.square() + v).sum(1)
        return -(quadratic + self.dimension * LOG_2PI) / 2 - width.log()

    def _sample(self, n: int, generator: Generator | None) -> Tensor:
        z = rng.normal((n, self.dimension), self.width, generator)
        v = self.width * z[:, :1]
        return torch.cat([v, (v / 2).exp() * z[:, 1:]], dim=1)
