"""Plans: what a fit will train, resolved before it is trained."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch

from scoremh import MALA, Recipe, fit_acceptance, fit_score, targets
from scoremh.balance_matching import MATCHING, RECIPE, acceptance_plan, train_acceptance
from scoremh.networks import FORMS, InputsInCoordinates, NoiseConditionalMLP
from scoremh.score_matching import MultilevelDenoising, score_plan, train_score
from tests.balance_cases import seeded

NORMAL = targets.Gaussian([0.0, 0.0])
X = NORMAL.sample(100, generator=seeded())
SHORT = Recipe(steps=4, batch=16, check_every=2)


def test_the_plan_of_a_score_has_what_was_chosen_and_prints_it() -> None:
    plan = score_plan(X)
    assert isinstance(plan.net, NoiseConditionalMLP)
    assert (plan.loss, plan.recipe) == (MultilevelDenoising(), Recipe())
    for text in ("NoiseConditionalMLP, 33,794 weights", "MultilevelDenoising(low=0.02", "Affine", "100 of shape (2,)"):
        assert text in str(plan)
    assert "Sinh of SquareRoot of Affine" in str(score_plan(X, heavy_tails=True))
    with pytest.raises(FrozenInstanceError):
        plan.recipe = SHORT  # type: ignore[misc]


@pytest.mark.parametrize("form", FORMS)
def test_the_plan_of_an_acceptance_has_what_was_chosen_and_prints_it(form: Any) -> None:
    plan = acceptance_plan(NORMAL, MALA(0.1), X, form=form)
    assert type(plan.form) is FORMS[form]
    assert isinstance(plan.form.net, InputsInCoordinates)
    assert (plan.loss.matching, plan.recipe) == (MATCHING[form], RECIPE)
    assert (plan.form.made_for is None) == (form == "potential")
    for text in (f"{form} acceptance", "MLP, ", "BalanceMatching(", "for MALA(step_size=0.1)", "Recipe(steps=4000"):
        assert text in str(plan)


@pytest.mark.parametrize("form", FORMS)
def test_to_plan_and_to_train_is_to_fit(form: Any) -> None:
    generator = seeded(1)
    planned = train_score(score_plan(X, recipe=SHORT, generator=generator), generator=generator)
    assert torch.equal(planned.score(X), fit_score(X, recipe=SHORT, generator=seeded(1)).score(X))
    generator = seeded(1)
    plan = acceptance_plan(NORMAL, MALA(0.1), X, form=form, recipe=SHORT, generator=generator)
    learned = train_acceptance(plan, generator=generator)
    fit = fit_acceptance(NORMAL, MALA(0.1), X, form=form, recipe=SHORT, generator=seeded(1))
    assert learned.history == fit.history
    assert repr(learned.net) == repr(fit.net)


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
