"""How all pictures look."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from scoremh.report.static import COLOURS, INK, PAPER

__all__ = ["COLOURS", "INK", "LINES", "PAPER", "frame", "limits", "rows_and_columns"]

LINES = ("solid", "dashed", "dashdot")


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
