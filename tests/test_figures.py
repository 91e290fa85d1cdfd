"""Experiments for figures of the paper: what they measure, what they say of it, and that they run, small."""

import json
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from scoremh import experiments, plots, targets
from scoremh.experiments import _cells, _entropy, _mixture_cells, entropy_curve, entropy_maps, gaussian, mixture

SMALL_ENTROPY = _entropy.Config(seeds=(11,), lambdas=(0.0, 4.0, 10.0), steps=2, score_steps=4, samples=200, fresh=100)
SMALL_GAUSSIAN = gaussian.Config(seeds=(11, 12), chains=40, steps=3, samples=200, score_steps=4, acceptance_steps=4)
SMALL_MIXTURE = _mixture_cells.Config(
    seeds=(11, 12), chains=40, steps=30, settling=5, samples=300, score_steps=4, acceptance_steps=4
)


def pictured(docs: Path, name: str) -> None:
    """Check that a picture is there, and that the page shows it."""
    picture = (docs / f"{name}.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000
    assert f"![{name}]({name}.png)" in (docs / "reproduction.md").read_text()


def results(docs: Path, name: str) -> dict[str, Any]:
    """Read the results of an experiment."""
    found: dict[str, Any] = json.loads((docs / "results" / f"{name}.json").read_text())
    return found


def test_numbers_over_seeds_are_written_with_their_spread_where_there_are_several() -> None:
    assert _cells.over_seeds([1.0, 3.0], 2) == "2.00 +- 1.41"
    assert _cells.over_seeds([0.5]) == "0.500"
    assert _cells.over_seeds([]) == ""


def test_histograms_are_drawn(tmp_path: Path) -> None:
    law = targets.Gaussian([3.0], [[2.0]])
    draws = law.sample(500, generator=torch.Generator().manual_seed(0))[:, 0]
    plots.histogram_panels({"a": draws, "b": draws}, tmp_path / "a.png", log_density=law.log_density, title="both")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


# Entropy


def test_a_coin_has_the_least_error_of_all_constants() -> None:
    accept = torch.tensor([0.0, 0.1, 0.2, 1.0, 1.0])
    found = _entropy.coin(accept)
    assert found == pytest.approx({"coin": 0.2, "coin_error": (0.2 + 0.1 + 0.0 + 0.8 + 0.8) / 5})
    for constant in (0.0, 0.5, 1.0):
        assert float((accept - constant).abs().mean()) >= found["coin_error"]


@pytest.mark.parametrize(
    ("means", "noise", "expected"),
    [
        ((0.1, 0.4, 0.45), 0.0, (True, True)),
        ((0.1, 0.4, 0.7), 0.0, (True, False)),  # it goes on to rise
        ((0.1, 0.4, 0.45), 0.2, (False, False)),  # within the noise
        ((0.1, 0.12, 0.12), 0.0, (False, False)),
        ((0.4, 0.1, 0.1), 0.0, (False, False)),
    ],
)
def test_a_curve_rises_and_is_level_or_not(means: tuple[float, ...], noise: float, expected: tuple[bool, bool]) -> None:
    assert entropy_curve.shape((0.0, 4.0, 10.0), means, noise) == expected


def made_up_entropy(config: _entropy.Config, clipped: tuple[float, ...], free: tuple[float, ...]) -> dict[str, Any]:
    """Return results of which only the means over the grid and the errors matter: 0.5 where clipped, else 0.1."""
    cell = {"on_proposals": 0.2, "balance": 1.0}
    cells: dict[str, Any] = {"reference / moons": {"acceptance": 0.4, "coin": 0.2, "coin_error": 0.3}}
    cells["reference / moons"]["simpson_error"] = 0.01
    for seed in config.seeds:
        for form, means, error in (
            ("free, clip 1", clipped, 0.5),
            ("free, clip 10", clipped, 0.1),
            ("free", free, 0.1),
        ):
            for weight, value in zip(config.lambdas, means, strict=True):
                cells[f"entropy / {weight} / {form} / {seed}"] = {"mean": value, "error": error, **cell}
        cells[f"entropy / 0.0 / antisymmetric / {seed}"] = {"mean": 0.15, "error": 0.07, **cell}
    settings = json.loads(json.dumps(config.__dict__))
    return entropy_curve.FIGURE.gathered(cells, settings)


def test_the_curve_is_judged_from_its_numbers() -> None:
    config = replace(SMALL_ENTROPY, seeds=(1, 2))
    said = entropy_curve.section(made_up_entropy(config, (0.1, 0.4, 0.42), (0.01, 0.0, 0.02)))
    assert "clipped at C = 1: **agrees**. The mean over the grid rises from 0.100" in said
    assert (
        "plateaus: 0.420 at 10. As an acceptance it is no better than the same answer to every candidate: the" in said
    )
    assert "not clipped: **does not agree**. The mean over the grid lies between 0.000 and 0.020" in said
    assert "As an acceptance it is better than the same answer" in said
    assert "Trainings with 2 seeds (1, 2)" in said
    other = entropy_curve.section(made_up_entropy(config, (0.4, 0.1, 0.1), (0.1, 0.3, 0.9)))
    assert "does not rise: 0.400 without entropy, 0.100 at lambda = 4, 0.100 at 10" in other
    assert "rises from 0.100 without entropy to 0.300 at lambda = 4, and goes on: 0.900 at 10" in other


def test_the_maps_are_judged_from_their_numbers() -> None:
    config = replace(SMALL_ENTROPY, seeds=(1,))
    said = entropy_maps.section(made_up_entropy(config, (0.01, 0.2, 0.4), (0.01, 0.01, 0.015)))
    assert "clipped at C = 1: **agrees**. Without entropy the mean of a is 0.010, close to 0" in said
    assert "free, not clipped: **does not agree**" in said
    assert "0.010 for 4, 0.015 for 10: not significantly enhanced" in said
    assert "not close to 0" in entropy_maps.section(made_up_entropy(config, (0.3, 0.9, 0.9), (0.0, 0.0, 0.0)))


def test_a_section_says_which_seeds_are_there() -> None:
    found = made_up_entropy(replace(SMALL_ENTROPY, seeds=(1,)), (0.1, 0.4, 0.4), (0.0, 0.0, 0.0))
    assert "Trainings with 1 seed (1)" in entropy_curve.section(found)
    found["entropy"] = [record for record in found["entropy"] if record["form"] != "free"]
    for module in (entropy_curve, entropy_maps):
        assert "- free, not clipped: not computed yet." in module.section(found)


@pytest.mark.slow
def test_entropy_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((entropy_maps, "entropy-maps"), (entropy_curve, "entropy-curve")):
        monkeypatch.setitem(module.PRESETS, "quick", SMALL_ENTROPY)
        module.run("quick", tmp_path, tmp_path / "docs", workers=1)
        pictured(tmp_path / "docs", name)
        cells = json.loads((tmp_path / name / "quick" / "cells.json").read_text())
        assert len(cells) == 2 + 3 * 3 + 1
        assert len(cells["entropy / 0.0 / antisymmetric / 11"].get("map", [])) == (76 * 51 if "maps" in name else 0)
        found = results(tmp_path / "docs", name)
        assert found["settings"]["seeds"] == [11]
        assert all(0 <= record["mean"] <= 1 for record in found["entropy"])
    page = (tmp_path / "docs" / "reproduction.md").read_text()
    assert page.index("## Figure 2") < page.index("## Acceptance against lambda")


# N(3, 2)


def made_up_gaussian(distance: float, mean: float) -> dict[str, Any]:
    """Return results in which one way has this distance and this mean, and all have the same draws."""
    draws = [0.01 * number for number in range(100)]
    cell = {"mean": 3.0, "variance": 2.0, "distance": 0.001, "acceptance": 0.4, "draws": draws}
    cells = {f"gaussian / {way} / {seed}": cell for way in gaussian.WAYS for seed in (11, 12)}
    cells["gaussian / learned score / 12"] = cell | {"distance": distance, "mean": mean}
    pairs = [f"between / {first} / {second}" for first, second in combinations(gaussian.PAPERS, 2)]
    cells |= {f"{pair} / {seed}": {"distance": 0.0} for pair in pairs for seed in (11, 12)}
    settings = json.loads(json.dumps(gaussian.Config(seeds=(11, 12)).__dict__))
    return gaussian.FIGURE.gathered(cells, settings)


def test_the_sanity_check_is_judged_from_its_numbers() -> None:
    good = made_up_gaussian(0.01, 3.01)
    assert set(gaussian.between(good).values()) == {0.0}
    assert "is **reached**. The largest distance to the law is 0.0100 (Score RW, learned score)" in gaussian.section(
        good
    )
    assert "of a variance): no mean and no variance." in gaussian.section(good)
    bad = gaussian.section(made_up_gaussian(0.03, 3.1))
    assert "is **not reached**. The largest distance to the law is 0.0300" in bad
    assert "the mean of Score RW, learned score, seed 12 (3.100)" in bad
    assert "| RW, by the density | 3.000 +- 0.000 | 2.000 +- 0.000 | 0.0010 +- 0.0000 |" in bad


def test_distances_between_ways_are_the_largest_over_seeds(tmp_path: Path) -> None:
    found = made_up_gaussian(0.01, 3.0)
    record = next(one for one in found["between"] if (one["second"], one["seed"]) == ("true score", 12))
    draws = [0.01 * number for number in range(100)]
    cells = {
        "gaussian / density / 12": {"draws": draws},
        "gaussian / true score / 12": {"draws": [value + 0.245 for value in draws]},
    }
    (tmp_path / "cells.json").write_text(json.dumps(cells))
    record |= gaussian.cell(("between", "density", "true score", "12"), config=SMALL_GAUSSIAN, folder=tmp_path)
    assert gaussian.between(found)["density", "true score"] == pytest.approx(0.25)
    assert gaussian.between(found)["density", "learned score"] == 0
    assert "is **not reached**" in gaussian.section(found)


def test_chains_by_the_density_have_the_law(tmp_path: Path) -> None:
    config = replace(SMALL_GAUSSIAN, chains=4000, steps=30)
    found = gaussian.cell(("gaussian", "density", "11"), config=config, folder=tmp_path)
    assert found["mean"] == pytest.approx(3, abs=4 * math.sqrt(2 / 4000))
    assert found["variance"] == pytest.approx(2, abs=4 * 2 * math.sqrt(2 / 4000))
    assert found["distance"] < 1.95 / math.sqrt(4000)  # one law in a thousand is farther off


@pytest.mark.slow
def test_the_sanity_check_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gaussian.PRESETS, "quick", SMALL_GAUSSIAN)
    gaussian.run("quick", tmp_path, tmp_path / "docs", workers=1)
    pictured(tmp_path / "docs", "gaussian")
    found = results(tmp_path / "docs", "gaussian")
    assert len(found["gaussian"]) == 8
    assert "draws" not in found["gaussian"][0]
    assert len(found["between"]) == 6
    assert gaussian.section(found) in (tmp_path / "docs" / "reproduction.md").read_text()


