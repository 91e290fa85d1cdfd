"""What a move is worth, in effective draws per score call: `python -m benchmarks.cost --only moves`, or `make bench`.

    worth = least bulk effective sample size (ArviZ) over the functionals of a distribution / score calls of the run

Walks decide by Simpson's rule, at two score calls a step, and trajectories by the scores at their nodes, at one call a
step and a few midpoints, which are counted. Chains start from exact draws, so that nothing but mixing is measured, and
are so long that effective draws are many times the chains. Tuning and warm-up are not counted.
"""

import itertools
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from arviz_stats.base.array import array_stats
from torch import Tensor

from benchmarks import timing
from benchmarks.timing import Effort
from scoremh import (
    MALA,
    Barker,
    Kernel,
    LineIntegral,
    RandomWalk,
    Target,
    hamiltonian,
    metropolis_hastings,
    sample,
    targets,
    tune,
    warmup,
)

SEEDS, PILOT_SEED = (1, 2, 3), 0
CHAINS, TUNING_CHAINS, TUNING_STEPS, WARMUP_STEPS = 16, 64, 200, 600
CALLS, PILOT_SHARE = 120_000, 0.2  # score calls of every chain; the share of them to choose a trajectory's length by
MAX_KEPT_DRAWS = 8_000  # of every chain: more are thinned, which takes nothing from slow functionals
LENGTHS = (3, 4, 5, 8, 16, 24)  # largest numbers of leapfrog steps to choose from; each trajectory has 1 to this many
RATES = (0.651, 0.7, 0.8)  # acceptance rates to choose from for trajectories: the best in the limit, up to Stan's
NOISE = tuple(0.1 * 10 ** (k / 4) for k in range(11))  # sqrt(2h), more than a hundredfold range
SCALED_CHAINS, SCALED_STEPS, SCALED_LENGTH = 1_000, 100, 10
Make = Callable[[float, Tensor | None], Kernel]
SECTION = """
## What a move is worth

{stamp} Effective draws per 1,000 score calls, and the ratio to MALA's: the bulk effective sample size (ArviZ) along
the slowest direction, and of the worst functional. {chains} chains from exact draws, {calls:,} score calls each;
medians of three seeds. Step sizes are those of `tune`; lengths among {lengths} and rates among {rates} were chosen
by runs on another seed.

{table}

- Gaussian: the functionals are all axes and their squares. Close modes: two normals 3 standard deviations apart;
  the place along the modes, its sign, |x|^2, log p, and five other directions.
- "Warmed up": `warmup` learned a dense covariance from {tuning} chains in {warmup} steps.

![Worth of a score call against the step size](benchmarks_moves.png)

The picture has a 10-dimensional Gaussian whose standard deviations lie between 1 and 100: the mean squared jump of
the slowest coordinate per score call, over twice its variance, by the noise sqrt(2h) in units of the least standard
deviation.

{finding}
"""


class Law(NamedTuple):
    """A distribution with the functionals that chains have to mix in."""

    target: Any
    functionals: Callable[[Tensor], Tensor]
    """Draws `(chain, draw, d)` to numbers `(chain, draw, functional)`, the slowest direction first."""


class Worth(NamedTuple):
    """What one run found."""

    slowest_direction: float
    """Effective draws per 1,000 score calls."""
    worst: float
    """The same for the worst functional."""
    acceptance_rate: float


def gaussian() -> Law:
    """Return a Gaussian of condition number 100; chains are compared along all principal axes and their squares."""
    variances = torch.logspace(2, 0, 100, dtype=torch.float64)
    target = targets.Gaussian(torch.zeros_like(variances), variances.diag())
    return Law(target, lambda x: torch.cat([x, x.square()], -1))


def close_modes() -> Law:
    """Return two normals three standard deviations apart along a random direction of 50 dimensions.

    Chains are compared by the position along that direction, its sign, |x|^2, log p, and five orthogonal directions.
    """
    noise = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(PILOT_SEED))
    axes, _ = torch.linalg.qr(noise)
    along = axes[:, 0]
    target = targets.GaussianMixture(torch.tensor([0.5, 0.5]).double(), torch.stack([1.5 * along, -1.5 * along]))

    def functionals(x: Tensor) -> Tensor:
        log_density = target.log_density(x.flatten(0, 1)).reshape(x.shape[:2])
        return torch.cat(
            [x @ axes, (x @ along).sign()[..., None], x.square().sum(-1, keepdim=True), log_density[..., None]], -1
        )

    return Law(target, functionals)


