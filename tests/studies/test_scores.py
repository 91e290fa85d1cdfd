"""Learned scores."""

from pathlib import Path
from typing import Any

import pytest
import torch

from scoremh import Recipe, score_matching
from studies import presets, scores
from tests.studies.cases import is_picture, run_small

SMALL = scores.Config(seeds=(1,), samples=300, fresh=200, fresh_for_loss=100)


@pytest.mark.slow
def test_scores_write_their_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fits of a few steps: the numbers are bad, and the page says so."""
    for name in list(scores.DATASETS)[3:]:
        monkeypatch.delitem(scores.DATASETS, name)
    for name, row in presets.TABLE_2.items():
        monkeypatch.setitem(presets.TABLE_2, name, row._replace(steps=20))

    def quick(x: torch.Tensor, loss: Any = None, **options: Any) -> Any:
        return score_matching.fit_score(x, loss, recipe=Recipe(steps=20, check_every=10), **options)

    monkeypatch.setattr(scores, "fit_score", quick)
    found, page = run_small(scores.STUDY, SMALL, tmp_path)
    assert "reached on all but" in page
    assert len(found.kinds["known"]) == 6
    assert len(found.kinds["held_out"]) == 3 * 5
    assert not any("history_step" in record for record in found.kinds["held_out"])
    assert is_picture(tmp_path / "docs" / "scores_trap.png")


def test_a_training_that_diverged_is_said_to_have() -> None:
    assert scores.loss_text({"diverged": 2600}) == "diverged at step 2,600"
    assert scores.loss_text({"value": -1.234, "error": 0.5}) == "-1.23 +- 0.50"
