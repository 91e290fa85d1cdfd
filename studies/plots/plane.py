"""Scores and functions in the plane, in panels side by side."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from scoremh._shared import checks
from scoremh.types import ScoreFn
from studies.plots.style import COLOURS, INK, PAPER, frame, limits, rows_and_columns


def field_panels(
    scores: Mapping[str, ScoreFn],
    samples: Float[Tensor, "draw 2"],
    path: str | Path,
    *,
    captions: Sequence[str] = (),
    title: str = "",
) -> None:
    """Draw scores in two dimensions side by side, over the samples they belong to, into a PNG.

    Arrows have the direction of the score; the darker, the longer it is.

    Args:
        scores: Scores, x -> grad log p(x), by the title of their panel.
        samples: Points to show behind the arrows.
        path: File to write.
        captions: Captions below the panels.
        title: Title of the picture.
    """
    if not scores:
        raise ValueError(checks.message("at least one panel", "none", "Pass a dict from titles to scores."))
    (left, right), (below, above) = (limits([column]) for column in samples.T)
    height = 1.4 + 3.4 * (above - below) / (right - left)
    figure = Figure(figsize=(3.6 * len(scores) + 0.7, height), dpi=150, layout="constrained", facecolor=PAPER)
    axes = figure.subplots(1, len(scores), sharex=True, sharey=True, squeeze=False)[0]
    grid = torch.cartesian_prod(torch.linspace(left, right, 27), torch.linspace(below, above, 27))
    lengths, directions = {}, {}
    for name, score in scores.items():
        s = score(grid.to(samples)).detach().double().cpu()
        lengths[name] = s.norm(dim=1)
        directions[name] = (s / lengths[name][:, None].clamp_min(1e-12)).numpy()
    shades = Normalize(*np.quantile(torch.cat(list(lengths.values())).log1p().numpy(), [0.02, 0.98]))
    for i, name in enumerate(scores):
        x, y = samples.detach().cpu().double().numpy().T
        axes[i].scatter(x, y, s=2, c=COLOURS[1], alpha=0.25, linewidths=0)
        u, v = directions[name].T
        arrows = axes[i].quiver(
            *grid.T.numpy(), u, v, lengths[name].log1p().numpy(), cmap="Blues", norm=shades, scale=30, width=0.004
        )
        frame(axes[i], name, captions[i] if i < len(captions) else "")
        axes[i].set_xlim(left, right)
        axes[i].set_ylim(below, above)
    bar = figure.colorbar(arrows, ax=list(axes), shrink=0.7, pad=0.01)
    bar.set_label("log(1 + length)", fontsize=8, color=INK)
    bar.ax.tick_params(labelsize=7, colors=INK)
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    figure.savefig(path)


def map_panels(
    maps: Mapping[str, Float[Tensor, "row column"]],
    path: str | Path,
    *,
    extent: tuple[float, float, float, float],
    samples: Float[Tensor, "draw 2"] | None = None,
    mark: tuple[float, float] | None = None,
    captions: Sequence[str] = (),
    label: str = "",
    columns: int | None = None,
    title: str = "",
) -> None:
    """Draw functions on the plane with values in [0, 1] side by side, as colours, into a PNG.

    Args:
        maps: Values by the title of their panel; rows go up, columns to the right.
        path: File to write.
        extent: Left, right, bottom and top of the panels.
        samples: Points to show over every panel.
        mark: Point to show by a cross.
        captions: Captions below the panels.
        label: Meaning of the colours.
        columns: Number of panels in a row; all of them if None.
        title: Title of the picture.
    """
    if not maps:
        raise ValueError(checks.message("at least one panel", "none", "Pass a dict from titles to tensors."))
    rows, columns = rows_and_columns(len(maps), columns)
    figure = Figure(figsize=(3.4 * columns + 0.7, 2.55 * rows + 0.5), dpi=150, layout="constrained", facecolor=PAPER)
    axes = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for axis in axes[len(maps) :]:
        axis.set_visible(False)
    for i, (name, values) in enumerate(maps.items()):
        shade = values.detach().cpu().double().numpy()
        image = axes[i].imshow(shade, origin="lower", extent=extent, cmap="viridis", vmin=0, vmax=1, aspect="auto")
        if samples is not None:
            x, y = samples.detach().cpu().double().numpy().T
            axes[i].scatter(x, y, s=1, c=PAPER, alpha=0.35, linewidths=0)
        if mark is not None:
            axes[i].scatter(*mark, s=60, c="#ff5a36", marker="x")
        frame(axes[i], name, captions[i] if i < len(captions) else "")
        axes[i].set_xlim(extent[0], extent[1])
        axes[i].set_ylim(extent[2], extent[3])
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.01)
    bar.set_label(label, fontsize=8, color=INK)
    bar.ax.tick_params(labelsize=7, colors=INK)
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    figure.savefig(path)
