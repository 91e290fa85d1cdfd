"""Everything that takes a pool: functions from a pool and a folder to tensors and numbers that may not depend on it."""

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scoremh import (
    MALA,
    Chains,
    LineIntegral,
    Sampler,
    ScoreMH,
    Target,
    annealing,
    metropolis_hastings,
    replica_exchange,
    sample,
    smc,
    targets,
)
from scoremh.types import Kernel, ScoreFn
from studies.framework import runner
from tests import estimator_cases
from tests.cases import seeded

LAW = targets.GaussianMixture([0.4, 0.6], [[-1.0, 0.0], [1.0, 0.5]])
KERNEL = metropolis_hastings(LAW, MALA(0.4), LineIntegral())
LEVELS = [2.0, 1.0, 0.5]
RECORDS = ("draws", "acceptance_prob", "accepted", "nonfinite", "outside")
Answer = list[Tensor | float]
Caller = Callable[[Any, Path | None], Answer]


def start(chains: int = 1300) -> Tensor:
    """Return where the chains start: two blocks of 650."""
    return LAW.sample(chains, generator=seeded())


def of_chains(chains: Chains) -> Answer:
    return [*(getattr(chains, name) for name in RECORDS), chains.score_calls, chains.moves, chains.factors]


def sampled(pool: Any, store: Path | None, score: ScoreFn = LAW.score) -> Answer:
    kernel = metropolis_hastings(Target(score), MALA(0.4), LineIntegral())
    return of_chains(sample(kernel, start(), draws=6, thin=2, generator=seeded(1), pool=pool, store=store))


def annealed(pool: Any, store: Path | None, score: ScoreFn | None = None) -> Answer:
    def kernel_at(level: float) -> Kernel:
        target = LAW.at(level) if score is None else Target(score)
        return metropolis_hastings(target, MALA(0.3 * level**2), LineIntegral())

    options: dict[str, Any] = {"steps_per_level": 4, "generator": seeded(1), "pool": pool, "store": store}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", annealing.EarlyAnnealingWarning)  # of so few steps per level
        found = annealing.anneal(kernel_at, LEVELS, start(), **options)
    return [found.draws, *found.acceptance_rates, *(found.rho or ()), found.score_calls]


def exchanged(pool: Any, store: Path | None, score: ScoreFn | None = None) -> Answer:
    def kernel_at(level: float) -> Kernel:
        target = LAW.at(level) if score is None else Target(score)
        return metropolis_hastings(target, MALA(0.3), LineIntegral())

    options: dict[str, Any] = {"draws": 3, "burn_in": 1, "generator": seeded(1), "pool": pool, "store": store}
    found = replica_exchange(kernel_at, LEVELS, start(), model=LAW, **options)
    return [found.draws, *found.last, found.round_trips, *found.swap_rates, *found.acceptance_rates, found.score_calls]


def particles(pool: Any, store: Path | None) -> Answer:
    posterior = targets.posterior(LAW, targets.linear_observation([[1.0, 0.5]], [0.5], std=0.3))
    options: dict[str, Any] = {"levels": [4.0, 1.0], "steps_per_level": 2, "pool": pool, "store": store}
    found = smc(posterior, particles=1300, generator=seeded(1), **options)
    return [found.draws, found.log_evidence, *found.effective_sizes, *found.acceptance_rates, found.score_calls]


def levels_placed(pool: Any, _: None) -> Answer:
    def kernel_at(level: float) -> Kernel:
        return metropolis_hastings(LAW.at(level), MALA(0.3), LineIntegral())

    options: dict[str, Any] = {"high": 2.0, "low": 0.5, "sweeps": 4, "generator": seeded(1), "pool": pool}
    return [*annealing.tune_levels(kernel_at, start(), model=LAW, **options)]


SAMPLER = Sampler(LAW, noise_level=0.5, step_size=0.3)
SHORT: dict[str, Any] = {"annealing_steps": 1, "chain_steps": 10}


def from_noise(pool: Any, store: Path | None) -> Answer:
    """Return draws that are carried down in two blocks."""
    return of_chains(SAMPLER.sample(1300, draws=10, generator=seeded(1), pool=pool, store=store, **SHORT))


def step_tuned(pool: Any, _: None) -> Answer:
    step_size = SAMPLER.tune(1300, annealing_steps=1, steps=5, generator=seeded(1), pool=pool).step_size
    assert step_size is not None
    return [step_size]


@cache
def fitted() -> ScoreMH:
    return ScoreMH(**estimator_cases.SMALL).fit(estimator_cases.FEW)


def estimated(pool: Any, store: Path | None) -> Answer:
    return of_chains(fitted().set_params(pool=pool).sample_chains(1300, draws=2, store=store))


def rows_drawn(pool: Any, _: None) -> Answer:
    return [torch.from_numpy(fitted().set_params(pool=pool).sample(1300))]


def studied(pool: Any, store: Path | None) -> Answer:
    from tests.studies.test_framework import KNOWN

    assert store is not None
    runner.compute(KNOWN, store, pool=pool)
    found = runner.cells_in(store, KNOWN.kinds)
    return [found[cell]["value"] for stage in KNOWN.stages(KNOWN.config) for cell in stage]


OF_A_SCORE: dict[str, Callable[..., Answer]] = {"sample": sampled, "anneal": annealed, "replica_exchange": exchanged}
STORED: dict[str, Caller] = OF_A_SCORE | {
    "smc": particles,
    "Sampler.sample": from_noise,
    "ScoreMH.sample_chains": estimated,
}
IN_MEMORY: dict[str, Any] = STORED | {
    "tune_levels": levels_placed,
    "Sampler.tune": step_tuned,
    "ScoreMH.sample": rows_drawn,
}
CALLERS: dict[str, tuple[Caller, bool]] = {
    **{f"{name}, stored": (caller, True) for name, caller in STORED.items()},
    **{name: (caller, False) for name, caller in IN_MEMORY.items()},
    "studies": (studied, True),
}


def assert_same(found: Answer, expected: Answer) -> None:
    assert len(found) == len(expected) > 0
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        same = torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
        assert same, f"number {number} of the answer"
