r"""Coordinates: invertible maps x = f(u), which transform points, scores and densities.

With the Jacobian J = df / du, gradients g and densities transform as

    g_u = J^T g_x,    log p_u(u) = log p_x(x) + log |det J(u)|,    s_u(u) = J^T s_x(x) + grad log |det J(u)|

| map | x = f(u) | log \|det J\| |
|---|---|---|
| `Affine(mean, root)` | m + L u | log \|det L\| |
| `Sinh(mean, scale)` | m + w sinh(u), one by one | sum log(w cosh u) |
| `SquareRoot()` | v with u = v / (1 + v^2)^(1/4), one by one | sum log(dv / du) |
| `Log(bound, sign)` | b + exp(u) or b - exp(u), one by one | sum u |
| `Logit(low, high)` | low + (high - low) / (1 + exp(-u)), one by one | sum log(dx / du) |
| `Compose(outer, inner)` | outer(inner(u)) | the sum of both |

Points are `(chain, *event)`; a matrix acts on the flattened event. Coordinates are modules without weights, which are
saved with a network and moved to its dtype and device.
"""

import math
from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid

from scoremh._shared import checks

__all__ = [
    "MAX_WHITENED_SIZE",
    "Affine",
    "Compose",
    "Coordinates",
    "Elementwise",
    "Log",
    "Logit",
    "Sinh",
    "SquareRoot",
    "cholesky",
    "times",
]


Points = Float[Tensor, "chain *event"]


class Coordinates(nn.Module, ABC):
    """An invertible map x = f(u)."""

    @abstractmethod
    def forward(self, u: Points) -> Points:
        """Return x = f(u)."""

    @abstractmethod
    def inverse(self, x: Points) -> Points:
        """Return u."""

    @abstractmethod
    def pull_gradient(self, gradient: Points, u: Points) -> Points:
        """Return J^T g, the gradient with respect to u, from the gradient g with respect to x."""

    @abstractmethod
    def push_gradient(self, gradient: Points, u: Points) -> Points:
        """Return J^-T g, the gradient with respect to x, from the gradient g with respect to u."""

    @abstractmethod
    def log_det(self, u: Points) -> Float[Tensor, " chain"]:
        """Return log |det J(u)|."""

    @abstractmethod
    def log_det_gradient(self, u: Points) -> Tensor | float:
        """Return the gradient of log |det J| with respect to u; 0.0 if the map is affine."""

    def pull_score(self, score: Points, u: Points) -> Points:
        """Return the score of the distribution of u from the score of x."""
        return self.pull_gradient(score, u) + self.log_det_gradient(u)

    def push_score(self, score: Points, u: Points) -> Points:
        """Return the score of the distribution of x from the score of u."""
        return self.push_gradient(score - self.log_det_gradient(u), u)


class Compose(Coordinates):
    """The map x = outer(inner(u)).

    Args:
        outer: Map that is applied second.
        inner: Map that is applied first.
    """

    def __init__(self, outer: Coordinates, inner: Coordinates) -> None:
        super().__init__()
        self.outer, self.inner = outer, inner

    def forward(self, u: Points) -> Points:
        """Return outer(inner(u))."""
        x: Tensor = self.outer(self.inner(u))
        return x

    def inverse(self, x: Points) -> Points:
        """Return u."""
        return self.inner.inverse(self.outer.inverse(x))

    def pull_gradient(self, gradient: Points, u: Points) -> Points:
        """Return the gradient pulled through outer, then inner."""
        return self.inner.pull_gradient(self.outer.pull_gradient(gradient, self.inner(u)), u)

    def push_gradient(self, gradient: Points, u: Points) -> Points:
        """Return the gradient pushed through inner, then outer."""
        return self.outer.push_gradient(self.inner.push_gradient(gradient, u), self.inner(u))

    def log_det(self, u: Points) -> Float[Tensor, " chain"]:
        """Return the sum of both log determinants."""
        return self.outer.log_det(self.inner(u)) + self.inner.log_det(u)

    def log_det_gradient(self, u: Points) -> Tensor | float:
        """Return the gradient of the sum of both."""
        middle = self.inner(u)
        outer = self.outer.log_det_gradient(middle)
        pulled = self.inner.pull_gradient(outer, u) if isinstance(outer, Tensor) else outer
        return pulled + self.inner.log_det_gradient(u)


MAX_WHITENED_SIZE = 32  # coordinates up to which samples are whitened; larger events are only scaled
MAX_ASYMMETRY = (
    1e-3  # relative to the largest entry of a covariance; allows entries that were written with three digits
)


