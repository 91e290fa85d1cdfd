"""Acceptance rules: refinement, exact decisions across narrow structure, log p through noise."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scoremh import (
    MALA,
    PCN,
    Chains,
    Exact,
    LineIntegral,
    MultilevelDenoising,
    RandomWalk,
    Recipe,
    ScoreFit,
    Target,
    ThroughNoise,
    diagnostics,
    diffusion,
    fit_score,
    metropolis_hastings,
    networks,
    sample,
    targets,
)
from scoremh.acceptance.exact import MAX_SHARE, Residual, shared_correction
from scoremh.types import Point, ScoreModel
from studies.acceptance.exactness import REFUSED, refused_at
from studies.acceptance.laws import ELSEWHERE, NARROW, STDS, on_a_line
from studies.acceptance.rules import RULES
from studies.acceptance.two_coin import TwoCoin
from tests.cases import TARGETS, pair, seeded
from tests.studies.cases import kept

# a smooth distribution, and two with structure that a step crosses: bounds are falsely small there, and clip
CROSSED: dict[str, tuple[Any, float]] = {
    "mixture": (TARGETS["mixture"], 1.5),
    "comb": (NARROW["comb"], 0.5),
    "rings": (NARROW["rings"], 0.6),
}


@pytest.mark.parametrize("name", CROSSED)
def test_a_decision_and_that_on_the_way_back_are_of_one_ratio(name: str) -> None:
    """By Barker's rule x' is accepted with u if and only if x is rejected on the way back with 1 - u, for every u."""
    (law, std), n = CROSSED[name], 500
    proposal, rule = RandomWalk(std), LineIntegral(balance="barker")
    current, proposed, known = pair(proposal, law, rule, law.sample(n, generator=seeded()))
    parts: dict[str, Any] = {"target": known, "proposal": proposal}
    decided = []
    for u in torch.linspace(0.02, 0.98, 25).double():
        forth = u.log() < rule.decide(current, proposed, u.log().expand(n), **parts).log_accept
        back = (-u).log1p() < rule.decide(proposed, current, (-u).log1p().expand(n), **parts).log_accept
        assert torch.equal(forth, ~back)
        decided.append(forth)
    # and such a ratio exists: a candidate that is rejected at u is rejected at every larger u
    assert (torch.stack(decided).int().diff(dim=0) <= 0).all()
    assert 0.1 < torch.stack(decided).double().mean() < 0.9


# Steps as long as the distribution, across narrow structure: which rules decide for the true ratio.


FALSE_ALARM = 1e-3  # that any of the tests of right rules fails although all is right


RIGHT = {"density": Exact(), "exact": LineIntegral("exact"), "two-coin": TwoCoin()}


def p_value(name: str, std: float, rule: Any, seed: int = 0) -> float:
    distribution = NARROW[name]
    kernel = metropolis_hastings(distribution, RandomWalk(std), rule)
    generator = seeded(seed)
    return diagnostics.stationarity(kernel, distribution, chains=10_000, steps=20, generator=generator).p_value


JUDGED = [
    *((name, max(stds), rule) for name, stds in STDS.items() for rule in RIGHT),
    *((name, min(stds), "exact") for name, stds in STDS.items()),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "std", "rule"), JUDGED)
def test_right_rules_leave_narrow_structure_invariant(name: str, std: float, rule: str) -> None:
    assert p_value(name, std, RIGHT[rule]) > FALSE_ALARM / len(JUDGED)


# the smallest step at which the test of stationarity rejects each rule, as on the page
WRONG = [
    (rule, name, min(refused_at(kept("acceptance"), rule, name)))
    for rule in ('LineIntegral("simpson")', 'LineIntegral("trapezoid")', 'LineIntegral("gauss")', "Taylor(1)")
    for name in STDS
]


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "name", "std"), WRONG)
def test_other_rules_raise_errors_where_the_page_says_so(rule: str, name: str, std: float) -> None:
    assert p_value(name, std, RULES[rule]) < REFUSED


@pytest.mark.parametrize("rule", ["Exact()", 'LineIntegral("exact")', "TwoCoin()"])
def test_the_page_rejects_no_exact_rule(rule: str) -> None:
    assert not any(refused_at(kept("acceptance"), rule, name) for name in STDS)


MODES = on_a_line(torch.tensor([0.3, 0.7]).double(), torch.tensor([-1.0, 1.0]).double(), 0.5)


def mean_acceptance(rule: Any, ends: Tensor, n: int = 50_000) -> tuple[float, float]:
    """Return the mean acceptance of a walk from the first of two points to the second, and its standard error."""
    current, proposed = (Point(x.expand(n, 1), MODES.score(x[None]).expand(n, 1)) for x in ends)
    generator = seeded()
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
    simpson = LineIntegral("simpson").log_density_change(*points, target=Target(MODES.score))
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


@pytest.mark.slow
@pytest.mark.parametrize("rule", [LineIntegral("exact"), TwoCoin(loops=5)], ids=str)
def test_factors_are_counted_and_survive_a_file_and_a_resumed_run(rule: Any, tmp_path: Path) -> None:
    """Every factor is a score call, or two, beside those at candidates, midpoints and probes."""
    law = NARROW["comb"]
    kernel = metropolis_hastings(law, RandomWalk(0.5), rule)
    start = law.sample(1500, generator=seeded())  # two blocks
    options: dict[str, Any] = {"draws": 6, "burn_in": 2}
    with ThreadPoolExecutor(2) as threads:
        stored: dict[str, Any] = {"store": tmp_path / "run"}
        runs = [
            sample(kernel, start, generator=seeded(1), **options, **more)
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
    stepwise = sample(kernel._replace(run=None), start, generator=seeded(1), **options)
    assert stepwise.factors == pytest.approx(chains.factors, rel=0.05)
    assert stepwise.clipped == pytest.approx(chains.clipped, rel=0.5)


def test_factors_come_from_the_generator() -> None:
    law = NARROW["comb"]
    kernel = metropolis_hastings(law, RandomWalk(0.5), LineIntegral("exact"))
    point = kernel.init(law.sample(200, generator=seeded()))
    (first, move), (again, _), (other, _) = (kernel.step(point, generator=seeded(seed)) for seed in (1, 1, 2))
    assert move.factors > 0
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, other.x)


def test_a_rule_without_factors_counts_none() -> None:
    start = MODES.sample(4, generator=seeded())
    kernel = metropolis_hastings(MODES, RandomWalk(1.0), LineIntegral("simpson"))
    chains = sample(kernel, start, draws=50, generator=seeded(1))
    assert (chains.factors, chains.clipped) == (0, 0)
    assert "factors" not in repr(chains)
    assert "factors" not in str(diagnostics.summary(chains))


def test_the_exact_rule_is_simpsons_on_a_gaussian_and_costs_a_few_probes() -> None:
    normal = targets.Gaussian([0.0, 0.0])
    start = normal.sample(500, generator=seeded())
    calls = [
        sample(metropolis_hastings(normal, MALA(0.3), rule), start, draws=50, generator=seeded(1))
        for rule in (LineIntegral("simpson"), LineIntegral("exact"))
    ]
    assert calls[1].acceptance_rate == pytest.approx(calls[0].acceptance_rate, abs=0.02)
    assert calls[1].score_calls < 1.4 * calls[0].score_calls
    assert calls[1].factors == 0


@pytest.mark.slow
@pytest.mark.parametrize("step_size", [0.5, 1.0])
def test_the_logistic_distribution_has_its_variance(step_size: float) -> None:
    generator, n = seeded(), 100_000
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
    chains = sample(kernel, torch.full((500, 1), -0.6), draws=20, generator=seeded())
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


@pytest.mark.parametrize(("share", "warned"), [(None, False), (0.1, True)])
def test_a_summary_warns_of_clipped_factors(share: float | None, warned: bool) -> None:
    """On a lattice of broad modes three nodes of a long step look alike; probes keep nearly all factors unclipped."""
    lattice, generator = ELSEWHERE["25 modes"], seeded()
    kernel = metropolis_hastings(lattice, MALA(0.8), LineIntegral("exact"))
    chains = sample(kernel, lattice.sample(500, generator=generator), draws=20, generator=generator)
    assert 0 < chains.clipped < chains.factors
    if share is not None:
        chains = replace(chains, clipped=int(share * chains.factors))
    kinds = [caution.kind for caution in diagnostics.summary(chains).warnings]
    assert ("clipped" in kinds) == warned


def test_the_number_of_loops_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="loops"):
        TwoCoin(loops=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_errors_reject_no_long_move(dtype: torch.dtype) -> None:
    """On a normal distribution there are only rounding errors: decisions are those of the density."""
    normal = targets.Gaussian(torch.zeros(2).to(dtype), torch.eye(2).to(dtype))
    x = normal.sample(5000, generator=seeded())
    kernels = [metropolis_hastings(normal, RandomWalk(4.0), rule) for rule in (Exact(), LineIntegral("exact"))]
    runs = [sample(kernel, x, draws=10, generator=seeded(1)) for kernel in kernels]
    assert runs[1].acceptance_rate == pytest.approx(runs[0].acceptance_rate, abs=4 * 0.3 / math.sqrt(50_000))


def test_structure_that_no_node_shows_is_rejected() -> None:
    """Three scores on a line, as at equal offsets from teeth of a comb: only a probe sees that much lies between."""

    def score(x: Tensor) -> Tensor:
        return -0.5 * x - 40 * (4 * math.pi * x).sin() * (2 * math.pi * x).sin().abs()

    n, generator = 2_000, seeded()
    first, last = (Point(x.expand(n, 1), score(x.expand(n, 1))) for x in torch.tensor([[[-1.0]], [[1.5]]]).double())
    parts: dict[str, Any] = {"target": Target(score), "proposal": RandomWalk(1.0), "generator": generator}
    log_uniform = torch.full((n,), -1e-3).double()
    residual = Residual.between(first, last, Target(score), None)
    assert float(residual.second_difference[0]) < 1e-9
    accepted = log_uniform < LineIntegral("exact").decide(first, last, log_uniform, **parts).log_accept
    assert accepted.double().mean() < 0.3


# Scores of all noise levels: divergences in closed form, log p along the noise axis, and decisions by it.


MEANS = torch.tensor([[-4.0, 0.0], [4.0, 0.0], [0.0, 6.0]]).double()
COVARIANCES = torch.tensor([[[1.0, 0.3], [0.3, 1.0]], [[0.5, 0.0], [0.0, 2.0]], [[2.0, 0.0], [0.0, 0.5]]]).double()
MIXTURE = targets.GaussianMixture(torch.tensor([0.5, 0.3, 0.2]).double(), MEANS, COVARIANCES)
NORMAL = targets.Gaussian(torch.tensor([1.0, -2.0, 0.5]).double(), torch.diag(torch.tensor([1.0, 4.0, 0.5]).double()))


def random_network(event: int | tuple[int, ...], *, residual: bool) -> networks.NoiseConditionalMLP:
    """Return a network whose last layer is not zero, as it is at first."""
    net = networks.NoiseConditionalMLP(event, hidden=16, residual=residual, generator=seeded()).double()
    nn.init.normal_(net.last.weight, generator=seeded())
    return net.requires_grad_(False)


def trace(score: object, x: Tensor) -> Tensor:
    """Return the trace of a score's Jacobian, by reverse mode and one point at a time."""
    size = x[0].numel()
    rows = [torch.func.jacrev(lambda y: score(y[None])[0])(point).reshape(size, size) for point in x]  # type: ignore[operator]
    return torch.stack([row.diagonal().sum() for row in rows])


