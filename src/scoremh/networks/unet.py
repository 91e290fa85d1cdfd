r"""A score network for images.

`UNet` is a denoiser preconditioned as in Karras et al. (2022), like `NoiseConditionalMLP`. With noise of standard
deviation sigma, k = sqrt(1 + sigma^2), and a network F whose inputs and targets have unit scale at every level,

    s(x, sigma) = F(x / k, log(sigma) / 4) / (sigma k) - x / k^2

F halves the image several times, with more channels each time, and then doubles it again. At each size, the result from
below is added to the features from the way down. Every convolution has a bias that depends on the noise level.

Pixels should have a mean square of about 1, like mostly dark images in [-1, 1]; standardise other images.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, gelu, interpolate, silu, softplus

from scoremh._shared import checks
from scoremh._shared.algebra import per_chain
from scoremh.networks.layers import convolution, linear

Activation = Literal["silu", "softplus", "gelu"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": silu, "softplus": softplus, "gelu": gelu}
Images = Float[Tensor, "chain channel row column"]
PerChain = Float[Tensor, " chain"]
PerLevel = Float[Tensor, " level"]
"""One number per chain, or one number for all chains."""

FREQUENCIES = 8  # number of frequencies of log(sigma) / 4; the lowest is half a wave per unit
EMBEDDED = 64  # size of the embedding of a noise level
CHANNELS = (16, 32, 64, 128)
TUTORIAL_CHANNELS = (32, 64, 128, 256)
"""Channels of the tutorial's network, which the paper uses; three times the cost of the default."""


class Embedding(nn.Module):
    """An embedding of the logarithm of a noise level: a small network of its sines and cosines."""

    def __init__(self, generator: torch.Generator | None) -> None:
        super().__init__()
        self.first = linear(1 + 2 * FREQUENCIES, EMBEDDED, generator)
        self.second = linear(EMBEDDED, EMBEDDED, generator)

    def forward(self, value: PerLevel) -> Float[Tensor, "level embedded"]:
        """Return the embedding of positive values."""
        c = value.log()[:, None] / 4
        waves = math.pi * torch.arange(1, FREQUENCIES + 1, dtype=c.dtype, device=c.device) * c
        embedded: Tensor = self.second(silu(self.first(torch.cat([c, waves.sin(), waves.cos()], 1))))
        return silu(embedded)


class Block(nn.Module):
    """A convolution with a bias that depends on the noise level, and an activation; added to its input if residual."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        generator: torch.Generator | None,
        activation: Activation = "silu",
        *,
        stride: int = 1,
        residual: bool = False,
    ) -> None:
        super().__init__()
        self.convolution = convolution(inputs, outputs, generator, stride=stride)
        self.bias = linear(EMBEDDED, outputs, generator)
        self.activation, self.residual = activation, residual

    def forward(self, y: Tensor, embedded: Tensor) -> Tensor:
        """Return the channels of the next layer."""
        new = ACTIVATIONS[self.activation](self._convolved(y, self.bias(embedded)))
        return y + new if self.residual else new

    def _convolved(self, y: Tensor, bias: Tensor) -> Tensor:
        """Return the convolution with the bias of the noise level; in one pass if all chains have the same level."""
        layer = self.convolution
        if len(bias) > 1 or layer.bias is None:
            convolved: Tensor = layer(y)
            return convolved + bias[:, :, None, None]
        return conv2d(y, layer.weight, layer.bias + bias[0], layer.stride, layer.padding)


class UNet(nn.Module):
    """A score of images at all noise levels: `net(x, sigma)` is the score of images blurred by noise of level sigma.

    Args:
        event: Shape of one image, (channel, row, column).
        channels: Number of channels at each size of the image; each size has half the rows and columns of the previous.
        activation: "silu", "gelu", or "softplus" as in the paper.
        generator: Random number generator for the initial weights; the same seed gives the same weights.

    Example:
        >>> net = UNet((1, 28, 28), generator=torch.Generator().manual_seed(0))
        >>> net(torch.zeros(5, 1, 28, 28), 0.5).shape
        torch.Size([5, 1, 28, 28])
    """

    def __init__(
        self,
        event: tuple[int, ...],
        channels: Sequence[int] = CHANNELS,
        activation: Activation = "silu",
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.event, self.channels, self.activation = image_shape(event), tuple(channels), activation
        for number in self.channels:
            checks.count(number, "channels")
        checks.one_of(activation, get_args(Activation), "activation")
        block = partial(Block, generator=generator, activation=activation)
        self.embedding = Embedding(generator)
        self.first = block(self.event[0], self.channels[0])
        self.halved = nn.ModuleList(block(a, b, stride=2) for a, b in pairwise(self.channels))
        self.deeper = nn.ModuleList(block(b, b, residual=True) for b in self.channels[1:])
        self.narrowed = nn.ModuleList(convolution(b, a, generator, size=1) for a, b in pairwise(self.channels))
        self.joined = nn.ModuleList(block(a, a) for a in self.channels[:-1])
        self.last = convolution(self.channels[0], self.event[0], generator)
        nn.init.zeros_(self.last.weight)  # the initial score is that of a blurred standard normal
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a fifth faster on a CPU

    @property
    def config(self) -> dict[str, object]:
        """The arguments to build such a network."""
        return {"event": list(self.event), "channels": list(self.channels), "activation": self.activation}

    def raw(self, y: Images, sigma: PerLevel) -> Images:
        """Return F, for inputs and outputs of unit scale."""
        embedded = self.embedding(sigma)
        y = self.first(y, embedded)
        beside = []
        for halve, deepen in zip(self.halved, self.deeper, strict=True):
            beside.append(y)
            y = deepen(halve(y, embedded), embedded)
        for narrow, join in zip(reversed(self.narrowed), reversed(self.joined), strict=True):
            same = beside.pop()
            y = join(same + interpolate(narrow(y), size=same.shape[2:]), embedded)
        out: Tensor = self.last(y)
        return out

    def forward(self, x: Images, sigma: Tensor | float) -> Images:
        """Return the score at noise level sigma, a number or one per chain."""
        level, k = level_and_scale(x, sigma)
        return self.raw(x / per_chain(k, x), level) / per_chain(level * k, x) - x / per_chain(k.square(), x)


def image_shape(event: Sequence[int]) -> tuple[int, int, int]:
    """Return the shape of an image; raise an error unless it is (channel, row, column)."""
    if len(event) != 3:
        fix = "Pass the shape of one image, such as (1, 28, 28)."
        raise ValueError(checks.message("an event of shape (channel, row, column)", tuple(event), fix))
    for size in event:
        checks.count(size, "event size")
    channel, row, column = event
    return channel, row, column


def level_and_scale(x: Images, sigma: Tensor | float) -> tuple[PerLevel, PerLevel]:
    """Return sigma and k = sqrt(1 + sigma^2), one per chain or one for all chains."""
    level = torch.as_tensor(sigma, dtype=x.dtype, device=x.device).reshape(-1)
    return level, (1 + level.square()).sqrt()
