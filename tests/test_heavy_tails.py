"""Heavy tails: what the experiments on GEV(0, 1, xi) measure, and that they write what they say."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from scoremh import (
    DivergenceError,
    Exact,
    LineIntegral,
    MultilevelDenoising,
    Recipe,
    StudentWalk,
    fit_score,
    metrics,
    metropolis_hastings,
    plots,
    sample,
    score_matching,
    targets,
)
from scoremh.coordinates import Compose, Sinh, SquareRoot
from scoremh.experiments import _gev as gev
from scoremh.experiments import gev_adjustment, gev_learned, gev_tails
from scoremh.types import Point, Target


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Straight(torch.nn.Module):
    """A score that is -rate times the coordinate."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return -self.rate * z


@pytest.mark.parametrize("xi", [-0.5, 0.0, 0.9])
def test_quantiles_are_those_of_the_law(xi: float) -> None:
    law = stats.genextreme(-xi)  # SciPy's c is -xi
    for share in (0.01, 0.5, 0.999):
        assert gev.quantile(share, xi) == pytest.approx(law.ppf(share), rel=1e-9)


@pytest.mark.parametrize("xi", [-0.5, 0.0, 0.9])
def test_chains_start_in_the_middle_of_the_law(xi: float) -> None:
    x = gev.starts(2000, xi, seeded())
    low, high = (float(gev.quantile(share, xi)) for share in (0.01, 0.99))
    assert x.min() >= low - 1e-6
    assert x.max() <= high + 1e-6
    assert targets.GeneralizedExtremeValue(xi).support(x).all()
    inside = (x > low + 1e-6) & (x < high - 1e-6)
    assert torch.equal(x[inside], torch.randn(2000, 1, generator=seeded())[inside])


def test_measures_are_0_for_the_law_and_known_for_a_shift() -> None:
    exact = torch.tensor(gev.quantile((np.arange(1000) + 0.5) / 1000, 0.3))
    found = gev.measures(exact, 0.3)
    assert found["w1"] == pytest.approx(0, abs=1e-12)
    assert found["mmd"] == pytest.approx(0, abs=1e-12)
    assert abs(found["q99"] or 0) < 0.02
    shifted = gev.measures(exact + 0.25, 0.3)
    assert shifted["w1"] == pytest.approx(0.25)
    assert shifted["mmd"] == pytest.approx(metrics.energy_distance(exact[:, None] + 0.25, exact[:, None]) / 2, rel=1e-6)
    doubled = gev.measures(2 * exact, 0.3)
    assert doubled["q99"] == pytest.approx(1, abs=0.04)


def test_measures_of_draws_that_are_not_finite_are_none() -> None:
    assert set(gev.measures(torch.tensor([0.0, math.nan]), 0.1).values()) == {None}
    assert set(gev.measures(torch.zeros(0), 0.1).values()) == {None}


def test_numbers_as_text() -> None:
    assert gev.percent([0.1, 0.3]) == "+20.0 +- 14.1 %"
    assert gev.percent([math.inf]) == gev.mean_and_spread([math.inf]) == "ran away"
    assert gev.percent([]) == gev.mean_and_spread([]) == ""
    assert gev.mean_and_spread([0.5, 0.5]) == "0.5 +- 0"
    assert gev.percent([123.0]) == "+1.2e+04 +- 0.0 %"


def test_trend_is_the_rank_correlation() -> None:
    assert gev.trend([1.0, 2.0, 3.0], [5.0, 6.0, 100.0]) == pytest.approx(1)
    assert gev.trend([1.0, 2.0, 3.0], [6.0, 5.0, 4.0]) == pytest.approx(-1)
    assert gev.trend([1.0, 2.0, 3.0], [6.0, 6.0, 6.0]) == 0


def test_a_line_that_is_straight_in_asinh_finds_what_long_steps_cross() -> None:
    """From the middle of the law to 10,000: the integral is known, and only the bent line has it."""
    law = targets.GeneralizedExtremeValue(torch.tensor(0.5, dtype=torch.float64))
    known = Target(law.score)
    ends = torch.tensor([[0.0], [1e4]], dtype=torch.float64)
    here, there = (Point.at(x[None], known, frozenset({"score"})) for x in ends)
    true = float(law.log_density(ends).diff())
    bent, straight = (
        float(rule.log_density_change(here, there, target=known))
        for rule in (LineIntegral("adaptive", bend=(0.0, 1.0)), LineIntegral("adaptive"))
    )
    assert bent == pytest.approx(true, rel=1e-3)
    assert abs(straight - true) > 10


