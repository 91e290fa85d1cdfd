"""Annealing that knows when it is too early: rho, more and tuned steps, a predictor, a denoiser."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from scoremh import (
    MALA,
    Always,
    Exact,
    LineIntegral,
    RandomWalk,
    Target,
    anneal,
    annealing,
    metropolis_hastings,
    targets,
)
from scoremh.annealing import EarlyAnnealingWarning, noise_ratio
from scoremh.types import Kernel
from tests.cases import TARGETS, f64

D, NARROW = 784, 500  # as many pixels as MNIST has, of which these hardly vary
VARIANCES = torch.cat([torch.ones(D - NARROW), torch.full((NARROW,), 4e-4)])
MEANS = torch.zeros(2, D)
MEANS[:, 0] = torch.tensor([2.0, -2.0])
LOG_WEIGHTS = torch.tensor([0.6, 0.4]).log()
LEVELS = annealing.geometric(8.0, 0.06, 20)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def image_sized(level: float) -> Target:
    """Return a mixture of two modes blurred by a level; the same diagonal covariance for both, so in closed form."""
    variances = VARIANCES + level**2

    def score(x: Tensor) -> Tensor:
        shares = (LOG_WEIGHTS - (x[:, :1] - MEANS[:, 0]).square() / (2 * variances[0])).softmax(1)
        return (shares @ MEANS - x) / variances

    return Target(score)


def kernel_at(level: float, step: float) -> Kernel:
    return metropolis_hastings(image_sized(level), MALA(step * level**2), LineIntegral())


def start(chains: int) -> Tensor:
    return (LEVELS[0] ** 2 + VARIANCES).sqrt() * torch.randn(chains, D, generator=seeded(5))


def variance_ratios(x: Tensor) -> tuple[float, float]:
    """Return actual over expected variance in the narrow directions, and in the wide ones but for that of the modes."""
    found = x.var(0) / (VARIANCES + LEVELS[-1] ** 2)
    return float(found[-NARROW:].mean()), float(found[1:-NARROW].mean())


@pytest.mark.parametrize("name", ["gaussian", "mixture", "banana", "student"])
def test_rho_is_one_at_equilibrium(name: str) -> None:
    """For every distribution, however far from one that noise dominates: by Stein's identity."""
    law = TARGETS[name]
    kernel = metropolis_hastings(law, MALA(0.1), Exact())
    found = noise_ratio(kernel, law.sample(20_000, generator=seeded()), 1.0)
    assert found.standard_error < 0.02
    assert found.rho == pytest.approx(1.0, abs=4 * found.standard_error)
    assert not found.early


