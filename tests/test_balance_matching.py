"""Score Balance Matching: identities in float64 first, then what training and sampling do with it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    fit_acceptance,
    fit_score,
    metropolis_hastings,
    networks,
    sample,
    targets,
)
from scoremh._shared import detailed_balance
from scoremh.balance_matching import PRESETS
from scoremh.coordinates import Affine
from scoremh.networks import AcceptanceMLP, Antisymmetric, Free, InputsInCoordinates, Potential, PotentialMLP
from scoremh.training.state import DRAWS_PER_PART
from scoremh.types import Proposal
from tests.cases import COVARIANCE, GAUSSIAN, PROPOSALS, TARGETS, f64

MIXTURE = TARGETS["mixture"]
NORMAL = Target(lambda x: -x)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def known(law: Any) -> Target:
    return Target(law.score, law.log_density, law.support)


class Rule(nn.Module):
    """The exact Metropolis or Barker acceptance of a law and a proposal, divided by M."""

    def __init__(self, law: Any, proposal: Proposal, balance: str, scale: float = 1.0) -> None:
        super().__init__()
        self.law, self.proposal, self.balance, self.scale = known(law), proposal, balance, scale

    def ratio(self, proposed: Tensor, current: Tensor) -> Tensor:
        x, y = (Point.at(z, self.law, frozenset({"score", "log_density"})) for z in (current, proposed))
        assert x.log_density is not None
        assert y.log_density is not None
        return y.log_density - x.log_density + detailed_balance.log_q_ratio(self.proposal, x, y)

    def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
        ratio = self.ratio(proposed, current)
        return (logsigmoid(ratio) if self.balance == "barker" else ratio.clamp(max=0)) - math.log(self.scale)


class Laplace:
    """A user's own proposal; nobody wrote its gradient."""

    needs: frozenset[Any] = frozenset()

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Tensor:
        e = torch.empty(2, *at.x.shape, dtype=at.x.dtype).exponential_(generator=generator)
        return 0.9 * at.x + e[0] - e[1]

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        return -(to.x - 0.9 * given.x).abs().sum(1)


ALL: dict[str, Proposal] = PROPOSALS | {"laplace": Laplace()}


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
    wanted = detailed_balance.wanted_gradient(
        proposal, detailed_balance.leaf(x, target, proposal), detailed_balance.leaf(y, target, proposal)
    )
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
        detailed_balance.wanted_gradient(
            proposal, detailed_balance.leaf(x, t, proposal), detailed_balance.leaf(y, t, proposal)
        )
        for t in (target, known(MIXTURE))
    )
    torch.testing.assert_close(ours, direct, atol=1e-10, rtol=1e-10)


NETS: dict[str, Any] = {
    "free": lambda: Free(AcceptanceMLP(2, hidden=8, blocks=2, generator=seeded())),
    "antisymmetric": lambda: Antisymmetric(AcceptanceMLP(2, hidden=8, blocks=2, generator=seeded())),
    "potential": lambda: Potential(shaken(PotentialMLP(2, hidden=8, layers=2))),
}


@pytest.mark.parametrize("standardized", [False, True])
def test_the_closed_form_of_a_potentials_gradient_is_its_gradient(*, standardized: bool) -> None:
    """And so is what the weights see of it; a network without one is differentiated."""
    mlp = shaken(PotentialMLP(2, hidden=8, layers=3)).double()
    standard = Affine.whitening(MIXTURE.sample(100, generator=seeded()).double())
    inside = InputsInCoordinates(mlp, standard) if standardized else mlp
    x = MIXTURE.sample(20, generator=seeded(1)).double()
    weight = torch.randn(20, 2, generator=seeded()).double()
    answers = []
    for net in (Potential(inside), Potential(nn.Sequential(inside))):
        mlp.zero_grad()
        phi, gradient = net.value_and_gradient(x)
        ((weight * gradient).sum() + phi.sin().sum()).backward()
        answers.append([phi, gradient, *(p.grad for p in mlp.parameters())])
    for closed, differentiated in zip(*answers, strict=True):
        torch.testing.assert_close(closed, differentiated)


def shaken(net: nn.Module) -> nn.Module:
    """Return a network none of whose weights is 0."""
    for i, weight in enumerate(net.parameters()):
        nn.init.normal_(weight, std=0.5, generator=seeded(i))
    return net


