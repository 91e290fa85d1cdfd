"""The studies of the paper's table and figures: what they measure, and that each runs from end to end."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from scoremh import Recipe, ScoreMH, balance_matching, metrics, score_matching, targets
from scoremh import sampler as sampler_module
from studies import entropy, gaussian, gev, mixture, outsiders, sweeps, table1
from studies.framework import Study
from tests.studies.cases import is_picture, made_up, run_small

BRIEF = Recipe(steps=6, batch=32, check_every=3)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make what Table 1 learns tiny, on two datasets."""

    def briefly(*parts: Any, recipe: Recipe | None = None, **options: Any) -> Any:
        return balance_matching.fit_acceptance(*parts, recipe=BRIEF, **options)

    for name in ("moons", "s_curve"):
        monkeypatch.delitem(table1.DATASETS, name)
        monkeypatch.delitem(table1.TITLES, name)
    few: dict[str, Any] = {"score_steps": 6, "acceptance_steps": 6, "chain_steps": 3, "annealing_steps": 1}
    for name, value in {
        "TEST_POINTS": 40,
        "SAMPLES": 300,
        "ANNEALING": (5.0, 0.02, 3, 2),
        "fit_score": partial(score_matching.fit_score, recipe=BRIEF),
        "ScoreMH": partial(ScoreMH, **few),
    }.items():
        monkeypatch.setattr(table1, name, value)
    monkeypatch.setattr(outsiders, "RECIPE", BRIEF)
    for module in (gaussian, entropy):
        monkeypatch.setattr(module, "LONG_RECIPE", BRIEF)
    monkeypatch.setattr(gaussian, "fit_acceptance", briefly)
    monkeypatch.setattr(sampler_module, "tune", lambda make, x, **options: options["start"])
    monkeypatch.setattr(sampler_module, "fit_acceptance", briefly)


