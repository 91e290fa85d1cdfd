"""The mathematics, in float64 and without randomness in the verdict."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from scoremh import (
    MALA,
    PCN,
    Always,
    Barker,
    Exact,
    Learned,
    LineIntegral,
    RandomWalk,
    ScaledMALA,
    StudentWalk,
    Taylor,
    metropolis_hastings,
    targets,
)
from scoremh._shared import rng
from scoremh._shared.algebra import gauss_legendre, newton_cotes
from scoremh.acceptance import Rule
from scoremh.networks import Potential, PotentialMLP
from scoremh.types import Point, Target
from tests.cases import (
    COVARIANCE,
    COVERING,
    EXACT_ON_GAUSSIAN,
    GAUSSIAN,
    PROPOSALS,
    SYMMETRIC,
    TARGETS,
    f64,
    pair,
    seeded,
)


def draws(target: Any, n: int = 200) -> Tensor:
    x: Tensor = target.sample(n, generator=seeded())
    return x


AGREEING = [*product(PROPOSALS, ["simpson", "exact-barker"]), *product(COVERING, EXACT_ON_GAUSSIAN)]


@pytest.mark.parametrize(("name", "rule"), dict.fromkeys(AGREEING))
def test_rules_agree_with_the_density_on_a_gaussian(name: str, rule: str) -> None:
    proposal, judged = PROPOSALS[name], EXACT_ON_GAUSSIAN[rule]
    assert isinstance(judged, Rule)
    assert judged.balance in ("metropolis", "barker")
    exact = Exact(balance=judged.balance)
    current, proposed, target = pair(proposal, GAUSSIAN, LineIntegral("simpson"), draws(GAUSSIAN))
    current, proposed = (p._replace(log_density=GAUSSIAN.log_density(p.x)) for p in (current, proposed))
    expected = exact.log_accept(current, proposed, target=target, proposal=proposal)
    torch.testing.assert_close(
        judged.log_accept(current, proposed, target=target, proposal=proposal), expected, atol=1e-10, rtol=0
    )


@pytest.mark.parametrize(
    ("target", "rule"),
    [*product(["mixture"], SYMMETRIC), *product(["banana", "student", "funnel"], ["simpson", "lobatto"])],
)
def test_log_ratio_is_antisymmetric(target: str, rule: str) -> None:
    law, judged, proposal = TARGETS[target], EXACT_ON_GAUSSIAN[rule], PROPOSALS["mala-full"]
    assert isinstance(judged, Rule)
    current, proposed, known = pair(proposal, law, judged, draws(law))
    there = judged.log_ratio(current, proposed, target=known, proposal=proposal)
    back = judged.log_ratio(proposed, current, target=known, proposal=proposal)
    torch.testing.assert_close(there, -back, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("rule", [Taylor(1), Taylor(2)])
def test_one_sided_taylor_is_not_antisymmetric(rule: Taylor) -> None:
    law, proposal = TARGETS["mixture"], RandomWalk(0.9)
    current, proposed, known = pair(proposal, law, rule, draws(law))
    there = rule.log_ratio(current, proposed, target=known, proposal=proposal)
    back = rule.log_ratio(proposed, current, target=known, proposal=proposal)
    assert (there + back).abs().mean() > 0.01


ORDERS = {  # error of D in the length eps of the step, by Taylor's theorem and the error terms of the quadratures
    "taylor-1": (Taylor(1), 2),
    "taylor-2": (Taylor(2), 3),
    "taylor-1-averaged": (Taylor(1, average=True), 3),
    "taylor-2-averaged": (Taylor(2, average=True), 3),
    "trapezoid": (LineIntegral("trapezoid"), 3),
    "simpson": (LineIntegral("simpson"), 5),
    "lobatto": (LineIntegral(), 9),
    "gauss-1": (LineIntegral("gauss", nodes=1), 3),
    "gauss-2": (LineIntegral("gauss", nodes=2), 5),
    "gauss-3": (LineIntegral("gauss", nodes=3), 7),
}


def change_error(rule: Rule, eps: float) -> Tensor:
    """Return the error of D along fixed directions of length eps on a target whose derivatives of all orders matter."""
    law = targets.GaussianMixture(f64(0.6, 0.4), f64([0.8, 0.4], [-0.7, -0.9]))
    x = draws(law, 400)
    v = torch.randn(x.shape, generator=seeded(3), dtype=torch.float64)
    current, proposed = (Point(y, law.score(y)) for y in (x, x + eps * v))
    true = law.log_density(proposed.x) - law.log_density(x)
    return rule.log_density_change(current, proposed, target=Target(law.score)) - true


@pytest.mark.parametrize("name", ORDERS)
def test_order_of_convergence(name: str) -> None:
    rule, order = ORDERS[name]
    long = 0.17 if order == 9 else 0.2  # the error at half of it is 1e-14: rounding follows
    slope = math.log2(float(change_error(rule, long).abs().mean() / change_error(rule, long / 2).abs().mean()))
    assert slope == pytest.approx(order, abs=0.15)


def test_averaged_second_order_taylor_has_twice_the_error_of_the_trapezoid() -> None:
    """The end correction of the trapezoid is -(f'(1) - f'(0)) / 12; the paper's 1/4 overshoots it by 1/6."""
    second, first = change_error(Taylor(2, average=True), 0.01), change_error(Taylor(1, average=True), 0.01)
    assert float((second / first).median()) == pytest.approx(-2, abs=0.05)


