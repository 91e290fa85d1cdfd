"""The pairs that the loss of Score Balance Matching is a mean over."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scoremh import MALA, BalanceMatching, RandomWalk, Recipe, Target, fit_acceptance, targets
from scoremh.networks.acceptance import leaf
from scoremh.types import Proposal
from tests.balance_cases import (
    MIXTURE,
    Box,
    Counting,
    X,
    known,
    made,
    seeded,
)


@pytest.mark.parametrize("pairs", ["independent", "proposed", "mixed"])
@pytest.mark.parametrize("proposal", [RandomWalk(1.0), MALA(0.2)], ids=repr)
def test_both_orders_take_one_forward_and_every_point_one_score(pairs: Any, proposal: Proposal) -> None:
    score, net = Counting(MIXTURE.score), made("antisymmetric")
    counted = Counting(net.net.logit)
    net.net.logit = counted
    x = MIXTURE.sample(64, generator=seeded())
    BalanceMatching(pairs=pairs).terms(net, Target(score), proposal, x, generator=seeded())
    assert (counted.calls, counted.rows) == (1, 128)
    assert score.rows == 128


def test_pairs_are_drawn_as_they_are_called() -> None:
    target, x = known(MIXTURE), MIXTURE.sample(1000, generator=seeded())
    walk = RandomWalk(0.01)

    def drawn(**options: Any) -> tuple[Tensor, Tensor]:
        progress = options.pop("progress", 1.0)
        current, proposed = BalanceMatching(**options).draw(target, walk, x, progress=progress, generator=seeded())
        return current.x.detach(), proposed

    current, proposed = drawn(pairs="proposed")
    assert torch.equal(current, x)
    assert float((proposed - x).abs().max()) < 0.06
    current, proposed = drawn(pairs="independent", alpha=0.0)
    assert torch.equal(current, x)
    assert torch.equal(proposed, x.roll(1, 0))
    _, early = drawn(pairs="independent", progress=0.0)
    assert torch.equal(early, x.roll(1, 0))
    _, late = drawn(pairs="independent", progress=1.0)
    assert 0 < float((late - x.roll(1, 0)).abs().max()) < 0.06
    _, mixed = drawn(pairs="mixed", alpha=0.0)
    near = (mixed - x).norm(dim=1) < 0.06
    assert bool(near[:500].all())
    assert float(near[500:].double().mean()) < 0.05
    crossing = BalanceMatching(pairs="independent", alpha=0.0, all_pairs=True)
    point, crossed = crossing.draw(target, walk, x[:500], x[500:], generator=seeded())
    assert torch.equal(point.x.detach().reshape(500, 500, 2)[:, 0], x[:500])
    assert torch.equal(crossed.reshape(500, 500, 2)[3], x[500:])


def test_all_pairs_is_the_mean_over_pairs() -> None:
    net, proposal, x = made("free"), MALA(0.2), MIXTURE.sample(12, generator=seeded())
    matching = BalanceMatching(entropy=1.0, pairs="independent", all_pairs=True, alpha=0.0)
    whole = matching.terms(net, known(MIXTURE), proposal, x, generator=seeded())
    one = [
        matching.between(net, known(MIXTURE), proposal, leaf(a[None], known(MIXTURE), proposal), b[None])
        for a in x[:6]
        for b in x[6:]
    ]
    for term, value in whole.items():
        assert float(value.detach()) == pytest.approx(sum(float(terms[term].detach()) for terms in one) / 36)


def test_alpha_rises_as_told() -> None:
    assert [BalanceMatching(alpha=(0.0, 1.0, 1.0)).alpha_at(t) for t in (0.0, 0.25, 0.5, 1.0)] == [0.0, 0.5, 1.0, 1.0]
    assert BalanceMatching(alpha=0.3).alpha_at(0.9) == 0.3


def test_pairs_outside_the_support_do_not_count_and_the_score_is_not_asked_there() -> None:
    box = targets.box(-1.0, 1.0)

    def score(x: Tensor) -> Tensor:
        assert bool(box(x).all())
        return -x

    x = torch.rand(500, 2, generator=seeded(), dtype=torch.float64) * 2 - 1
    walk, net = RandomWalk(1.0), made("antisymmetric")
    current, proposed = BalanceMatching().draw(Target(score, support=box), walk, x, generator=seeded())
    inside = box(proposed)
    assert 0.1 < float(inside.double().mean()) < 0.9
    terms = BalanceMatching().between(net, Target(score, support=box), walk, current, proposed)
    few = leaf(x[inside], Target(lambda x: -x), walk)
    expected = BalanceMatching().between(net, Target(lambda x: -x), walk, few, proposed[inside])
    for term, value in expected.items():
        torch.testing.assert_close(terms[term], value)


def test_pairs_outside_the_support_are_no_pairs_of_one_point() -> None:
    """At x' = x a distance has no gradient, and 0 times NaN is NaN."""

    class Far(nn.Module):
        def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
            return -(proposed - current).square().sum(1).sqrt()

    box = Target(lambda x: -x, support=targets.box(-1.0, 1.0))
    x = torch.rand(50, 2, generator=seeded(), dtype=torch.float64) * 2 - 1
    for matching in (BalanceMatching(), BalanceMatching(pairs="independent", all_pairs=True)):
        terms = matching.terms(Far(), box, RandomWalk(1.0), x[[0, 0, 0, *range(50)]], generator=seeded())
        assert all(bool(term.isfinite()) for term in terms.values())


def test_a_potential_learns_from_as_many_points_as_there_are_samples() -> None:
    score = Counting(MIXTURE.score)
    x = MIXTURE.sample(64, generator=seeded())
    BalanceMatching().terms(made("potential"), Target(score), RandomWalk(1.0), x, generator=seeded())
    assert score.rows == 64  # 32 pairs


def test_a_bounded_step_leaves_no_pair_without_a_number() -> None:
    """Half way to a proposal, neither way may be possible: log q is -inf - -inf there."""
    fit = fit_acceptance(MIXTURE, Box(0.1), X, recipe=Recipe(steps=2, batch=64, check_every=1), generator=seeded())
    assert all(math.isfinite(value) for value in fit.history["acceptance"])