DRAWS = {"pinwheel": 60, "swiss_roll": 50}
SWEEP: dict[str, Any] = {"seeds": (11,), "draws": 40, "chain_steps": 3, "training": 2, "floors": 2}
SMALL: dict[str, tuple[Study, Callable[[], Any], str | None]] = {
    "table1": (
        table1.STUDY,
        lambda: table1.Config((1, 2), DRAWS, dict.fromkeys(DRAWS, 4), chain_steps=3, floors=2, tests=2),
        "table1_pinwheel.png",
    ),
    "mixture": (
        mixture.STUDY,
        lambda: mixture.Config(
            (11,),
            40,
            30,
            20,
            5,
            samples=300,
            score_steps=4,
            acceptance_steps=4,
            anchored_steps=4,
            sweeps=8,
            settling_sweeps=2,
        ),
        "mixture.png",
    ),
    "entropy": (
        entropy.STUDY,
        lambda: entropy.Config((11,), steps=3, samples=200, fresh=100),
        "entropy-curve.png",
    ),
    "step-size": (
        sweeps.STEP_SIZE,
        lambda: sweeps.Sweep("pinwheel", sweeps.SWISS_ROLL.rules, (0.5, 1.0), **SWEEP),
        "step-size.png",
    ),
    "taylor": (
        sweeps.TAYLOR,
        lambda: sweeps.Sweep("pinwheel", sweeps.MOONS.rules, (0.5, 1.0), **SWEEP),
        "taylor.png",
    ),
    "gev-adjustment": (
        gev.ADJUSTMENT,
        lambda: gev.Adjustment((3,), chains=40, steps=5),
        "gev-adjustment.png",
    ),
    "gev-learned": (
        gev.LEARNING,
        lambda: gev.Learning((3,), (-0.5, 0.3), 0.1, 200, 4, 4, chains=30, warmup=2, draws=2, thin=2),
        "gev-learned.png",
    ),
    "gev-tails": (
        gev.TAIL,
        lambda: gev.Tail((3,), samples=300, steps=4, chains=100, warmup=2, draws=2, thin=2),
        None,
    ),
    "gaussian": (
        gaussian.STUDY,
        lambda: gaussian.Config((11,), chains=40, steps=3, samples=200),
        None,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.usefixtures("brief")
def test_a_study_runs_from_end_to_end(name: str, tmp_path: Path) -> None:
    study, config, picture = SMALL[name]
    found, page = run_small(study, config(), tmp_path)
    assert picture is None or is_picture(tmp_path / "docs" / picture)
    assert f"Computed with scoremh {found.settings['versions']['scoremh']}." in page
    assert "**Found**" in page


def test_a_sampler_that_jumps_is_described() -> None:
    here, there = [5.0, 5.0], [-5.0, -5.0]
    draws = torch.tensor([[here, here, here], [here, there, here], [there, there, there], [there, here, here]])
    found = mixture.described(draws)
    assert (found["weight"], found["jumps"]) == (0.75, 0.75)
    assert found["points"] == [here, here, there, here]


@pytest.mark.parametrize(("weights", "finds", "misses"), [((0.8, 0.8), True, False), ((0.52, 0.79), False, True)])
def test_weights_are_judged_from_every_start(weights: tuple[float, float], finds: bool, misses: bool) -> None:
    chains = [
        {"sampler": name, "start": start, "seed": 1, "weight": weight, "jumps": 1.0}
        for name, weight in zip(("ULA", "MALA"), weights, strict=True)
        for start in mixture.STARTS
    ]
    records = made_up(mixture.Config(seeds=(1,)), chains=chains)
    assert mixture.finds(records, "ULA") == finds
    assert mixture.ula_misses(records) == misses


def test_a_curve_over_lambda_rises_and_is_level_or_not() -> None:
    lambdas = entropy.Config(seeds=(1,)).lambdas
    curves = {
        "free, clip 1": [min(weight, 4.0) / 10 for weight in lambdas],
        "free, clip 10": [weight / 10 for weight in lambdas],
        "free": [0.01 for _ in lambdas],
    }
    found = [
        {"form": form, "lambda": weight, "seed": 1, "mean": mean}
        for form, means in curves.items()
        for weight, mean in zip(lambdas, means, strict=True)
    ]
    records = made_up(entropy.Config(seeds=(1,)), entropy=found)
    assert list(entropy.rises_and_plateaus(records).values()) == [True, False, False]
    assert list(entropy.enhanced(records).values()) == [True, True, False]


def test_rules_are_compared_beyond_the_noise_over_seeds() -> None:
    values = {"ula": [(1.0, 1.1, 0.9), (5.0, 5.1, 5.2)], "simpson": [(1.05, 0.95, 1.0), (1.0, 1.1, 1.0)]}
    draws = [
        {"rule": rule, "factor": factor, "seed": seed, "w1": value, "mmd": value}
        for rule, by_factor in values.items()
        for factor, seeds in zip((0.5, 1.0), by_factor, strict=True)
        for seed, value in enumerate(seeds)
    ]
    config = sweeps.Sweep("moons", ("ula", "simpson"), (0.5, 1.0), **SWEEP | {"seeds": (0, 1, 2)})
    tuned = [{"seed": seed, "step": 0.2} for seed in range(3)]
    floor = [{"seed": 0, "number": 0, "w1": 1.0, "mmd": 1.0}]
    records = made_up(config, draws=draws, tuned=tuned, floor=floor)
    assert sweeps.compared(records, "simpson", "ula") == (1, 0)
    assert sweeps.compared(records, "ula", "simpson") == (0, 1)
    assert sweeps.reach(records) == {"ula": 0.1, "simpson": 0.2}


@pytest.mark.parametrize("xi", [-0.5, 0.0, 0.9])
def test_quantiles_and_starts_are_those_of_the_distribution(xi: float, generator: torch.Generator) -> None:
    for share in (0.01, 0.5, 0.999):
        assert gev.quantile(share, xi) == pytest.approx(stats.genextreme(-xi).ppf(share), rel=1e-9)  # SciPy's c is -xi
    starts = gev.normal_starts(2000, xi, generator)
    assert targets.GeneralizedExtremeValue(xi).support(starts).all()


def test_errors_are_0_for_the_distribution_and_known_for_a_shift() -> None:
    exact = torch.tensor(gev.quantile((np.arange(1000) + 0.5) / 1000, 0.3))
    assert gev.errors(exact, 0.3)["w1"] == pytest.approx(0, abs=1e-12)
    shifted = gev.errors(exact + 0.25, 0.3)
    assert shifted["w1"] == pytest.approx(0.25)
    assert shifted["mmd"] == pytest.approx(metrics.energy_distance(exact[:, None] + 0.25, exact[:, None]) / 2, rel=1e-6)
    assert gev.errors(2 * exact, 0.3)["q99"] == pytest.approx(1, abs=0.04)
    assert set(gev.errors(torch.tensor([0.0, math.nan]), 0.1).values()) == {None}


def test_an_integrated_score_has_the_quantiles_of_its_distribution() -> None:
    law = targets.GeneralizedExtremeValue(0.5)
    assert abs(gev.integrated(law.score, float(gev.quantile(1e-9, 0.5)), 1e6, 0.5)) < 0.01


def test_chains_by_the_density_have_the_distribution(tmp_path: Path) -> None:
    config = gaussian.Config((11,), chains=4000, steps=30)
    found = gaussian.Way("density", 11).measure(config, tmp_path)
    assert found["variance"] == pytest.approx(2, abs=4 * 2 * math.sqrt(2 / 4000))
    assert found["distance"] < 1.95 / math.sqrt(4000)  # one in a thousand is farther off


def test_numbers_at_or_below_the_papers_are_reached() -> None:
    rows = [
        {"dataset": name, "seed": 1, "method": method, "w1": 0.015, "w2": -0.001, "mmd": 0.003}
        for name in table1.DATASETS
        for method in table1.METHODS
    ]
    found = table1.reached(made_up(table1.Config(), rows=rows), ["score_rw"])
    assert found["Moons, Score RW, W1: 0.015 for 0.019"]
    assert not found["Pinwheel, Score RW, W1: 0.015 for 0.012"]
    assert len(found) == 8  # a negative number is no distance
