"""Steps as long as the distribution, across narrow structure: which rules decide for the true ratio."""

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from scoremh import (
    MALA,
    Chains,
    Exact,
    LineIntegral,
    RandomWalk,
    Target,
    diagnostics,
    metropolis_hastings,
    sample,
    targets,
)
from scoremh.acceptance.exact import LONG, MAX_SHARE, FiveNodes, Residual, bounds, limits, shared_correction
from scoremh.types import Point
from studies.acceptance.elsewhere import ELSEWHERE
from studies.acceptance.exactness import REFUSED, never_refused, refused_at
from studies.acceptance.narrow import NARROW, STDS, on_a_line
from studies.acceptance.rules import STEPPED
from studies.acceptance.two_coin import TwoCoin
from tests.cases import EXACT_ON_GAUSSIAN, ONE_SIDED
from tests.studies.cases import kept

FALSE_ALARM = 1e-3  # that any of the tests of right rules fails although all is right


RIGHT = {"density": Exact(), "exact": LineIntegral("exact"), "adaptive": LineIntegral("adaptive", nodes=127)}
RIGHT["two-coin"] = TwoCoin()
CASES = [(name, std) for name, stds in STDS.items() for std in stds]


def p_value(name: str, std: float, rule: Any, seed: int = 0) -> float:
    distribution = NARROW[name]
    kernel = metropolis_hastings(distribution, RandomWalk(std), rule)
    generator = torch.Generator().manual_seed(seed)
    return diagnostics.stationarity(kernel, distribution, chains=10_000, steps=20, generator=generator).p_value


@pytest.mark.slow
@pytest.mark.parametrize("rule", RIGHT)
@pytest.mark.parametrize(("name", "std"), CASES)
def test_right_rules_leave_narrow_structure_invariant(name: str, std: float, rule: str) -> None:
    assert p_value(name, std, RIGHT[rule]) > FALSE_ALARM / (len(CASES) * len(RIGHT))


def test_the_page_has_every_rule_that_integrates() -> None:
    integrating = (EXACT_ON_GAUSSIAN | ONE_SIDED).values()
    assert {repr(rule) for rule in integrating} <= {repr(rule) for rule in STEPPED.values()}


# the smallest step at which each of these is refused, as the page has it
WRONG = [
    (rule, name, min(refused_at(kept("acceptance"), rule, name)))
    for rule in ("LineIntegral()", 'LineIntegral("trapezoid")', 'LineIntegral("gauss")', "Taylor(1)")
    for name in STDS
]


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "name", "std"), WRONG)
def test_other_rules_are_refused_where_the_page_says_so(rule: str, name: str, std: float) -> None:
    assert p_value(name, std, STEPPED[rule]) < REFUSED


def test_the_page_refuses_no_exact_rule() -> None:
    exact = {"Exact()", 'Exact(balance="barker")', 'LineIntegral("exact")', "TwoCoin()"}
    assert exact <= set(never_refused(kept("acceptance")))


MODES = on_a_line(torch.tensor([0.3, 0.7]).double(), torch.tensor([-1.0, 1.0]).double(), 0.5)


def mean_acceptance(rule: Any, ends: Tensor, n: int = 50_000) -> tuple[float, float]:
    """Return the mean acceptance of a walk from the first of two points to the second, and its standard error."""
    current, proposed = (Point(x.expand(n, 1), MODES.score(x[None]).expand(n, 1)) for x in ends)
    generator = torch.Generator().manual_seed(0)
    parts = {"target": Target(MODES.score), "proposal": RandomWalk(1.0), "generator": generator}
    uniform = torch.rand(n, generator=generator, dtype=torch.float64)
    accepted = (uniform.log() < rule.decide(current, proposed, uniform.log(), **parts).log_accept).double()
    return float(accepted.mean()), float(accepted.std()) / math.sqrt(n)


ENDS = torch.tensor([[-0.6], [0.7]]).double()
NEAR_ONE = torch.tensor([[-1.3], [0.4]]).double()  # |S| is well below the bound here, and above it at ENDS


def true_change(ends: Tensor = ENDS) -> float:
    return float((MODES.log_density(ends[1:]) - MODES.log_density(ends[:1]))[0])


PRODUCTS = [LineIntegral("exact"), LineIntegral("exact", balance="barker")]
PAIRS = [(rule, ENDS) for rule in (*PRODUCTS, TwoCoin(), TwoCoin(loops=1), TwoCoin(loops=3))]
PAIRS += [(rule, NEAR_ONE) for rule in PRODUCTS]