# Two modes


def test_the_mixture_measures_weights_and_jumps() -> None:
    here, there = [5.0, 5.0], [-5.0, -5.0]
    draws = torch.tensor([[here, here, here], [here, there, here], [there, there, there], [there, here, here]])
    found = _mixture_cells.describe(draws, draws[:, 0] + 1, 0.5)
    assert (found["weight"], found["jumps"], found["variance"]) == (0.75, 0.75, 0.0)
    assert (found["start_weight"], found["acceptance"]) == (0.5, 0.5)
    assert found["points"] == [here, here, there, here]
    assert "jumps" not in _mixture_cells.describe(draws[:, -1:])
    assert _mixture_cells.describe(draws[:, -1:] + 2)["variance"] == 4


def made_up_mixture(weights: dict[str, dict[str, float]], jumps: dict[str, float]) -> dict[str, Any]:
    """Return results with these weights by sampler and start, the same for two seeds."""
    cells: dict[str, Any] = {f"original / {seed}": {"weight": 0.81, "variance": 1.0} for seed in (1, 2)}
    for name, starts in weights.items():
        for start, weight in starts.items():
            cell = {"weight": weight, "start_weight": weight, "jumps": jumps[name], "acceptance": 0.5, "variance": 1.0}
            cells |= {f"chains / {name} / {start} / {seed}": dict(cell) for seed in (1, 2)}
    settings = json.loads(json.dumps(_mixture_cells.Config(seeds=(1, 2)).__dict__))
    return mixture.FIGURE.gathered(cells, settings)


