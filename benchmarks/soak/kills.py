"""Work that is killed at random and resumed: does it end with the same bits, and does it leave nothing behind?"""

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from benchmarks.soak.work import KINDS

MAX_SECONDS = 15.0  # until a kill: longer than the ten seconds between two checkpoints of a training
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


def campaign(seconds: float, seed: int = 0) -> dict[str, Counter[str]]:
    """Kill and resume work of all kinds for some time; return what was counted, by kind."""
    dice, ends = random.Random(seed), time.monotonic() + seconds
    found = {kind: Counter[str]() for kind in KINDS}
    right: dict[str, str] = {}
    while time.monotonic() < ends:
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as folder:
                if kind not in right:
                    right[kind] = subprocess.check_output(command(kind, folder), text=True)
                    continue
                _killed_run(kind, folder, right[kind], dice, found[kind], ends)
    return found


def _killed_run(kind: str, folder: str, right: str, dice: random.Random, count: Counter[str], ends: float) -> None:
    """Kill a run again and again until it ends, and count what happened."""
    while True:
        work = subprocess.Popen(command(kind, folder), stdout=subprocess.PIPE, text=True, start_new_session=True)
        try:
            shown, _ = work.communicate(timeout=dice.uniform(0.5, MAX_SECONDS))
        except subprocess.TimeoutExpired:
            work.kill()
            work.communicate()
            count["kills"] += 1
            count["orphans"] += orphans(work.pid)
            if time.monotonic() > ends:
                return
            continue
        count["the same bits" if (work.returncode, shown) == (0, right) else "ANOTHER RESULT OR AN ERROR"] += 1
        return
