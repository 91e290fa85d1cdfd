"""Exact networks: what every kind of diffusion network would be, had it learned a normal mixture perfectly."""

from collections.abc import Callable

import torch
from torch import Tensor

from scoremh import diffusion, targets
from scoremh.diffusion import DiffusionModel

Net = Callable[[Tensor, Tensor], Tensor]
STEPS = 1000
ABAR = (1 - torch.linspace(1e-4, 0.02, STEPS, dtype=torch.float64)).cumprod(0)
SIGMAS = ((1 - ABAR) / ABAR).sqrt()
ROOT = 0.1 * torch.eye(4, dtype=torch.float64)
MIXTURE = targets.GaussianMixture(
    torch.tensor([0.5, 0.3, 0.2]).double(),
    torch.tensor([[-1.0, 0.0, 0.2, 0.0], [0.6, 0.5, 0.0, -0.4], [0.0, -0.8, 0.3, 0.5]]).double(),
    ROOT + 0.02,
)


def column(value: Tensor, like: Tensor) -> Tensor:
    return value.to(like).reshape(-1, *(1,) * (like.ndim - 1))


def networks_of(target: targets.GaussianMixture | targets.Gaussian, sigmas: Tensor = SIGMAS) -> dict[str, Net]:
    """Return the networks by the names of their adapters, for events of any shape with as many coordinates."""

    def sigma_of(index: Tensor) -> Tensor:
        """Return the noise level of a timestep, between two of them a geometric mean."""
        index = index.double().clamp(0, STEPS - 1)
        low = index.floor().long()
        return torch.lerp(sigmas.log()[low], sigmas.log()[(low + 1).clamp(max=STEPS - 1)], index - low).exp()

    def score(x: Tensor, sigma: Tensor) -> Tensor:
        return target.level_score(x.flatten(1), sigma.to(x))[0].reshape(x.shape)

    def denoiser(x: Tensor, sigma: Tensor) -> Tensor:
        return x + column(sigma, x) ** 2 * score(x, sigma)

    def epsilon(y: Tensor, index: Tensor) -> Tensor:
        sigma = sigma_of(index)
        return -column(sigma, y) * score(y * column((1 + sigma**2).sqrt(), y), sigma)

    def x0(y: Tensor, index: Tensor) -> Tensor:
        sigma = sigma_of(index)
        return denoiser(y * column((1 + sigma**2).sqrt(), y), sigma)

    def v(y: Tensor, index: Tensor) -> Tensor:
        abar = column(1 / (1 + sigma_of(index) ** 2), y)
        return abar.sqrt() * epsilon(y, index) - (1 - abar).sqrt() * x0(y, index)

    def velocity(y: Tensor, time: Tensor) -> Tensor:
        time = torch.where(time > 1, time / STEPS, time).clamp(1e-4, 1 - 1e-4)  # time may be counted in steps
        sigma = time / (1 - time)
        x = y * column(1 + sigma, y)
        return -column(sigma, y) * score(x, sigma) - denoiser(x, sigma)

    def indexed_score(x: Tensor, index: Tensor) -> Tensor:
        return score(x, sigma_of(index))

    return {
        "denoiser": denoiser,
        "epsilon": epsilon,
        "x0": x0,
        "v": v,
        "velocity": velocity,
        "score by index": indexed_score,
        "score by sigma": score,
    }


ADAPTERS: dict[str, Callable[..., DiffusionModel]] = {
    "denoiser": diffusion.from_denoiser,
    "epsilon": lambda net, **settings: diffusion.from_epsilon(net, ABAR, **settings),
    "x0": lambda net, **settings: diffusion.from_x0(net, ABAR, **settings),
    "v": lambda net, **settings: diffusion.from_v(net, ABAR, **settings),
    "velocity": diffusion.from_velocity,
    "score by index": lambda net, **settings: diffusion.from_score(net, SIGMAS, **settings),
    "score by sigma": lambda net, **settings: diffusion.from_score(net, SIGMAS, by="sigma", **settings),
}


def model_of(
    name: str, target: targets.GaussianMixture | targets.Gaussian = MIXTURE, **settings: object
) -> DiffusionModel:
    """Return the exact network of this name in its adapter."""
    return ADAPTERS[name](networks_of(target)[name], **{"variance": target.variance} | settings)
