"""Samples on the line, in panels side by side."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from scoremh._shared import checks
from scoremh.types import LogDensityFn
from studies.plots.style import INK, PAPER, frame, limits, looks_of

BINS = 60


def histogram_panels(
    panels: Mapping[str, Float[Tensor, " draw"]],
    path: str | Path,
    *,
    captions: Sequence[str] = (),
    log_density: LogDensityFn | None = None,
    title: str = "",
) -> None:
    """Draw histograms of samples in one dimension side by side, on the same axes, into a PNG.

    Args:
        panels: Samples by the title of their panel.
        path: File to write.
        captions: Captions below the panels.
        log_density: x of shape `(n, 1)` to log p(x), normalised, to show as a line over every panel.
        title: Title of the picture.
    """
    if not panels:
        raise ValueError(checks.message("at least one panel", "none", "Pass a dict from titles to tensors (n,)."))
    figure = Figure(figsize=(3.1 * len(panels), 3.2), dpi=150, layout="constrained", facecolor=PAPER)
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    low, high = limits(list(panels.values()))
    grid = torch.linspace(low, high, 300)
    looks = looks_of(list(panels))
    for i, (name, samples) in enumerate(panels.items()):
        values = samples.detach().cpu().double().numpy()
        axes[i].hist(values, bins=BINS, range=(low, high), density=True, color=looks[name].colour, alpha=0.5)
        if log_density is not None:
            axes[i].plot(grid.numpy(), log_density(grid[:, None]).exp().numpy(), color=INK, linewidth=1.6)
        frame(axes[i], name, captions[i] if i < len(captions) else "", equal=False)
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    figure.savefig(path)
