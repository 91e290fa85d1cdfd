"""Priors, observations and their posteriors, all known."""

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from scoremh import diffusion, targets
from scoremh.diffusion import DiffusionModel

PROBLEMS = ("inpainting", "deblurring", "linear")
DIMENSIONS = (2, 784)
SIDE = 28
TAU = 0.5  # standard deviation of the observation's noise


@dataclass(frozen=True)
class Mixture:
    """Normal distributions with weights `(k,)`, means `(k, d)`, and variances `(k, d)` or `(k, 1)`."""

    weights: Tensor
    means: Tensor
    variances: Tensor

    def denoised(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Return E[x0 | x0 + sigma z = x], what a perfect denoiser would."""
        weights, means, variances = (part.to(x) for part in (self.weights, self.means, self.variances))
        noise = sigma.reshape(-1, 1).square().to(x)
        if variances.shape[1] == 1:
            wide = variances[:, 0] + noise
            squares = (x.square().sum(1, keepdim=True) - 2 * x @ means.mT + means.square().sum(1)) / wide
            pulls = (weights.log() - (squares + x.shape[1] * wide.log()) / 2).softmax(1) / wide
            return x + noise * (pulls @ means - pulls.sum(1, keepdim=True) * x)
        spread, away = variances + noise[:, None], means - x[:, None]
        shares = (weights.log() - (away.square() / spread + spread.log()).sum(-1) / 2).softmax(1)
        return x + noise * (shares[..., None] * away / spread).sum(1)

    def sample(self, n: int, sigma: float, generator: torch.Generator) -> Tensor:
        """Draw n events with noise of level sigma."""
        which = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        z = torch.randn(n, self.means.shape[1], generator=generator, dtype=torch.float64)
        return self.means[which] + (self.variances[which] + sigma**2).sqrt() * z

    def model(self, generator: torch.Generator) -> DiffusionModel:
        """Return it as a diffusion model."""
        like = self.sample(500, 0.0, generator)
        middle = self.weights @ self.means
        variance = float((self.weights @ (self.variances + (self.means - middle).square())).mean())
        return diffusion.from_denoiser(self.denoised, (0.01, 20.0), variance=variance, mean=middle, like=like)


@cache
def prior(d: int) -> Mixture:
    """Return the prior in the plane, or over images with three smooth means."""
    weights, variances = (torch.tensor(v, dtype=torch.float64) for v in ([0.5, 0.3, 0.2], [[0.25], [0.25], [0.25]]))
    if d == 2:
        means = torch.tensor([[-1.0, 0.0], [0.6, 0.9], [0.8, -0.7]], dtype=torch.float64)
        return Mixture(weights, means, variances)
    side = torch.linspace(-1, 1, SIDE, dtype=torch.float64)
    rows, columns = torch.meshgrid(side, side, indexing="ij")
    places = [(-0.4, -0.4), (0.4, 0.3), (-0.2, 0.5)]
    blobs = [2 * torch.exp(-((rows - a).square() + (columns - b).square()) / 0.2) for a, b in places]
    return Mixture(weights, torch.stack(blobs).flatten(1), variances)


@cache
def operator(problem: str, d: int) -> Tensor:
    """Return A: the upper half of an image, a blur of five pixels, or random projections, an eighth as many."""
    eye = torch.eye(d, dtype=torch.float64)
    if problem == "inpainting":
        return eye[: d // 2]
    if problem == "linear":
        return torch.randn(
            max(1, d // 8), d, generator=torch.Generator().manual_seed(7), dtype=torch.float64
        ) / math.sqrt(d)
    blur = blur_of(2 if d == 2 else SIDE)
    return blur if d == 2 else torch.kron(blur, blur)


def blur_of(n: int) -> Tensor:
    """Return the blur of a row of n pixels, a matrix."""
    apart = (torch.arange(n)[:, None] - torch.arange(n)).double()
    blur = torch.exp(-apart.square() / 2) * (apart.abs() <= 2)
    return blur / blur.sum(1, keepdim=True)


def seen(problem: str, x: Tensor) -> Tensor:
    """Return A x, without its matrix where that is large."""
    d = x.shape[-1]
    if problem == "inpainting":
        return x[..., : d // 2]
    if problem == "linear" or d == 2:
        return x @ operator(problem, d).to(x).mT
    blur = blur_of(SIDE).to(x)
    images = x.reshape(*x.shape[:-1], SIDE, SIDE)
    return (blur @ images @ blur.mT).flatten(-2)


def observed(problem: str, x: Tensor, generator: torch.Generator) -> Tensor:
    """Return noisy observations of events."""
    y = seen(problem, x)
    return y + TAU * torch.randn(y.shape, generator=generator, dtype=torch.float64)


def known_posterior(problem: str, d: int, y: Tensor, sigma: float) -> targets.GaussianMixture:
    """Return the posterior given one observation, where the prior is read at noise level sigma."""
    own, a = prior(d), operator(problem, d)
    eye, means, covariances, log_weights = torch.eye(d, dtype=torch.float64), [], [], []
    for weight, m, variance in zip(own.weights, own.means, own.variances[:, 0] + sigma**2, strict=True):
        covariance = torch.linalg.inv(eye / variance + a.mT @ a / TAU**2)
        covariances.append((covariance + covariance.mT) / 2)
        means.append(covariances[-1] @ (m / variance + a.mT @ y / TAU**2))
        evidence = variance * a @ a.mT + TAU**2 * torch.eye(len(a), dtype=torch.float64)
        log_weights.append(weight.log() + torch.distributions.MultivariateNormal(a @ m, evidence).log_prob(y))
    weights = torch.stack(log_weights).softmax(0).clamp(min=1e-12)
    return targets.GaussianMixture(weights / weights.sum(), torch.stack(means), torch.stack(covariances))


def separated(d: int) -> Mixture:
    """Return two modes that lie far apart, with half of the directions narrow."""
    variances = torch.cat([torch.ones(d - d // 2), torch.full((d // 2,), 0.01)]).double()
    means = torch.zeros(2, d, dtype=torch.float64)
    means[:, 0] = torch.tensor([3.0, -3.0])
    return Mixture(torch.tensor([0.7, 0.3], dtype=torch.float64), means, variances.expand(2, d))


COMPONENTS_PER_AXIS, SPACING = 5, 8.0


@dataclass(frozen=True)
class Observed:
    """A mixture prior of unit covariances, a linear observation y = A x + std z, and the posterior."""

    prior: Mixture
    matrix: Tensor
    y: Tensor
    std: float

    @classmethod
    def published(cls, d: int, observations: int, seed: int) -> "Observed":
        """Return a problem of the benchmark of MCGdiff (Cardoso et al. 2024), of random numbers of our own."""
        g = torch.Generator().manual_seed(seed)
        axis = SPACING * torch.arange(-2, 3).double()
        means = -torch.cartesian_prod(axis, axis).repeat(1, d // 2)
        weights = torch.randn(len(means), generator=g, dtype=torch.float64).square()
        left, _, right = torch.linalg.svd(
            torch.randn(observations, d, generator=g, dtype=torch.float64), full_matrices=False
        )
        values = torch.rand(observations, generator=g, dtype=torch.float64).sort(descending=True).values
        matrix = left @ values.diag() @ right
        std = float(torch.rand((), generator=g, dtype=torch.float64) * values.max())
        prior = Mixture(weights / weights.sum(), means, torch.ones(len(means), 1, dtype=torch.float64))
        noise = std * torch.randn(observations, generator=g, dtype=torch.float64)
        return cls(prior, matrix, matrix @ prior.sample(1, 0.0, g)[0] + noise, std)

    @property
    def model(self) -> DiffusionModel:
        """The prior as a diffusion model, from .01 to 10 times its standard deviation."""
        middle = self.prior.weights @ self.prior.means
        variance = 1 + float((self.prior.weights @ (self.prior.means - middle).square()).mean())
        low, high = 0.01 * variance**0.5, 10 * variance**0.5
        like = self.prior.sample(500, 0.0, torch.Generator().manual_seed(0))
        return diffusion.from_denoiser(self.prior.denoised, (low, high), variance=variance, mean=middle, like=like)

    def covariance(self, sigma: float) -> Tensor:
        """Return the covariance of a component of the posterior at a noise level."""
        eye = torch.eye(self.matrix.shape[1], dtype=torch.float64)
        wide = self.std**2 * torch.eye(len(self.matrix), dtype=torch.float64) + sigma**2 * self.matrix @ self.matrix.mT
        covariance: Tensor = torch.linalg.inv(
            eye / (1 + sigma**2) + self.matrix.mT @ torch.linalg.solve(wide, self.matrix)
        )
        return (covariance + covariance.mT) / 2

    @property
    def log_joint(self) -> Tensor:
        """The log of weight times evidence of every component."""
        eye = torch.eye(len(self.matrix), dtype=torch.float64)
        seen = torch.distributions.MultivariateNormal(
            self.prior.means @ self.matrix.mT, self.matrix @ self.matrix.mT + self.std**2 * eye
        )
        log_joint: Tensor = self.prior.weights.log() + seen.log_prob(self.y)
        return log_joint

    def draws(self, n: int, generator: torch.Generator) -> Tensor:
        """Return exact draws of the posterior."""
        covariance = self.covariance(0.0)
        means = (self.prior.means + self.matrix.mT @ self.y / self.std**2) @ covariance
        which = torch.multinomial(self.log_joint.softmax(0), n, replacement=True, generator=generator)
        z = torch.randn(n, means.shape[1], generator=generator, dtype=torch.float64)
        draws: Tensor = means[which] + z @ torch.linalg.cholesky(covariance).mT
        return draws
