"""The random numbers of many steps, drawn at once."""

import torch
from torch import Tensor

from scoremh._shared import rng
from scoremh.proposals import Preconditioned


def colored_noise(proposal: Preconditioned, steps: int, x: Tensor, generator: torch.Generator) -> Tensor:
    """Return L z for every step and chain, `(step, chain, *event)`."""
    z = rng.normal((steps, *x.shape), x, generator)
    return z if proposal.coordinates is None else proposal.color(z.flatten(0, 1)).reshape(z.shape)
