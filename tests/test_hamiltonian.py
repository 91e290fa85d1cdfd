"""Hamiltonian moves: identities of the leapfrog, decisions, stationarity with its wrong twins, and refused input.

Under right kernels all stationarity verdicts of this module together fail with probability at most FALSE_ALARM.
"""

import math
import zlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from scoremh import (
    Always,
    Exact,
    Kernel,
    LineIntegral,
    Move,
    Point,
    Target,
    Taylor,
    diagnostics,
    hamiltonian,
    sample,
    targets,
    tune,
)
from scoremh._shared.algebra import inner
from scoremh.acceptance import Rule
from scoremh.diagnostics import stationarity
from scoremh.kernel.hamiltonian import Leapfrog, Trajectory
from tests.cases import COVARIANCE, GAUSSIAN, LEARNED, TARGETS, f64

FALSE_ALARM = 1e-3
MIXTURE = TARGETS["mixture"]
COVARIANCES = {"identity": None, "diagonal": f64(0.5, 2.0), "full": COVARIANCE}
RULES: dict[str, Rule] = {
    "simpson": LineIntegral(),
    "simpson-barker": LineIntegral(balance="barker"),
    "gauss": LineIntegral("gauss"),
    "exact": Exact(),
    "exact-barker": Exact(balance="barker"),
}


def seeded(*name: object) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(repr(name).encode()))


def path_from(leapfrog: Leapfrog, law: Any, x: Tensor, momentum: Tensor, steps: int) -> Trajectory:
    return leapfrog.trajectory(lambda x: law.score(x)[:, None], law.support, x, law.score(x)[:, None], momentum, steps)


def slope_change(leapfrog: Leapfrog, at_x: Tensor, path: Trajectory) -> Tensor:
    """Return (h^2 / 8) (|g|^2 - |g'|^2): what the trapezoid at the nodes leaves of log r."""
    first, last = leapfrog.slope(at_x), leapfrog.slope(path.scores[:, 0])
    return leapfrog.step_size**2 / 8 * inner(first - last, first + last)


