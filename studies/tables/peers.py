"""What one would use instead: a kernel density estimate, a Gaussian copula, and a neural spline flow.

They know nothing of categories and whole numbers, which are given to them with the noise that `ScoreMH` uses, and are
rounded back; all other columns they see as they are, so that they may break bounds.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scoremh._shared import rng
from scoremh.coordinates import Affine
from scoremh.estimator.frames import ColumnLayout
from scoremh.estimator.model import jittered
from scoremh.estimator.table import PointMasses, Smooth, Steps, Table
from scoremh.score_matching import LONG_RECIPE
from studies import outsiders

FLOW_RECIPE = replace(LONG_RECIPE, steps=1500)
Peer = Callable[[Tensor, int, torch.Generator], Tensor]


def kernel(u: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Draw from a Gaussian kernel density estimate, whose bandwidth is the best of 15 for a quarter of the rows."""
    from sklearn.neighbors import KernelDensity

    held, kept = u[: len(u) // 4][:1000].numpy(), u[len(u) // 4 :][:5000].numpy()
    width = max(outsiders.BANDWIDTHS, key=lambda one: KernelDensity(bandwidth=one).fit(kept).score(held))
    chosen = u[torch.randint(len(u), (n,), generator=generator)]
    noise: Tensor = width * torch.randn(chosen.shape, generator=generator, dtype=u.dtype)
    return chosen + noise


def copula(u: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Draw from a Gaussian copula with the quantiles of the rows for its margins."""
    normal = torch.distributions.Normal(0.0, 1.0)
    places = (u.argsort(0).argsort(0).double() + 0.5) / len(u)
    correlation = torch.corrcoef(normal.icdf(places).mT).reshape(u.shape[1], -1)
    root = torch.linalg.cholesky(correlation + 1e-6 * torch.eye(u.shape[1], dtype=torch.float64))
    z = torch.randn(n, u.shape[1], generator=generator, dtype=torch.float64) @ root.mT
    rank = normal.cdf(z).clamp(0, 1) * (len(u) - 1)
    ordered, below = u.double().sort(0).values, rank.floor().long()
    low, high = ordered.gather(0, below), ordered.gather(0, (below + 1).clamp(max=len(u) - 1))
    draws: Tensor = low + (rank - below) * (high - low)
    return draws


def spline(u: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Draw from a neural spline flow (zuko) of maximal likelihood."""
    fit = outsiders.trained_flow(u.float(), FLOW_RECIPE, generator)
    with torch.no_grad(), rng.global_fork(rng.seeds(1, generator)[0]):
        draws: Tensor = fit.net().sample((n,))
    return draws


PEERS: dict[str, Peer] = {"kernel": kernel, "copula": copula, "spline flow": spline}


def drawn(name: str, train: Any, n: int, generator: torch.Generator) -> Any:
    """Return rows that a peer draws, as a data frame like that of the training.

    Args:
        name: Name of the peer.
        train: Rows to learn from.
        n: Number of rows to draw.
        generator: Random number generator; the same seed gives the same draws.
    """
    import pandas as pd

    layout = [ColumnLayout.of(train[column]) for column in train]
    numbers = np.stack([one.numbers(train[column]) for one, column in zip(layout, train, strict=True)], 1)
    text = {column: one.ordered for one, column in zip(layout, train, strict=True) if one.levels is not None}
    table = _without_bounds(Table.find(numbers, list(train), None, text))
    points = table.coordinates(numbers, generator).double()
    whitened = Affine.whitening(jittered(points, generator))
    draws = table.numbers(whitened(PEERS[name](whitened.inverse(points), n, generator).double())).numpy()
    columns = {column: one.values(draws[:, j]) for j, (one, column) in enumerate(zip(layout, train, strict=True))}
    return pd.DataFrame(columns)


def _without_bounds(table: Table) -> Table:
    """Return a table whose columns with a density are taken as they are."""
    columns = [Smooth() if isinstance(column, Smooth | PointMasses) else column for column in table.columns]
    steps = [Steps(c.levels, c.step, c.ends, c.peaked, Smooth()) if isinstance(c, Steps) else c for c in columns]
    return Table(table.names, tuple(steps))
