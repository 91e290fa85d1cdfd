"""Densities from scores: the truth they are held against, and their page."""

from pathlib import Path

import pytest
import torch

from scoremh import targets
from studies import densities, outsiders
from studies.densities import cells, distributions, peers
from studies.densities.distributions import DISTRIBUTIONS
from studies.densities.fits import Config
from studies.learning import seeded
from tests.studies.cases import is_picture, kept, run_small

SMALL = Config(
    seeds=(1,),
    samples=200,
    points=60,
    rows=50,
    draws=20,
    cells=20,
    steps=20,
    dimensions=(2, 3),
    dimension_steps=20,
    probes=2,
    chains=20,
    chain_steps=3,
)


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


def test_a_blurred_student_t_is_a_mixture_of_normal_ones() -> None:
    known, exact = distributions.Student(), targets.StudentT(2.0, [0.0, 0.0])
    x = known.sample(500, generator=seeded(0))
    torch.testing.assert_close(known.log_density(x), exact.log_density(x.double()), atol=1e-6, rtol=0)


def test_a_constant_has_no_error_of_differences() -> None:
    modes = torch.arange(100) % 2
    assert cells.differences(torch.full((100,), 0.3), modes) == {"between": 0.0, "within": 0.0}
    shifted = cells.differences(0.5 * modes.double(), modes)
    assert shifted["between"] == pytest.approx(0.5)
    assert shifted["within"] == 0


@pytest.mark.slow
def test_densities_write_their_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fits of a few steps: the numbers are bad, and the page says so."""
    monkeypatch.setattr(peers, "TRIAL", 2)
    monkeypatch.setattr(outsiders, "HELD_OUT", 50)
    monkeypatch.setattr(densities, "SIDE", 40)
    found, page = run_small(densities.STUDY, SMALL, tmp_path)
    assert {kind: len(records) for kind, records in found.kinds.items()} == {
        "fit": 6,
        "error": 12,
        "line": 6,
        "total": 6,
        "held_out": 36,
        "growth": 2,
        "whitened": 1,
        "agreement": 1,
        "heavy_tails": 4,
        "hutchinson": 2,
        "chains": 12,
    }
    assert "missed" in page
    assert is_picture(tmp_path / "docs" / "densities_planes.png")


def test_the_kept_records_are_within_the_bounds() -> None:
    records = kept("densities")
    assert all(densities.accurate(records).values())
    assert all(densities.normalised(records).values())
