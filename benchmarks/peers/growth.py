"""How the cost of our step grows: exponents of power laws, fitted in logarithms."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import t as student

from benchmarks import timing
from benchmarks.peers.law import Law, Score
from scoremh import MALA, LineIntegral, Target, metropolis_hastings, sample

EFFORT = timing.Effort(0.0, steps=1, rounds=7)
STEPS = 6
CHAINS = (250, 500, 1_000, 2_000, 4_000, 8_000)
DIMENSIONS = (100, 200, 400, 800, 1_600)
NODES = (2, 4, 8, 16, 32)
WIDTHS = (64, 128, 256, 512, 1_024)


class Exponent(NamedTuple):
    """A power between the ends of its 95% interval."""

    low: float
    power: float
    high: float


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> Exponent:
    """Return b of cost = a size^b, by least squares in logarithms, with Student's interval."""
    x, y = np.log(sizes), np.log(costs)
    centred = x - x.mean()
    power = float(centred @ y / (centred @ centred))
    residual = y - y.mean() - power * centred
    error = math.sqrt(residual @ residual / (len(x) - 2) / (centred @ centred))
    width = float(student.ppf(0.975, len(x) - 2)) * error
    return Exponent(power - width, power, power + width)


def growth() -> dict[str, dict[str, list[float]]]:
    """Return CPU milliseconds of a step of MALA by what is varied and its size; medians of interleaved rounds."""
    return {
        "chains": _costs({n: _step(Law(10, 128), n) for n in CHAINS}),
        "dimension": _costs({d: _step(Law(d, 128), 500) for d in DIMENSIONS}),
        "nodes": _costs({n: _step(Law(10, 128), 500, LineIntegral("gauss", nodes=n)) for n in NODES}),
        "width": _costs({h: _step(Law(10, h), 500) for h in WIDTHS}),
    }


def _step(law: Law, chains: int, rule: LineIntegral | None = None) -> Callable[[], object]:
    kernel = metropolis_hastings(Target(Score(law)), MALA(0.1), rule or LineIntegral("simpson"))
    x, generator = law.sample(chains, 0), torch.Generator().manual_seed(0)
    return lambda: sample(kernel, x, draws=1, thin=STEPS, generator=generator)


def _costs(steps: Mapping[int, Callable[[], object]]) -> dict[str, list[float]]:
    seconds = timing.interleaved({str(size): step for size, step in steps.items()}, EFFORT)
    medians = [1e3 * float(np.median(taken)) / STEPS for taken in seconds.values()]
    return {"sizes": [float(size) for size in steps], "milliseconds": medians}
