"""`diagnostics.balance_residual`: residuals of detailed balance."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from scoremh import MALA, Point, RandomWalk, Recipe, Target, diagnostics, fit_acceptance
from scoremh.types import Proposal
from tests.balance_cases import (
    MIXTURE,
    Rule,
    fitted,
    seeded,
)
from tests.cases import GAUSSIAN, PROPOSALS


def test_the_residual_of_an_exact_acceptance_is_zero() -> None:
    for name in ("rw", "mala-full", "pcn"):
        found = diagnostics.balance_residual(
            Rule(MIXTURE, PROPOSALS[name], "metropolis"),
            MIXTURE,
            PROPOSALS[name],
            MIXTURE.sample(500, generator=seeded()),
            nodes=64,
            generator=seeded(),
        )
        assert found.integral.rms < 1e-8
        assert found.density is not None
        assert found.density.rms < 1e-12
        assert found.density.correlation == pytest.approx(1)
        assert [d.pairs for d in found.distances] == [100] * 5
        edges = [edge for d in found.distances for edge in (d.low, d.high)]
        assert edges == sorted(edges)


class Shifted(Rule):
    """A network whose log a(x', x) - log a(x, x') is off by a constant."""

    def __init__(self, law: Any, proposal: Proposal, shift: float) -> None:
        super().__init__(law, proposal, "barker")
        self.shift = shift

    def log_ratio(self, current: Point, proposed: Point, *, proposal: Proposal) -> Tensor:
        return self.ratio(proposed.x, current.x) + self.shift

    def require(self, target: Target, proposal: Proposal) -> None:
        return


def test_the_residual_finds_what_is_wrong() -> None:
    """An acceptance off by a known amount: 0.3 times the square of the distance, on one side of the pair."""

    class Off(Rule):
        def ratio(self, proposed: Tensor, current: Tensor) -> Tensor:
            sign = (proposed[:, 0] > current[:, 0]).double() * 2 - 1
            return super().ratio(proposed, current) + 0.3 * sign * (proposed - current).square().sum(1)

    x = MIXTURE.sample(2000, generator=seeded())
    found = diagnostics.balance_residual(
        Off(MIXTURE, RandomWalk(1.0), "barker"), Target(MIXTURE.score), RandomWalk(1.0), x, generator=seeded()
    )
    assert found.density is None
    distances = [(pair[1] - pair[0]).square().sum() for pair in found.integral.worst_pairs]
    assert [abs(w) for w in found.integral.worst] == pytest.approx([0.3 * float(d) for d in distances], abs=1e-6)
    assert [d.rms for d in found.distances] == sorted(d.rms for d in found.distances)
    assert found.integral.rms == pytest.approx(0.3 * math.sqrt(8), rel=0.1)  # |v|^2 is chi-squared, of mean square 8

    shifted = diagnostics.balance_residual(
        Shifted(MIXTURE, RandomWalk(1.0), 0.2), MIXTURE, RandomWalk(1.0), x, generator=seeded()
    )
    assert shifted.density is not None
    biases = [shifted.integral.bias, shifted.density.bias, *(part.bias for part in shifted.distances)]
    assert biases == pytest.approx([0.2] * 7, abs=1e-6)
    assert "against the line integral: rms" in str(found)


def test_pairs_with_a_way_outside_the_support_have_no_residual() -> None:
    """Beyond a hole the line integral means nothing, and the score is not asked in it."""

    def outside(x: Tensor) -> Tensor:
        return x.square().sum(1) > 1

    def score(x: Tensor) -> Tensor:
        assert bool(outside(x).all())
        score: Tensor = GAUSSIAN.score(x)
        return score

    hole = Target(score, GAUSSIAN.log_density, outside)
    net, x = Rule(GAUSSIAN, RandomWalk(1.0), "barker"), GAUSSIAN.sample(500, generator=seeded())
    found = diagnostics.balance_residual(net, hole, RandomWalk(1.0), x, generator=seeded())
    assert found.pairs > 50
    assert found.without_way > 5
    assert f"{found.pairs} pairs, and {found.without_way} without a way inside" in str(found)
    assert found.integral.rms < 1e-9

    class Beyond(Rule):
        """Off by 5 where the way is barred, forth and back."""

        def ratio(self, proposed: Tensor, current: Tensor) -> Tensor:
            middle = torch.stack([current.lerp(proposed, t) for t in (0.25, 0.5, 0.75)])
            barred = (middle.square().sum(2) < 1).any(0)
            sign = (proposed[:, 0] > current[:, 0]).double() * 2 - 1
            return super().ratio(proposed, current) + 5 * sign * barred

    net = Beyond(GAUSSIAN, RandomWalk(1.0), "barker")
    found = diagnostics.balance_residual(net, hole, RandomWalk(1.0), x, generator=seeded())
    assert found.density is not None
    assert found.integral.rms < 1e-9
    assert found.density.rms > 0.5
    fit_acceptance(hole, MALA(0.5), x, form="free", recipe=Recipe(steps=2, batch=64, check_every=1))


def test_the_residual_of_a_fit_is_that_of_its_net() -> None:
    fit = fitted()
    x = GAUSSIAN.sample(200, generator=seeded(1))
    first, second = (
        diagnostics.balance_residual(net, GAUSSIAN, RandomWalk(1.0), x, generator=seeded()) for net in (fit, fit.net)
    )
    assert first.integral.rms == second.integral.rms > 0.001
