"""Products of parts: the known ones are differenced exactly, the others integrated."""

import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from scoremh import (
    MALA,
    PCN,
    Always,
    Exact,
    LineIntegral,
    RandomWalk,
    Target,
    Taylor,
    diagnostics,
    hamiltonian,
    metropolis_hastings,
    sample,
    targets,
    tune,
)
from scoremh.acceptance import Rule
from scoremh.kernel import ImproperTargetWarning
from scoremh.types import Kernel, Proposal
from tests.cases import COVARIANCE, EXACT_ON_GAUSSIAN, GAUSSIAN, ONE_SIDED, SYMMETRIC, TARGETS, f64

MIXTURE, BANANA = TARGETS["mixture"], TARGETS["banana"]
SHORT: dict[str, Proposal] = {"rw": RandomWalk(0.9), "mala": MALA(0.2, covariance=COVARIANCE), "pcn": PCN(0.5)}
INTEGRATING = {name: rule for name, rule in (EXACT_ON_GAUSSIAN | ONE_SIDED).items() if not isinstance(rule, Exact)}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def score_only(target: Any) -> Target:
    return Target(target.score, support=target.support)


def made(kernel: Kernel, x: Tensor, *, by_run: bool) -> tuple[Tensor, Tensor, int]:
    """Return positions, log a and score calls of a few steps."""
    point, generator = kernel.init(x), seeded(3)
    if by_run:
        assert kernel.run is not None
        _, trace = kernel.run(point, 5, generator=generator)
        return trace.x, trace.log_accept, trace.score_calls
    xs, log_accepts, calls = [], [], 0
    for _ in range(5):
        point, move = kernel.step(point, generator=generator)
        xs.append(point.x)
        log_accepts.append(move.log_accept)
        calls += move.score_calls
    return torch.stack(xs), torch.stack(log_accepts), calls


@pytest.mark.parametrize("by_run", [False, True], ids=["step", "run"])
@pytest.mark.parametrize("proposal", SHORT)
@pytest.mark.parametrize("rule", INTEGRATING)
@pytest.mark.filterwarnings("ignore::scoremh.kernel.DegenerateRuleWarning")
def test_with_every_part_known_decisions_are_those_of_exact(rule: str, proposal: str, by_run: bool) -> None:
    target = targets.product(MIXTURE, BANANA, GAUSSIAN, weights=[1.0, 0.5, -0.25])
    x = MIXTURE.sample(50, generator=seeded())
    acceptance = INTEGRATING[rule]
    exact = Exact(balance=acceptance.balance)  # type: ignore[arg-type]
    ours, theirs = (
        made(metropolis_hastings(target, SHORT[proposal], by), x, by_run=by_run) for by in (acceptance, exact)
    )
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
    assert ours[2] == theirs[2]


@pytest.mark.parametrize("by_run", [False, True], ids=["step", "run"])
@pytest.mark.parametrize("proposal", SHORT)
@pytest.mark.parametrize("rule", SYMMETRIC)
@pytest.mark.filterwarnings("ignore::scoremh.kernel.DegenerateRuleWarning")
def test_a_gaussian_prior_by_its_score_leaves_no_error(rule: str, proposal: str, by_run: bool) -> None:
    """The integral is exact on the Gaussian, and the mixture is never integrated: log a is that of `Exact`."""
    whole, half = (targets.product(MIXTURE, prior, weights=[1.0, 0.7]) for prior in (GAUSSIAN, score_only(GAUSSIAN)))
    assert half.log_density is None
    acceptance: Any = EXACT_ON_GAUSSIAN[rule]
    if isinstance(acceptance, Exact):
        return
    x = MIXTURE.sample(50, generator=seeded())
    # one step: from the same points, whatever is decided
    first = [
        made(metropolis_hastings(target, SHORT[proposal], by), x, by_run=by_run)[1][0]
        for target, by in ((half, acceptance), (whole, Exact(balance=acceptance.balance)))
    ]
    torch.testing.assert_close(first[0], first[1], rtol=0, atol=1e-10)


