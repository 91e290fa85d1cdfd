"""How much memory a stored run takes: resident memory above that before it, over the second half of the run.

python -m benchmarks.memory CHAINS DRAWS
"""

import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from scoremh import MALA, LineIntegral, Target, metropolis_hastings, sample

INTERVAL_SECONDS = 0.2


def resident_bytes() -> int:
    """Return the memory of this process that is not of files (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def measured(chains: int, draws: int) -> dict[str, float]:
    """Sample into a store, and return the highest memory and how it grew, in MB and as a share."""
    kernel = metropolis_hastings(Target(score=lambda x: -x), MALA(0.5), LineIntegral())
    start = torch.zeros(chains, 2)
    sample(kernel, start[:10], draws=2)  # what a first run loads
    before, seen, done = resident_bytes(), [], threading.Event()

    def watch() -> None:
        while not done.wait(INTERVAL_SECONDS):
            seen.append(resident_bytes() - before)

    watcher, started = threading.Thread(target=watch), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        watcher.start()
        found = sample(kernel, start, draws=draws, generator=torch.Generator().manual_seed(0), store=folder)
        done.set()
        watcher.join()
        rate, size = found.acceptance_rate, sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
    half = seen[len(seen) // 2 :]
    quarter = len(half) // 2
    first, last = max(half[:quarter]), max(half[quarter:])
    return {
        "chains": chains,
        "draws": draws,
        "highest_mb": max(seen) / 1e6,
        "growth": (last - first) / (first + before),
        "on_disk_mb": size / 1e6,
        "seconds": time.monotonic() - started,
        "acceptance_rate": rate,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measured(*map(int, sys.argv[1:3]))))
