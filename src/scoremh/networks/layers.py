"""Building blocks of the networks: seeded layers, and inputs of unit scale at every noise level."""

import math

import torch
from torch import Tensor, nn

from scoremh._shared import checks, rng

Event = int | tuple[int, ...]


def event_shape(event: Event) -> tuple[int, ...]:
    """Return the shape of one event, given the shape or the dimension."""
    shape = (event,) if isinstance(event, int) else tuple(event)
    for size in shape:
        checks.count(size, "event size")
    return shape


def linear(inputs: int, outputs: int, generator: torch.Generator | None, *, bias: bool = True) -> nn.Linear:
    """Return a linear layer with torch's default weights, but drawn from this generator."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias)
    generator = rng.resolve(generator, torch.device("cpu"))
    nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)  # torch's choice: +- 1 / sqrt(inputs)
    if bias:
        nn.init.uniform_(layer.bias, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs), generator=generator)
    return layer


def convolution(
    inputs: int, outputs: int, generator: torch.Generator | None, *, size: int = 3, stride: int = 1
) -> nn.Conv2d:
    """Return a convolution that keeps the size of images, or halves it, with weights of He et al. (2015).

    After an activation like the ReLU, outputs have the same variance as inputs, so that no normalisation is needed.
    """
    layer: nn.Conv2d = nn.utils.skip_init(nn.Conv2d, inputs, outputs, size, stride=stride, padding=size // 2)
    nn.init.kaiming_normal_(layer.weight, generator=rng.resolve(generator, torch.device("cpu")))
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]  # not None
    return layer


def preconditioned(flat: Tensor, sigma: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
    """Return sigma and k = sqrt(1 + sigma^2) per chain, and the inputs (x / k, log(sigma) / 4) of a network."""
    level = torch.as_tensor(sigma, dtype=flat.dtype, device=flat.device).reshape(-1, 1)
    scale = (1 + level.square()).sqrt()
    return level, scale, torch.cat([flat / scale, (level.log() / 4).expand(len(flat), 1)], 1)
