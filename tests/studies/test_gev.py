"""Heavy tails: what the studies on GEV(0, 1, xi) measure, and that they write what they say."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from scoremh import DivergenceError, metrics, targets
from studies import gev, presets
from studies.framework import Records
from studies.gev import adjustment, common, learned, tails, tails_page
from tests.cases import seeded
from tests.studies.cases import is_picture, made_up, run_small, said

SMALL_TAILS = tails.Config((3,), sizes=(300,), steps=4, chains=100, warmup=2, draws=2, thin=2)


@pytest.mark.parametrize("xi", [-0.5, 0.0, 0.9])
def test_quantiles_match_those_of_the_distribution(xi: float) -> None:
    target = stats.genextreme(-xi)  # SciPy's c is -xi
    for share in (0.01, 0.5, 0.999):
        assert common.quantile(share, xi) == pytest.approx(target.ppf(share), rel=1e-9)


@pytest.mark.parametrize("xi", [-0.5, 0.0, 0.9])
def test_chains_start_in_the_middle_of_the_distribution(xi: float) -> None:
    x = common.normal_starts(2000, xi, seeded())
    low, high = (float(common.quantile(share, xi)) for share in (0.01, 0.99))
    assert x.min() >= low - 1e-6
    assert x.max() <= high + 1e-6
    assert targets.GeneralizedExtremeValue(xi).support(x).all()
    inside = (x > low + 1e-6) & (x < high - 1e-6)
    assert torch.equal(x[inside], torch.randn(2000, 1, generator=seeded())[inside])


def test_measures_are_0_for_the_distribution_and_known_for_a_shift() -> None:
    exact = torch.tensor(common.quantile((np.arange(1000) + 0.5) / 1000, 0.3))
    found = common.errors(exact, 0.3)
    assert found["w1"] == pytest.approx(0, abs=1e-12)
    assert found["mmd"] == pytest.approx(0, abs=1e-12)
    assert abs(found["q99"] or 0) < 0.02
    shifted = common.errors(exact + 0.25, 0.3)
    assert shifted["w1"] == pytest.approx(0.25)
    assert shifted["mmd"] == pytest.approx(metrics.energy_distance(exact[:, None] + 0.25, exact[:, None]) / 2, rel=1e-6)
    doubled = common.errors(2 * exact, 0.3)
    assert doubled["q99"] == pytest.approx(1, abs=0.04)


def test_measures_of_draws_that_are_not_finite_are_none() -> None:
    assert set(common.errors(torch.tensor([0.0, math.nan]), 0.1).values()) == {None}
    assert set(common.errors(torch.zeros(0), 0.1).values()) == {None}


def test_numbers_as_text() -> None:
    assert common.percent([0.1, 0.3]) == "+20.0 +- 14.1 %"
    assert common.percent([math.inf]) == common.mean_and_spread([math.inf]) == "ran away"
    assert common.percent([]) == common.mean_and_spread([]) == ""
    assert common.mean_and_spread([0.5, 0.5]) == "0.5 +- 0"
    assert common.percent([123.0]) == "+1.2e+04 +- 0.0 %"


def test_trend_is_the_rank_correlation() -> None:
    assert common.trend([1.0, 2.0, 3.0], [5.0, 6.0, 100.0]) == pytest.approx(1)
    assert common.trend([1.0, 2.0, 3.0], [6.0, 5.0, 4.0]) == pytest.approx(-1)
    assert common.trend([1.0, 2.0, 3.0], [6.0, 6.0, 6.0]) == 0


def test_plain_ula_loses_chains_that_leave_the_support() -> None:
    """From the end of the support, half of all steps lead outside; the rule decides the others."""
    x = torch.full((1000, 1), 1.999)  # the distribution ends at 2, and h is too small for its score
    found = adjustment.plain_ula(x, -0.5, 1e-5, 1, seeded())
    drift = 1e-5 * float(targets.GeneralizedExtremeValue(-0.5).score(x[:1]))
    expected = stats.norm.sf((0.001 - drift) / math.sqrt(2e-5))
    assert found["lost"] == pytest.approx(expected, abs=0.06)
    assert found["w1"] is not None


def test_chains_far_from_the_distribution_have_run_away() -> None:
    low, high = (float(common.quantile(share, 0.0)) for share in (1e-6, 1 - 1e-6))
    draws = torch.tensor([low - 0.1, low + 0.1, 0.0, high - 0.1, high + 0.1])
    assert adjustment.share_far(draws, 0.0) == pytest.approx(0.4)


def record(sampler: str, xi: float, value: float, seed: int = 1, **more: Any) -> dict[str, Any]:
    words = {"sampler": sampler, "start": "exact", "xi": xi, "step": 0.1, "seed": seed}
    return words | dict.fromkeys(common.METRICS, value) | more


def test_what_ula_loses_is_paired_by_seed() -> None:
    chains = [
        record(s, xi, v + seed, seed) for seed in (1, 2) for xi in (0.0, 0.5) for s, v in (("ULA", 3), ("MALA", 1))
    ]
    found = Records({"xis": [0.0, 0.5]}, {"chains": chains})
    assert adjustment.excess(found, "exact", 0.1, "w1") == [(2.0, 0.0), (2.0, 0.0)]


@pytest.mark.parametrize(("ula", "agrees"), [((0.1, 1.0, 5.0), True), ((5.0, 1.0, 0.1), False)])
def test_verdict_on_the_adjustment_follows_the_numbers(ula: tuple[float, ...], agrees: bool) -> None:
    xis = [-0.5, 0.0, 0.5]
    chains = []
    for start in adjustment.STARTS:
        for xi, value in zip(xis, ula, strict=True):
            chains += [record("ULA", xi, value) | {"start": start}, record("MALA", xi, 0.05) | {"start": start}]
    found = Records({"xis": xis, "step_sizes": [0.1], "seeds": [1, 2]}, {"chains": chains})
    assert set(adjustment.matters_more(found).values()) == {agrees}


def test_competitive_is_within_twice_the_error() -> None:
    chains = [record(learned.EXACT, xi, 1.0) for xi in (0.0, 0.5)]
    chains += [record(learned.FREE, 0.0, -1.9), record(learned.FREE, 0.5, 2.1)]
    floor = [{"xi": xi, "seed": 1, **dict.fromkeys(common.METRICS, 0.1)} for xi in (0.0, 0.5)]
    found = Records({"xis": [0.0, 0.5]}, {"chains": chains, "floor": floor})
    assert learned.competitive(found, learned.FREE, "w1") == [0.0]
    floor[1] |= {"w1": 1.5}
    assert learned.competitive(found, learned.FREE, "w1") == [0.0, 0.5]


def test_an_integrated_score_has_the_quantiles_of_its_distribution() -> None:
    target = targets.GeneralizedExtremeValue(0.5)
    exact = tails.integrated(target.score, -1.99, 1e6, 0.5)
    assert all(abs(error) < 1e-3 for error in exact.values())
    steeper = tails.integrated(lambda x: 1.2 * target.score(x), -1.99, 1e6, 0.5)
    assert all(error < -0.1 for error in steeper.values())
    cut = tails.integrated(target.score, -1.99, float(common.quantile(0.999, 0.5)), 0.5)
    nearly = common.quantile(0.998, 0.5) / common.quantile(0.999, 0.5) - 1  # the last thousandth is cut off
    assert cut["q999"] == pytest.approx(nearly, abs=0.01)


def test_survival_is_the_share_beyond() -> None:
    exact = torch.tensor(common.quantile((np.arange(100_000) + 0.5) / 100_000, 0.5))
    assert np.allclose(tails.survival(exact, 0.5), tails.SHARES, atol=2e-5)


def test_a_quantile_is_reached_by_the_size_of_its_errors() -> None:
    assert tails_page.is_covered([0.05, -0.15])
    assert not tails_page.is_covered([0.2, -0.2])
    assert not tails_page.is_covered([math.inf])
    assert not tails_page.is_covered([])


def test_the_noise_of_a_quantile_comes_from_groups() -> None:
    same = torch.ones(100, 3, 1)
    assert tails.quantile_error(same, 0.5) == 0
    apart = torch.arange(10.0).repeat_interleave(10)[:, None, None]
    expected = np.std(np.arange(10), ddof=1) / math.sqrt(10) / common.quantile(0.999, 0.5)
    assert tails.quantile_error(apart, 0.5) == pytest.approx(expected)


@pytest.mark.parametrize(("worst", "text"), [(5.0, "this agrees with the paper."), (0.1, "this does not agree with")])
def test_the_section_says_whether_the_accept_step_matters_more(worst: float, text: str, tmp_path: Path) -> None:
    config = adjustment.Config((3, 4), xis=(-0.5, 0.0, 0.5), step_sizes=(0.1,), chains=20, looks=(5, 10))
    records: dict[str, list[dict[str, Any]]] = {"chains": [], "floor": []}
    for cell in adjustment.stages(config)[0]:
        place = cell.axes
        size = {-0.5: 0.1, 0.0: 1.0, 0.5: worst}[place["xi"]] if place.get("sampler") == "ULA" else 0.05
        more = dict.fromkeys(("outside", "met the end", "lost", "far", "q999 at 5"), size)
        records[cell.kind].append(place | dict.fromkeys(common.METRICS, size) | more)
    assert text in said(gev.ADJUSTMENT, made_up(config, **records))


def test_adjustment_runs_and_writes(tmp_path: Path) -> None:
    config = adjustment.Config((3,), xis=(-0.5, 0.5), chains=200, looks=(5, 10))
    found, page = run_small(gev.ADJUSTMENT, config, tmp_path)
    assert is_picture(tmp_path / "docs" / "gev-adjustment.png")
    assert len(found.kinds["chains"]) == 2 * 2 * (1 + 3 * 2)
    assert all(0 < rate <= 1 for rate in found.values("chains", "acceptance", sampler="MALA"))
    assert "200 chains of 10 steps, seeds 3" in page
    assert "with the paper" in page


def test_learned_runs_and_writes(tmp_path: Path) -> None:
    few = {"samples": 300, "score_steps": 4, "acceptance_steps": 4, "chains": 50, "warmup": 2, "draws": 2, "thin": 2}
    found, page = run_small(gev.LEARNED, learned.Config((3,), xis=(0.3,), **few), tmp_path)
    assert is_picture(tmp_path / "docs" / "gev-learned.png")
    assert {r["sampler"] for r in found.kinds["chains"]} == set(learned.SAMPLERS)
    assert "300 samples to learn from" in page
    assert "50 chains of 6 steps" in page


def test_tails_of_a_training_that_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverged(*_: Any, **__: Any) -> Any:
        raise DivergenceError("ran away", 3, math.inf, {})

    monkeypatch.setattr(tails, "paper_score", diverged)
    found, page = run_small(gev.TAILS, SMALL_TAILS, tmp_path)
    assert found.where("score", score="the paper's", size=300, seed=3)[0]["diverged"] == 3
    assert "ran away" in page
    assert "does not cover it" in page
    assert is_picture(tmp_path / "docs" / "gev-tails.png")


def test_tails_run_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(presets.TABLE_2, "moons", presets.TABLE_2["moons"]._replace(steps=4))
    found, page = run_small(gev.TAILS, SMALL_TAILS, tmp_path)
    assert len(found.kinds["chains"]) == 3 * 3 + 2 * 3
    assert "100 chains of 6 steps" in page


@pytest.mark.parametrize("module", [adjustment, learned, tails_page])
def test_the_paper_preset_is_the_default(module: Any) -> None:
    assert module.PRESETS["paper"] == module.Config(seeds=(1, 2, 3))
