"""The affine map x = m + L u: means, covariances and whitening."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from scoremh._shared import checks
from scoremh.coordinates.composition import Coordinates, Points

MAX_WHITENED_SIZE = 32  # coordinates up to which samples are whitened; larger events (images) are scaled by one number
MAX_ASYMMETRY = 1e-3  # of a covariance, relative to its largest entry: one that was written with three digits


def cholesky(matrix: Float[Tensor, "*batch d d"], name: str = "covariance") -> Float[Tensor, "*batch d d"]:
    """Return L with L L^T = matrix, computed in float64; refuse one that is not symmetric and positive definite."""
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
    """Return a matrix over the flattened event, a diagonal or a number, times every event."""
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
        """Return the coordinates in which samples have mean 0 and unit covariance; unit variance on average for images.

        Args:
            samples: `(sample, *event)`; whitened up to 32 coordinates, scaled by one number beyond.
        """
        exact = samples.detach().double()
        mean = exact.mean(0)
        flat = (exact - mean).flatten(1)
        root = flat.square().mean().sqrt()
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
        """Return L z: standard normal noise with this covariance."""
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
