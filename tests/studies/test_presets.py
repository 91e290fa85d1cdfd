"""The rows of the paper's Tables 2 and 3, and what is trained by them."""

import pytest
import torch
from torch import Tensor

from scoremh import RandomWalk
from scoremh.networks import AcceptanceMLP, Free, ScoreMLP
from studies.presets import TABLE_2, TABLE_3, paper_acceptance, paper_score
from tests.balance_cases import X
from tests.cases import GAUSSIAN, seeded


def test_the_rows_are_table_2() -> None:
    assert {name: tuple(row) for name, row in TABLE_2.items()} == {
        "moons": (64, 1e-3, 5000),
        "pinwheel": (512, 5e-4, 2000),
        "s_curve": (512, 5e-4, 2000),
        "swiss_roll": (512, 5e-4, 2000),
    }


def test_the_rows_are_table_3() -> None:
    rows = {name: (row.rate, row.hidden, row.blocks, row.steps, row.entropy) for name, row in TABLE_3.items()}
    assert rows == {
        "moons": (5e-4, 256, 3, 1000, 2.0),
        "pinwheel": (5e-4, 256, 4, 200, 2.0),
        "s_curve": (5e-4, 512, 4, 200, 2.0),
        "swiss_roll": (5e-4, 512, 4, 200, 1.0),
    }


@pytest.mark.parametrize("name", TABLE_2)
def test_a_score_is_trained_as_the_paper_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE_2, name, TABLE_2[name]._replace(steps=4))
    x = torch.randn(100, 3, generator=seeded())
    fit = paper_score(x, name, generator=seeded())
    assert isinstance(fit.net, ScoreMLP)  # nothing standardised
    assert fit.net.hidden == TABLE_2[name].hidden
    assert fit.loss == "SlicedScoreMatching(variance_reduced=True, projections=1)"
    assert (fit.recipe.schedule, fit.recipe.average) == ("constant", 0.0)


def test_an_acceptance_is_trained_as_the_paper_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE_3, "moons", TABLE_3["moons"]._replace(steps=2))
    fit = paper_acceptance(GAUSSIAN, RandomWalk(1.0), X, "moons", generator=seeded())
    assert isinstance(fit.net, Free)
    assert isinstance(fit.net.net, AcceptanceMLP)
    assert (fit.net.net.hidden, fit.net.net.blocks) == (256, 3)
    assert "entropy=2.0" in fit.loss
    assert "all_pairs=True" in fit.loss
    recipe = fit.recipe
    assert (recipe.schedule, recipe.average, recipe.clip, recipe.patience) == ("constant", 0.0, None, None)


def test_crossed_pairs_are_compared_pair_by_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Crossing thousands of held-out samples would take hours."""
    monkeypatch.setitem(TABLE_3, "moons", TABLE_3["moons"]._replace(steps=2, hidden=8))
    original, rows = AcceptanceMLP.logit, 0

    def counted(self: AcceptanceMLP, proposed: Tensor, current: Tensor) -> Tensor:
        nonlocal rows
        rows += len(proposed)
        return original(self, proposed, current)

    monkeypatch.setattr(AcceptanceMLP, "logit", counted)
    paper_acceptance(GAUSSIAN, RandomWalk(1.0), GAUSSIAN.sample(5000, generator=seeded()), "moons")
    assert rows == 100 + 2 * 2 * 16 * 16 + 2 * 500  # a trial, two steps, and one look
