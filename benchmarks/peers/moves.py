"""What every sampler of the comparison is to it, and ours."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.peers.effective import worst_share
from benchmarks.peers.law import Law, Score
from scoremh import (
    MALA,
    Kernel,
    LineIntegral,
    Rule,
    Target,
    ThroughNoise,
    diffusion,
    hamiltonian,
    metropolis_hastings,
    sample,
    tune,
    warmup,
)
from scoremh.sampling.tuning import Warmup

PILOT_SEED, PILOT_CHAINS, PILOT_STEPS = 0, 128, 150
LENGTHS = (2, 3, 5)  # largest numbers of leapfrog steps to choose from; each trajectory has 1 to this many
MAX_TANGENTS = 2  # dimensions up to which log p through noise is measured: it takes a tangent for every coordinate
LEVELS = 0.01, 10.0  # the noise that it is integrated over

SIMPSON, GAUSS, PLAIN, EXACT, HAMILTONIAN, NOISE = (
    "scoremh MALA, Simpson",
    "scoremh MALA, Gauss",
    "scoremh MALA, Simpson, one step size for all coordinates",
    "scoremh MALA, exact rule",
    "scoremh Hamiltonian",
    "scoremh MALA, through noise",
)
OURS = (SIMPSON, GAUSS, PLAIN, EXACT, HAMILTONIAN, NOISE)


class Moves(NamedTuple):
    """A sampler, ready to run."""

    settings: str
    transitions: int
    """How many one call of `advance` makes."""
    advance: Callable[[Tensor, int], tuple[Tensor, float]]
    """From where chains are and a seed to `(transition, chain, d)` and the score calls of all chains."""
    independent: int | None = None
    """Transitions after which draws are independent of the start, for a sampler that is not a Markov chain."""


def ours(law: Law, pool: ThreadPoolExecutor | None = None) -> Mapping[str, Callable[[], Moves]]:
    """Return our samplers by name, each to be tuned when it is called."""
    score = Target(Score(law))
    rules: dict[str, tuple[Target, Rule]] = {
        SIMPSON: (score, LineIntegral("simpson")),
        GAUSS: (score, LineIntegral("gauss")),
        EXACT: (score, LineIntegral("exact")),
    }
    if law.dimension <= MAX_TANGENTS:
        rules[NOISE] = (_with_levels(law), ThroughNoise())
    walks = {name: partial(_walk, law, *rule, pool) for name, rule in rules.items()}
    return walks | {PLAIN: partial(_plain, law, score, pool), HAMILTONIAN: partial(_trajectories, law, score, pool)}


def mala_step(law: Law) -> float:
    """Return the step size of `tune` for MALA, for peers without a tuning of their own."""
    generator = torch.Generator().manual_seed(PILOT_SEED)
    return tune(
        lambda h: metropolis_hastings(Target(Score(law)), MALA(h), LineIntegral("simpson")),
        law.sample(PILOT_CHAINS, PILOT_SEED),
        start=0.2,
        steps=PILOT_STEPS,
        generator=generator,
    )


def _warmed_up(law: Law, make: Callable[[float, Tensor | None], Kernel]) -> Warmup:
    generator = torch.Generator().manual_seed(PILOT_SEED)
    start = law.sample(PILOT_CHAINS, PILOT_SEED)
    return warmup(make, start, start=0.2, steps=2 * PILOT_STEPS, covariance="diagonal", generator=generator)


def _walk(law: Law, target: Target, rule: Rule, pool: ThreadPoolExecutor | None) -> Moves:
    found = _warmed_up(law, lambda h, c: metropolis_hastings(target, MALA(h, c), LineIntegral("simpson")))
    kernel = metropolis_hastings(target, MALA(found.step_size, found.covariance), rule)
    transitions = 5 if isinstance(rule, ThroughNoise) else 50
    settings = f"step size {found.step_size:.3g} and diagonal covariance by `warmup`"
    return Moves(settings, transitions, partial(_advance, kernel, transitions, pool))


def _plain(law: Law, target: Target, pool: ThreadPoolExecutor | None) -> Moves:
    h = mala_step(law)
    kernel = metropolis_hastings(target, MALA(h), LineIntegral("simpson"))
    return Moves(f"step size {h:.3g} by `tune`", 50, partial(_advance, kernel, 50, pool))


def _trajectories(law: Law, target: Target, pool: ThreadPoolExecutor | None) -> Moves:
    """Return the trajectories that are worth most per score call in a short run on a seed of its own."""

    def made(length: int) -> tuple[float, str, Kernel]:
        found = _warmed_up(
            law, lambda h, c: hamiltonian(target, h, length, LineIntegral(), covariance=c, random_length=True)
        )
        draws, calls = _advance(found.kernel, PILOT_STEPS, None, law.sample(PILOT_CHAINS, PILOT_SEED), PILOT_SEED)
        share = worst_share(law.functionals(draws))
        lengths = f"{(length + 1) // 2} to {length}"
        settings = f"{lengths} leapfrog steps of {found.step_size:.3g} and diagonal covariance by `warmup`"
        return share / calls, settings, found.kernel

    _, settings, kernel = max(map(made, LENGTHS), key=lambda found: found[0])
    return Moves(settings, 20, partial(_advance, kernel, 20, pool))


def _advance(
    kernel: Kernel, transitions: int, pool: ThreadPoolExecutor | None, x: Tensor, seed: int
) -> tuple[Tensor, float]:
    chains = sample(kernel, x, draws=transitions, generator=torch.Generator().manual_seed(seed), pool=pool)
    return chains.draws.transpose(0, 1), chains.score_calls


def _with_levels(law: Law) -> Target:
    net = Score(law)
    model = diffusion.from_score(net, LEVELS, by="sigma", variance=float(law.variances.mean()))
    return Target(net, levels=model)
