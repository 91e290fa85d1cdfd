"""Table 1, small: what it computes, keeps and says."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from scoremh import Recipe, ScoreMH, balance_matching, metrics, score_matching, targets
from scoremh.sampler import from_noise as sampler
from studies import table1
from studies.framework import Records, pages, runner
from studies.table1 import cells, judging, methods, outsiders, page, problem
from studies.table1.page import Place
from studies.table1.problem import Problem, seeded
from tests.studies.cases import DOCS, said

BRIEF = Recipe(steps=6, batch=32, check_every=3)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> cells.Config:
    """Make everything tiny, in two datasets: the numbers are bad, and all of them are there."""
    for name in ("moons", "s_curve"):
        monkeypatch.delitem(problem.DATASETS, name)
    monkeypatch.setattr(cells, "TEST_POINTS", 40)
    monkeypatch.setattr(problem, "SAMPLES", 300)
    monkeypatch.setattr(methods, "ANNEALING", (5.0, 0.02, 3, 2, 0.5))
    monkeypatch.setattr(outsiders, "RECIPE", BRIEF)
    monkeypatch.setattr(outsiders, "HELD_OUT", 50)
    monkeypatch.setattr(problem, "fit_score", partial(score_matching.fit_score, recipe=BRIEF))
    monkeypatch.setattr(sampler, "tune", lambda make, x, **options: options["start"])
    few: dict[str, Any] = {"score_steps": 6, "acceptance_steps": 6, "chain_steps": 3, "annealing_steps": 1}
    monkeypatch.setattr(methods, "ScoreMH", partial(ScoreMH, **few))

    def briefly(*parts: Any, recipe: Recipe | None = None, **options: Any) -> Any:
        return balance_matching.fit_acceptance(*parts, recipe=BRIEF, **options)

    monkeypatch.setattr(sampler, "fit_acceptance", briefly)
    draws = {"pinwheel": 60, "swiss_roll": 50}
    return cells.Config((1, 2), draws, dict.fromkeys(draws, 4), chain_steps=3, floors=2, tests=2)


@pytest.mark.slow
def test_all_cells_are_computed_once_and_the_page_shows_them(
    small: cells.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = replace(table1.STUDY, presets={"quick": small})
    runner.run(study, "quick", tmp_path, workers=2)
    folder = tmp_path / "table1" / "quick"
    found = json.loads((folder / "results" / "table1.json").read_text())
    records = found["records"]
    assert {(r["dataset"], r["method"], r["metric"], r["seed"]) for r in records} == {
        (name, method, metric, seed)
        for name in ("pinwheel", "swiss_roll")
        for method in methods.METHODS
        for metric in ("w1", "w2", "mmd", "exact_w1", "exact_w2")
        for seed in (1, 2)
    }
    assert set(records[0]) == {"dataset", "method", "metric", "seed", "value", "paper", "floor", "samples"}
    printed = {(r["method"], r["metric"]): r["paper"] for r in records if r["dataset"] == "swiss_roll"}
    assert printed["score_pcn", "w2"] == 113.824
    assert printed["score_pcn", "exact_w2"] is None
    assert printed["simpson", "w1"] is None
    assert {r["samples"] for r in records if r["dataset"] == "pinwheel"} == {60}
    assert all(r["floor"] > 0 for r in records if r["metric"].startswith("exact"))
    text = (folder / "reproduction.md").read_text()
    for part in (
        "| Score MALA, free |",
        "| ScoreMH, defaults |",
        "| Neural spline flow |",
        "113.824",
        "of the 18 Score-MH cells",
        '"torch": "2',
    ):
        assert part in text, part
    for name in ("pinwheel", "swiss_roll"):
        assert (folder / f"table1_{name}.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(cells.Score, "measure", partial(pytest.fail, "computed again"))
    monkeypatch.setattr(cells.Draws, "measure", partial(pytest.fail, "computed again"))
    runner.run(study, "quick", tmp_path, workers=2)
    assert json.loads((folder / "results" / "table1.json").read_text()) == found
    there = runner.cells_in(folder, study.kinds)
    half = {cell: record for cell, record in there.items() if cell.axes.get("method") != "score_mala"}
    some = cells.summary(runner.gather(study, "quick", half))
    assert "of the 12 Score-MH cells" in pages.render(study, some)  # what is not there yet is left out


def test_starts_are_broad_and_nothing_is_judged_on_what_was_learned_from(tmp_path: Path) -> None:
    one = Problem("swiss_roll", 1, tmp_path)
    score_matching.fit_score(one.x, recipe=Recipe(steps=1, check_every=1)).save(one.path("score"))
    chosen = one.sampler()
    start = chosen.score.coordinates(chosen.start(5000, noise_level=problem.NOISE_LEVEL, generator=seeded(0, 0)))
    assert bool((torch.linalg.eigvalsh(torch.cov(start.T) - torch.cov(one.x.T)) > 0).all())
    assert judging.nearest(start, one.x) > 3 * judging.nearest(one.fresh(2000), one.x)
    assert judging.nearest(one.x[:100], one.x) == 0  # copies would be seen
    others = [one.fresh(500), Problem("swiss_roll", 2, tmp_path).x]
    assert all(float(torch.cdist(other, one.x).min()) > 0 for other in others)


def made_up_numbers(*values: float | None, metric: str = "w1") -> Records:
    record = {"dataset": "moons", "method": "score_rw", "metric": metric, "samples": 10, "paper": 0.019, "floor": 0.01}
    rows = [{"dataset": "moons", "method": "score_rw", "nearest": None, "fresh_nearest": 0.1}]
    records = [record | {"value": value, "seed": seed} for seed, value in enumerate(values)]
    return Records({"tested": ["annealed"], "seeds": [1]}, {"records": records, "rows": rows, "test": []})


def test_a_cell_above_the_papers_is_said_to_be() -> None:
    assert list(page.reached(made_up_numbers(0.019)).values()) == [True]
    above = made_up_numbers(0.0191)
    assert page.reached(above) == {"Moons, Score RW, free, W1: 0.0191 for 0.019 (floor 0.01)": False}
    assert page.missing_seeds(above)["Moons"] == [1]  # the only one there has seed 0
    whole = Records(above.settings, {**above.kinds, "records": every_metric(above)})
    text = said(table1.STUDY, whole)
    assert "**Not computed yet**: Moons (seeds 1); Pinwheel (seeds 1);" in text
    assert "At or below the paper: 0 of the 5 Score-MH cells computed (of 36)" in text
    assert "Above: Moons, Score RW, free, W1: 0.0191 for 0.019 (floor 0.01)." in text


def every_metric(records: Records) -> list[dict[str, Any]]:
    """Return the same number for all metrics."""
    return [record | {"metric": metric} for record in records.kinds["records"] for metric in judging.METRICS]


def test_a_negative_number_is_no_success() -> None:
    records = made_up_numbers(-0.02, metric="w2")
    found = page.entries(records)
    assert page.reached(records) == {}
    assert len(page.compared_with_paper(records)) == 1
    assert found[Place("moons", "score_rw", "w2")].over(0.01) == ""
    assert page.best_row(found, "moons", ["score_rw"], "floor") is None


def test_rows_that_diverged_are_said_to_have() -> None:
    x = torch.randn(10, 2, generator=seeded(0, 0))
    assert judging.distances(x.where(x < 1, torch.inf), x) == dict.fromkeys(judging.METRICS)
    records = made_up_numbers(None, 0.01)
    assert str(page.entries(records)[Place("moons", "score_rw", "w1")]) == "diverged"
    assert list(page.reached(records).values()) == [False]


def test_settings_of_another_table_are_refused(small: cells.Config, tmp_path: Path) -> None:
    study, folder = replace(table1.STUDY, presets={"quick": small}), tmp_path / "table1" / "quick"
    folder.mkdir(parents=True)
    (folder / runner.FILE).write_text(json.dumps({"settings": cells.settings(small) | {"level": 0.5}}))
    with pytest.raises(ValueError, match=r"to hold this study, with level = 0\.3, got level = 0\.5"):
        runner.run(study, "quick", tmp_path)


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'scoremh\[flows\]'"):
        runner.run(table1.STUDY, "quick", tmp_path)


@pytest.mark.slow
def test_the_outsiders_are_taken_seriously() -> None:
    """On two modes both are near the distribution, and not one normal, and neither copies."""
    target = targets.GaussianMixture([0.7, 0.3], [[2.0, 0.0], [-2.0, 1.0]])
    g = [torch.Generator().manual_seed(seed) for seed in range(3)]
    x, fresh = target.sample(4000, generator=g[0]), target.sample(1000, generator=g[1])
    normal = x.mean(0) + torch.randn(1000, 2, generator=g[2]) @ torch.linalg.cholesky(torch.cov(x.T)).mT
    far = metrics.energy_distance(normal, fresh)
    for outsider in (outsiders.kernel_density, outsiders.spline_flow):
        draws = outsider(x, 1000, torch.Generator().manual_seed(3))
        assert metrics.energy_distance(draws, fresh) < 0.2 * far
        assert judging.nearest(draws, x) > 0.5 * judging.nearest(fresh, x)


def test_the_pictures_are_small() -> None:
    assert len(list(DOCS.glob("table1_*.png"))) == 4
    for picture in DOCS.glob("table1_*.png"):
        assert picture.stat().st_size < 200_000
