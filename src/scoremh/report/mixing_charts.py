"""Charts of how chains mix: ranks, and autocorrelation."""

import torch
from torch import Tensor

from scoremh.report.charts import HOVER
from scoremh.report.choice import few
from scoremh.report.figures import Figure, axis, figure, literal, packed, series

RANK_BINS, MAX_LAG, MAX_CHAINS = 20, 40, 500
FEW_CHAINS = 5  # up to so many, ranks are by chain; of more, by quarters of the run


def rank_densities(draws: Tensor) -> tuple[list[Tensor], str]:
    """Return the densities of the ranks of parts of chains `(chain, draw)` among all draws, and what a part is.

    Of few chains each is a part; of many, a quarter of the run is: flat where the chains no longer change.
    """
    by_chain = len(draws) <= FEW_CHAINS
    parts = [part.flatten() for part in (draws if by_chain else draws.chunk(4, 1))]
    sizes = [len(part) for part in parts]
    order = torch.cat(parts).argsort().argsort().double() / sum(sizes)
    edges = torch.linspace(0, 1, RANK_BINS + 1, dtype=torch.float64)
    found = [torch.histogram(part, edges).hist * RANK_BINS / len(part) for part in order.split(sizes)]
    return found, "chain" if by_chain else "quarter"


def ranks(draws: Tensor) -> tuple[Figure, str]:
    """Return `rank_densities` as a chart, and what a part is."""
    parts, what = rank_densities(draws)
    centres = (torch.arange(RANK_BINS, dtype=torch.float64) + 0.5) / RANK_BINS
    lines = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": packed(centres),
            "y": packed(part),
            "name": f"{what} {i + 1}",
            "line": {"color": series(i), "width": 1.6, "shape": "hvh"},
            "hovertemplate": HOVER,
        }
        for i, part in enumerate(parts)
    ]
    return figure(lines, axis("rank", (0.0, 1.0)), axis("density", rangemode="tozero"), showlegend=True), what


def autocorrelation(draws: Tensor, names: list[str]) -> Figure:
    """Return the autocorrelation of chains `(chain, draw, column)` around the mean of all: stuck chains show."""
    x = few(draws, MAX_CHAINS)
    x = x - x.mean((0, 1))
    lags = range(min(MAX_LAG, draws.shape[1] - 1) + 1)
    variance = x.square().mean((0, 1))
    found = torch.stack([(x[:, : x.shape[1] - lag] * x[:, lag:]).mean((0, 1)) / variance for lag in lags])
    lines = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x0": 0,
            "dx": 1,
            "y": packed(found[:, i]),
            "name": literal(name),
            "line": {"color": series(i), "width": 1.6},
            "marker": {"size": 4},
            "hovertemplate": "lag %{x}: %{y:.2f}<extra></extra>",
        }
        for i, name in enumerate(names)
    ]
    return figure(lines, axis("lag, in draws"), axis("autocorrelation"), showlegend=len(names) > 1)
