"""Rules over a range of steps: what is said of made-up numbers, and small runs from end to end."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from scoremh import Recipe, balance_matching, datasets, metrics, score_matching
from scoremh.experiments import _sweeps as sweeps
from scoremh.experiments import _table1_rows as rows_of
from scoremh.experiments import step_size, taylor, taylor_vs_learned

BRIEF = Recipe(steps=4, batch=32, check_every=2)


def made_up(values: dict[str, tuple[float | None, ...]]) -> dict[str, Any]:
    """Return results of two seeds at three steps, with these numbers for every metric."""
    factors, seeds = (0.5, 1.0, 2.0), (1, 2)
    settings = {"rules": list(values), "factors": factors, "seeds": seeds, "draws": 10, "chain_steps": 3}
    counted = {"acceptance": 0.5, "score_calls": 80, "steps": 3}
    draws = [
        {"rule": rule, "factor": factor, "seed": seed, **counted, **dict.fromkeys(("w1", "exact_w2", "mmd"), number)}
        for rule, numbers in values.items()
        for factor, number in zip(factors, numbers, strict=True)
        for seed in seeds
    ]
    floor = [dict.fromkeys(("w1", "exact_w2", "mmd"), 0.1)]
    return {"settings": settings, "draws": draws, "floor": floor, "tuned": [{"step": 0.1}, {"step": 0.3}]}


def test_the_step_figure_says_how_far_each_rule_reaches() -> None:
    steady, early = (0.2, 0.2, 0.25), (0.2, 0.4, None)
    found = made_up({"ula": early, "score_mala": steady, "potential": (0.2, 0.9, 0.2), "simpson": steady})
    every = [0.5, 1.0, 2.0]
    assert sweeps.good_steps(found, "w1", 1.5) == {
        "ula": [0.5],
        "score_mala": every,
        "potential": [0.5, 2.0],
        "simpson": every,
    }
    said = step_size.section(found)
    assert "ULA at 0.1; Score MALA, free at 0.1, 0.2, 0.4; Score MALA, potential at 0.1, 0.4;" in said
    assert "Score MALA, free agrees" in said
    assert "| ULA | 0.2 +- 0 | 0.4 +- 0 | ran away | 2.00 | 0.50 |" in said
    turned = made_up({"ula": steady, "score_mala": early, "potential": steady, "simpson": early})
    assert "does **not** agree" in step_size.section(turned)
    assert "reaches as far as any: no" in step_size.section(turned)


def test_the_second_taylor_figure_counts_steps() -> None:
    good, bad = (0.1, 0.1, 0.2), (0.3, 0.15, None)
    found = made_up(
        {"ula": bad, "taylor1_averaged": bad, "score_mala": good, "potential": good, "simpson": (0.2, 0.05, 0.1)}
    )
    said = taylor_vs_learned.section(found)
    assert "Score MALA, free is better than Taylor-1, averaged at 3 of 3 steps, and worse at 0: agrees" in said
    assert "within twice the least MMD of Score MALA, free at h = 0.2." in said
    assert "is better than Score MALA, free at 2 of 3, and worse at 1." in said


def test_rules_are_compared_beyond_the_noise_over_seeds() -> None:
    found = made_up({"simpson": (0.1, 0.1, 0.1), "taylor1": (0.2, 0.1, None)})
    assert sweeps.compared(found, "simpson", "taylor1", "w1") == (2, 0)
    for record in found["draws"]:
        if record["rule"] == "taylor1" and record["factor"] == 0.5:
            record["w1"] = {1: 0.1, 2: 0.2}[record["seed"]]
    assert sweeps.compared(found, "simpson", "taylor1", "w1") == (1, 0)  # better by 0.05 +- 0.05
    assert sweeps.compared(found, "taylor1", "simpson", "w1") == (0, 1)


def test_the_law_of_moons_is_that_of_the_samples() -> None:
    g = torch.Generator().manual_seed(0)
    x, y = taylor.moons_law().sample(1000, generator=g), datasets.moons(1000, generator=g)
    assert metrics.two_sample_test(x, y, generator=g).p_value > 0.05


def test_with_mala_the_averaged_taylor_rule_is_off_where_simpson_is_not() -> None:
    averaged, simpson = (taylor.ratios(name, "mala", 0.01, 1) for name in ("taylor1_averaged", "simpson"))
    assert averaged["correlation"] < 0.9 < 0.97 < simpson["correlation"]
    assert averaged["error"] > 10 * simpson["error"]
    walk = taylor.ratios("taylor1_averaged", "rw", 0.0025, 1)
    assert walk["correlation"] > 0.98


@pytest.mark.slow
@pytest.mark.parametrize("experiment", [step_size, taylor, taylor_vs_learned])
def test_sweeps_run_from_end_to_end(experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With trainings of a few steps: the numbers are bad, and all of them are there."""
    monkeypatch.setattr(rows_of, "SAMPLES", 300)
    monkeypatch.setattr(rows_of, "fit_score", partial(score_matching.fit_score, recipe=BRIEF))
    monkeypatch.setattr(rows_of, "tune", lambda make, x, **options: options["start"])

    def briefly(*parts: Any, recipe: Recipe, **options: Any) -> Any:
        return balance_matching.fit_acceptance(*parts, recipe=BRIEF, **options)

    monkeypatch.setattr(sweeps, "fit_acceptance", briefly)
    small = replace(experiment.PRESETS["quick"], factors=(0.5, 1.0), draws=40, chain_steps=3, training=4)
    monkeypatch.setitem(experiment.PRESETS, "quick", small)
    experiment.run("quick", tmp_path, workers=2)
    name = experiment.FIGURE.name
    folder = tmp_path / name / "quick"
    found = json.loads((folder / "results" / f"{name}.json").read_text())
    assert {(r["rule"], r["factor"]) for r in found["draws"]} == {(r, f) for r in small.rules for f in small.factors}
    assert all(record["w1"] is not None for record in found["draws"])
    page = (folder / "reproduction.md").read_text()
    assert page.startswith(f"<!-- {name} -->\n## ")
    assert f"![{name}]({name}.png)" in page
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert experiment.FIGURE.section(found) in page  # the page says what the results say
    cells = (folder / "cells.json").stat().st_mtime_ns
    experiment.run("quick", tmp_path, workers=2)
    assert (folder / "cells.json").stat().st_mtime_ns == cells  # nothing is computed twice
    assert (folder / "reproduction.md").read_text() == page
