"""Samples in the plane in panels side by side, as a PNG, and how all pictures look."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from scoremh._shared import checks
from scoremh.types import LogDensityFn

INK, PAPER = "#1b1f24", "#ffffff"
COLOURS = ("#2a6f97", "#e07a1f", "#5b8e3e", "#8c4a7d", "#9a8c2b")  # distinct for the colour-blind too


def scatter_panels(
    panels: Mapping[str, Float[Tensor, "draw 2"]],
    path: str | Path,
    *,
    captions: Sequence[str] = (),
    groups: Mapping[str, Tensor] | None = None,
    log_density: LogDensityFn | None = None,
    title: str = "",
) -> None:
    """Draw samples in two dimensions side by side, on the same axes, into a PNG.

    Args:
        panels: Points by the title of their panel.
        path: File to write.
        captions: Captions below the panels.
        groups: By the title of a panel, a whole number for every point, which chooses its colour.
        log_density: Log density to show as contours behind every panel.
        title: Title of the picture.
    """
    if not panels:
        raise ValueError(checks.message("at least one panel", "none", "Pass a dict from titles to tensors (n, 2)."))
    height = 3.9 + 0.35 * max((caption.count("\n") for caption in captions), default=0)
    figure = Figure(
        figsize=(3.1 * len(panels), height), dpi=600 // max(4, len(panels)), layout="constrained", facecolor=PAPER
    )
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    low, high = limits(list(panels.values()))
    for i, (name, points) in enumerate(panels.items()):
        if log_density is not None:
            _contours(axes[i], log_density, low, high)
        of_point = np.zeros(len(points), dtype=int) if groups is None else groups[name].cpu().numpy().astype(int)
        colours = np.array(COLOURS)[of_point % len(COLOURS)]
        x, y = points.detach().cpu().double().numpy().T
        axes[i].scatter(x, y, s=3, c=colours, alpha=0.45, linewidths=0)
        frame(axes[i], name, captions[i] if i < len(captions) else "")
        axes[i].set_xlim(low, high)
        axes[i].set_ylim(low, high)
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    figure.savefig(path)


def _contours(axis: Axes, log_density: LogDensityFn, low: float, high: float) -> None:
    grid = torch.linspace(low, high, 200)
    x, y = torch.meshgrid(grid, grid, indexing="xy")
    height = log_density(torch.stack([x.flatten(), y.flatten()], 1)).reshape(x.shape)
    levels = [
        float(height.max()) - drop for drop in (8.0, 4.5, 2.0, 0.5)
    ]  # 4, 3, 2 and 1 standard deviations of a normal
    axis.contour(
        x.numpy(),
        y.numpy(),
        height.numpy(),
        levels=levels,
        colors="#b8bec6",
        linewidths=0.7,
        linestyles="solid",
        zorder=0,
    )


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
