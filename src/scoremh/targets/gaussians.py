"""Normal distributions and their mixtures.

- `Gaussian`: N(m, C), score = -C^-1 (x - m).
- `GaussianMixture`: sum_k w_k N(m_k, C_k), score = sum_k P(k | x) score_k(x).

A matrix C = L L' enters through its whitening W = L^-1: with u = W (x - m), the quadratic form is |u|^2, its gradient
2 W' u, and x = m + L u makes draws from standard normal u.
"""

import torch
from torch import Generator, Tensor

from scoremh._shared import checks, rng
from scoremh._shared.parameters import ROUNDING, Values, matrices, parameter, shared_dtype
from scoremh.coordinates import cholesky
from scoremh.targets.blurred import Blurrable
from scoremh.targets.distribution import LOG_2PI


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
        # In float64, so that a light component comes as often as its weight says. Without the last sum, which may
        # round to below 1: a uniform above all the others then falls to the last component.
        sums = self.weights.double().cumsum(0)[:-1]
        component = torch.searchsorted(sums, rng.log_uniform((n,), sums, generator).exp())
        for k, (mean, factor) in enumerate(zip(self.means, self._factors, strict=True)):
            x[component == k] = mean + x[component == k] @ factor.mT
        return x
