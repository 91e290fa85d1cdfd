"""Charts of samples and of training, as plotly figures."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scoremh.report.choice import few, limits
from scoremh.report.figures import Figure, axis, clip, colours, figure, literal, packed, series

POINTS = 1000  # of a sample, at most
CELLS = 40  # of a density, along each axis
BINS = 40  # of a histogram
CURVE_POINTS = 300  # of a curve, at most
LOSSES = ("loss", "held_out")  # of what training records
OVERLAID = ("--data", "--series-0")
HOVER = "%{x:.3g}, %{y:.3g}<extra></extra>"


class View(NamedTuple):
    """The part of the plane that a chart shows, and the names of its axes."""

    names: tuple[str, str]
    x: tuple[float, float]
    y: tuple[float, float]

    def axes(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return both axes."""
        return axis(self.names[0], self.x), axis(self.names[1], self.y)

    def outside(self, points: Tensor) -> int:
        """Return the number of points outside the view."""
        low, high = points.new_tensor([self.x, self.y]).T
        return int(((points < low) | (points > high)).any(1).sum())


def view(names: Sequence[str], data: Tensor, other: Tensor) -> View:
    """Return a view that holds nearly all of the data, and of the other points near them."""
    x, y = names
    return View((x, y), limits(data[:, 0], other[:, 0]), limits(data[:, 1], other[:, 1]))


def scatter(points: Tensor, at: View, colour: str) -> Figure:
    """Return points in the plane."""
    return figure([dots(few(points, POINTS), colour)], *at.axes(), hovermode="closest")


def overlay(clouds: Sequence[Tensor], at: View) -> Figure:
    """Return points of the data and of the run's own sampler in one plane."""
    return figure(
        [dots(x, colour) for x, colour in zip(clouds, OVERLAID, strict=True)], *at.axes(), hovermode="closest"
    )


def densities(clouds: Sequence[Tensor], at: View) -> list[Figure]:
    """Return the densities of points in the plane, all in the same shades."""
    area = (at.x[1] - at.x[0]) * (at.y[1] - at.y[0]) / CELLS**2
    offset = torch.arange(CELLS, dtype=torch.float64)
    blur = torch.exp(-(offset[:, None] - offset).square() / 2)  # by one cell
    blur /= blur.sum(0)
    shades = [blur @ counts(x, at) @ blur.T / (max(len(x), 1) * area) for x in clouds]
    top = float(torch.stack(shades).max()) or 1.0
    scale = [[0, "--paper"], [0.5, "--series-0"], [1, "--ink"]]
    near = "%{x:.3g}, %{y:.3g}: density %{z:.3g}<extra></extra>"
    shown = {"type": "heatmap", "zmin": 0, "zmax": top, "colorscale": scale, "showscale": False, "zsmooth": "best"}
    return [figure([{**shown, **grid(at), "z": packed(z), "hovertemplate": near}], *at.axes()) for z in shades]


def histograms(clouds: Sequence[tuple[str, Tensor]], name: str, ends: tuple[float, float]) -> Figure:
    """Return the densities of numbers; the first of them, that of the data, as an area."""
    shades = colours([label for label, _ in clouds])
    curves = [curve(*histogram(x, ends), label, shade) for (label, x), shade in zip(clouds, shades, strict=True)]
    return figure(curves, axis(name, ends), axis("density", rangemode="tozero"), showlegend=True, hovermode="x")


def losses(history: Mapping[str, Sequence[float]]) -> Figure:
    """Return curves over training steps; all but the losses are hidden until they are clicked in the legend."""
    names = [name for name in history if name != "step"]
    steps = torch.tensor(history.get("step", range(len(history[names[0]]))), dtype=torch.float64)
    curves = [_training_curve(steps, history[name], name, i) for i, name in enumerate(names[:8])]
    shown = [history[name] for name in LOSSES if name in history]
    positive = bool(shown) and all(map(_is_positive, shown))
    return figure(curves, axis("step"), axis(type="log" if positive else "linear"), showlegend=True, hovermode="x")


def _is_positive(values: Sequence[float]) -> bool:
    return all(value > 0 for value in values if math.isfinite(value))


def _training_curve(steps: Tensor, values: Sequence[float], name: str, number: int) -> dict[str, Any]:
    """Return a trace of what training recorded, without what is not finite."""
    y = torch.tensor(values, dtype=torch.float64)
    seen = few(torch.stack([steps, y], 1)[y.float().isfinite()], CURVE_POINTS)
    label = literal(name.replace("_", " "))
    mode = "lines" if len(seen) > 1 else "markers"
    curve = {"type": "scatter", "mode": mode, "x": packed(seen[:, 0]), "y": packed(seen[:, 1]), "name": label}
    curve |= {"line": {"color": series(number), "width": 1.6}, "hovertemplate": f"{label} %{{y:.4g}}<extra></extra>"}
    return curve if name in LOSSES else {**curve, "visible": "legendonly"}


def dots(points: Tensor, colour: str, opacity: float = 0.55) -> dict[str, Any]:
    """Return points as a trace."""
    marker = {"color": colour, "size": 4, "opacity": opacity, "line": {"width": 0}}
    ends = {"x": packed(points[:, 0]), "y": packed(points[:, 1])}
    return {"type": "scatter", "mode": "markers", **ends, "marker": marker, "hovertemplate": HOVER}


def curve(x: Tensor, y: Tensor, label: str, colour: str) -> dict[str, Any]:
    """Return a histogram's outline; that of the data as an area."""
    fill = {"fill": "tozeroy"} if colour == "--data" else {}
    line = {"color": colour, "width": 1.6, "shape": "hvh"}
    near = f"{literal(label)} at %{{x:.3g}}: %{{y:.3g}}<extra></extra>"
    curve = {"type": "scatter", "mode": "lines", "x": packed(x), "y": packed(y), "line": line, **fill}
    return {**curve, "name": literal(clip(label, 24)), "hovertemplate": near}


def histogram(x: Tensor, ends: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Return the centres of the bins and the density in each."""
    edges = torch.linspace(*ends, BINS + 1, dtype=torch.float64)
    counts = torch.histogram(x, edges).hist
    return (edges[1:] + edges[:-1]) / 2, counts / max(len(x), 1) / (edges[1] - edges[0])


def counts(points: Tensor, at: View, weight: Tensor | None = None) -> Tensor:
    """Return the number of points in each cell of the plane, `(row, column)`, rows going up."""
    ends = [*at.x, *at.y]
    return torch.histogramdd(points, [CELLS, CELLS], range=ends, weight=weight).hist.T.contiguous()


def grid(at: View) -> dict[str, float]:
    """Return the position of a heatmap's cells, as plotly reads it."""
    wide, high = (at.x[1] - at.x[0]) / CELLS, (at.y[1] - at.y[0]) / CELLS
    return {"x0": at.x[0] + wide / 2, "dx": wide, "y0": at.y[0] + high / 2, "dy": high}
