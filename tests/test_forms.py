"""The forms of a learned acceptance, and the rule that they make."""

import math
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
    Point,
    RandomWalk,
    Recipe,
    Target,
    diagnostics,
    fit_acceptance,
    fit_score,
    metropolis_hastings,
    networks,
    sample,
)
from scoremh.balance_matching import MATCHING
from scoremh.coordinates import Affine
from scoremh.networks import FORMS, AcceptanceMLP, Antisymmetric, Free, InputsInCoordinates, Potential, PotentialMLP
from scoremh.networks.acceptance import leaf
from scoremh.types import Proposal
from tests.balance_cases import MIXTURE, NORMAL, Box, Counting, X, fitted, known, made, seeded, shaken
from tests.cases import COVARIANCE, GAUSSIAN, PROPOSALS


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
        BalanceMatching(entropy=1.0).between(n, known(MIXTURE), proposal, leaf(x, known(MIXTURE), proposal), y)
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
    informed = rule.informed(exact)
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


def test_standard_inputs_change_coordinates_only() -> None:
    inside = AcceptanceMLP(2, 8, 1).double()
    net = InputsInCoordinates(inside, Affine.whitening(3 + 5 * X))
    u = net.coordinates.inverse(3 + 5 * X)
    torch.testing.assert_close(u.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(net(3 + 5 * X, 3 + 5 * X), inside(u, u))
    torch.testing.assert_close(net.logit(3 + 5 * X, 3 + 5 * X), inside.logit(u, u))
    spec = networks.describe(Antisymmetric(net))
    assert networks.describe(networks.build(spec)) == spec


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


def test_learned_takes_acceptances_only() -> None:
    score = fit_score(X, recipe=Recipe(steps=1, check_every=1))
    with pytest.raises(TypeError, match="a network for an acceptance"):
        Learned(score)
    with pytest.raises(TypeError, match="a network for an acceptance"):
        diagnostics.balance_residual(score, GAUSSIAN, RandomWalk(1.0), X)
    assert repr(Learned(made("free").bfloat16())).startswith("Learned(<Free ")


def test_an_acceptance_in_low_precision_knows_its_proposal() -> None:
    fit = fitted("free")
    fit.net.bfloat16()
    metropolis_hastings(NORMAL, RandomWalk(1.0), Learned(fit))
    with pytest.raises(ValueError, match="for which this acceptance was learned"):
        metropolis_hastings(NORMAL, RandomWalk(1.3), Learned(fit))


class Halved(Antisymmetric):
    """A fourth form, half as willing as Barker's rule: its ratio is that of an antisymmetric network."""

    def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
        return super().forward(proposed, current) - math.log(2)

    def log_accepts(self, current: Point, proposed: Point, *, proposal: Proposal) -> tuple[Tensor, Tensor]:
        forth, back = super().log_accepts(current, proposed, proposal=proposal)
        return forth - math.log(2), back - math.log(2)


def test_a_fourth_form_is_a_class_and_a_default_loss(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing else has to know of it: planning, training, files, rules and judging ask the class.

    It takes the name of another, since names are checked as types under pytest.
    """
    direct = fitted("antisymmetric")
    monkeypatch.setitem(networks.FORMS, "antisymmetric", Halved)
    fit = fitted("antisymmetric", checkpoint=tmp_path / "checkpoint")
    assert repr(fit).startswith("halved acceptance by BalanceMatching(")
    fit.save(tmp_path / "fit")
    rule = Learned(AcceptanceFit.load(tmp_path / "fit"))
    chains = sample(metropolis_hastings(GAUSSIAN, RandomWalk(1.0), rule), X, draws=5, generator=seeded())
    assert 0 < chains.acceptance_rate < 0.5
    with pytest.raises(ValueError, match="for which this acceptance was learned"):
        metropolis_hastings(GAUSSIAN, RandomWalk(2.0), rule)
    found = diagnostics.balance_residual(fit, GAUSSIAN, RandomWalk(1.0), X, generator=seeded())
    expected = diagnostics.balance_residual(direct, GAUSSIAN, RandomWalk(1.0), X, generator=seeded())
    assert found.integral.rms == pytest.approx(expected.integral.rms, rel=0.2)  # the scale of a is no residual
    with pytest.raises(ValueError, match='entropy and scale with form="free" alone'):
        fitted("antisymmetric", matching=BalanceMatching(scale=1.0))


def test_a_form_is_complete() -> None:
    """What a new form has to say: the class says all but its name and default loss, which are in one table each."""
    assert set(FORMS) == set(MATCHING)
    x = torch.randn(12, 2, generator=seeded())
    for form in FORMS.values():
        made = form(form.network((2,), generator=seeded()))
        answer = made(*made.inputs(x))
        made.require_answer(answer)
        assert answer.shape == (12,)
        assert (made.potential is None) == form.one_proposal
        assert made.call in ("net(x)", "net(proposed, current)")