def test_trapezoid_with_mala_forgets_the_density() -> None:
    law, h = TARGETS["mixture"], 0.3
    rule, proposal = LineIntegral("trapezoid"), MALA(h)
    current, proposed, known = pair(proposal, law, rule, draws(law))
    assert current.score is not None
    assert proposed.score is not None
    degenerate = h / 4 * (current.score.square().sum(1) - proposed.score.square().sum(1))
    log_ratio = rule.log_ratio(current, proposed, target=known, proposal=proposal)
    torch.testing.assert_close(log_ratio, degenerate, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("quadrature", [newton_cotes(k, simpson=False) for k in (0, 1, 4)])
def test_trapezoid_weights(quadrature: Any) -> None:
    assert 2 * quadrature.ends + sum(quadrature.weights) == pytest.approx(1)
    assert sum(
        w * t for w, t in zip(quadrature.weights, quadrature.nodes, strict=True)
    ) + quadrature.ends == pytest.approx(0.5)


@pytest.mark.parametrize("inside", [1, 3, 5])
def test_simpson_integrates_cubics(inside: int) -> None:
    ends, nodes, weights = newton_cotes(inside, simpson=True)
    for power in (0, 1, 2, 3):
        total = sum(w * t**power for w, t in zip(weights, nodes, strict=True)) + ends * (1 + (power == 0))
        assert total == pytest.approx(1 / (power + 1))


@pytest.mark.parametrize("inside", [1, 2, 5])
def test_gauss_integrates_polynomials_of_degree_2k_minus_1(inside: int) -> None:
    _, nodes, weights = gauss_legendre(inside)
    for power in range(2 * inside):
        assert sum(w * t**power for w, t in zip(weights, nodes, strict=True)) == pytest.approx(1 / (power + 1))


def reference_log_prob(proposal: Any, to: Tensor, at: Point) -> Tensor:
    """Return log q by torch.distributions, written from the formulas of the paper."""
    covariance = torch.eye(2, dtype=torch.float64) if proposal.covariance is None else proposal.covariance
    covariance = torch.diag(covariance) if covariance.ndim == 1 else covariance
    match proposal:
        case StudentWalk():
            law = stats.multivariate_t(shape=proposal.scale**2 * covariance.numpy(), df=proposal.freedom)
            return torch.from_numpy(law.logpdf((to - at.x).numpy()))
        case Barker():  # 2 N(w; 0, 2h) / (1 + exp(-w g)) for every coordinate of v = L w, with g = L^T s
            assert at.score is not None
            root = torch.linalg.cholesky(covariance)
            w, g = (to - at.x) @ torch.linalg.inv(root).T, at.score @ root
            noise = torch.distributions.Normal(f64(0.0), f64(2 * proposal.step_size).sqrt())
            factors: Tensor = noise.log_prob(w) + math.log(2) - (-w * g).exp().log1p()
            volume: Tensor = root.diagonal().log().sum()
            return factors.sum(1) - volume
        case RandomWalk():
            mean, spread = at.x, proposal.std**2
        case MALA():
            assert at.score is not None
            mean, spread = at.x + proposal.step_size * at.score @ covariance, 2 * proposal.step_size
        case ScaledMALA():  # h = 2 (snr |z| / |s|)^2 with |z|^2 = d, where L = I
            assert at.score is not None
            norm = (at.score @ torch.linalg.cholesky(covariance)).norm(dim=1, keepdim=True)
            h = 2 * (proposal.snr * math.sqrt(2) / norm) ** 2
            mean, spread = at.x + h * at.score @ covariance, 2 * h[..., None]
        case PCN():
            m = torch.as_tensor(proposal.mean, dtype=torch.float64)
            mean, spread = m + math.sqrt(1 - proposal.beta**2) * (at.x - m), (proposal.beta * proposal.scale) ** 2
    log_prob: Tensor = torch.distributions.MultivariateNormal(mean, spread * covariance).log_prob(to)
    return log_prob


@pytest.mark.parametrize("name", PROPOSALS)
def test_log_prob_is_the_density_of_the_proposal(name: str) -> None:
    proposal = PROPOSALS[name]
    current, proposed, _ = pair(proposal, GAUSSIAN, Always(), draws(GAUSSIAN))
    torch.testing.assert_close(
        proposal.log_prob(proposed, given=current),
        reference_log_prob(proposal, proposed.x, current),
        atol=1e-10,
        rtol=0,
    )


@pytest.mark.parametrize("name", [name for name in PROPOSALS if not name.startswith("barker")])  # see test_barker.py
def test_sample_has_the_moments_of_log_prob(name: str) -> None:
    """In the plane the log density is below its peak by an exponential law, of mean 1, or 1 + 2 / nu (Student)."""
    proposal, n = PROPOSALS[name], 100_000
    x = f64([0.7, -0.4]).expand(n, 2)
    at = Point(x, GAUSSIAN.score(x))
    drawn = proposal.sample(at, generator=seeded())
    log_q, heavy = proposal.log_prob(Point(drawn), given=at), isinstance(proposal, StudentWalk)
    centre = x[:1] if heavy else drawn.mean(0, keepdim=True)  # a mean of heavy tails does not settle
    peak = proposal.log_prob(Point(centre), given=Point(at.x[:1], GAUSSIAN.score(at.x[:1])))
    mean = 1 + 2 / proposal.freedom if isinstance(proposal, StudentWalk) else 1.0
    assert float(log_q.mean() - peak) == pytest.approx(-mean, abs=5 * mean / math.sqrt(n))
    assert float(log_q.var()) == pytest.approx(mean**2, abs=5 * mean**2 * math.sqrt(8 / n))


@pytest.mark.parametrize("name", PROPOSALS)
def test_log_prob_is_differentiable_in_both(name: str) -> None:
    proposal = PROPOSALS[name]

    def log_q(to: Tensor, given: Tensor) -> Tensor:
        return proposal.log_prob(Point(to, GAUSSIAN.score(to)), given=Point(given, GAUSSIAN.score(given)))

    x, y = (draws(GAUSSIAN, 3)[..., :].clone().requires_grad_() + shift for shift in (0.0, 0.3))
    assert torch.autograd.gradcheck(log_q, (x.detach().requires_grad_(), y.detach().requires_grad_()))


@pytest.mark.parametrize("name", PROPOSALS)
def test_closed_forms_of_q_ratios_are_the_difference_of_log_probs(name: str) -> None:
    proposal = PROPOSALS[name]
    current, proposed, _ = pair(proposal, GAUSSIAN, LineIntegral("simpson"), draws(GAUSSIAN))
    difference = proposal.log_prob(current, given=proposed) - proposal.log_prob(proposed, given=current)
    torch.testing.assert_close(proposal.log_q_ratio(current, proposed), difference, atol=1e-10, rtol=1e-10)


def test_a_subclass_with_other_moments_does_not_inherit_a_q_ratio() -> None:
    class Drift(RandomWalk):
        def moments(self, at: Point) -> tuple[Tensor, float]:
            return at.x + 0.3, self.std

    current, proposed, _ = pair(Drift(0.9), GAUSSIAN, LineIntegral("simpson"), draws(GAUSSIAN))
    difference = Drift(0.9).log_prob(current, given=proposed) - Drift(0.9).log_prob(proposed, given=current)
    assert difference.abs().mean() > 0.1
    torch.testing.assert_close(Drift(0.9).log_q_ratio(current, proposed), difference)
    assert metropolis_hastings(GAUSSIAN, Drift(0.9), Exact()).run is None


def test_q_ratios_of_the_paper() -> None:
    law = TARGETS["mixture"]
    for proposal in (RandomWalk(0.9), PCN(0.5), MALA(0.2)):
        current, proposed, _ = pair(proposal, law, LineIntegral("simpson"), draws(law))
        x, y, s, t = current.x, proposed.x, current.score, proposed.score
        assert s is not None
        assert t is not None
        expected = {
            RandomWalk: torch.zeros(len(x), dtype=torch.float64),
            PCN: (y.square() - x.square()).sum(1) / 2,
            MALA: -((s + t) * (y - x)).sum(1) / 2 - 0.2 / 4 * (t.square() - s.square()).sum(1),
        }[type(proposal)]
        ratio = proposal.log_prob(current, given=proposed) - proposal.log_prob(proposed, given=current)
        torch.testing.assert_close(ratio, expected, atol=1e-10, rtol=0)


POTENTIAL = Learned(Potential(PotentialMLP(2).double()), "metropolis")
FUSED = {
    repr(rule): rule
    for rule in (
        LineIntegral(),
        LineIntegral(balance="barker"),
        LineIntegral("simpson"),
        LineIntegral("simpson", balance="barker"),
        LineIntegral("simpson", nodes=3),
        LineIntegral("gauss"),
        LineIntegral("gauss", nodes=2, balance="barker"),
        LineIntegral("trapezoid", nodes=1),
        LineIntegral(coordinates=(0.0, 1.0)),
        Always(),
        Exact(),
        Exact(balance="barker"),
        Taylor(2, average=True),
    )
} | {"potential": POTENTIAL, "potential, barker": Learned(POTENTIAL.net)}
GAUSSIANS = {
    "mala": MALA(0.9),
    "mala, diagonal": MALA(0.7, covariance=f64(0.8, 1.5)),
    "mala, matrix": MALA(0.5, covariance=COVARIANCE),
    "scaled mala": ScaledMALA(0.2),
    "scaled mala, matrix": ScaledMALA(0.2, covariance=COVARIANCE),
    "walk": RandomWalk(0.9),
    "walk, matrix": RandomWalk(0.9, covariance=COVARIANCE),
    "pcn": PCN(0.5, f64(0.2, -0.1), scale=2.0),
    "pcn, matrix": PCN(0.5, covariance=2 * COVARIANCE),
}


# Every proposal with two rules, every rule with a walk, a contraction and, in the tight loop, MALA; there with one
# shared score call, and with two.
LOOPS = [
    *product(GAUSSIANS, ["LineIntegral(rule='simpson')", "Exact()"], [7], [False, True]),
    *product(["walk", "pcn"], FUSED, [7], [False]),
    *product(["mala"], FUSED, [7], [False, True]),
    *product(
        ["mala", "mala, matrix"], ["LineIntegral()", "LineIntegral(rule='simpson')", "Always()"], [700], [False, True]
    ),
    *product(
        ["mala"],
        ["LineIntegral(rule='gauss', nodes=2, balance='barker')", "LineIntegral()"],
        [700],
        [True],
    ),
]


@pytest.mark.parametrize(("name", "rule", "chains", "bounded"), dict.fromkeys(LOOPS))
def test_the_fused_loop_is_the_step_repeated(
    name: str, rule: str, chains: int, bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both paths get the same noise: they must take the same decisions and end at the same points."""
    law, steps = TARGETS["mixture"], 20
    x = law.sample(chains, generator=seeded())
    g = seeded(1)
    noise = torch.randn(steps, chains, 2, generator=g, dtype=torch.float64)
    log_uniform = torch.rand(steps, chains, generator=g, dtype=torch.float64).log()
    support = targets.box(float(x.min()), float(x.quantile(0.95))) if bounded else None
    x = x.clamp(max=float(x.quantile(0.95))) if bounded else x
    kernel = metropolis_hastings(Target(law.score, law.log_density, support), GAUSSIANS[name], FUSED[rule])
    assert kernel.run is not None

    monkeypatch.setattr(rng, "normal", lambda shape, like, generator: noise.clone())
    monkeypatch.setattr(rng, "log_uniform", lambda shape, like, generator: log_uniform.reshape(shape).clone())
    last, trace = kernel.run(kernel.init(x), steps, generator=g)

    point = kernel.init(x)
    for step in range(steps):
        monkeypatch.setattr(rng, "normal", lambda shape, like, generator, i=step: noise[i])
        monkeypatch.setattr(rng, "log_uniform", lambda shape, like, generator, i=step: log_uniform[i])
        point, move = kernel.step(point, generator=g)
        assert torch.equal(move.accepted, trace.accepted[step])
        torch.testing.assert_close(trace.log_accept[step], move.log_accept, atol=1e-11, rtol=1e-11, equal_nan=True)
        torch.testing.assert_close(trace.x[step], point.x, atol=1e-11, rtol=1e-11)
    for part, wanted in zip(last, point, strict=True):
        assert (part is None) == (wanted is None)
        if part is not None:
            torch.testing.assert_close(part, wanted, atol=1e-10, rtol=1e-10)
    assert bool((trace.log_accept == -torch.inf).any()) == bounded
    if not isinstance(FUSED[rule], Always):
        assert 0.2 < trace.accepted.double().mean() < 0.95  # an aliased buffer shows only where some are rejected


def test_barker_is_the_ratio_over_one_plus_the_ratio() -> None:
    law, proposal = TARGETS["mixture"], MALA(0.4)
    current, proposed, known = pair(proposal, law, Exact(), draws(law))
    ratio = Exact().log_ratio(current, proposed, target=known, proposal=proposal).exp()
    barker = Exact(balance="barker").log_accept(current, proposed, target=known, proposal=proposal).exp()
    metropolis = Exact().log_accept(current, proposed, target=known, proposal=proposal).exp()
    torch.testing.assert_close(barker, ratio / (1 + ratio))
    torch.testing.assert_close(metropolis, ratio.clamp(max=1))


@pytest.mark.parametrize("covariance", [f64(0.5, 2.0), COVARIANCE])
def test_preconditioning_is_a_change_of_coordinates(covariance: Tensor) -> None:
    """MALA with covariance C on p is plain MALA on the law of L^-1 x, carried back by L."""
    law, h = TARGETS["mixture"], 0.3
    root = torch.diag(covariance.sqrt()) if covariance.ndim == 1 else torch.linalg.cholesky(covariance)
    inverse = torch.linalg.inv(root)
    x = draws(law)
    white = Target(score=lambda u: law.score(u @ root.T) @ root)
    there = MALA(h, covariance).sample(Point(x, law.score(x)), generator=seeded(1))
    u = x @ inverse.T
    assert white.score is not None
    here = MALA(h).sample(Point(u, white.score(u)), generator=seeded(1)) @ root.T
    torch.testing.assert_close(there, here)


@pytest.mark.parametrize("rule", ["trapezoid", "simpson", "gauss"])
@pytest.mark.parametrize("coordinates", [(0.0, 1.0), ((0.3, -0.2), (0.5, 2.0))])
def test_a_bent_line_has_the_integral_of_a_straight_one(rule: Any, coordinates: Any) -> None:
    law, fine = TARGETS["mixture"], {"trapezoid": 4000, "simpson": 255, "gauss": 32}
    known = Target(law.score, law.log_density)
    g = seeded()
    needs: Any = frozenset({"score", "log_density"})
    here, there = (Point.at(law.sample(20, generator=g).double(), known, needs) for _ in range(2))
    assert here.log_density is not None
    assert there.log_density is not None
    bent = LineIntegral(rule, nodes=fine[rule], coordinates=coordinates)
    change = bent.log_density_change(here, there, target=Target(law.score))
    torch.testing.assert_close(change, there.log_density - here.log_density, atol=1e-4, rtol=1e-5)


def stationary_variance(rule: Any, h: float, grid: Tensor) -> float:
    """Return the variance of the law that MALA with a rule leaves as it is, on a grid, for the score -2 tanh x."""
    n, step, proposal = len(grid), float(grid[1, 0] - grid[0, 0]), MALA(h)
    target = Target(lambda x: -2 * x.tanh(), lambda x: -2 * x.cosh().log().squeeze(1))
    here = Point.at(grid, target, frozenset({"score", "log_density"}))
    current = here.map(lambda part: part.repeat_interleave(n, 0))
    proposed = here.map(lambda part: part.repeat(n, *(1,) * (part.ndim - 1)))
    log_move = proposal.log_prob(proposed, given=current)
    log_move += rule.log_accept(current, proposed, target=target, proposal=proposal)
    transition = step * log_move.exp().reshape(n, n)
    transition.fill_diagonal_(0)
    transition += torch.diag(1 - transition.sum(1))
    unit = torch.eye(n, dtype=torch.float64)
    equations = transition.T - unit
    equations[-1] = 1  # one of them follows from the others: probabilities sum to one in its place
    law = torch.linalg.solve(equations, unit[-1])
    return float(law @ grid.squeeze(1).square())


@pytest.mark.parametrize(
    ("rule", "order"),
    [(Always(), 1), (LineIntegral("trapezoid"), 1), (LineIntegral("simpson"), 2), (LineIntegral("gauss", nodes=3), 3)],
    ids=repr,
)
def test_the_bias_of_the_law_falls_with_this_power_of_the_step(rule: Any, order: int) -> None:
    """An error of order k in eps of log r moves the law by one of order k - 1, and h is half the square of eps."""
    grid = torch.linspace(-9, 9, 500, dtype=torch.float64)[:, None]
    true = stationary_variance(Exact(), 0.2, grid)
    assert true == pytest.approx(math.pi**2 / 12, rel=1e-5)
    coarse, fine = (stationary_variance(rule, h, grid) - true for h in (0.2, 0.1))
    assert math.log2(coarse / fine) == pytest.approx(order, abs=0.3)
