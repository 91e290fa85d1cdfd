"""Pictures. The only part that imports a plotting library; it draws on figures of its own and keeps no state."""

from scoremh.plots.histograms import histogram_panels
from scoremh.plots.lines import Curve, curve_panels, curves
from scoremh.plots.plane import field_panels, map_panels, scatter_panels
from scoremh.plots.space import space_panels

__all__ = [
    "Curve",
    "curve_panels",
    "curves",
    "field_panels",
    "histogram_panels",
    "map_panels",
    "scatter_panels",
    "space_panels",
]
