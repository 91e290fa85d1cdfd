"""Pictures as PNG files, drawn without global state; a sampler looks the same in all of them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from torch import Tensor, cat
from torch.nn.functional import pad

from scoremh.report import charts
from scoremh.report.charts import INK, PAPER

LINES = ("solid", "dashed", "dashdot", "dotted")
MAX_MARKERS = 20  # on a curve
LEGEND = {"fontsize": 8, "frameon": False, "labelcolor": INK, "handlelength": 4}  # long enough to show dashes
Curve = tuple[Sequence[float], Sequence[float]] | tuple[Sequence[float], Sequence[float], Sequence[float]]
"""Abscissae and ordinates, and half the height of a bar at each if there are bars."""
Log = bool | Literal["y"]


class Look(NamedTuple):
    """What tells a sampler or curve from others, in colour and in grey."""

    colour: str
    line: str
    marker: str


def looks_of(names: Sequence[str]) -> dict[str, Look]:
    """Return how the samplers or curves of a picture look: the same colour means different kinds of line."""
    found: dict[str, Look] = {}
    for name, (colour, marker) in sorted(charts.looks(names).items(), key=lambda pair: list(names).index(pair[0])):
        alike = sum(look.colour == colour for look in found.values())
        found[name] = Look(colour, LINES[alike % len(LINES)], marker)
    return found


def grid_of(
    panels: Mapping[str, Any], columns: int | None, size: tuple[float, float], title: str = "", **shared: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure and an axis with a title for every panel; the other axes are hidden.

    Args:
        panels: What is drawn, by the title of the panel.
        columns: Number of panels in a row; all of them if None.
        size: Width and height of a panel in inches.
        title: Title of the figure.
        shared: `sharex` and `sharey` of matplotlib.
    """
    columns = min(columns or len(panels), len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure((size[0] * columns, size[1] * rows + 0.4), dpi=130, layout="constrained", facecolor=PAPER)
    axes = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for axis, name in zip(axes, panels, strict=False):
        axis.set_title(name, fontsize=10, color=INK)
        axis.tick_params(which="both", labelsize=8, colors=INK)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle(title, fontsize=11, color=INK)
    return figure, axes[: len(panels)]


def curve_panels(
    panels: Mapping[str, Mapping[str, Curve]],
    path: str | Path,
    *,
    labels: tuple[str, str],
    levels: Mapping[str, Mapping[str, float]] | None = None,
    log: Log = False,
    columns: int | None = None,
    shared: bool = True,
    title: str = "",
) -> None:
    """Draw curves side by side into a PNG.

    Args:
        panels: Curves by their name, by the title of their panel.
        path: File to write.
        labels: Labels of the two axes.
        levels: Heights of dotted horizontal lines by their name, by the title of their panel.
        log: Whether both axes are logarithmic, or "y" alone.
        columns: Number of panels in a row; all of them if None.
        shared: Whether all panels have the same heights.
        title: Title of the picture.
    """
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    looks = looks_of(names)
    size = (6.4 if len(panels) == 1 else 4.6, 3.4 + 0.06 * len(names))
    figure, axes = grid_of(panels, columns, size, title, sharex=True, sharey=shared)
    handles: dict[str, Any] = {}
    for axis, (head, lines) in zip(axes, panels.items(), strict=True):
        for name, (x, y, *spread) in lines.items():
            colour, line, marker = looks[name]
            style: dict[str, Any] = {"color": colour, "linestyle": line, "marker": marker, "markersize": 4.5}
            style |= {"linewidth": 1.6, "markevery": max(1, len(x) // MAX_MARKERS), "capsize": 2}
            handles[name] = axis.errorbar(x, y, yerr=spread[0] if spread else None, **style)
        ends = [y[-1] for _, y, *_ in lines.values() if y]
        for name, height in (levels or {}).get(head, {}).items():
            axis.axhline(height, color="#8a929c", linewidth=1, linestyle=":")
            side = "top" if any(height <= end <= 1.35 * height for end in ends) else "bottom"  # of its name: the freer
            axis.annotate(name, (1, height), xycoords=("axes fraction", "data"), fontsize=8, ha="right", va=side)
        _scale(axis, sorted({value for x, *_ in lines.values() for value in x}), log)
        axis.tick_params(labelbottom=True)
        axis.set_xlabel(labels[0], fontsize=9, color=INK)
    for axis in axes[:: columns or len(axes)]:
        axis.set_ylabel(labels[1], fontsize=9, color=INK)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, **LEGEND)
    figure.savefig(path)


def curves(
    lines: Mapping[str, Curve], path: str | Path, *, labels: tuple[str, str], log: Log = False, title: str = ""
) -> None:
    """Draw curves in one panel into a PNG."""
    curve_panels({"": lines}, path, labels=labels, log=log, title=title)


def _scale(axis: Axes, places: Sequence[float], log: Log) -> None:
    """Make axes logarithmic, with ticks that can be read."""
    if log:
        axis.set_yscale("log")
        _more_ticks(axis.yaxis, *axis.get_ylim())
    if log is True:
        axis.set_xscale("log")
        axis.set_xlim(places[0] / 1.3, places[-1] * 1.3)
        if len(places) <= 8:
            axis.set_xticks(places, labels=[f"{float(f'{value:.2g}'):g}" for value in places])
            axis.set_xticks([], minor=True)


def _more_ticks(axis: Any, low: float, high: float) -> None:
    """Put ticks between the powers of ten of a short logarithmic axis."""
    if high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if high < 10 * low else (1, 2, 5)))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


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
    figure, (axis,) = grid_of({"": rows}, 1, (6.4, 0.8 + 0.3 * len(rows)))
    for kind, look in looks_of(kinds).items():
        points = [(value, -i) for i, row in enumerate(rows.values()) for value in row.get(kind, ())]
        values, places = zip(*points, strict=True)
        axis.plot(values, places, look.marker, color=look.colour, markersize=5, alpha=0.8, label=kind)
    axis.axvline(level, color=INK, linestyle="dashed", linewidth=0.8)
    axis.set_yticks([-i for i in range(len(rows))], list(rows))
    axis.grid(axis="y", linewidth=0.3)
    axis.set_xlabel(label, fontsize=9, color=INK)
    if log:
        axis.set_xscale("log")
        _more_ticks(axis.xaxis, *axis.get_xlim())
    figure.legend(loc="outside lower center", ncols=len(kinds), **LEGEND)
    figure.savefig(path)