@pytest.mark.parametrize(("rule", "ends"), PAIRS, ids=str)
def test_the_mean_of_an_exact_rule_has_the_true_ratio(rule: Any, ends: Tensor) -> None:
    """E a(x', x) / E a(x, x') = p(x') / p(x) for a walk, at pairs where Simpson's rule is off by a factor."""
    (forth, forth_error), (back, back_error) = (mean_acceptance(rule, pair) for pair in (ends, ends.flip(0)))
    error = math.hypot(forth_error / forth, back_error / back)
    assert abs(math.log(forth / back) - true_change(ends)) < 5 * error
    points = [Point(x[None], MODES.score(x[None])) for x in ends]
    simpson = LineIntegral().log_density_change(*points, target=Target(MODES.score))
    assert abs(float(simpson[0]) - true_change(ends)) > 10 * error


@pytest.mark.parametrize("balance", ["metropolis", "barker"])
def test_both_directions_share_one_correction(balance: Any) -> None:
    """With log a = first + rho (E[P] - B) / (2 B): log a - log a' = log r + E[P], for all ratios and bounds."""
    log_ratio, bound = (part.flatten() for part in torch.meshgrid(GRID - 4, GRID, indexing="ij"))
    balanced = LineIntegral(balance=balance).log_balanced
    first, rate = shared_correction(log_ratio, balanced(log_ratio), bound)
    first_back, rate_back = shared_correction(-log_ratio, balanced(-log_ratio), bound)
    torch.testing.assert_close(rate + rate_back, 2 * bound, atol=1e-12, rtol=0)
    torch.testing.assert_close(first - first_back - (rate - rate_back) / 2, log_ratio, atol=1e-12, rtol=0)
    assert (first <= 0).all()
    assert (rate >= -1e-12).all()
    lossless = bound <= balanced(log_ratio).abs() + balanced(-log_ratio).abs()  # by Metropolis where |log r| >= B
    torch.testing.assert_close((first - rate / 2)[lossless], balanced(log_ratio)[lossless], atol=1e-12, rtol=0)
    assert 0.2 < lossless.double().mean() < 0.9


GRID = torch.linspace(0, 8, 65).double()


@pytest.mark.parametrize("first", [0.0, 0.3])
def test_no_correction_where_simpsons_rule_misses_nothing(first: float) -> None:
    log_ratio = torch.tensor([first, -first]).double()
    left, rate = shared_correction(log_ratio, log_ratio.clamp(max=0), torch.zeros(2).double())
    torch.testing.assert_close(left, log_ratio.clamp(max=0))
    assert (rate == 0).all()


def test_an_even_slope_that_is_monotone_from_the_middle_is_never_clipped() -> None:
    """|P| is at most half the second difference: here for steps, the steepest of all, at any place."""
    ends = torch.tensor([[0.0]]).double(), torch.tensor([[1.0]]).double()
    every, places = torch.zeros(400).long(), torch.linspace(0, 1, 400).double()
    for edge in (0.01, 0.2, 0.4, 0.49):

        def score(x: Tensor, edge: float = edge) -> Tensor:
            return ((x - 0.5).abs() > edge).double()

        current, proposed = (Point(x, score(x)) for x in ends)
        residual = Residual.between(current, proposed, Target(score), None)
        pairs = (residual.at(every, places) + residual.at(every, 1 - places)) / 2
        assert 0.3 < pairs.abs().max() <= MAX_SHARE * residual.second_difference[0] + 1e-12


def test_two_coins_accept_as_barkers_rule_does_where_the_loops_suffice_and_less_where_they_do_not() -> None:
    r = math.exp(true_change())
    means = [mean_acceptance(TwoCoin(loops), ENDS) for loops in (1, 3, 1000)]
    assert means[2][0] == pytest.approx(r / (1 + r), abs=5 * means[2][1])
    assert means[0][0] + 5 * means[0][1] < means[1][0] < means[2][0] - 5 * means[2][1]


@pytest.mark.parametrize("rule", [LineIntegral("exact"), TwoCoin(loops=5)], ids=str)
def test_factors_are_counted_and_survive_a_file_and_a_resumed_run(rule: Any, tmp_path: Path) -> None:
    """Every factor is a score call, or two, beside those at candidates, midpoints and probes."""
    law = NARROW["comb"]
    kernel = metropolis_hastings(law, RandomWalk(0.5), rule)
    start = law.sample(1500, generator=torch.Generator().manual_seed(0))  # two blocks
    options: dict[str, Any] = {"draws": 6, "warmup": 2}
    with ThreadPoolExecutor(2) as threads:
        stored: dict[str, Any] = {"store": tmp_path / "run"}
        runs = [
            sample(kernel, start, generator=torch.Generator().manual_seed(1), **options, **more)
            for more in ({}, {"pool": threads}, {"pool": 2}, stored, stored)
        ]
    chains = runs[0]
    assert 0 < chains.clipped < chains.factors / 2
    assert chains.factors < chains.score_calls - 1500 * (1 + 2 * 8)
    runs[0].save(tmp_path / "chains.nc")
    for other in (*runs[1:], Chains.load(tmp_path / "chains.nc")):
        assert (other.factors, other.clipped) == (chains.factors, chains.clipped)
    said = f"clipped {chains.clipped / chains.factors:.2%} of {chains.factors:,} factors"
    assert said in repr(chains)
    assert said in str(diagnostics.summary(chains))
    stepwise = sample(kernel._replace(run=None), start, generator=torch.Generator().manual_seed(1), **options)
    assert stepwise.factors == pytest.approx(chains.factors, rel=0.05)
    assert stepwise.clipped == pytest.approx(chains.clipped, rel=0.5)


