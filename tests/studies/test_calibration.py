"""Simulation-based calibration: of right and wrong posterior draws, and of `posterior` with a rule that integrates."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from scoremh import MALA, Always, LineIntegral, Target, metropolis_hastings, targets
from scoremh.acceptance import Rule
from studies.posteriors.calibration import Calibration, calibration
from tests.cases import seeded

FALSE_ALARM_RATE = 1e-3
PRIOR = targets.Gaussian([0.0, 1.0], [[1.0, 0.5], [0.5, 2.0]])
NOISE = 0.7  # standard deviation of an observation of both coordinates


def simulate(x: Tensor, *, generator: torch.Generator) -> Tensor:
    return x + NOISE * torch.randn(x.shape, generator=generator)


def conjugate(data: Tensor, widen: float = 1.0) -> targets.Gaussian:
    """Return the posterior in closed form, or one that is wider by a factor."""
    precision = PRIOR.covariance.inverse()
    covariance = (precision + torch.eye(2) / NOISE**2).inverse()
    mean = covariance @ (precision @ PRIOR.mean + data / NOISE**2)
    return targets.Gaussian(mean, widen**2 * covariance)


def exact_draws(widen: float = 1.0, shift: float = 0.0) -> Callable[..., Tensor]:
    return lambda data, generator: conjugate(data, widen).sample(99, generator=generator) + shift


def by_chains(rule: Rule, step_size: float) -> Callable[..., Tensor]:
    """Return a function that samples the posterior, its prior known by its score, from the prior in 60 steps."""

    def draws(data: Tensor, *, generator: torch.Generator) -> Tensor:
        target = targets.posterior(Target(PRIOR.score), lambda x: -(x - data).square().sum(1) / (2 * NOISE**2))
        kernel = metropolis_hastings(target, MALA(step_size), rule)
        assert kernel.run is not None
        point = kernel.init(PRIOR.sample(99, generator=generator))
        return kernel.run(point, 60, generator=generator)[0].x

    return draws


def verdict(sample_posterior: Any, simulations: int = 200, seed: int = 0) -> Calibration:
    return calibration(
        PRIOR.sample,
        simulate,
        sample_posterior,
        simulations=simulations,
        false_alarm_rate=FALSE_ALARM_RATE,
        generator=seeded(seed),
    )


def test_right_draws_pass_and_wrong_ones_are_rejected() -> None:
    right = verdict(exact_draws())
    assert right.passed, right
    assert right.ranks.shape == (200, 2)
    assert int(right.ranks.min()) >= 0
    assert int(right.ranks.max()) <= 99
    assert str(right).startswith("ranks are compatible with uniform: p-value ")
    for wrong in (verdict(exact_draws(widen=1.6)), verdict(exact_draws(widen=0.6)), verdict(exact_draws(shift=0.4))):
        assert not wrong.passed, wrong
        assert str(wrong).startswith("ranks are not uniform")
    wide = verdict(exact_draws(widen=1.6)).ranks.double()
    assert float(wide.std()) < float(right.ranks.double().std())


def test_p_values_are_uniform_for_right_draws() -> None:
    """100 verdicts on ranks of independent uniforms; a Kolmogorov-Smirnov test with a false-alarm rate of 1e-3."""
    from scipy import stats

    p_values = []
    for seed in range(100):
        found = calibration(
            lambda n, generator: torch.rand(n, 1, generator=generator),
            lambda x, generator: x,
            lambda _, generator: torch.rand(30, 1, generator=generator),
            simulations=100,
            generator=seeded(seed),
        )
        p_values.append(found.p_value)
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


def test_ties_are_broken_at_random() -> None:
    found = calibration(
        lambda n, generator: torch.randint(2, (n, 1), generator=generator).float(),
        lambda x, generator: x,
        lambda _, generator: torch.randint(2, (19, 1), generator=generator).float(),
        simulations=400,
        generator=seeded(),
    )
    assert found.passed, found


@pytest.mark.slow
def test_a_posterior_by_line_integral_is_calibrated_and_ula_is_not() -> None:
    """100 simulations; ULA at a large step."""
    right = verdict(by_chains(LineIntegral(), 0.15), simulations=100)
    assert right.passed, right
    wrong = verdict(by_chains(Always(), 0.5), simulations=100)
    assert not wrong.passed, wrong


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"simulations": 10}, "simulations of at least 50"),
        ({"false_alarm_rate": 0.0}, "false_alarm_rate to be finite and above 0"),
        ({"sample_posterior": lambda data, generator: torch.zeros(5, 3)}, r"posterior draws of shape \(draw, 2\)"),
        ({"sample_posterior": lambda data, generator: torch.full((5, 2), torch.nan)}, "posterior's draws to be finite"),
        (
            {
                "sample_posterior": lambda data, generator: torch.zeros(
                    int(torch.randint(2, 99, (), generator=generator)), 2
                )
            },
            "posterior draws, as for the data before",
        ),
        ({"sample_prior": lambda n, generator: torch.zeros(3, 2)}, "draws of the prior, got 3"),
    ],
)
def test_bad_input_raises_an_error(options: dict[str, Any], text: str) -> None:
    parts: dict[str, Any] = {
        "sample_prior": PRIOR.sample,
        "simulate": simulate,
        "sample_posterior": exact_draws(),
        "generator": seeded(),
    }
    with pytest.raises(ValueError, match=text):
        calibration(**(parts | options))
