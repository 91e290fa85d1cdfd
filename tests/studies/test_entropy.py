"""Figure 2 and the curve: what entropy does to the acceptance."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from studies import entropy
from studies.entropy import cells
from studies.framework import Records
from studies.framework.runner import FILE
from tests.studies.cases import is_picture, made_up, run_small, said

SMALL = cells.Config(seeds=(11,), lambdas=(0.0, 4.0, 10.0), steps=2, score_steps=4, samples=200, fresh=100)


def test_the_best_constant_has_the_least_error() -> None:
    accept = torch.tensor([0.0, 0.1, 0.2, 1.0, 1.0])
    found = cells.best_constant(accept)
    assert found == pytest.approx({"coin": 0.2, "coin_error": (0.2 + 0.1 + 0.0 + 0.8 + 0.8) / 5})
    for constant in (0.0, 0.5, 1.0):
        assert float((accept - constant).abs().mean()) >= found["coin_error"]


@pytest.mark.parametrize(
    ("means", "noise", "expected"),
    [
        ((0.1, 0.4, 0.45), 0.0, (True, True)),
        ((0.1, 0.4, 0.7), 0.0, (True, False)),  # it keeps rising
        ((0.1, 0.4, 0.45), 0.2, (False, False)),  # within the noise
        ((0.1, 0.12, 0.12), 0.0, (False, False)),
        ((0.4, 0.1, 0.1), 0.0, (False, False)),
    ],
)
def test_a_curve_rises_and_is_level_or_not(means: tuple[float, ...], noise: float, expected: tuple[bool, bool]) -> None:
    assert entropy.shape(dict(zip((0.0, 4.0, 10.0), means, strict=True)), noise) == expected


def made_up_means(config: cells.Config, clipped: tuple[float, ...], free: tuple[float, ...]) -> Records:
    """Return records of which only the means over the grid and the errors matter: 0.5 where clipped at 1, else 0.1."""
    forms = (("free, clip 1", clipped, 0.5), ("free, clip 10", clipped, 0.1), ("free", free, 0.1))
    trainings = [
        {"lambda": weight, "form": form, "seed": seed, "mean": mean, "error": error, "on_proposals": 0.2}
        for seed in config.seeds
        for form, means, error in forms
        for weight, mean in zip(config.lambdas, means, strict=True)
    ]
    alone = {"lambda": 0.0, "form": "antisymmetric", "mean": 0.15, "error": 0.07, "on_proposals": 0.2}
    trainings += [alone | {"seed": seed} for seed in config.seeds]
    reference = {"dataset": "moons", "acceptance": 0.4, "coin": 0.2, "coin_error": 0.3, "simpson_error": 0.01}
    return made_up(config, score=[], reference=[reference], entropy=trainings)


def test_the_curve_is_judged_from_its_numbers() -> None:
    config = replace(SMALL, seeds=(1, 2))
    text = said(entropy.CURVE, made_up_means(config, (0.1, 0.4, 0.42), (0.01, 0.0, 0.02)))
    assert "clipped at C = 1: **agrees**. The mean over the grid rises from 0.100" in text
    part = "plateaus: 0.420 at 10. As an acceptance it is no better than the same answer to every candidate: the"
    assert part in text
    assert "not clipped: **does not agree**. The mean over the grid lies between 0.000 and 0.020" in text
    assert "As an acceptance it is better than the same answer" in text
    assert "Trainings with 2 seeds (1, 2)" in text
    other = said(entropy.CURVE, made_up_means(config, (0.4, 0.1, 0.1), (0.1, 0.3, 0.9)))
    assert "does not rise: 0.400 without entropy, 0.100 at lambda = 4, 0.100 at 10" in other
    assert "rises from 0.100 without entropy to 0.300 at lambda = 4, and keeps rising: 0.900 at 10" in other


def test_the_maps_are_judged_from_their_numbers() -> None:
    config = replace(SMALL, seeds=(1,))
    text = said(entropy.MAPS, made_up_means(config, (0.01, 0.2, 0.4), (0.01, 0.01, 0.015)))
    assert "clipped at C = 1: **agrees**. Without entropy the mean of a is 0.010, close to 0" in text
    assert "free, not clipped: **does not agree**" in text
    assert "0.010 for 4, 0.015 for 10: not significantly enhanced" in text
    assert "not close to 0" in said(entropy.MAPS, made_up_means(config, (0.3, 0.9, 0.9), (0.0, 0.0, 0.0)))


def test_a_section_says_which_seeds_are_there() -> None:
    records = made_up_means(replace(SMALL, seeds=(1,)), (0.1, 0.4, 0.4), (0.0, 0.0, 0.0))
    assert "Trainings with 1 seed (1)" in said(entropy.CURVE, records)
    some = [record for record in records.kinds["entropy"] if record["form"] != "free"]
    few = Records(records.settings, {**records.kinds, "entropy": some})
    for study in (entropy.CURVE, entropy.MAPS):
        assert "- free, not clipped: not computed yet." in said(study, few)


@pytest.mark.slow
def test_entropy_runs(tmp_path: Path) -> None:
    for study in (entropy.MAPS, entropy.CURVE):
        found, page = run_small(study, SMALL, tmp_path)
        assert is_picture(tmp_path / "docs" / f"{study.name}.png")
        kept = json.loads((tmp_path / study.name / "quick" / FILE).read_text())
        assert len(kept["score"]) + len(kept["reference"]) + len(kept["entropy"]) == 2 + 3 * 3 + 1
        assert len(kept["entropy"][-1].get("map", [])) == (76 * 51 if study is entropy.MAPS else 0)
        assert found.settings["seeds"] == [11]
        assert all(0 <= record["mean"] <= 1 for record in found.kinds["entropy"])
    assert page.index("## Figure 2") < page.index("## Acceptance against lambda")
