"""One progress bar for everything long."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


@runtime_checkable
class Tick(Protocol):
    def __call__(self, advance: int, note: str = "") -> None: ...


@contextmanager
def progress_bar(total: int, label: str, *, unit: str, show: bool) -> Iterator[Tick]:
    """Yield a function to call as work gets done; it draws on standard error, or nothing unless `show`."""
    if not show:
        yield lambda advance, note="": None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=total, rate="", note="")

        def tick(advance: int, note: str = "") -> None:
            speed = progress.tasks[0].finished_speed or progress.tasks[0].speed
            rate = "" if speed is None else f"{speed:,.0f} {unit}/s"
            progress.update(task, advance=advance, rate=rate, note=note)

        yield tick
