"""Images: the sections of a page for events that are images, shown as PNGs inside the page, and static pictures.

Static pictures of samples and chains are drawn by matplotlib on figures of their own: no global state is changed.
"""

import io
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from scoremh._shared import checks
from scoremh._shared.files import write_bytes
from scoremh._shared.names import extra
from scoremh.report import charts
from scoremh.report.charts import (
    COLOURS,
    INK,
    PAPER,
    clip,
    colours,
    few,
    finite,
    limits,
    looks,
    rank_densities,
    share,
    spaced,
)
from scoremh.report.sections import (
    MAX_NAME_LENGTH,
    Contents,
    Panel,
    Section,
    clouds,
    data_title,
    lost_draws,
    omissions,
)
from scoremh.sampling.chains import Chains

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from scoremh.annealing.smc import Stage


SIDE = 32  # pixels of an image along its longer side; larger images are averaged down
GRID_BYTES, FRAME_BYTES = 220_000, 180_000  # bytes of all grids side by side, and of all frames of a slider
MAX_IMAGES = 6  # images along the side of a grid
TRANSPARENT = 128  # the shade between images; pixels of this shade become one darker
MAX_FRAMES = 60  # draws of a slider


def grids(clouds: Sequence[Tensor], ends: tuple[float, float]) -> list[str]:
    """Return a square grid of images for each sample, as the source of an <img>."""
    side = across(clouds[0], GRID_BYTES // len(clouds))
    chosen = [few(finite(few(x, 10 * side**2)), side**2) for x in clouds]  # spares for rows that are not finite
    return [png(_tiled(shades(x, ends), side)) for x in chosen]


def image_movie(draws: Tensor, ends: tuple[float, float]) -> dict[str, Any]:
    """Return the frames of a slider: a grid of chains at each of several draws."""
    chains = min(4, across(draws[:, 0], FRAME_BYTES // 8))
    kept = few(draws, chains**2)
    room = FRAME_BYTES // (chains**2 * shades(kept[:1, 0], ends)[0].numel())
    moments = spaced(draws.shape[1], min(MAX_FRAMES, max(2, room)))
    grids = [png(_tiled(shades(kept[:, k].cpu().double(), ends), chains)) for k in moments]
    return {"labels": (moments + 1).tolist(), "images": grids, "chains": len(kept)}


def across(images: Tensor, room: int) -> int:
    """Return the number of images along the side of a grid that fits into `room` bytes."""
    pixels = shades(images[:1].cpu().double(), (0.0, 1.0))[0].numel()
    return max(2, min(MAX_IMAGES, int((room / pixels) ** 0.5)))


def shades(images: Tensor, ends: tuple[float, float]) -> Tensor:
    """Return small images `(image, row, column, channel)` of bytes, with one or three channels."""
    x = images.unsqueeze(1) if images.ndim == 3 else images
    x = x if x.shape[1] in (1, 3) else x.mean(1, keepdim=True)
    shrink = max(x.shape[2:]) / SIDE
    if shrink > 1:
        rows, columns = (max(1, round(size / shrink)) for size in x.shape[2:])
        x = functional.adaptive_avg_pool2d(x, (rows, columns))
    low, high = ends
    x = (x - low) / (high - low or 1.0) * 255
    return x.nan_to_num(0, 255, 0).clamp(0, 255).round().to(torch.uint8).movedim(1, 3)


def png(pixels: Tensor) -> str:
    """Return bytes `(row, column, channel)` as a PNG in a data: URL."""
    with extra("report"):
        from PIL import Image

    grey = pixels.shape[2] == 1
    image = Image.fromarray((pixels[..., 0] if grey else pixels).contiguous().numpy())
    buffer = io.BytesIO()
    image.save(buffer, "png", compress_level=9, transparency=TRANSPARENT if grey else (TRANSPARENT,) * 3)
    return "data:image/png;base64," + b64encode(buffer.getvalue()).decode()


def _tiled(images: Tensor, side: int) -> Tensor:
    """Return a square of images with transparent gaps of one pixel."""
    count, rows, columns, channels = images.shape
    tiles = torch.full((side * side, rows + 1, columns + 1, channels), TRANSPARENT, dtype=torch.uint8)
    tiles[:count, :rows, :columns] = images.where(images != TRANSPARENT, TRANSPARENT - 1)
    square = tiles.view(side, side, rows + 1, columns + 1, channels).movedim(2, 1)
    return square.reshape(side * (rows + 1), side * (columns + 1), channels)[:-1, :-1]


def sections(contents: Contents) -> Iterator[Section]:
    """Yield the sections that show samples beside the data, and the chains."""
    seen = finite(few(contents.data, 1000))
    ends = (float(seen.min()), float(seen.max()))
    yield _grids(contents, ends)
    if contents.chains is None:
        return
    draws = contents.chains.draws.detach()
    yield _movie(draws, ends)
    means = draws.flatten(2).mean(2).cpu().double()
    chart = charts.traces(means, "mean of an image", seen.flatten(1).mean(1))
    trace = Panel("Brightness", "Lines: the mean of an image, for a few chains", chart)
    yield Section("Traces", [charts.traces_note(len(draws), contents.data_name)], [[trace]])
    step = charts.acceptance_by_step(contents.chains.acceptance_prob.detach().cpu().double())
    note = "The mean probability that a move is accepted, over the chains at every draw."
    yield Section("Acceptance", [note], [[Panel("By step", "Line: mean acceptance at every draw", step)]])


def _movie(draws: Tensor, ends: tuple[float, float]) -> Section:
    """Return a section with a grid of chains at the draw that a slider selects."""
    frames = image_movie(draws, ends)
    moments = share(len(frames["labels"]), draws.shape[1], "draws")
    label = "Images: one square per chain, at the draw of the slider"
    movie = Panel("", label, image=frames["images"][0], frames=frames, square=True)
    note = f"{share(frames['chains'], len(draws), 'chains')} at {moments}, one chain per square."
    return Section("Chains over time", [note, *lost_draws(draws)], [[movie]])


def _grids(contents: Contents, ends: tuple[float, float]) -> Section:
    names, samples = zip(*clouds(contents), strict=True)
    titles = [clip(name, MAX_NAME_LENGTH) for name in names]
    panels = [
        Panel(title, f"Images of {title}", image=image, colour=shade, square=True)
        for title, image, shade in zip(titles, grids(samples, ends), colours(titles), strict=True)
    ]
    rows, columns = contents.data.shape[-2:]
    small = f" They are averaged down to {SIDE} pixels." if max(rows, columns) > SIDE else ""
    channels = contents.data.shape[1] if contents.data.ndim == 4 else 1
    mixed = "" if channels in (1, 3) else f" The mean of their {channels} channels is shown."
    note = f"{rows} x {columns} pixels, from the smallest value of {contents.data_name} (black) to the largest."
    return Section(f"Samples beside {data_title(contents)}", [note + small + mixed, *omissions(contents)], [panels])


MAX_POINTS = 5000  # largest number of points of a scatter plot
TRACED_CHAINS = 4
BINS = 40


def chain_figure(chains: Chains) -> "Figure":
    """Return a figure of chains: a scatter plot or histogram of their draws, traces of a few chains, and ranks."""
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


def stages_figure(stages: Sequence["Stage"], particles: int) -> "Figure":
    """Return a figure of particles on their way down: effective sample size, acceptance and noise level by stage.

    Args:
        stages: What happened at every stage.
        particles: Number of particles.
    """
    figure = _figure(9.0, 3.6)
    shares, levels = figure.subplots(1, 2)
    numbers = range(len(stages))
    shares.plot(numbers, [stage.effective_size / particles for stage in stages], color=COLOURS[0], label="effective")
    resampled = [n for n in numbers if stages[n].resampled]
    sizes = [stages[n].effective_size / particles for n in resampled]
    shares.scatter(resampled, sizes, color=COLOURS[0], marker="v", label="resampled")
    shares.plot(
        numbers, [stage.acceptance_rate for stage in stages], color=COLOURS[1], linestyle="--", label="accepted"
    )
    shares.set_ylim(0, 1.05)
    shares.legend(fontsize=8)
    _frame(shares, "share of the particles, or of the moves", "stage")
    noisy = [n for n in numbers if stages[n].level > 0]
    levels.plot(noisy, [stages[n].level for n in noisy], color=COLOURS[2], marker=".")
    levels.set_yscale("log")
    _frame(levels, "noise level", "stage")
    return figure


def scatter_panels(
    panels: Mapping[str, Tensor], path: str | Path, *, captions: Sequence[str] = (), title: str = ""
) -> None:
    """Draw samples in two dimensions side by side, on the same axes, and save the picture as a PNG."""
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
    """Write a figure in the format of its suffix; the file is written whole or not at all."""
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
    """Draw the densities of ranks, and return the name of a part: chain or quarter."""
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