class Asked:
    """A function that keeps where it was asked."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function
        self.places: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.places.append(x.clone())
        return self.function(x)

    @property
    def calls(self) -> int:
        return sum(map(len, self.places))


@pytest.mark.parametrize("by_run", [False, True], ids=["step", "run"])
@pytest.mark.parametrize(
    ("rule", "between"), [(LineIntegral(), 1), (LineIntegral("gauss", nodes=3), 3)], ids=["simpson", "gauss"]
)
@pytest.mark.parametrize("proposal", [RandomWalk(0.9), MALA(0.2)], ids=["rw", "mala"])
def test_known_parts_are_asked_at_the_candidates_only(
    proposal: Proposal, rule: LineIntegral, between: int, by_run: bool
) -> None:
    chains = 7
    score, log_density, rest = Asked(GAUSSIAN.score), Asked(GAUSSIAN.log_density), Asked(MIXTURE.score)
    target = targets.product(Target(rest), Target(score, log_density))
    kernel = metropolis_hastings(target, proposal, rule)
    x = MIXTURE.sample(chains, generator=seeded())
    _, _, calls = made(kernel, x, by_run=by_run)
    points = 5 + 1  # candidates, and the start
    at_ends = rule.rule == "simpson" or isinstance(proposal, MALA)
    assert log_density.calls == points * chains
    assert score.calls == (points * chains if isinstance(proposal, MALA) else 0)
    assert rest.calls == (points if at_ends else 0) * chains + 5 * between * chains
    assert calls == rest.calls - (chains if at_ends else 0)  # those of the start are not a move's


@pytest.mark.parametrize("proposal", [RandomWalk(0.9), MALA(0.2)], ids=["rw", "mala"])
@pytest.mark.parametrize("rule", [LineIntegral(), LineIntegral("adaptive"), Taylor(2, average=True)], ids=repr)
def test_a_product_leaves_its_target_invariant(proposal: Proposal, rule: Rule) -> None:
    """False alarm: 1e-4 for each of six; the product of p with N / N, the latter Gaussian by its score alone."""
    target = targets.product(MIXTURE, GAUSSIAN, score_only(GAUSSIAN), weights=[1.0, -1.0, 1.0])
    kernel = metropolis_hastings(target, proposal, rule)
    verdict = diagnostics.stationarity(kernel, MIXTURE, chains=20_000, steps=10, generator=seeded(1))
    assert verdict.p_value > 1e-4, verdict
    if isinstance(proposal, MALA):
        wrong = metropolis_hastings(target, MALA(0.5), Always())
        assert diagnostics.stationarity(wrong, MIXTURE, generator=seeded(1)).p_value < 1e-6


def test_supports_are_intersected_and_counted() -> None:
    box = targets.box(-1.0, 1.0)
    half = targets.product(
        Target(GAUSSIAN.score, support=targets.box([-9.0, -9.0], [0.5, 9.0])), targets.truncate(MIXTURE, box)
    )
    target = targets.truncate(half, targets.box(-0.9, 9.0))
    assert isinstance(target, targets.Product)
    x = f64([0.0, 0.0], [0.7, 0.0], [-0.95, 0.0], [0.0, 2.0])
    assert target.support is not None
    assert target.support(x).tolist() == [True, False, False, False]
    for proposal in (RandomWalk(1.0), MALA(0.5)):
        kernel = metropolis_hastings(target, proposal, LineIntegral())
        chains = sample(kernel, x[:1].expand(20, 2).clone(), draws=50, generator=seeded())
        assert target.support(chains.draws.flatten(0, 1)).all()
        assert int(chains.outside.sum()) > 0
        assert int(chains.nonfinite.sum()) == 0


def test_tune_and_stores_know_products(tmp_path: Any) -> None:
    target = targets.posterior(score_only(GAUSSIAN), MIXTURE.log_density)
    x = MIXTURE.sample(16, generator=seeded())
    step_size = tune(lambda h: metropolis_hastings(target, MALA(h), LineIntegral()), x, generator=seeded())
    kernel = metropolis_hastings(target, MALA(step_size), LineIntegral())
    assert kernel.target_rate == pytest.approx(0.574)
    kept = sample(kernel, x, draws=20, generator=seeded(), store=tmp_path / "run")
    again = sample(kernel, x, draws=20, generator=seeded(), store=tmp_path / "run")
    assert torch.equal(kept.draws, again.draws)
    assert "LineIntegral" in kernel.description
    same = diagnostics.disagreement(
        LineIntegral(), LineIntegral("gauss"), target=target, proposal=MALA(0.2), x=x, generator=seeded()
    )
    assert same.rate == 0  # both integrate the Gaussian only, and without error


def test_parts_are_nested_and_tempered() -> None:
    inner = targets.product(score_only(GAUSSIAN), MIXTURE, weights=[2.0, 3.0])
    outer = targets.temper(targets.product(inner, BANANA, weights=[-1.0, 1.0]), 0.5)
    x = MIXTURE.sample(5, generator=seeded())
    assert isinstance(outer, targets.Product)
    assert outer.rest_score is not None
    assert outer.known.log_density is not None
    torch.testing.assert_close(outer.rest_score(x), -GAUSSIAN.score(x))
    known = 0.5 * (BANANA.log_density(x) - 3 * MIXTURE.log_density(x))
    torch.testing.assert_close(outer.known.log_density(x), known)
    total = 0.5 * (BANANA.score(x) - 3 * MIXTURE.score(x) - 2 * GAUSSIAN.score(x))
    torch.testing.assert_close(outer.score(x), total)
    density_only = targets.product(Target(log_density=MIXTURE.log_density), score_only(GAUSSIAN))
    assert density_only.score is not None
    torch.testing.assert_close(density_only.score(x), MIXTURE.score(x) + GAUSSIAN.score(x))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (lambda: targets.product(), ValueError, "expected at least one part, got none"),
        (
            lambda: targets.product(GAUSSIAN, weights=[1.0, 2.0]),
            ValueError,
            "expected 1 weights for as many parts, got 2",
        ),
        (lambda: targets.product(GAUSSIAN, weights=[]), ValueError, "expected 1 weights"),
        (lambda: targets.product(GAUSSIAN, weights=[math.nan]), ValueError, "weights that are finite and not 0"),
        (lambda: targets.product(GAUSSIAN, weights=[math.inf]), ValueError, "weights that are finite and not 0"),
        (lambda: targets.product(GAUSSIAN, weights=[0.0]), ValueError, "Leave out a part"),
        (lambda: targets.product(Target()), ValueError, "a part with neither"),
        (lambda: targets.temper(GAUSSIAN, 0.0), ValueError, "beta to be finite and above 0"),
        (lambda: targets.temper(GAUSSIAN, math.inf), ValueError, "beta to be finite"),
    ],
)
def test_bad_products_are_refused(arguments: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        arguments()


def test_parts_that_are_none_are_refused() -> None:
    """In a process of its own: here the types of arguments are checked before."""
    script = """
