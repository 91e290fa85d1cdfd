"""Samples in the plane, in panels side by side."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from scoremh._shared import checks
from scoremh.types import LogDensityFn
from studies.plots.style import COLOURS, INK, PAPER, frame, limits, looks_of

MAX_COLUMNS = 6  # panels side by side


def scatter_panels(
    panels: Mapping[str, Float[Tensor, "draw 2"]],
    path: str | Path,
    *,
    captions: Sequence[str] = (),
    groups: Mapping[str, Tensor] | None = None,
    log_density: LogDensityFn | None = None,
    title: str = "",
) -> None:
    """Draw samples in two dimensions side by side, on the same axes, into a PNG; more than six in rows.

    Args:
        panels: Points by the title of their panel.
        path: File to write.
        captions: Captions below the panels.
        groups: By the title of a panel, a whole number for every point, which chooses its colour; the sampler, by the
            title, chooses if None.
        log_density: Log density to show as contours behind every panel.
        title: Title of the picture.
    """
    if not panels:
        raise ValueError(checks.message("at least one panel", "none", "Pass a dict from titles to tensors (n, 2)."))
    height = 3.9 + 0.35 * max((caption.count("\n") for caption in captions), default=0)
    rows = math.ceil(len(panels) / MAX_COLUMNS)
    columns = math.ceil(len(panels) / rows)
    figure = Figure(
        figsize=(3.1 * columns, rows * height), dpi=600 // max(4, columns), layout="constrained", facecolor=PAPER
    )
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for unused in axes[len(panels) :]:
        unused.set_visible(False)
    low, high = limits(list(panels.values()))
    looks = looks_of(list(panels))
    for i, (name, points) in enumerate(panels.items()):
        if log_density is not None:
            _contours(axes[i], log_density, low, high)
        shades = looks[name].colour if groups is None else np.array(COLOURS)[groups[name].cpu().numpy() % len(COLOURS)]
        x, y = points.detach().cpu().double().numpy().T
        axes[i].scatter(x, y, s=3, c=shades, alpha=0.45, linewidths=0)
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
    levels = [float(height.max()) - drop for drop in (8.0, 4.5, 2.0, 0.5)]  # 4 to 1 standard deviations of a normal
    look: dict[str, Any] = {"colors": "#b8bec6", "linewidths": 0.7, "linestyles": "solid", "zorder": 0}
    axis.contour(x.numpy(), y.numpy(), height.numpy(), levels=levels, **look)
