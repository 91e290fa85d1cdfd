r"""Distributions with exact score, normalised log density and sampler.

- `Gaussian`: N(m, C), score = -C^-1 (x - m). The code uses C = L L' and W = L^-1: with u = W (x - m) the quadratic
  form is |u|^2, its gradient is 2 W' u, and x = m + L u is a draw if u is standard normal.
- `GaussianMixture`: sum_k w_k N(m_k, C_k), score = sum_k P(k | x) score_k(x).
- `Banana`: x1 ~ N(0, width^2), x2 | x1 ~ N(curvature (x1^2 - width^2), 1);
  score = (2 curvature x1 r - x1 / width^2, -r), where r = x2 - curvature (x1^2 - width^2).
- `Funnel`: v = x[0] ~ N(0, width^2), x[i] | v ~ N(0, exp(v)).
- `StudentT`: p(x) proportional to (1 + q / df)^(-(df + d) / 2), where q = (x - m)' S^-1 (x - m);
  score = -(df + d) / (df + q) S^-1 (x - m).
- `GeneralizedExtremeValue`: P(X <= x) = exp(-exp(-y)), where y = log(t) / xi, t = 1 + xi z and z = (x - mu) / sigma;
  score = (exp(-y) - 1 - xi) / (sigma t).

The first two are score models as well: noise of level sigma turns C_k into C_k + sigma^2 I, and with responsibilities
r_k(x) = P(k | x) and the scores s_k of the components,

    s = sum_k r_k s_k,    div s = sum_k r_k (div s_k + |s_k|^2) - |s|^2
"""

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from scoremh._shared import checks, rng
from scoremh._shared.checks import ROUNDING, Values, matrices, parameter, shared_dtype
from scoremh.coordinates import Affine, cholesky
from scoremh.types import SupportFn, require_event

LOG_2PI = math.log(2 * math.pi)


class Distribution(ABC):
    """A distribution; a subclass sets `_event` and implements `_score`, `_log_density` and `_sample`."""

    _event: tuple[int, ...]

    def score(self, x: Float[Tensor, "chain *event"]) -> Float[Tensor, "chain *event"]:
        """Return grad log p(x)."""
        require_event(x, self._event)
        return self._score(x)

    def log_density(self, x: Float[Tensor, "chain *event"]) -> Float[Tensor, " chain"]:
        """Return log p(x), normalised."""
        require_event(x, self._event)
        return self._log_density(x)

    def sample(self, n: int, *, generator: Generator | None = None) -> Float[Tensor, "draw *event"]:
        """Draw n independent events."""
        checks.count(n, "n")
        return self._sample(n, generator)

    @property
    def support(self) -> SupportFn | None:
        """None: p is positive everywhere, unless a subclass overrides this."""
        return None

    @abstractmethod
    def _score(self, x: Tensor) -> Tensor: ...
    @abstractmethod
    def _log_density(self, x: Tensor) -> Tensor: ...
    @abstractmethod
    def _sample(self, n: int, generator: Generator | None) -> Tensor: ...

    def __repr__(self) -> str:
        public = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        long = {name for name, value in public.items() if isinstance(value, Tensor) and value.numel() > 16}
        shown = (f"{k}={checks.describe(v) if k in long else ' '.join(repr(v).split())}" for k, v in public.items())
        return f"{type(self).__name__}({', '.join(shown)})"


# Noise levels that log p is integrated over: the lowest in units of the standard deviation averaged over coordinates,
# the highest in units of that in the widest direction.
LEVELS = 0.01, 10.0


