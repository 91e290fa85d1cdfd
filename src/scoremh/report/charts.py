"""Charts of samples, training and chains, as plotly figures.

A sampler has the same colour and marker in every picture and on every page (`look`). They depend on its proposal if
that is not a Langevin step, otherwise on its acceptance rule. Colours have a contrast ratio of at least 3 to white and
are distinguishable for colour-blind readers; markers distinguish samplers in grey. A colour that begins with -- is a
property of style.css. A figure with a slider comes with its frames, one row of numbers per draw.
"""

import html
import math
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scoremh.metrics import energy_distance

INK, PAPER, DATA = "#1b1f24", "#ffffff", "#8a929c"
COLOURS = ("#2a6f97", "#e07a1f", "#00a05a", "#53109c", "#7d5800", "#e33bc0", "#0d461d")
BLUE, ORANGE, GREEN, VIOLET, OLIVE, PINK, FOREST = COLOURS
KNOWN = {  # colour and marker by words of a name; the first entry that matches decides
    "exact draws|exact$|samples|fresh|real|original": (DATA, "x"),
    "through noise": (VIOLET, "*"),
    "replica exchange": (FOREST, "h"),
    "reverse diffusion|probability flow": (PINK, "X"),
    "hamiltonian": (VIOLET, "p"),
    "barker": (PINK, "*"),
    "walk|rw": (OLIVE, "d"),
    "pcn": (PINK, "h"),
    "plain ula": (PINK, ">"),
    "ula": (ORANGE, "s"),
    "simpson|line integral|gauss": (GREEN, "D"),
    "taylor": (OLIVE, "<"),
    "potential": (VIOLET, "^"),
    "antisymmetric": (PINK, "v"),
    "free|siamese|score mala|scoremh": (BLUE, "o"),
    "kernel": (OLIVE, "s"),
    "copula": (PINK, "^"),
    "flow": (GREEN, "D"),
    "exact rule|density|mala": (FOREST, "P"),
    "^good$": (GREEN, "o"),
    "^usable$": (ORANGE, "^"),
    "^do not use$": (PINK, "X"),
}


def known_look(name: str) -> tuple[str, str] | None:
    """Return the colour and the marker of a sampler or verdict; None for any other name.

    >>> known_look("MALA, Simpson") == known_look("line integral, learned score") != known_look("ULA")
    True
    >>> known_look("held-out loss")
    """
    found = (look for words, look in KNOWN.items() if re.search(rf"\b(?:{words})\b", name, re.IGNORECASE))
    return next(found, None)


