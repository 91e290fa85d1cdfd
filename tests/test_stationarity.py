"""Stationarity of every proposal, rule and target from exact draws; the power of that test, and its calibration.

A transition has three parts, and a fault is in one of them or between two. So not every triple is tried: every proposal
with the exact ratio and with a converged integral, every rule with a walk, a drift and a contraction, every target with
two kernels.

A kernel that has a `run` is judged twice: by the loop that `sample` runs, and by its steps. The false-alarm rate of the
whole module is declared: under right kernels, all verdicts together fail with probability at most FALSE_ALARM, because
each p-value is compared with FALSE_ALARM / number of tests. Seeds come from the test's own name.
"""

import math
import sys
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from scoremh import (
    MALA,
    Always,
    DegenerateRuleWarning,
    Exact,
    Learned,
    LineIntegral,
    RandomWalk,
    Target,
    Taylor,
    metropolis_hastings,
    networks,
    targets,
)
from scoremh.acceptance import Rule
from scoremh.diagnostics import stationarity
from scoremh.types import Kernel, Move, Point, Proposal, Run, Step, Trace
from tests.cases import COVERING, EXACT_ON_GAUSSIAN, ONE_DIMENSION, PROPOSALS, TARGETS, f64, seeded, seeded_by

FALSE_ALARM = 1e-3
CHAINS, STEPS = 10_000, 10


def build(target: Any, proposal: Proposal, rule: Rule) -> Kernel:
    with warnings.catch_warnings():
        # right on a Gaussian, and tested for what it is elsewhere
        warnings.simplefilter("ignore", DegenerateRuleWarning)
        return metropolis_hastings(target, proposal, rule)


def ways(kernel: Kernel) -> list[str]:
    """Return the ways in which a kernel makes its steps."""
    return ["step"] if kernel.run is None else ["step", "run"]


def by(way: str, kernel: Kernel) -> Kernel:
    """Return a kernel that makes its steps in one way only."""
    assert way in ways(kernel)
    return kernel._replace(run=None) if way == "step" else kernel


def seeds_of(way: str, *name: object) -> torch.Generator:
    return seeded_by(*name) if way == "step" else seeded_by(*name, way)


def fitting(target: str) -> dict[str, Proposal]:
    return ONE_DIMENSION if target.startswith("gev") else PROPOSALS


# Rules that use the density, or integrate the score to an error far below what this many chains can see.
INTEGRATED: dict[str, Rule] = {
    "exact": Exact(),
    "exact-barker": Exact(balance="barker"),
    "gauss-16": LineIntegral("gauss", nodes=16),
    "gauss-16-barker": LineIntegral("gauss", nodes=16, balance="barker"),
}
CASES = [
    *product(["mixture"], PROPOSALS, ["exact", "gauss-16"]),
    *product(["mixture"], COVERING, ["exact-barker", "gauss-16-barker"]),
    *product(["gaussian"], COVERING, [rule for rule in EXACT_ON_GAUSSIAN if rule != "taylor-2"]),
    *((target, *kernel) for target in TARGETS for kernel in (("rw", "exact"), ("mala", "gauss-16"))),
]
CASES = list(dict.fromkeys(CASES))
LEARNED = [
    *product(["mixture"], ["rw"], ["free", "scaled", "antisymmetric", "potential"]),
    *product(["banana"], ["mala-full"], ["free", "scaled", "antisymmetric", "potential"]),
    *product(["mixture"], ["pcn"], ["free", "potential"]),
]


class Ratio(nn.Module):
    """The exact log ratio of a target and a proposal, or a share of it; as a log acceptance, Barker's divided by M."""

    def __init__(self, law: Any, proposal: Proposal, share: float = 1.0, m: float = 1.0) -> None:
        super().__init__()
        self.law, self.proposal, self.share, self.m = law, proposal, share, m

    def logit(self, proposed: Tensor, current: Tensor) -> Tensor:
        x, y = (Point(z, self.law.score(z)) for z in (current, proposed))
        back, forth = self.proposal.log_prob(x, given=y), self.proposal.log_prob(y, given=x)
        ratio: Tensor = self.law.log_density(y.x) - self.law.log_density(x.x) + back - forth
        return self.share * ratio

    def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
        return nn.functional.logsigmoid(self.logit(proposed, current)) - math.log(self.m)


class LogDensity(nn.Module):
    def __init__(self, law: Any) -> None:
        super().__init__()
        self.law = law

    def forward(self, x: Tensor) -> Tensor:
        height: Tensor = self.law.log_density(x)
        return height


