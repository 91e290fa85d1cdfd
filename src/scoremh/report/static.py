"""Static pictures of samples and chains, by matplotlib, on figures of their own: no global state is touched."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.extras import extra
from scoremh._shared.files import write_bytes
from scoremh.report.choice import few, finite, limits, spaced
from scoremh.report.looks import COLOURS, INK, PAPER, looks
from scoremh.report.mixing_charts import rank_densities
from scoremh.sampling.chains import Chains

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_POINTS = 5000  # of a scatter plot
TRACED_CHAINS = 4
BINS = 40


def chain_figure(chains: Chains) -> "Figure":
    """Return a figure of chains: their draws as a scatter plot or histogram, traces of a few, and ranks.

    Args:
        chains: Chains to show; of events with more than two coordinates, the first two are shown.
    """
    draws = chains.draws.detach().flatten(2)[..., :2].cpu().double()
    points, width = finite(draws.flatten(0, 1)), draws.shape[2]
    if not len(points):
        raise ValueError(checks.message("chains with a finite draw", "none", "See Chains.nonfinite for the cause."))
    figure = _figure(4.2 + 5.0 + 3.4, 2.1 * width + 1.4)
    grid = figure.add_gridspec(width, 3, width_ratios=(4.2, 5.0, 3.4))
    first, ends = figure.add_subplot(grid[:, 0]), [limits(column, column) for column in points.T]
    if width == 1:
        first.hist(points[:, 0].numpy(), bins=BINS, range=ends[0], density=True, color=COLOURS[0])
        _frame(first, "draws", "x[0]")
    else:
        _scatter(first, few(points, MAX_POINTS), ends[0], ends[1])
        _frame(first, "draws", "x[0]", "x[1]")
    for i in range(width):
        axes = figure.add_subplot(grid[i, 1])
        _traces(axes, draws[..., i], ends[i])
        _frame(axes, "traces" if i == 0 else "", "draw" if i == width - 1 else "", f"x[{i}]")
    for i in range(width):
        axes = figure.add_subplot(grid[i, 2])
        what = _ranks(axes, draws[..., i])
        _frame(axes, f"ranks, by {what}s" if i == 0 else "", "rank" if i == width - 1 else "")
    figure.suptitle(f"{len(draws):,} chains, acceptance {chains.acceptance_rate:.3f}", fontsize=12, color=INK)
    return figure


def scatter_panels(
    panels: Mapping[str, Tensor], path: str | Path, *, captions: Sequence[str] = (), title: str = ""
) -> None:
    """Draw samples in two dimensions side by side, on the same axes, into a PNG.

    Args:
        panels: Points `(draw, 2)` by the title of their panel. The axes are those of the first.
        path: File to write.
        captions: Line below each panel.
        title: Title above all panels.
    """
    if not panels:
        raise ValueError(checks.message("at least one panel", "none", "Pass a dict from titles to tensors (n, 2)."))
    figure = _figure(3.1 * len(panels), 3.9, dpi=600 // max(4, len(panels)))
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    first = finite(next(iter(panels.values()))).flatten()
    ends = limits(first, first)
    shades = looks(list(panels))
    for i, (name, points) in enumerate(panels.items()):
        _scatter(axes[i], points, ends, ends, shades[name][0])
        axes[i].set_aspect("equal")
        _frame(axes[i], name, captions[i] if i < len(captions) else "")
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    save_figure(figure, Path(path))


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure in the format that its suffix names, all of it or nothing.

    Args:
        figure: Figure to write.
        path: File to write.
    """
    figure.savefig(raw := io.BytesIO(), format=path.suffix.removeprefix(".") or "png")
    write_bytes(path, raw.getbuffer())


def _figure(width: float, height: float, dpi: int = 120) -> "Figure":
    with extra("report"):
        from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=dpi, layout="constrained", facecolor=PAPER)


def _scatter(
    axes: "Axes", points: Tensor, x: tuple[float, float], y: tuple[float, float], colour: str = COLOURS[0]
) -> None:
    values = points.detach().cpu().double().numpy()
    axes.scatter(values[:, 0], values[:, 1], s=3, c=colour, alpha=0.45, linewidths=0)
    axes.set_xlim(*x)
    axes.set_ylim(*y)


def _traces(axes: "Axes", draws: Tensor, ends: tuple[float, float]) -> None:
    for k, chain in enumerate(spaced(len(draws), TRACED_CHAINS).tolist()):
        axes.plot(range(1, draws.shape[1] + 1), draws[chain].numpy(), lw=0.9, color=COLOURS[k])
    axes.set_ylim(*ends)


def _ranks(axes: "Axes", draws: Tensor) -> str:
    """Draw the densities of ranks, and return what each of them is of."""
    parts, what = rank_densities(draws)
    for k, part in enumerate(parts):
        axes.stairs(part.numpy(), torch.linspace(0, 1, len(part) + 1).numpy(), color=COLOURS[k % len(COLOURS)])
    return what


def _frame(axes: "Axes", title: str, x_label: str = "", y_label: str = "") -> None:
    axes.set_title(title, fontsize=11, color=INK)
    axes.tick_params(labelsize=8, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(x_label, fontsize=9, color=INK)
    axes.set_ylabel(y_label, fontsize=9, color=INK)
