"""Distributions with heavy tails.

- `StudentT`: p(x) proportional to (1 + q / df)^(-(df + d) / 2), where q = (x - m)' S^-1 (x - m);
  score = -(df + d) / (df + q) S^-1 (x - m).
- `GeneralizedExtremeValue`: P(X <= x) = exp(-exp(-y)), where y = log(t) / xi, t = 1 + xi z and z = (x - mu) / sigma;
  score = (exp(-y) - 1 - xi) / (sigma t).
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from scoremh._shared import checks, rng
from scoremh._shared.parameters import Values, matrices, parameter, shared_dtype
from scoremh._shared.support import require_event
from scoremh.targets.distribution import Distribution
from scoremh.targets.gaussians import factors


class StudentT(Distribution):
    """The multivariate Student t: a Gaussian divided by sqrt(chi2 / df).

    Args:
        df: Degrees of freedom, a number above 0.
        location: Centre, `(d,)`; the mean where df > 1.
        shape_matrix: Matrix S, `(d, d)`, the identity by default; covariance df / (df - 2) S where df > 2.
    """

    def __init__(self, df: Values, location: Values, shape_matrix: Values | None = None) -> None:
        like = shared_dtype(df, location, shape_matrix)
        self.df = parameter(df, like, "df", positive=True)
        self.location = parameter(location, like, "location", "d")
        self.shape_matrix = matrices(shape_matrix, self.location, "shape_matrix")
        self._factor, self._whitening, log_det = factors(self.shape_matrix, "shape_matrix")
        v, d = float(self.df), len(self.location)
        self._log_peak = math.lgamma((v + d) / 2) - math.lgamma(v / 2) - d / 2 * math.log(v * math.pi) + float(log_det)
        self._event = self.location.shape

    def _score(self, x: Tensor) -> Tensor:
        whitening, df = self._whitening.to(x), self.df.to(x)
        u = (x - self.location.to(x)) @ whitening.mT
        return -(df + x.shape[1]) / (df + u.square().sum(-1, keepdim=True)) * (u @ whitening)

    def _log_density(self, x: Tensor) -> Tensor:
        df = self.df.to(x)
        u = (x - self.location.to(x)) @ self._whitening.to(x).mT
        return self._log_peak - (df + x.shape[1]) / 2 * (u.square().sum(-1) / df).log1p()

    def _sample(self, n: int, generator: Generator | None) -> Tensor:
        z = rng.normal((n, *self._event), self.location, generator) @ self._factor.mT
        df = self.df.double().expand(n, 1)  # at small df a chi2 number is often below the least of float32
        chi2 = 2 * torch._standard_gamma(df / 2, generator=rng.resolve(generator, df.device))
        return (self.location + z * (df / chi2).sqrt()).to(z)


class GeneralizedExtremeValue(Distribution):
    """The distribution of block maxima: Frechet (shape > 0, bounded below), Gumbel (0), Weibull (< 0, bounded above).

    The coordinates are independent. Outside the support the log density is -inf and the score NaN.

    Args:
        shape: Shape xi, a number or a tensor of the event's shape. Numbers alone make events of shape `(1,)`.
        location: Location mu, a number or a tensor of the event's shape.
        scale: Scale sigma above 0, a number or a tensor of the event's shape.
    """

    def __init__(self, shape: Values, location: Values = 0.0, scale: Values = 1.0) -> None:
        like = shared_dtype(shape, location, scale)
        parts = [parameter(shape, like, "shape", ...), parameter(location, like, "location", ...)]
        parts.append(parameter(scale, like, "scale", ..., positive=True))
        try:
            self._event = tuple(sum(parts, torch.zeros_like(parts[0])).shape) or (1,)
        except RuntimeError:
            got, fix = [tuple(part.shape) for part in parts], "Pass each as a number or with the shape of one event."
            raise ValueError(checks.message("shape, location and scale that broadcast", got, fix)) from None
        self.shape, self.location, self.scale = (part.expand(self._event) for part in parts)

    def _reduce(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return t = 1 + xi z and y = log(t) / xi, for every coordinate."""
        xi, z = self.shape.to(x), (x - self.location.to(x)) / self.scale.to(x)
        return 1 + xi * z, torch.where(xi == 0, z, (xi * z).log1p() / (xi + (xi == 0)))

    def support(self, x: Float[Tensor, "chain *event"]) -> Bool[Tensor, " chain"]:
        """Return whether every coordinate has 1 + xi z > 0."""
        require_event(x, self._event)
        return (self._reduce(x)[0] > 0).flatten(1).all(1)

    def _score(self, x: Tensor) -> Tensor:
        t, y = self._reduce(x)
        return torch.where(t > 0, ((-y).exp() - 1 - self.shape.to(x)) / (self.scale.to(x) * t), math.nan)

    def _log_density(self, x: Tensor) -> Tensor:
        t, y = self._reduce(x)
        log_p = -self.scale.to(x).log() - (1 + self.shape.to(x)) * y - (-y).exp()
        return torch.where(t > 0, log_p, -math.inf).flatten(1).sum(1)

    def _sample(self, n: int, generator: Generator | None) -> Tensor:
        # Inverse CDF in float64: float32 uniforms are multiples of 2^-24, and the upper tail would show it.
        xi = self.shape.double()
        exponential = -rng.log_uniform((n, *self._event), xi, generator)
        y = -exponential.clamp(min=2.0**-54).log()  # 0 comes once in 2^53 numbers, and its log is infinite
        z = torch.where(xi == 0, y, (xi * y).expm1() / (xi + (xi == 0)))
        x: Tensor = (self.location + self.scale * z).to(self.location)
        while not (inside := self._reduce(x)[0] > 0).all():  # rounding put a draw on the end of the support
            x = torch.where(inside, x, x.nextafter(self.location))
        return x
