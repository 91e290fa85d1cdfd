"""The random numbers of many steps, drawn at once."""

from typing import Literal

import torch
from torch import Tensor

from scoremh._shared import rng
from scoremh.proposals import Preconditioned
from scoremh.types import Balance


def colored_noise(proposal: Preconditioned, steps: int, x: Tensor, generator: torch.Generator) -> Tensor:
    """Return L z for every step and chain, `(step, chain, *event)`."""
    z = rng.normal((steps, *x.shape), x, generator)
    return z if proposal.coordinates is None else proposal.color(z.flatten(0, 1)).reshape(z.shape)


def ratio_thresholds(balance: Balance | Literal["direct"], log_uniform: Tensor) -> Tensor:
    """Return what log r has to exceed to be accepted: log u by Metropolis, logit u by Barker."""
    return log_uniform if balance == "metropolis" else log_uniform - (-log_uniform.expm1()).log()