def learned(form: str, law: Any, proposal: Proposal) -> Learned:
    """Return a learned rule that has learned all there is."""
    if form == "potential":
        return Learned(networks.Potential(LogDensity(law)), "metropolis")
    if form == "antisymmetric":
        return Learned(networks.Antisymmetric(Ratio(law, proposal, share=0.5)), "metropolis")
    return Learned(networks.Free(Ratio(law, proposal, m=1.0 if form == "free" else 2.0)))


def kernel_of(target: str, proposal: str, rule: str) -> Kernel:
    """Return the kernel of a case; a learned rule knows all there is, and its target has a score and no density."""
    law, part = TARGETS[target], fitting(target)[proposal]
    if (target, proposal, rule) in LEARNED:
        return build(Target(law.score), part, learned(rule, law, part))
    return build(law, part, (EXACT_ON_GAUSSIAN | INTEGRATED)[rule])


RIGHT = [(*case, way) for case in CASES + LEARNED for way in ways(kernel_of(*case))]
OTHERS = 10  # at least as many as the right kernels that later tests compare with LEVEL
LEVEL = FALSE_ALARM / (len(RIGHT) + OTHERS)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "proposal", "rule", "way"), RIGHT, ids=["-".join(case) for case in RIGHT])
def test_stationary(target: str, proposal: str, rule: str, way: str) -> None:
    kernel, generator = by(way, kernel_of(target, proposal, rule)), seeds_of(way, target, proposal, rule)
    verdict = stationarity(kernel, TARGETS[target], chains=CHAINS, steps=STEPS, generator=generator)
    assert verdict.p_value > LEVEL, verdict
    assert verdict.acceptance_rate > 0.05  # a kernel that never moves would pass anything


def test_kernels_are_tested_by_their_steps_and_by_their_runs() -> None:
    judged = {way for *_, way in RIGHT}
    assert judged == {"step", "run"}


@pytest.mark.parametrize("proposal", ["rw", "pcn"])  # MALA's ratio at this step is near 1, and half of it is too
def test_power_against_a_network_out_of_balance(proposal: str) -> None:
    """Half of the log ratio: the antisymmetric form of a network that learned too little."""
    law = TARGETS["mixture"]
    rule = Learned(networks.Antisymmetric(Ratio(law, PROPOSALS[proposal], share=0.25)))
    kernel = build(Target(law.score), PROPOSALS[proposal], rule)
    verdict = stationarity(kernel, law, chains=CHAINS, steps=STEPS, generator=seeded_by("power", proposal))
    assert verdict.p_value < 1e-6, verdict


class WrongVariance(MALA):
    """Draws with variance 2h, but its density is that of h^2: the mistake that gives N(0, 1) a variance of 9."""

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        mean, _ = self.moments(given)
        return -0.5 * ((to.x - mean) / self.step_size).square().sum(1)


class Swapped(Exact):
    """log q(x' | x) - log q(x | x'), upside down."""

    def log_ratio(self, current: Point, proposed: Point, *, target: Any, proposal: Any) -> Tensor:
        change = self.log_density_change(current, proposed, target=target)
        upside_down: Tensor = proposal.log_prob(proposed, given=current) - proposal.log_prob(current, given=proposed)
        return change + upside_down


class NoDensity(Exact):
    """Forgets p, as the trapezoid does with MALA."""

    def log_density_change(self, current: Point, proposed: Point, *, target: Any) -> Tensor:
        return torch.zeros(len(current.x), dtype=current.x.dtype)


def batch_wide(kernel: Kernel, *, shared_uniform: bool) -> Kernel:
    """Take one decision for the whole batch, or one uniform for all chains."""

    def step(point: Point, *, generator: torch.Generator | None = None) -> tuple[Point, Move]:
        _, move = kernel.step(point, generator=generator)
        uniform = torch.rand((), generator=generator)
        log_accept = move.log_accept.exp() if shared_uniform else move.log_accept.exp().mean().expand(len(point.x))
        accepted = uniform < log_accept
        x = torch.where(accepted[:, None], move.proposed, point.x)
        return kernel.init(x), move._replace(accepted=accepted)

    return kernel._replace(step=step, run=run_of(step))


