"""What a move is worth, in effective draws per score call: `python -m benchmarks.cost --only moves`, or `make bench`.

    worth = least bulk effective sample size (ArviZ) over the functionals of a distribution / score calls of the run

Walks decide by Simpson's rule, at two score calls a step, and trajectories by the scores at their nodes, at one call a
step and a few midpoints, which are counted. Chains start from exact draws, so that nothing but mixing is measured.
Tuning and warm-up are not counted.
"""

import statistics
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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

SEEDS, AXES_SEED = (1, 2, 3), 0
CHAINS, CALLS = 64, 20_000  # chains of a run, and score calls of every chain
TUNED, LONGER = "MALA, tuned", 3  # mixes slowly, and has runs so many times as long
TUNING_STEPS, WARMUP_STEPS = 200, 1_000
MAX_KEPT_DRAWS = 4_000  # of every chain: more are thinned, which takes nothing from slow functionals
NOISE = tuple(10 ** (k / 4 - 0.5) for k in range(9))  # sqrt(2h), a hundredfold range
SCALED_CHAINS, SCALED_STEPS = 1_000, 100
Make = Callable[[float], Kernel]
SIMPSON = LineIntegral("simpson")
SECTION = """
## What a move is worth

{stamp} Effective draws of the worst functional (bulk effective sample size, ArviZ) per 1,000 score calls: {chains}
chains from exact draws, {calls:,} score calls each ({longer} times as many for "tuned"); medians of {seeds} seeds.
"Tuned" is `tune`, which learns a step size; "warmed up" is `warmup`, which learns a dense covariance too, and the
length of trajectories.

{table}

- Gaussian: the functionals are all axes and their squares. Close modes: two normals 3 standard deviations apart;
  the place along the modes, its sign, |x|^2, log p, and five other directions.
- Tuning and warm-up, from starts three times as wide, are not counted.

How much a wrong step size costs, on a 10-dimensional Gaussian whose standard deviations lie between 1 and 100: the mean
squared jump of the slowest coordinate per score call, by the noise sqrt(2h) in units of the least standard deviation.

{robustness}
"""


class Law(NamedTuple):
    """A distribution with the functionals that chains have to mix in."""

    target: Any
    functionals: Callable[[Tensor], Tensor]
    """Draws `(chain, draw, d)` to numbers `(chain, draw, functional)`."""


def gaussian() -> Law:
    """Return a Gaussian of condition number 100; chains are compared along all principal axes and their squares."""
    variances = torch.logspace(2, 0, 100, dtype=torch.float64)
    target = targets.Gaussian(torch.zeros_like(variances), variances.diag())
    return Law(target, lambda x: torch.cat([x, x.square()], -1))


def close_modes() -> Law:
    """Return two normals three standard deviations apart along a random direction of 50 dimensions.

    Chains are compared by the position along that direction, its sign, |x|^2, log p, and five orthogonal directions.
    """
    noise = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(AXES_SEED))
    axes, _ = torch.linalg.qr(noise)
    along = axes[:, 0]
    target = targets.GaussianMixture(torch.tensor([0.5, 0.5]).double(), torch.stack([1.5 * along, -1.5 * along]))

    def functionals(x: Tensor) -> Tensor:
        log_density = target.log_density(x.flatten(0, 1)).reshape(x.shape[:2])
        return torch.cat(
            [x @ axes, (x @ along).sign()[..., None], x.square().sum(-1, keepdim=True), log_density[..., None]], -1
        )

    return Law(target, functionals)


def tuned_mala(score: Target, start: Tensor, generator: torch.Generator) -> Kernel:
    def make(step_size: float) -> Kernel:
        return metropolis_hastings(score, MALA(step_size), SIMPSON)

    return make(tune(make, start, start=0.3, steps=TUNING_STEPS, generator=generator))


def warmed_up_mala(score: Target, start: Tensor, generator: torch.Generator) -> Kernel:
    def make(step_size: float, covariance: Tensor) -> Kernel:
        return metropolis_hastings(score, MALA(step_size, covariance), SIMPSON)

    return warmup(make, start, steps=WARMUP_STEPS, generator=generator).kernel


def warmed_up_trajectories(score: Target, start: Tensor, generator: torch.Generator) -> Kernel:
    def make(step_size: float, covariance: Tensor, length: int) -> Kernel:
        return hamiltonian(score, step_size, length, LineIntegral(), covariance=covariance)

    return warmup(make, start, steps=WARMUP_STEPS, generator=generator).kernel


