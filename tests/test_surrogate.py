"""Cheap moves judged in groups by a log density: the surrogate transition method."""

from typing import Any

import pytest
import torch
from torch import Tensor

from scoremh import (
    MALA,
    Always,
    Exact,
    Learned,
    LineIntegral,
    RandomWalk,
    Recipe,
    Sampler,
    Target,
    Taylor,
    ThroughNoise,
    diagnostics,
    fit_acceptance,
    fit_score,
    metropolis_hastings,
    sample,
    targets,
)
from scoremh.kernel import grouped

MIXTURE = targets.GaussianMixture(
    torch.tensor([0.3, 0.7]).double(), torch.tensor([[-2.0, 0.0], [2.0, 1.0]]).double(), 0.5 * torch.eye(2).double()
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Wrong:
    """The mixture with its own density and exact draws, and a score that is wrong: it pulls to (1, 1) as well."""

    support = None
    log_density = staticmethod(MIXTURE.log_density)
    sample = staticmethod(MIXTURE.sample)

    @staticmethod
    def score(x: Tensor) -> Tensor:
        return MIXTURE.score(x) + 0.5 * (1 - x)


CHEAP = {
    "simpson": LineIntegral(),
    "trapezoid with a walk": LineIntegral("trapezoid"),
    "barker": LineIntegral(balance="barker"),
    "adaptive": LineIntegral("adaptive"),
}


@pytest.mark.parametrize("moves", [1, 5])
@pytest.mark.parametrize("name", CHEAP)
def test_a_wrong_score_is_corrected(name: str, moves: int) -> None:
    wrong: Any = Wrong()
    proposal = RandomWalk(0.8) if name == "trapezoid with a walk" else MALA(0.3)
    kernel = grouped(wrong, proposal, CHEAP[name], Exact(), group_size=moves)
    found = diagnostics.stationarity(kernel, wrong, chains=4000, steps=20, generator=seeded())
    assert found.p_value > 1e-4
    alone = metropolis_hastings(wrong, proposal, CHEAP[name])
    assert diagnostics.stationarity(alone, wrong, chains=4000, steps=20, generator=seeded()).p_value < 1e-10


def test_a_learned_acceptance_of_any_form_is_corrected() -> None:
    target, proposal = Target(MIXTURE.score, MIXTURE.log_density), RandomWalk(0.8)
    x = MIXTURE.sample(1000, generator=seeded())
    for form in ("free", "antisymmetric", "potential"):
        fit = fit_acceptance(target, proposal, x, form=form, recipe=Recipe(steps=30, batch=64), generator=seeded(1))
        kernel = grouped(target, proposal, Learned(fit), Exact(), group_size=3)
        assert diagnostics.stationarity(kernel, MIXTURE, chains=4000, steps=12, generator=seeded(2)).p_value > 1e-4


def test_where_the_rule_is_exact_every_group_is_accepted() -> None:
    start = MIXTURE.sample(200, generator=seeded())
    kernel = grouped(MIXTURE, MALA(0.3), Exact(), Exact(), group_size=5)
    chains = sample(kernel, start, draws=4, thin=5, generator=seeded(1))
    assert chains.acceptance_rate == pytest.approx(float(chains.acceptance_prob.mean()), abs=0.05)
    assert chains.acceptance_rate > 0.5


def test_a_rejected_group_is_taken_back() -> None:
    """A log density that is nowhere higher than at the start: no group is accepted, and nothing moves."""
    start = MIXTURE.sample(50, generator=seeded())
    only_there = Target(MIXTURE.score, lambda x: torch.where((x == start).all(1), 0.0, -1e6).double())
    chains = sample(grouped(only_there, MALA(0.3), LineIntegral(), Exact()), start, draws=3, thin=10)
    torch.testing.assert_close(chains.draws, start[:, None].expand(-1, 3, -1), rtol=0, atol=0)
    assert chains.acceptance_rate == 0
    assert float(chains.acceptance_prob.mean()) > 0.5


def test_a_support_is_kept_and_counted() -> None:
    half = targets.truncate(MIXTURE, lambda x: x[:, 0] > 0)
    start = MIXTURE.sample(500, generator=seeded()).abs()
    chains = sample(grouped(half, RandomWalk(1.5), LineIntegral(), Exact()), start, draws=1, thin=20)
    assert bool((chains.last[:, 0] > 0).all())
    assert int(chains.outside.sum()) > 0


def test_a_score_that_is_not_finite_is_a_rejection() -> None:
    target = Target(lambda x: torch.where(x > 1, torch.nan, -x), lambda x: -x.square().sum(1) / 2)
    chains = sample(grouped(target, RandomWalk(1.5), LineIntegral(), Exact()), torch.zeros(100, 1), draws=2, thin=10)
    assert chains.draws.isfinite().all()
    assert int(chains.nonfinite.sum()) > 0


def test_the_cost_is_counted() -> None:
    start = MIXTURE.sample(10, generator=seeded())
    kernel = grouped(MIXTURE, MALA(0.1), LineIntegral(), ThroughNoise(nodes=8), group_size=10)
    _, trace = kernel.run(kernel.init(start), 20, generator=seeded())  # type: ignore[misc]
    assert trace.score_calls == 2 * 20 * 10 + 3 * 8 * (1 + 2) * 10


def test_steps_by_hand_are_judged_one_by_one() -> None:
    kernel = grouped(MIXTURE, MALA(0.3), LineIntegral(), Exact())
    assert diagnostics.stationarity(kernel._replace(run=None), MIXTURE, chains=4000, generator=seeded()).p_value > 1e-4


def test_draws_at_the_ends_of_groups_are_judged_however_a_run_is_divided() -> None:
    """A score of a wider normal distribution: within a group draws are too wide, at its end they are not."""
    target = Target(lambda x: -x / 4, lambda x: -x.square().sum(1) / 2)
    start = torch.randn(1000, 2, generator=seeded())
    kernel = grouped(target, RandomWalk(1.0), LineIntegral(), Exact(), group_size=10)
    chains = sample(kernel, start, draws=20, thin=10, generator=seeded(1))  # more steps than one segment has
    assert bool(((chains.draws.square().mean((0, 2)) - 1).abs() < 0.15).all())
    within = sample(kernel, start, draws=20, thin=5, generator=seeded(1)).draws[:, ::2]
    assert bool((within.square().mean((0, 2)) > 1.15).all())


def test_barkers_balance_and_densities_that_are_not_finite() -> None:
    start = MIXTURE.sample(500, generator=seeded())
    rates = [
        sample(grouped(Wrong(), MALA(0.3), LineIntegral(), final), start, draws=1, thin=50).acceptance_rate
        for final in (Exact(), Exact(balance="barker"))
    ]
    assert rates[1] < 0.8 * rates[0]
    spike = Target(MIXTURE.score, lambda x: torch.where(x[:, 0] > 2, torch.inf, MIXTURE.log_density(x)))
    inside = start[start[:, 0] < 2]
    assert bool(
        (sample(grouped(spike, MALA(0.3), LineIntegral(), Exact()), inside, draws=1, thin=50).last[:, 0] <= 2).all()
    )
    with pytest.raises(ValueError, match="positive density"):
        sample(grouped(spike, MALA(0.3), LineIntegral(), Exact()), start, draws=1)


def test_a_product_with_known_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="a target without known parts"):
        grouped(targets.product(MIXTURE, MIXTURE), MALA(0.3), LineIntegral(), Exact())


