"""Other people's diffusion networks as one kind of object: the scores of all noise levels.

Every adapter returns a `DiffusionModel`. A network is called as `net(input, time)` with inputs `(chain, *event)` and
one time per chain, in its own dtype and on its own device.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict, Unpack, get_args

import torch
from torch import Tensor, nn

from scoremh._shared import checks
from scoremh.diffusion.model import DiffusionModel, Network, event_like
from scoremh.diffusion.predictions import DENOISER, EPSILON, SCORE, VELOCITY, X0, Prediction, V
from scoremh.diffusion.times import Time, Timesteps, flow_time, from_alphas_cumprod

By = Literal["index", "sigma"]
EDM_RANGE = 0.002, 80.0  # Karras et al. (2022), table 1
EDM_SIGMA_DATA = 0.5
FLOW_RANGE = 0.01, 100.0  # t from 0.0099 to 0.9901


class Settings(TypedDict, total=False):
    """Settings that every adapter takes, by keyword."""

    noise_level: float
    """Noise level at which the model itself is read; the lowest by default."""
    variance: float
    """Variance of the data, a mean over their coordinates; 1 by default."""
    mean: Tensor | float
    """Mean of the data, for `log_density`; 0 by default."""
    max_rows: int
    """Most rows in one call of the network, to bound its memory; all at once by default."""
    probes: int
    """Number of random directions of an estimated divergence; an exact one by default."""
    like: Tensor | Sequence[int]
    """Shape of an event, or samples of the data, to check the wrapping on at once, and not when the first points come.
    With samples the check sees more. A `Sampler` starts its chains in this shape."""


class TimestepSettings(Settings, total=False):
    """Settings of adapters for networks that are told a timestep, by keyword: `Settings` and one more."""

    continuous_time: bool
    """Whether the network takes times between two timesteps, as floats, the default; if not, it is called with whole
    numbers, and its answers at both are mixed."""


def from_denoiser(
    net: Network, noise_range: tuple[float, float] = EDM_RANGE, **settings: Unpack[Settings]
) -> DiffusionModel:
    """Adapt a denoiser, `net(x, sigma) = E[x0 | x0 + sigma z = x]`.

    Args:
        net: Network or function.
        noise_range: Lowest and highest noise level that it knows.
        settings: Settings of the model, see `Settings`.

    Example:
        >>> def denoise(x, sigma):  # of standard normal events
        ...     return x / (1 + sigma[:, None] ** 2)
        >>> model = from_denoiser(denoise, (0.01, 50.0))
        >>> model.at(2.0).score(torch.ones(1, 2))
        tensor([[-0.2000, -0.2000]])
    """
    return built(net, DENOISER, torch.clone, noise_range, **settings)


def from_edm(
    net: Network, noise_range: tuple[float, float] = EDM_RANGE, **settings: Unpack[Settings]
) -> DiffusionModel:
    """Adapt a network of Karras et al. (2022) with its preconditioning: `net(x, sigma)` is a denoiser.

    Args:
        net: Network; the variance of the data is that of its `sigma_data`, or 0.25.
        noise_range: Lowest and highest noise level that it knows.
        settings: Settings of the model, see `Settings`.
    """
    settings.setdefault("variance", float(getattr(net, "sigma_data", EDM_SIGMA_DATA)) ** 2)
    return from_denoiser(net, noise_range, **settings)


def from_epsilon(
    net: Network, alphas_cumprod: Tensor | Sequence[float], **settings: Unpack[TimestepSettings]
) -> DiffusionModel:
    """Adapt a network that predicts the noise: `net(sqrt(abar) x0 + sqrt(1 - abar) z, timestep)` is z.

    Args:
        net: Network.
        alphas_cumprod: abar of every timestep.
        settings: Settings of the model, see `TimestepSettings`.
    """
    return discrete(net, EPSILON, from_alphas_cumprod(alphas_cumprod), **settings)


def from_x0(
    net: Network, alphas_cumprod: Tensor | Sequence[float], **settings: Unpack[TimestepSettings]
) -> DiffusionModel:
    """Adapt a network that predicts the data: `net(sqrt(abar) x0 + sqrt(1 - abar) z, timestep)` is x0.

    Args:
        net: Network.
        alphas_cumprod: abar of every timestep.
        settings: Settings of the model, see `TimestepSettings`.
    """
    return discrete(net, X0, from_alphas_cumprod(alphas_cumprod), **settings)


def from_v(
    net: Network, alphas_cumprod: Tensor | Sequence[float], **settings: Unpack[TimestepSettings]
) -> DiffusionModel:
    """Adapt a network that predicts v = sqrt(abar) z - sqrt(1 - abar) x0 (Salimans and Ho 2022).

    Args:
        net: Network, called as `net(sqrt(abar) x0 + sqrt(1 - abar) z, timestep)`.
        alphas_cumprod: abar of every timestep.
        settings: Settings of the model, see `TimestepSettings`.
    """
    return discrete(net, V, from_alphas_cumprod(alphas_cumprod), **settings)


def from_velocity(
    net: Network, noise_range: tuple[float, float] = FLOW_RANGE, **settings: Unpack[Settings]
) -> DiffusionModel:
    """Adapt a network of flow matching or rectified flow: `net((1 - t) x0 + t z, t)` is z - x0; sigma = t / (1 - t).

    Where time runs from noise to data, pass `lambda x, t: -net(x, 1 - t)`.

    Args:
        net: Network.
        noise_range: Lowest and highest noise level to use; t = 0.0099 to 0.9901 by default.
        settings: Settings of the model, see `Settings`.
    """
    return built(net, VELOCITY, flow_time, noise_range, **settings)


def from_score(
    net: Network, sigmas: Tensor | Sequence[float], *, by: By = "index", **settings: Unpack[Settings]
) -> DiffusionModel:
    """Adapt a network that is a score: `net(x0 + sigma z, index or sigma)` (NCSN, variance exploding).

    Args:
        net: Network.
        sigmas: Noise levels of training, in the order of their indices.
        by: "index" where the network is told the index of a level, a whole number; "sigma" where it is told sigma.
        settings: Settings of the model, see `Settings`.
    """
    checks.one_of(by, get_args(By), "by")
    levels = tuple(float(sigma) for sigma in sigmas)
    if by == "index":
        return discrete(net, SCORE, Timesteps(levels), continuous_time=False, **settings)
    return built(net, SCORE, torch.clone, (min(levels), max(levels)), **settings)


def discrete(
    net: Network, prediction: Prediction, time: Timesteps, **settings: Unpack[TimestepSettings]
) -> DiffusionModel:
    """Return the model of a network with timesteps.

    Args:
        net: Network.
        prediction: What it predicts.
        time: Its timesteps.
        settings: Settings of the model, see `TimestepSettings`.
    """
    return built(net, prediction, time, (min(time.levels), max(time.levels)), **settings)


def built(
    net: Network,
    prediction: Prediction,
    time: Time,
    noise_range: tuple[float, float],
    **settings: Unpack[TimestepSettings],
) -> DiffusionModel:
    """Return the model of a network, having refused a random one, and checked its wrapping where the event is known.

    Args:
        net: Network.
        prediction: What it predicts.
        time: Function from sigma to what the network is told of it.
        noise_range: Lowest and highest noise level.
        settings: Settings of the model, see `TimestepSettings`.
    """
    if not callable(net):
        fix = "Pass a network or a function of x and a time."
        raise TypeError(checks.message("a network to call", checks.describe(net), fix))
    if isinstance(net, nn.Module) and any(part.training and _mixes_or_draws(part) for part in net.modules()):
        got = "one in training mode, with dropout or batch norm"
        raise ValueError(checks.message("a network in evaluation mode", got, "Call net.eval() first."))
    like = settings.pop("like", None)
    event = None if like is None else event_like(like, net)
    settings.setdefault("noise_level", noise_range[0])
    model = DiffusionModel(net, prediction, time, noise_range, event=event, **settings)  # type: ignore[misc]
    if like is not None:
        model.check(like)
    return model


def _mixes_or_draws(part: nn.Module) -> bool:
    """Return whether a layer in training mode mixes the rows of a batch, or answers at random."""
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return part.p > 0
    return isinstance(part, nn.modules.batchnorm._BatchNorm)