class Blurrable(Distribution):
    """A mixture of normal distributions, with the scores of all its blurred versions (`scoremh.types.ScoreModel`)."""

    probes: ClassVar[None] = None  # the divergence is exact

    @property
    @abstractmethod
    def _components_of(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weights, means and covariances of the components."""

    @abstractmethod
    def _replaced(self, means: Tensor, covariances: Tensor) -> "Blurrable":
        """Return the distribution with these means and covariances."""

    @property
    def noise_level(self) -> float:
        """The lowest noise level; log p through noise is the log density of the distribution blurred by it."""
        return self.noise_range[0]

    @property
    def noise_range(self) -> tuple[float, float]:
        """The noise levels that log p through noise is integrated over, up to where modes merge in every direction."""
        low, high = LEVELS
        return low * self.variance**0.5, high * self._widest

    @cached_property
    def _widest(self) -> float:
        """The standard deviation in the widest direction."""
        weights, means, covariances = (part.double() for part in self._components_of)
        away = means - weights @ means
        covariance = torch.einsum("k,kij->ij", weights, covariances) + away.mT @ (weights[:, None] * away)
        return float(torch.linalg.eigvalsh(covariance)[-1].sqrt())

    @property
    def variance(self) -> float:
        """The variance, averaged over the coordinates."""
        weights, means, covariances = self._components_of
        away = means - weights @ means
        return float((weights @ (away.square() + covariances.diagonal(dim1=-2, dim2=-1))).mean())

    @property
    def coordinates(self) -> Affine:
        """The shift by the mean."""
        return Affine(self.event, self.event.new_ones(()))

    @property
    def event(self) -> Tensor:
        """The mean."""
        weights, means, _ = self._components_of
        return weights @ means

    @property
    def standard(self) -> "Blurrable":
        """The distribution shifted to mean 0."""
        _, means, covariances = self._components_of
        return self._replaced(means - self.event, covariances)

    def at(self, noise_level: float) -> "Blurrable":
        """Return the distribution blurred by noise N(0, noise_level^2 I).

        Args:
            noise_level: Standard deviation of the noise; 0 returns the distribution itself.
        """
        if not noise_level >= 0:
            raise ValueError(checks.message("a noise level of at least 0", noise_level, "Pass 0.5, for example."))
        _, means, covariances = self._components_of
        return self._replaced(means, covariances + noise_level**2 * torch.eye(means.shape[1]).to(means))

    def level_score(
        self, x: Float[Tensor, "chain d"], sigma: Tensor | float
    ) -> tuple[Float[Tensor, "chain d"], Float[Tensor, " chain"]]:
        """Return the score of the distribution blurred by a noise level, and its divergence.

        Args:
            x: Points.
            sigma: Noise level, a number or one per chain.
        """
        require_event(x, self._event)
        weights, means, _ = self._components_of
        values, vectors = (part.to(x) for part in self._spectra)
        level = torch.as_tensor(sigma, dtype=x.dtype, device=x.device).reshape(-1, 1, 1)
        wide = values + level.square()  # eigenvalues of the blurred covariances, (chain, k, d)
        away = torch.einsum("kij,nki->nkj", vectors, x[:, None] - means.to(x))  # along the eigenvectors
        log_joint = weights.to(x).log() - (away.square() / wide + wide.log() + LOG_2PI).sum(-1) / 2
        shares, pulls = log_joint.softmax(-1), -away / wide
        score = torch.einsum("nk,nkj,kij->ni", shares, pulls, vectors)
        laplacian = (shares * (pulls.square() - 1 / wide).sum(-1)).sum(-1)  # (Laplacian of p) / p
        return score, laplacian - score.square().sum(-1)

    @cached_property
    def _spectra(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues `(k, d)` and eigenvectors `(k, d, d)` of the covariances."""
        covariances = self._components_of[2]
        with torch.inference_mode(False):  # the cached tensors may be differentiated through later
            values, vectors = torch.linalg.eigh(covariances.double())
            return values.to(covariances), vectors.to(covariances)


def factors(matrix: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return L with L L^T = matrix, W = L^-1 and log |det W|, computed in float64."""
    root = cholesky(matrix.double(), name)
    log_det = -root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return root.to(matrix), torch.linalg.inv(root).to(matrix), log_det.to(matrix)


class Gaussian(Blurrable):
    """The normal distribution with this mean `(d,)` and covariance `(d, d)`, by default the identity."""

    def __init__(self, mean: Values, covariance: Values | None = None) -> None:
        self.mean = parameter(mean, shared_dtype(mean, covariance), "mean", "d")
        self.covariance = matrices(covariance, self.mean, "covariance")
        self._factor, self._whitening, self._log_det = factors(self.covariance, "covariance")
        self._event = self.mean.shape

    @property
    def _components_of(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.mean.new_ones(1), self.mean[None], self.covariance[None]

    def _replaced(self, means: Tensor, covariances: Tensor) -> "Gaussian":
        return Gaussian(means[0], covariances[0])

    def _score(self, x: Tensor) -> Tensor:
        whitening = self._whitening.to(x)
        return (self.mean.to(x) - x) @ whitening.mT @ whitening

    def _log_density(self, x: Tensor) -> Tensor:
        u = (x - self.mean.to(x)) @ self._whitening.to(x).mT
        return self._log_det.to(x) - (u.square() + LOG_2PI).sum(-1) / 2

    def _sample(self, n: int, generator: Generator | None) -> Tensor:
        return self.mean + rng.normal((n, *self._event), self.mean, generator) @ self._factor.mT


class GaussianMixture(Blurrable):
    """A mixture of normal distributions.

    Args:
        weights: Weights of the components, `(k,)`, positive and summing to 1.
        means: Means of the components, `(k, d)`.
        covariances: Covariances of the components, `(k, d, d)`, or one `(d, d)` for all; by default the identity.
    """

    def __init__(self, weights: Values, means: Values, covariances: Values | None = None) -> None:
        like = shared_dtype(weights, means, covariances)
        self.means = parameter(means, like, "means", "k", "d")
        weights = parameter(weights, like, "weights", len(self.means), positive=True)
        if abs(float(weights.double().sum()) - 1) > ROUNDING:
            raise ValueError(checks.message("weights that sum to 1", weights.tolist(), "Divide them by their sum."))
        self.weights = weights / weights.sum()
        self.covariances = matrices(covariances, self.means, "covariances")
        self._factors, self._whitenings, self._log_dets = factors(self.covariances, "covariances")
        self._event = self.means.shape[1:]

    @property
    def _components_of(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.weights, self.means, self.covariances

    def _replaced(self, means: Tensor, covariances: Tensor) -> "GaussianMixture":
        return GaussianMixture(self.weights, means, covariances)

    def _components(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return u_k = W_k (x - m_k), `(chain, k, d)`, and log w_k N(x; m_k, C_k), `(chain, k)`."""
        u = torch.einsum("kij,nkj->nki", self._whitenings.to(x), x[:, None] - self.means.to(x))
        return u, self.weights.to(x).log() + self._log_dets.to(x) - (u.square() + LOG_2PI).sum(-1) / 2

    def _score(self, x: Tensor) -> Tensor:
        u, log_joint = self._components(x)
        return -torch.einsum("nk,nki,kij->nj", log_joint.softmax(-1), u, self._whitenings.to(x))

    def _log_density(self, x: Tensor) -> Tensor:
        return self._components(x)[1].logsumexp(-1)

    def _sample(self, n: int, generator: Generator | None) -> Tensor:
        x = rng.normal((n, *self._event), self.means, generator)
        # In float64, so that a light component is drawn with its exact weight. The last sum, which may round to below
        # 1, is left out: a uniform number above all other sums then selects the last component.
        sums = self.weights.double().cumsum(0)[:-1]
        component = torch.searchsorted(sums, rng.log_uniform((n,), sums, generator).exp())
        for k, (mean, factor) in enumerate(zip(self.means, self._factors, strict=True)):
            x[component == k] = mean + x[component == k] @ factor.mT
        return x


class Banana(Distribution):
    """A two-dimensional Gaussian bent along a parabola, with mean 0; with curvature 0 it is a Gaussian."""

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
    """Neal's funnel: the first coordinate, with standard deviation `width`, is the log variance of the others."""

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


class StudentT(Distribution):
    """The multivariate Student t: a Gaussian divided by sqrt(chi2 / df).

    Args:
        df: Degrees of freedom, a number above 0.
        location: Centre, `(d,)`; the mean if df > 1.
        shape_matrix: Matrix S, `(d, d)`, by default the identity; the covariance is df / (df - 2) S if df > 2.
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
        df = self.df.double().expand(n, 1)  # at small df, chi2 often falls below the smallest float32
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
        # Inverse CDF in float64: float32 uniforms are multiples of 2^-24, which would be visible in the upper tail.
        xi = self.shape.double()
        exponential = -rng.log_uniform((n, *self._event), xi, generator)
        y = -exponential.clamp(min=2.0**-54).log()  # 0 occurs once in 2^53 numbers, and its log is infinite
        z = torch.where(xi == 0, y, (xi * y).expm1() / (xi + (xi == 0)))
        x: Tensor = (self.location + self.scale * z).to(self.location)
        while not (inside := self._reduce(x)[0] > 0).all():  # rounding moved a draw to the end of the support
            x = torch.where(inside, x, x.nextafter(self.location))
        return x