@pytest.fixture(scope="module")
def fit() -> ScoreFit:
    """Return a brief fit, for what holds whatever was learned."""
    samples = MIXTURE.sample(2000, generator=seeded(1)).float()
    return fit_score(samples, recipe=Recipe(steps=200), generator=seeded(2))


@pytest.fixture(scope="module")
def trained() -> ScoreFit:
    samples = MIXTURE.sample(2000, generator=seeded(1)).float()
    return fit_score(samples, recipe=Recipe(steps=2000), generator=seeded(2))


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("event", [3, (2, 2)])
def test_a_network_has_its_divergence_in_closed_form(event: int | tuple[int, ...], residual: bool) -> None:
    net, x = random_network(event, residual=residual), torch.randn(6, *torch.ones(event).shape, generator=seeded())
    x, sigma = x.double(), torch.linspace(0.1, 3.0, 6).double()
    score, divergence = net.level_score(x, sigma)
    torch.testing.assert_close(score, net(x, sigma), rtol=1e-12, atol=1e-12)
    each = torch.cat(
        [trace(lambda y, level=level: net(y, level), row[None]) for row, level in zip(x, sigma, strict=True)]
    )
    torch.testing.assert_close(divergence, each, rtol=1e-10, atol=1e-10)
    by_tangents = diffusion.level_score(net, x, sigma)
    torch.testing.assert_close(by_tangents, (score, divergence), rtol=1e-10, atol=1e-10)


