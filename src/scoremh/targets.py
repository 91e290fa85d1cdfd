"""Distributions with exact score, log density and sampler, and ways to make a `Target` from what is at hand.

- `Gaussian`: N(m, C), score = -C^-1 (x - m).
- `GaussianMixture`: sum_k w_k N(m_k, C_k), score = sum_k P(k | x) score_k(x).
- `StudentT`: p(x) proportional to (1 + q / df)^(-(df + d) / 2), where q = (x - m)' S^-1 (x - m).
- `GeneralizedExtremeValue`: P(X <= x) = exp(-exp(-y)), where y = log(1 + xi z) / xi and z = (x - mu) / sigma.
- `Banana`: x1 ~ N(0, width^2), x2 | x1 ~ N(curvature (x1^2 - width^2), 1).
- `Funnel`: v = x[0] ~ N(0, width^2), x[i] | v ~ N(0, exp(v)).

Log densities are normalised. A matrix C = L L' enters through its whitening W = L^-1: with u = W (x - m), the quadratic
form is |u|^2, its gradient 2 W' u, and x = m + L u makes draws of standard normal u.

Parameters are tensors, lists or numbers; with no tensor among them they take torch's default dtype. `sample` answers in
their dtype and device, `score` and `log_density` in those of x.
"""

import math
from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from scoremh import _checks, _random
from scoremh._parameters import ROUNDING, Values, factorise, matrices, parameter, shared_dtype
from scoremh._support import Box as Box
from scoremh._support import box as box
from scoremh._support import require_event
from scoremh.types import LogDensityFn, SupportFn, Target, TargetLike

_LOG_2PI = math.log(2 * math.pi)


class _Distribution(ABC):
    """The public face of every distribution here; a subclass sets `_event` and fills in the three formulas."""

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
        _checks.count(n, "n")
        return self._sample(n, generator)

    @property
    def support(self) -> SupportFn | None:
        """None: p is positive everywhere, unless a subclass says otherwise."""
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
        shown = (f"{k}={_checks.describe(v) if k in long else ' '.join(repr(v).split())}" for k, v in public.items())
        return f"{type(self).__name__}({', '.join(shown)})"


class Gaussian(_Distribution):
    """The normal distribution with this mean `(d,)` and covariance `(d, d)`, by default the identity."""

    def __init__(self, mean: Values, covariance: Values | None = None) -> None:
        self.mean = parameter(mean, shared_dtype(mean, covariance), "mean", "d")
        self.covariance = matrices(covariance, self.mean, "covariance")
        self._factor, self._whitening, self._log_det = factorise(self.covariance, "covariance")
        self._event = self.mean.shape

    def _score(self, x: Tensor) -> Tensor:
        whitening = self._whitening.to(x)
        return (self.mean.to(x) - x) @ whitening.mT @ whitening

    def _log_density(self, x: Tensor) -> Tensor:
        u = (x - self.mean.to(x)) @ self._whitening.to(x).mT
        return self._log_det.to(x) - (u.square() + _LOG_2PI).sum(-1) / 2

    def _sample(self, n: int, generator: Generator | None) -> Tensor:
        return self.mean + _random.normal((n, *self._event), self.mean, generator) @ self._factor.mT