def run_of(step: Step, draws: Callable[[Point, Move], Tensor] = lambda point, move: point.x) -> Run:
    """Return a run made of steps; `draws` says what it keeps of each."""

    def run(point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
        kept, moves = [], []
        for _ in range(steps):
            point, move = step(point, generator=generator)
            kept.append(draws(point, move))
            moves.append(move)
        log_accept, accepted = torch.stack([m.log_accept for m in moves]), torch.stack([m.accepted for m in moves])
        return point, Trace(torch.stack(kept), log_accept, accepted)

    return run


NORMAL = targets.Gaussian(f64(0.0, 0.0))
MIXTURE = TARGETS["mixture"]
WRONG: dict[str, tuple[Any, Kernel]] = {
    "ula-large-step": (NORMAL, metropolis_hastings(NORMAL, MALA(0.5), Always())),
    "wrong-variance": (NORMAL, metropolis_hastings(NORMAL, WrongVariance(0.2), Exact())),
    "swapped-ratio": (NORMAL, metropolis_hastings(NORMAL, MALA(0.2), Swapped())),
    "batch-wide": (NORMAL, batch_wide(metropolis_hastings(NORMAL, RandomWalk(1.5), Exact()), shared_uniform=False)),
    "shared-uniform": (NORMAL, batch_wide(metropolis_hastings(NORMAL, RandomWalk(1.5), Exact()), shared_uniform=True)),
    "no-density": (MIXTURE, metropolis_hastings(MIXTURE, MALA(0.2), NoDensity())),
    "taylor-1": (MIXTURE, build(MIXTURE, RandomWalk(0.9), Taylor(1))),
    "degenerate": (MIXTURE, build(MIXTURE, MALA(0.5), LineIntegral("trapezoid"))),
    "walk-without-rejection": (NORMAL, metropolis_hastings(NORMAL, RandomWalk(0.3), Always())),
}


WRONG_WAYS = [(name, way) for name, (_, kernel) in WRONG.items() for way in ways(kernel)]


@pytest.mark.parametrize(("name", "way"), WRONG_WAYS)
def test_wrong_kernels_are_rejected(name: str, way: str) -> None:
    law, kernel = WRONG[name]
    verdict = stationarity(by(way, kernel), law, chains=CHAINS, steps=STEPS, generator=seeds_of(way, name))
    assert verdict.p_value < LEVEL, verdict


# Right by its steps; below it gets runs that are wrong.
RIGHT_STEP = metropolis_hastings(NORMAL, MALA(0.5), Exact())


def same_noise(point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
    """Draw the noise of the first step once more at every other."""
    seed = int(torch.randint(2**31, (), generator=generator))
    again = run_of(lambda point, generator=None: RIGHT_STEP.step(point, generator=seeded(seed)))
    return again(point, steps, generator=generator)


def stale_score(point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
    """Return a point that has the score of where the run began."""
    end, trace = run_of(RIGHT_STEP.step)(point, steps, generator=generator)
    return end._replace(score=point.score), trace


WRONG_RUNS: dict[str, Run] = {
    "never-rejects": run_of(metropolis_hastings(NORMAL, MALA(0.5), Always()).step),
    "swapped-ratio": run_of(metropolis_hastings(NORMAL, MALA(0.2), Swapped()).step),
    "keeps-candidates": run_of(RIGHT_STEP.step, draws=lambda point, move: move.proposed),
    "same-noise": same_noise,
    "stale-score": stale_score,
}


@pytest.mark.parametrize("name", WRONG_RUNS)
def test_a_wrong_run_beside_right_steps_is_rejected(name: str) -> None:
    kernel, generator = RIGHT_STEP._replace(run=WRONG_RUNS[name]), seeded_by("wrong run", name)
    verdict = stationarity(kernel, NORMAL, chains=CHAINS, steps=STEPS, generator=generator)
    assert verdict.p_value < LEVEL, verdict


def test_the_same_kernel_is_right_by_its_steps_and_by_a_run_of_them() -> None:
    for run in (None, run_of(RIGHT_STEP.step)):
        kernel = RIGHT_STEP._replace(run=run)
        verdict = stationarity(kernel, NORMAL, chains=CHAINS, steps=STEPS, generator=seeded_by("right run"))
        assert verdict.p_value > LEVEL, verdict


def test_a_run_is_tested_in_segments_that_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of one step, or of all that fit, are the same chains where a run is a loop over steps."""
    kernel = RIGHT_STEP._replace(run=run_of(RIGHT_STEP.step))
    whole = stationarity(kernel, NORMAL, chains=CHAINS, steps=7, generator=seeded_by("segments"))
    monkeypatch.setattr(sys.modules["scoremh.diagnostics.stationarity"], "MAX_TRACE_NUMBERS", 1)
    assert stationarity(kernel, NORMAL, chains=CHAINS, steps=7, generator=seeded_by("segments")) == whole
    assert stationarity(by("step", kernel), NORMAL, chains=CHAINS, steps=7, generator=seeded_by("segments")) == whole


SUBTLE: dict[str, tuple[Any, Kernel]] = {
    "ula-small-step": (NORMAL, metropolis_hastings(NORMAL, MALA(0.1), Always())),
    "wrong-target": (
        NORMAL,
        metropolis_hastings(targets.Gaussian(f64(0.0, 0.0), 1.1 * torch.eye(2)), MALA(0.2), Exact()),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), [(name, way) for name in SUBTLE for way in ways(SUBTLE[name][1])])
def test_many_chains_and_steps_show_small_biases(name: str, way: str) -> None:
    law, kernel = SUBTLE[name]
    generator = seeds_of(way, name)
    assert stationarity(by(way, kernel), law, chains=100_000, steps=30, generator=generator).p_value < LEVEL


# One decision for the whole batch moves all chains or none in one step: it needs several.
GROSS = "ula-large-step", "wrong-variance", "swapped-ratio", "shared-uniform"


@pytest.mark.parametrize(("name", "way"), [case for case in WRONG_WAYS if case[0] in GROSS])
def test_one_step_shows_gross_errors(name: str, way: str) -> None:
    law, kernel = WRONG[name]
    generator = seeds_of(way, name)
    assert stationarity(by(way, kernel), law, chains=CHAINS, steps=1, generator=generator).p_value < LEVEL


def never_moves(point: Point, *, generator: torch.Generator | None = None) -> tuple[Point, Move]:
    """Stay, and say that every candidate was accepted."""
    return point, Move(point.x, torch.zeros(len(point.x)), torch.ones(len(point.x), dtype=torch.bool))


@pytest.mark.parametrize("step", [never_moves, metropolis_hastings(NORMAL, RandomWalk(1e4), Exact()).step])
def test_a_kernel_that_never_moves_is_named(step: Step) -> None:
    """Whatever acceptance it claims: its p-value is 1, the text says that nothing moved, and there is a warning."""
    kernel = RIGHT_STEP._replace(step=step, run=None)
    with pytest.warns(UserWarning, match=r"at least 1% of the chains to move.* got 0.00% after 1 steps"):
        verdict = stationarity(kernel, NORMAL, chains=200, steps=1, generator=seeded_by())
    assert (verdict.p_value, verdict.moved) == (1.0, 0.0)
    assert "0.0% of the chains moved" in str(verdict)


def test_the_share_of_chains_that_moved_matches_that_of_their_positions() -> None:
    """After one step it is the acceptance rate, and a kernel that moves enough gives no warning (an error here)."""
    verdict = stationarity(RIGHT_STEP, NORMAL, chains=1000, steps=1, generator=seeded_by("moved"))
    assert verdict.moved == pytest.approx(verdict.acceptance_rate)
    assert 0.5 < verdict.moved < 1
    later = stationarity(RIGHT_STEP, NORMAL, chains=1000, steps=10, generator=seeded_by("moved"))
    assert later.moved > verdict.moved


CALIBRATED: dict[str, Kernel] = {
    "mixture": metropolis_hastings(MIXTURE, MALA(0.3), LineIntegral("gauss")),
    "student": metropolis_hastings(TARGETS["student"], RandomWalk(2.0), Exact()),
    "gev-frechet": metropolis_hastings(TARGETS["gev-frechet"], MALA(0.1), Exact()),
}


@pytest.mark.slow
@pytest.mark.parametrize(("target", "way"), [(name, way) for name in CALIBRATED for way in ways(CALIBRATED[name])])
def test_p_values_are_uniform_under_a_right_kernel(target: str, way: str) -> None:
    law, g, kernel = TARGETS[target], seeds_of(way, "calibration", target), by(way, CALIBRATED[target])
    p_values = [stationarity(kernel, law, chains=2000, steps=3, generator=g).p_value for _ in range(300)]
    assert stats.kstest(p_values, "uniform").pvalue > FALSE_ALARM
    assert sum(p < 0.05 for p in p_values) == pytest.approx(15, abs=4 * math.sqrt(300 * 0.05 * 0.95))


SIMPSON = metropolis_hastings(MIXTURE, MALA(0.2), LineIntegral())


@pytest.mark.slow
@pytest.mark.parametrize("way", ways(SIMPSON))
def test_simpson_is_right_where_its_steps_are_short(way: str) -> None:
    """Simpson has a bias of order eps^4; at a usual step 100,000 chains do not see it on a smooth target."""
    generator = seeds_of(way, "simpson")
    assert stationarity(by(way, SIMPSON), MIXTURE, chains=100_000, steps=30, generator=generator).p_value > LEVEL