def test_rho_is_the_excess_of_noise() -> None:
    kernel = metropolis_hastings(targets.Gaussian(torch.zeros(D).double(), 4 * torch.eye(D)), MALA(0.1), Always())
    for rho in (0.8, 1.0, 1.2):
        x = 2 * rho * torch.randn(60, D, generator=seeded(1), dtype=torch.float64)
        found = noise_ratio(kernel, x, 2.0)
        assert found.rho == pytest.approx(rho, abs=4 * found.standard_error)
        assert found.early == (rho > 1.05)
        assert found.score_calls == 2 * -(-annealing.arrival.MEASURED_NUMBERS // D)


def test_kernels_without_a_score_know_no_rho() -> None:
    kernel = metropolis_hastings(TARGETS["gaussian"], RandomWalk(0.5), Exact())
    assert noise_ratio(kernel, f64([0.0, 0.0], [1.0, 1.0]), 1.0).score_calls == 0


def test_watching_warns_and_changes_no_draw() -> None:
    short: Any = {"steps_per_level": 6, "generator": seeded(1)}
    blind = anneal(lambda level: kernel_at(level, 0.1), LEVELS, start(50), **short)
    assert blind.rho is None
    with pytest.warns(EarlyAnnealingWarning, match=r"20 noise levels with more than 1\.05 times.*adaptive=True"):
        seen = anneal(
            lambda level: kernel_at(level, 0.1), LEVELS, start(50), **short | {"generator": seeded(1)}, watch=True
        )
    assert torch.equal(seen.draws, blind.draws)
    assert seen.rho is not None
    assert len(seen.rho) == 20
    assert seen.rho[-1] == pytest.approx(variance_ratios(seen.draws)[0] ** 0.5, rel=0.05)
    assert f"noise at last {seen.rho[-1]:.3f}" in repr(seen)


@pytest.mark.slow
def test_within_a_percent_in_the_narrow_directions_at_no_more_score_calls() -> None:
    """What was to be reached; the setting was chosen on another mixture, other levels and other seeds."""
    plain = anneal(lambda level: kernel_at(level, 0.1), LEVELS, start(200), steps_per_level=20, generator=seeded(1))
    assert variance_ratios(plain.draws)[0] > 1.015
    pilot = {"steps_per_level": 20, "generator": seeded(2)}
    steps = annealing.tune_steps(kernel_at, LEVELS, start(30), **pilot)  # type: ignore[arg-type]
    tuned = anneal(
        lambda level: kernel_at(level, steps[level]),
        LEVELS,
        start(200),
        steps_per_level=8,
        final_steps=100,
        adaptive=True,
        generator=seeded(1),
    )
    assert variance_ratios(tuned.draws)[0] == pytest.approx(1, abs=0.01)  # two standard errors
    pilot_calls = 2 * 30 * 20 * 20
    assert tuned.score_calls + pilot_calls <= plain.score_calls


def test_more_steps_are_made_where_chains_have_not_arrived(tmp_path: Path) -> None:
    options: Any = {"steps_per_level": 8, "adaptive": True}
    found = anneal(lambda level: kernel_at(level, 0.15), LEVELS, start(50), generator=seeded(1), **options)
    assert set(found.steps) <= {8 * rounds for rounds in range(1, 6)}
    assert sum(found.steps) > 8 * 20
    assert found.rho is not None
    assert max(found.rho) < 1.06
    stored = anneal(
        lambda level: kernel_at(level, 0.15), LEVELS, start(50), generator=seeded(1), store=tmp_path, **options
    )
    again = anneal(
        lambda level: kernel_at(level, 0.15), LEVELS, start(50), generator=seeded(1), store=tmp_path, **options
    )
    assert torch.equal(stored.draws, found.draws)
    assert torch.equal(again.draws, found.draws)


def test_a_predictor_leads_the_wide_directions_down() -> None:
    """Steps of the size of the noise are too short for them at low levels: their variance is what it once was."""
    options: Any = {"steps_per_level": 10, "final_steps": 60}
    alone, led = (
        anneal(lambda level: kernel_at(level, 0.2), LEVELS, start(200), generator=seeded(1), predict=predict, **options)
        for predict in (False, True)
    )
    assert variance_ratios(alone.draws)[1] > 1.1
    assert variance_ratios(led.draws)[1] == pytest.approx(1, abs=0.05)
    assert led.score_calls == alone.score_calls + 200 * 20


def test_the_last_noise_is_removed_when_asked() -> None:
    law = targets.Gaussian(f64(1.0, -1.0), f64([0.5, 0.1], [0.1, 0.4]))

    def at(level: float) -> Kernel:
        return metropolis_hastings(law.at(level), MALA(0.3 * level**2), LineIntegral())

    x = 3 * torch.randn(50, 2, generator=seeded(), dtype=torch.float64)
    noisy, clean = (anneal(at, [3.0, 0.5], x, generator=seeded(1), denoise=denoise) for denoise in (False, True))
    torch.testing.assert_close(clean.draws, noisy.draws + 0.25 * law.at(0.5).score(noisy.draws))
    assert clean.score_calls == noisy.score_calls + 50


def test_steps_are_tuned_to_the_rate_of_the_kernel() -> None:
    steps = annealing.tune_steps(kernel_at, LEVELS[::5], start(40), generator=seeded(2))
    assert list(steps) == LEVELS[::5]
    for level in LEVELS[::5]:
        x = (level**2 + VARIANCES).sqrt() * torch.randn(400, D, generator=seeded(3))
        kernel = kernel_at(level, steps[level])
        _, move = kernel.step(kernel.init(x), generator=seeded(4))
        assert 0.3 < float(move.accepted.double().mean()) < 0.8


def test_predicting_without_a_score_is_refused() -> None:
    def walk(level: float) -> Kernel:
        return metropolis_hastings(TARGETS["gaussian"], RandomWalk(0.5), Exact())

    for option in ("predict", "denoise"):
        with pytest.raises(ValueError, match="kernels that know the score"):
            anneal(walk, [1.0, 0.5], f64([0.0, 0.0]), steps_per_level=1, **{option: True})  # type: ignore[arg-type]
