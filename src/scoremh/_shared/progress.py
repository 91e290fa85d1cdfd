"""One progress bar for every long computation."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable


@runtime_checkable
class Tick(Protocol):
    """Advance a progress bar."""

    def __call__(self, advance: int, note: str = "") -> None:
        """Advance by so many units, and show a note beside the bar."""
        ...


@contextmanager
def progress_bar(total: int, label: str, *, unit: str, show: bool) -> Iterator[Tick]:
    """Yield a function that advances a progress bar on standard error; it does nothing unless `show`."""
    if not show:
        yield lambda advance, note="": None
        return
    from rich.console import Console  # here, so that `import scoremh` stays light
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

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
