"""Pictures as PNG files, drawn without global state."""

from studies.plots.densities import density_panels
from studies.plots.dots import dot_rows
from studies.plots.histograms import histogram_panels
from studies.plots.images import image_panels, region_panels
from studies.plots.lines import Curve, curve_panels, curves
from studies.plots.plane import field_panels, map_panels
from studies.plots.scatter import scatter_panels
from studies.plots.space import space_panels
from studies.plots.style import looks_of

__all__ = [
    "Curve",
    "curve_panels",
    "curves",
    "density_panels",
    "dot_rows",
    "field_panels",
    "histogram_panels",
    "image_panels",
    "looks_of",
    "map_panels",
    "region_panels",
    "scatter_panels",
    "space_panels",
]