MOVES: Mapping[str, Callable[[Target, Tensor, torch.Generator], Kernel]] = {
    TUNED: tuned_mala,
    "MALA, warmed up": warmed_up_mala,
    "Hamiltonian, warmed up": warmed_up_trajectories,
}


def worth(kernel: Kernel, law: Law, calls: int, generator: torch.Generator) -> tuple[float, float]:
    """Return effective draws per 1,000 score calls, and the acceptance rate, in about so many calls of every chain."""
    initial = law.target.sample(CHAINS, generator=generator)
    a_step = sample(kernel, initial, draws=100, generator=generator).score_calls / (100 * CHAINS)
    steps = round(calls / a_step)
    thin = -(-steps // MAX_KEPT_DRAWS)
    chains = sample(kernel, initial, draws=steps // thin, thin=thin, generator=generator)
    values = law.functionals(chains.draws).numpy()
    effective = min(
        float(array_stats.ess(values[..., i], chain_axis=0, draw_axis=1, method="bulk"))
        for i in range(values.shape[-1])
    )
    return 1000 * effective / chains.score_calls, chains.acceptance_rate


def compared(name: str, law: Law, calls: int) -> list[list[str]]:
    """Return the rows of all moves."""
    score, found = Target(law.target.score), {}
    for move, learned in MOVES.items():
        runs = []
        for seed in SEEDS:
            generator = torch.Generator().manual_seed(seed)
            kernel = learned(score, 3 * law.target.sample(CHAINS, generator=generator), generator)
            runs.append(worth(kernel, law, LONGER * calls if move == TUNED else calls, generator))
        found[move] = [statistics.median(parts) for parts in zip(*runs, strict=True)]
        print(name, move, *found[move], file=sys.stderr, flush=True)
    first = next(iter(found.values()))[0]
    return [[name, move, f"{rate:.2f}", f"{each:.3g}", f"{each / first:.2f}"] for move, (each, rate) in found.items()]


def squared_jump(kernel: Kernel, initial: Tensor) -> float:
    """Return the squared jump of the slowest coordinate per score call."""
    chains = sample(kernel, initial, draws=SCALED_STEPS, generator=torch.Generator().manual_seed(SEEDS[0]))
    jumps = torch.cat([initial[:, None], chains.draws], 1)[..., -1].diff(dim=1).square().mean()
    return float(jumps) / (chains.score_calls / len(initial) - 1)


def robustness() -> list[list[str]]:
    """Return the best noise of every move, and how much of its best it keeps at others."""
    variances = torch.logspace(0, 4, 10, dtype=torch.float64)
    law = targets.Gaussian(torch.zeros_like(variances), variances.diag())
    score, initial = Target(law.score), law.sample(SCALED_CHAINS, generator=torch.Generator().manual_seed(SEEDS[0]))
    makes: Mapping[str, Make] = {
        "random walk": lambda std: metropolis_hastings(score, RandomWalk(std), SIMPSON),
        "MALA": lambda std: metropolis_hastings(score, MALA(std**2 / 2), SIMPSON),
        "Barker": lambda std: metropolis_hastings(score, Barker(std**2 / 2), SIMPSON),
        "Hamiltonian, 5 to 10 steps": lambda std: hamiltonian(score, std, 10, LineIntegral()),
    }
    rows = [["move", "best noise", "kept at 3 times less", "kept at 3 times more"]]
    for name, make in makes.items():
        jumps = [squared_jump(make(std), initial) for std in NOISE]
        best = max(range(2, len(NOISE) - 2), key=jumps.__getitem__)
        rows.append([name, f"{NOISE[best]:.2g}", *(f"{jumps[best + way] / jumps[best]:.2g}" for way in (-2, 2))])
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def section(effort: Effort) -> str:
    """Measure everything and return the section of the page."""
    calls = CALLS if effort == timing.FULL else CALLS // 10
    table = [["distribution", "moves", "acceptance", "effective draws", f"to {TUNED}"]]
    table += compared("Gaussian, 100-d, condition number 100", gaussian(), calls)
    table += compared("two close modes, 50-d", close_modes(), calls)
    return SECTION.format(
        stamp=timing.stamp(),
        chains=CHAINS,
        calls=calls,
        seeds=len(SEEDS),
        longer=LONGER,
        table=timing.markdown(table),
        robustness=timing.markdown(robustness()),
    )
