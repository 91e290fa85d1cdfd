"""How all pictures look."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from scoremh.report import charts
from scoremh.report.charts import COLOURS, INK, PAPER

__all__ = ["COLOURS", "INK", "PAPER", "Look", "frame", "limits", "looks_of", "rows_and_columns"]

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
