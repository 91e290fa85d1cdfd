"""Hamiltonian moves, grouped moves, and scores that misbehave in every kernel."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from scoremh import (
    MALA,
    Always,
    Exact,
    Kernel,
    Learned,
    LineIntegral,
    Move,
    Point,
    RandomWalk,
    Recipe,
    Sampler,
    Target,
    Taylor,
    ThroughNoise,
    diagnostics,
    fit_acceptance,
    fit_score,
    hamiltonian,
    metropolis_hastings,
    networks,
    sample,
    targets,
    tune,
)
from scoremh._shared import rng
from scoremh._shared.algebra import inner
from scoremh.acceptance import Rule
from scoremh.diagnostics import stationarity
from scoremh.kernel import grouped
from scoremh.kernel.hamiltonian import Leapfrog, Trajectories, Trajectory
from tests.cases import COVARIANCE, GAUSSIAN, LEARNED, PROPOSALS, TARGETS, f64, seeded, seeded_by
from tests.cases import RULES as SCORES_RULES
from tests.deadly_scores import NotFinite
from tests.pool_cases import OF_A_SCORE, RECORDS, assert_same

# Under right kernels all stationarity verdicts of this module together fail with probability at most FALSE_ALARM.


FALSE_ALARM = 1e-3
MIXTURE = TARGETS["mixture"]
COVARIANCES = {"identity": None, "diagonal": f64(0.5, 2.0), "full": COVARIANCE}
RULES: dict[str, Rule] = {
    "simpson": LineIntegral("simpson"),
    "simpson-barker": LineIntegral("simpson", balance="barker"),
    "gauss": LineIntegral("gauss"),
    "exact": Exact(),
    "exact-barker": Exact(balance="barker"),
}


def path_from(leapfrog: Leapfrog, law: Any, x: Tensor, momentum: Tensor, steps: int) -> Trajectory:
    return leapfrog.trajectory(Target(law.score, support=law.support), Point(x, law.score(x)), momentum, steps)


def slope_change(leapfrog: Leapfrog, at_x: Tensor, path: Trajectory) -> Tensor:
    """Return (h^2 / 8) (|g|^2 - |g'|^2): what the trapezoid at the nodes leaves of log r."""
    first, last = leapfrog.slope(at_x), leapfrog.slope(path.end.score)  # type: ignore[arg-type]
    return leapfrog.step_size**2 / 8 * inner(first - last, first + last)


def starts(law: Any, n: int = 50) -> tuple[Tensor, Tensor]:
    g = seeded_by("starts")
    return law.sample(n, generator=g), torch.randn(n, 2, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_leapfrog_is_reversible(covariance: str) -> None:
    leapfrog, (x, p) = Leapfrog(0.3, 7, COVARIANCES[covariance]), starts(MIXTURE)
    there = path_from(leapfrog, MIXTURE, x, p, 7)
    back = path_from(leapfrog, MIXTURE, there.end.x, -there.momentum, 7)
    torch.testing.assert_close(back.end.x, x, atol=1e-11, rtol=0)
    torch.testing.assert_close(back.momentum, -p, atol=1e-11, rtol=0)
    assert float((there.end.x - x).abs().mean()) > 0.5


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_leapfrog_preserves_volume(covariance: str) -> None:
    leapfrog, (x, p) = Leapfrog(0.3, 5, COVARIANCES[covariance]), starts(MIXTURE, 1)

    def end(state: Tensor) -> Tensor:
        path = path_from(leapfrog, MIXTURE, state[None, :2], state[None, 2:], 5)
        return torch.cat([path.end.x, path.momentum], 1).squeeze(0)

    jacobian: Any = torch.autograd.functional.jacobian(end, torch.cat([x, p], 1).squeeze(0))
    assert float(torch.linalg.det(jacobian)) == pytest.approx(1, abs=1e-10)
    assert float((jacobian - torch.eye(4)).abs().max()) > 0.1


def trajectories(leapfrog: Leapfrog, rule: Any = LineIntegral(), law: Any = MIXTURE) -> Trajectories:  # noqa: B008
    return Trajectories(Target(law.score, support=law.support), leapfrog, rule)


def log_ratio(rule: Any, h: float, steps: int, covariance: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return log r by a rule, from the nodes alone if it can, and by the density along the same trajectories."""
    leapfrog, (x, p) = Leapfrog(h, steps, covariance), starts(MIXTURE, 400)
    path = path_from(leapfrog, MIXTURE, x, p, steps)
    kinetic = (inner(p, p) - inner(path.momentum, path.momentum)) / 2
    true = MIXTURE.log_density(path.end.x) - MIXTURE.log_density(x) + kinetic
    nowhere = torch.full_like(kinetic, math.inf)  # a goal that leaves no decision open
    return trajectories(leapfrog, rule)._integral(rule, path, nowhere) + kinetic, true


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_trapezoid_at_the_nodes_leaves_nothing_of_the_density(covariance: str) -> None:
    leapfrog, (x, p) = Leapfrog(0.3, 5, COVARIANCES[covariance]), starts(MIXTURE)
    path = path_from(leapfrog, MIXTURE, x, p, 5)
    trapezoid = sum(inner(v, s) / 2 for v, s in zip(path.segments, path.scores[1:] + path.scores[:-1], strict=True))
    telescoped = slope_change(leapfrog, MIXTURE.score(x), path)
    kinetic = (inner(p, p) - inner(path.momentum, path.momentum)) / 2
    torch.testing.assert_close(trapezoid + kinetic, telescoped, atol=1e-11, rtol=0)


def test_energy_error_is_of_second_order() -> None:
    coarse, fine = (log_ratio(LineIntegral(), h, round(1.6 / h))[1].abs().mean() for h in (0.1, 0.05))
    assert math.log2(float(coarse / fine)) == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize(
    ("rule", "coarse", "order"), [(LineIntegral(), 0.05, 4), (LineIntegral("gauss", nodes=3), 0.1, 6)], ids=repr
)
def test_integrals_along_the_trajectory_converge_to_the_density(rule: LineIntegral, coarse: float, order: int) -> None:
    """Of one power less than along one step: there are as many segments as they are short."""
    errors = []
    for h in (coarse, coarse / 2):
        integrated, true = log_ratio(rule, h, round(1.6 / h))
        errors.append(float((integrated - true).abs().mean()))
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.3)
    assert errors[1] < 1e-4


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("steps", [1, 2, 3, 8])
def test_decisions_from_the_nodes_are_antisymmetric(steps: int, covariance: str) -> None:
    """From x' with momentum -p', D changes its sign and the bound is the same, also where D is clipped to it."""
    leapfrog, (x, p) = Leapfrog(0.8, steps, COVARIANCES[covariance]), starts(MIXTURE, 400)
    there = path_from(leapfrog, MIXTURE, x, p, steps)
    back = path_from(leapfrog, MIXTURE, there.end.x, -there.momentum, steps)
    moves = trajectories(leapfrog)
    if steps < 3:
        simpson = moves._quadrature(moves.rule, there).sum(0)  # type: ignore[arg-type]
        for goal in (simpson, simpson + 100.0):  # an open comparison, and one that needs no correction
            forth, returned = moves._integral(moves.rule, there, goal), moves._integral(moves.rule, back, -goal)  # type: ignore[arg-type]
            torch.testing.assert_close(forth, -returned, atol=1e-10, rtol=0)
        assert (moves._integral(moves.rule, there, simpson) - simpson).abs().max() > 0  # type: ignore[arg-type]
        return
    (change, bound), (reverse, same) = moves.interpolated(there), moves.interpolated(back)
    torch.testing.assert_close(change, -reverse, atol=1e-10, rtol=0)
    torch.testing.assert_close(bound, same, atol=1e-10, rtol=1e-8)
    better, worse = (moves._integral(moves.rule, path, goal) for path, goal in ((there, change), (back, reverse)))  # type: ignore[arg-type]
    torch.testing.assert_close(better, -worse, atol=1e-10, rtol=0)
    assert 0 < float(((better - change).abs() > 0.999 * bound).double().mean()) < 0.95


def test_the_integral_from_the_nodes_is_the_integral_of_the_interpolants() -> None:
    """Positions and scores that are cubic in the node number: the integral is that of a polynomial."""
    n, g = 6, seeded_by("cubic")
    position, score = torch.randn(2, 4, 3, 2, generator=g, dtype=torch.float64)
    powers = torch.arange(n + 1).double()[:, None] ** torch.arange(4)
    nodes, scores = (torch.einsum("kp,pcd->kcd", powers, part) for part in (position, score))
    path = Trajectory(Point(nodes[-1]), nodes[-1], nodes[:-1], nodes.diff(dim=0), scores, nodes.new_zeros(3))
    exact = sum(inner(score[i], position[j]) * j * n ** (i + j) / (i + j) for i in range(4) for j in range(1, 4))
    torch.testing.assert_close(trajectories(Leapfrog(1.0, n)).interpolated(path)[0], exact)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("rule", ["gauss"])
def test_decisions_on_a_gaussian_match_those_of_the_density(rule: str, covariance: str) -> None:
    judged: Any = RULES[rule]
    moves = []
    for acceptance in (judged, Exact(balance=judged.balance)):
        kernel = hamiltonian(GAUSSIAN, 1.1, 4, acceptance, covariance=COVARIANCES[covariance])
        x = GAUSSIAN.sample(500, generator=seeded_by("gaussian"))
        moves.append(kernel.step(kernel.init(x), generator=seeded_by("noise"))[1])
    torch.testing.assert_close(moves[0].log_accept, moves[1].log_accept, atol=1e-10, rtol=0)
    assert torch.equal(moves[0].accepted, moves[1].accepted)
    assert not moves[0].accepted.all()


STATIONARY = [
    *product(["mixture"], RULES, COVARIANCES),
    *product([target for target in TARGETS if target != "mixture"], ["exact", "gauss"], ["identity"]),
]


@pytest.mark.parametrize(("target", "rule", "covariance"), STATIONARY)
def test_every_target_is_stationary(target: str, rule: str, covariance: str) -> None:
    law, lengths = TARGETS[target], covariance != "diagonal"
    kernel = hamiltonian(law, 0.4, 4, RULES[rule], covariance=COVARIANCES[covariance], random_length=lengths)
    verdict = stationarity(kernel, law, chains=5000, steps=5, generator=seeded_by(target, rule, covariance))
    assert verdict.p_value > FALSE_ALARM / len(STATIONARY), verdict
    assert verdict.acceptance_rate > 0.3


BANANA = TARGETS["banana"]


def score_only(law: Any) -> Target:
    return Target(law.score, support=law.support)


def decisions(target: Any, rule: Rule, steps: int = 5) -> tuple[Tensor, Tensor]:
    """Return positions and log a of a few steps, from the same points and by the same noise."""
    kernel, g = hamiltonian(target, 0.6, 4, rule, covariance=COVARIANCE), seeded_by("decisions")
    point, xs, log_accepts = kernel.init(MIXTURE.sample(200, generator=g)), [], []
    for _ in range(steps):
        point, move = kernel.step(point, generator=g)
        xs.append(point.x)
        log_accepts.append(move.log_accept)
    return torch.stack(xs), torch.stack(log_accepts)


@pytest.mark.parametrize("rule", ["simpson", "simpson-barker", "gauss"])
def test_with_every_part_known_decisions_match_those_of_exact(rule: str) -> None:
    target, judged = targets.product(MIXTURE, BANANA, GAUSSIAN, weights=[1.0, 0.5, -0.25]), RULES[rule]
    exact = Exact(balance=judged.balance)  # type: ignore[arg-type]
    for ours, theirs in zip(decisions(target, judged), decisions(target, exact), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("rule", ["gauss"])
def test_a_gaussian_part_by_its_score_leaves_no_error(rule: str) -> None:
    """The integral is exact on the Gaussian, and the mixture is never integrated: log a is that of `Exact`."""
    judged = RULES[rule]
    whole, half = (targets.product(MIXTURE, part, weights=[1.0, 0.7]) for part in (GAUSSIAN, score_only(GAUSSIAN)))
    ours, theirs = decisions(half, judged, 1)[1], decisions(whole, Exact(balance=judged.balance), 1)[1]  # type: ignore[arg-type]
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0)
    all_integrated = decisions(score_only(whole), judged, 1)[1]
    assert float((all_integrated - theirs).abs().max()) > 1e-4  # the same trajectories, the mixture integrated as well


def test_known_parts_are_evaluated_at_the_nodes_only() -> None:
    calls = dict.fromkeys(("known score", "log density", "rest"), 0)

    def counted(name: str, function: Any) -> Any:
        def call(x: Tensor) -> Tensor:
            calls[name] += len(x)
            return function(x)  # type: ignore[no-any-return]

        return call

    known = Target(counted("known score", GAUSSIAN.score), counted("log density", GAUSSIAN.log_density))
    target = targets.product(Target(counted("rest", MIXTURE.score)), known)
    kernel = hamiltonian(target, 0.3, 5, LineIntegral(), random_length=False)
    chains = sample(kernel, MIXTURE.sample(6), draws=10, generator=seeded_by())
    assert calls == {"known score": 6 + 6 * 10 * 5, "log density": 6 + 6 * 10, "rest": calls["rest"]}
    assert 6 + 6 * 10 * 5 <= calls["rest"] < 6 + 6 * 10 * (5 + 2)
    assert chains.score_calls == calls["rest"]


@pytest.mark.parametrize("right", [True, False])
def test_a_product_leaves_its_target_invariant(right: bool) -> None:
    """The product of p with N / N, one of which is integrated; a twin forgets the known part when it decides."""
    target: Any = targets.product(MIXTURE, GAUSSIAN, score_only(GAUSSIAN), weights=[1.0, -1.0, 1.0])
    if not right:
        forgotten = target.known._replace(log_density=lambda x: x.new_zeros(len(x)))
        target = replace(target, known=forgotten)
    kernel = hamiltonian(target, 0.6, 4, LineIntegral())
    verdict = stationarity(kernel, MIXTURE, chains=10_000, steps=5, generator=seeded_by("product"))
    assert (verdict.p_value > FALSE_ALARM / len(STATIONARY)) == right, verdict


def trapezoid_twin(law: Any, h: float, steps: int) -> Kernel:
    """Judge by the trapezoid at the nodes: what it leaves of log r."""
    right, leapfrog = hamiltonian(law, h, steps, LineIntegral()), Leapfrog(h, steps)

    def step(point: Point, *, generator: torch.Generator | None = None) -> tuple[Point, Move]:
        p = torch.randn(point.x.shape, generator=generator, dtype=point.x.dtype)
        path = path_from(leapfrog, law, point.x, p, steps)
        log_accept = slope_change(leapfrog, law.score(point.x), path).clamp(max=0)
        accepted = torch.rand(len(p), generator=generator, dtype=p.dtype).log() < log_accept
        x = torch.where(accepted[:, None], path.end.x, point.x)
        return right.init(x), Move(path.end.x, log_accept, accepted)

    return right._replace(step=step, run=None)


class NoBound(Trajectories):
    """Decide by the nodes alone."""

    def interpolated(self, path: Trajectory) -> tuple[Tensor, Tensor]:
        change, bound = super().interpolated(path)
        return change, torch.zeros_like(bound)


class OneSidedBound(Trajectories):
    """Look closer on the way up only."""

    def interpolated(self, path: Trajectory) -> tuple[Tensor, Tensor]:
        change, bound = super().interpolated(path)
        return change, bound.where(change > 0, 0)


class NoMidpoints(Trajectories):
    """Leave out the midpoints of two segments as well: an interpolant through three nodes is what there is."""

    def _integral(self, rule: LineIntegral, path: Trajectory, goal: Tensor) -> Tensor:
        trapezoid = inner((path.scores[0] + path.scores[1]) / 2, path.segments[0])
        return trapezoid + inner((path.scores[1] + path.scores[2]) / 2, path.segments[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("twin", "h", "steps"),
    [(Trajectories, 0.5, 5), (Trajectories, 0.5, 2), (NoBound, 0.5, 5), (OneSidedBound, 0.5, 5), (NoMidpoints, 0.5, 2)],
)
def test_decisions_from_the_nodes_leave_the_target_as_it_is(twin: type[Trajectories], h: float, steps: int) -> None:
    """100,000 chains; an approximation, whose twins without its safeguards are found out."""
    law = targets.Banana(f64(1.0).squeeze(0))
    moves = twin(Target(law.score), Leapfrog(h, steps, random_length=False), LineIntegral())
    kernel = Kernel(moves.init, moves.step, moves.run)
    verdict = stationarity(kernel, law, chains=100_000, steps=10, generator=seeded_by("nodes", h, steps))
    assert (verdict.p_value > FALSE_ALARM / len(STATIONARY)) == (twin is Trajectories), verdict


@pytest.mark.parametrize("rule", [LineIntegral(), LineIntegral("simpson"), LineIntegral(balance="barker")], ids=str)
def test_trajectories_of_one_step_are_those_of_mala(rule: LineIntegral) -> None:
    h, g = 0.9, seeded_by("one step")
    x, z = BANANA.sample(500, generator=g), torch.randn(500, 2, generator=g, dtype=torch.float64)
    log_uniform, target = torch.rand(500, generator=g, dtype=torch.float64).log(), Target(BANANA.score)
    one, other = hamiltonian(target, h, 1, rule), metropolis_hastings(target, MALA(h**2 / 2), rule)
    _, moved = one.step.__self__.move(one.init(x), z, log_uniform, 1)  # type: ignore[attr-defined]
    candidates = x + h**2 / 2 * BANANA.score(x) + h * z
    _, expected = other.step.__self__.move(other.init(x), candidates, log_uniform, g)  # type: ignore[attr-defined]
    torch.testing.assert_close(moved.log_accept, expected.log_accept, atol=1e-12, rtol=0)
    assert 0.2 < moved.accepted.double().mean() < 0.95


@pytest.mark.parametrize("random_length", [False, True])
@pytest.mark.parametrize("rule", ["simpson", "exact"])
def test_the_fused_loop_makes_the_same_moves_as_steps(rule: str, random_length: bool) -> None:
    """The random numbers of all steps are drawn at once, so that one by one they come in another order."""
    kernel = hamiltonian(BANANA, 0.6, 5, RULES[rule], covariance=COVARIANCE, random_length=random_length)
    g, n = seeded_by("fused"), 20
    start = kernel.init(BANANA.sample(50, generator=g))
    assert kernel.run is not None
    _, trace = kernel.run(start, n, generator=g.manual_seed(1))
    again = g.manual_seed(1)
    moves: Any = kernel.step.__self__  # type: ignore[attr-defined]
    momenta = torch.randn(n, 50, 2, generator=again, dtype=torch.float64)
    log_uniform = torch.rand(n, 50, generator=again, dtype=torch.float64).neg().log1p()
    lengths = moves.leapfrog.lengths(n, start.x, again)
    point, calls = start, 0
    for i in range(n):
        one = replace(moves, leapfrog=replace(moves.leapfrog, steps=lengths[i], random_length=False))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("scoremh._shared.rng.normal", lambda *_, i=i: momenta[i])
            patch.setattr("scoremh._shared.rng.log_uniform", lambda *_, i=i: log_uniform[i])
            point, move = one.step(point)
        calls += move.score_calls
        assert torch.equal(trace.x[i], point.x)
        torch.testing.assert_close(trace.log_accept[i], move.log_accept, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(trace.accepted[i], move.accepted)
    assert trace.score_calls == calls
    assert 0 < trace.accepted.double().mean() < 1
    assert set(lengths) == ({3, 4, 5} if random_length else {5})


def kept_momentum(law: Any, h: float, steps: int, *, flip: bool) -> Kernel:
    """Refresh the momentum in part, and turn it about on rejection, or forget to."""
    right, leapfrog = hamiltonian(law, h, steps, Exact()), Leapfrog(h, steps)
    momenta: dict[str, Tensor] = {}

    def step(point: Point, *, generator: torch.Generator | None = None) -> tuple[Point, Move]:
        noise = torch.randn(point.x.shape, generator=generator, dtype=point.x.dtype)
        p = 0.9 * momenta["p"] + math.sqrt(1 - 0.81) * noise if momenta else noise
        path = path_from(leapfrog, law, point.x, p, steps)
        kinetic = (inner(p, p) - inner(path.momentum, path.momentum)) / 2
        change = law.log_density(path.end.x) - law.log_density(point.x) + kinetic
        accepted = torch.rand(len(p), generator=generator, dtype=p.dtype).log() < change
        momenta["p"] = torch.where(accepted[:, None], path.momentum, -p if flip else p)
        x = torch.where(accepted[:, None], path.end.x, point.x)
        return right.init(x), Move(path.end.x, change.clamp(max=0), accepted)

    return right._replace(step=step, run=None)


@pytest.mark.parametrize("right", [True, False])
def test_the_trapezoid_at_the_nodes_is_rejected_by_the_same_test(right: bool) -> None:
    law = TARGETS["banana"]
    kernel = hamiltonian(law, 0.8, 3, Exact()) if right else trapezoid_twin(law, 0.8, 3)
    verdict = stationarity(kernel, law, chains=10_000, generator=seeded_by("trapezoid"))
    assert (verdict.p_value > FALSE_ALARM / len(STATIONARY)) == right, verdict


@pytest.mark.parametrize("flip", [True, False])
def test_partial_refreshment_without_a_flip_is_rejected_by_the_same_test(flip: bool) -> None:
    law = TARGETS["banana"]
    kernel = kept_momentum(law, 1.2, 1, flip=flip)
    verdict = stationarity(kernel, law, chains=20_000, steps=20, generator=seeded_by("momentum"))
    assert (verdict.p_value > FALSE_ALARM / len(STATIONARY)) == flip, verdict


@pytest.mark.parametrize(
    ("rule", "per_step"), [(LineIntegral("gauss", nodes=1), 2), (LineIntegral("gauss"), 4), (Exact(), 1), (Always(), 1)]
)
def test_every_score_call_is_counted_and_inner_nodes_go_in_one(rule: Any, per_step: int) -> None:
    calls: list[int] = []

    def score(x: Tensor) -> Tensor:
        calls.append(len(x))
        return -x

    kernel = hamiltonian(Target(score, lambda x: -x.square().sum(1) / 2), 0.3, 5, rule, random_length=False)
    chains = sample(kernel, torch.zeros(6, 2), draws=10, generator=seeded_by())
    assert sum(calls) == chains.score_calls == 6 + 6 * 10 * 5 * per_step
    assert len(calls) == 1 + 10 * (5 + isinstance(rule, LineIntegral))


@pytest.mark.parametrize("rule", [LineIntegral(), Exact(), Always()], ids=repr)
def test_leaving_the_support_is_a_counted_rejection(rule: Any) -> None:
    asked: list[Tensor] = []

    def score(x: Tensor) -> Tensor:
        asked.append(x)
        return -x

    target = Target(score, lambda x: -x.square().sum(1) / 2, targets.box(-1.0, 1.0))
    chains = sample(hamiltonian(target, 0.5, 3, rule), torch.zeros(50, 2), draws=20, generator=seeded_by())
    assert chains.outside.sum() > 100
    assert chains.nonfinite.sum() == 0
    assert chains.draws.abs().max() <= 1
    assert all(bool((x.abs() <= 1).all()) for x in asked)
    assert chains.score_calls == sum(map(len, asked))


@pytest.mark.parametrize("rule", [LineIntegral(), Exact()], ids=repr)
def test_a_trajectory_that_loses_too_much_energy_diverges(rule: Any) -> None:
    """Leapfrog is unstable above h = 2 standard deviations; one step of h = 30 loses some 1e5 nats, all finite."""
    chains = sample(hamiltonian(NORMAL, 30.0, 2, rule), torch.ones(50, 2), draws=4, generator=seeded_by())
    assert bool(chains.diverging.all())
    assert chains.accepted.sum() == chains.outside.sum() == 0
    fine = sample(hamiltonian(NORMAL, 1.9, 2, rule), torch.ones(50, 2), draws=4, generator=seeded_by())
    assert not fine.diverging.any()
    assert not fine.accepted.all()
    summary = diagnostics.summary(replace(fine, nonfinite=chains.nonfinite))
    assert summary.diverging == 200
    assert "200 diverging or not finite" in str(summary)


@pytest.mark.parametrize("rule", [LineIntegral(), Exact(), Always()], ids=repr)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_trajectory_that_meets_a_number_that_is_not_finite_diverges(rule: Any, value: float) -> None:
    def score(x: Tensor) -> Tensor:
        return torch.where(x[:, :1] > 1, value, -x)

    x = torch.linspace(-2, 0.9, 40)[:, None].repeat(1, 2)
    kernel = hamiltonian(Target(score, lambda x: -x.square().sum(1) / 2), 0.3, 4, rule)
    chains = sample(kernel, x, draws=20, generator=seeded_by())
    assert chains.draws.isfinite().all()
    assert 0 < chains.nonfinite.sum() < chains.nonfinite.numel()
    stayed = torch.cat([x[:, None], chains.draws], 1).diff(dim=1).flatten(2).any(2)[chains.nonfinite > 0]
    assert not stayed.any()
    assert bool(torch.as_tensor(chains.to_arviz()["sample_stats"]["diverging"].to_numpy()).any())


def test_tune_reaches_the_target_rate() -> None:
    law, g = targets.Gaussian(torch.zeros(20)), seeded_by()
    x = law.sample(200, generator=g)
    assert hamiltonian(law, 0.1, 5, LineIntegral(balance="barker")).target_rate == 0.381
    assert hamiltonian(law, 0.1, 5, Always()).target_rate is None
    h = tune(lambda h: hamiltonian(law, h, 5, LineIntegral()), x, steps=100, generator=g)
    chains = sample(hamiltonian(law, h, 5, LineIntegral()), x, draws=20, generator=g)
    assert chains.acceptance_rate == pytest.approx(0.651, abs=0.1)


@pytest.mark.parametrize("event", [(2,), (1, 4, 4)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_shapes_dtypes_and_seeds(rule: str, dtype: torch.dtype, event: tuple[int, ...]) -> None:
    target = Target(lambda x: -x, lambda x: -x.flatten(1).square().sum(1) / 2)
    kernel, x = hamiltonian(target, 0.2, 3, RULES[rule]), torch.zeros(5, *event, dtype=dtype)
    before = torch.random.get_rng_state()
    first, again = (sample(kernel, x, draws=4, generator=seeded_by()).draws for _ in range(2))
    assert first.dtype == dtype
    assert first.shape == (5, 4, *event)
    assert torch.equal(first, again)
    assert torch.equal(before, torch.random.get_rng_state())


NORMAL = Target(lambda x: -x, lambda x: -x.square().sum(1) / 2)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((NORMAL, 0.1, 5, LineIntegral("trapezoid")), "cancel against the kinetic energy"),
        ((NORMAL, 0.1, 5, LineIntegral("exact")), "on a single move only"),
        ((NORMAL, 0.1, 5, LineIntegral(coordinates=(0.0, 1.0))), "on a single move only"),
        ((NORMAL, 0.1, 5, Taylor(1)), "a rule for whole trajectories"),
        ((NORMAL, 0.1, 5, LEARNED["learned-free"]), "a rule for whole trajectories"),
        ((NORMAL, -0.1, 5, Exact()), "step_size"),
        ((NORMAL, 0.1, 0, Exact()), "steps"),
        ((NORMAL, 0.1, 2.5, Exact()), "steps"),
        ((Target(log_density=NORMAL.log_density), 0.1, 5, Exact()), "a score, which Hamiltonian moves need"),
        ((Target(NORMAL.score), 0.1, 5, Exact()), "a log_density"),
    ],
)
def test_what_cannot_be_right_raises_an_error(arguments: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        hamiltonian(*arguments)


@pytest.mark.parametrize("covariance", [torch.ones(3), torch.eye(3)], ids=["diagonal", "dense"])
def test_a_covariance_of_another_size_raises_an_error(covariance: Tensor) -> None:
    kernel = hamiltonian(NORMAL, 0.1, 5, LineIntegral(), covariance=covariance)
    with pytest.raises(ValueError, match="covariance and event of one size"):
        sample(kernel, torch.zeros(4, 2), draws=1)


# Cheap moves decided in groups by a log density: the surrogate transition method.


SURROGATE_MIXTURE = targets.GaussianMixture(
    torch.tensor([0.3, 0.7]).double(), torch.tensor([[-2.0, 0.0], [2.0, 1.0]]).double(), 0.5 * torch.eye(2).double()
)


class Wrong:
    """The mixture with its own density and exact draws, and a score that is wrong: it pulls to (1, 1) as well."""

    support = None
    log_density = staticmethod(SURROGATE_MIXTURE.log_density)
    sample = staticmethod(SURROGATE_MIXTURE.sample)

    @staticmethod
    def score(x: Tensor) -> Tensor:
        return SURROGATE_MIXTURE.score(x) + 0.5 * (1 - x)


CHEAP = {
    "simpson": LineIntegral("simpson"),
    "trapezoid with a walk": LineIntegral("trapezoid"),
    "barker": LineIntegral(balance="barker"),
    "lobatto": LineIntegral(),
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


@pytest.mark.slow
def test_a_learned_acceptance_of_any_form_is_corrected() -> None:
    target, proposal = Target(SURROGATE_MIXTURE.score, SURROGATE_MIXTURE.log_density), RandomWalk(0.8)
    x = SURROGATE_MIXTURE.sample(1000, generator=seeded())
    for form in ("free", "antisymmetric", "potential"):
        fit = fit_acceptance(target, proposal, x, form=form, recipe=Recipe(steps=30, batch=64), generator=seeded(1))
        kernel = grouped(target, proposal, Learned(fit), Exact(), group_size=3)
        assert (
            diagnostics.stationarity(kernel, SURROGATE_MIXTURE, chains=4000, steps=12, generator=seeded(2)).p_value
            > 1e-4
        )


def test_where_the_rule_is_exact_every_group_is_accepted() -> None:
    start = SURROGATE_MIXTURE.sample(200, generator=seeded())
    kernel = grouped(SURROGATE_MIXTURE, MALA(0.3), Exact(), Exact(), group_size=5)
    found = sample(kernel, torch.zeros(8, 2), draws=2, thin=10, generator=seeded())
    assert (found.groups, found.rejected_groups) == (8 * 4, 0)
    chains = sample(kernel, start, draws=4, thin=5, generator=seeded(1))
    assert chains.acceptance_rate == pytest.approx(float(chains.acceptance_prob.mean()), abs=0.05)
    assert chains.acceptance_rate > 0.5


def test_a_rejected_group_is_taken_back() -> None:
    """A log density that is nowhere higher than at the start: no group is accepted, and nothing moves."""
    start = SURROGATE_MIXTURE.sample(50, generator=seeded())
    only_there = Target(SURROGATE_MIXTURE.score, lambda x: torch.where((x == start).all(1), 0.0, -1e6).double())
    chains = sample(grouped(only_there, MALA(0.3), LineIntegral(), Exact()), start, draws=3, thin=10)
    torch.testing.assert_close(chains.draws, start[:, None].expand(-1, 3, -1), rtol=0, atol=0)
    assert chains.acceptance_rate == 0
    assert float(chains.acceptance_prob.mean()) > 0.5


def test_a_support_is_kept_and_counted() -> None:
    half = targets.truncate(SURROGATE_MIXTURE, lambda x: x[:, 0] > 0)
    start = SURROGATE_MIXTURE.sample(500, generator=seeded()).abs()
    chains = sample(grouped(half, RandomWalk(1.5), LineIntegral(), Exact()), start, draws=1, thin=20)
    assert bool((chains.last[:, 0] > 0).all())
    assert int(chains.outside.sum()) > 0


def test_a_score_that_is_not_finite_is_a_rejection() -> None:
    target = Target(lambda x: torch.where(x > 1, torch.nan, -x), lambda x: -x.square().sum(1) / 2)
    chains = sample(grouped(target, RandomWalk(1.5), LineIntegral(), Exact()), torch.zeros(100, 1), draws=2, thin=10)
    assert chains.draws.isfinite().all()
    assert int(chains.nonfinite.sum()) > 0


def test_the_cost_is_counted() -> None:
    start = SURROGATE_MIXTURE.sample(10, generator=seeded())
    kernel = grouped(SURROGATE_MIXTURE, MALA(0.1), LineIntegral("simpson"), ThroughNoise(nodes=8), group_size=10)
    _, trace = kernel.run(kernel.init(start), 20, generator=seeded())  # type: ignore[misc]
    assert trace.score_calls == 2 * 20 * 10 + 3 * 8 * (1 + 2) * 10


def test_steps_by_hand_are_judged_one_by_one() -> None:
    kernel = grouped(SURROGATE_MIXTURE, MALA(0.3), LineIntegral(), Exact())
    assert (
        diagnostics.stationarity(kernel._replace(run=None), SURROGATE_MIXTURE, chains=4000, generator=seeded()).p_value
        > 1e-4
    )


def test_draws_at_the_ends_of_groups_are_decided_however_a_run_is_divided() -> None:
    """A score of a wider normal distribution: within a group draws are too wide, at its end they are not."""
    target = Target(lambda x: -x / 4, lambda x: -x.square().sum(1) / 2)
    start = torch.randn(1000, 2, generator=seeded())
    kernel = grouped(target, RandomWalk(1.0), LineIntegral(), Exact(), group_size=10)
    chains = sample(kernel, start, draws=20, thin=10, generator=seeded(1))  # more steps than one segment has
    assert bool(((chains.draws.square().mean((0, 2)) - 1).abs() < 0.15).all())
    within = sample(kernel, start, draws=20, thin=5, generator=seeded(1)).draws[:, ::2]
    assert bool((within.square().mean((0, 2)) > 1.15).all())


def test_barkers_balance_and_densities_that_are_not_finite() -> None:
    start = SURROGATE_MIXTURE.sample(500, generator=seeded())
    rates = [
        sample(grouped(Wrong(), MALA(0.3), LineIntegral(), final), start, draws=1, thin=50).acceptance_rate
        for final in (Exact(), Exact(balance="barker"))
    ]
    assert rates[1] < 0.8 * rates[0]
    spike = Target(
        SURROGATE_MIXTURE.score, lambda x: torch.where(x[:, 0] > 2, torch.inf, SURROGATE_MIXTURE.log_density(x))
    )
    inside = start[start[:, 0] < 2]
    assert bool(
        (sample(grouped(spike, MALA(0.3), LineIntegral(), Exact()), inside, draws=1, thin=50).last[:, 0] <= 2).all()
    )
    with pytest.raises(ValueError, match="positive density"):
        sample(grouped(spike, MALA(0.3), LineIntegral(), Exact()), start, draws=1)


def test_a_product_with_known_parts_raises_an_error() -> None:
    with pytest.raises(ValueError, match="a target without known parts"):
        grouped(targets.product(SURROGATE_MIXTURE, SURROGATE_MIXTURE), MALA(0.3), LineIntegral(), Exact())


def test_a_step_names_its_candidate() -> None:
    kernel = grouped(SURROGATE_MIXTURE, RandomWalk(3.0), LineIntegral(), Exact())
    point = kernel.init(SURROGATE_MIXTURE.sample(100, generator=seeded()))
    there, move = kernel.step(point, generator=seeded(1))
    assert bool((move.proposed != point.x).any(1).all())
    torch.testing.assert_close(there.x[move.accepted], move.proposed[move.accepted])
    torch.testing.assert_close(there.x[~move.accepted], point.x[~move.accepted])


@pytest.mark.parametrize("rule", [Always(), LineIntegral("exact"), Taylor()])
def test_rules_without_a_ratio_raise_errors(rule: Any) -> None:
    with pytest.raises(ValueError, match="a rule with a deterministic log ratio"):
        grouped(SURROGATE_MIXTURE, MALA(0.3), rule, Exact())


def test_a_final_rule_without_a_density_raises_an_error() -> None:
    with pytest.raises(ValueError, match="a final rule that uses a log density"):
        grouped(SURROGATE_MIXTURE, MALA(0.3), LineIntegral(), LineIntegral())


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


# Scores that misbehave, in every kernel: chains stay finite, counts are right, the summary says it, errors name it.


scores_mark = pytest.mark.filterwarnings("ignore::scoremh.kernel.metropolis.DegenerateRuleWarning")

CHAINS, DRAWS = 6, 4
WRONG_NUMBERS = {"nan": math.nan, "inf": math.inf, "minus inf": -math.inf, "1e300": 1e300}
SCORED = ("simpson", "simpson-barker", "gauss", "lobatto", "exact-integral", "taylor-1", "taylor-2")

MAKERS: dict[str, Callable[[Any], Kernel]] = {
    f"{proposal}, {rule}": lambda score, p=PROPOSALS[proposal], r=SCORES_RULES[rule]: metropolis_hastings(
        Target(score), p, r
    )
    for proposal, rule in [
        *product(["rw", "mala"], SCORED),
        *product(["mala-full", "pcn", "student", "barker"], ["simpson"]),
        *product(["mala", "mala-full", "barker"], ["always"]),
    ]
} | {
    f"hamiltonian, {rule}": lambda score, r=rule: hamiltonian(Target(score), 0.3, 3, r)  # type: ignore[misc]
    for rule in (LineIntegral(), Always())
}


class Misbehaving:
    """A standard normal's score that returns a right value once, and then wrong ones.

    Args:
        wrong: From a right answer to a wrong one.
        where: Of which points: some chains, a region, or all.
    """

    def __init__(self, wrong: Callable[[Tensor], Any], where: str = "all") -> None:
        self.wrong, self.where, self.calls = wrong, where, 0

    def __call__(self, x: Tensor) -> Any:
        self.calls += 1
        right = -x
        if self.calls == 1:
            return right
        if self.where == "all":
            return self.wrong(right)
        rows = torch.arange(len(x)) % CHAINS < 2 if self.where == "some" else x[:, 0] > 0.5
        return torch.where(rows[:, None], self.wrong(right), right)


def run(kernel: Kernel, **options: Any) -> Any:
    g = seeded(1)
    return sample(kernel, torch.zeros(CHAINS, 2, dtype=torch.float64), draws=DRAWS, generator=g, **options)


@scores_mark
@pytest.mark.parametrize("kernel", MAKERS)
def test_numbers_that_are_not_finite_are_counted_and_never_reached(kernel: str) -> None:
    met = 0
    for number in WRONG_NUMBERS.values():
        for where in ("all", "some", "region"):
            made = MAKERS[kernel](Misbehaving(partial(torch.full_like, fill_value=number), where))
            chains = run(made, thin=2)
            assert chains.draws.isfinite().all()
            assert (chains.rejected >= 0).all()
            assert (chains.draws.diff(dim=1).any(2) <= (chains.accepted[:, 1:] > 0)).all()
            if chains.nonfinite.any():
                met += 1
                assert f"{int(chains.nonfinite.sum())} diverging" in repr(chains)
    assert met >= 3, "the summary never named what happened"


@scores_mark
@pytest.mark.slow
@pytest.mark.parametrize("number", [math.nan, 1e30], ids=str)
@pytest.mark.parametrize("name", OF_A_SCORE)
@pytest.mark.parametrize("pool", [ThreadPoolExecutor(2), 2], ids=["threads", "processes"])
def test_numbers_that_are_not_finite_are_the_same_in_every_pool(pool: Any, name: str, number: float) -> None:
    found = OF_A_SCORE[name](pool, None, NotFinite(number))
    assert found[0].isfinite().all()  # type: ignore[union-attr]
    assert name != "sample" or found[RECORDS.index("nonfinite")].any()  # type: ignore[union-attr]
    assert_same(found, OF_A_SCORE[name](None, None, NotFinite(number)))


@scores_mark
@pytest.mark.parametrize("kernel", MAKERS)
def test_results_of_another_kind_raise_errors_at_any_call(kernel: str) -> None:
    for wrong in (lambda s: s.float(), lambda s: s[:, :1], lambda s: s[:1], lambda s: s.numpy(), lambda s: None):
        with pytest.raises((TypeError, ValueError), match=r"expected score\(x\) to be a float64 tensor of shape"):
            run(MAKERS[kernel](Misbehaving(wrong)))


@scores_mark
@pytest.mark.parametrize("kernel", MAKERS)
def test_an_exception_of_the_score_comes_through(kernel: str) -> None:
    def wrong(right: Tensor) -> Tensor:
        raise ZeroDivisionError("of the user's")

    with pytest.raises(ZeroDivisionError, match="of the user's"):
        run(MAKERS[kernel](Misbehaving(wrong)))


def test_a_group_without_a_finite_ratio_is_rejected_and_counted_once() -> None:
    def log_density(x: Tensor) -> Tensor:
        return torch.where(x[:, 0] > 0.5, math.nan, -0.5 * x.square().sum(1))

    kernel = grouped(Target(lambda x: -x, log_density), MALA(0.3), LineIntegral("simpson"), Exact(), group_size=5)
    chains = sample(kernel, torch.full((200, 2), -1.0), draws=20, thin=5, generator=seeded())
    assert bool((chains.draws[..., 0] <= 0.5).all())
    assert 0 < int(chains.nonfinite.sum()) <= 200 * 20


@pytest.mark.parametrize("rule", [Taylor(1, average=True), LineIntegral()], ids=repr)
def test_a_product_of_densities_is_decided_exactly_and_named_so(rule: Any) -> None:
    both = targets.product(SURROGATE_MIXTURE, targets.Gaussian(torch.zeros(2), torch.eye(2)))
    kernel = metropolis_hastings(both, MALA(0.3), rule)  # a degenerate rule would warn
    assert kernel.parts[1] == Exact()


def test_a_certain_candidate_is_accepted_at_every_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    """u = 1 is drawn once in 2^24 times; a candidate with a = 1 is accepted then as well."""
    monkeypatch.setattr(rng, "log_uniform", lambda shape, like, generator: like.new_zeros(shape))
    for rule in (Always(), Exact()):
        flat = metropolis_hastings(Target(lambda x: 0 * x, lambda x: 0 * x[:, 0]), RandomWalk(1.0), rule)
        assert bool(flat.step(flat.init(torch.zeros(10, 2)), generator=seeded())[1].accepted.all())


@scores_mark
def test_the_summary_says_what_was_not_finite() -> None:
    kernel = MAKERS["mala, simpson"](Misbehaving(lambda right: torch.full_like(right, math.nan), "region"))
    chains = run(kernel)
    assert diagnostics.summary(chains).diverging == int(chains.nonfinite.sum()) > 0


@scores_mark
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", [LineIntegral(), LineIntegral("exact"), Always()], ids=repr)
def test_networks_of_low_precision(dtype: torch.dtype, rule: Any) -> None:
    net = networks.ScoreMLP(2, generator=seeded()).to(dtype).requires_grad_(False)
    kernel = metropolis_hastings(Target(lambda x: net(x) - x), MALA(0.2), rule)
    chains = sample(kernel, torch.zeros(5, 2, dtype=dtype), draws=30, generator=seeded())
    assert chains.draws.dtype == dtype
    assert chains.draws.isfinite().all()
    assert chains.acceptance_rate > 0.3
    diagnostics.summary(chains)


@scores_mark
@pytest.mark.parametrize("proposal", [RandomWalk(0.5), MALA(0.3)], ids=repr)
@pytest.mark.parametrize(("chains", "draws", "dimension"), [(1, 1, 1), (1, 5, 1), (3, 1, 2), (1, 1, 3)])
def test_one_chain_one_draw_one_dimension(proposal: Any, chains: int, draws: int, dimension: int) -> None:
    kernel = metropolis_hastings(Target(lambda x: -x), proposal, LineIntegral())
    found = sample(kernel, torch.zeros(chains, dimension), draws=draws)
    assert found.draws.shape == (chains, draws, dimension)
    assert 0 <= found.acceptance_rate <= 1
    assert f"{chains} chains x {draws} draws of ({dimension},)" in repr(found)
