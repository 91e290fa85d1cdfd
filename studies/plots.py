"""Pictures as PNG files, drawn without global state; a sampler looks the same in all of them."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import LogLocator, NullFormatter
from torch import Tensor
from torch.nn.functional import pad

from scoremh.report import charts
from scoremh.report.charts import COLOURS, INK, PAPER
from scoremh.types import LogDensityFn, ScoreFn

LINES = ("solid", "dashed", "dashdot", "dotted")


class Look(NamedTuple):
    """What tells a sampler or curve from others, in colour and in grey."""

    colour: str
    line: str
    marker: str


def looks_of(names: Sequence[str], families: Mapping[str, tuple[str, str]] | None = None) -> dict[str, Look]:
    """Return how the samplers or curves of a picture look; what all pictures share is in `scoremh.report.charts`.

    Args:
        names: Names of samplers or curves.
        families: Two names for each: the first decides colour and marker, the second the kind of line. If None, the
            name itself decides colour and marker, and names with the same colour have different kinds of line.
    """
    kinds = {name: families[name][0] if families else name for name in names}
    shades = charts.looks(list(dict.fromkeys(kinds.values())))
    found: dict[str, Look] = {}
    seconds = list(dict.fromkeys(families[name][1] for name in names)) if families else []
    for name, kind in kinds.items():
        colour, marker = shades[kind]
        earlier = sum(look.colour == colour for look in found.values())
        number = seconds.index(families[name][1]) if families else earlier
        found[name] = Look(colour, LINES[number % len(LINES)], marker)
    return found


def rows_and_columns(panels: int, columns: int | None) -> tuple[int, int]:
    """Return how many rows and columns hold the panels, all of them in a row if None."""
    columns = min(columns or panels, panels)
    return math.ceil(panels / columns), columns


def frame(axis: Axes, title: str, caption: str, *, equal: bool = True) -> None:
    """Set the title, the caption and the look of a panel, with one scale for both directions if `equal`."""
    axis.set_title(title, fontsize=11, color=INK)
    axis.set_aspect("equal" if equal else "auto")
    axis.tick_params(labelsize=8, colors=INK)
    axis.spines[["top", "right"]].set_visible(False)
    if caption:
        axis.set_xlabel(caption, fontsize=9, color=INK)


def limits(clouds: Sequence[Tensor]) -> tuple[float, float]:
    """Return one range for both axes that holds nearly all points of all panels."""
    values = np.concatenate([cloud.detach().cpu().double().numpy().ravel() for cloud in clouds])
    values = values[np.isfinite(values)]
    low, high = np.quantile(values, [0.001, 0.999])
    margin = 0.08 * (high - low)
    return float(low - margin), float(high + margin)


Curve = tuple[Sequence[float], Sequence[float]] | tuple[Sequence[float], Sequence[float], Sequence[float]]
Curves = Mapping[str, Curve]
"""By name, abscissae and ordinates, and half the height of a bar at each if there are bars."""
MAX_MARKERS = 20  # on a curve
LEGEND = {"fontsize": 8, "frameon": False, "labelcolor": INK, "handlelength": 4}  # long enough to show dashes


def curve_panels(
    panels: Mapping[str, Curves],
    path: str | Path,
    *,
    labels: tuple[str, str],
    levels: Mapping[str, Mapping[str, float]] | None = None,
    log: bool | Literal["y"] = False,
    columns: int | None = None,
    shared: bool = True,
    families: Mapping[str, tuple[str, str]] | None = None,
    title: str = "",
) -> None:
    """Draw curves side by side into a PNG.

    Args:
        panels: Curves by the title of their panel; a curve looks the same in all panels, a sampler in all pictures.
        path: File to write.
        labels: Labels of the two axes.
        levels: Heights of dashed horizontal lines by the title of their panel and by name.
        log: Whether both axes are logarithmic, or "y" alone.
        columns: Number of panels in a row; all of them if None.
        shared: Whether all panels have the same axes; else each has heights of its own.
        families: Two names for every curve: curves that share the first have one colour, and a column of the legend;
            those that share the second have one kind of line. The name of a curve decides if None.
        title: Title of the picture.
    """
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    looks = looks_of(names, families)
    rows, columns = rows_and_columns(len(panels), columns)
    width = 6.4 if len(panels) == 1 else 4.6 * columns
    height = 3.6 + 3.2 * (rows - 1) + 0.2 * (len(names) // 4)
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor=PAPER)
    grid = figure.subplots(rows, columns, sharex=True, sharey=shared, squeeze=False)
    for axis in grid.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (head, lines) in zip(grid.flat, panels.items(), strict=False):
        _draw_curves(axis, lines, looks)
        _draw_levels(axis, (levels or {}).get(head, {}), lines, log=bool(log))
        _scale(axis, lines, log)
        _dress(axis, head, labels[0])
    for row in grid:
        row[0].set_ylabel(labels[1], fontsize=9, color=INK)
    _add_legend(figure, list(grid.flat), names, len({look.colour for look in looks.values()}) if families else 4)
    figure.suptitle(title, fontsize=11, color=INK)
    figure.savefig(path)


def curves(
    lines: Curves, path: str | Path, *, labels: tuple[str, str], log: bool | Literal["y"] = False, title: str = ""
) -> None:
    """Draw curves in one panel into a PNG."""
    curve_panels({"": lines}, path, labels=labels, log=log, title=title)


def _draw_curves(axis: Axes, lines: Curves, looks: Mapping[str, Look]) -> None:
    for name, (x, y, *spread) in lines.items():
        look: dict[str, Any] = {
            "color": looks[name].colour,
            "linestyle": looks[name].line,
            "marker": looks[name].marker,
        }
        look |= {"linewidth": 1.6, "markersize": 4.5, "markevery": max(1, len(x) // MAX_MARKERS)}
        axis.errorbar(x, y, yerr=spread[0] if spread else None, capsize=2, label=name, **look)


def _draw_levels(axis: Axes, levels: Mapping[str, float], lines: Curves, *, log: bool) -> None:
    ends = [statistics.fmean(y[len(y) // 2 :]) for _, y, *_ in lines.values() if y]
    for name, height in levels.items():
        axis.axhline(height, color="#8a929c", linewidth=1, linestyle=":")
        side = _freer_side(height, ends, log=log)
        place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        place["xytext"] = (0, 4 if side == "bottom" else -4)
        axis.annotate(name, (1, height), fontsize=8, ha="right", va=side, **place)
        axis.margins(y=0.1)  # room for a name below the lowest


def _freer_side(level: float, ends: Sequence[float], *, log: bool) -> Literal["bottom", "top"]:
    """Return where the name of a level stands: its bottom or its top on it, where the ends of curves are farther."""
    if log and level <= 0:
        return "bottom"
    scale = math.log if log else float
    away = [scale(end) - scale(level) for end in ends if math.isfinite(end) and (end > 0 or not log)]
    above = min((gap for gap in away if gap > 0), default=math.inf)
    below = min((-gap for gap in away if gap <= 0), default=math.inf)
    return "bottom" if above >= below else "top"


def _scale(axis: Axes, lines: Curves, log: bool | Literal["y"]) -> None:
    """Make axes logarithmic, with ticks that can be read."""
    if log:
        axis.set_yscale("log")
        low, high = axis.get_ylim()
        if high < 100 * low:  # powers of ten alone would be two ticks or less
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
    places = sorted({value for x, *_ in lines.values() for value in x})
    if places == list(range(len(places))):  # numbers of cases
        axis.set_xticks(places)
    if log is True:
        axis.set_xscale("log")
        axis.set_xlim(places[0] / 1.3, places[-1] * 1.3)
        if len(places) <= 8:
            axis.set_xticks(places, labels=[f"{float(f'{value:.2g}'):g}" for value in places])
            axis.set_xticks([], minor=True)


def _dress(axis: Axes, head: str, label: str) -> None:
    axis.set_title(head, fontsize=10, color=INK)
    axis.set_xlabel(label, fontsize=9, color=INK)
    axis.tick_params(which="both", labelsize=8, colors=INK, labelbottom=True)
    axis.spines[["top", "right"]].set_visible(False)


def _add_legend(figure: Figure, axes: Sequence[Axes], names: Sequence[str], columns: int) -> None:
    pairs = [axis.get_legend_handles_labels() for axis in axes]
    handles = {name: handle for found, labels in pairs for handle, name in zip(found, labels, strict=True)}
    shown = [name for name in names if name in handles]
    figure.legend([handles[name] for name in shown], shown, loc="outside lower center", ncols=columns, **LEGEND)


def dot_rows(
    rows: Mapping[str, Mapping[str, Sequence[float]]], path: str | Path, *, label: str, level: float, log: bool = True
) -> None:
    """Draw a line of dots for every row into a PNG; a kind of dot has one colour and one shape.

    Args:
        rows: Numbers by row and kind of dot.
        path: File to write.
        label: Label of the axis.
        level: Where a dashed line stands.
        log: Whether the axis is logarithmic.
    """
    kinds = list(dict.fromkeys(kind for row in rows.values() for kind in row))
    figure = Figure(figsize=(6.4, 1.2 + 0.3 * len(rows)), dpi=150, layout="constrained", facecolor=PAPER)
    axis = figure.subplots()
    for kind, look in looks_of(kinds).items():
        points = [(value, -i) for i, row in enumerate(rows.values()) for value in row.get(kind, ())]
        values, places = zip(*points, strict=True)
        axis.plot(values, places, look.marker, color=look.colour, markersize=5, alpha=0.8, label=kind)
    axis.axvline(level, color=INK, linestyle="dashed", linewidth=0.8)
    axis.set_yticks([-i for i in range(len(rows))], list(rows))
    axis.grid(axis="y", linewidth=0.3)
    frame(axis, "", label, equal=False)
    if log:
        axis.set_xscale("log")
        low, high = axis.get_xlim()
        subs = (1, 1.5, 2, 3, 5, 7) if high < 100 * low else (1,)  # more would overprint each other
        axis.xaxis.set_major_locator(LogLocator(subs=subs))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
    figure.legend(loc="outside lower center", ncols=len(kinds), **LEGEND)
    figure.savefig(path)


MAX_COLUMNS = 6  # panels side by side


def scatter_panels(
    panels: Mapping[str, Float[Tensor, "draw 2"]],
    path: str | Path,
    *,
    captions: Sequence[str] = (),
    groups: Mapping[str, Tensor] | None = None,
    log_density: LogDensityFn | None = None,
    title: str = "",
) -> None:
    """Draw samples in two dimensions side by side, on the same axes, into a PNG; more than six in rows.

    Args:
        panels: Points by the title of their panel.
        path: File to write.
        captions: Captions below the panels.
        groups: By the title of a panel, a whole number for every point, which chooses its colour; the sampler, by the
            title, chooses if None.
        log_density: Log density to show as contours behind every panel.
        title: Title of the picture.
    """
    height = 3.9 + 0.35 * max((caption.count("\n") for caption in captions), default=0)
    rows = math.ceil(len(panels) / MAX_COLUMNS)
    columns = math.ceil(len(panels) / rows)
    figure = Figure(
        figsize=(3.1 * columns, rows * height), dpi=600 // max(4, columns), layout="constrained", facecolor=PAPER
    )
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for unused in axes[len(panels) :]:
        unused.set_visible(False)
    low, high = limits(list(panels.values()))
    looks = looks_of(list(panels))
    for i, (name, points) in enumerate(panels.items()):
        if log_density is not None:
            _contours(axes[i], log_density, low, high)
        shades = looks[name].colour if groups is None else np.array(COLOURS)[groups[name].cpu().numpy() % len(COLOURS)]
        x, y = points.detach().cpu().double().numpy().T
        axes[i].scatter(x, y, s=3, c=shades, alpha=0.45, linewidths=0)
        frame(axes[i], name, captions[i] if i < len(captions) else "")
        axes[i].set_xlim(low, high)
        axes[i].set_ylim(low, high)
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    figure.savefig(path)


def _contours(axis: Axes, log_density: LogDensityFn, low: float, high: float) -> None:
    grid = torch.linspace(low, high, 200)
    x, y = torch.meshgrid(grid, grid, indexing="xy")
    height = log_density(torch.stack([x.flatten(), y.flatten()], 1)).reshape(x.shape)
    levels = [float(height.max()) - drop for drop in (8.0, 4.5, 2.0, 0.5)]  # 4 to 1 standard deviations of a normal
    look: dict[str, Any] = {"colors": "#b8bec6", "linewidths": 0.7, "linestyles": "solid", "zorder": 0}
    axis.contour(x.numpy(), y.numpy(), height.numpy(), levels=levels, **look)


VIEW = {"elev": 9, "azim": -83}  # along a rolled-up surface, so that its layers are seen


def space_panels(
    panels: Mapping[str, Float[Tensor, "draw 3"]], path: str | Path, *, captions: Sequence[str] = (), title: str = ""
) -> None:
    """Draw samples in three dimensions side by side, in the same box, coloured by their height, into a PNG.

    Args:
        panels: Points by the title of their panel; those outside the box of nearly all points are left out.
        path: File to write.
        captions: Captions below the panels.
        title: Title of the picture.
    """
    figure = Figure(figsize=(2.6 * len(panels), 3.4), dpi=90, layout="constrained", facecolor=PAPER)
    axes = figure.subplots(1, len(panels), squeeze=False, subplot_kw={"projection": "3d"})[0]
    clouds = list(panels.values())
    box = [limits([cloud[:, i] for cloud in clouds]) for i in range(3)]
    for i, (name, points) in enumerate(panels.items()):
        inside = [points[:, k].ge(low) & points[:, k].le(high) for k, (low, high) in enumerate(box)]
        x, y, z = points[inside[0] & inside[1] & inside[2]].detach().cpu().double().numpy().T
        axes[i].scatter(x, y, z, s=5, c=z, cmap="viridis", vmax=1.25 * box[2][1], alpha=0.9, linewidths=0)
        axes[i].set(xlim=box[0], ylim=box[1], zlim=box[2])
        axes[i].view_init(**VIEW)
        axes[i].set_box_aspect((1, 1, 1), zoom=1.25)
        axes[i].grid(visible=False)
        axes[i].tick_params(labelsize=6, colors=INK)
        axes[i].set_yticks([])
        axes[i].set_title(name, fontsize=10, color=INK)
        axes[i].text2D(0.5, -0.15, captions[i] if i < len(captions) else "", transform=axes[i].transAxes, ha="center")
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    figure.savefig(path)


BINS = 60


def histogram_panels(
    panels: Mapping[str, Float[Tensor, " draw"]],
    path: str | Path,
    *,
    captions: Sequence[str] = (),
    log_density: LogDensityFn | None = None,
    title: str = "",
) -> None:
    """Draw histograms of samples in one dimension side by side, on the same axes, into a PNG.

    Args:
        panels: Samples by the title of their panel.
        path: File to write.
        captions: Captions below the panels.
        log_density: x of shape `(n, 1)` to log p(x), normalised, to show as a line over every panel.
        title: Title of the picture.
    """
    figure = Figure(figsize=(3.1 * len(panels), 3.2), dpi=150, layout="constrained", facecolor=PAPER)
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    low, high = limits(list(panels.values()))
    grid = torch.linspace(low, high, 300)
    looks = looks_of(list(panels))
    for i, (name, samples) in enumerate(panels.items()):
        values = samples.detach().cpu().double().numpy()
        axes[i].hist(values, bins=BINS, range=(low, high), density=True, color=looks[name].colour, alpha=0.5)
        if log_density is not None:
            axes[i].plot(grid.numpy(), log_density(grid[:, None]).exp().numpy(), color=INK, linewidth=1.6)
        frame(axes[i], name, captions[i] if i < len(captions) else "", equal=False)
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    figure.savefig(path)


def field_panels(
    scores: Mapping[str, ScoreFn],
    samples: Float[Tensor, "draw 2"],
    path: str | Path,
    *,
    captions: Sequence[str] = (),
    title: str = "",
) -> None:
    """Draw scores in two dimensions side by side, over the samples they belong to, into a PNG.

    Arrows have the direction of the score; the darker, the longer it is.

    Args:
        scores: Scores, x -> grad log p(x), by the title of their panel.
        samples: Points to show behind the arrows.
        path: File to write.
        captions: Captions below the panels.
        title: Title of the picture.
    """
    (left, right), (below, above) = (limits([column]) for column in samples.T)
    height = 1.4 + 3.4 * (above - below) / (right - left)
    figure = Figure(figsize=(3.6 * len(scores) + 0.7, height), dpi=150, layout="constrained", facecolor=PAPER)
    axes = figure.subplots(1, len(scores), sharex=True, sharey=True, squeeze=False)[0]
    grid = torch.cartesian_prod(torch.linspace(left, right, 27), torch.linspace(below, above, 27))
    lengths, directions = {}, {}
    for name, score in scores.items():
        s = score(grid.to(samples)).detach().double().cpu()
        lengths[name] = s.norm(dim=1)
        directions[name] = (s / lengths[name][:, None].clamp_min(1e-12)).numpy()
    shades = Normalize(*np.quantile(torch.cat(list(lengths.values())).log1p().numpy(), [0.02, 0.98]))
    for i, name in enumerate(scores):
        x, y = samples.detach().cpu().double().numpy().T
        axes[i].scatter(x, y, s=2, c=COLOURS[1], alpha=0.25, linewidths=0)
        u, v = directions[name].T
        arrows = axes[i].quiver(
            *grid.T.numpy(), u, v, lengths[name].log1p().numpy(), cmap="Blues", norm=shades, scale=30, width=0.004
        )
        frame(axes[i], name, captions[i] if i < len(captions) else "")
        axes[i].set_xlim(left, right)
        axes[i].set_ylim(below, above)
    bar = figure.colorbar(arrows, ax=list(axes), shrink=0.7, pad=0.01)
    bar.set_label("log(1 + length)", fontsize=8, color=INK)
    bar.ax.tick_params(labelsize=7, colors=INK)
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    figure.savefig(path)


def map_panels(
    maps: Mapping[str, Float[Tensor, "row column"]],
    path: str | Path,
    *,
    extent: tuple[float, float, float, float],
    samples: Float[Tensor, "draw 2"] | None = None,
    mark: tuple[float, float] | None = None,
    captions: Sequence[str] = (),
    label: str = "",
    columns: int | None = None,
    title: str = "",
) -> None:
    """Draw functions on the plane with values in [0, 1] side by side, as colours, into a PNG.

    Args:
        maps: Values by the title of their panel; rows go up, columns to the right.
        path: File to write.
        extent: Left, right, bottom and top of the panels.
        samples: Points to show over every panel.
        mark: Point to show by a cross.
        captions: Captions below the panels.
        label: Meaning of the colours.
        columns: Number of panels in a row; all of them if None.
        title: Title of the picture.
    """
    rows, columns = rows_and_columns(len(maps), columns)
    figure = Figure(figsize=(3.4 * columns + 0.7, 2.55 * rows + 0.5), dpi=150, layout="constrained", facecolor=PAPER)
    axes = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for axis in axes[len(maps) :]:
        axis.set_visible(False)
    for i, (name, values) in enumerate(maps.items()):
        shade = values.detach().cpu().double().numpy()
        image = axes[i].imshow(shade, origin="lower", extent=extent, cmap="viridis", vmin=0, vmax=1, aspect="auto")
        if samples is not None:
            x, y = samples.detach().cpu().double().numpy().T
            axes[i].scatter(x, y, s=1, c=PAPER, alpha=0.35, linewidths=0)
        if mark is not None:
            axes[i].scatter(*mark, s=60, c="#ff5a36", marker="x")
        frame(axes[i], name, captions[i] if i < len(captions) else "")
        axes[i].set_xlim(extent[0], extent[1])
        axes[i].set_ylim(extent[2], extent[3])
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.01)
    bar.set_label(label, fontsize=8, color=INK)
    bar.ax.tick_params(labelsize=7, colors=INK)
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    figure.savefig(path)


Extent = tuple[float, float, float, float]


def density_panels(
    rows: Sequence[tuple[Mapping[str, Float[Tensor, "row column"]], Extent]],
    path: str | Path,
    *,
    depth: float,
    title: str = "",
) -> None:
    """Draw log densities below their maximum as colours, one row of panels for every distribution, into a PNG.

    Args:
        rows: For every distribution, values by the title of their panel (rows go up, columns to the right), and left,
            right, bottom and top of its panels.
        path: File to write.
        depth: Nats below the maximum at which the scale ends; lower values have the colour of its end.
        title: Title of the picture.
    """
    count = max(len(panels) for panels, _ in rows)
    shapes = [(top - bottom) / (right - left) for _, (left, right, bottom, top) in rows]
    heights = [3.8 * shape + 0.55 for shape in shapes]
    size = (3.8 * count + 1.0, sum(heights) + 0.4)
    figure = Figure(figsize=size, dpi=150, layout="constrained", facecolor=PAPER)
    axes = figure.subplots(len(rows), count, squeeze=False, height_ratios=heights)
    for line, (panels, extent) in zip(axes, rows, strict=True):
        for axis, (name, values) in zip(line, panels.items(), strict=True):
            shade = values.detach().cpu().double().clamp(-depth, 0).numpy()
            image = axis.imshow(shade, origin="lower", extent=extent, cmap="viridis", vmin=-depth, vmax=0)
            frame(axis, name, "")
    bar = figure.colorbar(image, ax=list(axes.flat), shrink=0.6, pad=0.02)
    bar.set_label("nats below the true maximum", fontsize=9, color=INK)
    bar.ax.tick_params(labelsize=8, colors=INK)
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    figure.savefig(path)


def tile(images: Float[Tensor, "image 1 row column"], columns: int) -> Float[Tensor, "height width"]:
    """Return images of [-1, 1] as one, in rows with a gap; values beyond are clipped, NaN is grey."""
    shown = pad(images[:, 0].nan_to_num(0.0).clamp(-1, 1), (0, 1, 0, 1), value=0.0)
    rows = shown[: len(shown) // columns * columns].split(columns)
    return torch.cat([torch.cat(list(row), 1) for row in rows])


def image_panels(
    panels: Mapping[str, Float[Tensor, "image 1 row column"]],
    path: str | Path,
    *,
    columns: int,
    images_per_row: int = 4,
    title: str = "",
) -> None:
    """Draw sets of images side by side into a PNG.

    Args:
        panels: Images in [-1, 1] by the title of their panel.
        path: File to write.
        columns: Number of panels in a row.
        images_per_row: Number of images in a row of a panel.
        title: Title of the picture.
    """
    rows, columns = rows_and_columns(len(panels), columns)
    figure = Figure(
        figsize=(2.5 * columns, 2.85 * rows + 0.2 * bool(title)), dpi=110, layout="constrained", facecolor=PAPER
    )
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.set_axis_off()
    for axis, (name, images) in zip(axes, panels.items(), strict=False):
        axis.imshow(tile(images, images_per_row).numpy(), cmap="gray", vmin=-1, vmax=1, interpolation="nearest")
        axis.set_title(name, fontsize=8, color=INK)
    if title:
        figure.suptitle(title, fontsize=11, color=INK)
    figure.savefig(path)


def region_panels(
    panels: Mapping[str, Int[Tensor, "row column"]],
    path: str | Path,
    *,
    names: Sequence[str],
    regions: Sequence[tuple[str, str]],
    columns_at: Sequence[str],
    rows_at: Sequence[str],
    labels: tuple[str, str],
    columns: int,
    title: str = "",
) -> None:
    """Draw maps of classes side by side into a PNG.

    Args:
        panels: Number of the class in every place, by the title of the panel; rows go up.
        path: File to write.
        names: Names of the classes.
        regions: Colour and hatching of every class.
        columns_at: Values on the abscissa.
        rows_at: Values on the ordinate.
        labels: Labels of the two axes.
        columns: Number of panels in a row.
        title: Title of the picture.
    """
    rows, columns = rows_and_columns(len(panels), columns)
    figure = Figure(figsize=(3.1 * columns, 2.9 * rows + 0.6), dpi=130, layout="constrained", facecolor=PAPER)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, (name, classes) in zip(axes, panels.items(), strict=False):
        for (row, column), region in np.ndenumerate(classes.numpy()):
            colour, hatch = regions[region]
            look = {"facecolor": colour, "hatch": hatch, "edgecolor": PAPER, "linewidth": 0}
            axis.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **look))
        axis.set(xlim=(-0.5, classes.shape[1] - 0.5), ylim=(-0.5, classes.shape[0] - 0.5))
        axis.set_xticks(range(len(columns_at)), labels=columns_at, fontsize=7)
        axis.set_yticks(range(len(rows_at)), labels=rows_at, fontsize=7)
        axis.set_xlabel(labels[0], fontsize=8, color=INK)
        axis.set_ylabel(labels[1], fontsize=8, color=INK)
        axis.set_title(name, fontsize=9, color=INK)
    patches = [
        Patch(facecolor=colour, hatch=hatch, edgecolor=PAPER, label=label)
        for (colour, hatch), label in zip(regions, names, strict=True)
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=11, color=INK)
    figure.savefig(path)
