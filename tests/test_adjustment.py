"""Where an accept step means something: circulation by noise level, and annealing that adjusts only above a level."""

import copy
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from scoremh import (
    MALA,
    Always,
    Exact,
    Kernel,
    LineIntegral,
    RandomWalk,
    Sampler,
    ScoreMH,
    Target,
    anneal,
    annealing,
    diagnostics,
    hamiltonian,
    metropolis_hastings,
    targets,
)
from scoremh._shared.algebra import gauss_legendre, inner, scores_along, weighted_sum
from scoremh.diagnostics import conservativity_by_level, lowest_conservative_level
from scoremh.estimator.diagnosis import diagnose, find_adjustment, model_contents
from tests.cases import f64
from tests.estimator_cases import small

__all__ = ["small"]  # a fixture

TURN = f64([0.0, -1.0], [1.0, 0.0])
NORMAL = targets.Gaussian(f64(0.0, 0.0))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def turned_at(level: float, curl: float = 0.02) -> Target:
    """Return N(0, 1) blurred by a level, with a rotation that grows as the level falls."""
    return Target(lambda x: -x / (1 + level**2) + curl / level**3 * x @ TURN.T)


def test_circulation_by_level_is_that_of_the_curl() -> None:
    """Circulation = 2c area; sides of length L = level sqrt 2 at a uniform angle: root mean square L^2 / (2 sqrt 2)."""
    levels = [2.0, 1.0, 0.5, 0.3, 0.25, 0.1]
    found = conservativity_by_level(turned_at, levels, NORMAL.sample(20_000, generator=seeded()), generator=seeded(1))
    assert list(found) == levels
    for level in levels:
        assert found[level].circulation == pytest.approx(0.02 * math.sqrt(2) / level, rel=0.02)
    assert lowest_conservative_level(found) == 0.3  # 0.1 nats lie at 0.283
    assert lowest_conservative_level(found, limit=1.0) == 0.1
    assert lowest_conservative_level(found, limit=1e-3) == math.inf


def test_a_level_above_which_one_fails_is_not_adjustable() -> None:
    fine, bad = diagnostics.Conservativity(0.0, 0.01, 1.0), diagnostics.Conservativity(0.5, 0.2, 1.0)
    assert lowest_conservative_level({0.1: fine, 0.5: bad, 1.0: fine}) == 1.0
    assert lowest_conservative_level({0.5: diagnostics.Conservativity(0.0, math.nan, 1.0)}) == math.inf


def test_a_larger_step_sees_more_circulation() -> None:
    x = NORMAL.sample(5000, generator=seeded())
    once, twice = (conservativity_by_level(turned_at, [0.5], x, step=step, generator=seeded()) for step in (1.0, 2.0))
    assert twice[0.5].circulation == pytest.approx(4 * once[0.5].circulation, rel=1e-6)


def acceptance(score: Any, *corners: Tensor) -> Tensor:
    """Return Metropolis's acceptance probability of a symmetric step, integrated along a way with these corners."""
    rule, total = gauss_legendre(8), torch.zeros(len(corners[0]), dtype=torch.float64)
    for a, b in itertools.pairwise(corners):
        total = total + inner(weighted_sum(rule.weights, scores_along(score, a, b - a, rule.nodes)), b - a)
    return total.exp().clamp(max=1)


@pytest.mark.parametrize("curl", [0.02, 0.1])
def test_the_limit_means_what_its_derivation_says(curl: float) -> None:
    """The way changes at most rms circulation x acceptance rate / 2 of the decisions, and not much less."""
    level, n = 1.0, 100_000
    score: Any = turned_at(level, curl).score
    noise = [torch.randn(n, 2, dtype=torch.float64, generator=seeded(seed)) for seed in (1, 2)]
    x = math.sqrt(2) * NORMAL.sample(n, generator=seeded())
    straight, bent = acceptance(score, x, x + noise[0]), acceptance(score, x, x + noise[1], x + noise[0])
    circulation = conservativity_by_level(lambda _: Target(score), [level], x, generator=seeded())[level].circulation
    changed, bound = float((straight - bent).abs().mean()), circulation * float(straight.mean()) / 2
    assert bound / 3 < changed < bound


LEVELS = annealing.geometric(4.0, 0.5, 4)


def kernel_at(level: float, *, adjusted: bool = True) -> Kernel:
    target = Target(lambda x: -x / (1 + level**2))
    return metropolis_hastings(target, MALA(level**2), LineIntegral() if adjusted else Always())


