r"""Normal mixtures as score models: blurred by noise of level sigma, every C_k becomes C_k + sigma^2 I.

With responsibilities r_k(x) and the scores s_k of the components,

    s = sum_k r_k s_k,    div s = sum_k r_k (div s_k + |s_k|^2) - |s|^2
"""

from abc import abstractmethod
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.support import require_event
from scoremh.coordinates import Affine
from scoremh.targets.distribution import LOG_2PI, Distribution

LEVELS = 0.01, 10.0  # lowest and highest noise level that log p is integrated over, in units of the standard deviation


class Blurrable(Distribution):
    """A mixture of normal distributions, with the scores of all its blurred versions (`scoremh.types.ScoreModel`)."""

    @property
    @abstractmethod
    def _components_of(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weights, means and covariances of the components."""

    @abstractmethod
    def _replaced(self, means: Tensor, covariances: Tensor) -> "Blurrable":
        """Return the distribution with other components."""

    @property
    def noise_level(self) -> float:
        """The lowest noise level: log p through noise is that of the distribution blurred by it."""
        return self.noise_range[0]

    @property
    def noise_range(self) -> tuple[float, float]:
        """The noise levels that log p through noise is integrated over."""
        low, high = (level * self.variance**0.5 for level in LEVELS)
        return low, high

    @property
    def variance(self) -> float:
        """The variance, a mean over the coordinates."""
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
        """The same distribution with mean 0."""
        _, means, covariances = self._components_of
        return self._replaced(means - self.event, covariances)

    def at(self, noise_level: float) -> "Blurrable":
        """Return the distribution blurred by noise of this level, N(0, noise_level^2 I).

        Args:
            noise_level: Standard deviation of the noise; 0 leaves the distribution as it is.
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
        laplacian = (shares * (pulls.square() - 1 / wide).sum(-1)).sum(-1)  # of p, over p
        return score, laplacian - score.square().sum(-1)

    @cached_property
    def _spectra(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues `(k, d)` and eigenvectors `(k, d, d)` of the covariances."""
        covariances = self._components_of[2]
        values, vectors = torch.linalg.eigh(covariances.double())
        return values.to(covariances), vectors.to(covariances)
