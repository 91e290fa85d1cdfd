"""Table 1, small: what it computes, keeps and says; its page is that of its results; the command that runs it."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from scoremh import Recipe, balance_matching, cli, experiments, metrics, plots, score_matching, targets
from scoremh.experiments import _cells, _outsiders, table1
from scoremh.experiments import _table1_cells as measured
from scoremh.experiments import _table1_page as page_of
from scoremh.experiments import _table1_rows as rows_of

DOCS = Path(__file__).parent.parent / "docs"
BRIEF = Recipe(steps=6, batch=32, check_every=3)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> measured.Config:
    """Make everything tiny, in two datasets: the numbers are bad, and all of them are there."""
    for name in ("moons", "s_curve"):
        monkeypatch.delitem(rows_of.LAWS, name)
    monkeypatch.setattr(measured, "TESTED", 40)
    for name, value in {"SAMPLES": 300, "ANNEALED": (5.0, 0.02, 3, 2, 0.5)}.items():
        monkeypatch.setattr(rows_of, name, value)
    monkeypatch.setattr(_outsiders, "RECIPE", BRIEF)
    monkeypatch.setattr(_outsiders, "HELD_OUT", 50)
    monkeypatch.setattr(rows_of, "fit_score", partial(score_matching.fit_score, recipe=BRIEF))
    monkeypatch.setattr(rows_of, "tune", lambda make, x, **options: options["start"])

    def briefly(*parts: Any, recipe: Recipe, **options: Any) -> Any:
        return balance_matching.fit_acceptance(*parts, recipe=BRIEF, **options)

    monkeypatch.setattr(rows_of, "fit_acceptance", briefly)
    draws = {"pinwheel": 60, "swiss_roll": 50}
    return measured.Config((1, 2), draws, dict.fromkeys(draws, 4), chain_steps=3, floors=2, tests=2)


@pytest.mark.slow
def test_all_cells_are_computed_once_and_the_page_shows_them(
    small: measured.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(table1.PRESETS, "quick", small)
    table1.run("quick", tmp_path, workers=2)
    folder = tmp_path / "table1" / "quick"
    found = json.loads((folder / "results" / "table1.json").read_text())
    records = found["records"]
    assert {(r["dataset"], r["method"], r["metric"], r["seed"]) for r in records} == {
        (name, method, metric, seed)
        for name in ("pinwheel", "swiss_roll")
        for method in rows_of.METHODS
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
    page = (folder / "reproduction.md").read_text()
    for text in (
        "| Score MALA, free |",
        "| Neural spline flow |",
        "113.824",
        "of the 18 Score-MH cells",
        '"torch": "2',
    ):
        assert text in page, text
    for name in ("pinwheel", "swiss_roll"):
        assert (folder / f"table1_{name}.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(measured, "_cell", partial(pytest.fail, "computed again"))
    table1.run("quick", tmp_path, workers=2)
    assert json.loads((folder / "results" / "table1.json").read_text()) == found
    cells = _cells.known(folder / "cells.json")
    half = {name: cell for name, cell in cells.items() if "score_mala" not in name}
    some = table1.results(half, "quick")
    assert "of the 12 Score-MH cells" in page_of.sections(some)["verdict"]  # what is not there yet is left out


def test_starts_are_broad_and_nothing_is_judged_on_what_was_learned_from(tmp_path: Path) -> None:
    problem = rows_of.Problem("swiss_roll", 1, tmp_path)
    score_matching.fit_score(problem.x, recipe=Recipe(steps=1, check_every=1)).save(problem.path("score"))
    start = problem.start(5000, rows_of.LEVEL, seeded())
    assert bool((torch.linalg.eigvalsh(torch.cov(start.T) - torch.cov(problem.x.T)) > 0).all())
    assert measured.nearest(start, problem.x) > 3 * measured.nearest(problem.judged(2000), problem.x)
    assert measured.nearest(problem.x[:100], problem.x) == 0  # copies would be seen
    others = [problem.judged(500), rows_of.Problem("swiss_roll", 2, tmp_path).x]
    assert all(float(torch.cdist(other, problem.x).min()) > 0 for other in others)


def result(*values: float | None, metric: str = "w1") -> dict[str, Any]:
    record = {"dataset": "moons", "method": "score_rw", "metric": metric, "samples": 10, "paper": 0.019, "floor": 0.01}
    settings = {"tested": ["annealed"], "seeds": [1]}
    rows = [{"dataset": "moons", "method": "score_rw", "nearest": None, "fresh_nearest": 0.1}]
    records = [record | {"value": value, "seed": seed} for seed, value in enumerate(values)]
    return {"records": records, "rows": rows, "test": [], "settings": settings}


def test_a_cell_above_the_papers_is_said_to_be() -> None:
    below, above, unsettled = page_of.reached(page_of.table(result(0.019)))
    assert (len(below), above, unsettled) == (1, [], [])
    below, above, unsettled = page_of.reached(page_of.table(result(0.0191)))
    assert (below, unsettled) == ([], [])
    assert above == ["Moons, Score RW, free, W1: 0.0191 for 0.019 (floor 0.01)"]
    verdict = page_of._verdict(result(0.0191), page_of.table(result(0.0191)))
    assert "**Not computed yet**: Moons (seeds 1); Pinwheel (seeds 1);" in verdict  # the only one there has seed 0
    assert "At or below the paper: 0 of the 1 Score-MH cells computed (of 36)" in verdict


def test_a_negative_number_is_no_success() -> None:
    cells = page_of.table(result(-0.02, metric="w2"))
    below, above, unsettled = page_of.reached(cells)
    assert (below, above, len(unsettled)) == ([], [], 1)
    assert cells["moons", "score_rw", "w2"].over(0.01) == ""
    assert page_of._best(cells, "moons", ["score_rw"], "floor") is None


def test_rows_that_ran_away_are_said_to_have(tmp_path: Path) -> None:
    x = torch.randn(10, 2, generator=seeded())
    assert measured.distances(x.where(x < 1, torch.inf), x) == dict.fromkeys(measured.METRICS)
    cells = page_of.table(result(None, 0.01))
    assert str(cells["moons", "score_rw", "w1"]) == "diverged"
    assert len(page_of.reached(cells)[1]) == 1
    plots.scatter_panels({"a": x.where(x < 1, torch.inf)}, tmp_path / "a.png")


def test_the_pictures_are_small(tmp_path: Path) -> None:
    for size, draw in ((2, plots.scatter_panels), (3, plots.space_panels)):
        cloud = torch.randn(page_of.DOTS, size, generator=seeded())
        draw({str(i): cloud for i in range(6)}, tmp_path / "a.png", captions=["W1 0.1"] * 6, title="Moons")
        assert (tmp_path / "a.png").stat().st_size < 200_000


def test_what_is_kept_is_not_lost(small: measured.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table1.PRESETS, "quick", small)
    with pytest.raises(ValueError, match=r"expected results to write in .*, got none"):
        table1.run("quick", tmp_path, as_is=True)
    kept = tmp_path / "docs" / "results" / "table1.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"settings": {"preset": "paper"}}))
    with pytest.raises(ValueError, match="to hold the preset 'quick', got those of 'paper'"):
        table1.run("quick", tmp_path, tmp_path / "docs", as_is=True)
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "settings.json").write_text(json.dumps(measured.settings(small) | {"level": 0.5}))
    with pytest.raises(ValueError, match=r"to hold this experiment, with level = 0\.3, got level = 0\.5"):
        measured.run(small, tmp_path / "cells")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'scoremh\[flows\]'"):
        table1.run("quick", tmp_path)


@pytest.mark.slow
def test_the_outsiders_are_taken_seriously() -> None:
    """On two modes both are near the law, and not one normal law, and neither copies."""
    law = targets.GaussianMixture([0.7, 0.3], [[2.0, 0.0], [-2.0, 1.0]])
    x, fresh = law.sample(4000, generator=seeded()), law.sample(1000, generator=seeded(1))
    normal = x.mean(0) + torch.randn(1000, 2, generator=seeded(2)) @ torch.linalg.cholesky(torch.cov(x.T)).mT
    far = metrics.energy_distance(normal, fresh)
    for outsider in (_outsiders.kernel_density, _outsiders.spline_flow):
        draws = outsider(x, 1000, seeded(3))
        assert metrics.energy_distance(draws, fresh) < 0.2 * far
        assert measured.nearest(draws, x) > 0.5 * measured.nearest(fresh, x)


def test_the_command_lists_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["reproduce", "--list"])
    listed = capsys.readouterr().out
    assert all(name in listed for name in experiments.found())
    for words, text in {
        "tabel1": "an experiment, one of acceptance, ",
        "table1 --preset slow": "a preset of table1, one of quick, paper, got 'slow'",
    }.items():
        with pytest.raises(SystemExit, match="2"):
            cli.main(["reproduce", *words.split()])
        assert text in capsys.readouterr().err


SLOW_CELLS = """
import time
from pathlib import Path
import torch
from scoremh import cli, experiments
from scoremh.experiments import _cells

