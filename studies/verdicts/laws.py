"""The distributions on which verdicts are tested."""

from collections.abc import Callable

import torch
from torch import Tensor

from scoremh import datasets, targets
from studies.learning import FIGURE_1

Draw = Callable[[int, torch.Generator], Tensor]


def rotated_moons(n: int, generator: torch.Generator) -> Tensor:
    """Return two moons in a plane of eight dimensions, with a normal distribution of width 0.3 in the others."""
    flat = torch.cat([datasets.moons(n, generator=generator), 0.3 * torch.randn(n, 6, generator=generator)], 1)
    turn: Tensor = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0))).Q
    return flat @ turn


def gammas(n: int, generator: torch.Generator) -> Tensor:
    """Return four positive columns that depend on each other, by a normal copula."""
    mixing = torch.tensor([[1.0, 0.6, 0.0, 0.0], [0.0, 0.8, 0.5, 0.0], [0.0, 0.0, 0.8, 0.3], [0.0, 0.0, 0.0, 0.9]])
    return torch.expm1((torch.randn(n, 4, generator=generator) @ mixing).abs()) + 0.05


def regression(n: int, generator: torch.Generator) -> Tensor:
    """Return five columns, the last a curved function of the others with noise that grows."""
    x = torch.randn(n, 4, generator=generator)
    noise = (0.3 + 0.3 * x[:, 2].abs()) * torch.randn(n, generator=generator)
    return torch.cat([x, (x[:, 0] * x[:, 1] + x[:, 3].sin() + noise)[:, None]], 1)


def mixed(n: int, generator: torch.Generator) -> Tensor:
    """Return six columns that depend on each other: two values, a scale of five, counts, sizes, shares, a number."""
    z = torch.randn(n, 3, generator=generator)
    group = (torch.rand(n, generator=generator) < 0.3).float()
    grade = (3 + z[:, 0] + group).round().clamp(1, 5)
    counts = torch.poisson((1 + 0.5 * z[:, 0]).exp(), generator=generator)
    size = (0.4 * z[:, 1] + group).exp()
    share = torch.sigmoid(z[:, 1] - z[:, 2])
    number = 2 * group + 0.7 * z[:, 2] + 0.3 * torch.randn(n, generator=generator)
    return torch.stack([group, grade, counts, size, share, number], 1)


def rare(n: int, generator: torch.Generator) -> Tensor:
    """Return four columns: a rare group, amounts of which a fifth is 0, amounts in tens, a number."""
    group = (torch.rand(n, generator=generator) < 0.04).float()
    z = torch.randn(n, 2, generator=generator)
    amount = torch.where(torch.rand(n, generator=generator) < 0.2, 0.0, (z[:, 0] + 1.5 * group).exp())
    tens = 10 * (30 + 5 * z[:, 0] + 4 * z[:, 1]).round()
    return torch.stack([group, amount, tens, z[:, 1].sinh() + z[:, 0]], 1)


def of(target: targets.GaussianMixture | targets.Gaussian | targets.StudentT | targets.Banana) -> Draw:
    """Return draws of a distribution of `scoremh.targets`."""
    return lambda n, generator: target.sample(n, generator=generator).float()


LINE = targets.GaussianMixture([0.3, 0.7], [[-2.0], [1.5]], [[0.3]])
THREE = targets.GaussianMixture([0.5, 0.3, 0.2], 4 * torch.eye(10)[:3], torch.eye(10))
CORRELATED = targets.Gaussian([0.0] * 5, 0.4 * torch.eye(5) + 0.6)
LAWS: dict[str, tuple[str, Draw]] = {  # the limits were chosen on the first five
    "moons": ("two moons", lambda n, g: datasets.moons(n, generator=g)),
    "mixture": ("Figure 1's mixture", of(FIGURE_1)),
    "correlated": ("correlated normal, 5-D", of(CORRELATED)),
    "student": ("Student's t, 3 degrees of freedom, 3-D", of(targets.StudentT(3.0, [0.0, 1.0, 2.0]))),
    "regression": ("regression, 5-D", regression),
    "pinwheel": ("pinwheel", lambda n, g: datasets.pinwheel(n, generator=g)),
    "line": ("two modes, 1-D", of(LINE)),
    "banana": ("banana", of(targets.Banana())),
    "three": ("three modes, 10-D", of(THREE)),
    "s_curve": ("S-curve, 3-D", lambda n, g: datasets.s_curve(n, generator=g)),
    "rotated": ("two moons rotated in 8-D", rotated_moons),
    "gammas": ("positive columns, 4-D", gammas),
    "mixed": ("counts, shares and groups, 6 columns", mixed),
    "rare": ("a rare group and amounts, 4 columns", rare),
}
DEVELOPED_ON = ("moons", "mixture", "correlated", "student", "regression")
