"""Priors, observations and their posteriors, all known."""

import itertools
import math
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import Tensor

from scoremh import diffusion, targets
from scoremh.diffusion import Conditional, DiffusionModel

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
MANY_DIMENSIONS = 256, 128  # of the ten components, and of their observation


@dataclass(frozen=True)
class Observed:
    """A mixture prior of equal isotropic components, a linear observation y = A x + std z, and the posterior."""

    prior: Mixture
    matrix: Tensor
    y: Tensor
    std: float

    @classmethod
    def published(cls, d: int, observations: int, seed: int, weights: Tensor | None = None) -> "Observed":
        """Return a problem of the benchmark of MCGdiff (Cardoso et al. 2024), of random numbers of our own."""
        g = torch.Generator().manual_seed(seed)
        axis = SPACING * torch.arange(-2, 3).double()
        means = -torch.cartesian_prod(axis, axis).repeat(1, d // 2)
        own = torch.randn(len(means), generator=g, dtype=torch.float64).square()
        weights = own / own.sum() if weights is None else weights
        left, _, right = torch.linalg.svd(
            torch.randn(observations, d, generator=g, dtype=torch.float64), full_matrices=False
        )
        values = torch.rand(observations, generator=g, dtype=torch.float64).sort(descending=True).values
        matrix = left @ values.diag() @ right
        std = float(torch.rand((), generator=g, dtype=torch.float64) * values.max())
        prior = Mixture(weights, means, torch.ones(len(means), 1, dtype=torch.float64))
        noise = std * torch.randn(observations, generator=g, dtype=torch.float64)
        return cls(prior, matrix, matrix @ prior.sample(1, 0.0, g)[0] + noise, std)

    @classmethod
    def many_modes(cls, seed: int) -> "Observed":
        """Return a problem of interacting particle guidance (2026): ten components in many dimensions."""
        g = torch.Generator().manual_seed(seed)
        d, observations = MANY_DIMENSIONS
        means = 1.3 * (2 * torch.rand(10, d, generator=g, dtype=torch.float64) - 1)
        means = means - means.mean(0)
        variance = 1 - float(means.square().mean())
        prior = Mixture(torch.full((10,), 0.1).double(), means, torch.full((10, 1), variance, dtype=torch.float64))
        matrix = torch.randn(observations, d, generator=g, dtype=torch.float64)
        matrix = matrix / matrix.norm(dim=1, keepdim=True)
        noise = math.sqrt(0.1) * torch.randn(observations, generator=g, dtype=torch.float64)
        return cls(prior, matrix, matrix @ prior.sample(1, 0.0, g)[0] + noise, math.sqrt(0.1))

    @property
    def variance(self) -> float:
        """The variance of a component of the prior."""
        return float(self.prior.variances[0])

    @property
    def likelihood(self) -> targets.LinearObservation:
        """The likelihood of the observation."""
        return targets.linear_observation(self.matrix.to(self.dtype), self.y.to(self.dtype), self.std)

    @property
    def model(self) -> DiffusionModel:
        """The prior as a diffusion model, from .01 times its width to 10 times that in its widest direction."""
        middle = self.prior.weights @ self.prior.means
        away = self.prior.weights.sqrt()[:, None] * (self.prior.means - middle)
        variance = self.variance + float(away.square().sum(0).mean())
        widest = math.sqrt(self.variance + float(torch.linalg.matrix_norm(away, 2)) ** 2)
        like = self.prior.sample(500, 0.0, torch.Generator().manual_seed(0)).to(self.dtype)
        span, middle = (0.01 * variance**0.5, 10 * widest), middle.to(self.dtype)
        return diffusion.from_denoiser(self.prior.denoised, span, variance=variance, mean=middle, like=like)

    @property
    def dtype(self) -> torch.dtype:
        """float32 in many dimensions, for speed."""
        return torch.float32 if self.matrix.shape[1] > 256 else torch.float64

    def covariance(self, sigma: float) -> Tensor:
        """Return the covariance of a component of the posterior at a noise level."""
        eye = torch.eye(self.matrix.shape[1], dtype=torch.float64)
        wide = self.std**2 * torch.eye(len(self.matrix), dtype=torch.float64) + sigma**2 * self.matrix @ self.matrix.mT
        covariance: Tensor = torch.linalg.inv(
            eye / (self.variance + sigma**2) + self.matrix.mT @ torch.linalg.solve(wide, self.matrix)
        )
        return (covariance + covariance.mT) / 2

    @property
    def log_joint(self) -> Tensor:
        """The log of weight times evidence of every component."""
        eye = torch.eye(len(self.matrix), dtype=torch.float64)
        seen = torch.distributions.MultivariateNormal(
            self.prior.means @ self.matrix.mT, self.variance * self.matrix @ self.matrix.mT + self.std**2 * eye
        )
        log_joint: Tensor = self.prior.weights.log() + seen.log_prob(self.y)
        return log_joint

    def draws(self, n: int, generator: torch.Generator) -> Tensor:
        """Return exact draws of the posterior."""
        covariance = self.covariance(0.0)
        means = (self.prior.means / self.variance + self.matrix.mT @ self.y / self.std**2) @ covariance
        which = torch.multinomial(self.log_joint.softmax(0), n, replacement=True, generator=generator)
        z = torch.randn(n, means.shape[1], generator=generator, dtype=torch.float64)
        draws: Tensor = means[which] + z @ torch.linalg.cholesky(covariance).mT
        return draws


@dataclass(frozen=True)
class Singles:
    """Posteriors of theta given one observation each, mixtures with the same covariances, and that given all.

    Args:
        means: Means of the components of every single posterior, `(observation, component, d)`.
        log_weights: Logarithms of the weights of these components, `(observation, component)`.
        covariances: Covariances of the components, `(component, d, d)`.
        prior: Prior distribution of theta.
        truth: Posterior given all observations.
        scale: Factors to the units of theta.
    """

    means: Tensor
    log_weights: Tensor
    covariances: Tensor
    prior: targets.Gaussian
    truth: targets.GaussianMixture
    scale: Tensor = field(default_factory=lambda: torch.ones(()))

    @classmethod
    def of(cls, prior: targets.Gaussian, noises: Tensor, n: int, g: torch.Generator) -> "Singles":
        """Return the posteriors of n observations of theta with noise of one of several covariances, equally likely."""
        d, k = len(prior.mean), len(noises)
        theta, which = prior.sample(1, generator=g)[0], torch.randint(k, (n,), generator=g)
        z = torch.randn(n, d, 1, generator=g, dtype=torch.float64)
        x = theta + (torch.linalg.cholesky(noises)[which] @ z)[..., 0]
        own, inverses = torch.linalg.inv(prior.covariance), torch.linalg.inv(noises)
        covariances = torch.linalg.inv(own + inverses)
        pulls = torch.einsum("kij,nj->nki", inverses, x)
        means = torch.einsum("kij,nkj->nki", covariances, own @ prior.mean + pulls)
        log_weights = torch.distributions.MultivariateNormal(prior.mean, prior.covariance + noises).log_prob(x[:, None])
        choices = torch.tensor(list(itertools.product(range(k), repeat=n)))  # component of every observation
        all_covariances = torch.linalg.inv(own + inverses[choices].sum(1))
        all_covariances = (all_covariances + all_covariances.mT) / 2
        chosen = pulls[torch.arange(n), choices].sum(1)
        all_means = torch.einsum("cij,cj->ci", all_covariances, own @ prior.mean + chosen)
        # log int p(theta) prod N(x_i; theta, S_i) = log p(theta) + ... - log posterior, at any theta: at the mean
        at = torch.distributions.MultivariateNormal(all_means[:, None], noises[choices]).log_prob(x).sum(1)
        peak = torch.logdet(all_covariances) / 2
        logs = at + torch.distributions.MultivariateNormal(prior.mean, prior.covariance).log_prob(all_means) + peak
        weights = logs.softmax(0)
        kept = weights > 1e-9
        truth = targets.GaussianMixture(weights[kept] / weights[kept].sum(), all_means[kept], all_covariances[kept])
        return cls(means, log_weights.log_softmax(1), covariances, prior, truth)

    @classmethod
    def normal(cls, d: int, n: int, seed: int) -> "Singles":
        """Return the Gaussian toy of Linhart et al. (2024), with theta in units of the prior's standard deviations."""
        g = torch.Generator().manual_seed(seed)
        mean, scale = 20 * torch.rand(d, generator=g).double() - 10, 25 * torch.rand(d, generator=g).double() + 0.1
        noise = (0.2 * torch.eye(d).double() + 0.8) / torch.outer(scale, scale)
        return replace(cls.of(targets.Gaussian(mean / scale, torch.eye(d).double()), noise[None], n, g), scale=scale)

    @classmethod
    def mixture(cls, d: int, n: int, seed: int) -> "Singles":
        """Return the mixture toy: noise of 2.25 S or S / 9 with S = diag(.6, ..., 1.4)."""
        g, noise = torch.Generator().manual_seed(seed), torch.linspace(0.6, 1.4, d).double().diag()
        prior = targets.Gaussian(torch.zeros(d).double())
        return cls.of(prior, torch.stack([2.25 * noise, noise / 9]), n, g)

    def models(self, error: float, seed: int) -> list[DiffusionModel]:
        """Return the single posteriors as diffusion models of one network.

        Args:
            error: Factor of a random network with values in (-1, 1), which is added to the noise that is predicted.
            seed: Random seed of the weights of this network.
        """
        k, d = self.means.shape[1:]
        values, vectors = torch.linalg.eigh(self.covariances)
        g = torch.Generator().manual_seed(seed)
        first, second = torch.randn(2 * d + 1, 64, generator=g).double(), torch.randn(64, d, generator=g).double()

        def denoised(theta: Tensor, sigma: Tensor, given: Tensor) -> Tensor:
            means, log_weights = given[:, :-k].reshape(-1, k, d), given[:, -k:]
            noise = sigma.reshape(-1, 1, 1).square()
            away = torch.einsum("kij,nki->nkj", vectors, theta[:, None] - means)
            wide = values + noise
            shares = (log_weights - (away.square() / wide + wide.log()).sum(-1) / 2).softmax(1)
            pulled = means + torch.einsum("kij,nkj->nki", vectors, values / wide * away)
            found: Tensor = (shares[..., None] * pulled).sum(1)
            if error == 0:
                return found
            inputs = torch.cat([theta / (1 + sigma.reshape(-1, 1)), means[:, 0] / 10, sigma.reshape(-1, 1).log()], 1)
            return found - error * sigma.reshape(-1, 1) * torch.tanh(torch.tanh(inputs @ first / 4) @ second / 4)

        given = torch.cat([self.means.flatten(1), self.log_weights], 1)
        middle = self.log_weights[0].exp() @ self.means[0]
        variance = float(self.covariances.diagonal(dim1=1, dim2=2).mean())
        width = variance**0.5
        first_posterior = targets.GaussianMixture(self.log_weights[0].exp(), self.means[0], self.covariances)
        model = diffusion.from_denoiser(
            Conditional(denoised, given[:1]),
            (0.01 * width, 10 * width),
            variance=variance,
            mean=middle,
            like=first_posterior.sample(500, generator=g),
        )
        return [model.given(each) for each in given]


def known_model(law: targets.Gaussian | targets.GaussianMixture, g: torch.Generator) -> DiffusionModel:
    """Return a distribution as the diffusion model of a perfect network, which knows scores only."""
    width = law.variance**0.5

    def denoised(x: Tensor, sigma: Tensor) -> Tensor:
        return x + sigma[:, None] ** 2 * law.level_score(x, sigma)[0]

    return diffusion.from_denoiser(
        denoised,
        (0.01 * width, 10 * width),
        variance=law.variance,
        mean=law.coordinates.mean,
        like=law.sample(500, generator=g),
    )
