"""One progress bar for every long computation, in a terminal and in a notebook; it needs only rich."""

import html
import time
from collections.abc import Iterator
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
    """The total number of bars of a command, and the number of bars shown so far."""

    def __init__(self, total: int) -> None:
        self.total, self.shown = total, 0

    def label(self, label: str) -> str:
        """Return the label of the next bar with its number; without a number if there are more bars than announced."""
        self.shown += 1
        return f"step {self.shown} of {self.total}: {label}" if self.shown <= self.total else label


STEPS: ContextVar[Steps | None] = ContextVar("steps", default=None)


@contextmanager
def numbered_steps(total: int) -> Iterator[None]:
    """Number the progress bars inside the block, up to `total`: "step 2 of 6"."""
    token = STEPS.set(Steps(total))
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
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(label, total=total, rate="", note="")

        def tick(advance: int, note: str = "") -> None:
            speed = progress.tasks[0].finished_speed or progress.tasks[0].speed
            rate = "" if speed is None else f"{speed:,.0f} {unit}/s"
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
