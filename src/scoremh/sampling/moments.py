"""Mean and covariance of events that come in batches, in float64 and without keeping them."""

import torch
from torch import Tensor

# Stan's shrinkage of an estimate from n draws: n / (n + 5) of it, and 5 / (n + 5) times 1e-3 of the identity. Ours is
# in the unit of the estimate, so that a target measured in other units has the same shape.
PRIOR_DRAWS, PRIOR_SCALE = 5, 1e-3


class Moments:
    """The moments of all events that were added, over the flattened event.

    Args:
        diagonal: Whether to keep variances only, `(d,)`, in place of a matrix `(d, d)`.
    """

    def __init__(self, *, diagonal: bool) -> None:
        self.diagonal = diagonal
        self.count = 0
        self.mean = torch.zeros(())
        self.scatter = torch.zeros(())

    def add(self, events: Tensor) -> None:
        """Add a batch of events `(n, *event)`."""
        rows = events.detach().flatten(1).double()
        n, mean = len(rows), rows.mean(0)
        # Chan, Golub and LeVeque (1979): the scatter within both parts, and that between their means.
        shift, total = mean - self.mean, self.count + n
        self.scatter = self.scatter + self._square(rows - mean) + self._square(shift[None]) * (self.count * n / total)
        self.mean = self.mean + shift * (n / total)
        self.count = total

    def _square(self, rows: Tensor) -> Tensor:
        return rows.square().sum(0) if self.diagonal else rows.T @ rows

    def covariance(self) -> Tensor | None:
        """Return the covariance, shrunk; None where it is not finite or the events are constant."""
        return self._shrunk(self.scatter / max(1, self.count - 1))

    def inverse_second_moment(self) -> Tensor | None:
        """Return the inverse of the second moment about 0, shrunk; None where it is not finite or 0."""
        shrunk = self._shrunk(self.scatter / max(1, self.count) + self._square(self.mean[None]))
        if shrunk is None or self.diagonal:
            return None if shrunk is None else 1 / shrunk
        values, vectors = torch.linalg.eigh(shrunk)
        if not bool(values[0] > 0):
            return None
        inverse: Tensor = (vectors / values) @ vectors.mT
        return (inverse + inverse.mT).div(2)

    def _shrunk(self, estimate: Tensor) -> Tensor | None:
        diagonal = estimate if self.diagonal else estimate.diagonal()
        unit = diagonal.median()
        if not bool(estimate.isfinite().all() and unit > 0):
            return None
        floor = (PRIOR_DRAWS / (self.count + PRIOR_DRAWS) * PRIOR_SCALE * unit).expand(len(diagonal))
        weight = self.count / (self.count + PRIOR_DRAWS)
        return weight * estimate + (floor if self.diagonal else floor.diag())


def geometric_mean(covariance: Tensor, precision: Tensor) -> Tensor | None:
    """Return C with C P C = S, which is between S and the inverse of P; None where it is not finite.

    Args:
        covariance: S, a diagonal `(d,)` or a matrix `(d, d)`.
        precision: P, of the same shape.
    """
    if covariance.ndim == 1:
        found = (covariance / precision).sqrt()
    else:
        # S = L L^T: C = L (L^T P L)^(-1/2) L^T
        root, failed = torch.linalg.cholesky_ex(covariance)
        values, vectors = torch.linalg.eigh(root.mT @ precision @ root)
        if bool(failed) or not bool(values[0] > 0):
            return None
        half = root @ vectors / values**0.25
        found = half @ half.mT
    return found if bool(found.isfinite().all()) else None
