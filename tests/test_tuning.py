"""A step size found before sampling."""

import math

import pytest
import torch

from scoremh import (
    MALA,
    PCN,
    Always,
    Exact,
    LineIntegral,
    RandomWalk,
    Target,
    TuningError,
    metropolis_hastings,
    sample,
    targets,
    tune,
)
from scoremh.types import Kernel

NORMAL = targets.Gaussian(torch.zeros(10))


def kernel_at(name: str, balance: str, step: float) -> Kernel:
    proposal = {"rw": RandomWalk, "mala": MALA, "pcn": PCN}[name](step)
    return metropolis_hastings(NORMAL, proposal, Exact(balance=balance))  # type: ignore[arg-type]


@pytest.mark.parametrize("balance", ["metropolis", "barker"])
@pytest.mark.parametrize("name", ["rw", "mala"])
@pytest.mark.parametrize("start", [1e-3, 30.0])
def test_the_kernel_accepts_at_its_own_rate_after_tuning(name: str, balance: str, start: float) -> None:
    g = torch.Generator().manual_seed(0)
    x = NORMAL.sample(200, generator=g)
    step = tune(lambda h: kernel_at(name, balance, h), x, start=start, generator=g)
    kernel = kernel_at(name, balance, step)
    wanted = {
        ("rw", "metropolis"): 0.234,
        ("rw", "barker"): 0.159,
        ("mala", "metropolis"): 0.574,
        ("mala", "barker"): 0.347,
    }
    assert kernel.target_rate == wanted[name, balance]
    assert sample(kernel, x, draws=100, generator=g).acceptance_rate == pytest.approx(kernel.target_rate, abs=0.03)


def test_a_rate_of_ones_own_and_the_same_seed_the_same_step() -> None:
    def run() -> float:
        g = torch.Generator().manual_seed(0)
        x = NORMAL.sample(200, generator=g)
        return tune(lambda h: kernel_at("mala", "metropolis", h), x, target_rate=0.9, generator=g)

    step = run()
    assert step == run()
    x = NORMAL.sample(200, generator=torch.Generator().manual_seed(1))
    assert sample(kernel_at("mala", "metropolis", step), x, draws=100).acceptance_rate == pytest.approx(0.9, abs=0.03)


def test_beta_stays_within_its_bound() -> None:
    """On its own reference pCN accepts everything: the largest beta is the answer."""
    x = NORMAL.sample(50, generator=torch.Generator().manual_seed(0))
    assert tune(lambda beta: kernel_at("pcn", "metropolis", beta), x, start=0.1, upper=1.0) == 1.0


def test_always_has_no_rate_to_aim_at() -> None:
    with pytest.raises(
        ValueError, match=r"acceptance rate to aim at, got MALA\(step_size=1.0\) with Always\(\).*target_rate"
    ):
        tune(lambda h: metropolis_hastings(NORMAL, MALA(h), Always()), torch.zeros(5, 10))


def test_an_impossible_rate_ends_with_its_numbers() -> None:
    with pytest.raises(
        TuningError, match=r"expected some step to be accepted at a rate of 0.5, got 1.000 at every step"
    ) as caught:
        tune(lambda h: metropolis_hastings(NORMAL, MALA(h), Always()), torch.zeros(5, 10), target_rate=0.5)
    assert caught.value.rate == 1.0
    assert caught.value.step > 1e15


def test_a_broken_score_ends_with_its_numbers() -> None:
    broken = Target(score=lambda x: torch.full_like(x, math.nan))
    with pytest.raises(TuningError, match=r"got 0.000 at every step.*NaN"):
        tune(lambda h: metropolis_hastings(broken, MALA(h), LineIntegral()), torch.zeros(5, 2))


@pytest.mark.parametrize("rate", [0.0, 1.0, 1.5])
def test_rates_outside_the_open_interval_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=r"target_rate in \(0, 1\)"):
        tune(lambda h: kernel_at("mala", "metropolis", h), torch.zeros(5, 10), target_rate=rate)
