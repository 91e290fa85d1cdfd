"""Sections and panels of a page, and the notes on what they leave out."""

from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from torch import Tensor

from scoremh.report.contents import Contents
from scoremh.report.figures import Figure, clip

MAX_SAMPLERS = 6  # in the panels; the table of metrics has them all
MAX_NAME_LENGTH = 60  # characters


@dataclass(frozen=True)
class Panel:
    """A chart or an image, its heading, and its description for screen readers."""

    title: str
    label: str
    figure: Figure | None = None
    image: str | None = None
    frames: dict[str, Any] | None = None
    colour: str = ""
    group: str = ""  # of charts whose axes move together
    square: bool = False


@dataclass(frozen=True)
class Grid:
    """A table: its head, and rows of texts; on a phone every row is a card."""

    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Section:
    """A heading, notes on what is below, panels in rows, and a table; a `half` has another beside it where it fits."""

    title: str
    notes: list[str]
    rows: list[list[Panel]] = field(default_factory=list)
    table: Grid | None = None
    half: bool = False


def clouds(contents: Contents) -> list[tuple[str, Tensor]]:
    """Return names and rows of the data, and of the samples that have a panel."""
    return [(data_title(contents), contents.data), *islice(contents.samples.items(), MAX_SAMPLERS)]


def data_title(contents: Contents) -> str:
    """Return the name of the data without its article, as a panel's heading."""
    return contents.data_name.removeprefix("the ")


def omissions(contents: Contents) -> list[str]:
    """Return notes on samples without a panel, and on rows that are not finite."""
    notes = []
    hidden = len(contents.samples) - MAX_SAMPLERS
    if hidden > 0:
        notes.append(f"{hidden} more samplers are in the table of metrics alone.")
    for name, x in [(contents.data_name, contents.data), *contents.samples.items()]:
        lost = int((~x.detach().float().flatten(1).isfinite().all(1)).sum())
        if lost:
            notes.append(
                f"{lost:,} of {len(x):,} rows of {clip(name, MAX_NAME_LENGTH)} are not finite and are left out."
            )
    return notes


def lost_draws(draws: Tensor) -> list[str]:
    """Return a note on draws that are not finite, where there are some."""
    lost, every = int((~draws.float().flatten(2).isfinite().all(2)).sum()), draws.shape[0] * draws.shape[1]
    return [f"{lost:,} of {every:,} draws are not finite and are left out."] if lost else []


def share(some: int, every: int, what: str) -> str:
    """Return how many there are, or how many of them are shown."""
    return f"{every:,} {what}" if some >= every else f"{some:,} of {every:,} {what}"
