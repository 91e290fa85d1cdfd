"""Numbers by name, as dots on lines."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from studies.plots.lines import LEGEND
from studies.plots.style import INK, PAPER, frame, looks_of


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
