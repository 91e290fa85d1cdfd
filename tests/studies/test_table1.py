"""Table 1, small: what it computes, keeps and says."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from scoremh import Recipe, ScoreMH, balance_matching, metrics, score_matching, targets
from scoremh import sampler as sampler
from studies import table1
from studies.framework import Records, pages, runner
from studies.table1 import cells, judging, kept, methods, outsiders, page, problem
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
    monkeypatch.setattr(methods, "EXCHANGE", (5.0, 3, 1))
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
    runner.run(study, "quick", tmp_path)
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
    runner.run(study, "quick", tmp_path)
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


def row(method: str, seed: int, value: float, floor: float | None = 0.01, version: int | None = None) -> dict[str, Any]:
    """Return the records of one row: one number and what was counted."""
    at: dict[str, Any] = {"dataset": "moons", "method": method, "seed": seed}
    stamp = {} if version is None else {"version": version}
    return {
        "records": [at | {"metric": "w1", "value": value, "floor": floor, "independent_floor": floor}],
        "rows": [at | stamp],
        "test": [at | {"number": 0, "p_value": value}],
        "score": [{"dataset": "moons", "seed": seed, "seconds": value}],
    }


def joined(*rows: dict[str, Any]) -> Records:
    return Records({}, {kind: [one for row in rows for one in row[kind]] for kind in rows[0]})


def test_rows_that_are_not_computed_again_are_carried_over() -> None:
    """A row is replaced with all of its seeds or not at all, and a new one has the floor of the kept ones."""
    before = joined(row("ula", 1, 0.1), row("ula", 2, 0.2), row("kde", 1, 0.3), row("kde", 2, 0.4))
    now = joined(row("ula", 1, 1.1), row("kde", 1, 1.3), row("kde", 2, 1.4), row("flow", 1, 1.5, floor=None))
    found = kept.carried_over(now, before)
    values = {(r["method"], r["seed"]): r["value"] for r in found.kinds["records"]}
    assert values == {("ula", 1): 0.1, ("ula", 2): 0.2, ("kde", 1): 1.3, ("kde", 2): 1.4, ("flow", 1): 1.5}
    assert {r["floor"] for r in found.kinds["records"]} == {r["independent_floor"] for r in found.kinds["records"]}
    assert {r["floor"] for r in found.kinds["records"]} == {0.01}
    assert sorted(r["p_value"] for r in found.kinds["test"]) == [0.1, 0.2, 1.3, 1.4, 1.5]
    assert {(one["seed"], one["seconds"] > 1) for one in found.kinds["score"]} == {(1, True), (2, True)}
    assert kept.carried_over(now, now).kinds == now.kinds


def test_the_page_says_of_which_version_a_row_is() -> None:
    found = page.rows_by_version(joined(row("ula", 1, 0.1), row("flow", 1, 0.1, version=methods.VERSION)))
    assert found == {True: {"Probability flow from independent noise": ["Moons"]}, False: {"ULA": ["Moons"]}}
    assert page.with_datasets(found[False]) == "ULA (Moons)"
    assert page.with_datasets({"ULA": list(page.TITLES.values())}) == "ULA"


def test_anchored_rows_have_the_papers_numbers_and_few_seeds_are_named() -> None:
    assert set(methods.ANCHORED.values()) == set(methods.PAPER_METHODS[1:])
    for name, other in methods.ANCHORED.items():
        anchored, plain = methods.METHODS[name], methods.METHODS[other]
        assert isinstance(anchored, methods.Chains)
        assert replace(anchored, anchored=False, label=plain.label) == plain
    one = page.Entry([0.1, 0.2], None, None, None)
    assert page.label(one, "ula", 3) == "ULA (2 seeds)"
    assert page.label(one, "ula", 2) == "ULA"


def test_weights_of_modes_match_those_of_the_draws(tmp_path: Path) -> None:
    one = Problem("moons", 1, tmp_path)
    score_matching.fit_score(one.x, recipe=Recipe(steps=1, check_every=1)).save(one.path("score"))
    even = judging.mode_weights(one, one.fresh(4000))
    assert even["total_variation"] < 0.02
    upper = one.fresh(4000)
    upper = upper[upper[:, 1] > 0.6]  # hardly any of the lower moon reaches up to there
    assert judging.mode_weights(one, upper)["total_variation"] > 0.45


def made_up_numbers(*values: float | None, metric: str = "w1") -> Records:
    record = {"dataset": "moons", "method": "score_rw", "metric": metric, "samples": 10, "paper": 0.019, "floor": 0.01}
    rows = [{"dataset": "moons", "method": "score_rw", "nearest": None, "fresh_nearest": 0.1}]
    records = [record | {"value": value, "seed": seed} for seed, value in enumerate(values)]
    kinds: dict[str, list[dict[str, Any]]] = {"records": records, "rows": rows, "test": [], "weights": []}
    return Records({"tested": ["annealed"], "seeds": [1]}, kinds)


def test_a_cell_above_the_papers_is_said_to_be() -> None:
    assert list(page.reached(made_up_numbers(0.019)).values()) == [True]
    above = made_up_numbers(0.0191)
    assert page.reached(above) == {"Moons, Score RW, free, W1: 0.0191 for 0.019 (floor 0.01)": False}
    assert page.missing_seeds(above)["Moons"] == [1]  # the only one there has seed 0
    whole = Records(above.settings, {**above.kinds, "records": every_metric(above)})
    text = said(table1.STUDY, whole)
    assert "**Not computed yet**: Moons (seeds 1); Pinwheel (seeds 1);" in text
    assert "With the free form, at or below the paper: 0 of the 5 Score-MH cells computed (of 36)" in text
    assert "Above: Moons, Score RW, free, W1: 0.0191 for 0.019 (floor 0.01)." in text


def every_metric(records: Records) -> list[dict[str, Any]]:
    """Return the same number for all metrics."""
    return [record | {"metric": metric} for record in records.kinds["records"] for metric in judging.METRICS]


def test_a_negative_number_is_not_a_success() -> None:
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


def test_settings_of_another_table_raise_errors(small: cells.Config, tmp_path: Path) -> None:
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
