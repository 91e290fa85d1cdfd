"""The rows of the paper's Tables 2 and 3, and what is trained by them."""

import pytest
import torch

from scoremh.networks import ScoreMLP
from studies.presets import TABLE_2, TABLE_3, paper_score
from tests.cases import seeded


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


def test_an_acceptance_is_trained_as_the_paper_says() -> None:
    row = TABLE_3["moons"]
    net = row.network((2,), seeded())
    assert (net.hidden, net.blocks) == (256, 3)
    assert (row.matching.entropy, row.matching.all_pairs, row.matching.pairs) == (2.0, True, "independent")
    recipe = row.recipe
    assert (recipe.schedule, recipe.average, recipe.clip, recipe.patience) == ("constant", 0.0, None, None)
    assert (recipe.steps, recipe.batch, recipe.rate) == (1000, 32, 5e-4)
