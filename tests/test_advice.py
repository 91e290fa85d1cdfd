"""Whether a held-out loss was still falling when training ended, and what a fit is then called."""

import dataclasses

import numpy as np
import pytest
import torch

from scoremh import Recipe, ScoreFit, ScoreMH, fit_score
from scoremh.estimator.diagnosis import still_falling


@pytest.fixture(scope="module")
def score() -> ScoreFit:
    return fit_score(torch.randn(50, 2), recipe=Recipe(steps=20))


@pytest.mark.parametrize(
    ("held_out", "falling"),
    [
        ([2.0, 1.8, 1.6, 1.4, 1.2, 1.0], True),
        ([2.0, 1.2, 1.05, 1.02, 1.01, 1.0], False),  # little of all that it fell
        ([1.01, 1.0, 1.02, 1.0, 1.03, 1.005], False),  # chance
        ([2.0, 1.0, 1.1, 1.2, 1.3, 1.4], False),
        ([2.0, 1.0, 1.5], True),  # too few checks to tell
    ],
)
def test_a_loss_that_falls_to_the_end_is_told_from_one_that_does_not(
    score: ScoreFit, held_out: list[float], falling: bool
) -> None:
    steps = np.linspace(0, score.recipe.steps, len(held_out) + 1)[1:]
    history = {"step": steps.tolist()}
    found = dataclasses.replace(score, history=history | {"held_out": held_out})
    assert still_falling(found) == falling
    stopped = {"step": [0.5 * step for step in history["step"]]}
    assert not still_falling(dataclasses.replace(score, history=stopped | {"held_out": held_out}))


@pytest.mark.slow
def test_a_training_that_ends_too_early_is_usable_at_most() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(2000, 2)) * [0.1, 1] + random.choice([-1.0, 1.0], size=(2000, 1))
    model = ScoreMH(acceptance="simpson", score_steps=400, verbose=False, random_state=0).fit(rows)
    assert still_falling(model.score_)
    assert model.diagnose().verdict.level != "good"
    assert model.diagnose().verdict.advice == "Fit with score_steps=8000."