def looks(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return a colour and a marker for every name: fixed ones for a known sampler, unused ones for other names."""
    found = {name: look for name in names if (look := known_look(name))}
    taken = {colour for colour, _ in found.values()}
    spare = [pair for pair in zip(COLOURS, "o^sDv<P", strict=True) if pair[0] not in taken]
    unknown = [name for name in names if name not in found]
    return found | {name: spare[i % len(spare)] for i, name in enumerate(unknown)}


def look(name: str) -> dict[str, str]:
    """Return the colour and the marker of a sampler as keywords of matplotlib: `axis.plot(x, y, **look("ULA"))`."""
    return dict(zip(("color", "marker"), looks([name])[name], strict=True))


def colour_numbers(samplers: Sequence[str]) -> list[int]:
    """Return the number of a colour for each sampler of a report; the run's own sampler comes first and has number 0.

    >>> colour_numbers(["draws", "ULA", "mine", "Score MALA"])
    [0, 1, 2, 3]
    """
    wanted = [BLUE, *((known_look(name) or (DATA, ""))[0] for name in samplers[1:])]
    spare = (colour for colour in COLOURS if colour not in wanted)
    found = [next(spare) if colour == DATA or colour in wanted[:i] else colour for i, colour in enumerate(wanted)]
    return [COLOURS.index(colour) for colour in found]


COMPARED_ROWS = 300  # rows on which columns are compared
SHORTLIST = 12  # columns whose pairs are all compared
CORRELATED_COLUMNS = 1000  # columns whose second moments are compared: the most different ones
MAX_PAIRS = 3


def finite(x: Tensor) -> Tensor:
    """Return the rows that are finite in float32, as float64 on the CPU."""
    x = x.detach().cpu().double()
    return x[x.float().flatten(1).isfinite().all(1)]


def spaced(total: int, most: int) -> Tensor:
    """Return at most `most` of the indices below `total`, evenly spaced, including the first and the last."""
    return torch.arange(total) if total <= most else torch.linspace(0, total - 1, most).round().long()


def few(x: Tensor, most: int) -> Tensor:
    """Return at most `most` rows, evenly spaced."""
    return x[spaced(len(x), most)]


def limits(data: Tensor, other: Tensor) -> tuple[float, float]:
    """Return the range of an axis: nearly all of the data, and nearly all other points within one width of the data."""
    low, high = _inner(data)
    width = high - low or 1.0
    if len(other):
        left, right = _inner(other)
        low, high = max(min(low, left), low - width), min(max(high, right), high + width)
    margin = 0.06 * (high - low or width)
    return low - margin, high + margin


def most_different(data: Tensor, samples: Tensor) -> list[tuple[int, int]]:
    """Return the pairs of columns on which samples and data differ most, the most different one first.

    The difference is the energy distance in units of the data's standard deviations. Every pair has a column that no
    pair before it has. If there are many columns, only the ones whose marginals or second moments differ most are
    compared.
    """
    width = data.shape[1]
    if width == 2 or not len(samples):
        return [(0, 1)]
    scale = data.std(0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    rows = min(COMPARED_ROWS, len(data), len(samples))
    a, b = ((few(x, rows) - data.mean(0)).div(scale).clamp(-10, 10) for x in (data, samples))
    ranked = {pair: energy_distance(a[:, list(pair)], b[:, list(pair)]) for pair in combinations(_shortlist(a, b), 2)}
    chosen: list[tuple[int, int]] = []
    for pair in sorted(ranked, key=lambda pair: -ranked[pair]):
        if len(chosen) < MAX_PAIRS and not {*pair} <= {column for one in chosen for column in one}:
            chosen.append(pair)
    return chosen


def _shortlist(a: Tensor, b: Tensor) -> list[int]:
    """Return columns, half chosen by their marginals (W1) and half by their second moments with other columns."""
    if a.shape[1] <= SHORTLIST:
        return list(range(a.shape[1]))
    apart = (a.sort(0).values - b.sort(0).values).abs().mean(0)
    order = apart.argsort(descending=True, stable=True)[:CORRELATED_COLUMNS]
    moments = [x[:, order].T @ x[:, order] / len(x) for x in (a, b)]
    change = (moments[0] - moments[1]).abs().triu(1)
    pairs = change.flatten().argsort(descending=True, stable=True)[: SHORTLIST // 4]
    joint = torch.cat([pairs // len(order), pairs % len(order)])
    return sorted({*order[: SHORTLIST // 2].tolist(), *order[joint].tolist()})


def _inner(x: Tensor) -> tuple[float, float]:
    """Return the range of nearly all values."""
    low, high = torch.quantile(few(x, 100_000), x.new_tensor([0.001, 0.999])).tolist()
    return low, high


Figure = dict[str, Any]


def share(some: int, every: int, what: str) -> str:
    """Return the number of items as text, and how many of them are shown if not all are."""
    return f"{every:,} {what}" if some >= every else f"{some:,} of {every:,} {what}"


WIDE_RATIO = 1e4  # distance from 0 over standard deviation; above it, float32 has too few digits


def series(number: int) -> str:
    """Return the colour of a curve; the colours of style.css repeat."""
    return f"--series-{number % len(COLOURS)}"


def colours(names: Sequence[str]) -> list[str]:
    """Return the colours of the data, which come first, and of the samplers."""
    return ["--data", *map(series, colour_numbers(names[1:]))]


def clip(text: object, most: int) -> str:
    """Return a text of at most `most` characters; a longer one is cut off."""
    text = str(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def literal(text: str) -> str:
    """Return a text that plotly shows literally: tags, entities and %{...} in hover texts are escaped."""
    return html.escape(clip(text, 40), quote=False).replace("%", "&#37;")


def packed(x: Tensor) -> dict[str, str]:
    """Return numbers in plotly's binary format, a third of the size of their digits; NaN is a gap.

    They are float32, except numbers so far from 0 that float32 cannot distinguish them: times in seconds, for example.
    """
    x = x.detach().cpu().double()
    seen = x[x.isfinite()]
    wide = len(seen) > 1 and bool(seen.abs().max() > WIDE_RATIO * seen.std())
    raw = (x if wide else x.float()).numpy().tobytes()
    code = {"dtype": "f8" if wide else "f4", "bdata": b64encode(raw).decode()}
    return code if x.ndim == 1 else {**code, "shape": ", ".join(map(str, x.shape))}


def axis(title: str = "", limits: Sequence[float] | None = None, **more: Any) -> dict[str, Any]:
    """Return an axis."""
    return {
        "title": {"text": literal(title), "standoff": 8},
        "gridcolor": "--line",
        "linecolor": "--line",
        "zeroline": False,
        "ticks": "",
        "automargin": True,
        "nticks": 6,
        **({} if limits is None else {"range": list(limits)}),
        **more,
    }


def figure(traces: Sequence[dict[str, Any]], x: dict[str, Any], y: dict[str, Any], **layout: Any) -> Figure:
    """Return a figure in the colours of the page, on a transparent background."""
    return {
        "data": list(traces),
        "layout": {
            "xaxis": x,
            "yaxis": y,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "system-ui, sans-serif", "size": 12, "color": "--soft"},
            "margin": {"l": 44, "r": 8, "t": 8, "b": 36},
            "hoverlabel": {"bgcolor": "--paper", "bordercolor": "--line", "font": {"color": "--ink"}},
            "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
            "showlegend": False,
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "--data", "activecolor": "--ink"},
            "uirevision": 1,  # a curve that was hidden by a click in the legend stays hidden
            **layout,
        },
    }


POINTS = 1000  # largest number of points of a sample
CELLS = 40  # cells of a density along each axis
BINS = 40  # bins of a histogram
CURVE_POINTS = 300  # largest number of points of a curve
LOSSES = ("loss", "held_out")  # records of training that are losses
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
    """Return a view of nearly all of the data, and of the other points near them."""
    x, y = names
    return View((x, y), limits(data[:, 0], other[:, 0]), limits(data[:, 1], other[:, 1]))


def scatter(points: Tensor, at: View, colour: str) -> Figure:
    """Return a scatter plot of points in the plane."""
    return figure([dots(few(points, POINTS), colour)], *at.axes(), hovermode="closest")


def overlay(clouds: Sequence[Tensor], at: View) -> Figure:
    """Return a scatter plot of the data with the points of the run's own sampler on top."""
    return figure(
        [dots(x, colour) for x, colour in zip(clouds, OVERLAID, strict=True)], *at.axes(), hovermode="closest"
    )


def densities(clouds: Sequence[Tensor], at: View) -> list[Figure]:
    """Return a density plot of each cloud of points, all on one colour scale."""
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
    """Return histograms of numbers as densities; the first one, for the data, is filled."""
    shades = colours([label for label, _ in clouds])
    curves = [curve(*histogram(x, ends), label, shade) for (label, x), shade in zip(clouds, shades, strict=True)]
    return figure(curves, axis(name, ends), axis("density", rangemode="tozero"), showlegend=True, hovermode="x")


def losses(history: Mapping[str, Sequence[float]]) -> Figure:
    """Return curves over training steps; curves other than losses are hidden until they are clicked in the legend."""
    names = [name for name in history if name != "step"]
    steps = torch.tensor(history.get("step", range(len(history[names[0]]))), dtype=torch.float64)
    curves = [_training_curve(steps, history[name], name, i) for i, name in enumerate(names[:8])]
    shown = [history[name] for name in LOSSES if name in history]
    positive = bool(shown) and all(map(_is_positive, shown))
    return figure(curves, axis("step"), axis(type="log" if positive else "linear"), showlegend=True, hovermode="x")


def _is_positive(values: Sequence[float]) -> bool:
    return all(value > 0 for value in values if math.isfinite(value))


def _training_curve(steps: Tensor, values: Sequence[float], name: str, number: int) -> dict[str, Any]:
    """Return a trace of one record of training, without values that are not finite."""
    y = torch.tensor(values, dtype=torch.float64)
    seen = few(torch.stack([steps, y], 1)[y.float().isfinite()], CURVE_POINTS)
    label = literal(name.replace("_", " "))
    mode = "lines" if len(seen) > 1 else "markers"
    curve = {"type": "scatter", "mode": mode, "x": packed(seen[:, 0]), "y": packed(seen[:, 1]), "name": label}
    curve |= {"line": {"color": series(number), "width": 1.6}, "hovertemplate": f"{label} %{{y:.4g}}<extra></extra>"}
    return curve if name in LOSSES else {**curve, "visible": "legendonly"}


def dots(points: Tensor, colour: str, opacity: float = 0.55) -> dict[str, Any]:
    """Return a trace of points."""
    marker = {"color": colour, "size": 4, "opacity": opacity, "line": {"width": 0}}
    ends = {"x": packed(points[:, 0]), "y": packed(points[:, 1])}
    return {"type": "scatter", "mode": "markers", **ends, "marker": marker, "hovertemplate": HOVER}


def curve(x: Tensor, y: Tensor, label: str, colour: str) -> dict[str, Any]:
    """Return the outline of a histogram; it is filled for the data."""
    fill = {"fill": "tozeroy"} if colour == "--data" else {}
    line = {"color": colour, "width": 1.6, "shape": "hvh"}
    near = f"{literal(label)} at %{{x:.3g}}: %{{y:.3g}}<extra></extra>"
    curve = {"type": "scatter", "mode": "lines", "x": packed(x), "y": packed(y), "line": line, **fill}
    return {**curve, "name": literal(clip(label, 24)), "hovertemplate": near}


def histogram(x: Tensor, ends: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Return the centres of the bins, and the density in each bin."""
    edges = torch.linspace(*ends, BINS + 1, dtype=torch.float64)
    counts = torch.histogram(x, edges).hist
    return (edges[1:] + edges[:-1]) / 2, counts / max(len(x), 1) / (edges[1] - edges[0])


def counts(points: Tensor, at: View, weight: Tensor | None = None) -> Tensor:
    """Return the number of points in each cell of the plane, `(row, column)`, rows going up."""
    ends = [*at.x, *at.y]
    return torch.histogramdd(points, [CELLS, CELLS], range=ends, weight=weight).hist.T.contiguous()


def grid(at: View) -> dict[str, float]:
    """Return the position of a heatmap's cells in plotly's format."""
    wide, high = (at.x[1] - at.x[0]) / CELLS, (at.y[1] - at.y[0]) / CELLS
    return {"x0": at.x[0] + wide / 2, "dx": wide, "y0": at.y[0] + high / 2, "dy": high}


RANK_BINS, MAX_LAG, MAX_CHAINS = 20, 40, 500
FEW_CHAINS = 5  # up to this number of chains, ranks are by chain; beyond it, by quarter of the run


def rank_densities(draws: Tensor) -> tuple[list[Tensor], str]:
    """Return the densities of ranks among all draws of chains `(chain, draw)`, one for each part, and a part's name.

    A part is a chain if there are few chains, otherwise a quarter of the run. All densities are flat if the chains no
    longer change.
    """
    by_chain = len(draws) <= FEW_CHAINS
    parts = [part.flatten() for part in (draws if by_chain else draws.chunk(4, 1))]
    sizes = [len(part) for part in parts]
    order = torch.cat(parts).argsort().argsort().double() / sum(sizes)
    edges = torch.linspace(0, 1, RANK_BINS + 1, dtype=torch.float64)
    found = [torch.histogram(part, edges).hist * RANK_BINS / len(part) for part in order.split(sizes)]
    return found, "chain" if by_chain else "quarter"


def ranks(draws: Tensor) -> tuple[Figure, str]:
    """Return a chart of `rank_densities`, and the name of a part."""
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
    """Return the autocorrelation of chains `(chain, draw, column)` around their common mean: stuck chains show."""
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


CHAINS, FRAMES = 250, 40  # largest numbers of chains and of draws of a slider
TRACED_CHAINS = 4
MIN_MOVES = 5  # moves that begin in a cell; with fewer, no mean acceptance is shown there


def movie(data: Tensor, draws: Tensor, at: View) -> tuple[Figure, dict[str, Any]]:
    """Return a scatter plot of chains at their first draw over the data, and the frames of all draws."""
    moments = spaced(draws.shape[1], FRAMES)
    seen = few(draws, CHAINS)[:, moments].transpose(0, 1)
    behind, front = dots(few(data, POINTS), "--data", 0.35), dots(seen[0], "--series-0", 0.9)
    frames = {"labels": (moments + 1).tolist(), "x": packed(seen[..., 0]), "y": packed(seen[..., 1])}
    return figure([behind, front], *at.axes(), hovermode="closest"), frames


def histogram_movie(data: Tensor, draws: Tensor, name: str, ends: tuple[float, float]) -> tuple[Figure, dict[str, Any]]:
    """Return a histogram of chains of numbers `(chain, draw)` at their first draw, and the frames of all draws."""
    moments = spaced(draws.shape[1], FRAMES)
    heights = torch.stack([histogram(x[x.isfinite()], ends)[1] for x in draws[:, moments].T])
    centres = histogram(data, ends)[0]
    shown = {"data": (centres, histogram(data, ends)[1]), "chains": (centres, heights[0])}
    curves = [curve(*shown[label], label, shade) for label, shade in zip(shown, ("--data", series(0)), strict=True)]
    top = 1.05 * max(float(heights.max()), float(shown["data"][1].max()))
    frames = {"labels": (moments + 1).tolist(), "y": packed(heights)}
    return figure(curves, axis(name, ends), axis("density", (0.0, top)), showlegend=True), frames


def traces(draws: Tensor, name: str, data: Tensor) -> Figure:
    """Return traces of a few chains of numbers `(chain, draw)`, over a band with the middle 90 % of the data."""
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
    """Return a note that explains `traces`."""
    return f"{share(TRACED_CHAINS, chains, 'chains')}. The grey band holds the middle 90 % of {data_name}."


def acceptance_by_step(probabilities: Tensor) -> Figure:
    """Return the mean of `(chain, draw)` over chains, and over neighbouring draws if there are many."""
    step = -(-probabilities.shape[1] // CURVE_POINTS)
    means = torch.stack([block.mean() for block in probabilities.split(step, 1)])
    line = {"type": "scatter", "mode": "lines", "x0": 1, "dx": step, "y": packed(means)}
    line |= {"line": {"color": "--series-0", "width": 1.6}, "hovertemplate": "draw %{x}: %{y:.3f}<extra></extra>"}
    return figure([line], axis("draw"), axis("acceptance", (0.0, 1.02)))


def acceptance_by_position(points: Tensor, probabilities: Tensor, at: View) -> Figure:
    """Return the mean acceptance of moves, by the cell of the plane in which they begin."""
    found = counts(points, at)
    mean = counts(points, at, probabilities) / found.where(found >= MIN_MOVES, torch.nan)
    shade = {"type": "heatmap", **grid(at), "z": packed(mean), "zmin": 0, "zmax": 1, "colorscale": "Viridis"}
    shade |= {"hovertemplate": "%{x:.3g}, %{y:.3g}: %{z:.2f}<extra></extra>", "hoverongaps": False}
    shade |= {"colorbar": {"thickness": 10, "outlinewidth": 0, "nticks": 6}}
    return figure([shade], *at.axes())


def acceptance_along(values: Tensor, probabilities: Tensor, name: str, ends: tuple[float, float]) -> Figure:
    """Return the mean acceptance of moves, by the bin of one column in which they begin."""
    edges = torch.linspace(*ends, BINS + 1, dtype=torch.float64)
    count = torch.histogram(values, edges).hist
    mean = torch.histogram(values, edges, weight=probabilities).hist / count.where(count >= MIN_MOVES, torch.nan)
    line = {"type": "scatter", "mode": "lines+markers", "x": packed((edges[1:] + edges[:-1]) / 2), "y": packed(mean)}
    line |= {"line": {"color": "--series-0", "width": 1.6}, "hovertemplate": HOVER}
    return figure([line], axis(name, ends), axis("acceptance", (0.0, 1.02)))
