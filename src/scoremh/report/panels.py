"""What a page is made of, and the words for what it leaves out."""

from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from torch import Tensor

from scoremh.report.contents import Contents
from scoremh.report.figures import Figure, clip, series

SAMPLERS = 6  # that are drawn; the table of metrics has them all


@dataclass(frozen=True)
class Panel:
    """A chart or an image, its heading, and its description for those who cannot see it."""

    title: str
    label: str
    figure: Figure | None = None
    image: str | None = None
    frames: dict[str, Any] | None = None
    colour: str = ""
    group: str = ""  # of charts whose axes move together
    square: bool = False


@dataclass(frozen=True)
class Section:
    """A heading, what to know about what is below, and panels in rows."""

    title: str
    words: list[str]
    rows: list[list[Panel]] = field(default_factory=list)


def colour(number: int) -> str:
    """Return the colour of the data, which come first, or of a sampler."""
    return series(number - 1) if number else "--data"


def shown(contents: Contents) -> list[tuple[str, Tensor]]:
    """Return names and rows: of the data, then of the samples that are drawn."""
    return [("data", contents.data), *islice(contents.samples.items(), SAMPLERS)]


def left_out(contents: Contents) -> list[str]:
    """Say which samples are not drawn, and how many rows and draws are not finite."""
    words = []
    hidden = len(contents.samples) - SAMPLERS
    if hidden > 0:
        words.append(f"{hidden} more samplers are in the table of metrics alone.")
    for name, x in [("the data", contents.data), *contents.samples.items()]:
        lost = int((~x.detach().float().flatten(1).isfinite().all(1)).sum())
        if lost:
            words.append(f"{lost:,} of {len(x):,} rows of {clip(name, 60)} are not finite and are left out.")
    return words


def lost_draws(draws: Tensor) -> list[str]:
    """Say how many draws are not finite."""
    lost, every = int((~draws.float().flatten(2).isfinite().all(2)).sum()), draws.shape[0] * draws.shape[1]
    return [f"{lost:,} of {every:,} draws are not finite and are left out."] if lost else []


def part(some: int, every: int, what: str) -> str:
    """Say how many there are, or how many of them are shown."""
    return f"{every:,} {what}" if some >= every else f"{some:,} of {every:,} {what}"
