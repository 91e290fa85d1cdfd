"""Wall time against workers, and what goes over the wire, into docs/scaling.md.

python -m benchmarks.scaling --write
"""

import argparse
import json
import os
import pickle
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scoremh import MALA, LineIntegral, Target, metropolis_hastings, networks, sample
from scoremh.sampling.pools import dumped, run_remotely
from scoremh.sampling.sample import Plan, block_size, jobs_of, run_alone

PAGE = Path(__file__).parent.parent / "docs" / "scaling.md"
MARKS = ("<!-- measured -->", "<!-- end -->")
CHAINS = 10_000


def kernel() -> Any:
    """Return MALA with the paper's score network."""
    net = networks.ScoreMLP(2, 64, generator=torch.Generator().manual_seed(0)).requires_grad_(False)
    return metropolis_hastings(Target(score=net), MALA(0.01), LineIntegral("simpson"))


def seconds(pool: Any, steps: int) -> float:
    """Return the wall time of one run."""
    made, start = kernel(), torch.zeros(CHAINS, 2)
    began = time.perf_counter()
    sample(made, start, draws=1, thin=steps, generator=torch.Generator().manual_seed(0), pool=pool)
    return time.perf_counter() - began


def wire(steps: int) -> dict[str, float]:
    """Return the bytes of a kernel, of a block there and back, and what a block costs beside its steps."""
    size = block_size(CHAINS)
    payload = dumped(partial(run_alone, Plan(kernel(), 1, 0, steps, None)))
    job = jobs_of([torch.zeros(CHAINS, 2)[:size]], [0])[0]
    began = time.perf_counter()
    answer = run_remotely(payload, (0, job))
    made = time.perf_counter() - began
    return {
        "kernel_bytes": len(payload),
        "block_bytes": len(pickle.dumps(job)),
        "answer_bytes": len(pickle.dumps(answer)),
        "block_seconds": made,
        "blocks": CHAINS / size,
    }


def measured(steps: int, repeats: int) -> dict[str, Any]:
    """Return wall times by pool, medians over interleaved repeats."""
    torch.set_num_threads(1)
    pools: dict[str, Any] = {"here, one thread": None, "1 process": 1, "2 processes": 2}
    pools |= {"2 threads": ThreadPoolExecutor(2)}
    times: dict[str, list[float]] = {name: [] for name in pools}
    for _ in range(repeats):
        for name, pool in pools.items():
            times[name].append(seconds(pool, steps))
    medians = {name: statistics.median(values) for name, values in times.items()}
    load = os.getloadavg()[1]
    return {"load": load, "steps": steps, "repeats": repeats, "seconds": medians, "wire": wire(steps)}


def page(found: dict[str, Any]) -> str:
    """Return the measured part of the page."""
    times, sent = found["seconds"], found["wire"]
    one = times["1 process"]
    rows = "\n".join(f"| {name} | {value:.2f} s | {value / one:.2f} |" for name, value in times.items())
    overhead = one - times["here, one thread"]
    busy = sent["block_seconds"]
    thousand = sent["kernel_bytes"] * 1000 / 1e6
    least = int(max(1, found["steps"] / busy))
    lines = [
        f"{CHAINS:,} chains of MALA with Simpson's rule and the paper's score network (two hidden layers of 64), "
        f"{found['steps']} transitions each, {sent['blocks']:.0f} blocks; medians of {found['repeats']} interleaved "
        f"repeats, processes started and ended within; load average of the machine {found['load']:.1f}.",
        f"| pool | wall time | to one process |\n|---|---|---|\n{rows}",
        f"Over the wire go {sent['kernel_bytes']:,} bytes of kernel once per worker, {sent['block_bytes']:,} bytes for "
        f"a block and {sent['answer_bytes']:,} bytes back (with a store, some hundred). Starting processes and sending "
        f"blocks took {overhead:.2f} s beyond the same work here. A block was at work for {busy:.2f} s.",
        f"**1,000 workers**, computed from these, not measured: {thousand:.1f} MB of kernel in all; a scheduler "
        "that starts 1,000 blocks a second (dask's manual: about 1 ms a task) keeps ahead of blocks that last longer "
        f"than a second, which is {least:,} transitions or more of 2,500 chains.",
    ]
    return "\n" + "\n\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the numbers into docs/scaling.md")
    options = parser.parse_args()
    found = measured(options.steps, options.repeats)
    print(json.dumps(found, indent=1))
    if options.write:
        text = PAGE.read_text()
        before, rest = text.split(MARKS[0])
        PAGE.write_text(f"{before}{MARKS[0]}{page(found)}{MARKS[1]}{rest.split(MARKS[1])[1]}")
