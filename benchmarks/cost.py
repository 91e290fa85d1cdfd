"""What a step costs, in bare forwards of its score network: `python -m benchmarks.cost`, or `make bench`.

    ratio = CPU time of sample(kernel, x, draws=n) / CPU time of n calls net(x) on all chains  -  1 / n

The last term is the forward at the start of a run, which no step makes. 1 is the floor of ULA, 2 that of MALA with
Simpson's rule. Alternatives take turns within a round.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import scoremh
from benchmarks import front_door, images, losses, matching, moves, timing
from benchmarks.timing import BARE, CASES, STEP_SIZE, Case, Effort, Measured, Ratio
from scoremh.sampling import blocks

RULES: dict[str, scoremh.Rule] = {
    "ULA": scoremh.Always(),
    "MALA, Simpson": scoremh.LineIntegral("simpson"),
    "MALA, gauss-3": scoremh.LineIntegral("gauss", nodes=3),
    "MALA, Lobatto": scoremh.LineIntegral(),
    "MALA, exact integral": scoremh.LineIntegral("exact"),
    "MALA, exact (log density in closed form)": scoremh.Exact(),
}
# The most a row may cost, by the number of chains.
TRAJECTORIES = "Hamiltonian, 5 steps"
LEAPFROG_STEP, LEAPFROG_STEPS = 0.7, 5
TARGETS = {"ULA": {100: 1.25, 1_000: 1.1, 10_000: 1.1}, "MALA, Simpson": {100: 2.3, 1_000: 2.2, 10_000: 2.2}}
TARGETS[TRAJECTORIES] = {100: 1.5, 1_000: 1.15, 10_000: 1.15}
CONTROL = "bare forward again, in the blocks of `sample`"
THREADS = "MALA, Simpson: two threads to one, wall clock"
Rows = dict[str, dict[str, Measured]]
SECTION = """
## What a step of a sampler costs

{stamp} CPU time of one step of `sample` over that of one bare forward of the same network (Softplus) on all chains:
medians of {rounds} rounds in which all alternatives took turns. Columns have the layers of the network and the
number of chains. Bold is above the limit for 100, 1,000 and 10,000 chains: {limits}.

{table}

- A step of a trajectory is one of its score calls, at nodes and midpoints.
- MALA with step size {step_size} accepted {least:.2f} to {most:.2f} of its candidates. `Exact` takes the log
  density in closed form, so that its row shows the kernel's own cost.
- Beyond 1,000 chains `sample` runs in blocks; the first row says what that alone does to a forward, and up to 1,000
  chains how far to trust the other rows.