def test_a_bent_line_decides_as_the_density_does() -> None:
    law = targets.GeneralizedExtremeValue(torch.tensor(0.5, dtype=torch.float64))
    walk, initial = StudentWalk(5.0, 1), law.sample(2000, generator=seeded())
    known = Target(law.score, support=law.support)
    ends = [
        sample(metropolis_hastings(target, walk, rule), initial, draws=1, thin=20, generator=seeded(1)).last
        for target, rule in ((law, Exact()), (known, LineIntegral("adaptive", bend=(0.0, 1.0))))
    ]
    assert (ends[0] == ends[1]).double().mean() > 0.99


def test_light_coordinates_and_back() -> None:
    x = torch.tensor([[-1e5], [-3.0], [0.0], [0.5], [1e5]], dtype=torch.float64)
    light = Compose(Sinh(torch.tensor([0.5]).double(), torch.tensor([2.0]).double()), SquareRoot())
    z = light.inverse(x)
    assert torch.allclose(light(z), x)
    assert z.diff(dim=0).gt(0).all()


def test_samples_of_which_half_are_the_same_have_no_width() -> None:
    x = torch.cat([torch.zeros(60, 1), torch.randn(40, 1, generator=seeded())])
    with pytest.raises(ValueError, match="expected samples that differ from each other"):
        fit_score(x, heavy_tails=True)


def test_heavy_tails_take_the_implicit_loss_unless_another_is_asked_for() -> None:
    x = targets.GeneralizedExtremeValue(0.5).sample(400, generator=seeded())
    short = Recipe(steps=4, check_every=2)
    fit = fit_score(x, heavy_tails=True, recipe=short, generator=seeded())
    assert "ImplicitScoreMatching" in fit.loss
    assert fit.noise_level is None
    plain = fit_score(x, recipe=short, generator=seeded())
    assert fit.support.high > 2 * plain.support.high - x.max()  # wider, as the tail is
    assert fit.support(x).all()
    levelled = fit_score(x, MultilevelDenoising(), heavy_tails=True, recipe=short, generator=seeded())
    assert levelled.noise_level is not None


def test_plain_ula_loses_chains_that_leave_the_support() -> None:
    """From the end of the support, half of all steps lead outside; the others are judged."""
    x = torch.full((1000, 1), 1.999)  # the law ends at 2, and h is too small for its score
    found = gev_adjustment.plain(x, -0.5, 1e-5, 1, seeded())
    drift = 1e-5 * float(targets.GeneralizedExtremeValue(-0.5).score(x[:1]))
    expected = stats.norm.sf((0.001 - drift) / math.sqrt(2e-5))
    assert found["lost"] == pytest.approx(expected, abs=0.06)
    assert found["w1"] is not None


def test_chains_far_from_the_law_have_run_away() -> None:
    low, high = (float(gev.quantile(share, 0.0)) for share in (1e-6, 1 - 1e-6))
    draws = torch.tensor([low - 0.1, low + 0.1, 0.0, high - 0.1, high + 0.1])
    assert gev_adjustment.far(draws, 0.0) == pytest.approx(0.4)


def record(sampler: str, xi: float, value: float, seed: int = 1, **more: Any) -> dict[str, Any]:
    words = {"sampler": sampler, "start": "exact", "xi": xi, "step": 0.1, "seed": seed}
    return words | dict.fromkeys(gev.METRICS, value) | more


def test_what_ula_loses_is_paired_by_seed() -> None:
    chains = [
        record(s, xi, v + seed, seed) for seed in (1, 2) for xi in (0.0, 0.5) for s, v in (("ULA", 3), ("MALA", 1))
    ]
    found = {"settings": {"xis": [0.0, 0.5]}, "chains": chains}
    assert gev_adjustment.excess(found, "exact", 0.1, "w1") == [(2.0, 0.0), (2.0, 0.0)]


