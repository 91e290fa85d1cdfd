"""Evaluation: its numbers are those of the metrics, it prints, saves, and refuses what cannot be compared."""

import json
import math
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scoremh import ScoreMH, metrics, targets
from scoremh.evaluation import Evaluation, evaluate, floor_ratio
from tests.report_cases import chains, normal

REFERENCE = normal(300, 2)
DRAWS = normal(120, 2, seed=1)
FAR = normal(200, 2, seed=2) + 3
LOST = torch.cat([normal(50, 2, seed=3), torch.full((1, 2), math.nan), normal(99, 2, seed=4)])


@pytest.fixture(scope="module")
def found() -> Evaluation:
    return evaluate({"near": DRAWS, "far": FAR, "lost": LOST}, REFERENCE, points=100, seed=4)


def test_distances_are_those_of_the_metrics_on_as_many_points_of_each(found: Evaluation) -> None:
    order = torch.randperm(300, generator=torch.Generator().manual_seed(4))
    scale = REFERENCE.double().std(0).float()
    rows, draws = REFERENCE[order][:100] / scale, DRAWS[:100] / scale
    assert found.points == 100
    assert found.metrics["near"]["w1"] == metrics.w1(draws, rows)
    assert found.metrics["far"]["w2"] == pytest.approx(metrics.w2(FAR[:100] / scale, rows))
    assert found.metrics["near"]["energy_distance"] == metrics.energy_distance(draws, rows)
    assert found.metrics["near"]["mmd_squared"] == metrics.mmd_squared(draws, rows)
    assert set(found.floors) == {"w1", "w2", "sliced_w2", "energy_distance", "mmd_squared"}


def test_draws_of_the_same_distribution_are_at_the_floor_and_others_are_not(found: Evaluation) -> None:
    near, far = (floor_ratio(found.metrics[name]["w1"] or 0.0, found.floors["w1"]) for name in ("near", "far"))
    assert near == pytest.approx(1, abs=0.5)
    assert far is not None
    assert far > 5
    assert found.p_values["near"] > 0.01
    assert [(one.kind, one.value) for one in found.warnings] == [("p_value", 0.001), ("p_value", 0.0)]
    assert str(found.warnings[0]) == "far can be told apart from reference rows (p = 0.001)."


def test_draws_that_are_not_finite_have_no_distance(found: Evaluation) -> None:
    assert set(found.metrics["lost"].values()) == {None}
    assert found.p_values["lost"] == 0
    assert str(found).count("not finite") == 5


def test_it_prints_as_a_table(found: Evaluation) -> None:
    verdict, *lines = str(found).splitlines()
    assert verdict == str(found.verdict)
    lines = lines[[line.strip() for line in lines].index("100 points each, in standard deviations") :]
    assert lines[1].split() == ["w1", "w2", "sliced_w2", "energy_distance", "mmd_squared", "p"]
    assert [line.split()[0] for line in lines[2:]] == ["near", "far", "lost", "floor:", "floor:", "p:", "power:"]
    assert f"{found.metrics['far']['w1']:.3g} (" in lines[3]
    assert f"with 300 rows a shift of {found.noticed_shift:.2g}" in lines[-1]
    assert "e+" not in str(found)
    assert str(found.verdict.reason).split(";")[0] in found._repr_html_()  # type: ignore[union-attr]


def test_numbers_survive_json(found: Evaluation, tmp_path: Path) -> None:
    found.save(tmp_path / "metrics.json")
    record = json.loads((tmp_path / "metrics.json").read_text())
    assert record == found.to_dict()
    assert set(record) >= {"points", "floors", "samplers", "reference", "rows", "verdict", "checks"}
    assert record["samplers"]["near"]["p_value"] == found.p_values["near"]
    assert Evaluation.from_dict(record) == found
    with pytest.raises(FrozenInstanceError):
        found.points = 3  # type: ignore[misc]


def test_the_seed_decides_and_a_tensor_is_called_draws() -> None:
    first, again = (evaluate(DRAWS, REFERENCE, points=50, seed=1) for _ in range(2))
    assert first == again
    assert first != evaluate(DRAWS, REFERENCE, points=50, seed=2)
    assert list(first.metrics) == ["draws"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "few rows": ({"reference": REFERENCE[:19]}, "at least 20 rows to compare with, got 19"),
    "no samples": ({"samples": {}}, "samples of at least one sampler, got none"),
    "other columns": ({"samples": normal(30, 3)}, r"to have events of shape \(2,\), as the reference, got \(3,\)"),
    "no points": ({"points": 0}, "points of at least 1, got 0"),
    "a reference that is not finite": ({"reference": LOST}, "reference to be finite"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared_is_refused(case: str) -> None:
    changes, text = REFUSED[case]
    with pytest.raises(ValueError, match=text):
        evaluate(**{"samples": DRAWS, "reference": REFERENCE} | changes)


def test_chains_are_evaluated_by_their_last_draws() -> None:
    drawn = chains(normal(60, 5, 2, seed=5))
    assert drawn.evaluate(REFERENCE, points=40, seed=3) == evaluate(drawn.last, REFERENCE, points=40, seed=3)


def test_an_estimator_draws_what_it_needs_and_compares() -> None:
    law = targets.Gaussian([0.0, 1.0])
    x, fresh = (law.sample(n, generator=torch.Generator().manual_seed(n)).numpy() for n in (400, 90))
    brief = {"score_steps": 20, "acceptance_steps": 20, "annealing_steps": 1, "chain_steps": 4, "noise_level": 0.6}
    model = ScoreMH(**brief, verbose=False, random_state=0).fit(x)  # type: ignore[arg-type]
    found = model.evaluate(fresh, random_state=3)
    assert found.points == 45
    draws = torch.from_numpy(np.array(model.sample(45, random_state=3)))
    assert found == evaluate(draws, torch.from_numpy(fresh), points=45)
    assert model.evaluate(fresh, n_samples=30).points == 30
    with pytest.raises(ValueError, match="n_samples of at least 1, got 0"):
        model.evaluate(fresh, n_samples=0)


def test_a_column_in_thousands_hides_no_other() -> None:
    generator = torch.Generator().manual_seed(0)
    reference, draws = torch.randn(400, 2, generator=generator), torch.randn(200, 2, generator=generator)
    draws[:, 0] += 5
    scale = torch.tensor([1.0, 1000.0])
    found = evaluate(draws * scale, reference * scale, points=200)
    assert found.p_values["draws"] < 0.01
    one = evaluate(draws, reference, points=200)
    assert found.metrics["draws"]["w1"] == pytest.approx(one.metrics["draws"]["w1"], rel=1e-4)


@pytest.mark.parametrize("largest", [1e150, 1e307])
def test_draws_that_are_finite_and_no_more_are_judged(largest: float) -> None:
    draws = normal(120, 2, seed=1).double()
    draws[::3, 0] = largest
    found = evaluate(draws, 1e-3 * REFERENCE.double(), points=100)
    assert all(value is not None and math.isfinite(value) for value in found.metrics["draws"].values())
    assert found.verdict is not None
    assert found.verdict.level == "do not use"
    assert found.p_values["draws"] < 0.01