def made(form: str) -> Any:
    return NETS[form]().double()


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


@pytest.mark.parametrize("name", ["rw", "mala-full", "pcn-scaled"])
def test_the_terms_of_the_proposal_cancel_for_a_potential(name: str) -> None:
    """Its loss is that of the acceptance it stands for, computed the long way."""
    net, proposal = made("potential"), PROPOSALS[name]

    class Long(nn.Module):
        def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
            x, y = (Point.at(z, known(MIXTURE), proposal.needs) for z in (current, proposed))
            return logsigmoid(net.log_ratio(x, y, proposal=proposal))

    x, y = (MIXTURE.sample(50, generator=seeded(i)) for i in range(2))
    short, long = (
        BalanceMatching(entropy=1.0).between(
            n, known(MIXTURE), proposal, detailed_balance.leaf(x, known(MIXTURE), proposal), y
        )
        for n in (net, Long())
    )
    for term in short:
        torch.testing.assert_close(short[term], long[term], atol=1e-9, rtol=1e-9)


def test_forms_are_what_they_say() -> None:
    x, y = (MIXTURE.sample(50, generator=seeded(i)) for i in range(2))
    net, walk = made("antisymmetric"), RandomWalk(1.0)
    ratio = net.log_ratio(Point(x), Point(y), proposal=walk)
    torch.testing.assert_close(ratio, -net.log_ratio(Point(y), Point(x), proposal=walk))
    torch.testing.assert_close(net(y, x), logsigmoid(ratio))
    forth, back = net.log_accepts(Point(x), Point(y), proposal=walk)
    torch.testing.assert_close(forth - back, ratio)
    torch.testing.assert_close(forth.exp() + back.exp(), torch.ones(50, dtype=torch.float64))
    free = made("free")
    torch.testing.assert_close(free.log_accepts(Point(x), Point(y), proposal=walk), (free(y, x), free(x, y)))


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
    current = detailed_balance.leaf(x, known(MIXTURE), walk)
    terms = BalanceMatching().between(Right(), known(MIXTURE), walk, current, x + f64(1.0, 0.0))
    a = 0.5 / (1 + math.exp(-3))
    assert float(terms["acceptance"]) == pytest.approx(a)
    assert float(terms["entropy"]) == pytest.approx(a * math.log(a) + (1 - a) * math.log(1 - a))


