"""Diagnostics against closed forms and independent computations, and on cases that they must distinguish."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from arviz_stats.base.array import array_stats
from torch import Tensor

from scoremh import (
    MALA,
    Always,
    Chains,
    Exact,
    LineIntegral,
    Point,
    RandomWalk,
    Recipe,
    Target,
    Taylor,
    diagnostics,
    fit_acceptance,
    metropolis_hastings,
    sample,
    targets,
)
from scoremh.diagnostics import conservativity, disagreement, kernel_stein_discrepancy, summary
from scoremh.networks import Free
from scoremh.types import Proposal
from tests.balance_cases import MIXTURE as RESIDUAL_MIXTURE
from tests.balance_cases import Rule, fitted
from tests.cases import GAUSSIAN, PROPOSALS, TARGETS, f64, seeded

MIXTURE = TARGETS["mixture"]


def test_a_gradient_is_conservative() -> None:
    for law in (MIXTURE, TARGETS["banana"], TARGETS["student"]):
        found = conservativity(law.score, law.sample(500, generator=seeded()), nodes=24, generator=seeded())
        assert found.asymmetry < 1e-12
        assert found.circulation < 1e-6 * found.side


def test_a_rotation_has_the_asymmetry_and_circulation_of_its_curl() -> None:
    """For s = -x + c R x with R the quarter turn: |Jw - J^T w| / |Jw| = 2c / sqrt(1 + c^2); circulation = 2c area."""
    c, size = 0.3, 1e-2
    turn = f64([0.0, -1.0], [1.0, 0.0])
    x = targets.Gaussian(f64(0.0, 0.0)).sample(20_000, generator=seeded())
    found = conservativity(lambda x: -x + c * x @ turn.T, x, size=size, generator=seeded())
    assert found.asymmetry == pytest.approx(2 * c / math.sqrt(1 + c**2), rel=1e-10)
    # two sides of length L at an angle phi, uniform: area = L^2 |sin phi| / 2, root mean square L^2 / (2 sqrt 2)
    squared_length = size**2 * float((x - x.mean(0)).square().sum(1).mean())
    assert found.circulation == pytest.approx(2 * c * squared_length / (2 * math.sqrt(2)), rel=0.02)
    assert "0.575" in str(found)


def test_conservativity_takes_events_of_any_shape() -> None:
    x = torch.randn(20, 1, 4, 4, generator=seeded())
    assert conservativity(lambda x: -x, x, generator=seeded()).asymmetry == 0


def test_equal_rules_never_disagree_and_balances_differ_as_expected() -> None:
    x, proposal = GAUSSIAN.sample(50_000, generator=seeded()), RandomWalk(1.5)
    same = disagreement(Exact(), LineIntegral(), target=GAUSSIAN, proposal=proposal, x=x, generator=seeded())
    assert same.rate == 0
    assert same.mean_difference < 1e-12
    other = disagreement(Exact(), Exact(balance="barker"), target=GAUSSIAN, proposal=proposal, x=x, generator=seeded())
    assert other.rate == pytest.approx(other.mean_difference, abs=4 * math.sqrt(0.25 / len(x)))
    # Barker accepts a subset of what Metropolis accepts on the same uniforms
    assert other.acceptance_rates[0] - other.acceptance_rates[1] == pytest.approx(other.rate, abs=1e-12)


def test_disagreement_shows_the_degenerate_rule() -> None:
    x = MIXTURE.sample(20_000, generator=seeded())
    good = disagreement(Exact(), LineIntegral(), target=MIXTURE, proposal=MALA(0.5), x=x, generator=seeded())
    bad = disagreement(Exact(), Taylor(1, average=True), target=MIXTURE, proposal=MALA(0.5), x=x, generator=seeded())
    assert bad.rate > 10 * good.rate
    assert f"of {len(x)} decisions differ" in str(bad)


def test_disagreement_counts_candidates_outside_the_support_as_agreement() -> None:
    law = TARGETS["gev-frechet"]
    x = law.sample(5000, generator=seeded())
    found = disagreement(Exact(), Exact(), target=law, proposal=RandomWalk(2.0), x=x, generator=seeded())
    assert found.rate == 0
    assert found.moves == 5000
    assert found.acceptance_rates[0] < 0.7


def stein_by_autograd(x: Tensor, score: Tensor, c: float) -> float:
    """Return the discrepancy from the definition, differentiating the kernel itself."""

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return (c**2 + (a - b).square().sum()).rsqrt()

    def one(a: Tensor, b: Tensor, s: Tensor, t: Tensor) -> Tensor:
        grad_a, grad_b = torch.func.grad(kernel, argnums=(0, 1))(a, b)
        cross = torch.func.jacrev(torch.func.grad(kernel, argnums=1), argnums=0)(a, b)
        value: Tensor = s @ t * kernel(a, b) + s @ grad_b + t @ grad_a + cross.trace()
        return value

    pairs = [one(x[i], x[j], score[i], score[j]) for i in range(len(x)) for j in range(len(x))]
    return math.sqrt(float(torch.stack(pairs).mean()))


def test_stein_discrepancy_is_its_definition() -> None:
    x = MIXTURE.sample(8, generator=seeded())
    expected = stein_by_autograd(x, MIXTURE.score(x), 1.3)
    for chunk in (3, 1024):
        assert kernel_stein_discrepancy(x, MIXTURE.score, bandwidth=1.3, chunk=chunk) == pytest.approx(
            expected, rel=1e-10
        )


def test_stein_discrepancy_of_exact_draws_is_known() -> None:
    """E[KSD^2] = E[k_p(x, x)] / n with k_p(x, x) = |s|^2 / c + d / c^3: for N(0, I) in the plane (2/c + 2/c^3) / n."""
    normal, n, c = targets.Gaussian(f64(0.0, 0.0)), 200, 2.0
    draws = [normal.sample(n, generator=seeded(seed)) for seed in range(60)]
    squares = torch.tensor([kernel_stein_discrepancy(x, normal.score, bandwidth=c) ** 2 for x in draws])
    error = float(squares.std()) / math.sqrt(len(draws))
    assert float(squares.mean()) == pytest.approx((2 / c + 2 / c**3) / n, abs=4 * error)
    wrong = torch.tensor([kernel_stein_discrepancy(1.2 * x, normal.score, bandwidth=c) ** 2 for x in draws])
    assert float(wrong.mean()) > float(squares.mean()) + 10 * error


@pytest.mark.parametrize("rule", [LineIntegral("exact"), Always()], ids=repr)
def test_disagreement_decides_as_the_kernel_does(rule: Any) -> None:
    """With the same generator a kernel draws the same candidates and uniforms; some scores here are not finite."""

    def score(x: Tensor) -> Tensor:
        return torch.where(x[:, :1] > 1, torch.nan, MIXTURE.score(x))

    known = Target(score, MIXTURE.log_density)
    x = MIXTURE.sample(2000, generator=seeded())
    x = x[x[:, 0] < 1]
    found = disagreement(rule, Exact(), target=known, proposal=MALA(0.6), x=x, generator=seeded(1))
    takes = []
    for one in (rule, Exact()):
        kernel = metropolis_hastings(known, MALA(0.6), one)
        takes.append(kernel.step(kernel.init(x), generator=seeded(1))[1].accepted)
    assert found.rate == float((takes[0] != takes[1]).double().mean())
    assert found.acceptance_rates == tuple(float(t.double().mean()) for t in takes)


def test_stein_discrepancy_far_from_the_origin() -> None:
    x = GAUSSIAN.sample(500, generator=seeded())
    near = kernel_stein_discrepancy(x, GAUSSIAN.score, bandwidth=1.0)
    shift = 1000.0
    far = kernel_stein_discrepancy(x + shift, lambda y: GAUSSIAN.score(y - shift), bandwidth=1.0)
    assert far == pytest.approx(near, rel=1e-6)


@pytest.fixture(scope="module")
def chains() -> Chains:
    kernel = metropolis_hastings(MIXTURE, MALA(0.6), LineIntegral())
    return sample(kernel, MIXTURE.sample(8, generator=seeded()), draws=300, generator=seeded())


def test_the_summary_warns_of_draws_without_an_accept_step() -> None:
    x = GAUSSIAN.sample(8, generator=seeded())
    for rule, warned in ((Always(), True), (LineIntegral(), False)):
        chains = sample(metropolis_hastings(GAUSSIAN, MALA(0.5), rule), x, draws=200, generator=seeded())
        assert ("unadjusted" in [one.kind for one in summary(chains).warnings]) == warned


def test_r_hat_says_how_much_longer_to_run_and_names_warmup() -> None:
    law = Target(score=lambda x: -x)
    x = torch.randn(4, 2, generator=seeded())
    chains = sample(metropolis_hastings(law, MALA(0.02), LineIntegral()), x, draws=400, generator=seeded())
    (found,) = (one for one in summary(chains).warnings if one.kind == "r_hat")
    value = found.value or math.nan
    assert f"run {math.ceil((value**2 - 1) / (1.01**2 - 1))} times as long, or call warmup" in found.text
    stuck = sample(metropolis_hastings(law, MALA(1e-9), LineIntegral()), x, draws=50, generator=seeded())
    assert any("call warmup for a step size" in one.text for one in summary(stuck).warnings)


def test_conservativity_prints_its_limit() -> None:
    text = str(diagnostics.Conservativity(0.1, 0.02, 1.0))
    assert "at most 0.01 of the decisions" in text
    assert "limit is 0.1 nats" in text


def test_summary_is_arviz_s(chains: Chains) -> None:
    found = summary(chains)
    x = chains.draws.numpy()
    for i in range(2):
        column = x[:, :, i]
        assert found.table["ess_bulk"][i] == pytest.approx(float(array_stats.ess(column, method="bulk")))
        assert found.table["ess_tail"][i] == pytest.approx(
            float(array_stats.ess(column, method="tail", prob=(0.05, 0.95)))
        )
        assert found.table["r_hat"][i] == pytest.approx(float(array_stats.rhat(column)))
        assert found.table["mcse_mean"][i] == pytest.approx(float(array_stats.mcse(column, method="mean")))
    assert found.table["mean"] == pytest.approx(x.mean((0, 1)))
    assert found.acceptance_rate == chains.acceptance_rate
    assert found.score_calls == chains.score_calls >= 8 + 8 * 300 * 2
    assert found.ess_per_score_call == pytest.approx(float(found.table["ess_bulk"].min()) / chains.score_calls)
    text = str(found)
    for word in ("ess_bulk", "r_hat", "x[1]", "score calls", "acceptance 0."):
        assert word in text


def test_summary_warns_in_words() -> None:
    far = targets.GaussianMixture([0.5, 0.5], [[9.0], [-9.0]])
    stuck = sample(metropolis_hastings(far, MALA(0.3), LineIntegral()), torch.tensor([[9.0], [-9.0]]), draws=100)
    assert any("the chains have not mixed" in str(one) for one in summary(stuck).warnings)
    assert [(one.kind, one.value) for one in summary(stuck).warnings] == [("r_hat", summary(stuck).table["r_hat"][0])]
    short = sample(metropolis_hastings(far, MALA(0.3), LineIntegral()), torch.tensor([[9.0], [-9.0]]), draws=2)
    assert any("at least 2 moving chains of 4 draws" in str(one) for one in summary(short).warnings)
    nan = Target(score=lambda x: torch.where(x > 9, math.nan, -x))
    broken = sample(metropolis_hastings(nan, MALA(0.3), LineIntegral()), torch.tensor([[10.0], [0.0]]), draws=100)
    found = summary(broken)
    assert found.diverging == 100
    assert any(
        "1 of 2 chains diverged, or rejected moves because a score or ratio was not finite" in str(one)
        for one in found.warnings
    )
    assert ("nonfinite", 1.0) in [(one.kind, one.value) for one in found.warnings]


def test_summary_of_many_coordinates_shows_the_worst(chains: Chains) -> None:
    kernel = metropolis_hastings(Target(score=lambda x: -x), MALA(0.3), LineIntegral())
    images = sample(kernel, torch.randn(4, 1, 5, 5, generator=seeded()), draws=50, generator=seeded())
    found = summary(images)
    assert found.table["r_hat"].shape == (1, 5, 5)
    lowest = np.unravel_index(np.argmin(found.table["ess_bulk"]), (1, 5, 5))
    assert "12 of 25 coordinates" in str(found)
    assert f"x[{', '.join(str(i) for i in lowest)}]" in str(found)


# `diagnostics.balance_residual`: residuals of detailed balance.


def test_the_residual_of_an_exact_acceptance_is_zero() -> None:
    for name in ("rw", "mala-full", "pcn"):
        found = diagnostics.balance_residual(
            Rule(RESIDUAL_MIXTURE, PROPOSALS[name], "metropolis"),
            RESIDUAL_MIXTURE,
            PROPOSALS[name],
            RESIDUAL_MIXTURE.sample(500, generator=seeded()),
            nodes=64,
            generator=seeded(),
        )
        assert found.integral.rms < 1e-8
        assert found.density is not None
        assert found.density.rms < 1e-12
        assert found.density.correlation == pytest.approx(1)
        assert [d.pairs for d in found.distances] == [100] * 5
        edges = [edge for d in found.distances for edge in (d.low, d.high)]
        assert edges == sorted(edges)


class Shifted(Free):
    """A form whose log a(x', x) - log a(x, x') is off by a constant."""

    def __init__(self, net: Rule, shift: float) -> None:
        super().__init__(net)
        self.shift = shift

    def log_ratio(self, current: Point, proposed: Point, *, proposal: Proposal) -> Tensor:
        return super().log_ratio(current, proposed, proposal=proposal) + self.shift


def test_the_residual_finds_what_is_wrong() -> None:
    """An acceptance off by a known amount: 0.3 times the square of the distance, on one side of the pair."""

    class Off(Rule):
        def ratio(self, proposed: Tensor, current: Tensor) -> Tensor:
            sign = (proposed[:, 0] > current[:, 0]).double() * 2 - 1
            return super().ratio(proposed, current) + 0.3 * sign * (proposed - current).square().sum(1)

    x = RESIDUAL_MIXTURE.sample(2000, generator=seeded())
    found = diagnostics.balance_residual(
        Off(RESIDUAL_MIXTURE, RandomWalk(1.0), "barker"),
        Target(RESIDUAL_MIXTURE.score),
        RandomWalk(1.0),
        x,
        generator=seeded(),
    )
    assert found.density is None
    distances = [(pair[1] - pair[0]).square().sum() for pair in found.integral.worst_pairs]
    assert [abs(w) for w in found.integral.worst] == pytest.approx([0.3 * float(d) for d in distances], abs=1e-6)
    assert [d.rms for d in found.distances] == sorted(d.rms for d in found.distances)
    assert found.integral.rms == pytest.approx(0.3 * math.sqrt(8), rel=0.1)  # |v|^2 is chi-squared, of mean square 8

    exact = Rule(RESIDUAL_MIXTURE, RandomWalk(1.0), "barker")
    shifted = diagnostics.balance_residual(
        Shifted(exact, 0.2), RESIDUAL_MIXTURE, RandomWalk(1.0), x, generator=seeded()
    )
    assert shifted.density is not None
    biases = [shifted.integral.bias, shifted.density.bias, *(part.bias for part in shifted.distances)]
    assert biases == pytest.approx([0.2] * 7, abs=1e-6)
    assert "against the line integral: rms" in str(found)


def test_pairs_with_a_way_outside_the_support_have_no_residual() -> None:
    """Across a hole the line integral is meaningless, and the score is not evaluated inside it."""

    def outside(x: Tensor) -> Tensor:
        return x.square().sum(1) > 1

    def score(x: Tensor) -> Tensor:
        assert bool(outside(x).all())
        score: Tensor = GAUSSIAN.score(x)
        return score

    hole = Target(score, GAUSSIAN.log_density, outside)
    net, x = Rule(GAUSSIAN, RandomWalk(1.0), "barker"), GAUSSIAN.sample(500, generator=seeded())
    found = diagnostics.balance_residual(net, hole, RandomWalk(1.0), x, generator=seeded())
    assert found.pairs > 50
    assert found.without_way > 5
    assert f"{found.pairs} pairs, and {found.without_way} whose line leaves the support" in str(found)
    assert found.integral.rms < 1e-9

    class Beyond(Rule):
        """Off by 5 where the way is barred, forth and back."""

        def ratio(self, proposed: Tensor, current: Tensor) -> Tensor:
            middle = torch.stack([current.lerp(proposed, t) for t in (0.25, 0.5, 0.75)])
            barred = (middle.square().sum(2) < 1).any(0)
            sign = (proposed[:, 0] > current[:, 0]).double() * 2 - 1
            return super().ratio(proposed, current) + 5 * sign * barred

    net = Beyond(GAUSSIAN, RandomWalk(1.0), "barker")
    found = diagnostics.balance_residual(net, hole, RandomWalk(1.0), x, generator=seeded())
    assert found.density is not None
    assert found.integral.rms < 1e-9
    assert found.density.rms > 0.5
    fit_acceptance(hole, MALA(0.5), x, form="free", recipe=Recipe(steps=2, batch=64, check_every=1))


def test_the_residual_of_a_fit_matches_that_of_its_net() -> None:
    fit = fitted()
    x = GAUSSIAN.sample(200, generator=seeded(1))
    first, second = (
        diagnostics.balance_residual(net, GAUSSIAN, RandomWalk(1.0), x, generator=seeded()) for net in (fit, fit.net)
    )
    assert first.integral.rms == second.integral.rms > 0.001
