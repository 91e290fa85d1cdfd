"""Rules over a range of step sizes: statements about made-up numbers, and small runs from end to end."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scoremh import Recipe, balance_matching, datasets, metrics, score_matching
from scoremh import sampler as sampler
from studies import sweeps
from studies.framework import Records, Study
from studies.framework.runner import FILE
from studies.sweeps import cells, findings, ratios
from studies.table1 import problem
from tests.cases import seeded
from tests.studies.cases import is_picture, run_small, said

BRIEF = Recipe(steps=4, batch=32, check_every=2)


def made_up_draws(values: dict[str, tuple[float | None, ...]]) -> Records:
    """Return records of two seeds at three steps, with these numbers for every metric."""
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
    return Records(settings, {"draws": draws, "floor": floor, "tuned": [{"step": 0.1}, {"step": 0.3}]})


def test_the_step_figure_says_how_far_each_rule_reaches() -> None:
    steady, early = (0.2, 0.2, 0.25), (0.2, 0.4, None)
    records = made_up_draws({"ula": early, "score_mala": steady, "potential": (0.2, 0.9, 0.2), "simpson": steady})
    every = [0.5, 1.0, 2.0]
    assert findings.good_factors(records, "w1", 1.5) == {
        "ula": [0.5],
        "score_mala": every,
        "potential": [0.5, 2.0],
        "simpson": every,
    }
    text = said(sweeps.STEP_SIZE, records)
    assert "ULA at 0.1; Score MALA, free at 0.1, 0.2, 0.4; Score MALA, potential at 0.1, 0.4;" in text
    assert "Score MALA, free agrees" in text
    assert "| ULA | 0.2 +- 0 | 0.4 +- 0 | ran away | 2.00 | 0.50 |" in text
    turned = made_up_draws({"ula": steady, "score_mala": early, "potential": steady, "simpson": early})
    assert "does **not** agree" in said(sweeps.STEP_SIZE, turned)
    assert "reaches as far as any: no" in said(sweeps.STEP_SIZE, turned)


def test_the_second_taylor_figure_counts_steps() -> None:
    good, bad = (0.1, 0.1, 0.2), (0.3, 0.15, None)
    records = made_up_draws(
        {"ula": bad, "taylor1_averaged": bad, "score_mala": good, "potential": good, "simpson": (0.2, 0.05, 0.1)}
    )
    text = said(sweeps.TAYLOR_VS_LEARNED, records)
    assert "Score MALA, free is better than Taylor-1, averaged at 3 of 3 steps, and worse at 0: agrees" in text
    assert "within twice the least MMD of Score MALA, free at h = 0.2." in text
    assert "is better than Score MALA, free at 2 of 3, and worse at 1." in text


def test_rules_are_compared_beyond_the_noise_over_seeds() -> None:
    records = made_up_draws({"simpson": (0.1, 0.1, 0.1), "taylor1": (0.2, 0.1, None)})
    assert findings.compared(records, "simpson", "taylor1", "w1") == (2, 0)
    for record in records.kinds["draws"]:
        if record["rule"] == "taylor1" and record["factor"] == 0.5:
            record["w1"] = {1: 0.1, 2: 0.2}[record["seed"]]
    assert findings.compared(records, "simpson", "taylor1", "w1") == (1, 0)  # better by 0.05 +- 0.05
    assert findings.compared(records, "taylor1", "simpson", "w1") == (0, 1)


def test_the_distribution_of_moons_matches_that_of_the_samples() -> None:
    g = seeded()
    x, y = ratios.moons().sample(1000, generator=g), datasets.moons(1000, generator=g)
    assert metrics.two_sample_test(x, y, generator=g).p_value > 0.05


def test_with_mala_the_averaged_taylor_rule_is_off_where_simpson_is_not(tmp_path: Path) -> None:
    config = sweeps.TAYLOR.presets["quick"]
    averaged, simpson = (
        ratios.Ratio(name, "mala", 0.01, 1).measure(config, tmp_path) for name in ("taylor1_averaged", "simpson")
    )
    assert averaged["correlation"] < 0.9 < 0.97 < simpson["correlation"]
    assert averaged["error"] > 10 * simpson["error"]
    walk = ratios.Ratio("taylor1_averaged", "rw", 0.0025, 1).measure(config, tmp_path)
    assert walk["correlation"] > 0.98


@pytest.mark.slow
@pytest.mark.parametrize("study", [sweeps.STEP_SIZE, sweeps.TAYLOR, sweeps.TAYLOR_VS_LEARNED], ids=lambda one: one.name)
def test_sweeps_run_from_end_to_end(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With trainings of a few steps: the numbers are bad, and all of them are there."""
    monkeypatch.setattr(problem, "SAMPLES", 300)
    monkeypatch.setattr(problem, "fit_score", partial(score_matching.fit_score, recipe=BRIEF))
    monkeypatch.setattr(sampler, "tune", lambda make, x, **options: options["start"])

    def briefly(*parts: Any, recipe: Recipe, **options: Any) -> Any:
        return balance_matching.fit_acceptance(*parts, recipe=BRIEF, **options)

    monkeypatch.setattr(sampler, "fit_acceptance", briefly)
    small = replace(study.presets["quick"], factors=(0.5, 1.0), draws=40, chain_steps=3, training=4)
    found, page = run_small(study, small, tmp_path)
    assert {(r["rule"], r["factor"]) for r in found.kinds["draws"]} == {
        (r, f) for r in small.rules for f in small.factors
    }
    assert all(record["w1"] is not None for record in found.kinds["draws"])
    assert page.startswith(f"<!-- {study.name} --> ## ")
    assert f"![{study.name}]({study.name}.png)" in page
    assert is_picture(tmp_path / "docs" / f"{study.name}.png")
    path = tmp_path / study.name / "quick" / FILE
    before = path.stat().st_mtime_ns
    assert run_small(study, small, tmp_path)[1] == page
    assert path.stat().st_mtime_ns == before  # nothing is computed twice


def test_a_potential_is_trained_once_for_all_steps() -> None:
    config = sweeps.TAYLOR_VS_LEARNED.presets["paper"]
    trained = [(cell.form, cell.factor) for cell in cells.stages(config)[2] if isinstance(cell, cells.Training)]
    assert trained.count(("potential", "any")) == len(config.seeds)
    assert {factor for form, factor in trained if form == "free"} == set(config.factors)
