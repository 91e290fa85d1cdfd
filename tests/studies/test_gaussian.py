"""The sanity check, N(3, 2)."""

import json
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from studies import gaussian
from studies.framework import Records
from studies.framework.runner import FILE
from tests.studies.cases import is_picture, made_up, run_small, said

SMALL = gaussian.Config(seeds=(11, 12), chains=40, steps=3, samples=200, score_steps=4, acceptance_steps=4)


def made_up_ways(distance: float, mean: float) -> Records:
    """Return records in which one way has this distance and this mean."""
    cell = {"mean": 3.0, "variance": 2.0, "distance": 0.001, "acceptance": 0.4}
    ways = [{"way": way, "seed": seed} | cell for way in gaussian.WAYS for seed in (11, 12)]
    for record in ways:
        if (record["way"], record["seed"]) == ("learned score", 12):
            record |= {"distance": distance, "mean": mean}
    pairs = [{"first": a, "second": b, "distance": 0.0} for a, b in combinations(gaussian.PAPER_WAYS, 2)]
    between = [pair | {"seed": seed} for pair in pairs for seed in (11, 12)]
    return made_up(gaussian.Config(seeds=(11, 12)), gaussian=ways, between=between)


def test_the_sanity_check_is_judged_from_its_numbers() -> None:
    good = said(gaussian.STUDY, made_up_ways(0.01, 3.01))
    assert "is **reached**. The largest distance to the distribution is 0.0100 (Score RW, learned score)" in good
    assert "of a variance): no mean and no variance." in good
    bad = said(gaussian.STUDY, made_up_ways(0.03, 3.1))
    assert "is **not reached**. The largest distance to the distribution is 0.0300" in bad
    assert "the mean of Score RW, learned score, seed 12 (3.100)" in bad
    assert "| RW, by the density | 3.000 +- 0.000 | 2.000 +- 0.000 | 0.0010 +- 0.0000 |" in bad


def test_distances_between_ways_are_the_largest_over_seeds(tmp_path: Path) -> None:
    records = made_up_ways(0.01, 3.0)
    assert gaussian.farthest_apart(records)["distance"] == 0
    draws = [0.01 * number for number in range(100)]
    ways = [
        {"way": "density", "seed": 12, "draws": draws},
        {"way": "true score", "seed": 12, "draws": [value + 0.245 for value in draws]},
    ]
    (tmp_path / FILE).write_text(json.dumps({"gaussian": ways}))
    (record,) = records.where("between", first="density", second="true score", seed=12)
    record |= gaussian.Between("density", "true score", 12).measure(SMALL, tmp_path)
    assert gaussian.farthest_apart(records)["distance"] == pytest.approx(0.25)
    assert records.values("between", "distance", first="density", second="learned score") == [0, 0]
    assert "is **not reached**" in said(gaussian.STUDY, records)


def test_chains_by_the_density_have_the_distribution(tmp_path: Path) -> None:
    found = gaussian.Way("density", 11).measure(replace(SMALL, chains=4000, steps=30), tmp_path)
    assert found["mean"] == pytest.approx(3, abs=4 * math.sqrt(2 / 4000))
    assert found["variance"] == pytest.approx(2, abs=4 * 2 * math.sqrt(2 / 4000))
    assert found["distance"] < 1.95 / math.sqrt(4000)  # one in a thousand is farther off


@pytest.mark.slow
def test_the_sanity_check_runs(tmp_path: Path) -> None:
    found, page = run_small(gaussian.STUDY, SMALL, tmp_path)
    assert is_picture(tmp_path / "docs" / "gaussian.png")
    assert "![gaussian](gaussian.png)" in page
    assert len(found.kinds["gaussian"]) == 8
    assert "draws" not in found.kinds["gaussian"][0]
    assert len(found.kinds["between"]) == 6