def test_hutchinson_with_all_signs_is_exact_and_the_probes_are_fixed() -> None:
    net, x = random_network(2, residual=False), torch.randn(4, 2, generator=seeded()).double()
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double() / math.sqrt(2)
    torch.testing.assert_close(net.level_score(x, 0.5, signs)[1], net.level_score(x, 0.5)[1])
    probes = [diffusion.random_directions(5, x, 3) for _ in range(2)]
    torch.testing.assert_close(*probes, rtol=0, atol=0)
    assert probes[0].abs().allclose(torch.tensor(1 / math.sqrt(3)).double())


@pytest.mark.parametrize("target", [MIXTURE, NORMAL], ids=["mixture", "normal"])
def test_normal_mixtures_are_blurred_in_closed_form(target: targets.GaussianMixture | targets.Gaussian) -> None:
    x = target.sample(20, generator=seeded()) + 1
    score, divergence = target.level_score(x, 0.7)
    blurred = target.at(0.7)
    torch.testing.assert_close(score, blurred.score(x))
    torch.testing.assert_close(divergence, trace(blurred.score, x))
    levels = torch.linspace(0.1, 2.0, 20).double()
    each = torch.cat([target.at(float(level)).score(row[None]) for row, level in zip(x, levels, strict=True)])
    torch.testing.assert_close(target.level_score(x, levels)[0], each)
    assert isinstance(target, ScoreModel)


