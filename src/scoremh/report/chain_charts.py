"""Charts of chains, as plotly figures. A figure with a slider comes with its frames, one row of numbers per draw."""

from typing import Any

import torch
from torch import Tensor

from scoremh.report.charts import BINS, CURVE_POINTS, HOVER, POINTS, View, counts, curve, dots, grid, histogram
from scoremh.report.choice import few, limits, spaced
from scoremh.report.figures import Figure, axis, figure, packed, series
from scoremh.report.panels import share

CHAINS, FRAMES = 250, 40  # chains and draws of a slider
TRACED_CHAINS = 4
MIN_MOVES = 5  # moves that began in a cell, for a mean acceptance there


def movie(data: Tensor, draws: Tensor, at: View) -> tuple[Figure, dict[str, Any]]:
    """Return all chains at their first draw, over the data, and their positions at the others."""
    moments = spaced(draws.shape[1], FRAMES)
    seen = few(draws, CHAINS)[:, moments].transpose(0, 1)
    behind, front = dots(few(data, POINTS), "--data", 0.35), dots(seen[0], "--series-0", 0.9)
    frames = {"labels": (moments + 1).tolist(), "x": packed(seen[..., 0]), "y": packed(seen[..., 1])}
    return figure([behind, front], *at.axes(), hovermode="closest"), frames


def histogram_movie(data: Tensor, draws: Tensor, name: str, ends: tuple[float, float]) -> tuple[Figure, dict[str, Any]]:
    """Return histograms of chains of numbers `(chain, draw)` at their first draw, and at the others."""
    moments = spaced(draws.shape[1], FRAMES)
    heights = torch.stack([histogram(x[x.isfinite()], ends)[1] for x in draws[:, moments].T])
    centres = histogram(data, ends)[0]
    shown = {"data": (centres, histogram(data, ends)[1]), "chains": (centres, heights[0])}
    curves = [curve(*shown[label], label, shade) for label, shade in zip(shown, ("--data", series(0)), strict=True)]
    top = 1.05 * max(float(heights.max()), float(shown["data"][1].max()))
    frames = {"labels": (moments + 1).tolist(), "y": packed(heights)}
    return figure(curves, axis(name, ends), axis("density", (0.0, top)), showlegend=True), frames


def traces(draws: Tensor, name: str, data: Tensor) -> Figure:
    """Return traces of a few chains of numbers `(chain, draw)`, over a band that holds the middle 90 % of the data."""
    chosen, step = spaced(len(draws), TRACED_CHAINS), -(-draws.shape[1] // CURVE_POINTS)
    lines = [
        {
            "type": "scatter",
            "mode": "lines",
            "x0": 1,
            "dx": step,
            "y": packed(draws[chain, ::step]),
            "line": {"color": series(i), "width": 1.2},
            "hovertemplate": f"chain {int(chain) + 1}, draw %{{x}}: %{{y:.3g}}<extra></extra>",
        }
        for i, chain in enumerate(chosen)
    ]
    low, high = torch.quantile(few(data, 100_000), data.new_tensor([0.05, 0.95])).tolist()
    band = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": low, "y1": high, "layer": "below"}
    band |= {"fillcolor": "--data", "opacity": 0.15, "line": {"width": 0}}
    ends = limits(data, draws[chosen][draws[chosen].isfinite()])
    return figure(lines, axis("draw"), axis(name, ends), hovermode="closest", shapes=[band])


def traces_note(chains: int, data_name: str) -> str:
    """Return a note on what `traces` shows."""
    return f"{share(TRACED_CHAINS, chains, 'chains')}. The grey band holds the middle 90 % of {data_name}."


def acceptance_by_step(probabilities: Tensor) -> Figure:
    """Return the mean of `(chain, draw)` over chains, and over neighbouring draws where there are many."""
    step = -(-probabilities.shape[1] // CURVE_POINTS)
    means = torch.stack([block.mean() for block in probabilities.split(step, 1)])
    line = {"type": "scatter", "mode": "lines", "x0": 1, "dx": step, "y": packed(means)}
    line |= {"line": {"color": "--series-0", "width": 1.6}, "hovertemplate": "draw %{x}: %{y:.3f}<extra></extra>"}
    return figure([line], axis("draw"), axis("acceptance", (0.0, 1.02)))


def acceptance_by_position(points: Tensor, probabilities: Tensor, at: View) -> Figure:
    """Return the mean acceptance of moves that began in a cell of the plane."""
    found = counts(points, at)
    mean = counts(points, at, probabilities) / found.where(found >= MIN_MOVES, torch.nan)
    shade = {"type": "heatmap", **grid(at), "z": packed(mean), "zmin": 0, "zmax": 1, "colorscale": "Viridis"}
    shade |= {"hovertemplate": "%{x:.3g}, %{y:.3g}: %{z:.2f}<extra></extra>", "hoverongaps": False}
    shade |= {"colorbar": {"thickness": 10, "outlinewidth": 0, "nticks": 6}}
    return figure([shade], *at.axes())


def acceptance_along(values: Tensor, probabilities: Tensor, name: str, ends: tuple[float, float]) -> Figure:
    """Return the mean acceptance of moves that began in a bin of one column."""
    edges = torch.linspace(*ends, BINS + 1, dtype=torch.float64)
    count = torch.histogram(values, edges).hist
    mean = torch.histogram(values, edges, weight=probabilities).hist / count.where(count >= MIN_MOVES, torch.nan)
    line = {"type": "scatter", "mode": "lines+markers", "x": packed((edges[1:] + edges[:-1]) / 2), "y": packed(mean)}
    line |= {"line": {"color": "--series-0", "width": 1.6}, "hovertemplate": HOVER}
    return figure([line], axis(name, ends), axis("acceptance", (0.0, 1.02)))
