"""Annealing: schedules, what it does to the weights of modes, and that a killed run goes on."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from scoremh import (
    MALA,
    Always,
    Exact,
    ImplicitScoreMatching,
    LineIntegral,
    Recipe,
    Target,
    anneal,
    annealing,
    fit_score,
    targets,
)
from scoremh import metropolis_hastings as mh
from scoremh.acceptance import Rule
from scoremh.types import Kernel


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def blurred(level: float) -> targets.GaussianMixture:
    """Figure 1's mixture with noise of this level added: the same modes, wider."""
    wide = (1 + level**2) * torch.eye(2)
    return targets.GaussianMixture([0.8, 0.2], [[5.0, 5.0], [-5.0, -5.0]], wide.expand(2, 2, 2))


def kernel_at(level: float, rule: Rule | None = None, step: float = 0.6) -> Kernel:
    return mh(blurred(level), MALA(step * level**2), LineIntegral("adaptive") if rule is None else rule)


LEVELS = annealing.geometric(12.0, 0.4, 20)


def test_schedules_go_from_high_to_low() -> None:
    assert annealing.geometric(8.0, 1.0, 4) == [8.0, 4.0, 2.0, 1.0]
    assert annealing.karras(5.0, 0.1, 3, rho=1.0) == pytest.approx([5.0, 2.55, 0.1])
    for schedule in (annealing.geometric, annealing.karras):
        levels = schedule(5.0, 0.02, 30)
        assert (levels[0], levels[-1], len(levels)) == (5.0, 0.02, 30)
        assert levels == sorted(levels, reverse=True)
        assert schedule(3.0, 0.5, 1) == [0.5]
    # Karras's steps are smaller where the noise is low than equal ones, and larger than geometric ones
    assert annealing.geometric(5.0, 0.02, 30)[15] < annealing.karras(5.0, 0.02, 30)[15] < 2.5


@pytest.mark.slow
def test_annealing_finds_the_weights_that_chains_alone_keep() -> None:
    """From N(0, 12^2 I): annealed MALA ends with .8 of its chains in the larger mode, MALA alone where they started."""
    start = 12 * torch.randn(4000, 2, generator=seeded())
    found = anneal(kernel_at, LEVELS, start, steps_per_level=20, final_steps=20, generator=seeded(1))
    share = float((found.draws.sum(1) > 0).double().mean())
    assert share == pytest.approx(0.8, abs=0.04)  # 6 standard errors and the bias of 20 levels
    alone = anneal(kernel_at, LEVELS[-1:], start, steps_per_level=420, generator=seeded(1))
    assert float((alone.draws.sum(1) > 0).double().mean()) == pytest.approx(0.5, abs=0.05)
    inside = found.draws[found.draws.sum(1) > 0]
    assert stats.kstest((inside[:, 0] - 5) / (1 + 0.4**2) ** 0.5, "norm").statistic < 0.04
    assert found.levels == (*LEVELS, LEVELS[-1])
    assert found.steps == (*[20] * 20, 20)
    assert all(0.3 < rate < 1 for rate in found.acceptance_rates)
    assert found.score_calls > 4000 * 420
    assert "from noise 12 to 0.4" in repr(found)


@pytest.mark.slow
def test_without_an_accept_step_the_law_is_too_wide() -> None:
    start = 12 * torch.randn(4000, 2, generator=seeded())

    def width(rule: Rule) -> float:
        options: Any = {"steps_per_level": 10, "generator": seeded(1)}
        unadjusted = isinstance(rule, Always)
        with pytest.warns(annealing.EarlyAnnealingWarning, match="smaller") if unadjusted else nullcontext():
            found = anneal(lambda level: kernel_at(level, rule, step=1.0), LEVELS, start, **options)
        assert (found.acceptance_rates[0] == 1) == unadjusted
        return float((found.draws.abs() - 5).square().mean())

    assert width(Exact()) < width(Always())