@pytest.mark.parametrize(
    ("ula", "word"), [((0.1, 1.0, 5.0), "agrees with the paper."), ((5.0, 1.0, 0.1), "does not agree")]
)
def test_verdict_on_the_adjustment_follows_the_numbers(ula: tuple[float, ...], word: str) -> None:
    xis = [-0.5, 0.0, 0.5]
    chains = []
    for start in gev_adjustment.STARTS:
        for xi, value in zip(xis, ula, strict=True):
            chains += [record("ULA", xi, value) | {"start": start}, record("MALA", xi, 0.05) | {"start": start}]
    found = {"settings": {"xis": xis, "step_sizes": [0.1], "seeds": [1, 2]}, "chains": chains}
    assert word in gev_adjustment.verdict(found)


def test_competitive_is_within_twice_the_error() -> None:
    chains = [record(gev_learned.EXACT, xi, 1.0) for xi in (0.0, 0.5)]
    chains += [record(gev_learned.FREE, 0.0, -1.9), record(gev_learned.FREE, 0.5, 2.1)]
    floor = [{"xi": xi, "seed": 1, **dict.fromkeys(gev.METRICS, 0.1)} for xi in (0.0, 0.5)]
    found = {"settings": {"xis": [0.0, 0.5]}, "chains": chains, "floor": floor}
    assert gev_learned.competitive(found, gev_learned.FREE, "w1") == [0.0]
    floor[1] |= {"w1": 1.5}
    assert gev_learned.competitive(found, gev_learned.FREE, "w1") == [0.0, 0.5]


def test_an_integrated_score_has_the_quantiles_of_its_law() -> None:
    law = targets.GeneralizedExtremeValue(0.5)
    exact = gev_tails.integrated(law.score, -1.99, 1e6, 0.5)
    assert all(abs(error) < 1e-3 for error in exact.values())
    steeper = gev_tails.integrated(lambda x: 1.2 * law.score(x), -1.99, 1e6, 0.5)
    assert all(error < -0.1 for error in steeper.values())
    cut = gev_tails.integrated(law.score, -1.99, float(gev.quantile(0.999, 0.5)), 0.5)
    nearly = gev.quantile(0.998, 0.5) / gev.quantile(0.999, 0.5) - 1  # the last thousandth is cut off
    assert cut["q999"] == pytest.approx(nearly, abs=0.01)


def test_survival_is_the_share_beyond() -> None:
    exact = torch.tensor(gev.quantile((np.arange(100_000) + 0.5) / 100_000, 0.5))
    assert np.allclose(gev_tails.survival(exact, 0.5), np.logspace(-0.3, -4, gev_tails.SHOWN), atol=2e-5)


def test_a_quantile_is_reached_by_the_size_of_its_errors() -> None:
    assert gev_tails.reached([0.05, -0.15])
    assert not gev_tails.reached([0.2, -0.2])
    assert not gev_tails.reached([math.inf])
    assert not gev_tails.reached([])


def check_run(module: ModuleType, config: Any, folder: Path) -> tuple[dict[str, Any], str]:
    """Run an experiment and return its results and its page."""
    replace(module.FIGURE, presets={"quick": config}).run("quick", folder, workers=1)
    here = folder / module.NAME / "quick"
    assert (here / f"{module.NAME}.png").read_bytes().startswith(b"\x89PNG")
    page = (here / "reproduction.md").read_text()
    assert f"![{module.NAME}]({module.NAME}.png)" in page
    results: dict[str, Any] = json.loads((here / "results" / f"{module.NAME}.json").read_text())
    return results, page


def test_adjustment_runs_and_writes(tmp_path: Path) -> None:
    config = gev_adjustment.Config((3,), xis=(-0.5, 0.5), chains=200, looks=(5, 10))
    results, page = check_run(gev_adjustment, config, tmp_path)
    assert len(results["chains"]) == 2 * 2 * (1 + 3 * 2)
    mala = [r for r in results["chains"] if r["sampler"] == "MALA"]
    assert all(0 < r["acceptance"] <= 1 for r in mala)
    assert "200 chains of 10 steps, seeds 3" in page
    assert "with the paper" in page


def test_learned_runs_and_writes(tmp_path: Path) -> None:
    config = gev_learned.Config(
        (3,), xis=(0.3,), samples=300, score_steps=4, acceptance_steps=4, chains=50, warmup=2, draws=2, thin=2
    )
    results, page = check_run(gev_learned, config, tmp_path)
    assert {r["sampler"] for r in results["chains"]} == set(gev_learned.SAMPLERS)
    assert "300 samples to learn from" in page
    assert "50 chains of 6 steps" in page


