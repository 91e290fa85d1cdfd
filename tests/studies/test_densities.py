"""Densities from scores: the truth they are held against, and their page."""

from functools import partial
from pathlib import Path

import pytest
import torch

from scoremh import Recipe, fit_score
from studies import densities, outsiders
from studies.densities import DISTRIBUTIONS
from studies.learning import seeded
from tests.studies.cases import is_picture, kept, run_small

SMALL = densities.Config((1,), samples=200, points=60, rows=50, draws=20, cells=20)


def blur(size: int, level: float) -> torch.Tensor:
    return level**2 * torch.eye(size).double()


@pytest.mark.parametrize("name", ["moons", "pinwheel"])
def test_the_true_density_of_curves_integrates_to_one(name: str) -> None:
    width = 0.1
    axis = torch.arange(-4, 4, width) + width / 2
    log_p = DISTRIBUTIONS[name][1].log_density(torch.cartesian_prod(axis, axis), blur(2, 0.1))
    assert float(log_p.exp().sum()) * width**2 == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_without_blur_the_truth_is_the_limit_of_a_small_one(name: str) -> None:
    """Where the Pinwheel has no width there is no limit, so that the median is compared."""
    known = DISTRIBUTIONS[name][1]
    x = known.sample(200, generator=seeded(0))
    difference = known.log_density(x) - known.log_density(x, blur(x.shape[1], 0.003))
    assert float(difference.abs().median()) < 0.01


def test_a_constant_has_no_error_of_differences() -> None:
    known, noise = DISTRIBUTIONS["figure 1"][1], 0.01 * torch.eye(2).double()
    x = known.sample(100, generator=seeded(0))
    other = x[densities.partners(x)]
    assert densities.differences(torch.zeros(100), known, x, noise) == {"between": 0.0, "within": 0.0}
    off = 0.5 * ((x.sum(1) > 0).double() - (other.sum(1) > 0).double())  # one mode is too likely
    shifted = densities.differences(off, known, x, noise)
    assert shifted["between"] == pytest.approx(0.5)
    assert shifted["within"] == 0


@pytest.mark.slow
def test_densities_write_their_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fits of a few steps."""
    monkeypatch.setattr(densities, "TRIAL", 2)
    monkeypatch.setattr(outsiders, "HELD_OUT", 50)
    monkeypatch.setattr(densities, "SIDE", 40)
    brief = partial(fit_score, recipe=Recipe(steps=20, check_every=10))
    monkeypatch.setattr(densities, "fit_score", brief)
    found, _ = run_small(densities.STUDY, SMALL, tmp_path)
    counts = {"fit": 6, "error": 6, "line": 6, "total": 6, "held_out": 36}
    assert {kind: len(records) for kind, records in found.kinds.items()} == counts
    assert is_picture(tmp_path / "docs" / "densities_planes.png")


def test_the_kept_records_are_within_the_bounds() -> None:
    records = kept("densities")
    assert all(densities.accurate(records).values())
    assert all(densities.normalised(records).values())