def test_a_killed_run_goes_on_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    start = torch.randn(50, 2, generator=seeded())

    class StopError(Exception):
        pass

    def until(limit: int) -> Any:
        asked = 0

        def limited(level: float) -> Kernel:
            nonlocal asked
            asked += 1
            if asked > limit:
                raise StopError
            return kernel_at(level)

        return limited

    options: Any = {"steps_per_level": 3, "final_steps": 4}
    whole = anneal(kernel_at, LEVELS[:6], start, generator=seeded(1), **options)
    with pytest.raises(StopError):
        anneal(until(4), LEVELS[:6], start, generator=seeded(1), store=tmp_path, **options)
    again = anneal(until(7), LEVELS[:6], start, generator=seeded(1), store=tmp_path, **options)
    assert torch.equal(whole.draws, again.draws)
    assert whole.acceptance_rates == again.acceptance_rates
    with pytest.raises(ValueError, match="to hold this run"):
        anneal(kernel_at, LEVELS[1:6], start, generator=seeded(1), store=tmp_path, **options)


def test_a_learned_score_is_a_target_at_every_level() -> None:
    x = 3 + torch.randn(500, 2, generator=seeded())
    fit = fit_score(x, recipe=Recipe(steps=100, check_every=50), generator=seeded())
    high, low = fit.at(5.0), fit.at(0.1)
    assert isinstance(high, Target)
    assert high.score is not None
    assert low.score is not None
    assert float(high.score(x).norm()) < 0.2 * float(low.score(x).norm())
    found = anneal(
        lambda level: mh(fit.at(level), MALA(0.3 * level**2), LineIntegral()),
        annealing.karras(5.0, 0.1, 8),
        3 + 5 * torch.randn(200, 2, generator=seeded(1)),
        generator=seeded(2),
    )
    assert float(found.draws.mean()) == pytest.approx(3, abs=0.3)
    plain = fit_score(x, ImplicitScoreMatching(), recipe=Recipe(steps=1, check_every=1))
    with pytest.raises(ValueError, match="a score that takes a noise level, got one by ScoreMLP"):
        plain.at(0.5)


def test_a_fit_knows_the_covariance_of_its_noise() -> None:
    x = torch.randn(400, 2, generator=seeded()) @ torch.tensor([[3.0, 0.0], [1.0, 0.5]])
    brief: Any = {"recipe": Recipe(steps=1, check_every=1), "generator": seeded()}
    assert fit_score(x, standardize=False, **brief).covariance is None
    whitened = fit_score(x, **brief).covariance
    assert whitened is not None
    torch.testing.assert_close(whitened, torch.cov(x.T, correction=0), rtol=1e-4, atol=1e-5)
    images = torch.randn(50, 40, generator=seeded())
    scaled = fit_score(images, **brief).covariance
    assert scaled is not None
    torch.testing.assert_close(scaled, images.sub(images.mean(0)).square().mean().expand(40))


REFUSED: dict[str, tuple[Any, str]] = {
    "levels that rise": (lambda: anneal(kernel_at, [0.1, 1.0], torch.zeros(3, 2)), "levels from high to low, got"),
    "no levels": (lambda: anneal(kernel_at, [], torch.zeros(3, 2)), r"levels from high to low, got \[\]"),
    "no steps": (lambda: anneal(kernel_at, [1.0], torch.zeros(3, 2), steps_per_level=0), "steps_per_level of at least"),
    "a flow that ends below 0": (
        lambda: annealing.flow(blurred, [1.0, -0.1], torch.zeros(3, 2)),
        "levels from high to low",
    ),
    "a flow through 0": (
        lambda: annealing.flow(blurred, [1.0, 0.0, 0.0], torch.zeros(3, 2)),
        "levels from high to low",
    ),
    "a flow that rises": (lambda: annealing.flow(blurred, [0.1, 1.0], torch.zeros(3, 2)), "levels from high to low"),
    "a flow without a score": (
        lambda: annealing.flow(lambda level: Target(), [1.0, 0.1], torch.zeros(3, 2)),
        "a target with a score, got one without",
    ),
    "upside down": (lambda: annealing.geometric(0.1, 1.0, 5), "low of at most high, got high=0.1 and low=1.0"),
    "no noise": (lambda: annealing.karras(1.0, 0.0, 5), "low to be finite and above 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    attempt, text = REFUSED[case]
    with pytest.raises(ValueError, match=text):
        attempt()
