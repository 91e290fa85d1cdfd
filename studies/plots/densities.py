"""Log densities in the plane, in panels with one colour scale."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from scoremh._shared import checks
from studies.plots.style import INK, PAPER, frame

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
    if not rows:
        raise ValueError(checks.message("at least one distribution", "none", "Pass a list of panels and extents."))
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
