"""Compare with peers: `python -m benchmarks.peers`, or `make peers`, in the environment that has them."""

import argparse
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "docs" / "results" / "peers.json", ROOT / "docs" / "peers.md"
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, help="measure the cells of so many threads only, and write no page")
    parser.add_argument(
        "--page", action="store_true", help="write the page from what was measured, and measure nothing"
    )
    options = parser.parse_args()
    if options.threads:
        _measure(options.threads)
        return
    if not options.page:
        for threads in (1, 2):  # JAX learns how many when it is loaded
            flags = ONE_THREAD if threads == 1 else ""
            environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "XLA_FLAGS": flags}
            command = [sys.executable, "-m", "benchmarks.peers", "--threads", str(threads)]
            subprocess.run(command, cwd=ROOT, env=environment, check=True)
    from benchmarks.peers.page import page

    PAGE.write_text(page(RESULTS))


def _measure(threads: int) -> None:
    from benchmarks import timing
    from benchmarks.peers.run import run

    if threads == 1:
        _load_jax_on_one_core()
    timing.steady()
    run(RESULTS, threads)


def _load_jax_on_one_core() -> None:
    """Let XLA see one core: no flag keeps it to one thread. Afterwards the process may run on any."""
    if find_spec("jax") is None or not hasattr(os, "sched_setaffinity"):
        return
    import jax

    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    jax.devices()
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


if __name__ == "__main__":
    main()