def cholesky(matrix: Float[Tensor, "*batch d d"], name: str = "covariance") -> Float[Tensor, "*batch d d"]:
    """Return L with L L^T = matrix, computed in float64.

    Args:
        matrix: Symmetric positive definite matrices; others raise an error.
        name: Name of the argument, for the error.
    """
    exact = matrix.detach().to("cpu", torch.float64)
    root: Tensor
    root, failed = torch.linalg.cholesky_ex(exact)
    asymmetry, size = float((exact - exact.mT).abs().max()), float(exact.abs().max())
    if failed.any() or not asymmetry <= MAX_ASYMMETRY * size:
        least = float(torch.linalg.eigvalsh(exact).min()) if bool(exact.isfinite().all()) else math.nan
        got = f"asymmetry {asymmetry:.3g} and least eigenvalue {least:.3g}"
        fix = "Average it with its transpose, remove redundant coordinates, or add a small multiple of the identity."
        raise ValueError(checks.message(f"{name} to be symmetric and positive definite", got, fix))
    return root.to(matrix)


def times(matrix: Tensor, v: Points) -> Points:
    """Return the product of a matrix with each event.

    Args:
        matrix: Matrix `(d, d)` over the flattened event, diagonal `(d,)`, or number `()`.
        v: Events.
    """
    matrix = matrix.to(v)
    if matrix.ndim == 0:
        return v * matrix
    flat = v.flatten(1)
    if flat.shape[1] != len(matrix):
        got = f"covariance over {len(matrix)} and events of shape {tuple(v.shape[1:])}"
        fix = "Its size must be the number of coordinates of one event."
        raise ValueError(checks.message("covariance and event of one size", got, fix))
    return (flat * matrix if matrix.ndim == 1 else linear(flat, matrix)).reshape(v.shape)


class Affine(Coordinates):
    """The map x = m + L u.

    Args:
        mean: m, broadcast to the event's shape.
        root: L over the flattened event: a number `()`, a diagonal `(d,)`, or a lower triangle `(d, d)`.
    """

    mean: Tensor
    root: Tensor
    root_inverse: Tensor

    def __init__(self, mean: Tensor, root: Tensor) -> None:
        super().__init__()
        if root.ndim > 2 or (root.ndim == 2 and root.shape[0] != root.shape[1]):
            expected = "root to be a number, a diagonal (d,) or a triangle (d, d)"
            fix = "Use Affine.from_covariance or Affine.whitening."
            raise ValueError(checks.message(expected, checks.describe(root), fix))
        exact = root.detach().double()
        inverse = torch.linalg.inv(exact) if root.ndim == 2 else 1 / exact
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("root", root.detach().clone(memory_format=torch.contiguous_format))
        self.register_buffer("root_inverse", inverse.to(root.dtype))

    @classmethod
    def from_covariance(cls, covariance: Tensor, mean: Tensor | float = 0.0) -> "Affine":
        """Return the coordinates in which a distribution with this mean and covariance is standard.

        Args:
            covariance: `(d,)`, a diagonal, or a symmetric positive definite matrix `(d, d)`.
            mean: Mean of the event's shape, or a number.
        """
        if not isinstance(covariance, Tensor) or covariance.ndim not in (1, 2) or not covariance.is_floating_point():
            expected = "covariance to be a floating tensor of shape (d,) or (d, d)"
            fix = "Pass variances of shape (d,), or a matrix (d, d), d the number of coordinates of one event."
            raise ValueError(checks.message(expected, checks.describe(covariance), fix))
        if covariance.ndim == 1:
            if not bool((covariance > 0).all() and covariance.isfinite().all()):
                got = f"one of {float(covariance.min()):.3g}"
                raise ValueError(checks.message("variances that are finite and above 0", got, "Correct it."))
            root = covariance.sqrt()
        elif covariance.shape[0] != covariance.shape[1]:
            fix = "Pass variances of shape (d,), or a matrix (d, d)."
            raise ValueError(checks.message("a square covariance", checks.describe(covariance), fix))
        else:
            root = cholesky(covariance)
        return cls(torch.as_tensor(mean, dtype=root.dtype, device=root.device), root)

    @classmethod
    def whitening(cls, samples: Float[Tensor, "sample *event"]) -> "Affine":
        """Return the coordinates in which samples have mean 0 and unit covariance (images: unit variance on average).

        Args:
            samples: `(sample, *event)`. With up to 32 coordinates they are whitened. Rows of more have each coordinate
                scaled to unit variance, images are scaled by one number.
        """
        exact = samples.detach().double()
        mean = exact.mean(0)
        flat = (exact - mean).flatten(1)
        root = flat.square().mean().sqrt()
        if samples.ndim == 2:
            each = flat.square().mean(0).sqrt()
            root = each.where(flat.amax(0) > flat.amin(0), root)  # rounding may leave a constant just off its mean
        if flat.shape[1] <= MAX_WHITENED_SIZE:
            root, failed = torch.linalg.cholesky_ex(flat.T @ flat / len(flat))
            if failed:
                got = "samples whose covariance is not positive definite"
                fix = "Remove constant or duplicated coordinates, or add a little noise to the samples."
                raise ValueError(checks.message("samples that vary in every direction", got, fix))
        return cls(mean, root).to(samples.dtype)  # after the root is inverted

    def forward(self, u: Points) -> Points:
        """Return m + L u."""
        return self.mean.to(u) + self.color(u)

    def inverse(self, x: Points) -> Points:
        """Return L^-1 (x - m)."""
        return self.whiten(x - self.mean.to(x))

    def color(self, z: Points) -> Points:
        """Return L z, which has the covariance C if z is standard normal."""
        return times(self.root, z)

    def whiten(self, v: Points) -> Points:
        """Return L^-1 v."""
        return times(self.root_inverse, v)

    def precondition(self, gradient: Points) -> Points:
        """Return C g = L L^T g."""
        return times(self.covariance, gradient)

    def pull_gradient(self, gradient: Points, u: Points) -> Points:
        """Return L^T g."""
        return times(self.root.mT if self.root.ndim == 2 else self.root, gradient)

    def push_gradient(self, gradient: Points, u: Points) -> Points:
        """Return L^-T g."""
        return times(self.root_inverse.mT if self.root.ndim == 2 else self.root_inverse, gradient)

    @property
    def covariance(self) -> Tensor:
        """C = L L^T: a number, a diagonal, or a matrix."""
        return self.root @ self.root.mT if self.root.ndim == 2 else self.root.square()

    def log_volume(self, size: int) -> float:
        """Return log |det L| for events of this many coordinates."""
        diagonal = self.root.diagonal() if self.root.ndim == 2 else self.root
        return float(diagonal.double().log().expand(size).sum())

    def log_det(self, u: Points) -> Float[Tensor, " chain"]:
        """Return log |det L|, the same for every chain."""
        return u.new_full((len(u),), self.log_volume(u[0].numel()))

    def log_det_gradient(self, u: Points) -> float:
        """Return 0."""
        return 0.0

    def extra_repr(self) -> str:
        """Show the shape of L."""
        return f"root of shape {tuple(self.root.shape)}"


