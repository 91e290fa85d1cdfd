"""Score Balance Matching: the loss, its pairs and anchors, `fit_acceptance`, and its files."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from scoremh import (
    MALA,
    PCN,
    AcceptanceFit,
    BalanceMatching,
    Exact,
    Learned,
    LineIntegral,
    Point,
    RandomWalk,
    Recipe,
    ScoreFit,
    Target,
    balance_matching,
    diagnostics,
    diffusion,
    fit_acceptance,
    fit_score,
    metropolis_hastings,
    sample,
    targets,
)
from scoremh.balance_matching.fit import Anchors, anchor_function, anchor_table
from scoremh.coordinates import Affine
from scoremh.kernel.metropolis import scored_target
from scoremh.networks import AcceptanceMLP, Antisymmetric, Form, Free, Potential, PotentialMLP
from scoremh.networks.acceptance import leaf, wanted_gradient
from scoremh.types import Proposal
from tests.balance_cases import (
    ALL,
    MIXTURE,
    NETS,
    NORMAL,
    SHORT,
    Box,
    Counting,
    Kinked,
    Own,
    Rule,
    X,
    fitted,
    known,
    made,
    own,
)
from tests.cases import COVARIANCE, COVERING, GAUSSIAN, PROPOSALS, TARGETS, f64, seeded

LOSSLESS = [
    *product(["mixed"], [MIXTURE], ALL, ["metropolis"]),
    *product(["independent", "proposed", "mixed"], [GAUSSIAN, MIXTURE], COVERING, ["metropolis", "barker"]),
]


@pytest.mark.parametrize(("pairs", "law", "name", "balance"), LOSSLESS)
def test_an_exact_acceptance_has_no_loss(pairs: Any, law: Any, name: str, balance: str) -> None:
    """For Metropolis the kink at r = 1 has measure 0, and no pair falls on it."""
    x = law.sample(300, generator=seeded())
    matching = BalanceMatching(pairs=pairs)
    terms = matching.terms(Rule(law, ALL[name], balance), known(law), ALL[name], x, generator=seeded(1))
    assert float(terms["balance"]) < 1e-12


@pytest.mark.parametrize("name", ALL)
def test_a_wrong_acceptance_has_a_loss(name: str) -> None:
    """The rule of another law, and the one that always accepts."""
    x = MIXTURE.sample(300, generator=seeded())

    class Always(nn.Module):
        def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
            return -(proposed - current).square().sum(1) * 0

    for net in (Rule(GAUSSIAN, ALL[name], "barker"), Always()):
        terms = BalanceMatching().terms(net, known(MIXTURE), ALL[name], x, generator=seeded(1))
        assert float(terms["balance"]) > 0.01


@pytest.mark.parametrize("name", ["rw", "mala", "pcn"])
def test_dividing_an_acceptance_by_m_leaves_its_balance(name: str) -> None:
    """Proposition 3; for any acceptance, not only a balanced one."""
    x, proposal, wrong = MIXTURE.sample(300, generator=seeded()), PROPOSALS[name], RandomWalk(0.4)
    losses, entropies = [], []
    for scale in (1.0, 3.0, 1e6):
        net = Rule(MIXTURE, wrong if name == "mala" else MALA(0.3), "barker", scale)
        terms = BalanceMatching(entropy=1.0).terms(net, known(MIXTURE), proposal, x, generator=seeded(1))
        losses.append(float(terms["balance"]))
        entropies.append(float(terms["entropy"]))
    assert losses[0] > 1e-3
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-9)
    assert entropies[1] != pytest.approx(entropies[0], abs=0.01)  # this is what entropy is for
    assert entropies[2] == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(("law", "name"), [*product(["mixture"], PROPOSALS), *product(["banana"], COVERING)])
def test_the_wanted_gradient_matches_that_of_the_log_ratio(law: str, name: str) -> None:
    """By central differences of the density and the proposal, through the score where the proposal has one."""
    target, proposal = known(TARGETS[law]), PROPOSALS[name]
    x = TARGETS[law].sample(40, generator=seeded())
    y = proposal.sample(Point.at(x, target, proposal.needs), generator=seeded(1))
    wanted = wanted_gradient(proposal, leaf(x, target, proposal), leaf(y, target, proposal))
    ratio, step = Rule(TARGETS[law], proposal, "barker").ratio, 1e-5
    columns = []
    for pair in range(2):
        for coordinate in range(2):
            shift = torch.zeros(2, 1, 2, dtype=torch.float64)
            shift[pair, 0, coordinate] = step
            columns.append((ratio(y + shift[1], x + shift[0]) - ratio(y - shift[1], x - shift[0])) / (2 * step))
    torch.testing.assert_close(wanted, torch.stack(columns, 1), atol=1e-6, rtol=1e-6)


def test_the_gradient_goes_through_a_score_by_autograd() -> None:
    """MALA's term needs second derivatives of a density given as a function."""
    target, proposal = targets.from_log_density(MIXTURE.log_density), MALA(0.2)
    x, y = (MIXTURE.sample(20, generator=seeded(i)) for i in range(2))
    ours, direct = (
        wanted_gradient(proposal, leaf(x, t, proposal), leaf(y, t, proposal)) for t in (target, known(MIXTURE))
    )
    torch.testing.assert_close(ours, direct, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("form", NETS)
@pytest.mark.parametrize("entropy", [0.0, 1.5])
def test_the_loss_is_differentiable_in_the_weights(form: str, entropy: float) -> None:
    net, proposal = made(form), MALA(0.2)
    x = MIXTURE.sample(30, generator=seeded())
    matching = BalanceMatching(entropy)

    def loss() -> Tensor:
        return matching.terms(net, known(MIXTURE), proposal, x, generator=seeded(1))["loss"]

    weights = list(net.parameters())
    gradients = torch.autograd.grad(loss(), weights, allow_unused=True)  # no gradient sees the last bias
    for number, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
        step = 1e-6 * torch.randn(weight.shape, generator=seeded(number), dtype=torch.float64)
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                weight += sign * step
            values.append(float(loss().detach()))
            with torch.no_grad():
                weight -= sign * step
        slope = 0.0 if gradient is None else float((gradient * step).sum())
        assert slope == pytest.approx((values[0] - values[1]) / 2, rel=1e-3, abs=1e-12)
    with torch.no_grad():
        assert float(loss()) == pytest.approx(sum(values) / 2, rel=1e-6)  # judging gives the same number


class Tilted(nn.Module):
    """log a = scale + tilt (x' - x): the one is even in the pair, the other odd."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.tilt = (nn.Parameter(torch.tensor(v, dtype=torch.float64)) for v in (-1.0, 0.1))

    def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
        return self.scale + self.tilt * (proposed - current).sum(1)


def test_the_pull_of_the_scale_leaves_the_ratio_alone_and_entropy_does_not() -> None:
    net, x = Tilted(), MIXTURE.sample(200, generator=seeded())

    def slopes(**options: Any) -> tuple[float, float]:
        matching = BalanceMatching(pairs="independent", **options)
        loss = matching.terms(net, known(MIXTURE), RandomWalk(0.5), x, generator=seeded(1))["loss"]
        by_scale, by_tilt = torch.autograd.grad(loss, (net.scale, net.tilt), materialize_grads=True, allow_unused=True)
        return float(by_scale), float(by_tilt)

    plain, pulled, paper = slopes(), slopes(scale=1.0), slopes(entropy=1.0)
    assert plain[0] == 0  # Proposition 3
    assert abs(pulled[0]) > 0.01
    assert pulled[1] == pytest.approx(plain[1], abs=1e-12)
    assert abs(paper[0]) > 0.01
    assert abs(paper[1] - plain[1]) > 0.01


def test_the_scale_is_at_rest_at_barkers_rule() -> None:
    x, walk = MIXTURE.sample(200, generator=seeded()), RandomWalk(1.0)
    for scale, rests in ((1.0, True), (2.0, False)):
        terms = BalanceMatching(scale=1.0).terms(
            Rule(MIXTURE, walk, "barker", scale), known(MIXTURE), walk, x, generator=seeded(1)
        )
        assert (float(terms["scale"]) < 1e-12) == rests


def test_nothing_underflows() -> None:
    """Acceptances of e^-200 and of 1 - e^-200 in float32 have a finite loss and finite gradients."""
    inside = AcceptanceMLP(2, hidden=8, blocks=1)
    net, x = Free(inside), MIXTURE.sample(20, generator=seeded()).float()
    for logit in (200.0, -200.0):
        nn.init.constant_(inside.last.bias, logit)
        assert bool(net(x, x).isfinite().all())
        terms = BalanceMatching(entropy=1.0).terms(net, known(MIXTURE), RandomWalk(1.0), x, generator=seeded())
        terms["loss"].backward()
        assert all(bool(value.isfinite()) for value in terms.values())
        assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in net.parameters())


def test_entropy_is_least_at_a_half() -> None:
    x = MIXTURE.sample(20, generator=seeded())

    class Constant(nn.Module):
        def __init__(self, a: float) -> None:
            super().__init__()
            self.a = a

        def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
            return math.log(self.a) + 0 * (proposed - current).sum(1)

    for a in (0.01, 0.5, 0.9):
        terms = BalanceMatching().terms(Constant(a), known(MIXTURE), RandomWalk(1.0), x, generator=seeded())
        assert float(terms["entropy"]) == pytest.approx(a * math.log(a) + (1 - a) * math.log(1 - a))
        assert float(terms["acceptance"]) == pytest.approx(a)


def test_entropy_and_acceptance_match_those_of_the_way_forth() -> None:
    """A net with half of Barker's acceptance: forth it is (1 + e^-3)^-1 / 2 everywhere, and back (1 + e^3)^-1 / 2."""

    class Right(nn.Module):
        def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
            return logsigmoid(3 * (proposed - current)[:, 0]) - math.log(2)

    x, walk = MIXTURE.sample(50, generator=seeded()), RandomWalk(1.0)
    current = leaf(x, known(MIXTURE), walk)
    terms = BalanceMatching().between(Right(), known(MIXTURE), walk, current, x + f64(1.0, 0.0))
    a = 0.5 / (1 + math.exp(-3))
    assert float(terms["acceptance"]) == pytest.approx(a)
    assert float(terms["entropy"]) == pytest.approx(a * math.log(a) + (1 - a) * math.log(1 - a))


def test_clipping_bounds_both_sides_and_is_counted() -> None:
    net, x = made("free"), MIXTURE.sample(400, generator=seeded())
    current = leaf(x, known(MIXTURE), RandomWalk(1.0))
    proposed = x.roll(1, 0)
    wanted = wanted_gradient(RandomWalk(1.0), current, leaf(proposed, known(MIXTURE), RandomWalk(1.0)))
    beyond = float((wanted.norm(dim=1) > 2).double().mean())
    assert 0.05 < beyond < 0.95
    nn.init.zeros_(net.net.last.weight)  # its own gradients are 0
    terms = BalanceMatching(clip=2.0).between(net, known(MIXTURE), RandomWalk(1.0), current, proposed)
    assert float(terms["clipped"]) == pytest.approx(beyond)
    assert float(terms["balance"]) == pytest.approx(float(wanted.norm(dim=1).clamp(max=2).square().mean()))
    assert float(BalanceMatching().between(net, known(MIXTURE), RandomWalk(1.0), current, proposed)["clipped"]) == 0


def test_the_gradient_of_an_acceptance_is_clipped_too_by_a_factor_that_is_taken_for_a_constant() -> None:
    """log a = 100 w (x'_0 - x_0): its D_a has the gradient 200 w (-e_0, e_0) everywhere, of norm 200 sqrt(2) w."""

    class Steep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
            return 100 * self.w * (proposed - current)[:, 0]

    flat, net, walk = Target(torch.zeros_like), Steep(), RandomWalk(1.0)
    x = torch.randn(50, 2, generator=seeded(), dtype=torch.float64)
    terms = BalanceMatching(clip=2.0).between(net, flat, walk, leaf(x, flat, walk), x.roll(1, 0))
    assert float(terms["clipped"]) == 1
    assert float(terms["balance"]) == pytest.approx(4)
    terms["loss"].backward()
    assert net.w.grad is not None
    assert float(net.w.grad) == pytest.approx(8)  # of (c w)^2 with c w = 2 at w = 1; 0 were the factor differentiated


def test_the_gradient_is_compared_in_standard_coordinates() -> None:
    """The loss with the root L of x = L u + m is that of the same problem in u."""
    root = torch.linalg.cholesky(COVARIANCE)
    law = targets.Gaussian(f64(1.0, -2.0), COVARIANCE)
    u, v = (torch.randn(40, 2, generator=seeded(i), dtype=torch.float64) for i in range(2))

    class Inside(nn.Module):
        def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
            back = torch.linalg.inv(root)
            log_accept: Tensor = net(*((z - law.mean) @ back.T for z in (proposed, current)))
            return log_accept

    net = made("free")
    in_u = BalanceMatching(clip=1.0).between(
        net, Target(lambda z: -z), RandomWalk(1.0), leaf(u, Target(lambda z: -z), RandomWalk(1.0)), v
    )
    x, y = (law.mean + z @ root.T for z in (u, v))
    walk = RandomWalk(1.0, covariance=COVARIANCE)
    in_x = BalanceMatching(clip=1.0).between(
        Inside(), known(law), walk, leaf(x, known(law), walk), y, Affine(law.mean, root)
    )
    for term, value in in_u.items():
        torch.testing.assert_close(in_x[term], value, atol=1e-9, rtol=1e-9)


# The pairs that the loss of Score Balance Matching is a mean over.


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


def test_alpha_increases_as_configured() -> None:
    assert [BalanceMatching(alpha=(0.0, 1.0, 1.0)).alpha_at(t) for t in (0.0, 0.25, 0.5, 1.0)] == [0.0, 0.5, 1.0, 1.0]
    assert BalanceMatching(alpha=0.3).alpha_at(0.9) == 0.3


def test_pairs_outside_the_support_do_not_count_and_the_score_is_not_evaluated_there() -> None:
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


# Anchors: values of log p in the loss of an acceptance.


FAR = targets.GaussianMixture([0.3, 0.7], [[-6.0], [6.0]])
SAMPLES = MIXTURE.sample(500, generator=seeded())


class Density(nn.Module):
    """log p of the mixture, changed."""

    def __init__(self, change: Any = lambda x, log_p: log_p + 3) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.change(x, MIXTURE.log_density(x))
        return changed


class Half(Rule):
    """Half of the exact log ratio."""

    def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
        return self.ratio(proposed, current) / 2


def exact(form: str, proposal: Any) -> Form:
    if form == "potential":
        return Potential(Density())
    if form == "antisymmetric":
        return Antisymmetric(Half(MIXTURE, proposal, "barker"))
    return Free(Rule(MIXTURE, proposal, "barker", scale=2.0))


def table(form: Form, proposal: Any = None, log_density: Any = MIXTURE.log_density) -> Anchors:
    return anchor_table(log_density, known(MIXTURE), proposal or RandomWalk(1.0), SAMPLES, form)


@pytest.mark.parametrize("name", ["rw", "mala", "pcn", "laplace"])
@pytest.mark.parametrize("form", NETS)
def test_an_exact_acceptance_has_no_error_and_another_has_one(form: str, name: str) -> None:
    right = exact(form, ALL[name])
    anchors = table(right, ALL[name], lambda x: MIXTURE.log_density(x) - 7)  # up to a constant
    assert float(anchors.loss(right, generator=seeded())) < 1e-12
    wrong = table(right, ALL[name], GAUSSIAN.log_density)
    assert float(wrong.loss(right, generator=seeded())) > 0.1


@pytest.mark.parametrize("by", [-0.4, 0.4])
def test_the_gradient_leads_to_the_anchors(by: float) -> None:
    """A potential with too much or too little weight on the right."""
    tilt = torch.tensor(by, requires_grad=True)
    form = Potential(Density(lambda x, log_p: log_p + tilt * x[:, 0].sign()))
    (slope,) = torch.autograd.grad(table(form).loss(form, generator=seeded()), tilt)
    assert float(slope) * by > 0.01


def test_pairs_with_both_points_below_the_floor_do_not_count() -> None:
    anchors, form = table(Potential(Density())), Potential(Density(lambda x, log_p: log_p + x[:, 0]))
    low, high = ((anchors.log_density < anchors.floor) == below for below in (True, False))
    low, high = (rows.nonzero().flatten() for rows in (low, high))
    alone = anchors.between(form, high[:20], high[-20:])
    more = anchors.between(form, torch.cat([high[:20], low[:20]]), torch.cat([high[-20:], low[-20:]]))
    assert float(alone) > 0.1
    torch.testing.assert_close(more, alone)


@pytest.mark.parametrize("form", ["antisymmetric", "potential"])
def test_a_tenth_of_the_anchors_is_held_out(form: str) -> None:
    right = exact(form, RandomWalk(1.0))
    anchors = table(right)
    pairs = len(anchors)
    spoiled = anchors.log_density.clone()
    spoiled[round(0.9 * pairs) : pairs] += 5
    anchors = replace(anchors, log_density=spoiled)
    assert float(anchors.loss(right, generator=seeded())) < 1e-12
    assert float(replace(anchors, held_out=True).loss(right, generator=seeded())) > 0.1


def test_a_training_is_judged_by_anchors_that_it_does_not_learn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, loss = set(), Anchors.loss

    def watched(self: Anchors, form: Form, *, generator: torch.Generator | None = None) -> Tensor:
        seen.add((torch.is_grad_enabled(), self.held_out))
        return loss(self, form, generator=generator)

    monkeypatch.setattr(Anchors, "loss", watched)
    fitted("potential", anchors=GAUSSIAN.log_density, recipe=Recipe(steps=2, batch=16, check_every=1))
    assert seen == {(True, False), (False, True)}


def test_below_the_floor_log_p_is_bounded_and_not_learned() -> None:
    anchors = table(Potential(Density()))
    below = (anchors.log_density < anchors.floor).double().mean()
    assert 0.02 < float(below) < 0.6

    def loss(change: Any) -> float:
        return float(anchors.loss(Potential(Density(change)), generator=seeded()))

    assert loss(lambda x, log_p: torch.where(log_p < anchors.floor, log_p - 50, log_p)) < 1e-12
    assert loss(lambda x, log_p: log_p.clamp(min=anchors.floor)) < 1e-12
    assert loss(lambda x, log_p: log_p.clamp(min=anchors.floor + 3)) > 0.1
    nothing = table(Potential(Density()), None, lambda x: MIXTURE.log_density(x).where(x[:, 0] < 4, -math.inf))
    assert float(nothing.loss(Potential(Density()), generator=seeded())) > 0.1  # mass in an empty region
    assert float(nothing.loss(Potential(Density(lambda x, p: p.where(x[:, 0] < 4, -99.0))), generator=seeded())) < 1e-12


def test_anchors_lie_on_between_and_off_the_samples() -> None:
    """And are the same in every process; none is outside of the support."""
    x = FAR.sample(1000, generator=seeded())
    inside = targets.box(-15.0, 15.0)
    target, form = Target(FAR.score, support=inside), Potential(PotentialMLP(1))
    first, second = (anchor_table(FAR.log_density, target, RandomWalk(1.0), x, form) for _ in range(2))
    assert torch.equal(first.points.x, second.points.x)
    points = first.points.x[:, 0]
    assert bool(inside(points[:, None]).all())
    for low, high in ((-15, -10), (-8, -4), (-2, 2), (4, 8), (10, 15)):
        assert ((points > low) & (points < high)).double().mean() > 0.02


def weight_on_the_right(fit: AcceptanceFit) -> float:
    grid = torch.linspace(-12, 12, 4801)[:, None]
    p = (fit.log_density(grid) - fit.log_density(grid).max()).exp()
    return float(p[grid[:, 0] > 0].sum() / p.sum())


@pytest.mark.slow
def test_anchors_give_far_modes_their_weights_and_gradients_do_not() -> None:
    x = FAR.sample(2000, generator=seeded())
    recipe = Recipe(steps=400, batch=64, rate=1e-2, schedule="cosine")

    def fit(seed: int = 2, **anchors: Any) -> AcceptanceFit:
        net = PotentialMLP(1, hidden=32, layers=2, generator=seeded(1))
        return fit_acceptance(
            Target(FAR.score), RandomWalk(1.0), x, net=net, recipe=recipe, generator=seeded(seed), **anchors
        )

    # without anchors the weight depends on the seed, and may be right by chance
    assert max(abs(weight_on_the_right(fit(seed)) - 0.7) for seed in (2, 3, 4)) > 0.1
    assert abs(weight_on_the_right(fit(anchors=FAR.log_density)) - 0.7) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("form", NETS)
def test_training_lowers_the_error_at_anchors_and_records_it(form: Any) -> None:
    fit = fitted(form, anchors=GAUSSIAN.log_density)
    errors = fit.history["anchors"]
    assert len(errors) == len(fit.history["step"])
    assert errors[-1] < errors[0]
    assert fit.history["loss"][0] > fit.history["balance"][0] + 50 * errors[0]
    assert "log p at anchors" in repr(fit)
    plain = fitted(form, recipe=Recipe(steps=1, batch=8, check_every=1))
    assert "anchors" not in plain.history
    assert "log p at anchors" not in repr(plain)


@pytest.mark.slow
@pytest.mark.parametrize("form", NETS)
def test_an_interrupted_training_ends_with_the_same_bits(form: Any, tmp_path: Path) -> None:
    """Without a generator in the second call, the anchors are still those of the first."""
    path = tmp_path / "training.safetensors"

    class StopError(Exception):
        pass

    calls = 0

    def score(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == stop:
            raise StopError
        return -x

    def attempt(**options: Any) -> AcceptanceFit:
        return fit_acceptance(
            Target(score), RandomWalk(1.0), X, form=form, recipe=SHORT, anchors=GAUSSIAN.log_density, **options
        )

    stop = 0
    straight = attempt(generator=seeded(3))
    calls, stop = 0, calls * 3 // 4
    saved = pytest.MonkeyPatch()
    saved.setattr("scoremh.training.SAVE_SECONDS", 0.0)
    with pytest.raises(StopError):
        attempt(generator=seeded(3), checkpoint=path)
    saved.undo()
    stop = 0
    resumed = attempt(checkpoint=path)
    assert resumed.history == straight.history
    for a, b in zip(resumed.net.parameters(), straight.net.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_checkpoint_belongs_to_its_anchors(tmp_path: Path) -> None:
    options: Any = {"checkpoint": tmp_path / "file", "recipe": Recipe(steps=2, batch=8, check_every=1)}
    fitted("potential", anchors=GAUSSIAN.log_density, **options)
    for other in (MIXTURE.log_density, False):
        with pytest.raises(ValueError, match="to hold this training"):
            fitted("potential", anchors=other, **options)


@pytest.mark.slow
def test_a_proposal_with_a_domain() -> None:
    x = 0.2 + torch.rand(300, 2, generator=seeded(), dtype=torch.float64)
    target = Target(lambda x: -x, support=targets.box(0.1, 2.0))
    fit = fit_acceptance(target, Kinked(), x, form="free", recipe=SHORT, anchors=lambda x: -x.square().sum(1) / 2)
    assert all(math.isfinite(value) for value in fit.history["anchors"])


def test_true_is_log_p_through_noise() -> None:
    """At the level of the target, and not at that of the model it belongs to."""
    log_density = anchor_function(True, scored_target(MIXTURE.at(0.5), RandomWalk(1.0)))
    assert log_density is not None
    assert torch.equal(log_density(SAMPLES), diffusion.log_density(MIXTURE.at(0.5), SAMPLES))
    error = {level: (log_density(SAMPLES) - MIXTURE.at(level).log_density(SAMPLES)).abs().max() for level in (0.1, 0.5)}
    assert error[0.5] < 0.1 < error[0.1]


def test_anchored_trainings_clip_gradients() -> None:
    short = Recipe(steps=1, batch=8, check_every=1)
    assert "clip=5.0" in fitted("potential", anchors=GAUSSIAN.log_density, recipe=short).loss  # 2.5 sqrt(2 x 2)
    assert "clip=None" in fitted("potential", recipe=short).loss


@pytest.mark.parametrize("target", [Target(GAUSSIAN.score), GAUSSIAN])
def test_anchors_of_none_raise_an_error(target: Any) -> None:
    """A fit without noise levels has None for its log density."""
    with pytest.raises(ValueError, match=r"anchors to be a function of x, True or False, got None\. A score of one"):
        fit_acceptance(target, RandomWalk(1.0), X, anchors=None)


def test_values_through_noise_need_noise_levels() -> None:
    with pytest.raises(ValueError, match="a target with scores of all noise levels, got a score of one"):
        fit_acceptance(Target(GAUSSIAN.score), RandomWalk(1.0), X, anchors=True)


REFUSED: dict[str, tuple[type[Exception], Any, str]] = {
    "another shape": (ValueError, lambda x: x, r"anchors\(x\) to be a float64 tensor of shape \(32,\) on cpu, got a"),
    "another dtype": (TypeError, lambda x: x.sum(1).float(), r"anchors\(x\) to be a float64 tensor"),
    "NaN everywhere": (ValueError, lambda x: x.sum(1) * math.nan, "anchors that are numbers .*, got 0 of"),
    "no density": (
        ValueError,
        lambda x: x.sum(1) * 0 - math.inf,
        "anchors that are numbers .* and finite values at 0 samples",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rejected(case: str) -> None:
    kind, anchors, text = REFUSED[case]
    with pytest.raises(kind, match=text):
        fitted("potential", anchors=anchors)


# `fit_acceptance`: what training gives, and what sampling does with it.


@pytest.mark.parametrize("form", NETS)
def test_training_lowers_the_loss_and_records_its_parts(form: Any) -> None:
    fit = fitted(form, MALA(0.3))
    assert fit.history["held_out"][-1] < fit.history["held_out"][0]
    for name in ("balance", "entropy", "scale", "acceptance", "clipped"):
        assert len(fit.history[name]) == len(fit.history["step"]) == 3
    for loss, balance, scale in zip(*(fit.history[n] for n in ("loss", "balance", "scale")), strict=True):
        if form == "free":  # the weight of the scale rises from 0 to 1
            assert balance < loss < balance + scale
        else:
            assert loss == pytest.approx(balance, rel=1e-5)
    shown = repr(fit)
    assert form in shown
    assert "MALA(step_size=0.3)" in shown
    mean = re.search(r"mean of a\(x', x\) (\S+)", shown)
    assert (mean is not None and 0 < float(mean[1]) <= 1) == (form != "potential")  # which has no pairs of moves
    assert not any(p.requires_grad for p in fit.net.parameters())


@pytest.mark.parametrize("event", [(2,), (1, 4, 4)], ids=str)
@pytest.mark.parametrize("form", NETS)
def test_events_of_any_shape(form: Any, event: tuple[int, ...]) -> None:
    x = torch.randn(100, *event, generator=seeded())
    fit = fit_acceptance(Target(lambda x: -x), MALA(0.2), x, form=form, recipe=Recipe(steps=2, batch=10, check_every=1))
    kernel = metropolis_hastings(Target(lambda x: -x), MALA(0.2), Learned(fit))
    assert sample(kernel, x[:5], draws=3).draws.shape == (5, 3, *event)


def test_the_defaults_of_the_forms() -> None:
    defaults = {
        "free": BalanceMatching(scale=1.0),
        "antisymmetric": BalanceMatching(),
        "potential": BalanceMatching(pairs="independent", alpha=0.5),
    }
    assert defaults == balance_matching.MATCHING
    assert float(Free.network((2,), hidden=8, blocks=1).last.bias.detach()) == -5


def trained(
    law: Any, proposal: Proposal, form: Any, steps: int, net: nn.Module | None = None
) -> tuple[AcceptanceFit, dict[str, Any]]:
    """Return an acceptance learned from a law with its true score, and what `disagreement` judges it on."""
    samples, recipe = law.sample(5000, generator=seeded()), Recipe(steps=steps, batch=256, rate=4e-3)
    fit = fit_acceptance(law, proposal, samples, form=form, net=net, recipe=recipe, generator=seeded(1))
    x = law.sample(5000, generator=seeded(2))
    return fit, {"target": law, "proposal": proposal, "x": x, "generator": seeded(3)}


@pytest.mark.slow
@pytest.mark.parametrize("form", NETS)
def test_units_do_not_matter(form: Any) -> None:
    """Coordinates a hundred times as large, and in a ratio of a hundred to one: the same decisions."""
    law = targets.GaussianMixture([0.6, 0.4], [[1.2, 1.0], [-1.0, -1.4]])
    for scales in ([100.0, 100.0], [100.0, 1.0]):
        scale = torch.tensor(scales)
        moved = targets.GaussianMixture([0.6, 0.4], law.means * scale, torch.diag(scale**2).expand(2, 2, 2))
        walk = RandomWalk(1.2, covariance=scale**2)
        fit, pairs = trained(moved, walk, form, steps=500)
        assert diagnostics.disagreement(Learned(fit, "metropolis"), Exact(), **pairs).rate < 0.03


@pytest.mark.slow
def test_the_free_form_is_stationary_with_its_scale_pulled_and_not_with_entropy() -> None:
    """N(3, 2), the law of the paper's sanity check; with the paper's entropy, at lambda = 10, the same test fails."""
    law, walk = targets.Gaussian([3.0], [[2.0]]), RandomWalk(3.0)
    verdicts = []
    for matching in (BalanceMatching(scale=10.0), BalanceMatching(entropy=10.0)):
        x = law.sample(5000, generator=seeded())
        options: Any = {
            "net": AcceptanceMLP(1, 64, 1, generator=seeded()),
            "recipe": Recipe(steps=1500, batch=256, rate=4e-3),
        }
        fit = fit_acceptance(law, walk, x, form="free", matching=matching, generator=seeded(1), **options)
        kernel = metropolis_hastings(law, walk, Learned(fit))
        verdicts.append(diagnostics.stationarity(kernel, law, chains=5000, steps=20, generator=seeded(2)))
    assert verdicts[0].p_value > 1e-3, verdicts[0]
    assert verdicts[1].p_value < 1e-6, verdicts[1]


def test_training_under_inference_mode_raises_an_error_and_its_samples_are_taken() -> None:
    short = Recipe(steps=1, batch=8, check_every=1)
    with torch.inference_mode():
        x = MIXTURE.sample(100, generator=seeded())
        with pytest.raises(RuntimeError, match=r"got torch\.inference_mode\. Train outside"):
            fit_acceptance(MIXTURE, MALA(0.2), x, recipe=short)
        with pytest.raises(RuntimeError, match=r"got torch\.inference_mode\. Train outside"):
            fit_score(x, recipe=short)
    assert x.is_inference()
    with torch.no_grad():
        fit_acceptance(MIXTURE, MALA(0.2), x, form="free", recipe=short)
        fit_score(x, recipe=short)


@pytest.mark.slow
def test_an_own_proposal_with_a_support_and_a_domain() -> None:
    x = 0.2 + torch.rand(300, 2, generator=seeded(), dtype=torch.float64)
    target = Target(lambda x: -x, support=targets.box(0.1, 2.0))
    fit = fit_acceptance(target, Kinked(), x, form="antisymmetric", recipe=SHORT, generator=seeded())
    assert all(math.isfinite(value) for value in fit.history["loss"])
    metropolis_hastings(target, Kinked(), Learned(fit))
    diagnostics.balance_residual(fit, target, Kinked(), x, generator=seeded())


def test_samples_outside_the_support_do_not_count() -> None:
    box = targets.box(-1.0, 1.0)

    def score(x: Tensor) -> Tensor:
        assert bool(box(x).all())
        return -x

    x = torch.randn(400, 2, generator=seeded(), dtype=torch.float64)
    target = Target(score, support=box)
    fit = fit_acceptance(target, RandomWalk(0.3), x, recipe=SHORT, generator=seeded())
    found = diagnostics.balance_residual(fit, target, RandomWalk(0.3), x, generator=seeded())
    assert found.pairs < int(box(x).sum())
    with pytest.raises(ValueError, match="at least 6 samples inside the support, got 0"):
        fit_acceptance(target, RandomWalk(0.3), x + 10)


@pytest.mark.slow
def test_the_free_form_does_not_get_stuck_where_it_is_flat() -> None:
    """Figure 1's modes: begun at a = 1/2, a free form takes one for a plateau where every move is accepted."""
    law, walk = targets.GaussianMixture([0.8, 0.2], [[5.0, 5.0], [-5.0, -5.0]]), RandomWalk(1.7)
    fit, pairs = trained(law, walk, "free", steps=500)
    assert diagnostics.disagreement(Learned(fit, "metropolis"), Exact(), **pairs).rate < 0.05
    from_a_half = []
    for seed in (1, 2, 3):  # not every start gets stuck
        net = AcceptanceMLP(2, hidden=128, blocks=2, generator=seeded(seed))
        stuck, pairs = trained(law, walk, "free", steps=500, net=net)
        from_a_half.append(diagnostics.disagreement(Learned(stuck, "metropolis"), Exact(), **pairs))
    worst = max(from_a_half, key=lambda found: found.rate)
    assert worst.rate > 0.1
    assert worst.acceptance_rates[0] > worst.acceptance_rates[1] + 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "proposal"),
    [*product(NETS, [RandomWalk(1.2)]), *product(["antisymmetric"], [MALA(0.3), PCN(0.5)])],
    ids=str,
)
def test_a_learned_acceptance_decides_as_the_density_does(form: Any, proposal: Proposal) -> None:
    law = targets.GaussianMixture([0.6, 0.4], [[1.2, 1.0], [-1.0, -1.4]])
    fit, pairs = trained(law, proposal, form, steps=600)
    for rule in (Exact(), LineIntegral("gauss", nodes=8)):
        assert diagnostics.disagreement(Learned(fit, "metropolis"), rule, **pairs).rate < 0.05
    residual = diagnostics.balance_residual(fit, law, proposal, pairs["x"], generator=seeded())
    assert residual.density is not None
    assert residual.density.correlation > 0.98


# Errors before any training: scores, proposals and networks that do not fit together.


def test_a_score_without_a_graph_raises_an_error_where_the_proposal_needs_one() -> None:
    def closed(x: Tensor) -> Tensor:
        with torch.no_grad():
            score: Tensor = MIXTURE.score(x)
        return score

    short: Any = {"recipe": Recipe(steps=1, batch=8, check_every=1)}
    with pytest.raises(ValueError, match=r"a differentiable score, which MALA\(step_size=0.2\) needs.*create_graph"):
        fit_acceptance(Target(closed), MALA(0.2), X, form="free", **short)
    fit_acceptance(Target(closed), MALA(0.2), X, form="potential", **short)  # its gradient is that of the score alone
    fit_acceptance(Target(closed), RandomWalk(0.2), X, form="free", **short)
    fit_acceptance(Target(torch.ones_like), MALA(0.2), X, form="free", **short)  # it has no gradient to miss
    jumping = Target(lambda x: torch.where(x > 0, -1.0, 1.0).to(x))  # and neither has this one, but log q jumps with it
    with pytest.raises(ValueError, match="and the score it needs, to be smooth and differentiable"):
        fit_acceptance(jumping, MALA(0.2), X, form="free", **short)
    fit_acceptance(jumping, MALA(0.2), X, form="potential", **short)
    fit_acceptance(jumping, RandomWalk(0.2), X, form="free", **short)


@dataclass
class Local(Proposal):
    """A walk whose steps are longer where the density is low."""

    needs: ClassVar[frozenset[Any]] = frozenset({"log_density"})

    def width(self, at: Point) -> Tensor:
        assert at.log_density is not None
        return (0.3 - 0.1 * at.log_density.tanh())[:, None]

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Tensor:
        return at.x + self.width(at) * torch.randn(at.x.shape, generator=generator, dtype=at.x.dtype)

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        width = self.width(given)
        return -((to.x - given.x) / width).square().sum(1) / 2 - 2 * width[:, 0].log()


def test_a_log_density_without_a_graph_raises_an_error_too() -> None:
    def closed(x: Tensor) -> Tensor:
        log_density: Tensor = MIXTURE.log_density(x).detach()
        return log_density

    short: Any = {"form": "free", "recipe": Recipe(steps=1, batch=8, check_every=1)}
    with pytest.raises(ValueError, match="a differentiable log_density, which Local"):
        fit_acceptance(Target(MIXTURE.score, closed), Local(), X, **short)
    fit_acceptance(MIXTURE, Local(), X, **short)


def test_a_trial_without_points_evaluates_nothing() -> None:
    """On a thin support no way stays inside."""

    def thin(x: Tensor) -> Tensor:
        return (x.square().sum(1) - 1).abs() < 1e-9

    def score(x: Tensor) -> Tensor:
        assert len(x)
        assert bool(thin(x).all())
        return -x

    x = X / X.norm(dim=1, keepdim=True)
    ring = Target(score, support=thin)
    fit_acceptance(ring, MALA(0.2), x, form="free", recipe=Recipe(steps=1, batch=8, check_every=1))


WITHOUT_GRADIENT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "no graph": lambda to, given: own(to, given).detach(),
    "numpy": lambda to, given: torch.from_numpy(own(to, given).detach().numpy()),
    "half a graph": lambda to, given: own(to, given.detach()),
    "half of a symmetric one": lambda to, given: -(to - given.detach()).square().sum(1) / 2,
}


@pytest.mark.parametrize("how", WITHOUT_GRADIENT)
def test_a_proposal_that_autograd_cannot_see_raises_an_error(how: str) -> None:
    options: Any = {"recipe": Recipe(steps=1, batch=8, check_every=1)}
    with pytest.raises(
        ValueError, match=r"differentiable by autograd in both points, got gradients that integrate to .*potential"
    ):
        fit_acceptance(MIXTURE, Own(WITHOUT_GRADIENT[how]), X, form="antisymmetric", **options)
    fit_acceptance(MIXTURE, Own(WITHOUT_GRADIENT[how]), X, form="potential", **options)
    fit_acceptance(MIXTURE, Own(own), X, form="antisymmetric", **options)


@dataclass
class Shrinking(Box):
    """A bounded walk around x / 2: from far out there is no way back."""

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Tensor:
        return super().sample(at._replace(x=at.x / 2), generator=generator)

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        return super().log_prob(to, given=given._replace(x=given.x / 2))


@dataclass
class Zones(Box):
    """A walk with longer steps on one side: log q jumps where x' is on the other."""

    def scaled(self, at: Point) -> Tensor:
        return torch.where(at.x[:, :1] > 0, 2 * self.width, self.width)

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Tensor:
        return at.x + self.scaled(at) * torch.randn(at.x.shape, generator=generator, dtype=at.x.dtype)

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        width = self.scaled(given)
        return -((to.x - given.x) / width).square().sum(1) / 2 - to.x[0].numel() * width[:, 0].log()


@pytest.mark.parametrize("form", ["free", "antisymmetric"])
def test_what_a_gradient_does_not_see_raises_an_error(form: Any) -> None:
    """Where q(x | x') is 0, or jumps, its gradient says nothing of it: a loss of 0 would belong to another law."""
    options: Any = {"recipe": Recipe(steps=1, batch=8, check_every=1)}
    with pytest.raises(ValueError, match=r"reversible steps of .*, got \d+ of 32 candidates .*form=\"potential\""):
        fit_acceptance(MIXTURE, Shrinking(1.5), X, form=form, **options)
    with pytest.raises(ValueError, match="to be smooth and differentiable by autograd in both points, got gradients"):
        fit_acceptance(MIXTURE, Zones(1.0), X, form=form, **options)
    for proposal in (Shrinking(1.5), Zones(1.0)):
        fit_acceptance(MIXTURE, proposal, X, form="potential", **options)
    for good in (*ALL.values(), TwoSteps(0.01), MALA(5.0)):
        fit_acceptance(MIXTURE, good, X, form=form, **options)


@dataclass
class TwoSteps(Box):
    """Long and short steps by turns: smooth, but log q changes within a small part of a long way."""

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Tensor:
        long = torch.rand((len(at.x), 1), generator=generator) < 0.5
        noise = torch.randn(at.x.shape, generator=generator, dtype=at.x.dtype)
        return 0.9 * at.x + torch.where(long, 1.0, self.width) * noise

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        square = (to.x - 0.9 * given.x).square().sum(1) / 2
        both = torch.stack([-square, -square / self.width**2 - 2 * math.log(self.width)])
        return both.logsumexp(0)


def test_a_trial_does_not_depend_on_the_seed_of_the_samples() -> None:
    """Candidates drawn by the generator of the samples would lie on rays from the middle."""

    class Detached(MALA):
        def log_prob(self, to: Point, *, given: Point) -> Tensor:
            assert given.score is not None
            return super().log_prob(to, given=given._replace(score=given.score.detach()))

    for seed in range(4):
        x = torch.randn(500, 2, generator=seeded(seed), dtype=torch.float64)
        with pytest.raises(ValueError, match="to be smooth and differentiable"):
            fit_acceptance(NORMAL, Detached(0.3), x, form="free", recipe=Recipe(steps=1, batch=8, check_every=1))


@pytest.mark.slow
def test_a_free_network_returns_log_a() -> None:
    class Unbounded(AcceptanceMLP):
        def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
            return self.logit(proposed, current)

    with pytest.raises(ValueError, match=r"to return log a, at most 0, got .*logsigmoid"):
        fitted("free", net=Unbounded(2))
    fitted("antisymmetric", net=Unbounded(2))  # any number is half of a log ratio


# Invalid arguments and their errors.


class Wavy(PotentialMLP):
    """A potential with a closed form of another one's gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x[:, 0].sin()


def single() -> AcceptanceFit:
    """Return an acceptance in single precision."""
    return fit_acceptance(NORMAL, RandomWalk(1.0), X.float(), form="free", recipe=SHORT, generator=seeded())


FIT_ACCEPTANCE_REFUSED: dict[str, tuple[Any, str]] = {
    "negative entropy": (lambda: BalanceMatching(entropy=-1.0), "entropy to be finite and at least 0, got -1.0"),
    "negative scale": (lambda: BalanceMatching(scale=-1.0), "scale to be finite and at least 0, got -1.0"),
    "entropy where no scale is free": (
        lambda: fit_acceptance(GAUSSIAN, MALA(0.1), X, matching=BalanceMatching(entropy=2.0)),
        "entropy and scale with form=\"free\" only, got BalanceMatching.* with form='potential'",
    ),
    "a score that is not finite": (
        lambda: fit_acceptance(Target(lambda x: x.log()), RandomWalk(1.0), X),
        r"a score that is finite at the samples, got NaN or inf at \d+ of 32, the first at \[",
    ),
    "samples of another dtype": (
        lambda: fit_acceptance(fit_score(X.float(), recipe=SHORT), RandomWalk(1.0), X),
        r"points of the dtype of the network, got a different dtype .*x\.float\(\), or .*net\.to\(x\.dtype\)",
    ),
    "chains of another dtype": (
        lambda: sample(metropolis_hastings(NORMAL, RandomWalk(1.0), Learned(single())), X[:3], draws=1),
        "points of the dtype of the network, got a different dtype",
    ),
    "the log density of a pair": (lambda: fitted().log_density(X), "a potential, got an acceptance of Antis"),
    "a potential of two minds": (
        lambda: fitted("potential", net=Wavy(2)),
        "a value_and_gradient for the forward of Wavy, got that of PotentialMLP. Define it too",
    ),
    "a rule for a network": (
        lambda: diagnostics.balance_residual(LineIntegral(), GAUSSIAN, MALA(0.1), X),
        "a network for an acceptance, got LineIntegral LineIntegral",
    ),
    "a folder for a file": (
        lambda: fitted(checkpoint=Path(__file__).parent),
        "a file, got .*tests, which is a folder",
    ),
    "no file": (lambda: AcceptanceFit.load("nowhere"), "that AcceptanceFit.save wrote, got nowhere, which does not"),
    "clip of 0": (lambda: BalanceMatching(clip=0.0), "clip to be finite and above 0"),
    "alpha beyond 1": (
        lambda: BalanceMatching(alpha=(0.0, 1.5)),
        r"alpha in \[0, 1\], or a tuple of such numbers, got \(0.0, 1.5\)",
    ),
    "no alpha": (lambda: BalanceMatching(alpha=()), r"alpha in \[0, 1\]"),
    "crossed proposals": (lambda: BalanceMatching(all_pairs=True), "all_pairs with independent pairs, got pairs='pro"),
    "no score": (
        lambda: fit_acceptance(Target(log_density=GAUSSIAN.log_density), RandomWalk(1.0), X),
        "a target with a score, got a log density only.*from_log_density",
    ),
    "a network of points for pairs": (
        lambda: fitted("free", net=PotentialMLP(2).double(), standardize=False),
        r"net\(proposed, current\) to take a float64 tensor of shape \(100, 2\), got an error",
    ),
    "a network of another size": (lambda: fitted("free", net=AcceptanceMLP(3)), "check its input size"),
    "a file of another kind": (
        lambda: AcceptanceFit.load(__file__),
        "a file that AcceptanceFit.save wrote, got .*which cannot be read",
    ),
    "too few pairs": (
        lambda: diagnostics.balance_residual(made("free"), GAUSSIAN, RandomWalk(1.0), X[:3]),
        "two pairs, and one for every group, got 3 pairs for 5 groups",
    ),
    "a score of another shape": (
        lambda: fit_acceptance(Target(lambda x: x.sum(1)), RandomWalk(1.0), X),
        r"score\(x\) to be a float64 tensor of shape \(32, 2\) on cpu, got a float64 tensor of shape \(32,\)",
    ),
    "a log q of another shape": (
        lambda: fit_acceptance(GAUSSIAN, Own(lambda to, given: own(to, given)[:, None]), X),
        r"proposal\.log_prob\(x\) to be a float64 tensor of shape \(32,\) on cpu, got .* of shape \(32, 1\)",
    ),
    "one log q for a batch": (
        lambda: fit_acceptance(GAUSSIAN, Own(lambda to, given: own(to, given).mean()), X),
        r"proposal\.log_prob\(x\) to be a float64 tensor of shape \(32,\)",
    ),
    "a support that is none": (
        lambda: fit_acceptance(Target(GAUSSIAN.score, support=lambda x: x[:, 0]), RandomWalk(1.0), X),
        r"support\(x\) to be a bool tensor of shape",
    ),
    "a residual that is not finite": (
        lambda: diagnostics.balance_residual(made("free"), Target(lambda x: x * math.nan), RandomWalk(1.0), X),
        "finite values of the score for every pair, got .* that are not finite",
    ),
    "a residual without a score": (
        lambda: diagnostics.balance_residual(
            made("free"), Target(log_density=GAUSSIAN.log_density), RandomWalk(1.0), X
        ),
        "a target with a score",
    ),
}


OTHER_ERRORS: dict[str, type[Exception]] = {
    "samples of another dtype": TypeError,
    "chains of another dtype": TypeError,
    "a rule for a network": TypeError,
    "a folder for a file": IsADirectoryError,
    "no file": FileNotFoundError,
}


@pytest.mark.parametrize("case", FIT_ACCEPTANCE_REFUSED)
def test_rejected_by_fit_acceptance(case: str) -> None:
    attempt, text = FIT_ACCEPTANCE_REFUSED[case]
    with pytest.raises(OTHER_ERRORS.get(case, ValueError), match=text):
        attempt()


# A learned acceptance in files, and its training in checkpoints.


@pytest.mark.parametrize("form", NETS)
def test_a_fit_is_saved_with_its_header(form: Any, tmp_path: Path) -> None:
    fit = fitted(form)
    fit.save(tmp_path / "fit.safetensors")
    again = AcceptanceFit.load(tmp_path / "fit.safetensors")
    points = (X,) if form == "potential" else (X, X.roll(1, 0))
    assert torch.equal(fit.net(*points), again.net(*points))
    if form == "potential":
        assert torch.equal(again.log_density(X), fit.net(X))
    with pytest.raises(ValueError, match=r"that ScoreFit\.save wrote, got .*which AcceptanceFit\.save wrote\. Use Acc"):
        ScoreFit.load(tmp_path / "fit.safetensors")
    assert (again.history, again.recipe, again.net.made_for) == (fit.history, fit.recipe, fit.net.made_for)
    assert repr(again) == repr(fit)
    assert repr(Learned(again)) == repr(Learned(fit))


@pytest.mark.slow
def test_an_interrupted_training_goes_on_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    path = tmp_path / "training.safetensors"

    class StopError(Exception):
        pass

    calls = 0

    class Stopping(AcceptanceMLP):
        def logit(self, proposed: Tensor, current: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            if calls == 60:
                raise StopError
            return super().logit(proposed, current)

    def attempt(net: nn.Module) -> AcceptanceFit:
        return fitted("free", MALA(0.2), matching=BalanceMatching(1.0, pairs="independent"), net=net, checkpoint=path)

    def network(kind: type[AcceptanceMLP]) -> AcceptanceMLP:
        return kind(2, 128, 2, generator=seeded(5))

    saved = pytest.MonkeyPatch()
    saved.setattr("scoremh.training.SAVE_SECONDS", 0.0)
    Stopping.__name__ = Stopping.__qualname__ = "AcceptanceMLP"
    with pytest.raises(StopError):
        attempt(network(Stopping))
    saved.undo()
    assert path.exists()
    resumed = attempt(network(AcceptanceMLP))
    straight = fitted("free", MALA(0.2), matching=BalanceMatching(1.0, pairs="independent"), net=network(AcceptanceMLP))
    for a, b in zip(resumed.net.parameters(), straight.net.parameters(), strict=True):
        assert torch.equal(a, b)
    assert resumed.history == straight.history
    another_step = r"to hold this training, with loss = \.\.\..*MALA\(step_size=0\.25\).*, got .*MALA\(step_size=0\.2\)"
    with pytest.raises(ValueError, match=another_step):
        fit_acceptance(
            GAUSSIAN,
            MALA(0.25),
            X,
            form="free",
            matching=BalanceMatching(1.0, pairs="independent"),
            net=network(AcceptanceMLP),
            recipe=SHORT,
            checkpoint=path,
        )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"proposal": PCN(0.5, mean=f64(0.0, 0.0))}, {"proposal": PCN(0.5, mean=f64(1.0, 1.0))}),
        ({"target": GAUSSIAN}, {"target": MIXTURE}),
        ({"target": Target(GAUSSIAN.score)}, {"target": Target(GAUSSIAN.score, support=targets.box(-9.0, 3.0))}),
    ],
    ids=["proposal", "score", "support"],
)
def test_a_checkpoint_belongs_to_one_problem(first: Any, second: Any, tmp_path: Path) -> None:
    defaults: dict[str, Any] = {"target": GAUSSIAN, "proposal": RandomWalk(1.0), "samples": X, "recipe": SHORT}
    defaults |= {"generator": seeded(), "checkpoint": tmp_path / "file"}
    fit_acceptance(**defaults | first)
    with pytest.raises(ValueError, match="to hold this training"):
        fit_acceptance(**defaults | second | {"generator": seeded()})


class Tied(nn.Module):
    """A network with weights that share their memory, and a buffer that is not a floating tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
        log_accept: Tensor = self.second(self.first(torch.cat([proposed, current], 1)).tanh())[:, 0]
        return logsigmoid(log_accept)


def test_any_network_is_saved_and_goes_on(tmp_path: Path) -> None:
    fit = fitted("free", net=Tied(), checkpoint=tmp_path / "checkpoint")
    fit.save(tmp_path / "fit")
    again = AcceptanceFit.load(tmp_path / "fit", net=Tied())
    assert torch.equal(fit.net(X, X.roll(1, 0)), again.net(X, X.roll(1, 0)))
    assert fitted("free", net=Tied(), checkpoint=tmp_path / "checkpoint").history == fit.history