class Counting:
    """A function that counts its calls and the rows it was called with."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls, self.rows = function, 0, 0

    def __call__(self, x: Tensor, *more: Tensor) -> Tensor:
        self.calls, self.rows = self.calls + 1, self.rows + len(x)
        value: Tensor = self.function(x, *more)
        return value


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
        matching.between(
            net, known(MIXTURE), proposal, detailed_balance.leaf(a[None], known(MIXTURE), proposal), b[None]
        )
        for a in x[:6]
        for b in x[6:]
    ]
    for term, value in whole.items():
        assert float(value.detach()) == pytest.approx(sum(float(terms[term].detach()) for terms in one) / 36)


def test_alpha_rises_as_told() -> None:
    assert [BalanceMatching(alpha=(0.0, 1.0, 1.0)).alpha_at(t) for t in (0.0, 0.25, 0.5, 1.0)] == [0.0, 0.5, 1.0, 1.0]
    assert BalanceMatching(alpha=0.3).alpha_at(0.9) == 0.3


def test_clipping_bounds_both_sides_and_is_counted() -> None:
    net, x = made("free"), MIXTURE.sample(400, generator=seeded())
    current = detailed_balance.leaf(x, known(MIXTURE), RandomWalk(1.0))
    proposed = x.roll(1, 0)
    wanted = detailed_balance.wanted_gradient(
        RandomWalk(1.0), current, detailed_balance.leaf(proposed, known(MIXTURE), RandomWalk(1.0))
    )
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
    terms = BalanceMatching(clip=2.0).between(net, flat, walk, detailed_balance.leaf(x, flat, walk), x.roll(1, 0))
    assert float(terms["clipped"]) == 1
    assert float(terms["balance"]) == pytest.approx(4)
    terms["loss"].backward()
    assert net.w.grad is not None
    assert float(net.w.grad) == pytest.approx(8)  # of (c w)^2 with c w = 2 at w = 1; 0 were the factor differentiated


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
    few = detailed_balance.leaf(x[inside], Target(lambda x: -x), walk)
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


SHORT = Recipe(steps=60, batch=64, rate=4e-3, check_every=20)
X = GAUSSIAN.sample(500, generator=seeded())


def fitted(form: Any = "antisymmetric", proposal: Proposal | None = None, **options: Any) -> AcceptanceFit:
    all_options: Any = {"recipe": SHORT, "generator": seeded(3)} | options
    return fit_acceptance(GAUSSIAN, proposal or RandomWalk(1.0), X, form=form, **all_options)


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
    assert ("mean of a(x', x) 0." in shown) == (form != "potential")  # whose pairs are no moves
    assert not any(p.requires_grad for p in fit.net.parameters())


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
    saved.setattr("scoremh.training.loop.SAVE_SECONDS", 0.0)
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


@pytest.mark.parametrize("form", ["free", "antisymmetric"])
@pytest.mark.parametrize(
    ("trained", "other"),
    [
        (RandomWalk(1.0), RandomWalk(1.1)),
        (RandomWalk(1.0), MALA(0.5)),
        (MALA(0.2), MALA(0.25)),
        (PCN(0.5), PCN(0.5, mean=0.1)),
        (RandomWalk(0.7, covariance=COVARIANCE), RandomWalk(0.7, covariance=COVARIANCE + torch.eye(2).double())),
    ],
    ids=str,
)
def test_an_acceptance_serves_its_own_proposal_only(form: Any, trained: Proposal, other: Proposal) -> None:
    rule = Learned(fitted(form, trained, recipe=Recipe(steps=1, batch=8, check_every=1)))
    metropolis_hastings(GAUSSIAN, trained, rule)
    text = r"for which this acceptance was learned, got .*use form=\"potential\", which serves every"
    with pytest.raises(ValueError, match=text):
        metropolis_hastings(GAUSSIAN, other, rule)
    with pytest.raises(ValueError, match=text):
        diagnostics.disagreement(Exact(), rule, target=GAUSSIAN, proposal=other, x=X)


def test_a_potential_serves_all_and_is_asked_once_per_candidate() -> None:
    fit = fitted("potential")
    counted = Counting(fit.net.net.forward)
    fit.net.net.forward = counted
    for proposal in PROPOSALS.values():
        counted.rows = 0
        kernel = metropolis_hastings(Target(GAUSSIAN.score), proposal, Learned(fit, "metropolis"))
        sample(kernel, X[:10], draws=7, generator=seeded())
        assert counted.rows == 10 + 7 * 10


def test_learned_says_what_its_network_says() -> None:
    free, x, y = made("free"), X, X.roll(1, 0)
    points, target, walk = (Point(x), Point(y)), Target(GAUSSIAN.score), RandomWalk(1.0)

    def log_accept(net: nn.Module, balance: Any) -> Tensor:
        return Learned(net, balance).log_accept(*points, target=target, proposal=walk)

    torch.testing.assert_close(log_accept(free, "direct"), free(y, x))
    ratio = free(y, x) - free(x, y)
    torch.testing.assert_close(log_accept(free, "metropolis"), ratio.clamp(max=0))
    torch.testing.assert_close(log_accept(free, "barker"), logsigmoid(ratio))
    for form in ("antisymmetric", "potential"):
        torch.testing.assert_close(log_accept(made(form), "direct"), log_accept(made(form), "barker"))
    potential = made("potential")
    torch.testing.assert_close(log_accept(potential, "metropolis"), (potential(y) - potential(x)).clamp(max=0))
    assert metropolis_hastings(target, walk, Learned(free)).target_rate == 0.159
    assert metropolis_hastings(target, walk, Learned(free, "metropolis")).target_rate == 0.234


def test_a_potential_is_asked_where_points_know_another_density() -> None:
    """What a point carries is the target's own log density unless the kernel took it from the rule."""
    phi, walk, exact = made("potential"), RandomWalk(1.0), known(GAUSSIAN)
    points = [Point.at(x, exact, frozenset({"log_density"})) for x in (X, X.roll(1, 0))]
    rule = Learned(phi, "metropolis")
    ratio = rule.log_ratio(points[0], points[1], target=exact, proposal=walk)
    torch.testing.assert_close(ratio, phi(X.roll(1, 0)) - phi(X))
    informed = rule.known(exact)
    points = [Point.at(x, informed, frozenset({"log_density"})) for x in (X, X.roll(1, 0))]
    counted = Counting(phi.net.forward)
    phi.net.forward = counted
    torch.testing.assert_close(rule.log_ratio(points[0], points[1], target=informed, proposal=walk), ratio)
    assert counted.calls == 0


