"""Pictures. The only module that imports a plotting library; it draws on figures of its own and keeps no state."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from scoremh import _checks
from scoremh.types import LogDensityFn, ScoreFn, SupportFn

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
        _frame(axes[i], name, captions[i] if i < len(captions) else "")
        axes[i].set_xlim(low, high)
        axes[i].set_ylim(low, high)
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    figure.savefig(path)


def field_panels(
    scores: Mapping[str, ScoreFn],
    samples: Float[Tensor, "draw 2"],
    path: str | Path,
    *,
    captions: Sequence[str] = (),
    support: SupportFn | None = None,
    title: str = "",
) -> None:
    """Draw scores in two dimensions side by side, over the samples they belong to, into a PNG.

    Arrows have the direction of the score; the darker, the longer it is.

    Args:
        scores: From a panel's title to x -> grad log p(x).
        samples: Drawn behind the arrows.
        path: The file to write.
        captions: A line below each panel.
        support: Where to draw arrows; everywhere if None.
        title: Above all.
    """
    if not scores:
        raise ValueError(_checks.message("at least one panel", "none", "Pass a dict from titles to scores."))
    (left, right), (below, above) = (_limits([column]) for column in samples.T)
    height = 1.4 + 3.4 * (above - below) / (right - left)
    figure = Figure(figsize=(3.6 * len(scores) + 0.7, height), dpi=150, layout="constrained", facecolor=PAPER)
    axes = figure.subplots(1, len(scores), sharex=True, sharey=True, squeeze=False)[0]
    grid = torch.stack(
        torch.meshgrid(torch.linspace(left, right, 27), torch.linspace(below, above, 27), indexing="xy"), -1
    ).reshape(-1, 2)
    grid = grid if support is None else grid[support(grid)]
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
        _frame(axes[i], name, captions[i] if i < len(captions) else "")
        axes[i].set_xlim(left, right)
        axes[i].set_ylim(below, above)
    bar = figure.colorbar(arrows, ax=list(axes), shrink=0.7, pad=0.01)
    bar.set_label("log(1 + length)", fontsize=8, color=INK)
    bar.ax.tick_params(labelsize=7, colors=INK)
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    figure.savefig(path)


def curves(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    path: str | Path,
    *,
    labels: tuple[str, str],
    title: str = "",
) -> None:
    """Draw curves into a PNG.

    Args:
        lines: From a curve's name to its abscissae and ordinates.
        path: The file to write.
        labels: Of the two axes.
        title: Above all.
    """
    if not lines:
        raise ValueError(_checks.message("at least one curve", "none", "Pass a dict from names to (x, y)."))
    figure = Figure(figsize=(6.4, 3.6), dpi=150, layout="constrained", facecolor=PAPER)
    axis = figure.subplots()
    for i, (name, (x, y)) in enumerate(lines.items()):
        axis.plot(x, y, color=COLOURS[i % len(COLOURS)], linewidth=1.6, label=name)
    axis.legend(fontsize=8, frameon=False, labelcolor=INK)
    axis.set_xlabel(labels[0], fontsize=9, color=INK)
    axis.set_ylabel(labels[1], fontsize=9, color=INK)
    axis.tick_params(labelsize=8, colors=INK)
    axis.spines[["top", "right"]].set_visible(False)
    if title:
        axis.set_title(title, fontsize=11, color=INK)
    figure.savefig(path)


def _frame(axis: Axes, title: str, caption: str) -> None:
    axis.set_title(title, fontsize=11, color=INK)
    axis.set_aspect("equal")
    axis.tick_params(labelsize=8, colors=INK)
    axis.spines[["top", "right"]].set_visible(False)
    if caption:
        axis.set_xlabel(caption, fontsize=9, color=INK)


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