def test_a_rule_without_factors_counts_none() -> None:
    start = MODES.sample(4, generator=torch.Generator().manual_seed(0))
    kernel = metropolis_hastings(MODES, RandomWalk(1.0), LineIntegral())
    chains = sample(kernel, start, draws=50, generator=torch.Generator().manual_seed(1))
    assert (chains.factors, chains.clipped) == (0, 0)
    assert "factors" not in repr(chains)
    assert "factors" not in str(diagnostics.summary(chains))


def test_the_exact_rule_is_simpsons_on_a_gaussian_and_costs_no_more() -> None:
    normal = targets.Gaussian([0.0, 0.0])
    start = normal.sample(500, generator=torch.Generator().manual_seed(0))
    calls = [
        sample(
            metropolis_hastings(normal, MALA(0.3), rule), start, draws=50, generator=torch.Generator().manual_seed(1)
        )
        for rule in (LineIntegral(), LineIntegral("exact"))
    ]
    assert calls[1].acceptance_rate == pytest.approx(calls[0].acceptance_rate, abs=0.02)
    assert calls[1].score_calls < 1.2 * calls[0].score_calls


@pytest.mark.slow
@pytest.mark.parametrize("step_size", [0.5, 1.0])
def test_the_logistic_distribution_has_its_variance(step_size: float) -> None:
    generator, n = torch.Generator().manual_seed(0), 100_000
    u = torch.rand(n, 1, generator=generator, dtype=torch.float64)
    target = Target(score=lambda x: -2 * x.tanh())
    kernel = metropolis_hastings(target, MALA(step_size), LineIntegral("exact"))
    x = sample(kernel, (u / (1 - u)).log() / 2, draws=1, thin=60, generator=generator).last
    error = float(x.square().std()) / math.sqrt(n)
    assert float(x.square().mean()) == pytest.approx(math.pi**2 / 12, abs=4 * error)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rule", [LineIntegral("exact"), TwoCoin()], ids=str)
def test_a_score_that_is_not_finite_between_the_points_is_a_rejection(rule: Any, value: float) -> None:
    """Where only a probe or a factor meets it as well: the strip is narrow, and off the middle of most moves."""
    asked: list[Tensor] = []

    def score(x: Tensor) -> Tensor:
        asked.append(x)
        return torch.where((x - 0.3).abs() < 0.1, value, -8 * x**3)

    kernel = metropolis_hastings(Target(score=score), RandomWalk(1.0), rule)
    chains = sample(kernel, torch.full((500, 1), -0.6), draws=20, generator=torch.Generator().manual_seed(0))
    assert chains.draws.isfinite().all()
    assert chains.factors > 0
    at = [int(((x - 0.3).abs() < 0.1).sum()) for x in asked]
    assert sum(at[2::2]) > 0  # not at the candidates alone
    assert chains.nonfinite.any()
    moved = torch.cat([torch.full((500, 1, 1), -0.6), chains.draws], 1).diff(dim=1).squeeze(2) != 0
    assert not moved[chains.nonfinite > 0].any()


@pytest.mark.parametrize("rule", [LineIntegral("exact"), TwoCoin()], ids=str)
@pytest.mark.parametrize("steepness", [1e6, 1e30])
def test_a_bound_beyond_measure_is_a_rejection_and_no_lack_of_memory(rule: Any, steepness: float) -> None:
    """A Poisson number of such a mean would be of as many score calls; both directions are refused alike."""
    current, proposed = (Point(x, -steepness * x**3) for x in (torch.full((3, 1), -1.0), torch.full((3, 1), 1.01)))
    parts: dict[str, Any] = {"target": Target(lambda x: -steepness * x**3), "proposal": RandomWalk(1.0)}
    for ends in ((current, proposed), (proposed, current)):
        decision = rule.decide(*ends, torch.full((3,), -1e-3), **parts)
        assert decision.log_accept.isfinite().all()
        assert (decision.log_accept < -80).all()
        assert decision.factors == 0