def test_two_networks_have_two_names() -> None:
    first, second = (Learned(Free(AcceptanceMLP(2, 8, 1, generator=seeded(i))), "metropolis") for i in range(2))
    assert repr(first) != repr(second)
    assert repr(first).startswith("Learned(<Free ")
    assert "balance='metropolis'" in repr(first)


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


def test_a_potential_learns_from_as_many_points_as_there_are_samples() -> None:
    score = Counting(MIXTURE.score)
    x = MIXTURE.sample(64, generator=seeded())
    BalanceMatching().terms(made("potential"), Target(score), RandomWalk(1.0), x, generator=seeded())
    assert score.rows == 64  # 32 pairs


def test_the_presets_are_table_3() -> None:
    rows = {name: (row.rate, row.hidden, row.blocks, row.steps, row.entropy) for name, row in PRESETS.items()}
    assert rows == {
        "moons": (5e-4, 256, 3, 1000, 2.0),
        "pinwheel": (5e-4, 256, 4, 200, 2.0),
        "s_curve": (5e-4, 512, 4, 200, 2.0),
        "swiss_roll": (5e-4, 512, 4, 200, 1.0),
    }


def test_a_preset_is_trained_as_the_paper_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(balance_matching.PRESETS, "moons", PRESETS["moons"]._replace(steps=2))
    fit = fit_acceptance(GAUSSIAN, RandomWalk(1.0), X, preset="moons", generator=seeded())
    assert isinstance(fit.net, Free)
    assert isinstance(fit.net.net, AcceptanceMLP)
    assert (fit.net.net.hidden, fit.net.net.blocks) == (256, 3)
    assert "entropy=2.0" in fit.loss
    assert "all_pairs=True" in fit.loss
    recipe = fit.recipe
    assert (recipe.schedule, recipe.average, recipe.clip, recipe.patience) == ("constant", 0.0, None, None)


def test_standard_inputs_change_coordinates_only() -> None:
    inside = AcceptanceMLP(2, 8, 1).double()
    net = InputsInCoordinates(inside, Affine.whitening(3 + 5 * X))
    u = net.coordinates.inverse(3 + 5 * X)
    torch.testing.assert_close(u.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(net(3 + 5 * X, 3 + 5 * X), inside(u, u))
    torch.testing.assert_close(net.logit(3 + 5 * X, 3 + 5 * X), inside.logit(u, u))
    spec = networks.describe(Antisymmetric(net))
    assert networks.describe(networks.build(spec)) == spec


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
        net, Target(lambda z: -z), RandomWalk(1.0), detailed_balance.leaf(u, Target(lambda z: -z), RandomWalk(1.0)), v
    )
    x, y = (law.mean + z @ root.T for z in (u, v))
    walk = RandomWalk(1.0, covariance=COVARIANCE)
    in_x = BalanceMatching(clip=1.0).between(
        Inside(), known(law), walk, detailed_balance.leaf(x, known(law), walk), y, Affine(law.mean, root)
    )
    for term, value in in_u.items():
        torch.testing.assert_close(in_x[term], value, atol=1e-9, rtol=1e-9)


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


def test_a_score_without_a_graph_is_refused_where_the_proposal_needs_one() -> None:
    def closed(x: Tensor) -> Tensor:
        with torch.no_grad():
            score: Tensor = MIXTURE.score(x)
        return score

    short: Any = {"recipe": Recipe(steps=1, batch=8, check_every=1)}
    with pytest.raises(ValueError, match=r"a score to differentiate, as MALA\(step_size=0.2\) needs.*create_graph"):
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
class Local:
    """A walk whose steps are longer where the density is low."""

    needs: frozenset[Any] = frozenset({"log_density"})

    def width(self, at: Point) -> Tensor:
        assert at.log_density is not None
        return (0.3 - 0.1 * at.log_density.tanh())[:, None]

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Tensor:
        return at.x + self.width(at) * torch.randn(at.x.shape, generator=generator, dtype=at.x.dtype)

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        width = self.width(given)
        return -((to.x - given.x) / width).square().sum(1) / 2 - 2 * width[:, 0].log()


