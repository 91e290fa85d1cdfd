"""Pictures. The only module that imports a plotting library; it draws on figures of its own and keeps no state."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from scoremh import _checks
from scoremh.types import LogDensityFn

INK, PAPER = "#1b1f24", "#ffffff"
COLOURS = ("#2a6f97", "#e07a1f", "#5b8e3e", "#8c4a7d", "#9a8c2b")  # told apart by the colour-blind too


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
        panels: From a panel's title to its points.
        path: The file to write.
        captions: A line below each panel.
        groups: From a panel's title to one whole number per point, which chooses its colour.
        log_density: Drawn as contours behind every panel.
        title: Above all.
    """
    if not panels:
        raise ValueError(_checks.message("at least one panel", "none", "Pass a dict from titles to tensors (n, 2)."))
    figure = Figure(figsize=(3.1 * len(panels), 3.9), dpi=150, layout="constrained", facecolor=PAPER)
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    low, high = _limits(list(panels.values()))
    for i, (name, points) in enumerate(panels.items()):
        if log_density is not None:
            _contours(axes[i], log_density, low, high)
        of_point = np.zeros(len(points), dtype=int) if groups is None else groups[name].cpu().numpy().astype(int)
        colours = np.array(COLOURS)[of_point % len(COLOURS)]
        x, y = points.detach().cpu().double().numpy().T
        axes[i].scatter(x, y, s=3, c=colours, alpha=0.45, linewidths=0)
        axes[i].set_title(name, fontsize=11, color=INK)
        axes[i].set_aspect("equal")
        axes[i].set_xlim(low, high)
        axes[i].set_ylim(low, high)
        axes[i].tick_params(labelsize=8, colors=INK)
        axes[i].spines[["top", "right"]].set_visible(False)
        if i < len(captions):
            axes[i].set_xlabel(captions[i], fontsize=9, color=INK)
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    figure.savefig(path)


def _limits(clouds: Sequence[Tensor]) -> tuple[float, float]:
    """Return one range for both axes that holds nearly all points of all panels."""
    values = np.concatenate([cloud.detach().cpu().double().numpy().ravel() for cloud in clouds])
    low, high = np.quantile(values, [0.001, 0.999])
    margin = 0.08 * (high - low)
    return float(low - margin), float(high + margin)


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