KEPT = dict(zip(_mixture_cells.STARTS, (0.54, 1.0, 0.5, 0.8), strict=True))
FOUND = dict.fromkeys(_mixture_cells.STARTS, 0.8)


def test_the_mixture_is_read_from_its_numbers() -> None:
    jumps = {"ULA": 0.0, "RW": 7.0, "MALA": 0.0}
    found = made_up_mixture({"ULA": KEPT, "RW": FOUND, "MALA": KEPT}, jumps)
    said = mixture.section(found)
    for text in (
        "RW, std 7 jumps 7 to 7 times per chain, by seed and start, and finds the weights from every start: it ends at",
        "Chains with the true score or density that stay in a mode (ULA, h = 0.5; MALA, h = 0.5; fewer than 0.1 jumps",
        "they end anywhere from 0.50 to 1.00, at most 0.000 from the share",
        "- ULA, h = 0.5: the paper's 0.52 comes back from N(0, I); N(0, 25 I).",
        "- MALA, h = 0.5: the paper's 0.79 comes back from the law itself.",
        "**does not agree**. No start of these gives the paper's weights for both.",
        "From N(0, I), MALA with the true density keeps wrong weights: 0.540.",
        "| original, independent draws | 0.8 | 0.810 +- 0.000 |",
        "| ULA, h = 0.5 | 0.52 | 0.540 +- 0.000 | 1.000 +- 0.000 |",
    ):
        assert text in said, text


