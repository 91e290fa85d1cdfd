"""Work that is killed at random and resumed: does it end with the same bits, and does it leave nothing behind?"""

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from benchmarks.soak.work import BEGUN, KINDS

MAX_SECONDS = 15.0  # of work until a kill: longer than the ten seconds between two checkpoints of a training
MAX_KILLS = 12  # of one run, which is then left to end
ORPHAN_SECONDS = 20.0


def command(kind: str, folder: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.soak.work", kind, folder]


def in_session(leader: int) -> list[int]:
    """Return the processes of a session that still run (Linux)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            found += [int(stat.parent.name)] * (int(session) == leader and state != "Z")
    return found


def orphans(leader: int) -> int:
    """Return how many processes outlive a killed one."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while (left := in_session(leader)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return len(left)


def undisturbed(kind: str) -> bytes:
    """Return what work prints that is never killed."""
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.check_output(command(kind, folder)).removeprefix(f"{BEGUN}\n".encode())


def campaign(seconds: float, kills: int, seed: int = 0) -> dict[str, Counter[str]]:
    """Kill and resume work of all kinds for some time and until so many kills; return what was counted, by kind."""
    right, dice = {kind: undisturbed(kind) for kind in KINDS}, random.Random(seed)
    found, ends = {kind: Counter[str]() for kind in KINDS}, time.monotonic() + seconds
    while time.monotonic() < ends or sum(count["kills"] for count in found.values()) < kills:
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as folder:
                _killed_run(kind, folder, right[kind], dice, found[kind])
    return found


def _killed_run(kind: str, folder: str, right: bytes, dice: random.Random, count: Counter[str]) -> None:
    """Kill a run again and again, until it ends or has been killed often, and count what happened."""
    for killed in range(MAX_KILLS + 1):
        options = {"stdout": subprocess.PIPE, "bufsize": 0, "start_new_session": True}  # no line but the first is read
        with subprocess.Popen(command(kind, folder), **options) as work:  # type: ignore[call-overload]
            work.stdout.readline()
            seconds = MAX_SECONDS * dice.random() ** 2  # most kills come early; one of six after ten seconds
            try:
                shown, _ = work.communicate(timeout=seconds if killed < MAX_KILLS else None)
            except subprocess.TimeoutExpired:
                work.kill()
                work.communicate()
                count["kills"] += 1
                count["orphans"] += orphans(work.pid)
                continue
        count["the same bits" if (work.returncode, shown) == (0, right) else "ANOTHER RESULT OR AN ERROR"] += 1
        return
