"""Errors a user meets: what was expected, what came, what to do. One test each."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch

from scoremh import (
    MALA,
    PCN,
    Always,
    DegenerateRuleWarning,
    Exact,
    LineIntegral,
    RandomWalk,
    StudentWalk,
    Target,
    Taylor,
    diagnostics,
    metropolis_hastings,
    sample,
    targets,
)
from scoremh._shared import checks

NORMAL = Target(score=lambda x: -x, log_density=lambda x: -x.square().sum(1) / 2)
WALK = metropolis_hastings(NORMAL, RandomWalk(1.0), Exact())


def start(score: Callable[..., Any], **options: Any) -> None:
    metropolis_hastings(Target(score=score, **options), MALA(0.1), LineIntegral()).init(torch.zeros(3, 2))


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "one chain without its axis": (
        lambda: sample(WALK, torch.zeros(2), draws=1),
        ValueError,
        r"expected initial of shape \(n, \*event\).*got a float32 tensor of shape \(2,\).*initial\[None\] if this",
    ),
    "no chain": (lambda: sample(WALK, torch.zeros(0, 2), draws=1), ValueError, r"n of at least 1, got .*\(0, 2\)"),
    "integers": (
        lambda: sample(WALK, torch.zeros(3, 2, dtype=torch.int64), draws=1),
        TypeError,
        r"expected initial to be a floating tensor, got a int64 tensor of shape \(3, 2\).*initial.float\(\)",
    ),
    "NaN in the initial points": (
        lambda: sample(WALK, torch.tensor([[0.0, 0.0], [0.0, torch.nan]]), draws=1),
        ValueError,
        r"expected initial to be finite, got NaN or inf in 1 of 2 rows.*initial\[1\]",
    ),
    "no draws": (lambda: sample(WALK, torch.zeros(3, 2), draws=0), ValueError, "expected draws of at least 1, got 0"),
    "negative burn_in": (
        lambda: sample(WALK, torch.zeros(3, 2), draws=1, burn_in=-1),
        ValueError,
        "expected burn_in of at least 0, got -1",
    ),
    "thin of 0": (lambda: sample(WALK, torch.zeros(3, 2), draws=1, thin=0), ValueError, "expected thin of at least 1"),
    "a sum of targets": (lambda: Target() + Target(), TypeError, r"a Target \+ Target\. Use targets\.product"),
    "targets in sum": (lambda: sum([Target(), Target()]), TypeError, r"int \+ a Target\. Use targets\.product"),
    "a multiple of a target": (lambda: 2 * Target(), TypeError, r"int \* a Target\. Use targets\.product"),
    "no processes": (lambda: sample(WALK, torch.zeros(3, 2), draws=1, pool=0), ValueError, "pool of at least 1"),
    "negative std": (lambda: RandomWalk(-1.0), ValueError, "expected std to be finite and above 0, got -1.0.*positive"),
    "zero step": (lambda: MALA(0.0), ValueError, "expected step_size to be finite and above 0, got 0.0"),
    "infinite step": (lambda: MALA(float("inf")), ValueError, "expected step_size to be finite and above 0, got inf"),
    "beta of 0": (lambda: PCN(0.0), ValueError, "expected beta to be finite and above 0, got 0.0"),
    "beta above 1": (lambda: PCN(1.5), ValueError, r"expected beta in \(0, 1\], got 1.5"),
    "two references": (
        lambda: PCN(0.5, scale=2.0, covariance=torch.ones(2)),
        ValueError,
        "expected scale or covariance, got scale=2.0 and a covariance",
    ),
    "covariance of three axes": (
        lambda: MALA(0.1, covariance=torch.ones(2, 2, 2)),
        ValueError,
        r"covariance to be a floating tensor of shape \(d,\) or \(d, d\), got .*\(2, 2, 2\)",
    ),
    "negative variance": (
        lambda: RandomWalk(0.1, covariance=torch.tensor([1.0, -1.0])),
        ValueError,
        "expected variances that are finite and above 0, got one of -1",
    ),
    "indefinite covariance": (
        lambda: MALA(0.1, covariance=torch.tensor([[1.0, 2.0], [2.0, 1.0]])),
        ValueError,
        "expected covariance to be symmetric and positive definite, got .* least eigenvalue -1",
    ),
    "covariance of another size": (
        lambda: sample(metropolis_hastings(NORMAL, MALA(0.1, torch.ones(3)), Exact()), torch.zeros(3, 2), draws=1),
        ValueError,
        r"covariance and event of one size, got covariance over 3 and events of shape \(2,\)",
    ),
    "Exact without a density": (
        lambda: metropolis_hastings(Target(score=lambda x: -x), MALA(0.1), Exact()),
        ValueError,
        r"a target with a log_density, which Exact\(\) needs, got a score only. Use LineIntegral\(\)",
    ),
    "MALA without a score": (
        lambda: metropolis_hastings(Target(log_density=lambda x: -x.square().sum(1)), MALA(0.1), Exact()),
        ValueError,
        r"a target with a score, which MALA\(step_size=0.1\) needs, got a log density only.*from_log_density",
    ),
    "gauss without a score": (
        lambda: metropolis_hastings(Target(log_density=lambda x: -x), RandomWalk(0.1), LineIntegral("gauss")),
        ValueError,
        r"a target with a score, which LineIntegral\(rule='gauss'\) needs",
    ),
    "a target that provides nothing": (
        lambda: metropolis_hastings(Target(), RandomWalk(0.1), Always()),
        ValueError,
        "a target with a score or a log density, got a target with neither",
    ),
    "a score of another shape": (
        lambda: start(lambda x: -x.sum(1)),
        ValueError,
        r"score\(x\) to be a float32 tensor of shape \(3, 2\).*got a float32 tensor of shape \(3,\)",
    ),
    "a score of another dtype": (
        lambda: start(lambda x: -x.double()),
        TypeError,
        r"score\(x\) to be a float32 tensor.*got a float64 tensor.*net.to\(x.dtype\)",
    ),
    "a score that is no tensor": (lambda: start(lambda x: x.tolist()), TypeError, "Return a torch.Tensor"),
    "a log density of another shape": (
        lambda: metropolis_hastings(Target(log_density=lambda x: -x), RandomWalk(0.1), Exact()).init(torch.zeros(3, 2)),
        ValueError,
        r"log_density\(x\) to be a float32 tensor of shape \(3,\).*got a float32 tensor of shape \(3, 2\)",
    ),
    "a start of zero density": (
        lambda: metropolis_hastings(
            Target(log_density=lambda x: torch.where(x[:, 0] > 0, 0.0, -torch.inf)), RandomWalk(0.1), Exact()
        ).init(torch.tensor([[1.0], [-1.0]])),
        ValueError,
        r"initial points of positive density, got 1 of 2.*initial\[1\]",
    ),
    "a start whose score is not finite": (
        lambda: metropolis_hastings(Target(lambda x: 1 / x), MALA(0.1), LineIntegral()).init(torch.eye(2)),
        ValueError,
        r"points from which chains can move, got 2 of 2 with a score that is NaN or infinite.*initial\[0\]",
    ),
    "a score that changes its argument": (
        lambda: metropolis_hastings(Target(lambda x: x.mul_(-1)), MALA(0.1), LineIntegral()).init(torch.ones(2, 2)),
        ValueError,
        "a target that leaves x as it is, got one that changes x in place.*x - m in place of x -= m",
    ),
    "a start outside the support": (
        lambda: start(lambda x: -x, support=targets.box(1.0, 2.0)),
        ValueError,
        r"initial points inside the target's support, got 3 of 3 outside.*initial\[0\]",
    ),
    "a support of another shape": (
        lambda: start(lambda x: -x, support=lambda x: x > -1),
        ValueError,
        r"support\(x\) to be a bool tensor of shape \(3,\), got a bool tensor of shape \(3, 2\)",
    ),
    "autograd inside the score": (
        lambda: start(lambda x: torch.autograd.grad(-x.requires_grad_().square().sum() / 2, x)[0]),
        RuntimeError,
        r"a score that needs no autograd graph, got RuntimeError.*targets.from_log_density",
    ),
    "an even number of Simpson nodes": (
        lambda: LineIntegral("simpson", nodes=2),
        ValueError,
        "odd number of nodes for simpson, got 2",
    ),
    "coordinates without width": (
        lambda: LineIntegral(coordinates=(0.0, 0.0)),
        ValueError,
        "w of coordinates to be finite and above 0",
    ),
    "coordinates for other events": (
        lambda: sample(
            metropolis_hastings(NORMAL, RandomWalk(1.0), LineIntegral(coordinates=((0.0,), (1.0,)))),
            torch.zeros(3, 2),
            draws=1,
        ),
        ValueError,
        r"2 numbers in m and in w of coordinates, got 1 for events of shape \(2,\)\. Pass two numbers, or two tuples",
    ),
    "gauss without nodes": (lambda: LineIntegral("gauss", nodes=0), ValueError, "nodes of at least 1, got 0"),
    "too few chains to test": (
        lambda: diagnostics.stationarity(WALK, targets.Gaussian([0.0, 0.0]), chains=5),
        ValueError,
        "chains of at least 100, got 5",
    ),
    "one point for conservativity": (
        lambda: diagnostics.conservativity(lambda x: -x, torch.zeros(1, 2)),
        ValueError,
        "number of points of at least 2, got 1",
    ),
    "two rules of which one needs a density": (
        lambda: diagnostics.disagreement(
            Exact(), LineIntegral(), target=Target(score=lambda x: -x), proposal=MALA(0.1), x=torch.zeros(3, 2)
        ),
        ValueError,
        "a target with a log_density, which Exact",
    ),
    "a score of another shape between two points": (
        lambda: sample(
            metropolis_hastings(Target(score=lambda x: -x[:, :1]), RandomWalk(1.0), LineIntegral("gauss")),
            torch.zeros(3, 2),
            draws=1,
        ),
        ValueError,
        r"score\(x\) to be a float32 tensor of shape",
    ),
    "a score of another dtype between two points": (
        lambda: sample(
            metropolis_hastings(Target(score=lambda x: -x.double()), RandomWalk(1.0), LineIntegral("gauss")),
            torch.zeros(3, 2),
            draws=1,
        ),
        TypeError,
        r"score\(x\) to be a float32 tensor",
    ),
    "a negative bandwidth": (
        lambda: diagnostics.kernel_stein_discrepancy(torch.zeros(3, 2), lambda x: -x, bandwidth=-1.0),
        ValueError,
        "bandwidth to be finite and above 0, got -1.0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rejected(case: str) -> None:
    attempt, kind, text = REFUSED[case]
    with pytest.raises(kind, match=text):
        attempt()


UNCHECKED = {  # run without the shape checks of the tests, which would be faster than ours
    "another kind of frame": (
        "ScoreMH().set_output(transform='polars')",
        "transform to be one of 'default', 'pandas', got 'polars'",
    ),
    "a sampler of a target": ("Sampler(Target(score=lambda x: -x))", "a score at all noise levels, got Target"),
    "a rule by name": ("Sampler(fit, acceptance='simpson')", "expected an acceptance rule, got str 'simpson'"),
    "a sampler's proposal": ("Sampler(fit, proposal=MALA(0.1))", "proposal to be one of 'mala', 'rw', 'pcn'"),
    "a level as text": ("Sampler(fit, noise_level='0.3')", "noise_level to be a number, got str '0.3'"),
    "a kernel to tune": ("tune(kernel, torch.zeros(3, 2))", "expected a function from a step size to a kernel"),
    "a kernel for all levels": (
        "replica_exchange(kernel, [2.0, 1.0], torch.zeros(3, 2), model=fit, draws=2)",
        "expected a function from a noise level to a kernel, got Kernel",
    ),
    "a model of one level": (
        "replica_exchange(lambda h: kernel, [2.0, 1.0], torch.zeros(3, 2), model=Target(lambda x: -x), draws=2)",
        "expected model to have scores at all noise levels, got Target",
    ),
    "a target to sample": ("sample(Target(score=lambda x: -x), torch.zeros(3, 2), draws=1)", "expected a Kernel"),
    "a target without draws": (
        "diagnostics.stationarity(kernel, Target(score=lambda x: -x))",
        "expected a target with exact draws, got Target",
    ),
    "an array as mean": ("PCN(0.1, mean=[0.0, 0.0])", "expected mean to be a number or a tensor, got list"),
    "a number as noise levels": (
        "smc(targets.posterior(fit, lambda x: -x.square().sum(1)), levels=3.0)",
        "levels to be a list of numbers, got float 3.0",
    ),
    "a log density of wider events": (
        "fit.log_density(torch.zeros(3, 3))",
        "expected x of shape (chain, 2), got a float32",
    ),
    "a log density in another dtype": (
        "fit.log_density(torch.zeros(3, 2, dtype=torch.float64))",
        "expected points of the dtype of the network",
    ),
    "a log density of a list": ("fit.log_density([[0.0, 0.0]])", "expected x to be a torch.Tensor, got list"),
    "a list of points": ("sample(kernel, [[0.0, 0.0]], draws=1)", "initial to be a torch.Tensor, got list"),
    "a step as text": ("MALA('0.1')", "step_size to be a number, got str '0.1'"),
    "a tensor as step": ("MALA(torch.tensor(0.1))", "step_size to be a number, got a float32 tensor of shape ()"),
    "an unknown rule": (
        "LineIntegral('boole')",
        "rule to be one of 'lobatto', 'trapezoid', 'simpson', 'gauss', 'exact', got 'boole'",
    ),
    "coordinates of one number": ("LineIntegral(coordinates=1.0)", "coordinates to be a pair (m, w), got 1.0"),
    "an unknown balance": (
        "Exact(balance='heat-bath')",
        "balance to be one of 'metropolis', 'barker', got 'heat-bath'",
    ),
    "third order": ("Taylor(3)", "order to be one of 1, 2, got 3"),
    "half a draw": ("sample(kernel, torch.zeros(3, 2), draws=1.5)", "draws to be an int, got float 1.5"),
    "a function as target": ("metropolis_hastings(lambda x: -x, MALA(0.1), Always())", "a Target, got function"),
    "a class as proposal": (
        "metropolis_hastings(Target(lambda x: -x), MALA, Always())",
        "a Proposal, got the class MALA",
    ),
    "a proposal that is not whole": (
        "metropolis_hastings(Target(lambda x: -x), type('Half', (), {'needs': frozenset(), 'sample': 0})(), Always())",
        ". Pass MALA(0.1), for example; your own derive from Proposal",
    ),
    "arguments in another order": (
        "fit_acceptance(Target(lambda x: -x), torch.zeros(9, 2), MALA(0.1))",
        "a Proposal, got a float32 tensor of shape (9, 2)",
    ),
    "a need that nobody has": (
        "metropolis_hastings(Target(lambda x: -x), type('Own', (MALA,), {'needs': {'gradient'}})(0.1), Always())",
        "needs to be among 'score', 'inner_score', 'log_density', 'rest_score', got {'gradient'} of Own",
    ),
    "a word as rule": (
        "metropolis_hastings(Target(lambda x: -x), MALA(0.1), 'simpson')",
        "an acceptance rule, got str",
    ),
    "a seed as generator": (
        "sample(kernel, torch.zeros(3, 2), draws=1, generator=0)",
        "a torch.Generator, got int 0. Use torch.Generator().manual_seed(0)",
    ),
    "a function as net": ("fit_score(torch.randn(50, 2), net=lambda x: x)", "net to be a Module, got function"),
    "a class as loss": (
        "fit_score(torch.randn(50, 2), SlicedScoreMatching)",
        "loss to be a Loss, got the class Sliced",
    ),
    "a dict as recipe": ("fit_score(torch.randn(50, 2), recipe={'steps': 3})", "recipe to be a Recipe, got dict"),
    "an array as samples": ("fit_score(torch.randn(50, 2).numpy())", "torch.Tensor, got ndarray of shape (50, 2)"),
    "a network that answers for coordinates": (
        "fit_acceptance(Target(lambda x: -x), MALA(0.1), torch.randn(50, 2), net=networks.ScoreMLP(2))",
        "net(x) to be a float32 tensor of shape (50,)",
    ),
    "an unknown form": (
        "fit_acceptance(Target(lambda x: -x), MALA(0.1), torch.randn(50, 2), form='symmetric')",
        "form to be one of 'free', 'antisymmetric', 'potential', got 'symmetric'",
    ),
    "unknown pairs": (
        "BalanceMatching(pairs='all')",
        "pairs to be one of 'independent', 'proposed', 'mixed', got 'all'",
    ),
    "a word as matching": (
        "fit_acceptance(Target(lambda x: -x), MALA(0.1), torch.randn(50, 2), matching='proposed')",
        "matching to be a BalanceMatching, got str",
    ),
    "a function as acceptance": ("Learned(lambda x, y: 0)", "an acceptance network, got function"),
    "an unknown learned balance": (
        "Learned(networks.AcceptanceMLP(2), 'exact')",
        "balance to be one of 'direct', 'metropolis', 'barker', got 'exact'",
    ),
    "a word for a residual": (
        "diagnostics.balance_residual('net', Target(lambda x: -x), MALA(0.1), torch.randn(50, 2))",
        "a network for an acceptance, got",
    ),
    "anchors that are no function": (
        "fit_acceptance(fit, MALA(0.1), datasets.moons(100), anchors=torch.zeros(3))",
        "anchors to be a function of x, got a float32 tensor of shape (3,). Pass fit.log_density, or",
    ),
    "a list as covariance": ("MALA(0.1, covariance=[1.0, 2.0])", "got list [1.0, 2.0]. Pass variances of shape (d,)"),
}


@pytest.fixture(scope="module")
def refusals() -> dict[str, str]:
    """Return what every call says, all of one process: starting one takes longer than all of them."""
    script = f"""
        import json
        import torch
        from scoremh import *
        kernel = metropolis_hastings(Target(score=lambda x: -x), MALA(0.1), LineIntegral())
        fit = fit_score(datasets.moons(100), recipe=Recipe(steps=1, check_every=1))
        said = {{}}
        for case, call in { ({case: call for case, (call, _) in UNCHECKED.items()})!r}.items():
            try:
                exec(call)
            except (TypeError, ValueError) as error:
                said[case] = str(error)
        print(json.dumps(said))
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    said: dict[str, str] = json.loads(ran.stdout)
    return said


