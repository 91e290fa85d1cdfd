"""The refinement of Simpson's rule: its weights, its nodes, and that it decides for one antisymmetric ratio."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import romb
from torch import Tensor

from scoremh import MALA, LineIntegral, RandomWalk, Target, metropolis_hastings, sample
from scoremh.acceptance import rules
from scoremh.types import Point, TargetLike
from studies.acceptance.narrow import NARROW
from tests.cases import TARGETS, f64, pair

# a smooth distribution, and two with structure that a step crosses: bounds are falsely small there, and clip
CROSSED: dict[str, tuple[Any, float]] = {
    "mixture": (TARGETS["mixture"], 1.5),
    "comb": (NARROW["comb"], 0.5),
    "rings": (NARROW["rings"], 0.6),
}


class Counted:
    """A score that counts its calls, and the points in them."""

    def __init__(self, law: TargetLike) -> None:
        assert law.score is not None
        self.score, self.calls, self.points = law.score, 0, 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls, self.points = self.calls + 1, self.points + len(x)
        return self.score(x)


@pytest.mark.parametrize("levels", [1, 2, 3, 6, 10])
def test_the_weights_are_those_of_an_independent_romberg(levels: int) -> None:
    nodes, weights = rules.romberg_weights(levels)
    grid = np.linspace(0, 1, 2**levels + 1)
    slope = np.cos(5 * grid) + grid**3
    excess = np.interp(nodes, grid, slope) - (slope[0] + slope[-1]) / 2
    for level, estimate in enumerate(weights @ excess + (slope[0] + slope[-1]) / 2):
        some = slope[:: 2 ** (levels - level)]
        assert estimate == pytest.approx(romb(some, dx=0.5**level), abs=1e-13)


@pytest.mark.parametrize("deciding", [True, False])
@pytest.mark.parametrize("name", CROSSED)
def test_what_is_found_does_not_depend_on_the_calls_to_spare(
    name: str, deciding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes of two levels in one call are fewer calls of more points, and the same numbers."""
    (law, std), n = CROSSED[name], 2000
    proposal, rule = RandomWalk(std), LineIntegral("adaptive", nodes=127)
    g = torch.Generator().manual_seed(0)
    current, proposed, _ = pair(proposal, law, rule, law.sample(n, generator=g))
    log_uniform = torch.rand(n, generator=g, dtype=torch.float64).log()
    found, counted = [], []
    for spare in (0.0, math.inf):
        monkeypatch.setattr(rules, "SPARE_CALLS", spare)
        counted.append(Counted(law))
        target = Target(counted[-1])
        if deciding:
            found.append(rule.decide(current, proposed, log_uniform, target=target, proposal=proposal).log_accept)
        else:
            found.append(rule.log_density_change(current, proposed, target=target))
    torch.testing.assert_close(found[1], found[0], atol=1e-9, rtol=1e-9)
    assert counted[0].calls >= 4  # half way, and levels 2 and up
    assert counted[1].calls == 1 + math.ceil((counted[0].calls - 1) / 2)
    assert counted[1].points > counted[0].points


@pytest.mark.parametrize("name", CROSSED)
def test_a_decision_and_that_on_the_way_back_are_of_one_ratio(name: str) -> None:
    """By Barker's rule x' is accepted with u if and only if x is refused on the way back with 1 - u, at any u."""
    (law, std), n = CROSSED[name], 500
    proposal, rule = RandomWalk(std), LineIntegral("adaptive", balance="barker")
    current, proposed, known = pair(proposal, law, rule, law.sample(n, generator=torch.Generator().manual_seed(0)))
    parts: dict[str, Any] = {"target": known, "proposal": proposal}
    decided = []
    for u in torch.linspace(0.02, 0.98, 25).double():
        forth = u.log() < rule.decide(current, proposed, u.log().expand(n), **parts).log_accept
        back = (-u).log1p() < rule.decide(proposed, current, (-u).log1p().expand(n), **parts).log_accept
        assert torch.equal(forth, ~back)
        decided.append(forth)
    # and there is such a ratio: once refused, a candidate is refused at every larger u
    assert (torch.stack(decided).int().diff(dim=0) <= 0).all()
    assert 0.1 < torch.stack(decided).double().mean() < 0.9


@pytest.mark.parametrize(("length", "nodes"), [(3.9, 1), (4.1, 3), (8.1, 7), (15.9, 7), (31.0, 15), (300.0, 63)])
def test_a_long_move_has_an_interval_for_every_two_units_of_its_length(length: float, nodes: int) -> None:
    """On a slope that is constant Simpson's bound is 0, and there is nothing but its length to ask for more nodes."""
    counted = Counted(Target(lambda x: torch.ones_like(x)))
    here, there = (Point(x, torch.ones_like(x)) for x in (f64([0.0, 0.0]), f64([0.0, length])))
    rule = LineIntegral("adaptive")
    change = rule.log_density_change(here, there, target=Target(counted))
    assert counted.points == nodes
    assert change.item() == pytest.approx(length)


def test_at_most_a_quarter_of_simpsons_calls_is_spent_to_save_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    law, rounds, calls = TARGETS["mixture"], [], []
    x = law.sample(1000, generator=torch.Generator().manual_seed(0))
    for spare in (0.0, rules.SPARE_CALLS):
        monkeypatch.setattr(rules, "SPARE_CALLS", spare)
        counted = Counted(law)
        kernel = metropolis_hastings(Target(counted), MALA(0.5), LineIntegral("adaptive"))
        chains = sample(kernel, x, draws=50, generator=torch.Generator().manual_seed(1))
        rounds.append(counted.calls / 50)
        calls.append(chains.score_calls / 50_000)
    assert calls[0] < calls[1] < 2 * 1.25
    assert rounds[1] < rounds[0] - 0.5


def test_weights_first_asked_for_without_gradients_serve_with_them() -> None:
    law, rule = TARGETS["mixture"], LineIntegral("adaptive", tolerance=1e-10, nodes=1023)
    x, y = (law.sample(5, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))

    def change(end: Tensor) -> Tensor:
        ends = (Point(x, law.score(x)), Point(end, law.score(end)))
        return rule.log_density_change(*ends, target=Target(law.score)).sum()

    rules.refinement.cache_clear()
    with torch.inference_mode():
        change(y)
    (gradient,) = torch.autograd.grad(change(y.requires_grad_()), y)
    torch.testing.assert_close(gradient, law.score(y).detach(), atol=1e-7, rtol=1e-7)