def test_blurring_adds_noise() -> None:
    """The sampler of the blurred distribution and noise on draws agree, by the log density that both have."""
    draws = MIXTURE.sample(20_000, generator=seeded()) + 0.7 * torch.randn(20_000, 2, generator=seeded(1)).double()
    again = MIXTURE.at(0.7).sample(20_000, generator=seeded(2))
    means = [MIXTURE.at(0.7).log_density(x) for x in (draws, again)]
    assert abs(float(means[0].mean() - means[1].mean())) < 5 * float(means[0].std()) / 100


@pytest.mark.parametrize("path", ["radial", "fixed"])
def test_a_normal_distribution_is_exact_with_any_number_of_nodes(path: diffusion.Path) -> None:
    normal = targets.Gaussian(torch.tensor([3.0, -1.0]).double(), 4 * torch.eye(2).double())
    x = normal.sample(50, generator=seeded())
    found = diffusion.log_density(normal, x, nodes=1, path=path)
    torch.testing.assert_close(found, normal.at(normal.noise_level).log_density(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("path", "nodes", "error"), [("radial", 16, 0.005), ("fixed", 24, 0.002), ("radial", 32, 1e-5)]
)
def test_log_p_of_a_mixture_converges(path: diffusion.Path, nodes: int, error: float) -> None:
    x = MIXTURE.sample(500, generator=seeded())
    true = MIXTURE.at(MIXTURE.noise_level).log_density(x)
    assert float((diffusion.log_density(MIXTURE, x, nodes=nodes, path=path) - true).abs().max()) < error


def test_a_change_of_the_level_is_the_difference_of_two_log_densities() -> None:
    x = MIXTURE.sample(200, generator=seeded())
    found = diffusion.log_density_change(MIXTURE, x, 0.5, 0.8, nodes=6)
    torch.testing.assert_close(
        found, MIXTURE.at(0.8).log_density(x) - MIXTURE.at(0.5).log_density(x), atol=1e-6, rtol=0
    )


def test_every_chain_may_have_levels_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    x = MIXTURE.sample(6, generator=seeded())
    low, high = torch.linspace(0.1, 0.6, 6).double(), torch.linspace(0.7, 3.0, 6).double()
    each = [
        diffusion.log_density_change(MIXTURE, row[None], float(a), float(b))
        for row, a, b in zip(x, low, high, strict=True)
    ]
    monkeypatch.setattr(import_module("scoremh.diffusion.log_density"), "MAX_CALL_NUMBERS", 48)  # four rows a call
    torch.testing.assert_close(diffusion.log_density_change(MIXTURE, x, low, high), torch.cat(each))


def test_a_fit_is_evaluated_through_its_whitening(fit: ScoreFit) -> None:
    x = MIXTURE.sample(10, generator=seeded(3)).float()
    score, divergence = fit.level_score(x, 0.3)
    torch.testing.assert_close(score, fit.at(0.3).score(x))  # type: ignore[misc]
    torch.testing.assert_close(divergence, trace(fit.at(0.3).score, x), rtol=1e-4, atol=1e-4)
    assert isinstance(fit, ScoreModel)
    assert isinstance(fit.standard, ScoreModel)


def test_log_p_of_a_fit_matches_that_of_u_and_a_volume(fit: ScoreFit) -> None:
    assert fit.log_density is not None
    x = MIXTURE.sample(10, generator=seeded(3)).float()
    inside = diffusion.log_density(fit.standard, fit.coordinates.inverse(x))
    torch.testing.assert_close(fit.log_density(x), inside - fit.coordinates.log_det(x))


@pytest.mark.slow
def test_log_p_of_a_fit_is_normalised_and_near_the_truth(trained: ScoreFit) -> None:
    assert trained.log_density is not None
    axis = torch.linspace(-12, 14, 300)
    cells = torch.cartesian_prod(axis, axis)
    total = float(trained.log_density(cells).double().exp().sum()) * float(axis[1] - axis[0]) ** 2
    assert total == pytest.approx(1, abs=0.1)
    x = MIXTURE.sample(2000, generator=seeded(3))
    error = trained.log_density(x.float()).double() - MIXTURE.log_density(x)
    assert float(error.square().mean().sqrt()) < 0.5


def test_calls_are_divided_without_a_change(fit: ScoreFit, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fit.log_density is not None
    x = MIXTURE.sample(50, generator=seeded(3)).float()
    whole = fit.log_density(x)
    monkeypatch.setattr(import_module("scoremh.diffusion.log_density"), "MAX_CALL_NUMBERS", 100)
    torch.testing.assert_close(fit.log_density(x), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_chains_with_a_learned_score_find_the_weights_that_line_integrals_miss() -> None:
    """The modes lie further apart than in `MIXTURE`, where a line integral is right by chance after some trainings."""
    means = 1.5 * MEANS
    far = targets.GaussianMixture(torch.tensor([0.5, 0.3, 0.2]).double(), means, COVARIANCES)
    samples = far.sample(2000, generator=seeded(1)).float()
    trained = fit_score(samples, recipe=Recipe(steps=2000), generator=seeded(2))
    proposal = PCN(1.0, mean=trained.coordinates.mean, covariance=trained.covariance)  # type: ignore[arg-type]
    low, high = trained.support.low, trained.support.high
    start = (trained.coordinates.mean + torch.randn(1000, 2, generator=seeded())).clamp(low, high)  # type: ignore[operator]
    shares = {}
    for rule in (ThroughNoise(), LineIntegral("gauss", nodes=16)):
        kernel = metropolis_hastings(trained, proposal, rule)
        x = sample(kernel, start, draws=1, thin=60, generator=seeded(5)).last.double()
        nearest = torch.cdist(x, means).argmin(1)
        shares[rule] = nearest.bincount(minlength=3) / len(x)
    true = torch.tensor([0.5, 0.3, 0.2])
    distances = [float((share - true).abs().sum() / 2) for share in shares.values()]
    assert distances[0] < 0.1
    assert distances[1] > 2 * distances[0]


@pytest.mark.parametrize("rule", [ThroughNoise(nodes=24), ThroughNoise(nodes=24, integrate_below=0.5)])
@pytest.mark.parametrize("proposal", [RandomWalk(3.0), MALA(0.3)])
def test_the_rule_leaves_an_exact_mixture_invariant(rule: ThroughNoise, proposal: RandomWalk | MALA) -> None:
    kernel = metropolis_hastings(MIXTURE, proposal, rule)
    assert diagnostics.stationarity(kernel, MIXTURE, chains=4000, generator=seeded(7)).p_value > 1e-4


def test_the_test_rejects_too_few_nodes() -> None:
    kernel = metropolis_hastings(MIXTURE, RandomWalk(3.0), ThroughNoise(nodes=2))
    assert diagnostics.stationarity(kernel, MIXTURE, chains=4000, generator=seeded(7)).p_value < 1e-6


def test_short_moves_are_integrated_and_long_ones_are_not() -> None:
    rule = ThroughNoise(nodes=24, integrate_below=0.5)
    kernel = metropolis_hastings(MIXTURE, RandomWalk(1.0), rule)
    point = kernel.init(MIXTURE.sample(200, generator=seeded()))
    _, move = kernel.step(point, generator=seeded(1))
    there = MIXTURE.at(MIXTURE.noise_level)
    through = there.log_density(move.proposed) - there.log_density(point.x)
    kernel = metropolis_hastings(MIXTURE, RandomWalk(1.0), LineIntegral("simpson"))
    line = kernel.step(point, generator=seeded(1))[1].log_accept
    short = (move.proposed - point.x).norm(dim=1) < 0.5
    assert 0 < int(short.sum()) < 200
    torch.testing.assert_close(move.log_accept[short], line[short], atol=1e-9, rtol=0)
    torch.testing.assert_close(move.log_accept[~short], through[~short].clamp(max=0), atol=1e-3, rtol=0)


def test_exact_accepts_a_fit_and_says_which_density_it_uses(fit: ScoreFit) -> None:
    kernel = metropolis_hastings(fit, MALA(0.1), Exact())
    assert "through noise" in kernel.description
    assert "through noise" not in metropolis_hastings(MIXTURE, MALA(0.1), Exact()).description


def test_a_product_integrates_the_score_of_a_fit(fit: ScoreFit) -> None:
    assert not isinstance(targets.product(fit, fit), targets.Product)


def test_a_level_of_a_fit_is_evaluated_at_that_level(fit: ScoreFit) -> None:
    kernel = metropolis_hastings(fit.at(1.0), RandomWalk(1.0), ThroughNoise())
    x = MIXTURE.sample(5, generator=seeded(3)).float()
    found = kernel.init(x).log_density
    torch.testing.assert_close(found, diffusion.log_density(replace(fit, noise_level=1.0), x))


def test_a_truncated_fit_keeps_its_levels(fit: ScoreFit) -> None:
    half = targets.truncate(fit, lambda x: x[:, 0] > 0)
    x = MIXTURE.sample(200, generator=seeded(3)).float().abs()
    chains = sample(metropolis_hastings(half, RandomWalk(2.0), ThroughNoise()), x, draws=10, generator=seeded(4))
    assert bool((chains.draws[..., 0] > 0).all())
    assert int(chains.outside.sum()) > 0
    assert not isinstance(targets.product(half, half), targets.Product)


def test_the_cost_of_log_p_is_counted(fit: ScoreFit) -> None:
    x = MIXTURE.sample(10, generator=seeded(3)).float()
    for rule in (ThroughNoise(), Exact()):
        kernel = metropolis_hastings(fit.standard, RandomWalk(0.5), rule)
        chains = sample(kernel, fit.coordinates.inverse(x), draws=5, generator=seeded(4))
        assert chains.score_calls == (1 + 5) * 10 * 8 * (1 + 2)  # the start, and five candidates
        assert kernel.step(kernel.init(fit.coordinates.inverse(x)), generator=seeded(4))[1].score_calls == 10 * 8 * 3


def test_a_target_of_one_level_raises_an_error() -> None:
    with pytest.raises(ValueError, match=r"a target with scores of all noise levels.*LineIntegral"):
        metropolis_hastings(Target(score=lambda x: -x), RandomWalk(1.0), ThroughNoise())


def test_a_score_without_levels_has_no_density(fit: ScoreFit) -> None:
    alone = replace(fit, noise_range=None, noise_level=None)
    assert alone.log_density is None
    with pytest.raises(ValueError, match="a score at many noise levels"):
        metropolis_hastings(alone, RandomWalk(1.0), ThroughNoise())


def test_levels_that_were_not_learned_raise_errors(fit: ScoreFit) -> None:
    with pytest.raises(ValueError, match="as learned"):
        metropolis_hastings(replace(fit, noise_level=1e-3), RandomWalk(1.0), ThroughNoise())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"nodes": 0}, "nodes"), ({"path": "straight"}, "path"), ({"integrate_below": -1.0}, "integrate_below")],
)
def test_bad_parameters_raise_errors(arguments: dict[str, object], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        ThroughNoise(**arguments)  # type: ignore[arg-type]


def test_other_networks_and_heavy_tails_go_the_general_way() -> None:
    class Plain(nn.Module):
        """A score of x and a level that is none of our networks."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
            level = torch.as_tensor(sigma, dtype=x.dtype).reshape(-1, 1)
            score: Tensor = (self.linear(x).tanh() - x) / (1 + level.square())
            return score

    samples = targets.StudentT(5.0, [0.0, 0.0]).sample(500, generator=seeded()).float()
    loss, recipe = MultilevelDenoising(), Recipe(steps=20, check_every=10)
    learned = fit_score(samples, loss, Plain(), heavy_tails=True, recipe=recipe, generator=seeded())
    x = samples[:5]
    score, divergence = learned.level_score(x, 0.5)
    torch.testing.assert_close(divergence, trace(lambda y: learned.net(y, 0.5), x), rtol=1e-3, atol=1e-3)
    assert learned.log_density is not None
    assert learned.log_density(x).isfinite().all()
    assert score.shape == x.shape