@pytest.mark.parametrize(("step_size", "warned"), [(0.05, False), (0.8, True)])
def test_a_summary_warns_of_clipped_factors(step_size: float, warned: bool) -> None:
    """On a lattice of broad modes three nodes of a long step look alike, whatever lies between."""
    lattice = ELSEWHERE["25 modes"]
    kernel = metropolis_hastings(lattice, MALA(step_size), LineIntegral("exact"))
    generator = torch.Generator().manual_seed(0)
    chains = sample(kernel, lattice.sample(500, generator=generator), draws=20, generator=generator)
    kinds = [caution.kind for caution in diagnostics.summary(chains).warnings]
    assert ("clipped" in kinds) == warned


def test_the_number_of_loops_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="loops"):
        TwoCoin(loops=0)


def five_nodes_of(score: Any) -> FiveNodes:
    """Return what five nodes know of a move from 0 to 1 along which the score is f itself."""
    first, last = (Point(x, score(x)) for x in (torch.zeros(1, 1).double(), torch.ones(1, 1).double()))
    residual = Residual.between(first, last, Target(score), torch.Generator().manual_seed(0))
    return FiveNodes.ask(residual, torch.zeros(1).long())


def test_five_nodes_integrate_polynomials_of_degree_seven() -> None:
    five = five_nodes_of(lambda x: 8 * x**7 - 3 * x**2)
    assert float(five.residual.slopes.integral + five.correction) == pytest.approx(0, abs=1e-14)
    assert abs(float(five.residual.slopes.integral)) > 0.1


def test_five_nodes_miss_nothing_of_degree_four_and_something_of_degree_five() -> None:
    places = torch.zeros(100).long()
    missed = [five_nodes_of(lambda x, power=power: x**power).draw(places).abs().max() for power in (4, 5)]
    assert missed[0] < 1e-14
    assert missed[1] > 1e-3


@pytest.mark.parametrize("balance", ["metropolis", "barker"])
def test_what_three_nodes_decide_five_would_decide_alike(balance: Any) -> None:
    """Whatever five nodes find within what three allow, log a lies between the limits."""
    balanced = LineIntegral(balance=balance).log_balanced
    log_ratio, change, most = (part.flatten() for part in torch.meshgrid(GRID - 4, GRID / 4, GRID / 4, indexing="ij"))
    lowest, highest = limits(log_ratio, change, most, balanced)
    for share in torch.linspace(-1, 1, 9):
        for smaller in (0.0, 0.3, 1.0):
            low, high, rate = bounds(log_ratio + share * change, smaller * most, balanced)
            assert (lowest - 1e-12 <= low).all()
            assert (high <= highest + 1e-12).all()
            assert (rate >= -1e-12).all()


def test_a_rough_move_is_not_rejected_before_it_is_judged() -> None:
    assert LONG.change + LONG.bound >= MAX_SHARE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_errors_refuse_no_long_move(dtype: torch.dtype) -> None:
    """On a normal distribution nothing is missed but by rounding: decisions are those of the density."""
    normal = targets.Gaussian(torch.zeros(2).to(dtype), torch.eye(2).to(dtype))
    x = normal.sample(5000, generator=torch.Generator().manual_seed(0))
    kernels = [metropolis_hastings(normal, RandomWalk(4.0), rule) for rule in (Exact(), LineIntegral("exact"))]
    runs = [sample(kernel, x, draws=10, generator=torch.Generator().manual_seed(1)) for kernel in kernels]
    assert runs[1].acceptance_rate == pytest.approx(runs[0].acceptance_rate, abs=4 * 0.3 / math.sqrt(50_000))


def test_structure_that_no_node_shows_is_refused() -> None:
    """Three scores on a line, as at equal offsets from teeth of a comb: only a probe sees that much lies between."""

    def score(x: Tensor) -> Tensor:
        return -0.5 * x - 40 * (4 * math.pi * x).sin() * (2 * math.pi * x).sin().abs()

    n, generator = 2_000, torch.Generator().manual_seed(0)
    first, last = (Point(x.expand(n, 1), score(x.expand(n, 1))) for x in torch.tensor([[[-1.0]], [[1.5]]]).double())
    parts: dict[str, Any] = {"target": Target(score), "proposal": RandomWalk(1.0), "generator": generator}
    log_uniform = torch.full((n,), -1e-3).double()
    residual = Residual.between(first, last, Target(score), None)
    assert float(residual.second_difference[0]) < 1e-9
    accepted = log_uniform < LineIntegral("exact").decide(first, last, log_uniform, **parts).log_accept
    assert accepted.double().mean() < 0.3
