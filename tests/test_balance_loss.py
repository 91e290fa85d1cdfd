"""The loss of Score Balance Matching: identities in float64."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from scoremh import MALA, BalanceMatching, Point, RandomWalk, Target, targets
from scoremh.coordinates import Affine
from scoremh.networks import AcceptanceMLP, Free
from scoremh.networks.acceptance import leaf, wanted_gradient
from tests.balance_cases import (
    ALL,
    MIXTURE,
    NETS,
    Rule,
    known,
    made,
    seeded,
)
from tests.cases import COVARIANCE, GAUSSIAN, PROPOSALS, TARGETS, f64


@pytest.mark.parametrize("balance", ["metropolis", "barker"])
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("law", [GAUSSIAN, MIXTURE], ids=["gaussian", "mixture"])
@pytest.mark.parametrize("pairs", ["independent", "proposed", "mixed"])
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


@pytest.mark.parametrize("name", PROPOSALS)
@pytest.mark.parametrize("law", ["mixture", "banana"])
def test_the_wanted_gradient_is_that_of_the_log_ratio(law: str, name: str) -> None:
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


def test_entropy_and_acceptance_are_those_of_the_way_forth() -> None:
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
