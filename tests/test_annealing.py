"""Noise levels: annealing, the probability flow, accept steps by level, replica exchange."""

import copy
import importlib
import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from scoremh import (
    MALA,
    Always,
    Exact,
    ImplicitScoreMatching,
    LineIntegral,
    RandomWalk,
    Recipe,
    Sampler,
    ScoreMH,
    Target,
    anneal,
    annealing,
    diagnostics,
    fit_score,
    hamiltonian,
    metrics,
    metropolis_hastings,
    replica_exchange,
    sample,
    targets,
)
from scoremh import metropolis_hastings as mh
from scoremh._shared.algebra import gauss_legendre, inner, scores_along, weighted_sum
from scoremh.acceptance import Rule
from scoremh.annealing import Annealed, EarlyAnnealingWarning, noise_ratio
from scoremh.annealing.anneal import affordable_chains, is_measurable
from scoremh.annealing.replica_exchange import Ladder, Replicas, levels_of_equal_rates, round_trips, validated_ladder
from scoremh.diagnostics import conservativity_by_level, lowest_conservative_level
from scoremh.diagnostics.stationarity import _directions, _functions, _hotelling
from scoremh.estimator.diagnosis import diagnose, find_adjustment, model_contents
from scoremh.kernel import grouped
from scoremh.types import Kernel, Point, TargetLike, Trace
from tests.cases import TARGETS, f64, seeded


def blurred(level: float) -> targets.GaussianMixture:
    """Figure 1's mixture with noise of this level added: the same modes, wider."""
    wide = (1 + level**2) * torch.eye(2)
    return targets.GaussianMixture([0.8, 0.2], [[5.0, 5.0], [-5.0, -5.0]], wide.expand(2, 2, 2))


def kernel_at(level: float, rule: Rule | None = None, step: float = 0.6) -> Kernel:
    return mh(blurred(level), MALA(step * level**2), LineIntegral() if rule is None else rule)


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
    with pytest.raises(ValueError, match="a score that takes a noise level, got a score by ScoreMLP"):
        plain.at(0.5)


def test_a_fit_knows_the_covariance_of_its_noise() -> None:
    x = torch.randn(400, 2, generator=seeded()) @ torch.tensor([[3.0, 0.0], [1.0, 0.5]])
    brief: Any = {"recipe": Recipe(steps=1, check_every=1), "generator": seeded()}
    assert fit_score(x, standardize=False, **brief).covariance is None
    whitened = fit_score(x, **brief).covariance
    assert whitened is not None
    torch.testing.assert_close(whitened, torch.cov(x.T, correction=0), rtol=1e-4, atol=1e-5)
    wide = torch.randn(50, 40, generator=seeded())
    scaled = fit_score(wide, **brief).covariance
    assert scaled is not None
    torch.testing.assert_close(scaled, wide.var(0, correction=0))
    images = wide.reshape(50, 1, 5, 8)
    by_one = fit_score(images, **brief).covariance
    assert by_one is not None
    torch.testing.assert_close(by_one, wide.var(0, correction=0).mean().expand(40))


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
def test_rejected(case: str) -> None:
    attempt, text = REFUSED[case]
    with pytest.raises(ValueError, match=text):
        attempt()


# Annealing that knows when it is too early: rho, more and tuned steps, a predictor, a denoiser.


D, NARROW = 784, 500  # as many pixels as MNIST has, of which these hardly vary
VARIANCES = torch.cat([torch.ones(D - NARROW), torch.full((NARROW,), 4e-4)])
MEANS = torch.zeros(2, D)
MEANS[:, 0] = torch.tensor([2.0, -2.0])
LOG_WEIGHTS = torch.tensor([0.6, 0.4]).log()
ARRIVAL_LEVELS = annealing.geometric(8.0, 0.06, 20)


arrival = import_module("scoremh.annealing.anneal")  # the package has a function of that name


def image_sized(level: float) -> Target:
    """Return a mixture of two modes blurred by a level; the same diagonal covariance for both, so in closed form."""
    variances = VARIANCES + level**2

    def score(x: Tensor) -> Tensor:
        shares = (LOG_WEIGHTS - (x[:, :1] - MEANS[:, 0]).square() / (2 * variances[0])).softmax(1)
        return (shares @ MEANS - x) / variances

    return Target(score)


def kernel_at_of_arrival(level: float, step: float) -> Kernel:
    return metropolis_hastings(image_sized(level), MALA(step * level**2), LineIntegral("simpson"))


def start(chains: int) -> Tensor:
    return (ARRIVAL_LEVELS[0] ** 2 + VARIANCES).sqrt() * torch.randn(chains, D, generator=seeded(5))


