"""Curves."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from scoremh._shared import checks
from studies.plots.style import COLOURS, INK, LINES, PAPER, rows_and_columns

Curve = tuple[Sequence[float], Sequence[float]] | tuple[Sequence[float], Sequence[float], Sequence[float]]


def curve_panels(
    panels: Mapping[str, Mapping[str, Curve]],
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
        panels: From a panel's title to its curves: from a name to abscissae, ordinates, and half the height of a bar
            at each where there are bars. A curve has the same colour in all panels.
        path: The file to write.
        labels: Of the two axes.
        levels: From a panel's title to dashed horizontal lines: from a name to a height.
        log: Make both axes logarithmic, or "y" alone.
        columns: Panels in a row; all of them if None.
        shared: Give all panels the same axes; else each has heights of its own.
        families: From a curve's name to two words: curves with the same first word have one colour, and a column of
            the legend; those with the same second one kind of line. Every curve has a colour of its own if None.
        title: Above all.
    """
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    if not names:
        raise ValueError(checks.message("at least one curve", "none", "Pass a dict from names to (x, y)."))
    looks = _looks(names, families)
    rows, columns = rows_and_columns(len(panels), columns)
    width = 6.4 if len(panels) == 1 else 4.6 * columns
    height = 3.6 + 3.2 * (rows - 1) + 0.2 * (len(names) // 4)
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor=PAPER)
    grid = figure.subplots(rows, columns, sharex=True, sharey=shared, squeeze=False)
    axes = list(grid.flat)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, (head, lines) in zip(axes, panels.items(), strict=False):
        for name, (x, y, *spread) in lines.items():
            colour, style = looks[name]
            bars, dots = spread[0] if spread else None, "o" if spread else None  # a bar alone would hide under others
            look = {"color": colour, "linestyle": style, "linewidth": 1.6, "marker": dots, "markersize": 3.5}
            axis.errorbar(x, y, yerr=bars, capsize=2, label=name, **look)
        ends = [statistics.fmean(y[len(y) // 2 :]) for _, y, *_ in lines.values() if y]
        for name, height in (levels or {}).get(head, {}).items():
            axis.axhline(height, color="#8a929c", linewidth=1, linestyle=":")
            side = _freer_side(height, ends, log=bool(log))
            beside = {"xytext": (0, 2 if side == "bottom" else -2), "textcoords": "offset points", "va": side}
            axis.annotate(name, (1, height), xycoords=("axes fraction", "data"), fontsize=8, ha="right", **beside)
            axis.margins(y=0.1)  # room for a name below the lowest
        if log:
            axis.set_yscale("log")
            low, high = axis.get_ylim()
            if high < 100 * low:  # powers of ten alone would be two ticks or less
                axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
                axis.yaxis.set_minor_formatter(NullFormatter())
        if log is True:
            axis.set_xscale("log")
            places = sorted({value for x, *_ in lines.values() for value in x})
            axis.set_xlim(places[0] / 1.3, places[-1] * 1.3)
            if len(places) <= 8:
                axis.set_xticks(places, labels=[f"{float(f'{value:.2g}'):g}" for value in places])
                axis.set_xticks([], minor=True)
        axis.set_title(head, fontsize=10, color=INK)
        axis.set_xlabel(labels[0], fontsize=9, color=INK)
        axis.tick_params(which="both", labelsize=8, colors=INK)
        axis.spines[["top", "right"]].set_visible(False)
    for row in grid:
        row[0].set_ylabel(labels[1], fontsize=9, color=INK)
    legend = {"fontsize": 8, "frameon": False, "labelcolor": INK, "handlelength": 4}  # long enough to show dashes
    if len(panels) == 1:
        axes[0].legend(**legend)
    else:
        handles = {
            name: handle for axis in axes for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        shown = [name for name in names if name in handles]
        ncols = len({colour for colour, _ in looks.values()}) if families else 4
        figure.legend([handles[name] for name in shown], shown, loc="outside lower center", ncols=ncols, **legend)
    if title:
        figure.suptitle(title, fontsize=11, color=INK)
    figure.savefig(path)


def _looks(names: Sequence[str], families: Mapping[str, tuple[str, str]] | None) -> dict[str, tuple[str, str]]:
    """Return the colour and the kind of line of every curve."""
    if families is None:
        numbers = {name: (n, n // len(COLOURS)) for n, name in enumerate(names)}
    else:
        first, second = (list(dict.fromkeys(families[name][i] for name in names)) for i in (0, 1))
        numbers = {name: (first.index(families[name][0]), second.index(families[name][1])) for name in names}
    return {name: (COLOURS[c % len(COLOURS)], LINES[k % len(LINES)]) for name, (c, k) in numbers.items()}


def _freer_side(level: float, ends: Sequence[float], *, log: bool) -> Literal["bottom", "top"]:
    """Say where the name of a level stands: with its bottom on it, or below, where the ends of curves are farther."""
    if log and level <= 0:
        return "bottom"
    ends = [end for end in ends if math.isfinite(end) and (end > 0 or not log)]
    away = [math.log(end / level) if log else end - level for end in ends]
    above, below = ([abs(far) for far in away if (far > 0) == up] for up in (True, False))
    return "bottom" if min(above, default=math.inf) >= min(below, default=math.inf) else "top"


def curves(
    lines: Mapping[str, Curve], path: str | Path, *, labels: tuple[str, str], log: bool = False, title: str = ""
) -> None:
    """Draw curves into a PNG.

    Args:
        lines: From a curve's name to its abscissae and ordinates, and half the height of its bars where it has some.
        path: The file to write.
        labels: Of the two axes.
        log: Make both axes logarithmic.
        title: Above all.
    """
    curve_panels({"": lines}, path, labels=labels, log=log, title=title)