def test_a_log_density_without_a_graph_is_refused_too() -> None:
    def closed(x: Tensor) -> Tensor:
        log_density: Tensor = MIXTURE.log_density(x).detach()
        return log_density

    short: Any = {"form": "free", "recipe": Recipe(steps=1, batch=8, check_every=1)}
    with pytest.raises(ValueError, match="a log_density to differentiate, as Local"):
        fit_acceptance(Target(MIXTURE.score, closed), Local(), X, **short)
    fit_acceptance(MIXTURE, Local(), X, **short)


def test_a_trial_asks_nothing_of_no_points() -> None:
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


@dataclass
class Own:
    """A user's own proposal, x' = x / 2 + z, whose log density is spoiled."""

    spoil: Callable[[Tensor, Tensor], Tensor]
    needs: frozenset[Any] = frozenset()

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Tensor:
        return 0.5 * at.x + torch.randn(at.x.shape, generator=generator, dtype=at.x.dtype)

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        return self.spoil(to.x, given.x)


def own(to: Tensor, given: Tensor) -> Tensor:
    return -(to - 0.5 * given).square().sum(1) / 2


WITHOUT_GRADIENT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "no graph": lambda to, given: own(to, given).detach(),
    "numpy": lambda to, given: torch.from_numpy(own(to, given).detach().numpy()),
    "half a graph": lambda to, given: own(to, given.detach()),
    "half of a symmetric one": lambda to, given: -(to - given.detach()).square().sum(1) / 2,
}


@pytest.mark.parametrize("how", WITHOUT_GRADIENT)
def test_a_proposal_that_autograd_cannot_see_is_refused(how: str) -> None:
    options: Any = {"recipe": Recipe(steps=1, batch=8, check_every=1)}
    with pytest.raises(
        ValueError, match=r"differentiable by autograd in both points, got gradients that add up to .*potential"
    ):
        fit_acceptance(MIXTURE, Own(WITHOUT_GRADIENT[how]), X, form="antisymmetric", **options)
    fit_acceptance(MIXTURE, Own(WITHOUT_GRADIENT[how]), X, form="potential", **options)
    fit_acceptance(MIXTURE, Own(own), X, form="antisymmetric", **options)


@dataclass
class Box:
    """A walk with steps in a box."""

    width: float
    needs: frozenset[Any] = frozenset()

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Tensor:
        return at.x + self.width * (2 * torch.rand(at.x.shape, generator=generator, dtype=at.x.dtype) - 1)

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        inside = ((to.x - given.x).abs() <= self.width).all(1)
        return torch.where(inside, -to.x[0].numel() * math.log(2 * self.width), -math.inf).to(to.x)


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
def test_what_a_gradient_does_not_see_is_refused(form: Any) -> None:
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


def test_a_bounded_step_leaves_no_pair_without_a_number() -> None:
    """Half way to a proposal, neither way may be possible: log q is -inf - -inf there."""
    fit = fit_acceptance(MIXTURE, Box(0.1), X, recipe=Recipe(steps=2, batch=64, check_every=1), generator=seeded())
    assert all(math.isfinite(value) for value in fit.history["acceptance"])


@pytest.mark.parametrize("unit", [1.0, 1e-5])
def test_an_acceptance_refuses_what_differs_by_its_step_or_by_its_drift_alone(unit: float) -> None:
    x, law = unit * X, Target(lambda x: -x / unit**2)
    short: Any = {"form": "free", "recipe": Recipe(steps=1, batch=8, check_every=1)}
    h = 0.1 * unit**2
    pairs: list[tuple[Proposal, Proposal]] = [(Box(0.3 * unit), Box(0.6 * unit)), (MALA(h), RandomWalk((2 * h) ** 0.5))]
    for made_for, another in pairs:
        rule = Learned(fit_acceptance(law, made_for, x, **short))
        metropolis_hastings(law, made_for, rule)
        with pytest.raises(ValueError, match="for which this acceptance was learned"):
            metropolis_hastings(law, another, rule)