@pytest.mark.parametrize("case", UNCHECKED)
def test_rejected_without_run_time_checks(case: str, refusals: dict[str, str]) -> None:
    assert UNCHECKED[case][1] in refusals[case]


def test_a_name_is_the_same_in_the_next_process() -> None:
    part = Target(lambda x: -x)
    assert " at 0x" in repr(part)
    assert checks.steady(part).endswith(
        "<locals>.<lambda>>, log_density=None, support=None, known_score=None, levels=None, blurred=None)"
    )


@pytest.mark.parametrize("rule", [LineIntegral("trapezoid"), Taylor(1, average=True)], ids=repr)
def test_the_degenerate_pair_warns_and_names_simpson(rule: Any) -> None:
    with pytest.warns(DegenerateRuleWarning, match=r'density cancels.*Use LineIntegral\("simpson"\)'):
        kernel = metropolis_hastings(NORMAL, MALA(0.1), rule)
    sample(kernel, torch.zeros(3, 2), draws=10)  # not again: warnings are errors here


@pytest.mark.parametrize("rule", [LineIntegral(), LineIntegral("exact"), Taylor(2)], ids=repr)
def test_long_steps_along_a_straight_line_warn(rule: Any) -> None:
    with pytest.warns(DegenerateRuleWarning, match=r"wrong for heavy tails.*coordinates=fit\.middle"):
        metropolis_hastings(NORMAL, StudentWalk(1.0), rule)
    metropolis_hastings(
        NORMAL, StudentWalk(1.0), LineIntegral("exact", coordinates=(0.0, 1.0))
    )  # warnings are errors here
    metropolis_hastings(NORMAL, StudentWalk(1.0), Exact())
    metropolis_hastings(NORMAL, StudentWalk(1.0, 100), rule)


@pytest.mark.slow
def test_the_warning_comes_once_and_points_to_the_users_line() -> None:
    script = """
        import torch
        from scoremh import *
        target, x = Target(score=lambda x: -x), torch.zeros(100, 2)
        step = tune(lambda h: metropolis_hastings(target, MALA(h), LineIntegral("trapezoid")), x)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stderr.count("DegenerateRuleWarning") == 1
    assert ran.stderr.startswith("<string>:5: DegenerateRuleWarning")


@pytest.mark.parametrize(
    ("proposal", "rule"),
    [
        (RandomWalk(0.1), LineIntegral("trapezoid")),
        (MALA(0.1), LineIntegral("trapezoid", nodes=1)),
        (MALA(0.1), Taylor(2, average=True)),
        (MALA(0.1), LineIntegral()),
    ],
    ids=repr,
)
def test_the_pairs_beside_it_do_not_warn(proposal: Any, rule: Any) -> None:
    metropolis_hastings(NORMAL, proposal, rule)
