"""Grids of images, as PNGs inside the page."""

import io
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from scoremh._shared.extras import extra
from scoremh.report.choice import few, finite, spaced

SIDE = 32  # pixels of an image along its longer side; larger ones are averaged down
GRID_BYTES, FRAME_BYTES = 220_000, 180_000  # of all grids side by side, and of all frames of a slider
MAX_IMAGES = 6  # along the side of a grid
TRANSPARENT = 128  # the shade between images; they take the next darker one for it
MAX_FRAMES = 60  # draws of a slider


def grids(clouds: Sequence[Tensor], ends: tuple[float, float]) -> list[str]:
    """Return a square grid of images of each sample, as the source of an <img>."""
    side = across(clouds[0], GRID_BYTES // len(clouds))
    chosen = [few(finite(few(x, 10 * side**2)), side**2) for x in clouds]  # some of ten times as many are finite
    return [png(_tiled(shades(x, ends), side)) for x in chosen]


def movie(draws: Tensor, ends: tuple[float, float]) -> dict[str, Any]:
    """Return the frames of a slider: a grid of chains at each of some draws."""
    chains = min(4, across(draws[:, 0], FRAME_BYTES // 8))
    kept = few(draws, chains**2)
    room = FRAME_BYTES // (chains**2 * shades(kept[:1, 0], ends)[0].numel())
    moments = spaced(draws.shape[1], min(MAX_FRAMES, max(2, room)))
    grids = [png(_tiled(shades(kept[:, k].cpu().double(), ends), chains)) for k in moments]
    return {"labels": (moments + 1).tolist(), "images": grids, "chains": len(kept)}


def across(images: Tensor, room: int) -> int:
    """Return the number of images along the side of a grid of this many bytes."""
    pixels = shades(images[:1].cpu().double(), (0.0, 1.0))[0].numel()
    return max(2, min(MAX_IMAGES, int((room / pixels) ** 0.5)))


def shades(images: Tensor, ends: tuple[float, float]) -> Tensor:
    """Return small images `(image, row, column, channel)` in bytes, of one channel or three."""
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
    """Return bytes `(row, column, channel)` as a PNG in a data: address."""
    with extra("report"):
        from PIL import Image

    grey = pixels.shape[2] == 1
    image = Image.fromarray((pixels[..., 0] if grey else pixels).contiguous().numpy())
    buffer = io.BytesIO()
    image.save(buffer, "png", compress_level=9, transparency=TRANSPARENT if grey else (TRANSPARENT,) * 3)
    return "data:image/png;base64," + b64encode(buffer.getvalue()).decode()


def _tiled(images: Tensor, side: int) -> Tensor:
    """Return a square of images, a pixel apart; the page shows through between them."""
    count, rows, columns, channels = images.shape
    tiles = torch.full((side * side, rows + 1, columns + 1, channels), TRANSPARENT, dtype=torch.uint8)
    tiles[:count, :rows, :columns] = images.where(images != TRANSPARENT, TRANSPARENT - 1)
    square = tiles.view(side, side, rows + 1, columns + 1, channels).movedim(2, 1)
    return square.reshape(side * (rows + 1), side * (columns + 1), channels)[:-1, :-1]
