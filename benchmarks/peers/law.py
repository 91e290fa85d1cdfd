r"""Two normal distributions with one covariance, and the two networks that know it exactly.

With means +-m on the first axis, variances v and a = m . (x / v),

    log p = -x . (x / v) / 2 + log(2 cosh a),    grad log p = (m tanh(a) - x) / v

Both fit into networks with two hidden layers: copies of one unit in the first, pairs in the second that let it pass,
softplus(z) - softplus(-z) = z. No weight is 0, so that they cost what learned networks of their size cost, and both
describe one distribution to rounding errors: no sampler is judged by how well its network was fitted. Blurred by noise
of level sigma, v becomes v + sigma^2 and nothing else changes.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

MODE = 1.5  # standard deviations from the middle to a mode
TRUTH_DRAWS, TRUTH_SEED = 50_000, 12345  # means of functionals to 0.0045 standard deviations
NARROWEST = 0.5  # standard deviation of the narrowest coordinate; the widest has 1

Numbers = NDArray[np.float64]


class Law(NamedTuple):
    """The distribution in so many dimensions, and the width of the networks that know it."""

    dimension: int
    hidden: int

    @property
    def label(self) -> str:
        return f"{self.dimension} dimensions"

    @property
    def variances(self) -> Tensor:
        return torch.logspace(0, 2 * math.log10(NARROWEST), self.dimension)

    @property
    def mean(self) -> Tensor:
        return MODE * torch.eye(self.dimension)[0]

    def sample(self, n: int, seed: int) -> Tensor:
        """Return exact draws."""
        generator = torch.Generator().manual_seed(seed)
        signs = torch.randint(2, (n, 1), generator=generator).mul(2).sub(1)
        return signs * self.mean + self.variances.sqrt() * torch.randn(n, self.dimension, generator=generator)

    def functionals(self, x: Tensor) -> Numbers:
        """Return the functions to compare chains by: place along the modes, its sign, two coordinates, |x|^2, log p."""
        square = x.square()
        along = x[..., 0]
        log_density = -(square / self.variances).sum(-1) / 2 + (MODE * along).cosh().log()
        parts = along, along.sign(), x[..., 1], x[..., -1], square.sum(-1), log_density
        values: Numbers = torch.stack(parts, -1).double().numpy()
        return values

    def truth(self) -> tuple[Numbers, Numbers]:
        """Return means and standard deviations of the functionals, from exact draws."""
        values = self.functionals(self.sample(TRUTH_DRAWS, TRUTH_SEED))
        return values.mean(0), values.std(0)


class Score(nn.Module):
    """The score, of the distribution itself or blurred by noise."""

    def __init__(self, law: Law) -> None:
        super().__init__()
        self.first, self.second, self.last = _layers(law, law.dimension)
        self.variances = law.variances
        with torch.no_grad():
            self.first.weight.copy_(law.mean + 1e-20)  # no weight is 0
            self.last.weight.mul_(law.mean[:, None] + 1e-20)
        self.requires_grad_(False)

    def forward(self, x: Tensor, sigma: Tensor | None = None) -> Tensor:
        v = self.variances if sigma is None else self.variances + sigma.reshape(-1, 1).square()
        hidden = nn.functional.softplus(self.second(self.first(x / v).tanh()))
        score: Tensor = (self.last(hidden) - x) / v
        return score


class LogDensity(nn.Module):
    """The log density, up to a constant."""

    def __init__(self, law: Law) -> None:
        super().__init__()
        self.first, self.second, self.last = _layers(law, 1)
        self.variances = law.variances
        with torch.no_grad():  # log(2 cosh a) is the mean of softplus(2a) and softplus(-2a)
            self.first.weight.copy_(2 * _signs(law.hidden)[:, None] * (law.mean / law.variances + 1e-20))
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.softplus(self.second(nn.functional.softplus(self.first(x))))
        log_density: Tensor = self.last(hidden)[..., 0] - (x.square() / self.variances).sum(-1) / 2
        return log_density


def _signs(hidden: int) -> Tensor:
    return torch.ones(hidden // 2).repeat(2).mul_(torch.tensor([1.0, -1.0]).repeat_interleave(hidden // 2))


def _layers(law: Law, outputs: int) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    """Return layers that give every output the mean of the units of the first."""
    first, second, last = (
        nn.Linear(law.dimension, law.hidden),
        nn.Linear(law.hidden, law.hidden),
        nn.Linear(law.hidden, outputs),
    )
    with torch.no_grad():
        for layer in (first, second, last):
            layer.bias.zero_()
        second.weight.copy_(_signs(law.hidden)[:, None] / law.hidden)
        last.weight.copy_(_signs(law.hidden) * 2 / law.hidden)
    return first, second, last
