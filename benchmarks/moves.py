"""Effective draws per score call of Hamiltonian moves, MALA, Barker and a random walk: `python -m benchmarks.moves`.

Bulk effective sample size (ArviZ), the least over the coordinates, over all score calls of the run after tuning. All
chains start from exact draws; every kernel decides by Simpson's rule, which asks for two scores a step.
"""

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
from arviz_stats.base.array import array_stats
from torch import Tensor

from scoremh import (
    MALA,
    Barker,
    Chains,
    Kernel,
    LineIntegral,
    RandomWalk,
    hamiltonian,
    metropolis_hastings,
    sample,
    targets,
    tune,
)

CHAINS, SEED = 16, 0
Make = Callable[[float], Kernel]


def gaussian(size: int, ratio: float) -> Any:
    """Return a Gaussian whose variances lie between 1 and a ratio, evenly in their logarithms."""
    return targets.Gaussian(torch.zeros(size), torch.logspace(0, math.log10(ratio), size).diag())


def close_modes(size: int) -> Any:
    """Return a mixture of two normals whose means are three standard deviations apart."""
    mean = torch.full((size,), 1.5 / math.sqrt(size))
    return targets.GaussianMixture(torch.tensor([0.5, 0.5]), torch.stack([mean, -mean]))


def least_effective(chains: Chains) -> float:
    """Return the bulk effective sample size of the worst coordinate."""
    x = chains.draws.double().numpy()
    return min(float(array_stats.ess(x[..., i], chain_axis=0, draw_axis=1)) for i in range(x.shape[-1]))


def walks(target: Any, steps: int) -> dict[str, Make]:
    rule = LineIntegral()
    return {
        "random walk": lambda h: metropolis_hastings(target, RandomWalk(math.sqrt(2 * h)), rule),
        "MALA": lambda h: metropolis_hastings(target, MALA(h), rule),
        "Barker": lambda h: metropolis_hastings(target, Barker(h), rule),
        f"Hamiltonian, 1 to {steps} steps": lambda h: hamiltonian(
            target, math.sqrt(2 * h), steps, rule, random_length=True
        ),
    }


def efficiency(make: Make, initial: Tensor, h: float, calls: int) -> tuple[float, float]:
    """Return effective draws per 1,000 score calls, and the acceptance rate, of a run of about so many calls."""
    g = torch.Generator().manual_seed(SEED)
    kernel = make(h)
    trial = sample(kernel, initial, draws=20, generator=g)
    draws = max(100, round(20 * calls / trial.score_calls))
    chains = sample(kernel, initial, draws=draws, generator=g)
    return 1000 * least_effective(chains) / chains.score_calls, chains.acceptance_rate


def tuned_rows(name: str, target: Any, steps: int, calls: int) -> list[str]:
    """Return a row for MALA and one for Hamiltonian moves, each tuned to its own rate."""
    g, rows, first = torch.Generator().manual_seed(SEED), [], 0.0
    for row, make in walks(target, steps).items():
        if row in ("random walk", "Barker"):
            continue
        h = tune(make, target.sample(100, generator=g), start=0.1, steps=150, generator=g)
        found, rate = efficiency(make, target.sample(CHAINS, generator=g), h, calls)
        first = first or found
        rows.append(f"| {name} | {row} | {h:.3g} | {rate:.2f} | {found:.3g} | {found / first:.1f} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=400_000, help="score calls of a run, over all chains")
    calls = parser.parse_args().calls
    print("| target | kernel | h | acceptance | effective draws per 1,000 score calls | to MALA |\n" + "|---" * 6 + "|")
    for name, target, steps in (
        ("Gaussian, 100-d, condition number 100", gaussian(100, 100), 30),
        ("two close modes, 50-d", close_modes(50), 8),
    ):
        print(*tuned_rows(name, target, steps, calls), sep="\n", flush=True)
    target, steps = gaussian(10, 1e4), 30
    # noise of standard deviation sqrt(2h); the least scale of the target is 1
    stds = [0.1 * 10 ** (k / 2) for k in range(5)]
    print("\n| noise, in least standard deviations | " + " | ".join(f"{std:.2g}" for std in stds) + " |")
    print("|---" * (1 + len(stds)) + "|")
    initial = target.sample(CHAINS, generator=torch.Generator().manual_seed(SEED))
    for row, make in walks(target, steps).items():
        found = [efficiency(make, initial, std**2 / 2, calls // 4) for std in stds]
        print(f"| {row} | " + " | ".join(f"{number:.3g} ({rate:.2f})" for number, rate in found) + " |", flush=True)


if __name__ == "__main__":
    main()
