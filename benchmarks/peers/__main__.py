"""Compare with peers: `python -m benchmarks.peers`, or `make peers`, in the environment that has them."""

import argparse
import os
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RESULTS, PAGE = DOCS / "results" / "peers.json", DOCS / "peers.md"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"  # before JAX is loaded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--page", action="store_true", help="write the page from what was measured, and measure nothing"
    )
    if not parser.parse_args().page:
        _measure()
    from benchmarks.peers.page import page, picture

    PAGE.write_text(page(RESULTS))
    picture(RESULTS, DOCS)


def _measure() -> None:
    from benchmarks import timing
    from benchmarks.peers.run import run

    _load_jax_on_one_core()
    timing.steady()
    run(RESULTS)


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
