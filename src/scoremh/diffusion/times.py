"""What a diffusion network is told of the noise level: sigma itself, a continuous time, or the index of a timestep."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from scoremh._shared import checks

Time = Callable[[Tensor], Tensor]
SNAP = 1e-3  # share of a timestep within which a time is that timestep: float32 loses as much


def flow_time(sigma: Tensor) -> Tensor:
    """Return t = sigma / (1 + sigma), the time of flow matching and rectified flow."""
    return sigma / (1 + sigma)


def log_time(sigma: Tensor) -> Tensor:
    """Return log(sigma) / 4, what Karras et al. (2022) tell a network."""
    return sigma.log() / 4


@dataclass(frozen=True)
class Timesteps:
    """The index of a noise level among those of training; between two of them linear in log sigma.

    Args:
        levels: Noise level of every timestep, rising or falling.
    """

    levels: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse levels that neither rise nor fall."""
        steps = [b - a for a, b in zip(self.levels, self.levels[1:], strict=False)]
        positive = all(math.isfinite(level) and level > 0 for level in self.levels)
        if not steps or not positive or not (min(steps) > 0 or max(steps) < 0):
            fix = "Pass those of training, one per timestep, in the order of the timesteps."
            got = f"{len(self.levels)} levels, {checks.short(list(self.levels))}"
            raise ValueError(checks.message("two or more positive noise levels that rise or fall", got, fix))

    @cached_property
    def _rising(self) -> tuple[Tensor, Tensor]:
        """Logarithms of the levels and their indices, from low to high."""
        levels = torch.tensor(self.levels, dtype=torch.float64).log()
        order = levels.argsort()
        return levels[order], order.double()

    def __call__(self, sigma: Tensor) -> Tensor:
        """Return the index, a fraction between two timesteps."""
        levels, index = (part.to(sigma) for part in self._rising)
        at = sigma.log()
        high = torch.searchsorted(levels, at).clamp(1, len(levels) - 1)
        share = ((at - levels[high - 1]) / (levels[high] - levels[high - 1])).clamp(0, 1)
        time = torch.lerp(index[high - 1], index[high], share)
        nearest = time.round()
        return torch.where((time - nearest).abs() < SNAP, nearest, time)


def from_alphas_cumprod(alphas_cumprod: Tensor | Sequence[float]) -> Timesteps:
    """Return the timesteps of a process that preserves the variance; sigma^2 = (1 - abar) / abar.

    Args:
        alphas_cumprod: abar of every timestep, falling. Timesteps with abar = 0, of noise alone, have no level.
    """
    abar = torch.as_tensor(alphas_cumprod, dtype=torch.float64, device="cpu").flatten()
    if not bool(((abar >= 0) & (abar < 1)).all()):
        fix = "Pass the cumulative product of 1 - beta, such as scheduler.alphas_cumprod."
        raise ValueError(checks.message("alphas_cumprod from 0 to below 1", checks.short(abar.tolist()), fix))
    some = abar[abar > 0]
    return Timesteps(tuple(((1 - some) / some).sqrt().tolist()))
