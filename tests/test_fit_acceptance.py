"""`fit_acceptance`: what training gives, and what sampling does with it."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scoremh import (
    MALA,
    PCN,
    AcceptanceFit,
    BalanceMatching,
    Exact,
    Learned,
    LineIntegral,
    RandomWalk,
    Recipe,
    Target,
    balance_matching,
    diagnostics,
    fit_acceptance,
    fit_score,
    metropolis_hastings,
    sample,
    targets,
)
from scoremh.networks import AcceptanceMLP, Free
from scoremh.types import Proposal
from tests.balance_cases import (
    MIXTURE,
    NETS,
    SHORT,
    Kinked,
    fitted,
    seeded,
)


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
