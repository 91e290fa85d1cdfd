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
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

import torch

import scoremh
from benchmarks import estimator, losses, moves, timing
from benchmarks.timing import BARE, CASES, STEP_SIZE, Case, Effort, Measured, Ratio
from scoremh.networks import AcceptanceMLP, Free, Potential, PotentialMLP

SIMPSON, TRAJECTORIES = "MALA, Simpson", "Hamiltonian, 5 steps, per score call"
RULES: dict[str, Callable[[int], scoremh.Rule]] = {
    "ULA": lambda d: scoremh.Always(),
    "MALA, `LineIntegral()`": lambda d: scoremh.LineIntegral(),
    SIMPSON: lambda d: scoremh.LineIntegral("simpson"),
    "MALA, exact integral": lambda d: scoremh.LineIntegral("exact"),
    "MALA, learned potential": lambda d: scoremh.Learned(Potential(PotentialMLP(d)), "metropolis"),
    "MALA, learned, the paper's network": lambda d: scoremh.Learned(Free(AcceptanceMLP(d)), "metropolis"),
}
LEAPFROG_STEP, LEAPFROG_STEPS = 0.7, 5
# The most a row may cost with 100, 1,000 and 10,000 chains.
TARGETS = {
    "ULA": {100: 1.25, 1_000: 1.1, 10_000: 1.1},
    SIMPSON: {100: 2.3, 1_000: 2.3, 10_000: 2.3},
    TRAJECTORIES: {100: 1.5, 1_000: 1.15, 10_000: 1.15},
}
Rows = dict[str, dict[str, Measured]]
SECTION = """
## What a step of a sampler costs

{stamp} CPU time of one step of `sample` over that of one bare forward of the same score network (Softplus) on all
chains: medians of {rounds} rounds in which all alternatives took turns. Columns have the layers of the network and the
number of chains. Bold is above the limit for 100, 1,000 and 10,000 chains: {limits}.

{table}

- MALA with step size {step_size} accepted {least:.2f} to {most:.2f} of its candidates. Simpson's rule needs two score
  calls a step; `LineIntegral()` evaluates two more nodes where the decision is open.
- Learned rules have untrained networks: a potential of 128 x 3 layers, and the paper's 256 x 3 blocks.
- Half of all cells have quartiles within {spread:.0%} of their median.
"""


def ours(case: Case, effort: Effort) -> dict[str, Measured]:
    """Measure our rows in one case."""
    network = timing.score_network(case)
    target, proposal = scoremh.Target(score=network), scoremh.MALA(STEP_SIZE)
    kernels = {row: scoremh.metropolis_hastings(target, proposal, rule(case.dimension)) for row, rule in RULES.items()}
    kernels[TRAJECTORIES] = scoremh.hamiltonian(
        target, LEAPFROG_STEP, LEAPFROG_STEPS, scoremh.LineIntegral(), random_length=False
    )
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(case.chains, case.dimension, generator=generator)
    steps = timing.steps_for(lambda n: timing.forwards(network, x, n), effort)

    def sampling(row: str) -> Callable[[], scoremh.Chains]:
        draws = -(-steps // LEAPFROG_STEPS) if row == TRAJECTORIES else steps
        return lambda: scoremh.sample(kernels[row], x, draws=draws, generator=generator)

    alternatives: dict[str, Callable[[], object]] = {BARE: lambda: timing.forwards(network, x, steps)}
    seconds = timing.interleaved(alternatives | {row: sampling(row) for row in kernels}, effort)
    unit = timing.microseconds(seconds[BARE], steps)
    measured = {}
    for row in kernels:
        of_a_step, chains = timing.ratio(seconds[row], seconds[BARE], less=1 / steps), sampling(row)()
        if row == TRAJECTORIES:
            share = chains.score_calls / (case.chains * steps)
            of_a_step = timing.ratio(seconds[row], [share * bare for bare in seconds[BARE]])
        measured[row] = Measured(of_a_step, chains.acceptance_rate, unit)
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
    where = "Rows in JAX: jitted, in their own environment and process, on one core, in bare forwards in JAX"
    return rows, f"{where}; {versions}. The last row compares times, the frameworks' forwards included."


def report(rows: Rows, theirs: Rows, note: str, *, quick: bool) -> str:
    """Return the section of the page."""
    head = ["CPU time in bare forwards", *(case.label for case in CASES)]
    body = [[row, *(_cell(row, case, found[case.label]) for case in CASES)] for row, found in (rows | theirs).items()]
    body.append(_units("PyTorch", rows[SIMPSON]))
    for row, found in theirs.items():
        if SIMPSON in row:
            body.append(_units("JAX", found))
            parts = [(rows[SIMPSON][case.label], found[case.label]) for case in CASES]
            times = [our.ratio.median * our.unit / (its.ratio.median * its.unit) for our, its in parts]
            body.append([f"{SIMPSON}: our time to that in JAX", *(f"{time:.2f}" for time in times)])
    cells = [cell for found in rows.values() for cell in found.values()]
    rates = [rows[row][case.label].acceptance_rate for row in list(RULES)[1:4] for case in CASES]
    page = SECTION.format(
        stamp=timing.stamp(),
        rounds=(timing.QUICK if quick else timing.FULL).rounds,
        table=timing.markdown([head, *body]),
        step_size=STEP_SIZE,
        limits="; ".join(f"{row} {' / '.join(map(str, limits.values()))}" for row, limits in TARGETS.items()),
        least=min(rates),
        most=max(rates),
        spread=median((cell.ratio.high - cell.ratio.low) / 2 / cell.ratio.median for cell in cells),
    )
    return f"{page}- {note}\n"


def _cell(row: str, case: Case, cell: Measured) -> str:
    above = row in TARGETS and round(cell.ratio.median, 2) > TARGETS[row][case.chains]
    return f"**{cell.ratio.median:.2f}**" if above else f"{cell.ratio.median:.2f}"


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
    return report(rows, theirs, note, quick=quick)


def replaced(page: str, parts: Iterable[str]) -> str:
    """Return the page with these sections in the place of those with the same headings."""
    found = {text.partition("\n")[0]: text.strip() for text in re.split(r"\n(?=## )", page)}
    found |= {text.strip().partition("\n")[0]: text.strip() for text in parts}
    return "\n\n".join(found.values()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", type=Path, help="Python of the environment that has blackjax")
    parser.add_argument("--write", type=Path, help="write the page there as well")
    parser.add_argument("--quick", action="store_true", help="a short and noisy trial")
    parser.add_argument(
        "--only", choices=["sampler", "estimator", "losses", "moves"], help="measure this section again"
    )
    options = parser.parse_args()
    timing.steady()
    effort = timing.QUICK if options.quick else timing.FULL
    sections: dict[str, Callable[[], str]] = {
        "sampler": lambda: section(effort, options.peers),
        "estimator": lambda: estimator.section(effort),
        "moves": lambda: moves.section(effort),
        "losses": lambda: losses.section(effort),
    }
    old = options.write.read_text() if options.write and options.write.exists() else "# Benchmarks"
    page = replaced(old, (sections[name]() for name in ([options.only] if options.only else sections)))
    print(page)
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(page)


if __name__ == "__main__":
    main()
