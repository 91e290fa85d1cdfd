"""What both environments share: the networks, the sizes, and a stopwatch that takes alternatives in turn.

A ratio is that of CPU times in the same round, so that whatever else the machine does meanwhile cancels; the median
over rounds is reported, and the quartiles beside it.
"""

import ctypes
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import scoremh

BARE = "bare forward"
STEP_SIZE = 1.0  # MALA then accepts .6 to .7 of its candidates, near the .574 that is best
MODE = 1.5  # the law is of two normals at +-MODE on the first axis: on one normal alone no decision would be open


class Case(NamedTuple):
    """A network `dimension -> hidden -> hidden -> dimension` and how many chains call it."""

    dimension: int
    hidden: int
    chains: int

    @property
    def network(self) -> str:
        return f"{self.dimension}-{self.hidden}-{self.hidden}-{self.dimension}"

    @property
    def label(self) -> str:
        return f"{self.network}, {self.chains:,}"


CASES = [Case(*network, chains) for network in ((2, 64), (3, 512)) for chains in (100, 1_000, 10_000)]


class Effort(NamedTuple):
    """How long to measure."""

    seconds: float
    """CPU time of the bare forwards in one measurement, where that is not fewer than `steps` of them."""
    steps: int
    rounds: int


FULL, QUICK = Effort(0.05, steps=5, rounds=7), Effort(0.03, steps=3, rounds=2)


class Ratio(NamedTuple):
    """A median over rounds between its quartiles."""

    low: float
    median: float
    high: float


class Measured(NamedTuple):
    """What one sampler costs in one case."""

    ratio: Ratio
    acceptance_rate: float
    unit: float
    """Microseconds of the bare forward the ratio is to."""


def steady() -> None:
    """Use one thread, and let glibc keep freed memory.

    By default a forward on 10,000 chains gives its memory back to the system and pays for it again, or does not,
    depending on what the heap looked like before: up to 1.8 times the unit, which would favour the measured code.
    """
    torch.set_num_threads(1)
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, at its maximum


def log_density(x: Tensor) -> Tensor:
    """Return -|x|^2 / 2 + log cosh(MODE x_1), the log density of the two normals up to a constant."""
    return x.square().sum(1).div(-2) + (MODE * x[:, 0]).cosh().log()


def score_network(case: Case) -> nn.Sequential:
    """Return a network close to the score of the two normals, so that its chains behave as on a real one."""
    return _fitted(case, case.dimension, lambda x: torch.func.grad(lambda y: log_density(y).sum())(x))


def density_network(case: Case) -> nn.Sequential:
    """Return a network with the same hidden layers close to their log density."""
    return _fitted(case, 1, lambda x: log_density(x)[:, None])


def _fitted(case: Case, outputs: int, wanted: Callable[[Tensor], Tensor]) -> nn.Sequential:
    torch.manual_seed(0)
    d, h = case.dimension, case.hidden
    network = nn.Sequential(nn.Linear(d, h), nn.Softplus(), nn.Linear(h, h), nn.Softplus(), nn.Linear(h, outputs))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.5 / h)
    for _ in range(500):
        x = 2 * torch.randn(256, d)  # wider than the law, for the candidates that are rejected
        loss = (network(x) - wanted(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.requires_grad_(False)


def steps_for(bare: Callable[[int], object], effort: Effort) -> int:
    """Return how many bare forwards fill a measurement."""
    bare(1)  # compile, allocate
    steps, taken = 1, 0.0
    while taken < effort.seconds / 2:
        steps, start = 2 * steps, time.process_time()
        bare(steps)
        taken = time.process_time() - start
    return max(effort.steps, round(steps * effort.seconds / taken))


@torch.inference_mode()
def forwards(network: nn.Module, x: Tensor, times: int) -> None:
    """Call a network so many times."""
    for _ in range(times):
        network(x)


def interleaved(alternatives: Mapping[str, Callable[[], object]], effort: Effort) -> dict[str, list[float]]:
    """Return the CPU seconds of every alternative in every round, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in alternatives}
    for _ in range(effort.rounds + 1):
        for name, alternative in alternatives.items():
            start = time.process_time()
            alternative()
            seconds[name].append(time.process_time() - start)
    return {name: taken[1:] for name, taken in seconds.items()}


def ratio(seconds: list[float], base: list[float], *, less: float = 0.0) -> Ratio:
    """Return seconds / base - less, round by round, as median and quartiles."""
    return Ratio(*statistics.quantiles([a / b - less for a, b in zip(seconds, base, strict=True)], n=4))


def microseconds(seconds: list[float], steps: int) -> float:
    """Return the median over rounds of what one of the steps took."""
    return 1e6 * statistics.median(seconds) / steps


def stamp() -> str:
    """Return when, where and with what was measured."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, scoremh {scoremh.__version__}"
    machine = f"{os.cpu_count()} cores ({processor()}), one thread"
    return f"Measured on {date.today().isoformat()}: {machine}, {versions}."


def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, the first of which is the head, as a table."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