def test_the_mixture_would_say_that_the_paper_is_right() -> None:
    found = made_up_mixture({"ULA": KEPT, "RW": FOUND, "MALA": FOUND}, {"ULA": 0.0, "RW": 7.0, "MALA": 2.0})
    said = mixture.section(found)
    assert "**agrees**. N(0, I); N(0, 25 I) gives the paper's weights for both" in said
    assert "MALA with the true density finds the weights: 0.800" in said


def test_the_mixture_names_what_is_biased_and_what_jumps_now_and_then() -> None:
    found = made_up_mixture({"ULA": KEPT, "RW": KEPT, "MALA": KEPT}, {"ULA": 0.0, "RW": 7.0, "MALA": 0.0})
    for record in found["chains"]:
        if record["sampler"] == "ULA" and record["start"] == "N(0, I)":
            record["variance"] = 1.3
        if record["sampler"] == "RW" and record["start"] == "N(0, 25 I)":
            record["jumps"] = 0.0
    said = mixture.section(found)
    assert "ULA, h = 0.5: the variance around a mode is 1.00 to 1.30 for 1, by seed and start." in said
    assert (
        "RW, std 7 jumps 0 to 7 times per chain, by seed and start, and finds the weights from the law itself" in said
    )
    for record in found["chains"]:
        record["sampler"], record["start_weight"] = record["sampler"].replace("MALA", "Score MALA"), 0.3
    assert (
        "Chains with a learned score that stay in a mode (Score MALA, h = 0.5; fewer than 0.1 jumps each) do not"
        in (mixture.section(found))
    )
    some = made_up_mixture({"ULA": KEPT, "RW": {"N(0, I)": 0.8}}, {"ULA": 0.0, "RW": 7.0})
    assert "RW, std 7 |" not in mixture.section(some)  # not from all starts yet


def test_a_wide_walk_with_the_density_jumps_and_langevin_does_not(tmp_path: Path) -> None:
    config = replace(SMALL_MIXTURE, chains=200, steps=300)
    found = {
        name: _mixture_cells.cell(("chains", name, "N(0, I)", "11"), config=config, folder=tmp_path)
        for name in ("RW", "MALA")
    }
    assert found["RW"]["jumps"] > 0.5
    assert found["MALA"]["jumps"] == 0


@pytest.mark.slow
def test_the_mixture_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mixture.PRESETS, "quick", SMALL_MIXTURE)
    mixture.run("quick", tmp_path, tmp_path / "docs", workers=1)
    pictured(tmp_path / "docs", "mixture")
    found = results(tmp_path / "docs", "mixture")
    assert len(found["chains"]) == 7 * 4 * 2
    assert len(found["acceptance"]) == 3 * 2
    page = (tmp_path / "docs" / "reproduction.md").read_text()
    assert "| Score MALA, h = 0.5 |" in page
    assert "40 chains of 30 steps from every start" in page


# The page


FIGURES = sorted(name for name, one in experiments.found().items() if hasattr(one, "FIGURE"))


@pytest.mark.parametrize("name", FIGURES)
def test_the_page_says_what_the_results_say(name: str) -> None:
    docs = Path(__file__).parent.parent / "docs"
    found = json.loads((docs / "results" / f"{name}.json").read_text())
    figure: Any = experiments.found()[name]
    assert figure.FIGURE.name == name
    assert f"<!-- {name} -->\n{figure.FIGURE.text(found)}\n" in (docs / "reproduction.md").read_text()
    assert (docs / f"{name}.png").exists()
    assert found["settings"]["preset"] == "paper"