def test_a_step_names_its_candidate() -> None:
    kernel = grouped(MIXTURE, RandomWalk(3.0), LineIntegral(), Exact())
    point = kernel.init(MIXTURE.sample(100, generator=seeded()))
    there, move = kernel.step(point, generator=seeded(1))
    assert bool((move.proposed != point.x).any(1).all())
    torch.testing.assert_close(there.x[move.accepted], move.proposed[move.accepted])
    torch.testing.assert_close(there.x[~move.accepted], point.x[~move.accepted])


@pytest.mark.parametrize("rule", [Always(), LineIntegral("exact"), Taylor()])
def test_rules_without_a_ratio_are_refused(rule: Any) -> None:
    with pytest.raises(ValueError, match="a rule with a deterministic log ratio"):
        grouped(MIXTURE, MALA(0.3), rule, Exact())


def test_a_final_rule_without_a_density_is_refused() -> None:
    with pytest.raises(ValueError, match="a final rule by a log density"):
        grouped(MIXTURE, MALA(0.3), LineIntegral(), LineIntegral())


@pytest.mark.slow
def test_long_chains_of_a_sampler_do_not_leak() -> None:
    """A funnel has wells in its learned score: the longer chains without the final decision run, the more end there."""
    rows = targets.Funnel(5, 1.5).sample(2000, generator=seeded(4))
    score = fit_score(rows, recipe=Recipe(steps=1500), generator=seeded(5))
    u = score.coordinates.inverse(rows)
    far = []
    for moves in (None, 10):
        sampler = Sampler(score, 0.3, group_size=moves).tune(200, generator=seeded(6))
        drawn = sampler.sample(300, annealing_steps=10, chain_steps=1500, generator=seeded(8)).last
        far.append(float((score.coordinates.inverse(drawn).norm(dim=1) > 1.2 * u.norm(dim=1).max()).double().mean()))
    assert far[0] > 0.005
    assert far[1] <= 0.2 * far[0]
