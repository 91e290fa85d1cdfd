"""What the experiments share: cells that are computed once, and pages that are filled in from them."""

import json
import multiprocessing
import os
import signal
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from scoremh._shared import checks
from scoremh._shared.files import replacing, require_same

Task = tuple[str, ...]
SEPARATOR = " / "


def known(path: Path) -> dict[str, dict[str, Any]]:
    """Return the cells that are in a file."""
    cells: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return cells


def _begin() -> None:
    """Use one thread, and leave Ctrl-C to the parent, which ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def compute(
    tasks: Sequence[Task], cell: Callable[[Task], dict[str, Any]], path: Path, *, workers: int | None = None
) -> dict[str, dict[str, Any]]:
    """Return the cells of all tasks, by their names: those in the file, and the others, in order, computed now.

    Args:
        tasks: What to compute; a task is named by its words.
        cell: Computes one, in a process of its own with one thread.
        path: A JSON file that every cell is added to when it is done, so that an interrupted run goes on.
        workers: Cells at the same time; as many as there are cores if None.
    """
    cells = known(path)
    missing = [task for task in tasks if SEPARATOR.join(task) not in cells]
    console = Console()
    with ProcessPoolExecutor(workers or os.cpu_count(), initializer=_begin) as pool:
        running = {pool.submit(cell, task): task for task in missing}
        try:
            for number, done in enumerate(as_completed(running), len(tasks) - len(missing) + 1):
                name = SEPARATOR.join(running[done])
                cells[name] = done.result()
                with replacing(path) as partial:
                    partial.write_text(json.dumps(cells, indent=1))
                brief = {key: value for key, value in cells[name].items() if not isinstance(value, list | dict)}
                console.print(f"{number} of {len(tasks)}:", name, brief)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # else an interrupted run would first compute all the rest
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise
    return cells


def fill(page: str, parts: Mapping[str, str]) -> str:
    """Put the parts into their places, `<!-- name -->` to `<!-- end -->`."""
    for name, part in parts.items():
        before, mark, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        page = f"{before}{mark}{part}\n{end}{after}"
    return page


def fill_in(path: Path, parts: Mapping[str, str]) -> None:
    """Put the parts into a page, at its end where it has no place for them."""
    page = path.read_text() if path.exists() else ""
    for name in parts:
        if f"<!-- {name} -->" not in page:
            page += f"{page and chr(10)}<!-- {name} -->\n<!-- end -->\n"
    path.write_text(fill(page, parts))


def same(path: Path, settings: dict[str, Any], cells: Path) -> None:
    """Refuse a folder whose cells were computed with other settings, or with ones that nobody knows."""
    if path.exists():
        require_same(settings, json.loads(path.read_text()), path.parent, "experiment", "folder")
    elif cells.exists():
        fix = "Use another folder, or delete this one to begin again."
        raise ValueError(checks.message(f"{path} beside the results", "none", fix))
    else:
        path.write_text(json.dumps(settings, indent=1))


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation, 0 of one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def over_seeds(values: Sequence[float], digits: int = 3) -> str:
    """Return the mean, and the standard deviation where there are several values."""
    if not values:
        return ""
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} +- {spread(values):.{digits}f}" if len(values) > 1 else mean


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table, its first row the head."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
