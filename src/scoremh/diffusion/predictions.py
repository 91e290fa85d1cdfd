r"""What a diffusion network predicts, and how the score follows from it.

In the coordinates x = x0 + sigma z every network F gives the score as

    s(x, sigma) = skip(sigma) x + gain(sigma) F(scale(sigma) x, time)

With abar = 1 / (1 + sigma^2) and t = sigma / (1 + sigma), and D = x + sigma^2 s the denoiser:

| prediction | what F is | its input | score |
|---|---|---|---|
| `DENOISER` | D = E[x0 \| x] | x | (F - x) / sigma^2 |
| `SCORE` | s | x | F |
| `EPSILON` | E[z \| x] | sqrt(abar) x | -F / sigma |
| `X0` | D | sqrt(abar) x | (F - x) / sigma^2 |
| `V` | sqrt(abar) E[z \| x] - sqrt(1 - abar) D | sqrt(abar) x | -abar x - sqrt(abar) F / sigma |
| `VELOCITY` | E[z \| x] - D | (1 - t) x | -(1 - t) (x + F) / sigma |
| `preconditioned` | what Karras et al. (2022) precondition | x / sqrt(sigma^2 + sigma_data^2) | see there |
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Coefficient = Callable[[Tensor], Tensor]


class Prediction(NamedTuple):
    """What a network predicts."""

    name: str
    scale: Coefficient
    """Factor of x at the input of the network, a function of sigma."""
    skip: Coefficient
    """Factor of x in the score."""
    gain: Coefficient
    """Factor of the network's output in the score."""

    def factors(self, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scale, skip and gain at noise levels."""
        return self.scale(sigma), self.skip(sigma), self.gain(sigma)


def root_abar(sigma: Tensor) -> Tensor:
    """Return sqrt(abar), the factor of x0 where the variance is preserved."""
    return (1 + sigma.square()).rsqrt()


DENOISER = Prediction("a denoiser", torch.ones_like, lambda sigma: -(sigma**-2), lambda sigma: sigma**-2)
SCORE = Prediction("a score", torch.ones_like, torch.zeros_like, torch.ones_like)
EPSILON = Prediction("an epsilon network", root_abar, torch.zeros_like, lambda sigma: -1 / sigma)
X0 = Prediction("an x0 network", root_abar, DENOISER.skip, DENOISER.gain)
V = Prediction(
    "a v network", root_abar, lambda sigma: -1 / (1 + sigma.square()), lambda sigma: -root_abar(sigma) / sigma
)
VELOCITY = Prediction(
    "a velocity network",
    lambda sigma: 1 / (1 + sigma),
    lambda sigma: -1 / (sigma * (1 + sigma)),
    lambda sigma: -1 / (sigma * (1 + sigma)),
)


def preconditioned(sigma_data: float, sign: float = 1.0) -> Prediction:
    """Return the prediction of a network within the preconditioning of Karras et al. (2022).

    D = sigma_data^2 x / w^2 + sigma sigma_data F / w with w^2 = sigma^2 + sigma_data^2, so that the score is
    -x / w^2 + sigma_data F / (sigma w).

    Args:
        sigma_data: Standard deviation of the data.
        sign: Sign of the network's output; -1 where it was trained as v.
    """

    def scale(sigma: Tensor) -> Tensor:
        return (sigma.square() + sigma_data**2).rsqrt()

    return Prediction(
        "a preconditioned network",
        scale,
        lambda sigma: -scale(sigma).square(),
        lambda sigma: sign * sigma_data * scale(sigma) / sigma,
    )
