"""What every sampler of the comparison is to it, and ours: what `warmup` returns when it is called without options."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.peers.law import Law, Score
from scoremh import MALA, Kernel, LineIntegral, Target, hamiltonian, metropolis_hastings, sample, tune, warmup
from scoremh.sampling.tuning import MakeKernel, Warmup

PILOT_SEED, PILOT_CHAINS, PILOT_STEPS = 0, 128, 150
DEFAULT, WALK = "scoremh Hamiltonian", "scoremh MALA"
OURS = (DEFAULT, WALK)


class Moves(NamedTuple):
    """A sampler, ready to run."""

    settings: str
    transitions: int
    """How many one call of `advance` makes."""
    advance: Callable[[Tensor, int], tuple[Tensor, float]]
    """From where chains are and a seed to `(transition, chain, d)` and the score calls of all chains."""


def ours(law: Law) -> Mapping[str, Callable[[], Moves]]:
    """Return our samplers by name, each to be warmed up when it is called."""
    target = Target(Score(law))

    def trajectories(h: float, c: Tensor, length: int) -> Kernel:
        return hamiltonian(target, h, length, LineIntegral(), covariance=c)

    def walks(h: float, c: Tensor) -> Kernel:
        return metropolis_hastings(target, MALA(h, c), LineIntegral())

    return {DEFAULT: partial(_warmed_up, law, trajectories, 20), WALK: partial(_warmed_up, law, walks, 50)}


def _warmed_up(law: Law, make: MakeKernel, transitions: int) -> Moves:
    generator = torch.Generator().manual_seed(PILOT_SEED)
    found: Warmup = warmup(make, law.sample(PILOT_CHAINS, PILOT_SEED), generator=generator)
    length = "" if found.length is None else f" up to {found.length} leapfrog steps,"
    settings = f"`warmup`:{length} step size {found.step_size:.3g}, dense covariance"
    return Moves(settings, transitions, partial(_advance, found.kernel, transitions))


def _advance(kernel: Kernel, transitions: int, x: Tensor, seed: int) -> tuple[Tensor, float]:
    chains = sample(kernel, x, draws=transitions, generator=torch.Generator().manual_seed(seed))
    return chains.draws.transpose(0, 1), chains.score_calls


def mala_step(law: Law) -> float:
    """Return the step size of `tune` for MALA, for peers without a tuning of their own."""
    generator = torch.Generator().manual_seed(PILOT_SEED)
    return tune(
        lambda h: metropolis_hastings(Target(Score(law)), MALA(h), LineIntegral()),
        law.sample(PILOT_CHAINS, PILOT_SEED),
        start=0.2,
        steps=PILOT_STEPS,
        generator=generator,
    )
