"""How all pictures look."""

import math

from scoremh.report.scatter import COLOURS, INK, PAPER, frame, limits

__all__ = ["COLOURS", "INK", "LINES", "PAPER", "frame", "limits", "rows_and_columns"]

LINES = ("solid", "dashed", "dashdot")


def rows_and_columns(panels: int, columns: int | None) -> tuple[int, int]:
    """Return how many rows and columns hold the panels, all of them in a row if None."""
    columns = min(columns or panels, panels)
    return math.ceil(panels / columns), columns