def starts(law: Any, n: int = 50) -> tuple[Tensor, Tensor]:
    g = seeded("starts")
    return law.sample(n, generator=g), torch.randn(n, 2, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_leapfrog_is_reversible(covariance: str) -> None:
    leapfrog, (x, p) = Leapfrog(0.3, 7, COVARIANCES[covariance]), starts(MIXTURE)
    there = path_from(leapfrog, MIXTURE, x, p, 7)
    back = path_from(leapfrog, MIXTURE, there.end, -there.momentum, 7)
    torch.testing.assert_close(back.end, x, atol=1e-11, rtol=0)
    torch.testing.assert_close(back.momentum, -p, atol=1e-11, rtol=0)
    assert float((there.end - x).abs().mean()) > 0.5


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_leapfrog_preserves_volume(covariance: str) -> None:
    leapfrog, (x, p) = Leapfrog(0.3, 5, COVARIANCES[covariance]), starts(MIXTURE, 1)

    def end(state: Tensor) -> Tensor:
        path = path_from(leapfrog, MIXTURE, state[None, :2], state[None, 2:], 5)
        return torch.cat([path.end, path.momentum], 1).squeeze(0)

    jacobian: Any = torch.autograd.functional.jacobian(end, torch.cat([x, p], 1).squeeze(0))
    assert float(torch.linalg.det(jacobian)) == pytest.approx(1, abs=1e-10)
    assert float((jacobian - torch.eye(4)).abs().max()) > 0.1


def log_ratio(rule: Any, h: float, steps: int, covariance: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return log r by a rule and by the density along the same trajectories."""
    from scoremh.kernel.hamiltonian import Trajectories

    leapfrog, (x, p) = Leapfrog(h, steps, covariance), starts(MIXTURE, 400)
    path = path_from(leapfrog, MIXTURE, x, p, steps)
    kinetic = leapfrog.kinetic_change(p, path)
    true = MIXTURE.log_density(path.end) - MIXTURE.log_density(x) + kinetic
    return Trajectories(Target(MIXTURE.score), leapfrog, rule)._integral(rule, path) + kinetic, true


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_trapezoid_at_the_nodes_leaves_nothing_of_the_density(covariance: str) -> None:
    leapfrog, (x, p) = Leapfrog(0.3, 5, COVARIANCES[covariance]), starts(MIXTURE)
    path = path_from(leapfrog, MIXTURE, x, p, 5)
    trapezoid = sum(inner(v, s) / 2 for v, s in zip(path.segments, path.score_sums, strict=True))
    telescoped = slope_change(leapfrog, MIXTURE.score(x), path)
    torch.testing.assert_close(trapezoid + leapfrog.kinetic_change(p, path), telescoped, atol=1e-11, rtol=0)


def test_energy_error_is_of_second_order() -> None:
    coarse, fine = (log_ratio(LineIntegral(), h, round(1.6 / h))[1].abs().mean() for h in (0.1, 0.05))
    assert math.log2(float(coarse / fine)) == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize(("rule", "order"), [(LineIntegral(), 4), (LineIntegral("gauss", nodes=3), 6)], ids=repr)
def test_integrals_along_the_trajectory_converge_to_the_density(rule: LineIntegral, order: int) -> None:
    """Of one power less than along one step: there are as many segments as they are short."""
    errors = []
    for h in (0.1, 0.05):
        integrated, true = log_ratio(rule, h, round(1.6 / h))
        errors.append(float((integrated - true).abs().mean()))
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.3)
    assert errors[1] < 1e-4


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("rule", ["simpson", "simpson-barker", "gauss"])
def test_decisions_on_a_gaussian_are_those_of_the_density(rule: str, covariance: str) -> None:
    judged: Any = RULES[rule]
    moves = []
    for acceptance in (judged, Exact(balance=judged.balance)):
        kernel = hamiltonian(GAUSSIAN, 1.1, 4, acceptance, covariance=COVARIANCES[covariance], random_length=True)
        x = GAUSSIAN.sample(500, generator=seeded("gaussian"))
        moves.append(kernel.step(kernel.init(x), generator=seeded("noise"))[1])
    torch.testing.assert_close(moves[0].log_accept, moves[1].log_accept, atol=1e-10, rtol=0)
    assert torch.equal(moves[0].accepted, moves[1].accepted)
    assert not moves[0].accepted.all()


STATIONARY = [
    (target, rule, covariance)
    for target in TARGETS
    for rule in RULES
    for covariance in (COVARIANCES if not target.startswith("gev") else ["identity"])
]


@pytest.mark.parametrize(("target", "rule", "covariance"), STATIONARY)
def test_every_target_is_stationary(target: str, rule: str, covariance: str) -> None:
    law, lengths = TARGETS[target], covariance != "diagonal"
    kernel = hamiltonian(law, 0.4, 4, RULES[rule], covariance=COVARIANCES[covariance], random_length=lengths)
    verdict = stationarity(kernel, law, chains=5000, steps=5, generator=seeded(target, rule, covariance))
    assert verdict.p_value > FALSE_ALARM / len(STATIONARY), verdict
    assert verdict.acceptance_rate > 0.3


BANANA = TARGETS["banana"]


def score_only(law: Any) -> Target:
    return Target(law.score, support=law.support)


def decisions(target: Any, rule: Rule, steps: int = 5) -> tuple[Tensor, Tensor]:
    """Return positions and log a of a few steps, from the same points and by the same noise."""
    kernel, g = hamiltonian(target, 0.6, 4, rule, covariance=COVARIANCE, random_length=True), seeded("decisions")
    point, xs, log_accepts = kernel.init(MIXTURE.sample(200, generator=g)), [], []
    for _ in range(steps):
        point, move = kernel.step(point, generator=g)
        xs.append(point.x)
        log_accepts.append(move.log_accept)
    return torch.stack(xs), torch.stack(log_accepts)


@pytest.mark.parametrize("rule", ["simpson", "simpson-barker", "gauss"])
def test_with_every_part_known_decisions_are_those_of_exact(rule: str) -> None:
    target, judged = targets.product(MIXTURE, BANANA, GAUSSIAN, weights=[1.0, 0.5, -0.25]), RULES[rule]
    exact = Exact(balance=judged.balance)  # type: ignore[arg-type]
    for ours, theirs in zip(decisions(target, judged), decisions(target, exact), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("rule", ["simpson", "simpson-barker", "gauss"])
def test_a_gaussian_part_by_its_score_leaves_no_error(rule: str) -> None:
    """The integral is exact on the Gaussian, and the mixture is never integrated: log a is that of `Exact`."""
    judged = RULES[rule]
    whole, half = (targets.product(MIXTURE, part, weights=[1.0, 0.7]) for part in (GAUSSIAN, score_only(GAUSSIAN)))
    ours, theirs = decisions(half, judged, 1)[1], decisions(whole, Exact(balance=judged.balance), 1)[1]  # type: ignore[arg-type]
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0)
    all_integrated = decisions(score_only(whole), judged, 1)[1]
    assert float((all_integrated - theirs).abs().max()) > 1e-4  # the same trajectories, the mixture integrated as well


def test_known_parts_are_asked_at_the_nodes_only() -> None:
    calls = dict.fromkeys(("known score", "log density", "rest"), 0)

    def counted(name: str, function: Any) -> Any:
        def call(x: Tensor) -> Tensor:
            calls[name] += len(x)
            return function(x)  # type: ignore[no-any-return]

        return call

    known = Target(counted("known score", GAUSSIAN.score), counted("log density", GAUSSIAN.log_density))
    target = targets.product(Target(counted("rest", MIXTURE.score)), known)
    chains = sample(hamiltonian(target, 0.3, 5, LineIntegral()), MIXTURE.sample(6), draws=10, generator=seeded())
    assert calls == {"known score": 6 + 6 * 10 * 5, "log density": 6 + 6 * 10, "rest": 6 + 6 * 10 * (5 + 5)}
    assert chains.score_calls == calls["rest"]


@pytest.mark.parametrize("right", [True, False])
def test_a_product_leaves_its_target_invariant(right: bool) -> None:
    """The product of p with N / N, one of which is integrated; a twin forgets the known part when it decides."""
    target: Any = targets.product(MIXTURE, GAUSSIAN, score_only(GAUSSIAN), weights=[1.0, -1.0, 1.0])
    if not right:
        forgotten = target.known._replace(log_density=lambda x: x.new_zeros(len(x)))
        target = replace(target, known=forgotten)
    kernel = hamiltonian(target, 0.6, 4, LineIntegral(), random_length=True)
    verdict = stationarity(kernel, MIXTURE, chains=10_000, steps=5, generator=seeded("product"))
    assert (verdict.p_value > FALSE_ALARM / len(STATIONARY)) == right, verdict


def trapezoid_twin(law: Any, h: float, steps: int) -> Kernel:
    """Judge by the trapezoid at the nodes: what it leaves of log r."""
    right, leapfrog = hamiltonian(law, h, steps, LineIntegral()), Leapfrog(h, steps)

    def step(point: Point, *, generator: torch.Generator | None = None) -> tuple[Point, Move]:
        p = torch.randn(point.x.shape, generator=generator, dtype=point.x.dtype)
        path = path_from(leapfrog, law, point.x, p, steps)
        log_accept = slope_change(leapfrog, law.score(point.x), path).clamp(max=0)
        accepted = torch.rand(len(p), generator=generator, dtype=p.dtype).log() < log_accept
        x = torch.where(accepted[:, None], path.end, point.x)
        return right.init(x), Move(path.end, log_accept, accepted)

    return right._replace(step=step)


def kept_momentum(law: Any, h: float, steps: int, *, flip: bool) -> Kernel:
    """Refresh the momentum in part, and turn it about on rejection, or forget to."""
    right, leapfrog = hamiltonian(law, h, steps, Exact()), Leapfrog(h, steps)
    momenta: dict[str, Tensor] = {}

    def step(point: Point, *, generator: torch.Generator | None = None) -> tuple[Point, Move]:
        noise = torch.randn(point.x.shape, generator=generator, dtype=point.x.dtype)
        p = 0.9 * momenta["p"] + math.sqrt(1 - 0.81) * noise if momenta else noise
        path = path_from(leapfrog, law, point.x, p, steps)
        change = law.log_density(path.end) - law.log_density(point.x) + leapfrog.kinetic_change(p, path)
        accepted = torch.rand(len(p), generator=generator, dtype=p.dtype).log() < change
        momenta["p"] = torch.where(accepted[:, None], path.momentum, -p if flip else p)
        x = torch.where(accepted[:, None], path.end, point.x)
        return right.init(x), Move(path.end, change.clamp(max=0), accepted)

    return right._replace(step=step)


@pytest.mark.parametrize("right", [True, False])
def test_the_trapezoid_at_the_nodes_is_rejected_by_the_same_test(right: bool) -> None:
    law = TARGETS["banana"]
    kernel = hamiltonian(law, 0.8, 3, Exact()) if right else trapezoid_twin(law, 0.8, 3)
    verdict = stationarity(kernel, law, chains=10_000, generator=seeded("trapezoid"))
    assert (verdict.p_value > FALSE_ALARM / len(STATIONARY)) == right, verdict


@pytest.mark.parametrize("flip", [True, False])
def test_partial_refreshment_without_a_flip_is_rejected_by_the_same_test(flip: bool) -> None:
    law = TARGETS["banana"]
    kernel = kept_momentum(law, 1.2, 1, flip=flip)
    verdict = stationarity(kernel, law, chains=20_000, steps=20, generator=seeded("momentum"))
    assert (verdict.p_value > FALSE_ALARM / len(STATIONARY)) == flip, verdict


@pytest.mark.parametrize(
    ("rule", "per_step"), [(LineIntegral(), 2), (LineIntegral("gauss"), 4), (Exact(), 1), (Always(), 1)]
)
def test_every_score_call_is_counted_and_inner_nodes_go_in_one(rule: Any, per_step: int) -> None:
    calls: list[int] = []

    def score(x: Tensor) -> Tensor:
        calls.append(len(x))
        return -x

    kernel = hamiltonian(Target(score, lambda x: -x.square().sum(1) / 2), 0.3, 5, rule)
    chains = sample(kernel, torch.zeros(6, 2), draws=10, generator=seeded())
    assert sum(calls) == chains.score_calls == 6 + 6 * 10 * 5 * per_step
    assert len(calls) == 1 + 10 * (5 + isinstance(rule, LineIntegral))


@pytest.mark.parametrize("rule", [LineIntegral(), Exact(), Always()], ids=repr)
def test_leaving_the_support_is_a_counted_rejection(rule: Any) -> None:
    asked: list[Tensor] = []

    def score(x: Tensor) -> Tensor:
        asked.append(x)
        return -x

    target = Target(score, lambda x: -x.square().sum(1) / 2, targets.box(-1.0, 1.0))
    chains = sample(hamiltonian(target, 0.5, 3, rule), torch.zeros(50, 2), draws=20, generator=seeded())
    assert chains.outside.sum() > 100
    assert chains.nonfinite.sum() == 0
    assert chains.draws.abs().max() <= 1
    assert all(bool((x.abs() <= 1).all()) for x in asked)
    assert chains.score_calls == sum(map(len, asked))


@pytest.mark.parametrize("rule", [LineIntegral(), Exact()], ids=repr)
def test_a_trajectory_that_loses_too_much_energy_diverges(rule: Any) -> None:
    """Leapfrog is unstable above h = 2 standard deviations; one step of h = 30 loses some 1e5 nats, all finite."""
    chains = sample(hamiltonian(NORMAL, 30.0, 2, rule), torch.ones(50, 2), draws=4, generator=seeded())
    assert bool(chains.diverging.all())
    assert chains.accepted.sum() == chains.outside.sum() == 0
    fine = sample(hamiltonian(NORMAL, 1.9, 2, rule), torch.ones(50, 2), draws=4, generator=seeded())
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
    chains = sample(kernel, x, draws=20, generator=seeded())
    assert chains.draws.isfinite().all()
    assert 0 < chains.nonfinite.sum() < chains.nonfinite.numel()
    stayed = torch.cat([x[:, None], chains.draws], 1).diff(dim=1).flatten(2).any(2)[chains.nonfinite > 0]
    assert not stayed.any()
    assert bool(torch.as_tensor(chains.to_arviz()["sample_stats"]["diverging"].to_numpy()).any())


def test_tune_reaches_the_target_rate() -> None:
    law, g = targets.Gaussian(torch.zeros(20)), seeded()
    x = law.sample(200, generator=g)
    assert hamiltonian(law, 0.1, 5, LineIntegral(balance="barker")).target_rate == 0.381
    assert hamiltonian(law, 0.1, 5, Always()).target_rate is None
    h = tune(lambda h: hamiltonian(law, h, 5, LineIntegral(), random_length=True), x, steps=100, generator=g)
    chains = sample(hamiltonian(law, h, 5, LineIntegral(), random_length=True), x, draws=20, generator=g)
    assert chains.acceptance_rate == pytest.approx(0.651, abs=0.1)


@pytest.mark.parametrize("event", [(2,), (1, 4, 4)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_shapes_dtypes_and_seeds(rule: str, dtype: torch.dtype, event: tuple[int, ...]) -> None:
    target = Target(lambda x: -x, lambda x: -x.flatten(1).square().sum(1) / 2)
    kernel, x = hamiltonian(target, 0.2, 3, RULES[rule], random_length=True), torch.zeros(5, *event, dtype=dtype)
    before = torch.random.get_rng_state()
    first, again = (sample(kernel, x, draws=4, generator=seeded()).draws for _ in range(2))
    assert first.dtype == dtype
    assert first.shape == (5, 4, *event)
    assert torch.equal(first, again)
    assert torch.equal(before, torch.random.get_rng_state())


NORMAL = Target(lambda x: -x, lambda x: -x.square().sum(1) / 2)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((NORMAL, 0.1, 5, LineIntegral("trapezoid")), "nothing of the density is left"),
        ((NORMAL, 0.1, 5, LineIntegral("adaptive")), "one straight line"),
        ((NORMAL, 0.1, 5, LineIntegral(coordinates=(0.0, 1.0))), "one straight line"),
        ((NORMAL, 0.1, 5, Taylor(1)), "judge a whole trajectory"),
        ((NORMAL, 0.1, 5, LEARNED["learned-free"]), "judge a whole trajectory"),
        ((NORMAL, -0.1, 5, Exact()), "step_size"),
        ((NORMAL, 0.1, 0, Exact()), "steps"),
        ((NORMAL, 0.1, 2.5, Exact()), "steps"),
        ((Target(log_density=NORMAL.log_density), 0.1, 5, Exact()), "a score, which Hamiltonian moves need"),
        ((Target(NORMAL.score), 0.1, 5, Exact()), "a log_density"),
    ],
)
def test_what_cannot_be_right_is_refused(arguments: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        hamiltonian(*arguments)