def variance_ratios(x: Tensor) -> tuple[float, float]:
    """Return actual over expected variance in the narrow directions, and in the wide ones but for that of the modes."""
    found = x.var(0) / (VARIANCES + ARRIVAL_LEVELS[-1] ** 2)
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
        assert found.score_calls == 2 * -(-arrival.MEASURED_NUMBERS // D)


NORMAL = targets.Gaussian(f64(1.0, -1.0), f64([0.5, 0.1], [0.1, 0.4]))
OTHER = targets.Gaussian(f64(0.0, 0.0), f64([1.0, 0.0], [0.0, 2.0]))
HALVES: Target = targets.product(Target(NORMAL.score), OTHER)  # type: ignore[assignment]
KERNELS = {
    "a walk by an integral": metropolis_hastings(NORMAL, RandomWalk(0.5), LineIntegral("gauss")),
    "hamiltonian": hamiltonian(NORMAL, 0.3, 3, LineIntegral()),
    "a rule with a density": metropolis_hastings(NORMAL, MALA(0.1), Exact()),
    "groups": grouped(NORMAL, MALA(0.1), LineIntegral(), Exact(), group_size=3),
    "a product, in part known": metropolis_hastings(HALVES, MALA(0.1), LineIntegral()),
    "trajectories of such a product": hamiltonian(HALVES, 0.3, 3, LineIntegral()),
}


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_that_uses_a_score_knows_rho_by_score_calls_alone(name: str) -> None:
    """Points of these kernels hold log densities as well, or no score at all."""
    kernel, law = KERNELS[name], NORMAL
    if "product" in name:
        inverse, other = NORMAL.covariance.inverse(), OTHER.covariance.inverse()
        law = targets.Gaussian((inverse + other).inverse() @ inverse @ NORMAL.mean, (inverse + other).inverse())
    x = law.sample(20_000, generator=seeded())
    assert is_measurable(kernel, x)
    found = noise_ratio(kernel, x, 0.3)
    assert found.standard_error < 0.01
    assert found.rho == pytest.approx(1.0, abs=4 * found.standard_error)


def test_kernels_without_a_score_know_no_rho() -> None:
    kernel = metropolis_hastings(TARGETS["gaussian"], RandomWalk(0.5), Exact())
    assert noise_ratio(kernel, f64([0.0, 0.0], [1.0, 1.0]), 1.0).score_calls == 0
    own = Kernel(kernel.init, kernel.step)  # of one's own, which does not say what it knows
    assert noise_ratio(own, f64([0.0, 0.0], [1.0, 1.0]), 1.0).score_calls == 0


@pytest.mark.parametrize("d", [1, 2, 20])
@pytest.mark.parametrize("chains", [2, arrival.LEAST_CHAINS, 100])
def test_chains_at_the_limit_are_early_no_more_often_than_declared(chains: int, d: int) -> None:
    """Exactly 1.05 times too wide. More than 1 % of 1,000 by chance: above 24 once in 10^4."""
    kernel = metropolis_hastings(targets.Gaussian(torch.zeros(d).double()), MALA(0.1), Always())
    x = arrival.RHO_LIMIT * torch.randn(1000, chains, d, generator=seeded(3), dtype=torch.float64)
    assert sum(noise_ratio(kernel, part, 1.0).early for part in x) <= 24


@pytest.mark.parametrize("name", ["gaussian", "mixture", "banana", "student"])
def test_chains_that_have_arrived_are_early_no_more_often_than_declared(name: str) -> None:
    """Whole runs of 20 stages: more than 1 % of 50 by chance, above 5 once in 10^4."""
    law = TARGETS[name]
    kernel = metropolis_hastings(law, MALA(0.1), Exact())
    x = law.sample(50 * 20 * arrival.LEAST_CHAINS, generator=seeded(4)).reshape(50, 20, arrival.LEAST_CHAINS, -1)
    alarms = [min(noise_ratio(kernel, part, 1.0).p_value for part in run) < arrival.FALSE_ALARM_RATE / 20 for run in x]
    assert sum(alarms) <= 5


def lagging(measure_noise: bool | None) -> Annealed:
    at = partial(kernel_at_of_arrival, step=0.1)
    return anneal(at, ARRIVAL_LEVELS, start(50), steps_per_level=6, measure_noise=measure_noise, generator=seeded(1))


def test_watching_warns_by_default_and_changes_no_draw() -> None:
    blind = lagging(False)
    assert blind.rho is None
    with pytest.warns(EarlyAnnealingWarning, match=r"5 of 5 noise levels with more than 1\.05 times.*adaptive=True"):
        seen = lagging(None)
    with pytest.warns(EarlyAnnealingWarning, match=r"19 of 20 noise levels with more than 1\.05 times"):
        watched = lagging(True)
    for found in (seen, watched):
        assert torch.equal(found.draws, blind.draws)
        assert found.acceptance_rates == blind.acceptance_rates
        assert found.rho is not None
        assert found.rho[-1] == pytest.approx(variance_ratios(found.draws)[0] ** 0.5, rel=0.05)
        assert f"noise at last {found.rho[-1]:.3f}" in repr(found)
    assert [number for number, rho in enumerate(seen.rho or (), 1) if rho == rho] == [4, 8, 12, 16, 20]
    assert seen.score_calls - blind.score_calls == 2 * 16 * 5
    assert seen.score_calls < 1.03 * blind.score_calls
    assert not any(map(math.isnan, watched.rho or ()))


@pytest.mark.parametrize(("d", "chains"), [(2, 4000), (10, 1000), (100, 100)])
def test_chains_that_lag_are_warned_of_by_default_in_few_dimensions_too(d: int, chains: int) -> None:
    """Too short a step; with one that suits, and 20 steps, the same chains arrive, and nothing is said."""
    law = targets.Gaussian(torch.zeros(d), 0.01 * torch.eye(d))
    x, levels = 5 * torch.randn(chains, d, generator=seeded(5)), annealing.geometric(5.0, 0.1, 15)

    def run(step: float) -> Annealed:
        def at(level: float) -> Kernel:
            return metropolis_hastings(law.at(level), MALA(step * level**2), LineIntegral())

        return anneal(at, levels, x, generator=seeded(6))

    with pytest.warns(EarlyAnnealingWarning):
        run(0.01)
    arrived = run(0.3)
    assert arrived.rho is not None
    assert arrived.rho[-1] == pytest.approx(1, abs=0.06)


def test_a_level_is_checked_when_it_is_left() -> None:
    """Final steps are at the last level too: chains that come late are not too wide in the end."""
    law = targets.Gaussian(torch.zeros(200))

    def at(level: float) -> Kernel:
        return metropolis_hastings(law.at(level), MALA(0.3 * level**2), LineIntegral())

    x = 3 * torch.randn(100, 200, generator=seeded())
    found = anneal(at, [1.0], x, steps_per_level=1, final_steps=40, measure_noise=True, generator=seeded(1))
    assert found.rho is not None
    assert found.rho[0] > 1.5
    assert found.rho[1] == pytest.approx(1, abs=0.05)


def test_as_many_chains_are_measured_as_the_share_allows() -> None:
    x = torch.zeros(10_000, 2)
    for n, d, stages, steps in [
        (200, 784, 20, 20),
        (200, 784, 100, 1),
        (50, 2, 15, 20),
        (5000, 2, 15, 20),
        (4, 9, 9, 9),
    ]:
        points = torch.zeros(1, 1).expand(n, d)
        found = affordable_chains(points, [steps] * stages)
        assert len(found) == stages
        assert max(found) <= arrival.enough_chains(points)
        assert 2 * sum(found) <= arrival.WATCHED_SHARE * n * stages * steps
        assert found[-1] == max(found) >= min(n, arrival.LEAST_CHAINS)
    assert affordable_chains(x, [20] * 15) == [3000] * 15
    assert [i for i, chains in enumerate(affordable_chains(x[:200], [1] * 20), 1) if chains] == [7, 13, 20]
    assert affordable_chains(x[:20], [2] * 4) == [0] * 4  # too short a run
    assert affordable_chains(x[:1], [2000] * 4) == [0] * 4  # one chain is not a sample


def walk(level: float) -> Kernel:
    return metropolis_hastings(TARGETS["gaussian"], RandomWalk(0.5), Exact())


def truncated(level: float) -> Kernel:
    beyond = targets.truncate(NORMAL, lambda x: x[:, 0].abs() > 2)  # of which Stein's identity says nothing
    return metropolis_hastings(beyond, MALA(0.1), LineIntegral())


def silent(level: float) -> Kernel:
    kernel = metropolis_hastings(NORMAL, MALA(0.1), LineIntegral())
    return Kernel(kernel.init, kernel.step)


def conditioned(level: float) -> Kernel:
    centres = torch.ones(50, 2, dtype=torch.float64)  # one for every chain
    return metropolis_hastings(Target(lambda x: centres - x), MALA(0.1), Always())


@pytest.mark.parametrize("at", [walk, truncated, silent, conditioned])
def test_where_rho_means_nothing_nothing_is_measured(at: Callable[[float], Kernel]) -> None:
    x = 2.5 + torch.rand(50, 2, generator=seeded(), dtype=torch.float64)
    plain, blind = (anneal(at, [1.0, 0.5], x, measure_noise=measure, generator=seeded(1)) for measure in (None, False))
    assert plain.rho is None
    assert plain.score_calls == blind.score_calls
    assert "actual over expected" not in repr(plain)


def test_in_half_precision_nothing_is_measured() -> None:
    def at(level: float) -> Kernel:
        return metropolis_hastings(Target(lambda x: -x), MALA(0.1), LineIntegral())

    assert anneal(at, [1.0, 0.5], torch.randn(50, 2, generator=seeded()).bfloat16(), generator=seeded()).rho is None
    assert anneal(at, [1.0, 0.5], torch.randn(50, 2, generator=seeded()), generator=seeded()).rho is not None


@pytest.mark.slow
def test_within_a_percent_in_the_narrow_directions_at_no_more_score_calls() -> None:
    """What was to be reached; the setting was chosen on another mixture, other levels and other seeds."""
    plain = anneal(
        lambda level: kernel_at_of_arrival(level, 0.1),
        ARRIVAL_LEVELS,
        start(200),
        steps_per_level=20,
        generator=seeded(1),
    )
    assert variance_ratios(plain.draws)[0] > 1.015
    pilot = {"steps_per_level": 20, "generator": seeded(2)}
    steps = annealing.tune_steps(kernel_at_of_arrival, ARRIVAL_LEVELS, start(30), **pilot)  # type: ignore[arg-type]
    tuned = anneal(
        lambda level: kernel_at_of_arrival(level, steps[level]),
        ARRIVAL_LEVELS,
        start(200),
        steps_per_level=8,
        final_steps=100,
        adaptive=True,
        generator=seeded(1),
    )
    assert variance_ratios(tuned.draws)[0] == pytest.approx(1, abs=0.01)  # two standard errors
    pilot_calls = 2 * 30 * 20 * 20
    assert tuned.score_calls + pilot_calls <= plain.score_calls


@pytest.mark.slow
def test_more_steps_are_made_where_chains_have_not_arrived(tmp_path: Path) -> None:
    options: Any = {"steps_per_level": 8, "adaptive": True}
    found = anneal(
        lambda level: kernel_at_of_arrival(level, 0.15), ARRIVAL_LEVELS, start(50), generator=seeded(1), **options
    )
    assert set(found.steps) <= {8 * rounds for rounds in range(1, 6)}
    assert sum(found.steps) > 8 * 20
    assert found.rho is not None
    assert max(found.rho) < 1.06
    stored = anneal(
        lambda level: kernel_at_of_arrival(level, 0.15),
        ARRIVAL_LEVELS,
        start(50),
        generator=seeded(1),
        store=tmp_path,
        **options,
    )
    again = anneal(
        lambda level: kernel_at_of_arrival(level, 0.15),
        ARRIVAL_LEVELS,
        start(50),
        generator=seeded(1),
        store=tmp_path,
        **options,
    )
    assert torch.equal(stored.draws, found.draws)
    assert torch.equal(again.draws, found.draws)


@pytest.mark.slow
def test_a_predictor_leads_the_wide_directions_down() -> None:
    """Steps of the size of the noise are too short for them at low levels: their variance is what it once was."""
    options: Any = {"steps_per_level": 10, "final_steps": 60}
    alone, led = (
        anneal(
            lambda level: kernel_at_of_arrival(level, 0.2),
            ARRIVAL_LEVELS,
            start(200),
            generator=seeded(1),
            predict=predict,
            **options,
        )
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
    steps = annealing.tune_steps(kernel_at_of_arrival, ARRIVAL_LEVELS[::5], start(40), generator=seeded(2))
    assert list(steps) == ARRIVAL_LEVELS[::5]
    for level in ARRIVAL_LEVELS[::5]:
        x = (level**2 + VARIANCES).sqrt() * torch.randn(400, D, generator=seeded(3))
        kernel = kernel_at_of_arrival(level, steps[level])
        _, move = kernel.step(kernel.init(x), generator=seeded(4))
        assert 0.3 < float(move.accepted.double().mean()) < 0.8


def test_predicting_and_watching_without_a_score_raise_errors() -> None:
    for option in ("predict", "denoise", "measure_noise", "adaptive"):
        with pytest.raises(ValueError, match="kernels with a score"):
            anneal(walk, [1.0, 0.5], f64([0.0, 0.0]), steps_per_level=1, **{option: True})  # type: ignore[arg-type]


# The probability flow: its order, what its discretisation changes, and its former integrator as a wrong twin.


LOW = 0.02
MAX_VARIANCE_CHANGE, MAX_WEIGHT_CHANGE = 0.005, 0.005


def mixture(weights: Tensor, means: Tensor, std: Tensor) -> targets.GaussianMixture:
    """Return a mixture of round normal distributions in standard units."""
    mean = weights @ means
    scale = ((weights @ (means - mean).square()).mean() + weights @ std.square()).sqrt()
    d = means.shape[1]
    covariances = (std / scale).square()[:, None, None] * torch.eye(d, dtype=torch.float64)
    return targets.GaussianMixture(weights, (means - mean) / scale, covariances)


def curve(points: Tensor, std: float) -> targets.GaussianMixture:
    n = len(points)
    return mixture(torch.full((n,), 1 / n, dtype=torch.float64), points, torch.full((n,), std, dtype=torch.float64))


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


ANGLES = torch.linspace(0, 2 * math.pi, 101, dtype=torch.float64)[:-1]
GRID = torch.linspace(-2.5, 2.5, 101, dtype=torch.float64)
MODES = {
    "two modes": mixture(double(0.7, 0.3), double(-3, 0, 3, 0).reshape(2, 2), double(0.7, 0.25)),
    "five modes in 6-D": mixture(
        double(0.4, 0.3, 0.15, 0.1, 0.05),
        3 * torch.randn(5, 6, generator=seeded(), dtype=torch.float64),
        double(*[0.6] * 5),
    ),
}
CURVED = {
    "ring": curve(torch.stack([ANGLES.cos(), ANGLES.sin()], 1), 0.06),
    "banana": curve(torch.stack([GRID, GRID.square()], 1), 0.15),
}


def in_the_variance(target_at: Callable[[float], TargetLike], x: Tensor, high: float) -> Tensor:
    """Return draws carried down by the integrator of 0.2.0: Heun's method in sigma^2 on eight geometric levels."""
    for start, end in itertools.pairwise([*annealing.geometric(high, LOW, 8), 0.0]):
        first = target_at(start).score
        assert first is not None
        step = x + (start**2 - end**2) / 2 * (slope := first(x))
        if end == 0:
            return step
        second = target_at(end).score
        assert second is not None
        x = x + (start**2 - end**2) / 4 * (slope + second(step))
    return x


def carried(law: targets.GaussianMixture, x: Tensor, high: float) -> Tensor:
    return annealing.flow(law.at, [*annealing.flow_levels(high, LOW), 0.0], x)


def finely(law: targets.GaussianMixture, x: Tensor, high: float) -> Tensor:
    return annealing.flow(law.at, [*annealing.geometric(high, LOW, 60), 0.0], x)


def weights(law: targets.GaussianMixture, x: Tensor) -> Tensor:
    nearest = torch.cdist(x, law.means).argmin(1)
    return torch.bincount(nearest, minlength=len(law.means)) / len(x)


def spread(law: targets.GaussianMixture, x: Tensor) -> float:
    """Return the mean squared distance to the nearest mode, or to the curve."""
    return float(torch.cdist(x, law.means).amin(1).square().mean())


def test_the_flow_of_a_normal_distribution_is_known_and_its_error_is_of_fourth_order() -> None:
    covariance = torch.tensor([[2.0, 0.6], [0.6, 1.0]], dtype=torch.float64)
    x = torch.randn(20, 2, generator=seeded(), dtype=torch.float64)

    def target_at(level: float) -> Target:  # N(0, C) with noise level^2 C
        return Target(lambda x: -torch.linalg.solve(covariance, x.T).T / (1 + level**2))

    def error(steps: int) -> float:
        moved = annealing.flow(target_at, annealing.geometric(2.0, 0.1, steps), x, covariance=covariance)
        return float((moved / (x * (1.01 / 5.0) ** 0.5) - 1).abs().max())

    assert error(11) < 1e-5
    assert 12 < error(11) / error(21) < 20
    sharp = annealing.flow(target_at, [0.1, 0.0], x, covariance=covariance)
    assert not sharp.is_inference()
    torch.testing.assert_close(sharp, x / 1.01**0.5, rtol=1e-4, atol=0)  # and not x / 1.01, the mean of x given noise


@pytest.mark.parametrize("high", [0.3, 0.6, 1.0, 2.0, 5.0])
def test_no_width_of_a_normal_distribution_changes_by_more_than_half_a_percent(high: float) -> None:
    widths = torch.logspace(-2.5, 0.5, 61, dtype=torch.float64)

    def target_at(level: float) -> Target:
        return Target(lambda x: -x / (widths.square() + level**2))

    x = (widths.square() + high**2).sqrt()[None]
    exact = widths.square() + LOW**2
    found = annealing.flow(target_at, annealing.flow_levels(high, LOW), x)[0].square()
    assert float((found / exact - 1).abs().max()) < MAX_VARIANCE_CHANGE
    removed = annealing.flow(target_at, [*annealing.flow_levels(high, LOW), 0.0], x)[0].square()
    wide = widths > 2.5 * LOW  # where a score at LOW can know the width
    assert float((removed / widths.square() - 1)[wide].abs().max()) < 2 * MAX_VARIANCE_CHANGE


@pytest.mark.parametrize(
    ("law", "high"),
    [(law, 2.0) for law in MODES]
    + [pytest.param(law, 2.0, marks=pytest.mark.slow) for law in CURVED]
    + [pytest.param(law, high, marks=pytest.mark.slow) for law in (*MODES, *CURVED) for high in (0.6, 5.0)],
)
def test_the_discretisation_changes_no_variance_and_no_weight(law: str, high: float) -> None:
    """The same starts as those of the flow on 60 levels: what differs is the discretisation alone."""
    known = (MODES | CURVED)[law]
    x = known.at(high).sample(2000, generator=seeded())
    found, fine, twin = carried(known, x, high), finely(known, x, high), in_the_variance(known.at, x, high)
    assert float((found.var(0) / fine.var(0) - 1).abs().max()) < MAX_VARIANCE_CHANGE
    if law in MODES:
        assert float((weights(known, found) - weights(known, fine)).abs().max()) < MAX_WEIGHT_CHANGE
    if high >= 2:
        assert float((twin.var(0) / fine.var(0) - 1).abs().max()) > 2 * MAX_VARIANCE_CHANGE


@pytest.mark.parametrize("law", [*MODES, *CURVED])
def test_exact_blurred_draws_become_exact_draws(law: str) -> None:
    known, n = (MODES | CURVED)[law], 2000
    x, y = known.at(2.0).sample(n, generator=seeded(1)), known.sample(n, generator=seeded(2))
    found, twin = carried(known, x, 2.0), in_the_variance(known.at, x, 2.0)
    assert metrics.two_sample_test(found[:1000], y[:1000], permutations=200, generator=seeded(3)).p_value > 0.005
    assert spread(known, found) == pytest.approx(spread(known, y), rel=0.08)
    assert spread(known, twin) < 0.75 * spread(known, y)


def test_the_two_sample_test_rejects_the_former_integrator() -> None:
    known, n = MODES["five modes in 6-D"], 2000
    x, y = known.at(2.0).sample(n, generator=seeded(1)), known.sample(n, generator=seeded(2))
    twin = in_the_variance(known.at, x, 2.0)
    assert metrics.two_sample_test(twin, y, permutations=400, generator=seeded(3)).p_value < 0.005


# Where an accept step means something: circulation by noise level, and annealing that adjusts only above a level.


TURN = f64([0.0, -1.0], [1.0, 0.0])
ADJUSTMENT_NORMAL = targets.Gaussian(f64(0.0, 0.0))


def turned_at(level: float, curl: float = 0.02) -> Target:
    """Return N(0, 1) blurred by a level, with a rotation that grows as the level falls."""
    return Target(lambda x: -x / (1 + level**2) + curl / level**3 * x @ TURN.T)


def test_circulation_by_level_matches_that_of_the_curl() -> None:
    """Circulation = 2c area; sides of length L = level sqrt 2 at a uniform angle: root mean square L^2 / (2 sqrt 2)."""
    levels = [2.0, 1.0, 0.5, 0.3, 0.25, 0.1]
    found = conservativity_by_level(
        turned_at, levels, ADJUSTMENT_NORMAL.sample(20_000, generator=seeded()), generator=seeded(1)
    )
    assert list(found) == levels
    for level in levels:
        assert found[level].circulation == pytest.approx(0.02 * math.sqrt(2) / level, rel=0.02)
    assert lowest_conservative_level(found) == 0.3  # 0.1 nats lie at 0.283
    assert lowest_conservative_level(found, limit=1.0) == 0.1
    assert lowest_conservative_level(found, limit=1e-3) == math.inf


def test_a_level_above_which_one_fails_is_not_adjustable() -> None:
    fine, bad = diagnostics.Conservativity(0.0, 0.01, 1.0), diagnostics.Conservativity(0.5, 0.2, 1.0)
    assert lowest_conservative_level({0.1: fine, 0.5: bad, 1.0: fine}) == 1.0
    assert lowest_conservative_level({0.5: diagnostics.Conservativity(0.0, math.nan, 1.0)}) == math.inf


def test_a_larger_step_sees_more_circulation() -> None:
    x = ADJUSTMENT_NORMAL.sample(5000, generator=seeded())
    once, twice = (conservativity_by_level(turned_at, [0.5], x, step=step, generator=seeded()) for step in (1.0, 2.0))
    assert twice[0.5].circulation == pytest.approx(4 * once[0.5].circulation, rel=1e-6)


def acceptance(score: Any, *corners: Tensor) -> Tensor:
    """Return Metropolis's acceptance probability of a symmetric step, integrated along a way with these corners."""
    rule, total = gauss_legendre(8), torch.zeros(len(corners[0]), dtype=torch.float64)
    for a, b in itertools.pairwise(corners):
        total = total + inner(weighted_sum(rule.weights, scores_along(score, a, b - a, rule.nodes)), b - a)
    return total.exp().clamp(max=1)


@pytest.mark.parametrize("curl", [0.02, 0.1])
def test_the_limit_means_what_its_derivation_says(curl: float) -> None:
    """The way changes at most rms circulation x acceptance rate / 2 of the decisions, and not much less."""
    level, n = 1.0, 100_000
    score: Any = turned_at(level, curl).score
    noise = [torch.randn(n, 2, dtype=torch.float64, generator=seeded(seed)) for seed in (1, 2)]
    x = math.sqrt(2) * ADJUSTMENT_NORMAL.sample(n, generator=seeded())
    straight, bent = acceptance(score, x, x + noise[0]), acceptance(score, x, x + noise[1], x + noise[0])
    circulation = conservativity_by_level(lambda _: Target(score), [level], x, generator=seeded())[level].circulation
    changed, bound = float((straight - bent).abs().mean()), circulation * float(straight.mean()) / 2
    assert bound / 3 < changed < bound


ADJUSTMENT_LEVELS = annealing.geometric(4.0, 0.5, 4)


def kernel_at_of_adjustment(level: float, *, adjusted: bool = True) -> Kernel:
    target = Target(lambda x: -x / (1 + level**2))
    return metropolis_hastings(target, MALA(level**2), LineIntegral() if adjusted else Always())


@pytest.mark.parametrize("above", [0.0, 1.0, 2.0, math.inf])
def test_annealing_adjusts_from_the_level_up(above: float) -> None:
    start = 4 * torch.randn(200, 2, generator=seeded())
    options: dict[str, Any] = {"steps_per_level": 5, "final_steps": 5}
    found = anneal(
        kernel_at_of_adjustment, ADJUSTMENT_LEVELS, start, accept_above=above, generator=seeded(1), **options
    )
    by_hand = anneal(
        lambda s: kernel_at_of_adjustment(s, adjusted=s >= above),
        ADJUSTMENT_LEVELS,
        start,
        generator=seeded(1),
        **options,
    )
    assert torch.equal(found.draws, by_hand.draws)
    assert found.acceptance_rates == by_hand.acceptance_rates
    assert [rate < 1 for rate in found.acceptance_rates] == [level >= above for level in found.levels]
    assert ("no accept step below" in repr(found)) == (above > 0.5)


@pytest.mark.parametrize(
    ("kernel", "above", "text"),
    [
        (lambda s: metropolis_hastings(ADJUSTMENT_NORMAL, RandomWalk(s), Exact()), 1.0, "whose moves follow the score"),
        (kernel_at_of_adjustment, -1.0, "accept_above of at least 0"),
        (kernel_at_of_adjustment, math.nan, "accept_above of at least 0"),
    ],
)
def test_what_cannot_be_gated_raises_an_error(kernel: Any, above: float, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        anneal(
            kernel, ADJUSTMENT_LEVELS, torch.zeros(3, 2, dtype=torch.float64), accept_above=above, generator=seeded()
        )


def test_trajectories_do_without_an_accept_step() -> None:
    kernel = hamiltonian(ADJUSTMENT_NORMAL, 1.5, 3, LineIntegral(), covariance=f64(1.0, 2.0))
    assert kernel.unadjusted is not None
    point = kernel.init(ADJUSTMENT_NORMAL.sample(100, generator=seeded()))
    moves = [one.step(point, generator=seeded(1))[1] for one in (kernel, kernel.unadjusted())]
    assert torch.equal(moves[0].proposed, moves[1].proposed)
    assert not moves[0].accepted.all()
    assert moves[1].accepted.all()


class Turned(torch.nn.Module):
    """A network with a rotation added below a noise level."""

    def __init__(self, net: torch.nn.Module, below: float) -> None:
        super().__init__()
        self.net, self.below = net, below

    def forward(self, u: Tensor, sigma: float) -> Tensor:
        """Return the score, turned."""
        score: Tensor = self.net(u, sigma)
        return score + (100 * u @ TURN.T.to(u) if sigma < self.below else 0)


def turned_sampler(model: ScoreMH, below: float) -> Sampler:
    score = copy.deepcopy(model.score_)
    assert isinstance(score.net, torch.nn.Module)
    score.net.net = Turned(score.net.net, below)  # type: ignore[arg-type]
    return replace(model.sampler_, score=score, accept_above=0.0)


@pytest.mark.slow
def test_the_sampler_finds_the_level(small: ScoreMH) -> None:
    rows = torch.from_numpy(small.held_out_).float()
    right, turned = (find_adjustment(turned_sampler(small, below), rows, generator=seeded()) for below in (0.0, 1.0))
    assert right.accept_above == 0
    assert 1 <= turned.accept_above < 1.2
    annealed = turned.anneal(100, 3, measure_noise=False, generator=seeded())  # a score as wrong as this never arrives
    assert [rate < 1 for rate in annealed.acceptance_rates] == [s >= turned.accept_above for s in annealed.levels]


@pytest.mark.parametrize(
    ("above", "line", "cautions"),
    [(0.0, "at every noise level", 0), (0.775, "from 0.775 up", 1), (math.inf, "from inf up", 1)],
)
def test_reports_and_files_name_the_level(
    small: ScoreMH, tmp_path: Path, above: float, line: str, cautions: int
) -> None:
    model = copy.deepcopy(small)
    model.sampler_ = replace(small.sampler_, accept_above=above, noise_level=0.3)  # below all but 0
    rows, chains = torch.from_numpy(model.held_out_).float(), model.sample_chains(50)
    contents = model_contents(model, chains, rows, "held-out rows", None)
    assert line in contents.about["accept step while annealing"]
    for acceptance, expected in ((LineIntegral(), cautions), (model.acceptance_, 0)):  # a potential is a gradient
        sampler = replace(model.sampler_, acceptance=acceptance)
        found = diagnose(sampler, chains, rows, ["width", "height"], generator=seeded())
        assert [one.kind for one in found.warnings].count("conservativity") == expected
    model.save(tmp_path / "run")
    assert ScoreMH.load(tmp_path / "run").sampler_.accept_above == above


# Replica exchange over noise levels: its stationary distribution, its swaps, the weights it finds, and its store.


MODULE = importlib.import_module("scoremh.annealing.replica_exchange")
WEIGHTS = torch.tensor([0.5, 0.3, 0.2]).double()
REPLICAS_MEANS = torch.tensor([[-4.0, 0.0], [4.0, 0.0], [0.0, 6.0]]).double()
COVARIANCES = torch.tensor([[[1.0, 0.3], [0.3, 1.0]], [[0.5, 0.0], [0.0, 2.0]], [[2.0, 0.0], [0.0, 0.5]]]).double()
MIXTURE = targets.GaussianMixture(WEIGHTS, REPLICAS_MEANS, COVARIANCES)
REPLICAS_LEVELS = annealing.geometric(8.0, 0.5, 5)


def kernel_at_of_replicas(level: float) -> Kernel:
    return metropolis_hastings(MIXTURE.at(level), MALA(0.3 * (1 + level**2)), LineIntegral("gauss", nodes=8))


def walk_at(level: float) -> Kernel:
    """Return a kernel without a fused loop, and with a cached log density in place of a score."""
    return metropolis_hastings(MIXTURE.at(level), RandomWalk(1.0 + level), Exact())._replace(run=None)


def exact_draws(chains: int, generator: torch.Generator) -> list[Tensor]:
    return [MIXTURE.at(level).sample(chains, generator=generator) for level in REPLICAS_LEVELS]


def p_value_of_the_ladder(make_kernel: Callable[[float], Kernel], chains: int = 4000) -> float:
    """Return the probability of means that moved so far, over all levels at once, from exact draws of every level."""
    g = seeded(11)
    start = exact_draws(chains, g)
    scales, directions = exact_draws(2000, g), _directions(start[0], g)
    found = replica_exchange(
        make_kernel, REPLICAS_LEVELS, start, model=MIXTURE, draws=6, steps_per_swap=1, nodes=8, generator=g
    )
    columns = [
        after - before
        for at_start, at_end, scale in zip(start, found.last, scales, strict=True)
        for _, before, after in _functions(at_start, at_end, scale, directions)
    ]
    return _hotelling(torch.stack(columns, 1))[0]


@pytest.mark.parametrize("make_kernel", [kernel_at_of_replicas, walk_at])
def test_the_whole_ladder_is_stationary(make_kernel: Callable[[float], Kernel]) -> None:
    assert p_value_of_the_ladder(make_kernel) > 1e-4


RIGHT_RATIO = Ladder.log_swap_ratio
WRONG_RATIOS: dict[str, Callable[..., Tensor]] = {
    "the wrong sign": lambda *args: -RIGHT_RATIO(*args),
    "always": lambda *args: torch.zeros_like(RIGHT_RATIO(*args)),
    "half of the ratio": lambda *args: RIGHT_RATIO(*args) / 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("ratio", WRONG_RATIOS.values(), ids=WRONG_RATIOS)
def test_the_same_test_rejects_wrong_swaps(ratio: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ladder, "log_swap_ratio", ratio)
    assert p_value_of_the_ladder(kernel_at_of_replicas) < 1e-6


@pytest.mark.slow
def test_the_same_test_rejects_kernels_of_another_level() -> None:
    assert p_value_of_the_ladder(lambda level: kernel_at_of_replicas(1.2 * level)) < 1e-6


def test_swaps_are_decided_as_by_the_exact_log_densities() -> None:
    x = torch.stack(exact_draws(300, seeded()))
    upper = torch.tensor([0, 1, 2, 3])
    errors = []
    for nodes in (3, 8):
        found = validated_ladder(kernel_at_of_replicas, REPLICAS_LEVELS, x, MIXTURE, 1, nodes).log_swap_ratio(x, upper)
        for i, row in enumerate(found):
            high, low = MIXTURE.at(REPLICAS_LEVELS[i]).log_density, MIXTURE.at(REPLICAS_LEVELS[i + 1]).log_density
            exact = (high(x[i + 1]) + low(x[i])) - (high(x[i]) + low(x[i + 1]))
            errors.append((nodes, float((row - exact).abs().max())))
    assert max(error for nodes, error in errors if nodes == 3) < 0.1
    assert max(error for nodes, error in errors if nodes == 8) < 1e-4


def test_a_swap_moves_points_and_walkers_together_and_every_pair_has_its_turn() -> None:
    def stay(level: float) -> Kernel:  # nothing moves but by swaps
        def run(point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
            none = torch.zeros(steps, len(point.x))
            return point, Trace(point.x.expand(steps, *point.x.shape), none, none.bool())

        return kernel_at_of_replicas(level)._replace(run=run)

    x = torch.stack(exact_draws(100, seeded()))
    ladder = validated_ladder(stay, REPLICAS_LEVELS, x, MIXTURE, 1, 3)
    at, walkers = x, torch.arange(5).repeat(100, 1)
    for turn in range(4):
        at, walkers, accepted, swap_prob, _ = ladder.sweep(at, walkers, turn, seeded(turn))
        for level in range(5):
            torch.testing.assert_close(at[level], x[walkers[:, level], torch.arange(100)], rtol=0, atol=0)
        offered = (swap_prob > 0).any(0).tolist()
        assert offered == [turn % 2 == 0, turn % 2 == 1, turn % 2 == 0, turn % 2 == 1]
        assert not accepted.any()
    assert (walkers != torch.arange(5)).any(0).all()


def test_local_moves_begin_with_the_score_of_their_own_level() -> None:
    seen = []

    def watched(level: float) -> Kernel:
        kernel, target = kernel_at_of_replicas(level), MIXTURE.at(level)

        def run(point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
            torch.testing.assert_close(point.score, target.score(point.x))
            seen.append(level)
            assert kernel.run is not None
            return kernel.run(point, steps, generator=generator)

        return kernel._replace(run=run)

    found = replica_exchange(
        watched, REPLICAS_LEVELS, exact_draws(50, seeded()), model=MIXTURE, draws=5, generator=seeded(1)
    )
    assert len(seen) == 25
    assert min(found.swap_rates) > 0.1


@pytest.mark.slow
def test_the_weights_of_modes_are_right_where_local_moves_alone_stay() -> None:
    start = REPLICAS_MEANS[:1] + 0.1 * torch.randn(500, 2, generator=seeded()).double()

    def shares(x: Tensor) -> Tensor:
        return torch.cdist(x, REPLICAS_MEANS).argmin(1).bincount(minlength=3).double() / len(x)

    alone = sample(kernel_at_of_replicas(0.5), start, draws=1, thin=320, generator=seeded(1)).last
    assert float(shares(alone)[0]) > 0.9
    found = replica_exchange(
        kernel_at_of_replicas, REPLICAS_LEVELS, start, model=MIXTURE, draws=60, burn_in=20, generator=seeded(1)
    )
    each = torch.stack([shares(found.draws[:, i]) for i in (-30, -1)]).mean(0)
    assert float((each - WEIGHTS).abs().max()) < 0.06  # 4 standard errors of 500 chains
    assert float(found.round_trips.double().mean()) > 1
    assert found.draws.shape == (500, 60, 2)
    assert len(found.acceptance_rates) == 5
    assert all(0.3 < rate < 1 for rate in found.acceptance_rates)


def test_score_calls_are_counted() -> None:
    x = exact_draws(10, seeded())
    options: Any = {"model": MIXTURE, "draws": 2, "burn_in": 2, "generator": seeded()}
    found = replica_exchange(
        walk_at, REPLICAS_LEVELS, x, steps_per_swap=1, **options
    )  # evaluates the score in swaps only
    assert found.score_calls == 4 * 10 * 2 * 2 * 3 * (1 + 2)  # sweeps, chains, pairs, ends, nodes, score and divergence


def test_round_trips_are_from_the_lowest_level_up_and_down_again() -> None:
    # level 0 is the highest. Walker 1 begins at the lowest, goes up, and comes back twice; walker 0 once less
    walkers = torch.tensor([[[0, 1], [1, 0], [0, 1], [0, 1], [1, 0], [0, 1]], [[0, 1]] * 6])
    assert round_trips(walkers).tolist() == [3, 0]


def replicas(swap_rates: tuple[float, ...], trips: int) -> Replicas:
    x = torch.zeros(2, 3, 1)
    return Replicas(x, (x[:, 0],) * 2, (1.0, 0.1), swap_rates, (0.5, 0.6), torch.tensor([trips, 0]), 0, 10)


def test_the_summary_says_what_to_change() -> None:
    assert replicas((0.2, 0.6), 1).hints == []
    text = repr(replicas((0.35, 0.7), 0))
    assert "swap rates 0.35 0.70; 0 round trips per chain" in text
    assert "swap rates of 0.35 to 0.70 lie outside 0.2 to 0.6: fewer levels are enough" in text
    assert "0.19 to 0.70 lie outside 0.2 to 0.6: add levels" in repr(replicas((0.19, 0.7), 1))
    assert "no walker went" in text
    assert "0.5 round trips per chain" in repr(replicas((0.3,), 1))


def test_levels_are_placed_at_equal_increments_of_the_rejections() -> None:
    levels = [8.0, 4.0, 2.0, 1.0]
    assert levels_of_equal_rates(levels, [0.5, 0.5, 0.5], 4, 0.4) == pytest.approx(levels)
    assert levels_of_equal_rates(levels, [0.8, 0.4, 0.0], 3, 0.4) == pytest.approx(
        [8.0, 2**0.9, 1.0]
    )  # a half of 1.8 is 0.2 + 0.6 + 0.1
    assert len(levels_of_equal_rates(levels, [0.5, 0.3, 0.2], None, 0.5)) == 5  # a barrier of 2 in 4 pairs


@pytest.mark.slow
def test_tuned_levels_swap_at_equal_rates() -> None:
    x = 8 * torch.randn(500, 2, generator=seeded()).double()
    levels = annealing.tune_levels(kernel_at_of_replicas, x, model=MIXTURE, high=16.0, low=0.1, generator=seeded(1))
    assert (levels[0], levels[-1]) == (16.0, 0.1)
    options: Any = {"model": MIXTURE, "draws": 60, "burn_in": 30, "generator": seeded(2)}
    tuned = replica_exchange(kernel_at_of_replicas, levels, x, **options)
    plain = replica_exchange(kernel_at_of_replicas, annealing.geometric(16.0, 0.1, len(levels)), x, **options)
    spreads = [max(found.swap_rates) - min(found.swap_rates) for found in (tuned, plain)]
    assert spreads[0] < 0.1 < spreads[1]
    assert 0.35 < min(tuned.swap_rates) < 0.6
    assert tuned.hints == []


def test_a_killed_run_goes_on_and_ends_with_the_same_bits_by_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(MODULE, "block_size", lambda chains: 20)
    start = 8 * torch.randn(40, 2, generator=seeded()).double()

    class StopError(Exception):
        pass

    def until(limit: int) -> Callable[[float], Kernel]:
        asked = 0

        def stopping(level: float) -> Kernel:
            kernel = kernel_at_of_replicas(level)

            def run(point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
                nonlocal asked
                asked += 1
                if asked > limit:
                    raise StopError
                assert kernel.run is not None
                return kernel.run(point, steps, generator=generator)

            return kernel._replace(run=run)

        return stopping

    options: Any = {"model": MIXTURE, "draws": 5, "burn_in": 3}
    whole = replica_exchange(kernel_at_of_replicas, REPLICAS_LEVELS, start, generator=seeded(1), **options)
    for limit in (17, 40):  # in the warm-up of the first block, then in the second block
        with pytest.raises(StopError):
            replica_exchange(until(limit), REPLICAS_LEVELS, start, generator=seeded(1), store=tmp_path, **options)
    again = replica_exchange(
        kernel_at_of_replicas, REPLICAS_LEVELS, start, generator=seeded(1), store=tmp_path, **options
    )
    assert torch.equal(whole.draws, again.draws)
    assert all(torch.equal(a, b) for a, b in zip(whole.last, again.last, strict=True))
    assert torch.equal(whole.round_trips, again.round_trips)
    assert (whole.swap_rates, whole.score_calls) == (again.swap_rates, again.score_calls)
    done = replica_exchange(until(0), REPLICAS_LEVELS, start, store=tmp_path, **options)  # nothing is left to do
    assert torch.equal(whole.draws, done.draws)
    other = annealing.geometric(9.0, 0.5, 5)
    with pytest.raises(ValueError, match=r"to hold this run, with levels"):
        replica_exchange(kernel_at_of_replicas, other, start, generator=seeded(1), store=tmp_path, **options)
    options["model"] = targets.GaussianMixture(WEIGHTS.flip(0), REPLICAS_MEANS, COVARIANCES)
    with pytest.raises(ValueError, match="first step differs"):
        replica_exchange(kernel_at_of_replicas, REPLICAS_LEVELS, start, generator=seeded(1), store=tmp_path, **options)


def test_the_same_seed_gives_the_same_draws_in_the_dtype_of_the_start() -> None:
    x = 5 * torch.randn(20, 2, generator=seeded())
    runs = [
        replica_exchange(kernel_at_of_replicas, REPLICAS_LEVELS, x, model=MIXTURE, draws=3, generator=seeded(s))
        for s in (1, 1, 2)
    ]
    assert torch.equal(runs[0].draws, runs[1].draws)
    assert not torch.equal(runs[0].draws, runs[2].draws)
    assert runs[0].draws.dtype == torch.float32
    assert not runs[0].last[0].is_inference()


def test_a_ratio_that_is_not_finite_is_a_rejection_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ladder = importlib.import_module("scoremh.annealing.replica_exchange")
    monkeypatch.setattr(ladder, "log_density_change", lambda model, x, *args, **options: x[:, 0] * torch.inf)
    x = exact_draws(10, seeded())
    found = replica_exchange(kernel_at_of_replicas, REPLICAS_LEVELS, x, model=MIXTURE, draws=4, generator=seeded())
    assert found.nonfinite == 4 * 10 * 2
    assert found.swap_rates == (0.0,) * 4
    assert "80 swaps had a ratio that is not finite" in repr(found)


class OneLevel(targets.Gaussian):
    """A distribution that knows no noise levels."""

    noise_level = noise_range = None  # type: ignore[assignment]


ZEROS = torch.zeros(3, 2).double()
REPLICAS_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a model of one level": ({"model": OneLevel([0.0, 0.0])}, "a score at many noise levels, got a score at one level"),
    "levels that are not known": ({"levels": [1e6, 1.0]}, "levels in the noise range of the model, .* got 1 to 1e"),
    "one level": ({"levels": [1.0]}, r"at least two levels, each below the one before, got \[1.0\]"),
    "the same level twice": ({"levels": [1.0, 1.0]}, "each below the one before"),
    "levels that rise": ({"levels": [0.5, 1.0]}, "levels from high to low"),
    "kernels of other events": ({"initial": torch.zeros(3, 4).double()}, r"2\b.*got"),
    "too few starts": ({"initial": [ZEROS]}, r"initial points for 5 levels, got 1 of shapes \[\(3, 2\)\]"),
    "no kernel": ({"kernel_at": lambda level: None}, "kernel_at to return a Kernel"),
    "one draw": ({"draws": 1}, "draws of at least 2"),
    "no local moves": ({"steps_per_swap": 0}, "steps_per_swap of at least 1"),
    "no nodes": ({"nodes": 0}, "nodes of at least 1"),
}


@pytest.mark.parametrize(("arguments", "text"), REPLICAS_REFUSED.values(), ids=REPLICAS_REFUSED)
def test_what_cannot_be_right_raises_an_error(arguments: dict[str, Any], text: str) -> None:
    right: dict[str, Any] = {
        "kernel_at": kernel_at_of_replicas,
        "levels": REPLICAS_LEVELS,
        "initial": ZEROS,
        "model": MIXTURE,
        "draws": 4,
    }
    with pytest.raises((ValueError, TypeError), match=text):
        replica_exchange(**right | arguments)


def test_levels_are_not_tuned_to_an_impossible_rate() -> None:
    with pytest.raises(ValueError, match=r"swap_rate in \(0, 1\), got 1"):
        annealing.tune_levels(kernel_at_of_replicas, ZEROS, model=MIXTURE, swap_rate=1.0)