class GaussianMixture(_Distribution):
    """A mixture of normal distributions.

    Args:
        weights: `(k,)`, positive and summing to 1.
        means: `(k, d)`.
        covariances: `(k, d, d)`, or one `(d, d)` for all components; by default the identity.
    """

    def __init__(self, weights: Values, means: Values, covariances: Values | None = None) -> None:
        like = shared_dtype(weights, means, covariances)
        self.means = parameter(means, like, "means", "k", "d")
        weights = parameter(weights, like, "weights", len(self.means), positive=True)
        if abs(float(weights.double().sum()) - 1) > ROUNDING:
            raise ValueError(_checks.message("weights that sum to 1", weights.tolist(), "Divide them by their sum."))
        self.weights = weights / weights.sum()
        self.covariances = matrices(covariances, self.means, "covariances")
        self._factors, self._whitenings, self._log_dets = factorise(self.covariances, "covariances")
        self._event = self.means.shape[1:]

    def _components(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return u_k = W_k (x - m_k), `(chain, k, d)`, and log w_k N(x; m_k, C_k), `(chain, k)`."""
        u = torch.einsum("kij,nkj->nki", self._whitenings.to(x), x[:, None] - self.means.to(x))
        return u, self.weights.to(x).log() + self._log_dets.to(x) - (u.square() + _LOG_2PI).sum(-1) / 2

    def _score(self, x: Tensor) -> Tensor:
        u, log_joint = self._components(x)
        return -torch.einsum("nk,nki,kij->nj", log_joint.softmax(-1), u, self._whitenings.to(x))

    def _log_density(self, x: Tensor) -> Tensor:
        return self._components(x)[1].logsumexp(-1)

    def _sample(self, n: int, generator: Generator | None) -> Tensor:
        x = _random.normal((n, *self._event), self.means, generator)
        # In float64, so that a light component comes as often as its weight says. Without the last sum, which may
        # round to below 1: a uniform above all the others then falls to the last component.
        sums = self.weights.double().cumsum(0)[:-1]
        component = torch.searchsorted(sums, _random.log_uniform((n,), sums, generator).exp())
        for k, (mean, factor) in enumerate(zip(self.means, self._factors, strict=True)):
            x[component == k] = mean + x[component == k] @ factor.mT
        return x


class StudentT(_Distribution):
    """The multivariate Student t: a Gaussian divided by sqrt(chi2 / df).

    Args:
        df: degrees of freedom, a number above 0.
        location: `(d,)`; the mean where df > 1.
        shape_matrix: `(d, d)`, by default the identity; where df > 2, the covariance is df / (df - 2) times it.
    """

    def __init__(self, df: Values, location: Values, shape_matrix: Values | None = None) -> None:
        like = shared_dtype(df, location, shape_matrix)
        self.df = parameter(df, like, "df", positive=True)
        self.location = parameter(location, like, "location", "d")
        self.shape_matrix = matrices(shape_matrix, self.location, "shape_matrix")
        self._factor, self._whitening, log_det = factorise(self.shape_matrix, "shape_matrix")
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
        z = _random.normal((n, *self._event), self.location, generator) @ self._factor.mT
        df = self.df.double().expand(n, 1)  # at small df a chi2 number is often below the least of float32
        chi2 = 2 * torch._standard_gamma(df / 2, generator=_random.resolve(generator, df.device))
        return (self.location + z * (df / chi2).sqrt()).to(z)


class GeneralizedExtremeValue(_Distribution):
    """The law of block maxima: bounded below for shape > 0 (Frechet), above for shape < 0 (Weibull), Gumbel at 0.

    The coordinates are independent. Outside the support the log density is -inf and the score NaN.

    Args:
        shape: xi; a number, or event-shaped. Numbers alone make events of shape `(1,)`.
        location: mu, likewise.
        scale: sigma, likewise; above 0.
    """

    def __init__(self, shape: Values, location: Values = 0.0, scale: Values = 1.0) -> None:
        like = shared_dtype(shape, location, scale)
        parts = [parameter(shape, like, "shape", ...), parameter(location, like, "location", ...)]
        parts.append(parameter(scale, like, "scale", ..., positive=True))
        try:
            self._event = tuple(sum(parts, torch.zeros_like(parts[0])).shape) or (1,)
        except RuntimeError:
            got, fix = [tuple(part.shape) for part in parts], "Pass each as a number or with the shape of one event."
            raise ValueError(_checks.message("shape, location and scale that broadcast", got, fix)) from None
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
        exponential = -_random.log_uniform((n, *self._event), xi, generator)
        y = -exponential.clamp(min=2.0**-54).log()  # 0 comes once in 2^53 numbers, and its log is infinite
        z = torch.where(xi == 0, y, (xi * y).expm1() / (xi + (xi == 0)))
        x: Tensor = (self.location + self.scale * z).to(self.location)
        while not (inside := self._reduce(x)[0] > 0).all():  # rounding put a draw on the end of the support
            x = torch.where(inside, x, x.nextafter(self.location))
        return x


class Banana(_Distribution):
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
        return -((x1 / width).square() + residual.square()) / 2 - width.log() - _LOG_2PI

    def _sample(self, n: int, generator: Generator | None) -> Tensor:
        z = _random.normal((n, 2), self.width, generator)
        x1 = self.width * z[:, 0]
        return torch.stack([x1, self._ridge(x1) + z[:, 1]], dim=1)


class Funnel(_Distribution):
    """Neal's funnel: the first coordinate, with this standard deviation, is the log variance of the others."""

    def __init__(self, dimension: int = 2, width: Values = 3.0) -> None:
        _checks.count(dimension, "dimension", at_least=2)
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
        return -(quadratic + self.dimension * _LOG_2PI) / 2 - width.log()

    def _sample(self, n: int, generator: Generator | None) -> Tensor:
        z = _random.normal((n, self.dimension), self.width, generator)
        v = self.width * z[:, :1]
        return torch.cat([v, (v / 2).exp() * z[:, 1:]], dim=1)


def from_log_density(log_density: LogDensityFn, support: SupportFn | None = None) -> Target:
    """Make a target of a log density alone; the score is its gradient.

    No graph is kept, whatever parameters `log_density` has, unless x itself requires a gradient.

    Args:
        log_density: x of shape `(chain, *event)` to log p(x) + const of shape `(chain,)`, each chain on its own.
        support: as in `Target`.
    """

    def total(x: Tensor) -> Tensor:
        value = log_density(x)
        _checks.answer(value, x, x.shape[:1], "log_density")
        return value.sum()  # no chain enters the term of another: the gradient of the sum is that of each

    def score(x: Tensor) -> Tensor:
        with torch.set_grad_enabled(x.requires_grad and torch.is_grad_enabled()):
            gradient: Tensor = torch.func.grad(total)(x)
        return gradient

    return Target(score, log_density, support)


def truncate(target: TargetLike, support: SupportFn) -> Target:
    """Restrict a target to a support, beside the one it has; its score and log density stay as they are."""
    own = target.support
    return Target(target.score, target.log_density, support if own is None else lambda x: own(x) & support(x))