@pytest.mark.parametrize("form", ["free", "antisymmetric"])
def test_with_another_score_mala_is_another_proposal(form: Any) -> None:
    short = Recipe(steps=1, batch=8, check_every=1)
    another = Target(lambda x: 1.01 * GAUSSIAN.score(x))
    rule = Learned(fit_acceptance(GAUSSIAN, MALA(0.2), X, form=form, recipe=short))
    metropolis_hastings(Target(GAUSSIAN.score), MALA(0.2), rule)
    text = r"expected MALA\(step_size=0.2\), for which .* learned, got MALA\(step_size=0.2\) with another step or sc"
    with pytest.raises(ValueError, match=text):
        metropolis_hastings(another, MALA(0.2), rule)
    with pytest.raises(ValueError, match=text):
        diagnostics.balance_residual(rule.net, another, MALA(0.2), X)
    with pytest.raises(ValueError, match="expected a target with a score, which MALA"):
        metropolis_hastings(Target(log_density=GAUSSIAN.log_density), MALA(0.2), rule)
    walk = Learned(fit_acceptance(GAUSSIAN, RandomWalk(0.5), X, form=form, recipe=short))
    metropolis_hastings(another, RandomWalk(0.5), walk)  # asks for no score


def test_training_under_inference_mode_is_refused_and_its_samples_are_taken() -> None:
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


def test_a_free_network_answers_log_a() -> None:
    class Unbounded(AcceptanceMLP):
        def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
            return self.logit(proposed, current)

    with pytest.raises(ValueError, match=r"to answer log a, at most 0, got .*logsigmoid"):
        fitted("free", net=Unbounded(2))
    fitted("antisymmetric", net=Unbounded(2))  # any number is half of a log ratio


class Kinked:
    """A proposal whose density has no gradient where x' = x, on positive numbers only."""

    needs: frozenset[Any] = frozenset()

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Tensor:
        return at.x * (0.5 * torch.randn(at.x.shape, generator=generator, dtype=at.x.dtype)).exp()

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        return -(to.x.log() - given.x.log()).square().sum(1).sqrt() - to.x.log().sum(1)


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


def test_a_preset_is_judged_pair_by_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Crossing thousands of held-out samples would take hours."""
    monkeypatch.setitem(balance_matching.PRESETS, "moons", PRESETS["moons"]._replace(steps=2, hidden=8))
    original, rows = AcceptanceMLP.logit, 0

    def counted(self: AcceptanceMLP, proposed: Tensor, current: Tensor) -> Tensor:
        nonlocal rows
        rows += len(proposed)
        return original(self, proposed, current)

    monkeypatch.setattr(AcceptanceMLP, "logit", counted)
    fit_acceptance(GAUSSIAN, RandomWalk(1.0), GAUSSIAN.sample(5000, generator=seeded()), preset="moons")
    assert rows == 100 + 2 * 2 * 16 * 16 + DRAWS_PER_PART * 2 * 500  # a trial, two steps, and one look


def test_learned_takes_acceptances_only() -> None:
    score = fit_score(X, recipe=Recipe(steps=1, check_every=1))
    with pytest.raises(TypeError, match="a network for an acceptance"):
        Learned(score)
    with pytest.raises(TypeError, match="a network for an acceptance"):
        diagnostics.balance_residual(score, GAUSSIAN, RandomWalk(1.0), X)
    assert repr(Learned(made("free").bfloat16())).startswith("Learned(<Free ")


@pytest.mark.slow
def test_the_free_form_does_not_get_stuck_where_it_is_flat() -> None:
    """Figure 1's modes: begun at a = 1/2, a free form takes one for a plateau where every move is accepted."""
    law, walk = targets.GaussianMixture([0.8, 0.2], [[5.0, 5.0], [-5.0, -5.0]]), RandomWalk(1.7)
    fit, pairs = trained(law, walk, "free", steps=500)
    assert diagnostics.disagreement(Learned(fit, "metropolis"), Exact(), **pairs).rate < 0.05
    at_a_half = AcceptanceMLP(2, hidden=128, blocks=2, generator=seeded(1))
    stuck, pairs = trained(law, walk, "free", steps=500, net=at_a_half)
    found = diagnostics.disagreement(Learned(stuck, "metropolis"), Exact(), **pairs)
    assert found.rate > 0.1
    assert found.acceptance_rates[0] > found.acceptance_rates[1] + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("proposal", [RandomWalk(1.2), MALA(0.3), PCN(0.5)], ids=repr)
