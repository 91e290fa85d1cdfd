"""Samples in three dimensions, in panels side by side."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from scoremh._shared import checks
from studies.plots.style import INK, PAPER, limits

VIEW = {"elev": 9, "azim": -83}  # along a rolled-up surface, so that its layers are seen


def space_panels(
    panels: Mapping[str, Float[Tensor, "draw 3"]], path: str | Path, *, captions: Sequence[str] = (), title: str = ""
) -> None:
    """Draw samples in three dimensions side by side, in the same box, coloured by their height, into a PNG.

    Args:
        panels: Points by the title of their panel; those outside the box of nearly all points are left out.
        path: File to write.
        captions: Captions below the panels.
        title: Title of the picture.
    """
    if not panels:
        raise ValueError(checks.message("at least one panel", "none", "Pass a dict from titles to tensors (n, 3)."))
    figure = Figure(figsize=(2.6 * len(panels), 3.4), dpi=90, layout="constrained", facecolor=PAPER)
    axes = figure.subplots(1, len(panels), squeeze=False, subplot_kw={"projection": "3d"})[0]
    clouds = list(panels.values())
    box = [limits([cloud[:, i] for cloud in clouds]) for i in range(3)]
    for i, (name, points) in enumerate(panels.items()):
        inside = [points[:, k].ge(low) & points[:, k].le(high) for k, (low, high) in enumerate(box)]
        x, y, z = points[inside[0] & inside[1] & inside[2]].detach().cpu().double().numpy().T
        axes[i].scatter(x, y, z, s=5, c=z, cmap="viridis", vmax=1.25 * box[2][1], alpha=0.9, linewidths=0)
        axes[i].set(xlim=box[0], ylim=box[1], zlim=box[2])
        axes[i].view_init(**VIEW)
        axes[i].set_box_aspect((1, 1, 1), zoom=1.25)
        axes[i].grid(visible=False)
        axes[i].tick_params(labelsize=6, colors=INK)
        axes[i].set_yticks([])
        axes[i].set_title(name, fontsize=10, color=INK)
        axes[i].text2D(0.5, -0.15, captions[i] if i < len(captions) else "", transform=axes[i].transAxes, ha="center")
    if title:
        figure.suptitle(title, fontsize=12, color=INK)
    figure.savefig(path)
