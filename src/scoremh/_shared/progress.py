"""One progress bar for every long computation, in a terminal and in a notebook; it needs only rich."""

import html
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

NOTEBOOK_SECONDS = 0.2  # time between two updates of a bar in a notebook


@runtime_checkable
class Tick(Protocol):
    """Advance a progress bar."""

    def __call__(self, advance: int, note: str = "") -> None:
        """Advance by this number of units, and show a note beside the bar."""
        ...


class Steps:
    """The names of the bars that a command shows, and how many of them it has shown."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.shown = names, 0

    def label(self, label: str) -> str:
        """Return the name of the next bar, with its number; the label itself if there are more bars than names."""
        self.shown += 1
        if self.shown > len(self.names):
            return label
        return f"step {self.shown} of {len(self.names)}: {self.names[self.shown - 1]}"


STEPS: ContextVar[Steps | None] = ContextVar("steps", default=None)


@contextmanager
def named_steps(*names: str) -> Iterator[None]:
    """Name and number the progress bars within: "step 2 of 6: the noise level".

    Args:
        names: Names of the bars, in order.
    """
    token = STEPS.set(Steps(names))
    try:
        yield
    finally:
        STEPS.reset(token)


@contextmanager
def progress_bar(total: int, label: str, *, unit: str, show: bool) -> Iterator[Tick]:
    """Yield a function that advances a progress bar on standard error; it does nothing unless `show`."""
    if not show:
        yield lambda advance, note="": None
        return
    from rich.console import Console  # here, so that `import scoremh` stays light

    console, steps = Console(stderr=True), STEPS.get()
    shown = label if steps is None else steps.label(label)
    with (_notebook_bar if console.is_jupyter else _terminal_bar)(total, shown, unit, console) as tick:
        yield tick


@contextmanager
def _terminal_bar(total: int, label: str, unit: str, console: Any) -> Iterator[Tick]:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),  # it moves while a bar of few long units does not
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(label, total=total, rate="", note="")

        def tick(advance: int, note: str = "") -> None:
            speed = progress.tasks[0].finished_speed or progress.tasks[0].speed
            rate = "" if speed is None or speed < 1 else f"{speed:,.0f} {unit}/s"
            progress.update(task, advance=advance, rate=rate, note=note)

        yield tick


@contextmanager
def _notebook_bar(total: int, label: str, unit: str, console: Any) -> Iterator[Tick]:
    """Yield the function of a bar in HTML: without ipywidgets, rich shows no bar in a notebook."""
    from IPython.display import HTML, display  # always installed in a notebook

    began, done, updated = time.monotonic(), 0, 0.0
    handle = display(HTML(_bar(label, 0, total, "")), display_id=True)

    def tick(advance: int, note: str = "") -> None:
        nonlocal done, updated
        done, now = done + advance, time.monotonic()
        if now - updated < NOTEBOOK_SECONDS and done < total:
            return
        updated = now
        rate = f"{done / max(now - began, 1e-9):,.0f} {unit}/s"
        handle.update(HTML(_bar(label, done, total, f"{rate} {note}")))

    yield tick


def _bar(label: str, done: int, total: int, note: str) -> str:
    share = f"{100 * done / max(total, 1):.0f} %"
    bar = f'<progress value="{done}" max="{total}" style="vertical-align: middle"></progress>'
    return f"<div>{html.escape(label)} {bar} {share} {html.escape(note)}</div>"