@pytest.mark.parametrize("form", NETS)
def test_a_learned_acceptance_decides_as_the_density_does(form: Any, proposal: Proposal) -> None:
    law = targets.GaussianMixture([0.6, 0.4], [[1.2, 1.0], [-1.0, -1.4]])
    fit, pairs = trained(law, proposal, form, steps=600)
    for rule in (Exact(), LineIntegral("gauss", nodes=8)):
        assert diagnostics.disagreement(Learned(fit, "metropolis"), rule, **pairs).rate < 0.05
    residual = diagnostics.balance_residual(fit, law, proposal, pairs["x"], generator=seeded())
    assert residual.density is not None
    assert residual.density.correlation > 0.98


class Wavy(PotentialMLP):
    """A potential with a closed form of another one's gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x[:, 0].sin()


class Tied(nn.Module):
    """A network with weights that share their memory, and a buffer that is no floating number."""

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


def test_an_acceptance_in_low_precision_knows_its_proposal() -> None:
    fit = fitted("free")
    fit.net.bfloat16()
    metropolis_hastings(NORMAL, RandomWalk(1.0), Learned(fit))
    with pytest.raises(ValueError, match="for which this acceptance was learned"):
        metropolis_hastings(NORMAL, RandomWalk(1.3), Learned(fit))


def single() -> AcceptanceFit:
    """Return an acceptance in single precision."""
    return fit_acceptance(NORMAL, RandomWalk(1.0), X.float(), form="free", recipe=SHORT, generator=seeded())


REFUSED: dict[str, tuple[Any, str]] = {
    "negative entropy": (lambda: BalanceMatching(entropy=-1.0), "entropy to be finite and at least 0, got -1.0"),
    "negative scale": (lambda: BalanceMatching(scale=-1.0), "scale to be finite and at least 0, got -1.0"),
    "entropy where no scale is free": (
        lambda: fit_acceptance(GAUSSIAN, MALA(0.1), X, matching=BalanceMatching(entropy=2.0)),
        "entropy and scale with form=\"free\" alone, got BalanceMatching.* with form='potential'",
    ),
    "a score that is not finite": (
        lambda: fit_acceptance(Target(lambda x: x.log()), RandomWalk(1.0), X),
        r"a score that is finite at the samples, got NaN or inf at \d+ of 32, the first at \[",
    ),
    "samples of another dtype": (
        lambda: fit_acceptance(fit_score(X.float(), recipe=SHORT), RandomWalk(1.0), X),
        r"points of the dtype of the network, got another .*x\.float\(\), or the network, with net\.to\(x\.dtype\)",
    ),
    "chains of another dtype": (
        lambda: sample(metropolis_hastings(NORMAL, RandomWalk(1.0), Learned(single())), X[:3], draws=1),
        "points of the dtype of the network, got another",
    ),
    "the log density of a pair": (lambda: fitted().log_density(X), "a potential, got an acceptance of Antis"),
    "a potential of two minds": (
        lambda: fitted("potential", net=Wavy(2)),
        "a value_and_gradient for the forward of Wavy, got that of PotentialMLP. Write it too",
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
        r"alpha in \[0, 1\], or a tuple of such, got \(0.0, 1.5\)",
    ),
    "no alpha": (lambda: BalanceMatching(alpha=()), r"alpha in \[0, 1\]"),
    "crossed proposals": (lambda: BalanceMatching(all_pairs=True), "all_pairs with independent pairs, got pairs='pro"),
    "a preset and a net": (lambda: fitted(preset="moons"), "a preset alone, got a preset with"),
    "an unknown preset": (
        lambda: fit_acceptance(GAUSSIAN, MALA(0.1), X, preset="circles"),
        "preset to be one of 'moons'",
    ),
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
        "finite numbers for every pair, got .* that are not, of the score",
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


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    attempt, text = REFUSED[case]
    with pytest.raises(OTHER_ERRORS.get(case, ValueError), match=text):
        attempt()