@pytest.mark.parametrize("above", [0.0, 1.0, 2.0, math.inf])
def test_annealing_adjusts_from_the_level_up(above: float) -> None:
    start = 4 * torch.randn(200, 2, generator=seeded())
    options: dict[str, Any] = {"steps_per_level": 5, "final_steps": 5}
    found = anneal(kernel_at, LEVELS, start, accept_above=above, generator=seeded(1), **options)
    by_hand = anneal(lambda s: kernel_at(s, adjusted=s >= above), LEVELS, start, generator=seeded(1), **options)
    assert torch.equal(found.draws, by_hand.draws)
    assert found.acceptance_rates == by_hand.acceptance_rates
    assert [rate < 1 for rate in found.acceptance_rates] == [level >= above for level in found.levels]
    assert ("no accept step below" in repr(found)) == (above > 0.5)


@pytest.mark.parametrize(
    ("kernel", "above", "text"),
    [
        (lambda s: metropolis_hastings(NORMAL, RandomWalk(s), Exact()), 1.0, "whose moves follow the score"),
        (kernel_at, -1.0, "accept_above of at least 0"),
        (kernel_at, math.nan, "accept_above of at least 0"),
    ],
)
def test_what_cannot_be_gated_is_refused(kernel: Any, above: float, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        anneal(kernel, LEVELS, torch.zeros(3, 2, dtype=torch.float64), accept_above=above, generator=seeded())


def test_trajectories_do_without_an_accept_step() -> None:
    kernel = hamiltonian(NORMAL, 1.5, 3, LineIntegral(), covariance=f64(1.0, 2.0), random_length=True)
    assert kernel.unadjusted is not None
    point = kernel.init(NORMAL.sample(100, generator=seeded()))
    moves = [one.step(point, generator=seeded(1))[1] for one in (kernel, kernel.unadjusted())]
    assert torch.equal(moves[0].proposed, moves[1].proposed)
    assert not moves[0].accepted.all()
    assert moves[1].accepted.all()


class Turned(torch.nn.Module):
    """A network with a rotation added below a noise level."""

    def __init__(self, net: torch.nn.Module, below: float) -> None:
        super().__init__()
        self.net, self.below = net, below

    def forward(self, u: Tensor, sigma: float) -> Tensor:
        """Return the score, turned."""
        score: Tensor = self.net(u, sigma)
        return score + (100 * u @ TURN.T.to(u) if sigma < self.below else 0)


def turned_sampler(model: ScoreMH, below: float) -> Sampler:
    score = copy.deepcopy(model.score_)
    assert isinstance(score.net, torch.nn.Module)
    score.net.net = Turned(score.net.net, below)  # type: ignore[arg-type]
    return replace(model.sampler_, score=score, accept_above=0.0)


def test_the_sampler_finds_the_level(small: ScoreMH) -> None:
    rows = torch.from_numpy(small.held_out_).float()
    right, turned = (find_adjustment(turned_sampler(small, below), rows, generator=seeded()) for below in (0.0, 1.0))
    assert right.accept_above == 0
    assert 1 <= turned.accept_above < 1.2
    annealed = turned.anneal(100, 3, measure_noise=False, generator=seeded())  # a score as wrong as this never arrives
    assert [rate < 1 for rate in annealed.acceptance_rates] == [s >= turned.accept_above for s in annealed.levels]


@pytest.mark.parametrize(
    ("above", "line", "cautions"),
    [(0.0, "at every noise level", 0), (0.775, "from 0.775 up", 1), (math.inf, "from inf up", 1)],
)
def test_reports_and_files_name_the_level(
    small: ScoreMH, tmp_path: Path, above: float, line: str, cautions: int
) -> None:
    model = copy.deepcopy(small)
    model.sampler_ = replace(small.sampler_, accept_above=above, noise_level=0.3)  # below all but 0
    rows, chains = torch.from_numpy(model.held_out_).float(), model.sample_chains(50)
    contents = model_contents(model, chains, rows, "held-out rows", None)
    assert line in contents.about["accept step while annealing"]
    for acceptance, expected in ((LineIntegral(), cautions), (model.acceptance_, 0)):  # a potential is a gradient
        sampler = replace(model.sampler_, acceptance=acceptance)
        found = diagnose(sampler, chains, rows, ["width", "height"], generator=seeded())
        assert [one.kind for one in found.warnings].count("conservativity") == expected
    model.save(tmp_path / "run")
    assert ScoreMH.load(tmp_path / "run").sampler_.accept_above == above