class Slow:
    PRESETS = {"only": None}
    def run(self, preset, out, docs, *, workers, as_is):
        _cells.compute([("a", str(i)) for i in range(200)], cell, out / "cells.json", workers=2)

def cell(task):
    time.sleep(0.3)
    return {"n": int(task[1])}

experiments.found = lambda: {"slow": Slow()}
cli.main()
"""


@pytest.mark.slow
def test_ctrl_c_stops_at_once_and_keeps_what_is_done(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(SLOW_CELLS)
    command = [sys.executable, str(script), "reproduce", "slow", "--out", str(tmp_path)]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # where the tests run in the background
    )
    cells = tmp_path / "cells.json"
    while len(_cells.known(cells)) < 3:
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 130
    kept = f"What was finished is in {tmp_path}; the same command goes on from there."
    assert errors.decode() == f"scoremh: stopped. {kept}\n"
    assert 3 <= len(_cells.known(cells)) < 100


@pytest.mark.skipif(not (DOCS / "results" / "table1.json").exists(), reason="no results are kept yet")
def test_the_page_is_that_of_the_results() -> None:
    found = json.loads((DOCS / "results" / "table1.json").read_text())
    page = (DOCS / "reproduction.md").read_text()
    assert _cells.fill(page, page_of.sections(found)) == page
    readme = (DOCS.parent / "README.md").read_text()
    assert _cells.fill(readme, {"table1": page_of.brief(found)}) == readme
    assert table1.MARK in readme
    for picture in DOCS.glob("table1_*.png"):
        assert picture.stat().st_size < 200_000
