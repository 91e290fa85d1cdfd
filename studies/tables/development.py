"""Tables on which a default was chosen, the noise level of the kernel, and on which no result is reported."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scoremh import Recipe, Sampler, ScoreFit, diagnostics, fit_score, metrics
from scoremh.networks import NoiseConditionalMLP
from studies.framework import Cell, Record

ROWS, POINTS, LEVELS = 2000, 1000, (0.15, 0.3, 0.6, 1.0, 2.0)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def two_modes(n: int, seed: int) -> Tensor:
    """Return two normal modes, five standard deviations apart and more."""
    g = _seeded(seed)
    second = (torch.rand(n, generator=g) < 0.7).float()[:, None]
    z = torch.randn(n, 3, generator=g)
    return z * torch.tensor([0.5, 1.0, 0.3]) + second * torch.tensor([4.0, 3.0, -3.0])


def six_modes(n: int, seed: int) -> Tensor:
    """Return six normal modes in six dimensions."""
    g = _seeded(seed)
    means = 3 * torch.randn(6, 6, generator=_seeded(99))
    which = torch.randint(6, (n,), generator=g)
    return means[which] + 0.6 * torch.randn(n, 6, generator=g)


def ring(n: int, seed: int) -> Tensor:
    """Return a ring in five dimensions, turned at random."""
    g = _seeded(seed)
    angle = 2 * math.pi * torch.rand(n, generator=g)
    turn = torch.linalg.qr(torch.randn(5, 5, generator=_seeded(98)))[0]
    x = 0.1 * torch.randn(n, 5, generator=g)
    x[:, 0] += angle.cos()
    x[:, 1] += angle.sin()
    turned: Tensor = x @ turn
    return turned


def skewed(n: int, seed: int) -> Tensor:
    """Return correlated columns with a tail on one side."""
    z = torch.randn(n, 4, generator=_seeded(seed))
    a: Tensor = z @ torch.linalg.cholesky(torch.eye(4) * 0.6 + 0.4).mT
    return a + 0.3 * a.square()


DEVELOPMENT: dict[str, Callable[[int, int], Tensor]] = {
    "two_modes": two_modes,
    "blobs6": six_modes,
    "ring5": ring,
    "skew4": skewed,
}


def share_beyond(draws: Tensor, rows: Tensor) -> float:
    """Return the share of draws that lie beyond the range of rows in any coordinate."""
    outside = (draws < rows.amin(0)) | (draws > rows.amax(0))
    return float(outside.any(1).double().mean())


class Level(Cell, kind="level"):
    """The effect of a noise level on a table on which no result is reported."""

    table: str
    level: float

    def measure(self, config: Any, folder: Path) -> Record:
        law = DEVELOPMENT[self.table]
        x, path = law(ROWS, 1), folder / f"{self.table}.safetensors"
        if not path.exists():
            net = NoiseConditionalMLP(x.shape[1], residual=True, generator=_seeded(5))
            fit_score(x, net=net, recipe=Recipe(config.steps), generator=_seeded(0)).save(path)
        sampler = Sampler(ScoreFit.load(path), self.level).tune(200, generator=_seeded(1))
        chains = sampler.sample(POINTS, draws=10, generator=_seeded(2))
        fresh = [law(POINTS, 2), law(POINTS, 3)]
        scale = fresh[0].std(0)
        pairs = [(law(POINTS, 10 + i), law(POINTS, 20 + i)) for i in range(3)]
        floor = sum(float(metrics.w1(a / scale, b / scale)) for a, b in pairs) / len(pairs)
        w1 = sum(float(metrics.w1(chains.last / scale, y / scale)) for y in fresh) / len(fresh)
        r_hat = float(diagnostics.summary(chains).table["r_hat"].max())
        found = {"w1": w1 / floor, "beyond": share_beyond(chains.last, x), "r_hat": r_hat}
        return {name: round(value, 4 if name == "beyond" else 3) for name, value in found.items()}