"""


def ours(case: Case, effort: Effort) -> dict[str, Measured]:
    """Measure our rows in one case."""
    network = timing.score_network(case)
    target = scoremh.Target(score=network, log_density=timing.log_density)
    kernels = {row: scoremh.metropolis_hastings(target, scoremh.MALA(STEP_SIZE), rule) for row, rule in RULES.items()}
    kernels[TRAJECTORIES] = scoremh.hamiltonian(target, LEAPFROG_STEP, LEAPFROG_STEPS, scoremh.LineIntegral())
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(case.chains, case.dimension, generator=generator)
    steps = timing.steps_for(lambda n: timing.forwards(network, [x], n), effort)

    def sampling(row: str, pool: ThreadPoolExecutor | None = None) -> Callable[[], scoremh.Chains]:
        return lambda: scoremh.sample(kernels[row], x, draws=steps, generator=generator, pool=pool)

    alternatives: dict[str, Callable[[], object]] = {
        BARE: lambda: timing.forwards(network, [x], steps),
        CONTROL: lambda: timing.forwards(network, x.tensor_split(blocks(case.chains)), steps),
        **{row: sampling(row) for row in kernels},
    }
    seconds = timing.interleaved(alternatives, effort)
    unit = timing.microseconds(seconds[BARE], steps)
    measured = {CONTROL: Measured(timing.ratio(seconds[CONTROL], seconds[BARE]), 1.0, unit)}
    for row in kernels:
        of_a_step = timing.ratio(seconds[row], seconds[BARE], less=1 / steps)
        chains = sampling(row)()
        if row == TRAJECTORIES:
            calls = chains.score_calls / (len(x) * steps)
            of_a_step = timing.ratio(seconds[row], [calls * bare for bare in seconds[BARE]])
        measured[row] = Measured(of_a_step, chains.acceptance_rate, unit)
    if blocks(case.chains) > 1:
        threaded = {str(n): sampling("MALA, Simpson", pool=ThreadPoolExecutor(n)) for n in (1, 2)}
        wall = timing.interleaved(threaded, effort, clock=time.perf_counter)
        measured[THREADS] = measured["MALA, Simpson"]._replace(ratio=timing.ratio(wall["2"], wall["1"]))
    return measured


def peers(python: Path, *, quick: bool) -> tuple[Rows, str]:
    """Measure the peers in their environment; return their rows and a note."""
    command = [str(python.absolute()), "-m", "benchmarks.peers.cost", *(["--quick"] if quick else [])]
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XLA_FLAGS": flags}
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parents[1], env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        return {}, f"The peers were not measured: {type(error).__name__} from their environment."
    answer = json.loads(done.stdout)
    rows = {
        row: {case: Measured(Ratio(*ratio), rate, unit) for case, (ratio, rate, unit) in cells.items()}
        for row, cells in answer["rows"].items()
    }
    versions = ", ".join(f"{package} {version}" for package, version in answer["versions"].items())
    absent = f" Not installed there: {', '.join(answer['missing'])}." if answer["missing"] else ""
    return rows, f"Peers in their own environment and process, on one core: {versions}.{absent}"


def report(rows: Rows, note: str, *, quick: bool) -> str:
    """Return the section of the page."""
    head = ["CPU time in bare forwards", *(case.label for case in CASES)]
    body = [[row, *(_cell(row, case, cells) for case in CASES)] for row, cells in rows.items()]
    body += [_units("PyTorch", rows["ULA"])] + [_units("JAX", cells) for row, cells in rows.items() if "JAX" in row]
    table = [head, ["---"] * len(head), *body]
    rates = [cell.acceptance_rate for row, cells in rows.items() if "MALA" in row for cell in cells.values()]
    page = SECTION.format(
        stamp=timing.stamp(),
        rounds=(timing.QUICK if quick else timing.FULL).rounds,
        table="\n".join("| " + " | ".join(cells) + " |" for cells in table),
        step_size=STEP_SIZE,
        limits="; ".join(f"{row} {' / '.join(map(str, limits.values()))}" for row, limits in TARGETS.items()),
        least=min(rates),
        most=max(rates),
    )
    return f"{page}- {note}\n"


def _cell(row: str, case: Case, cells: dict[str, Measured]) -> str:
    if case.label not in cells:
        return ""
    median = cells[case.label].ratio.median
    return f"**{median:.2f}**" if _above(row, case, cells) else f"{median:.2f}"


def _above(row: str, case: Case, cells: dict[str, Measured]) -> bool:
    return row in TARGETS and round(cells[case.label].ratio.median, 2) > TARGETS[row][case.chains]


def _units(framework: str, cells: dict[str, Measured]) -> list[str]:
    return [f"one bare forward in {framework}, microseconds", *(f"{cells[case.label].unit:.0f}" for case in CASES)]


def section(effort: Effort, python: Path | None) -> str:
    """Measure all cases, and the peers, and return the section of the page."""
    rows: Rows = {}
    for case in CASES:
        for row, cell in ours(case, effort).items():
            rows.setdefault(row, {})[case.label] = cell
            print(
                f"{case.label}: {row} {cell.ratio.median:.2f}, acceptance {cell.acceptance_rate:.3f}", file=sys.stderr
            )
    quick = effort == timing.QUICK
    theirs, note = peers(python, quick=quick) if python else ({}, "The peers were not requested.")
    return report(rows | theirs, note, quick=quick)


def replaced(page: str, parts: Iterable[str]) -> str:
    """Return the page with these sections in the place of those with the same headings."""
    found = {text.partition("\n")[0]: text.strip() for text in re.split(r"\n(?=## )", page)}
    found |= {text.strip().partition("\n")[0]: text.strip() for text in parts}
    return "\n\n".join(found.values()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", type=Path, help="Python of the environment that has blackjax and torchebm")
    parser.add_argument("--write", type=Path, help="write the page there as well")
    parser.add_argument("--quick", action="store_true", help="a short and noisy trial")
    parser.add_argument(
        "--only",
        choices=["sampler", "images", "front_door", "losses", "matching", "moves"],
        help="measure this section again",
    )
    options = parser.parse_args()
    timing.steady()
    effort = timing.QUICK if options.quick else timing.FULL
    sections: dict[str, Callable[[], str]] = {
        "sampler": lambda: section(effort, options.peers),
        "images": lambda: images.section(effort),
        "front_door": lambda: front_door.section(effort),
        "losses": lambda: losses.section(effort),
        "matching": lambda: matching.section(effort),
        "moves": lambda: moves.section(effort, options.write.parent if options.write else None),
    }
    old = options.write.read_text() if options.write and options.write.exists() else "# Benchmarks"
    page = replaced(old, (sections[name]() for name in ([options.only] if options.only else sections)))
    print(page)
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(page)


if __name__ == "__main__":
    main()