def test_tails_runs_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(x: torch.Tensor, *, preset: str | None = None, **options: Any) -> Any:
        if preset is not None:
            raise DivergenceError("ran away", 3, math.inf, {})
        return fit_score(x, **options)

    monkeypatch.setattr(gev_tails, "fit_score", short)
    config = gev_tails.Config((3,), sizes=(300,), steps=4, chains=100, warmup=2, draws=2, thin=2)
    folder = tmp_path / "cells"
    folder.mkdir()
    cells: dict[str, Any] = {}
    for tasks in gev_tails.stages(config):
        cells |= {" / ".join(task): gev_tails.cell(task, config=config, folder=folder) for task in tasks}
    assert cells["score / the paper's / 300 / 3"]["diverged"] == 3
    found = gev_tails.FIGURE.gathered(cells, json.loads(json.dumps(config.__dict__)))
    page = gev_tails.section(found)
    assert "ran away" in page
    assert "does not cover it" in page
    gev_tails.picture(found, tmp_path / "tails.png")
    assert (tmp_path / "tails.png").read_bytes().startswith(b"\x89PNG")


def test_the_noise_of_a_quantile_comes_from_groups() -> None:
    same = torch.ones(100, 3, 1)
    assert gev_tails.noise(same, 0.5) == 0
    apart = torch.arange(10.0).repeat_interleave(10)[:, None, None]
    expected = np.std(np.arange(10), ddof=1) / math.sqrt(10) / gev.quantile(0.999, 0.5)
    assert gev_tails.noise(apart, 0.5) == pytest.approx(expected)


def test_tails_runs_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(score_matching.PRESETS, "moons", score_matching.PRESETS["moons"]._replace(steps=4))
    config = gev_tails.Config((3,), sizes=(300,), steps=4, chains=100, warmup=2, draws=2, thin=2)
    results, page = check_run(gev_tails, config, tmp_path)
    assert len(results["chains"]) == 3 * 3 + 2 * 3
    assert "100 chains of 6 steps" in page


@pytest.mark.parametrize("module", [gev_adjustment, gev_learned, gev_tails])
def test_quick_presets_use_other_seeds(module: ModuleType) -> None:
    assert list(module.PRESETS) == ["quick", "paper"]
    assert not set(module.PRESETS["quick"].seeds) & set(module.PRESETS["paper"].seeds)
    assert replace(module.PRESETS["paper"], seeds=()) == module.Config(seeds=())


def test_panels_in_rows_with_heights_of_their_own(tmp_path: Path) -> None:
    line = ([0.0, 1.0], [1e-3, 10.0])
    panels = {name: {"a": line} for name in "abc"}
    plots.curve_panels(panels, tmp_path / "rows.png", labels=("x", "y"), log="y", columns=2, shared=False)
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")


def test_a_heavy_tailed_fit_says_where_its_middle_is_and_what_it_cannot_do() -> None:
    x = targets.GeneralizedExtremeValue(0.5).sample(500, generator=seeded())
    fit = fit_score(x, heavy_tails=True, recipe=Recipe(steps=2, check_every=1), generator=seeded())
    (centre,), (width,) = fit.middle  # type: ignore[misc]
    assert centre == pytest.approx(float(x.median()))
    assert width == pytest.approx(float((x - x.median()).abs().median()))
    assert "in coordinates of heavy tails" in repr(fit)
    metropolis_hastings(fit, StudentWalk(1.0), LineIntegral("adaptive", bend=fit.middle))
    with pytest.raises(ValueError, match="expected noise with a covariance, got noise in coordinates of heavy tails"):
        _ = fit.covariance
    with pytest.raises(ValueError, match=r"one by ScoreMLP\. Fit it with MultilevelDenoising\(\)"):
        fit.at(0.1)
    with pytest.raises(ValueError, match="expected a preset alone, got a preset with heavy_tails"):
        fit_score(x, preset="moons", heavy_tails=True)
    with pytest.raises(ValueError, match="expected a score with heavy tails, got one without"):
        _ = fit_score(x, recipe=Recipe(steps=1, check_every=1), generator=seeded()).middle