from scoremh import targets
for call in (lambda: targets.product(abs), lambda: targets.posterior(targets.Gaussian([0.0]), 3.0)):
    try:
        call()
    except TypeError as error:
        print(error)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = ran.stdout.splitlines()
    assert lines[0].startswith("expected a Target for every part, got ")
    assert lines[1].startswith("expected a log likelihood to call, got float 3.0")


@pytest.mark.parametrize(
    ("part", "error", "text"),
    [
        (Target(lambda x: -x.double()), TypeError, r"parts\[1\].score\(x\) to be a float32 tensor"),
        (Target(lambda x: -x[:, :1]), ValueError, r"parts\[1\].score\(x\) to be a float32 tensor of shape \(4, 2\)"),
        (Target(lambda x: -x, lambda x: x), ValueError, r"parts\[1\].log_density\(x\) .* of shape \(4,\)"),
        (Target(lambda x: -x, lambda x: x.sum(1).double()), TypeError, r"parts\[1\].log_density\(x\)"),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_parts_that_disagree_are_refused_at_the_start(
    part: Target, error: type[Exception], text: str, known: bool
) -> None:
    first = targets.Gaussian([0.0, 0.0])
    target = targets.product(first if known else score_only(first), part)
    kernel = metropolis_hastings(target, MALA(0.1), LineIntegral())
    with pytest.raises(error, match=text):
        kernel.init(torch.zeros(4, 2))


def test_distributions_of_other_events_are_refused() -> None:
    plane, space = targets.Gaussian([0.0, 0.0]), targets.Gaussian([0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match=r"events of one shape, got \(2,\) of parts\[0\], \(3,\) of parts\[2\]"):
        targets.product(plane, Target(lambda x: -x), space)
    kernel = metropolis_hastings(targets.product(score_only(plane), space), MALA(0.1), LineIntegral())
    with pytest.raises(ValueError, match="x of shape"):
        kernel.init(torch.zeros(4, 2))


WIDE, NARROW = targets.Gaussian(f64(0.0, 0.0), f64([4.0, 0.0], [0.0, 1.0])), targets.Gaussian(f64(1.0, 0.0))


@pytest.mark.parametrize(("weights", "proper"), [((1.0, -3.9), False), ((2.0, -1.0), True), ((1.0, -1.0), False)])
def test_normal_parts_that_cannot_be_normalised_are_refused(weights: tuple[float, float], proper: bool) -> None:
    """N(m, I) over diag(4, 1): precision w_1 I + w_2 diag(1/4, 1)."""
    if proper:
        targets.product(NARROW, WIDE, weights=weights)
        return
    with pytest.raises(ValueError, match=r"a product that can be normalised, got weights .* an eigenvalue of"):
        targets.product(NARROW, WIDE, weights=weights)


def student(freedom: float) -> targets.StudentT:
    return targets.StudentT(freedom, f64(0.0, 0.0))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("parts", "proper"),
    [
        ((NARROW, score_only(WIDE)), False),  # as above, but not seen when it is built
        ((score_only(WIDE), MIXTURE), False),
        ((student(10.0), student(5.0)), True),  # r^-(12 - 7 + 2), which has an integral in the plane
        ((student(6.0), student(5.0)), False),  # r^-1, which falls and has none
    ],
    ids=["normal", "mixture", "heavy", "too heavy"],
)
def test_a_product_that_grows_far_out_warns(parts: tuple[Any, Any], proper: bool, known: bool) -> None:
    whole = targets.product(*(parts if known else map(score_only, parts)), weights=(1.0, -1.0))
    kernels = (
        metropolis_hastings(whole, MALA(0.1), LineIntegral()),
        hamiltonian(whole, 0.1, 2, LineIntegral()),
    )
    for kernel in kernels:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kernel.init(torch.randn(10, 2, generator=seeded(), dtype=torch.float64))
        assert [one.category for one in caught] == ([] if proper else [ImproperTargetWarning])
    bounded = metropolis_hastings(targets.truncate(whole, targets.box(-9.0, 9.0)), MALA(0.1), LineIntegral())
    bounded.init(torch.zeros(10, 2, dtype=torch.float64))  # a warning is an error here


def test_what_needs_the_whole_density_is_refused() -> None:
    target = targets.product(GAUSSIAN, score_only(MIXTURE))
    with pytest.raises(ValueError, match="a target with a log_density"):
        metropolis_hastings(target, MALA(0.1), Exact())

    class Greedy(RandomWalk):
        needs = frozenset({"log_density"})

    with pytest.raises(ValueError, match="parts that have a score only"):
        metropolis_hastings(target, Greedy(0.1), LineIntegral())


def test_numbers_that_are_not_finite_are_counted() -> None:
    nowhere = Target(lambda x: -x, lambda x: torch.where(x[:, 0] > 0, -math.inf, 0.0).to(x))
    target = targets.product(nowhere, score_only(GAUSSIAN))
    kernel = metropolis_hastings(target, RandomWalk(1.0), LineIntegral())
    chains = sample(kernel, -torch.ones(20, 2).double(), draws=20, generator=seeded())
    assert (chains.draws[..., 0] <= 0).all()
    assert int(chains.outside.sum()) > 0
    broken = Target(lambda x: torch.where(x > 0, math.nan, -x))
    kernel = metropolis_hastings(targets.product(GAUSSIAN, broken), RandomWalk(1.0), LineIntegral())
    chains = sample(kernel, -torch.ones(20, 2).double(), draws=20, generator=seeded())
    assert (chains.draws <= 0).all()
    assert int(chains.nonfinite.sum()) > 0
