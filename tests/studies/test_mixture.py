"""Figure 1: two modes that lie far apart."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from studies import mixture
from studies.framework import Records
from studies.mixture import cells
from tests.studies.cases import is_picture, made_up, run_small, said

SMALL = cells.Config(
    seeds=(11, 12),
    chains=40,
    steps=30,
    few_steps=20,
    settling=5,
    samples=300,
    score_steps=4,
    acceptance_steps=4,
    anchored_steps=4,
    sweeps=8,
    settling_sweeps=2,
)
KEPT = dict(zip(cells.STARTS, (0.54, 1.0, 0.5, 0.8), strict=True))
FOUND = dict.fromkeys(cells.STARTS, 0.8)


def test_the_mixture_measures_weights_and_jumps() -> None:
    here, there = [5.0, 5.0], [-5.0, -5.0]
    draws = torch.tensor([[here, here, here], [here, there, here], [there, there, there], [there, here, here]])
    found = cells.described(draws, draws[:, 0] + 1, 0.5)
    assert (found["weight"], found["jumps"], found["variance"]) == (0.75, 0.75, 0.0)
    assert (found["start_weight"], found["acceptance"]) == (0.5, 0.5)
    assert found["points"] == [here, here, there, here]
    assert "jumps" not in cells.described(draws[:, -1:])
    assert cells.described(draws[:, -1:] + 2)["variance"] == 4


def made_up_chains(weights: dict[str, dict[str, float]], jumps: dict[str, float]) -> Records:
    """Return records with these weights by sampler and start, the same for two seeds."""
    chains = [
        {"sampler": name, "start": start, "seed": seed, "weight": weight, "start_weight": weight}
        | {"jumps": jumps[name], "acceptance": 0.5, "variance": 1.0, "late_weight": weight}
        for name, starts in weights.items()
        for start, weight in starts.items()
        for seed in (1, 2)
    ]
    original = [{"seed": seed, "weight": 0.81, "variance": 1.0} for seed in (1, 2)]
    trainings = [{"sampler": name, "seed": seed, "seconds": 40.0} for name in weights for seed in (1, 2)]
    return made_up(cells.Config(seeds=(1, 2)), original=original, chains=chains, acceptance=trainings)


def test_the_mixture_is_read_from_its_numbers() -> None:
    jumps = {"ULA": 0.0, "RW": 7.0, "MALA": 0.0}
    text = said(mixture.STUDY, made_up_chains({"ULA": KEPT, "RW": FOUND, "MALA": KEPT}, jumps))
    for part in (
        "RW, std 7 jumps 7 to 7 times per chain, by seed and start, and finds the weights from every start: it ends at",
        "Chains with the true score or density that stay in a mode (ULA, h = 0.5; MALA, h = 0.5; fewer than 0.1 jumps",
        "they end anywhere from 0.50 to 1.00, at most 0.000 from the share",
        "- ULA, h = 0.5: the paper's 0.52 comes back from N(0, I); N(0, 25 I).",
        "- MALA, h = 0.5: the paper's 0.79 comes back from the distribution itself.",
        "**does not agree**. No start of these gives the paper's weights for both.",
        "From N(0, I), MALA with the true density keeps wrong weights: 0.540.",
        "| original, independent draws | 0.8 | 0.810 +- 0.000 |",
        "| ULA, h = 0.5 | 0.52 | 0.540 +- 0.000 | 1.000 +- 0.000 |",
    ):
        assert part in text, part


def test_the_mixture_would_say_that_the_paper_is_right() -> None:
    records = made_up_chains({"ULA": KEPT, "RW": FOUND, "MALA": FOUND}, {"ULA": 0.0, "RW": 7.0, "MALA": 2.0})
    text = said(mixture.STUDY, records)
    assert "**agrees**. N(0, I); N(0, 25 I) gives the paper's weights for both" in text
    assert "MALA with the true density finds the weights: 0.800" in text


def test_the_mixture_names_what_is_biased_and_what_jumps_now_and_then() -> None:
    records = made_up_chains({"ULA": KEPT, "RW": KEPT, "MALA": KEPT}, {"ULA": 0.0, "RW": 7.0, "MALA": 0.0})
    for record in records.kinds["chains"]:
        if record["sampler"] == "ULA" and record["start"] == "N(0, I)":
            record["variance"] = 1.3
        if record["sampler"] == "RW" and record["start"] == "N(0, 25 I)":
            record["jumps"] = 0.0
    text = said(mixture.STUDY, records)
    assert "ULA, h = 0.5: the variance around a mode is 1.00 to 1.30 for 1, by seed and start." in text
    assert (
        "RW, std 7 jumps 0 to 7 times per chain, by seed and start, and finds the weights from the distribution" in text
    )
    for record in records.kinds["chains"]:
        record["sampler"], record["start_weight"] = record["sampler"].replace("MALA", "Score MALA"), 0.3
    part = "Chains with a learned score that stay in a mode (Score MALA, h = 0.5; fewer than 0.1 jumps each) do not"
    assert part in said(mixture.STUDY, records)
    some = made_up_chains({"ULA": KEPT, "RW": {"N(0, I)": 0.8}}, {"ULA": 0.0, "RW": 7.0})
    assert "RW, std 7 |" not in said(mixture.STUDY, some)  # not from all starts yet


def test_learned_rows_that_find_the_weights_are_distinguished() -> None:
    weights = {"Score RW": KEPT, "anchored": FOUND, "through noise": FOUND | {"N((5, 5), I)": 0.84}}
    records = made_up_chains(weights, dict.fromkeys(weights, 3.0))
    labels = mixture.labels(records)
    assert mixture.learned_finds_weights(records) == {
        labels["Score RW"]: False,
        labels["anchored"]: True,
        labels["through noise"]: False,
    }
    text = said(mixture.STUDY, records)
    assert "these find the weights from every start: Score RW, anchored, std 7; these do not: Score RW, std 7;" in text
    assert "| Score RW, anchored, std 7 | 0.800, 0.800 | 0.000 | 40, 40 |" in text
    assert "| Score RW, through noise, std 7 | 0.810, 0.810 | 0.010 | |" in text
    assert "| Score RW, std 7 | 0.5" not in text  # it knows no values


def test_a_wide_walk_with_the_density_jumps_and_langevin_does_not(tmp_path: Path) -> None:
    config = replace(SMALL, chains=200, steps=300)
    found = {name: cells.Chains(name, "N(0, I)", 11).measure(config, tmp_path) for name in ("RW", "MALA")}
    assert found["RW"]["jumps"] > 0.5
    assert found["MALA"]["jumps"] == 0


@pytest.mark.slow
def test_the_mixture_runs(tmp_path: Path) -> None:
    found, page = run_small(mixture.STUDY, SMALL, tmp_path)
    assert is_picture(tmp_path / "docs" / "mixture.png")
    assert len(found.kinds["chains"]) == 12 * 4 * 2
    assert len(found.kinds["acceptance"]) == 6 * 2
    assert "| Score MALA, h = 0.5 |" in page
    assert "| Score RW, antisymmetric, anchored, std 7 |" in page
    assert "| Score MALA, replica exchange, 6 levels |" in page
    assert "40 chains of 30 steps from every start" in page
