"""From noise to draws: `Sampler`, its parts, and its errors."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from scoremh import (
    Always,
    LineIntegral,
    MultilevelDenoising,
    RandomWalk,
    Recipe,
    Sampler,
    ScoreFit,
    annealing,
    datasets,
    fit_score,
    metrics,
    targets,
)
from tests.cases import seeded

BRIEF = Recipe(steps=60, check_every=20)


@pytest.fixture(scope="module")
def score() -> ScoreFit:
    return fit_score(datasets.moons(400, generator=seeded()), recipe=BRIEF, generator=seeded())


def test_a_walk_is_its_steps_one_after_the_other(score: ScoreFit) -> None:
    sampler = Sampler(score, step_size=0.2)
    g, h = seeded(1), seeded(1)
    annealed = sampler.anneal(20, 2, generator=g)
    apart = sampler.run(annealed.draws, 12, draws=3, generator=g)
    whole = sampler.sample(20, annealing_steps=2, chain_steps=12, draws=3, generator=h)
    assert torch.equal(whole.draws, apart.draws)
    assert whole.score_calls == annealed.score_calls + apart.score_calls
    assert whole.draws.shape == (20, 3, 2)


def test_the_flow_leads_noise_to_the_blurred_data() -> None:
    """Two modes that broad noise knows nothing of; the normal distribution of the same variance is a wrong twin."""
    mixture = targets.GaussianMixture([0.3, 0.7], [[-2.0, 0.0], [1.0, 1.0]], [[0.1, 0.0], [0.0, 0.3]])
    sampler = Sampler(mixture, 0.5)
    blurred = sampler.blur(mixture.sample(800, generator=seeded(1)), generator=seeded(4))
    led, twin = sampler.descend(800, generator=seeded(2)), sampler.start(800, noise_level=0.5, generator=seeded(2))
    p_values = [metrics.two_sample_test(one, blurred, generator=seeded(3)).p_value for one in (led, twin)]
    assert p_values[0] > 0.001  # the false-alarm rate of 999 permutations
    assert p_values[1] <= 0.001


def test_chains_start_from_the_flow_and_count_their_groups(score: ScoreFit) -> None:
    sampler = Sampler(score, step_size=0.2)
    chains = sampler.sample(20, chain_steps=25, generator=seeded())
    g = seeded()
    start = sampler.descend(20, generator=g)
    assert torch.equal(chains.draws, sampler.run(start, 25, generator=g).draws)
    assert chains.groups == 20 * 3  # two of ten moves, and one of five
    assert 0 <= chains.rejected_groups <= chains.groups
    assert f"{chains.rejected_groups:,} of 60 groups rejected" in str(chains)
    assert replace(sampler, group_size=None).sample(20, chain_steps=25, generator=seeded()).groups == 0
    large = Sampler(targets.Gaussian(torch.zeros(40)), noise_level=0.3, step_size=0.01)
    assert large.sample(4, chain_steps=10, generator=seeded()).groups == 0


def test_draws_are_in_the_coordinates_of_the_data(score: ScoreFit) -> None:
    sampler = Sampler(score, step_size=0.2)
    u = sampler.start(50, noise_level=0.3, generator=seeded())
    rows = sampler.carry_down(u, annealing.geometric(0.3, 0.02, 8))
    by_hand = annealing.flow(
        score.at, [*annealing.geometric(0.3, 0.02, 8), 0.0], score.coordinates(u), covariance=score.covariance
    )
    torch.testing.assert_close(rows, by_hand, atol=1e-4, rtol=1e-4)


def test_blurred_rows_have_noise_of_the_level(score: ScoreFit) -> None:
    rows = datasets.moons(20_000, generator=seeded(3))
    blurred = Sampler(score, noise_level=0.5).blur(rows, generator=seeded(4))
    added = blurred - score.coordinates.inverse(rows)
    assert float(added.std()) == pytest.approx(0.5, rel=0.02)


def test_a_step_is_in_units_of_the_blurred_data(score: ScoreFit) -> None:
    walk = Sampler(score, noise_level=1.0, proposal="rw").proposal_at(0.1)
    assert isinstance(walk, RandomWalk)
    assert walk.std == pytest.approx(0.1 * 2**0.5)


@pytest.mark.parametrize(("proposal", "rule"), [("mala", "simpson"), ("rw", "exact"), ("pcn", "exact")])
def test_long_moves_are_decided_exactly(score: ScoreFit, proposal: Any, rule: Any) -> None:
    assert repr(Sampler(score, proposal=proposal, group_size=None).rule) == repr(LineIntegral(rule))


def test_events_that_are_too_large_for_groups_are_decided_like_those_without() -> None:
    large = targets.Gaussian(torch.zeros(33), torch.eye(33))
    automatic, ungrouped = Sampler(large, proposal="rw"), Sampler(large, proposal="rw", group_size=None)
    assert repr(automatic.rule) == repr(ungrouped.rule) == repr(LineIntegral("exact"))


@pytest.mark.parametrize("proposal", ["mala", "rw", "pcn"])
@pytest.mark.parametrize("acceptance", [None, Always(), LineIntegral("gauss"), "potential", "antisymmetric", "free"])
def test_every_kernel_of_a_sampler_is_fused(score: ScoreFit, proposal: Any, acceptance: Any) -> None:
    sampler = Sampler(score, proposal=proposal, step_size=0.3)
    if isinstance(acceptance, str):
        form: Any = acceptance
        sampler = sampler.learn_acceptance(
            datasets.moons(200, generator=seeded()),
            form,
            recipe=Recipe(steps=1, check_every=1),
        )
    else:
        sampler = replace(sampler, acceptance=acceptance)
    assert sampler.kernel.run is not None


def test_levels_are_those_that_the_score_has_learned() -> None:
    narrow = MultilevelDenoising(low=0.1, high=2.0)
    score = fit_score(datasets.moons(300, generator=seeded()), narrow, recipe=BRIEF, generator=seeded())
    assert score.noise_range == (0.1, 2.0)
    annealed = Sampler(score).anneal(5, 1, generator=seeded())
    assert annealed.levels[0] == 2.0
    with pytest.raises(ValueError, match=r"expected a noise level from 0\.1 to 2, as learned, got 5\.0"):
        score.at(5.0)
    with pytest.raises(ValueError, match=r"as learned, got 0\.05"):
        Sampler(score, noise_level=0.05)


def test_a_score_with_its_levels_is_saved(score: ScoreFit, tmp_path: Any) -> None:
    score.save(tmp_path / "score.safetensors")
    assert ScoreFit.load(tmp_path / "score.safetensors").noise_range == score.noise_range


REFUSED: dict[str, tuple[Callable[[ScoreFit], object], type[Exception], str]] = {
    "no step": (lambda s: Sampler(s).kernel, ValueError, r"expected a step size, got none. Call tune\(\) first"),
    "more draws than steps": (
        lambda s: Sampler(s, step_size=0.1).sample(2, annealing_steps=1, chain_steps=3, draws=4),
        ValueError,
        "draws of at most steps=3, got 4",
    ),
    "a score without levels": (
        lambda s: Sampler(fit_score(datasets.moons(200), heavy_tails=True, recipe=BRIEF)),
        ValueError,
        "expected a score that takes a noise level",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rejected(case: str, score: ScoreFit) -> None:
    attempt, kind, text = REFUSED[case]
    with pytest.raises(kind, match=text):
        attempt(score)


# Draws under a condition on the rows: exact by rejection, else by chains restricted to it.


ALPHA = 0.001  # false-alarm rate of the six tests below together
PAIR = targets.Gaussian([0.0, 0.0], [[1.0, 0.6], [0.6, 1.0]])


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize("least", [1.0, pytest.param(2.5, marks=SLOW), pytest.param(4.0, marks=SLOW)])
def test_draws_under_a_condition_have_the_conditional_law(least: float) -> None:
    g = seeded(7)
    sampler = Sampler(PAIR, noise_level=0.6).tune(200, steps=60, annealing_steps=3, generator=g)
    settings: dict[str, Any] = {"annealing_steps": 5, "chain_steps": 150, "generator": g}

    def guide(u: Tensor, level: float) -> Tensor:
        return -(least - u[:, 0]).clamp(min=0).square() / (2 * (0.1 + level**2))

    # exact by rejection, by chains from a few draws, and by chains from guided ones
    x = sampler.sample_where(500, lambda rows: rows[:, 0] > least, log_likelihood=guide, **settings)
    first = stats.truncnorm(least, math.inf).rvs(20_000, random_state=1)
    second = 0.6 * first + 0.8 * stats.norm.rvs(size=20_000, random_state=2)
    assert x.shape == (500, 2)
    assert float(x[:, 0].min()) > least
    assert stats.ks_2samp(x[:, 0], first).pvalue > ALPHA / 6
    assert stats.ks_2samp(x[:, 1], second).pvalue > ALPHA / 6
    if least == 4.0:  # the twin that only guides the chains, without the restriction, has another law
        only_guided = sampler._points(500, 5, 150, guide, g, progress=False, pool=None)
        guided = sampler.carry_down(only_guided)
        assert stats.ks_2samp(guided[:, 0], first).pvalue < ALPHA / 6


def test_a_condition_that_no_draw_fulfils_is_an_error() -> None:
    sampler = Sampler(PAIR, noise_level=0.6, step_size=0.5)
    with pytest.raises(ValueError, match="a condition that some draws fulfil, got none of 2,000"):
        sampler.sample_where(10, lambda x: x[:, 0] > 50, annealing_steps=1, chain_steps=2, generator=seeded())
