"""The rows of the paper's Table 3."""

import pytest
from torch import Tensor

from scoremh import RandomWalk, balance_matching, fit_acceptance
from scoremh.balance_matching import PRESETS
from scoremh.networks import AcceptanceMLP, Free
from scoremh.training import DRAWS_PER_PART
from tests.balance_cases import X, seeded
from tests.cases import GAUSSIAN


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
