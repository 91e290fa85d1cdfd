"""Evaluation and the verdict: numbers against those of the metrics, on draws that are right and wrong."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import Tensor

from scoremh import ScoreMH, diagnostics, metrics, targets
from scoremh.evaluation import (
    DO_NOT_USE_RATE,
    MAX_NOTICED_SHIFT,
    USABLE_RATE,
    Agreement,
    Check,
    Evaluation,
    agreement,
    corrected,
    evaluate,
    floor_ratio,
    noticed_shift,
    number,
    standard,
    transport_distance,
    verdict,
    worst,
)
from tests.cases import seeded
from tests.report_cases import chains, normal

REFERENCE = normal(300, 2)
DRAWS = normal(120, 2, seed=1)
FAR = normal(200, 2, seed=2) + 3
LOST = torch.cat([normal(50, 2, seed=3), torch.full((1, 2), math.nan), normal(99, 2, seed=4)])


@pytest.fixture(scope="module")
def found() -> Evaluation:
    return evaluate({"near": DRAWS, "far": FAR, "lost": LOST}, REFERENCE, points=100, seed=4)


def test_distances_match_those_of_the_metrics_on_as_many_points_of_each(found: Evaluation) -> None:
    order = torch.randperm(300, generator=seeded(4))
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
    assert str(found.warnings[0]) == "The draws of far differ significantly from reference rows (p = 0.001)."


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
    "other columns": ({"samples": normal(30, 3)}, r"to have events of shape \(2,\), like the reference, got \(3,\)"),
    "no points": ({"points": 0}, "points of at least 1, got 0"),
    "a reference that is not finite": ({"reference": LOST}, "reference to be finite"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared_raises_an_error(case: str) -> None:
    changes, text = REFUSED[case]
    with pytest.raises(ValueError, match=text):
        evaluate(**{"samples": DRAWS, "reference": REFERENCE} | changes)


def test_chains_are_evaluated_by_their_last_draws() -> None:
    drawn = chains(normal(60, 5, 2, seed=5))
    assert drawn.evaluate(REFERENCE, points=40, seed=3) == evaluate(drawn.last, REFERENCE, points=40, seed=3)


@pytest.mark.slow
def test_an_estimator_draws_what_it_needs_and_compares() -> None:
    law = targets.Gaussian([0.0, 1.0])
    x, fresh = (law.sample(n, generator=seeded(n)).numpy() for n in (400, 90))
    brief = {"score_steps": 20, "acceptance_steps": 20, "chain_steps": 4}
    model = ScoreMH(**brief, verbose=False, random_state=0).fit(x)  # type: ignore[arg-type]
    found = model.evaluate(fresh, random_state=3)
    assert found.points == 45
    draws = torch.from_numpy(np.array(model.sample(45, random_state=3)))
    plain = evaluate(draws, torch.from_numpy(fresh), points=45)
    assert (found.metrics, found.p_values, found.rows) == (plain.metrics, plain.p_values, plain.rows)
    assert [one.name for one in found.checks] == [one.name for one in model.diagnose().checks if one.name != "trees"]
    assert found.verdict is not None
    assert found.verdict.against == "90 given rows"  # the latest verdict names its rows
    assert model.evaluate(fresh, n_samples=30).points == 30
    with pytest.raises(ValueError, match="n_samples of at least 1, got 0"):
        model.evaluate(fresh, n_samples=0)


def test_a_column_in_thousands_hides_no_other() -> None:
    generator = seeded()
    reference, draws = torch.randn(400, 2, generator=generator), torch.randn(200, 2, generator=generator)
    draws[:, 0] += 5
    scale = torch.tensor([1.0, 1000.0])
    found = evaluate(draws * scale, reference * scale, points=200)
    assert found.p_values["draws"] < 0.01
    one = evaluate(draws, reference, points=200)
    assert found.metrics["draws"]["w1"] == pytest.approx(one.metrics["draws"]["w1"], rel=1e-4)


@pytest.mark.parametrize("largest", [1e150, 1e307])
def test_draws_that_are_finite_and_no_more_are_checked(largest: float) -> None:
    draws = normal(120, 2, seed=1).double()
    draws[::3, 0] = largest
    found = evaluate(draws, 1e-3 * REFERENCE.double(), points=100)
    assert all(value is not None and math.isfinite(value) for value in found.metrics["draws"].values())
    assert found.verdict is not None
    assert found.verdict.level == "do not use"
    assert found.p_values["draws"] < 0.01


# The verdict: what it is worth on draws that are right and on draws that are wrong, and how it is shown.


NAMES = ["a", "b", "c"]


def rows(n: int, seed: int) -> Tensor:
    """Return three columns in other units, two of which depend on each other, in two modes."""
    generator = seeded(seed)
    x = torch.randn(n, 3, generator=generator)
    x[:, 0] += 6 * (torch.rand(n, generator=generator) < 0.3)
    x[:, 1] += x[:, 0]
    return x * torch.tensor([1.0, 1000.0, 0.01])


def judged(draws: Tensor, seed: int = 0) -> Agreement:
    generator = seeded(seed)
    return agreement(draws, rows(150, 1), NAMES, seen=rows(850, 2), generator=generator)


def shuffled(x: Tensor) -> Tensor:
    return torch.cat([x[:, :1], x[torch.randperm(len(x), generator=seeded()), 1:]], 1)


def leaked(x: Tensor) -> Tensor:
    return torch.cat([x[:-20], x.mean(0) + 8 * x.std(0) * torch.ones(20, 3)])


WRONG: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "a shifted column": (lambda x: x + torch.tensor([0.0, 0.0, 0.006]), "columns"),
    "a shuffled column": (shuffled, "correlations"),
    "a dropped mode": (lambda x: x[x[:, 0] < 3].repeat(2, 1)[:500], "clusters"),
    "a leak": (leaked, "range"),
    "copies": (lambda x: rows(850, 2)[:500] + 1e-3 * x, "copies"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_detected_by_its_check(case: str) -> None:
    change, name = WRONG[case]
    found = judged(change(rows(500, 3)))
    check = next(one for one in found.checks if one.name == name)
    assert check.level == "do not use", check
    said = verdict(found, advice="Do this.")
    assert said.level == "do not use"
    if case == "a shifted column":
        assert said.reason.startswith("only column c differs: ")
        assert said.advice.startswith("Is c a date, an identifier or a code? Give its kind with columns={'c': ...}")
    else:
        assert found.suspect is None
        assert said.advice == "Do this."


@pytest.mark.slow
def test_trees_see_a_column_of_codes_that_no_margin_shows() -> None:
    """Dates as whole numbers: days 1 to 28 in the rows, 0 to 99 in the draws."""
    g = seeded(6)

    def dates(n: int, days: int) -> Tensor:
        month, day = torch.randint(1, 13, (n, 1), generator=g), torch.randint(1, days, (n, 1), generator=g)
        return torch.cat([torch.randn(n, 2, generator=g), 20240000 + 100 * month + day], 1).double()

    found = agreement(dates(1000, 100), dates(2000, 29), ["a", "b", "when"], generator=g)
    levels = {check.name: check.level for check in found.checks}
    assert levels["classifier"] != "do not use"
    assert levels["trees"] == "do not use"
    assert found.suspect == "when"
    assert "Is when a date" in verdict(found).advice


def test_right_draws_are_good_and_the_verdict_names_the_detectable_shift() -> None:
    found = judged(rows(500, 3))
    assert verdict(found).level == "good"
    assert found.rows == 1000
    assert 0.1 < found.noticed_shift < 0.6
    assert f"a shift of {found.noticed_shift:.2g} standard deviations" in str(verdict(found))


@pytest.mark.slow
def test_the_rates_of_false_alarms_are_those_declared() -> None:
    """Of 60 samplers that are right at most the 99.9 % quantile of a binomial is called usable or worse."""
    levels = [verdict(agreement(rows(200, 100 + i), rows(400, 200 + i), NAMES, generator=seeded(i))) for i in range(60)]
    bad = [one for one in levels if one.level in ("usable", "do not use")]
    assert len(bad) <= stats.binom.ppf(0.999, 60, USABLE_RATE)
    assert sum(one.level == "do not use" for one in bad) <= stats.binom.ppf(0.999, 60, DO_NOT_USE_RATE)


def test_a_shift_is_detected_as_often_as_it_claims() -> None:
    random, noticed, checks = np.random.default_rng(0), 0, 6
    for _ in range(200):
        y, x = random.normal(size=(300, 1)), random.normal(size=(200, 1))
        shift = noticed_shift(y, len(x), checks)
        p = stats.ks_2samp(x[:, 0] + shift, y[:, 0], method="asymp").pvalue
        noticed += p * checks < USABLE_RATE
    assert noticed >= stats.binom.ppf(0.001, 200, 0.9)


def test_columns_of_few_levels_do_not_hide_the_detectable_shift() -> None:
    random = np.random.default_rng(0)
    number = random.normal(size=(1500, 1))
    rare = (random.random((1500, 1)) < 0.01).astype(float)
    rounded = number.round()  # a shift by less than a step moves some of the rows
    alone, beside, coarse = (
        noticed_shift(standard(y, y)[1], 1000, 8) for y in (number, np.c_[number, rare, 3 * rare], 10 * number.round(1))
    )
    assert alone < 0.3
    assert beside == alone
    assert coarse == pytest.approx(alone, rel=0.25)
    assert noticed_shift(standard(rounded, rounded)[1], 1000, 8) < 0.5  # if there is nothing else


def test_few_rows_leave_the_verdict_undecided() -> None:
    found = verdict(agreement(rows(200, 3), rows(30, 1), NAMES, generator=seeded()))
    assert found.level == "undecided"
    assert "30 rows " in found.reason
    assert found.advice.startswith("Compare at least ")


def test_a_limit_counts_beyond_chance_only() -> None:
    levels = [
        Check("a check", value, 0.1, 0.3, p, "text", chance=0.02).level
        for value, p in ((0.11, 1e-9), (0.13, 1e-9), (0.31, 1e-9), (0.33, 1e-9), (0.33, 0.05), (0.33, 0.5), (0.2, 0.5))
    ]
    assert levels == ["good", "usable", "usable", "do not use", "usable", "undecided", "good"]


def test_rows_in_another_coding_are_an_error() -> None:
    model = ScoreMH(
        score_steps=10, acceptance_steps=10, annealing_steps=1, chain_steps=4, verbose=False, random_state=0
    )
    table = pd.DataFrame({"share": np.random.default_rng(0).normal(0.5, 0.1, 300), "level": np.arange(300) % 5})
    model.set_params(noise_level=0.6).fit(table)
    with pytest.raises(
        ValueError, match=r"given rows with column 'share' coded as in the fit, 0\.\d+ to 0\.\d+, got 1"
    ):
        model.evaluate(table.assign(share=100 * table["share"]))


def test_heavy_tails_are_compared_by_ranks() -> None:
    random = np.random.default_rng(0)
    x, y = random.standard_cauchy((300, 1)), random.standard_cauchy((400, 1))
    u, v = standard(x, y)
    assert np.abs(v).max() < 4
    assert stats.kstest(v[:, 0], "norm").pvalue > 0.5
    np.testing.assert_array_equal(np.argsort(v[:, 0]), np.argsort(y[:, 0]))
    assert stats.ks_2samp(u[:, 0], v[:, 0]).statistic == pytest.approx(
        stats.ks_2samp(x[:, 0], y[:, 0]).statistic, abs=0.01
    )
    plain = random.normal(size=(400, 1))
    np.testing.assert_allclose(standard(x, plain)[0], (x - np.median(plain)) / plain.std())


def test_transport_matches_that_of_the_metrics() -> None:
    x, y = (np.random.default_rng(seed).normal(size=(80, 3)) for seed in (0, 1))
    assert transport_distance(x, y) == pytest.approx(metrics.w1(x, y))
    assert transport_distance(x[:, :1], y[:, :1]) == pytest.approx(metrics.w1(x[:, :1], y[:, :1]))


def test_p_values_are_corrected_and_a_number_counts_only_beyond_chance() -> None:
    made = [Check(str(p), 2.0, 1.0, 1.5, p, "") for p in (0.2, 0.001, 0.01)]
    found = corrected(made)
    assert [check.p_value for check in found] == pytest.approx([0.2, 0.003, 0.02])  # Holm's, in the order given
    assert [check.level for check in found] == ["undecided", "do not use", "usable"]
    assert worst(found) == found[1]
    assert Check("", 0.9, 1.0, 1.5, 0.0, "").level == "good"
    assert worst([Check("", 1.2, 1.0, 1.5, 0.2, "")]) is None


@pytest.mark.parametrize(("value", "text"), [(44.2, "44.2"), (20.0, "20"), (0.0012345, "0.00123"), (1e-7, "1e-07")])
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text
    assert number(1234.5) == "1,230"
    assert number(math.inf) == "inf"


def test_arrays_and_frames_are_samples() -> None:
    x, y = (np.random.default_rng(seed).normal(size=(60, 2)) for seed in (0, 1))
    frame, tensor = pd.DataFrame(x, columns=["a", "b"]), torch.tensor(x)
    for metric in (metrics.w1, metrics.w2, metrics.energy_distance, metrics.mmd_squared):
        assert metric(frame, y) == metric(x, y) == metric(tensor, torch.tensor(y))
    score: Callable[[Tensor], Tensor] = torch.neg
    assert diagnostics.kernel_stein_discrepancy(frame, score) == diagnostics.kernel_stein_discrepancy(
        tensor.float(), score
    )
    assert metrics.floor(frame, metrics.w1, 20, generator=seeded()) == metrics.floor(
        tensor, metrics.w1, 20, generator=seeded()
    )
    assert evaluate(frame, y) == evaluate(tensor, torch.tensor(y))
    with pytest.raises(TypeError, match="expected x to hold numbers, got DataFrame"):
        metrics.w1(pd.DataFrame({"a": ["red", "blue"], "b": [1.0, 2.0]}), y)


def test_chains_have_a_form_in_notebooks() -> None:
    page = chains(rows(40, 0).reshape(10, 4, 3))._repr_html_()
    assert page.count("<tr>") == 4
    assert "10 chains x 4 draws" in page


def test_the_guide_has_the_limits_of_all_checks() -> None:
    generator = seeded()
    draws, rows, seen = torch.randn(3, 120, 2, generator=generator)
    found = agreement(
        draws, rows, ["a", "b"], seen=seen, log_densities=(draws.sum(1), rows.sum(1)), generator=generator
    )
    guide = (Path(__file__).parent.parent / "docs" / "judging.md").read_text()
    said = re.findall(r"^\| (\w+) \| [^|]+ \| ([\d.]+) \| ([\d.]+) \|$", guide, re.MULTILINE)
    assert said == [(check.name, f"{check.good:g}", f"{check.usable:g}") for check in found.checks]
    assert f"shift of {MAX_NOTICED_SHIFT:g} standard deviations" in " ".join(guide.split())
