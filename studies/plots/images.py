"""Images in tiles, and regions of a map by class."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor
from torch.nn.functional import pad

from scoremh._shared import checks
from studies.plots.style import INK, PAPER, rows_and_columns


def tile(images: Float[Tensor, "image 1 row column"], columns: int) -> Float[Tensor, "height width"]:
    """Return images of [-1, 1] as one, in rows with a gap; values beyond are clipped, NaN is grey."""
    shown = pad(images[:, 0].nan_to_num(0.0).clamp(-1, 1), (0, 1, 0, 1), value=0.0)
    rows = shown[: len(shown) // columns * columns].split(columns)
    return torch.cat([torch.cat(list(row), 1) for row in rows])


def image_panels(
    panels: Mapping[str, Float[Tensor, "image 1 row column"]],
    path: str | Path,
    *,
    columns: int,
    images_per_row: int = 4,
    title: str = "",
) -> None:
    """Draw sets of images side by side into a PNG.

    Args:
        panels: Images in [-1, 1] by the title of their panel.
        path: File to write.
        columns: Number of panels in a row.
        images_per_row: Number of images in a row of a panel.
        title: Title of the picture.
    """
    if not panels:
        raise ValueError(checks.message("at least one panel", "none", "Pass a dict from titles to images."))
    rows, columns = rows_and_columns(len(panels), columns)
    figure = Figure(
        figsize=(2.5 * columns, 2.85 * rows + 0.2 * bool(title)), dpi=110, layout="constrained", facecolor=PAPER
    )
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.set_axis_off()
    for axis, (name, images) in zip(axes, panels.items(), strict=False):
        axis.imshow(tile(images, images_per_row).numpy(), cmap="gray", vmin=-1, vmax=1, interpolation="nearest")
        axis.set_title(name, fontsize=8, color=INK)
    if title:
        figure.suptitle(title, fontsize=11, color=INK)
    figure.savefig(path)


def region_panels(
    panels: Mapping[str, Int[Tensor, "row column"]],
    path: str | Path,
    *,
    names: Sequence[str],
    regions: Sequence[tuple[str, str]],
    columns_at: Sequence[str],
    rows_at: Sequence[str],
    labels: tuple[str, str],
    columns: int,
    title: str = "",
) -> None:
    """Draw maps of classes side by side into a PNG.

    Args:
        panels: Number of the class in every place, by the title of the panel; rows go up.
        path: File to write.
        names: Names of the classes.
        regions: Colour and hatching of every class.
        columns_at: Values on the abscissa.
        rows_at: Values on the ordinate.
        labels: Labels of the two axes.
        columns: Number of panels in a row.
        title: Title of the picture.
    """
    rows, columns = rows_and_columns(len(panels), columns)
    figure = Figure(figsize=(3.1 * columns, 2.9 * rows + 0.6), dpi=130, layout="constrained", facecolor=PAPER)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, (name, classes) in zip(axes, panels.items(), strict=False):
        for (row, column), region in np.ndenumerate(classes.numpy()):
            colour, hatch = regions[region]
            look = {"facecolor": colour, "hatch": hatch, "edgecolor": PAPER, "linewidth": 0}
            axis.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **look))
        axis.set(xlim=(-0.5, classes.shape[1] - 0.5), ylim=(-0.5, classes.shape[0] - 0.5))
        axis.set_xticks(range(len(columns_at)), labels=columns_at, fontsize=7)
        axis.set_yticks(range(len(rows_at)), labels=rows_at, fontsize=7)
        axis.set_xlabel(labels[0], fontsize=8, color=INK)
        axis.set_ylabel(labels[1], fontsize=8, color=INK)
        axis.set_title(name, fontsize=9, color=INK)
    patches = [
        Patch(facecolor=colour, hatch=hatch, edgecolor=PAPER, label=label)
        for (colour, hatch), label in zip(regions, names, strict=True)
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=11, color=INK)
    figure.savefig(path)