def mala(target: Target, step_size: float, covariance: Tensor | None = None) -> Kernel:
    return metropolis_hastings(target, MALA(step_size, covariance), LineIntegral("simpson"))


def trajectories(target: Target, length: int, step_size: float, covariance: Tensor | None = None) -> Kernel:
    return hamiltonian(target, step_size, length, LineIntegral(), covariance=covariance)


def tuned(make: Make, law: Law, seed: int, *, warmed_up: bool, rate: float | None = None) -> Kernel:
    """Return the kernel with a step size for an acceptance rate, and with a covariance where it is warmed up."""
    generator = torch.Generator().manual_seed(seed)
    initial = law.target.sample(TUNING_CHAINS, generator=generator)
    if warmed_up:
        options: dict[str, Any] = {"estimate": "draws", "target_rate": rate, "generator": generator}
        return warmup(make, 3 * initial, steps=WARMUP_STEPS, **options).kernel
    step_size = tune(
        lambda h: make(h, None), initial, start=0.3, steps=TUNING_STEPS, target_rate=rate, generator=generator
    )
    return make(step_size, None)


def worth(kernel: Kernel, law: Law, calls: int, seed: int) -> Worth:
    """Run a kernel for about so many score calls of every chain."""
    generator = torch.Generator().manual_seed(1000 + seed)
    initial = law.target.sample(CHAINS, generator=generator)
    a_step = sample(kernel, initial, draws=100, generator=generator).score_calls / (100 * CHAINS)
    steps = round(calls / a_step)
    thin = max(1, steps // MAX_KEPT_DRAWS)
    chains = sample(kernel, initial, draws=steps // thin, thin=thin, generator=generator)
    values = law.functionals(chains.draws).numpy()
    effective = [
        float(array_stats.ess(values[..., i], chain_axis=0, draw_axis=1, method="bulk"))
        for i in range(values.shape[-1])
    ]
    thousand_calls = chains.score_calls / 1000
    return Worth(effective[0] / thousand_calls, min(effective) / thousand_calls, chains.acceptance_rate)


def chosen_trajectory(law: Law, calls: int, *, warmed_up: bool) -> tuple[int, float]:
    """Return the number of leapfrog steps and the rate that were worth most in a short run on a seed of its own."""
    score = Target(law.target.score)

    def found(choice: tuple[int, float]) -> float:
        length, rate = choice
        kernel = tuned(partial(trajectories, score, length), law, PILOT_SEED, warmed_up=warmed_up, rate=rate)
        return worth(kernel, law, round(PILOT_SHARE * calls), PILOT_SEED).worst

    return max(itertools.product(LENGTHS, RATES), key=found)


def compared(name: str, law: Law, calls: int, *, warmed_up: bool = False) -> list[list[str]]:
    """Return the rows of MALA and of Hamiltonian moves."""
    score, (length, rate) = Target(law.target.score), chosen_trajectory(law, calls, warmed_up=warmed_up)
    rows, first = [], (math.nan, math.nan)
    kernels: tuple[tuple[str, Make, float | None], ...] = (
        ("MALA", partial(mala, score), None),
        (f"Hamiltonian, {(length + 1) // 2} to {length} steps", partial(trajectories, score, length), rate),
    )
    for moves, make, aimed in kernels:
        runs = [worth(tuned(make, law, seed, warmed_up=warmed_up, rate=aimed), law, calls, seed) for seed in SEEDS]
        medians = statistics.median(r.slowest_direction for r in runs), statistics.median(r.worst for r in runs)
        first = medians if aimed is None else first
        cells = [f"{mine:.3g}, {mine / base:.2f}" for mine, base in zip(medians, first, strict=True)]
        rows.append([name, moves, f"{statistics.fmean(run.acceptance_rate for run in runs):.2f}", *cells])
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    return rows


def squared_jump(kernel: Kernel, initial: Tensor, variances: Tensor, seed: int) -> tuple[float, float]:
    """Return the squared jump of the slowest coordinate over twice its variance, per score call, and the acceptance."""
    generator = torch.Generator().manual_seed(seed)
    chains = sample(kernel, initial, draws=SCALED_STEPS, generator=generator)
    path = torch.cat([initial[:, None], chains.draws], 1)
    jumps = path.diff(dim=1).square().mean((0, 1)) / (2 * variances)
    a_step = (chains.score_calls - len(initial)) / (SCALED_STEPS * len(initial))
    return float(jumps.min()) / a_step, chains.acceptance_rate


def robustness() -> dict[str, list[tuple[float, float]]]:
    """Return what a score call is worth at every noise, and the acceptance rate, medians over the seeds."""
    variances = torch.logspace(0, 4, 10, dtype=torch.float64)
    law = targets.Gaussian(torch.zeros_like(variances), variances.diag())
    score, rule = Target(law.score), LineIntegral("simpson")
    makes: Mapping[str, Callable[[float], Kernel]] = {
        "random walk": lambda std: metropolis_hastings(score, RandomWalk(std), rule),
        "MALA": lambda std: metropolis_hastings(score, MALA(std**2 / 2), rule),
        "Barker": lambda std: metropolis_hastings(score, Barker(std**2 / 2), rule),
        "Hamiltonian": lambda std: trajectories(score, SCALED_LENGTH, std),
    }
    found: dict[str, list[tuple[float, float]]] = {}
    for name, make in makes.items():
        for std in NOISE:
            starts = [law.sample(SCALED_CHAINS, generator=torch.Generator().manual_seed(seed)) for seed in SEEDS]
            runs = [squared_jump(make(std), x, variances, seed) for x, seed in zip(starts, SEEDS, strict=True)]
            found.setdefault(name, []).append(tuple(statistics.median(parts) for parts in zip(*runs, strict=True)))
            print(name, f"{std:.3g}", found[name][-1], file=sys.stderr, flush=True)
    return found


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, the first of which is the head, as a table."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def finding(found: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Return how much of its best each move keeps at steps 3 times smaller and 3 times larger."""
    lines = []
    for name, cells in found.items():
        jumps = np.array([jump for jump, _ in cells])
        best = int(jumps.argmax())
        smaller, larger = (jumps[min(best + way, len(jumps) - 1)] / jumps[best] for way in (-2, 2))
        lines.append(
            f"- {name}: best at {NOISE[best]:.2g}; it keeps {smaller:.2g} of that at a step 3 times smaller, and "
            f"{larger:.2g} at one 3 times larger."
        )
    return "\n".join(lines)


def picture(found: Mapping[str, Sequence[tuple[float, float]]], path: Path) -> None:
    """Draw what a score call is worth against the step size."""
    from studies.plots import curves

    shown = {
        name: ([std for std, (jump, _) in zip(NOISE, cells, strict=True) if jump > 0], [j for j, _ in cells if j > 0])
        for name, cells in found.items()
    }
    labels = "noise of a step, in least standard deviations", "squared jump per score call, of 2 variances"
    curves(shown, path, labels=labels, log=True, title="Slowest coordinate, scales that differ by 100")


def section(effort: Effort, folder: Path | None) -> str:
    """Measure everything, draw the picture if a folder is given, and return the section of the page."""
    calls = CALLS if effort == timing.FULL else CALLS // 8
    table = [["distribution", "moves", "acceptance", "slowest direction, to MALA", "worst functional, to MALA"]]
    for name, law, warmed_up in (
        ("Gaussian, 100-d, condition number 100", gaussian(), False),
        ("two close modes, 50-d", close_modes(), False),
        ("the Gaussian, warmed up", gaussian(), True),
    ):
        table += compared(name, law, calls, warmed_up=warmed_up)
    found = robustness()
    if folder is not None:
        picture(found, folder / "benchmarks_moves.png")
    return SECTION.format(
        stamp=timing.stamp(),
        chains=CHAINS,
        calls=calls,
        lengths=", ".join(map(str, LENGTHS)),
        rates=", ".join(map(str, RATES)),
        table=markdown(table),
        tuning=TUNING_CHAINS,
        warmup=WARMUP_STEPS,
        finding=finding(found),
    )
