"""What the networks are built of: linear layers whose first weights come from a given generator."""

import math

import torch
from torch import nn

from scoremh._shared import checks, rng

Event = int | tuple[int, ...]


def event_shape(event: Event) -> tuple[int, ...]:
    """Return the shape of one event, given it or its dimension."""
    shape = (event,) if isinstance(event, int) else tuple(event)
    for size in shape:
        checks.count(size, "event size")
    return shape


def linear(inputs: int, outputs: int, generator: torch.Generator | None, *, bias: bool = True) -> nn.Linear:
    """Return a linear layer with the weights that torch's own would have from a global generator in the same state.

    Args:
        inputs: Number of inputs.
        outputs: Number of outputs.
        generator: Random number generator of the weights; the same seed gives the same weights.
        bias: Whether to add a bias.
    """
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias)
    generator = rng.resolve(generator, torch.device("cpu"))
    nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)  # torch's choice: +- 1 / sqrt(inputs)
    if bias:
        nn.init.uniform_(layer.bias, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs), generator=generator)
    return layer
