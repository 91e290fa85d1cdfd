"""One process that works on and on: do its memory and its open files grow?"""

import gc
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.memory import resident_bytes
from benchmarks.soak.damage import CASES

LEAST_ROUNDS = 8


class Usage(NamedTuple):
    """What a process takes.

    Args:
        memory: Bytes that are not of files.
        files: Open files.
    """

    memory: int
    files: int


def open_files() -> int:
    """Return how many files this process has open (Linux)."""
    return len(list(Path("/proc/self/fd").iterdir()))


def once() -> None:
    """Sample, train, fit and save, and read again all that was written."""
    for case in CASES.values():
        with TemporaryDirectory() as folder:
            case.write(Path(folder))
            case.read(Path(folder))


def campaign(seconds: float, work: Callable[[], object] = once) -> list[Usage]:
    """Work for some time; return what the process takes after every round."""
    found: list[Usage] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends or len(found) < LEAST_ROUNDS:
        work()
        gc.collect()
        found.append(Usage(resident_bytes(), open_files()))
    return found


def growth(found: list[Usage]) -> tuple[float, int]:
    """Return by which share memory, and by how many open files, grew over the second half of the rounds."""
    half = found[len(found) // 2 :]
    first, last = (
        (max(u.memory for u in part), max(u.files for u in part))
        for part in (half[: len(half) // 2], half[len(half) // 2 :])
    )
    return last[0] / first[0] - 1, last[1] - first[1]