class Elementwise(Coordinates):
    """A map that acts on each coordinate separately. A subclass defines dx / du, and the derivative of its log."""

    @abstractmethod
    def slope(self, u: Points) -> Points:
        """Return dx / du; a map with a negative slope also defines `log_slope`."""

    @abstractmethod
    def log_det_gradient(self, u: Points) -> Points:
        """Return d log(dx / du) / du."""

    def pull_gradient(self, gradient: Points, u: Points) -> Points:
        """Return g dx / du."""
        return gradient * self.slope(u)

    def push_gradient(self, gradient: Points, u: Points) -> Points:
        """Return g / (dx / du)."""
        return gradient / self.slope(u)

    def log_slope(self, u: Points) -> Points:
        """Return log |dx / du|."""
        return self.slope(u).log()

    def log_det(self, u: Points) -> Float[Tensor, " chain"]:
        """Return the sum of log |dx / du|."""
        return self.log_slope(u).flatten(1).sum(1)


class Sinh(Elementwise):
    """The map x = m + w sinh(u): long distances in the tails of x are short in u.

    Args:
        mean: m, broadcast to the event's shape.
        scale: w, broadcast to the event's shape, positive.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("scale", scale.detach().clone())

    @classmethod
    def of(cls, samples: Float[Tensor, "sample *event"]) -> "Sinh":
        """Return the map with the median of the samples as m, and their median distance from it as w."""
        mean = samples.detach().median(0).values
        scale = (samples.detach() - mean).abs().median(0).values
        if not (scale > 0).all():
            got = "samples of which at least half are equal"
            fix = "Leave heavy_tails out: such a distribution has no density."
            raise ValueError(checks.message("samples that differ from each other", got, fix))
        return cls(mean, scale)

    def forward(self, u: Points) -> Points:
        """Return m + w sinh(u)."""
        return self.mean.to(u) + self.scale.to(u) * u.sinh()

    def inverse(self, x: Points) -> Points:
        """Return asinh((x - m) / w)."""
        return ((x - self.mean.to(x)) / self.scale.to(x)).asinh()

    def slope(self, u: Points) -> Points:
        """Return w cosh(u)."""
        return self.scale.to(u) * u.cosh()

    def log_det_gradient(self, u: Points) -> Points:
        """Return tanh(u)."""
        return u.tanh()


class SquareRoot(Elementwise):
    """The map with the inverse u = v / (1 + v^2)^(1/4), which is about v near 0 and about sqrt(|v|) far out.

    After `Sinh`, a tail |x|^-a is exp(-(a - 1) |v|) in v, and a Gaussian tail in u.
    """

    def forward(self, u: Points) -> Points:
        """Return v."""
        square = u.square()
        return u * ((square + (square.square() + 4).sqrt()) / 2).sqrt()  # of u^4 (1 + v^2) = v^4

    def inverse(self, x: Points) -> Points:
        """Return x / (1 + x^2)^(1/4)."""
        return x / (1 + x.square()) ** 0.25

    def slope(self, u: Points) -> Points:
        """Return dv / du = (1 + v^2)^(5/4) / (1 + v^2 / 2)."""
        square = self.forward(u).square()
        return (1 + square) ** 1.25 / (1 + square / 2)

    def log_det_gradient(self, u: Points) -> Points:
        """Return d log(dv / du) / du, by the chain rule over v."""
        v = self.forward(u)
        square = v.square()
        return (2.5 * v / (1 + square) - v / (1 + square / 2)) * self.slope(u)


class Log(Elementwise):
    """The map x = b + exp(u), or b - exp(u): numbers above or below a bound b.

    Args:
        bound: b, broadcast to the event's shape.
        sign: 1 for numbers above the bound, -1 for numbers below; broadcast to the event's shape.
    """

    bound: Tensor
    sign: Tensor

    def __init__(self, bound: Tensor, sign: Tensor | None = None) -> None:
        super().__init__()
        sign = torch.ones_like(bound) if sign is None else sign
        if not bool((sign.abs() == 1).all()):
            fix = "Pass 1 for numbers above the bound, -1 for numbers below."
            raise ValueError(checks.message("sign of 1 or -1", sign.tolist(), fix))
        self.register_buffer("bound", bound.detach().clone())
        self.register_buffer("sign", sign.detach().clone())

    def forward(self, u: Points) -> Points:
        """Return b + exp(u), or b - exp(u)."""
        return self.bound.to(u) + self.slope(u)

    def inverse(self, x: Points) -> Points:
        """Return log |x - b|; NaN beyond the bound."""
        return (self.sign.to(x) * (x - self.bound.to(x))).log()

    def slope(self, u: Points) -> Points:
        """Return exp(u), or -exp(u)."""
        return self.sign.to(u) * u.exp()

    def log_slope(self, u: Points) -> Points:
        """Return u."""
        return u

    def log_det_gradient(self, u: Points) -> Points:
        """Return 1."""
        return torch.ones_like(u)


class Logit(Elementwise):
    """The map x = low + (high - low) / (1 + exp(-u)): numbers between two bounds.

    Args:
        low: Lower bound, broadcast to the event's shape.
        high: Upper bound, broadcast to the event's shape.
    """

    low: Tensor
    high: Tensor

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__()
        if not bool((low < high).all()):
            got = f"low={low.tolist()} and high={high.tolist()}"
            raise ValueError(checks.message("low below high", got, "Swap or correct the bounds."))
        self.register_buffer("low", low.detach().clone())
        self.register_buffer("high", high.detach().clone())

    def forward(self, u: Points) -> Points:
        """Return low + (high - low) / (1 + exp(-u)), computed from the nearer bound for precision."""
        low, high = self.low.to(u), self.high.to(u)
        from_low, from_high = low + (high - low) * u.sigmoid(), high - (high - low) * (-u).sigmoid()
        return torch.where(u < 0, from_low, from_high)

    def inverse(self, x: Points) -> Points:
        """Return log(x - low) - log(high - x); NaN beyond the bounds."""
        return (x - self.low.to(x)).log() - (self.high.to(x) - x).log()

    def slope(self, u: Points) -> Points:
        """Return (high - low) exp(u) / (1 + exp(u))^2."""
        return (self.high.to(u) - self.low.to(u)) * u.sigmoid() * (-u).sigmoid()

    def log_slope(self, u: Points) -> Points:
        """Return log(high - low) + u - 2 log(1 + exp(u)), which is finite for every finite u."""
        return (self.high.to(u) - self.low.to(u)).log() + logsigmoid(u) + logsigmoid(-u)

    def log_det_gradient(self, u: Points) -> Points:
        """Return 1 - 2 / (1 + exp(-u))."""
        return 1 - 2 * u.sigmoid()
