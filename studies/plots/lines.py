"""Curves, in panels side by side."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from scoremh._shared import checks
from studies.plots.style import INK, PAPER, Look, looks_of, rows_and_columns

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
    if not names:
        raise ValueError(checks.message("at least one curve", "none", "Pass a dict from names to (x, y)."))
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