def scatter_panels(
    panels: Mapping[str, Float[Tensor, "draw 2"]], path: str | Path, *, captions: Sequence[str], title: str
) -> None:
    """Draw samples in two dimensions side by side, on the same axes, into a PNG; more than six in rows.

    Args:
        panels: Points by the title of their panel; points outside the box of nearly all points are not shown.
        path: File to write.
        captions: Captions below the panels.
        title: Title of the picture.
    """
    columns = math.ceil(len(panels) / math.ceil(len(panels) / 6))
    figure, axes = grid_of(panels, columns, (2.6, 3.1), title, sharex=True, sharey=True)
    values = np.concatenate([points.detach().double().numpy() for points in panels.values()])
    (left, bottom), (right, top) = np.quantile(values[np.isfinite(values).all(1)], [0.001, 0.999], axis=0)
    looks = looks_of(list(panels))
    for axis, (name, points), caption in zip(axes, panels.items(), captions, strict=True):
        x, y = points.detach().double().numpy().T
        axis.scatter(x, y, s=3, c=looks[name].colour, alpha=0.45, linewidths=0)
        axis.set_aspect("equal")
        axis.set_xlabel(caption, fontsize=9, color=INK)
        axis.set_xlim(left - 0.08 * (right - left), right + 0.08 * (right - left))
        axis.set_ylim(bottom - 0.08 * (top - bottom), top + 0.08 * (top - bottom))
    figure.savefig(path)


def map_panels(
    maps: Mapping[str, Float[Tensor, "row column"]],
    path: str | Path,
    *,
    extents: Mapping[str, Sequence[float]],
    scale: tuple[float, float],
    label: str,
    columns: int,
    title: str = "",
    cells: tuple[Sequence[Any], Sequence[Any]] | None = None,
    classes: Sequence[str] = (),
    **shown: Any,
) -> None:
    """Draw functions on the plane side by side, as colours, into a PNG.

    Args:
        maps: Values by the title of their panel; rows go up, columns to the right.
        path: File to write.
        extents: Left, right, bottom and top of every panel.
        scale: Values at the ends of the scale of colours.
        label: Meaning of the colours.
        columns: Number of panels in a row.
        title: Title of the picture.
        cells: Values of the abscissa and of the ordinate in the cells of a map, if it has few.
        classes: Names of the values 0, 1, ..., if a map shows classes.
        shown: More arguments of matplotlib's `imshow`.
    """
    figure, axes = grid_of(maps, columns, (3.6, 3.2), title)
    for axis, (name, values) in zip(axes, maps.items(), strict=True):
        shade = values.detach().double().clamp(*scale).numpy()
        how: dict[str, Any] = {"origin": "lower", "extent": extents[name], "vmin": scale[0], "vmax": scale[1]}
        image = axis.imshow(shade, **how | shown)
        for axes_of, values_of in zip((axis.xaxis, axis.yaxis), cells or (), strict=False):
            axes_of.set_ticks([i + 0.5 for i in range(len(values_of))], labels=list(map(str, values_of)))
    bar = figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02)
    bar.set_label(label, fontsize=9, color=INK)
    bar.ax.tick_params(labelsize=8, colors=INK)
    if classes:
        bar.set_ticks(list(range(len(classes))), labels=list(classes))
    figure.savefig(path)


def tile(images: Float[Tensor, "image 1 row column"], columns: int) -> Float[Tensor, "height width"]:
    """Return images of [-1, 1] as one, in rows with a gap; values beyond are clipped, NaN is grey."""
    shown = pad(images[:, 0].nan_to_num(0.0).clamp(-1, 1), (0, 1, 0, 1), value=0.0)
    rows = shown[: len(shown) // columns * columns].split(columns)
    return cat([cat(list(row), 1) for row in rows])


def image_panels(
    panels: Mapping[str, Float[Tensor, "image 1 row column"]], path: str | Path, *, columns: int, images_per_row: int
) -> None:
    """Draw sets of images side by side into a PNG.

    Args:
        panels: Images in [-1, 1] by the title of their panel.
        path: File to write.
        columns: Number of panels in a row.
        images_per_row: Number of images in a row of a panel.
    """
    figure, axes = grid_of(panels, columns, (2.5, 2.7))
    for axis, images in zip(axes, panels.values(), strict=True):
        axis.set_axis_off()
        axis.imshow(tile(images, images_per_row).numpy(), cmap="gray", vmin=-1, vmax=1, interpolation="nearest")
        axis.title.set_fontsize(8)
    figure.savefig(path)
