"""Pictures are drawn, and an error is raised if there is nothing to draw."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from scoremh import targets
from studies import plots
from studies.acceptance.rules import FORMS, PAIRS
from studies.framework import catalog
from studies.plots import Look, looks_of, tile
from tests.cases import seeded
from tests.studies.cases import kept


def test_curves_of_a_family_share_a_colour_or_a_kind_of_line() -> None:
    families = {", ".join(kind): kind for kind in product(FORMS, PAIRS)}
    looks = looks_of(list(families), families)
    assert len(set(looks.values())) == len(families)
    for place in (0, 1):  # colours by the first name, kinds of line by the second
        for a, b in product(families, families):
            assert (looks[a][place] == looks[b][place]) == (families[a][place] == families[b][place])


@pytest.mark.parametrize("name", [name for name, s in catalog.all_studies().items() if s.picture and not s.shows_draws])
def test_pictures_are_drawn_from_kept_results_and_no_two_curves_look_alike(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Look] = []

    def recorded(*given: Any) -> dict[str, Look]:
        found = looks_of(*given)
        seen.extend(found.values())
        return found

    monkeypatch.setattr(plots, "looks_of", recorded)
    picture = catalog.all_studies()[name].picture
    assert picture is not None
    picture(kept(name), tmp_path, tmp_path)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())
    assert list(tmp_path.iterdir())
    assert len({(look.colour, look.line) for look in seen}) == len(seen)  # in colour
    assert len({(look.marker, look.line) for look in seen}) == len(seen)  # in grey


def test_histograms_are_drawn(tmp_path: Path) -> None:
    target = targets.Gaussian([3.0], [[2.0]])
    draws = target.sample(500, generator=seeded())[:, 0]
    plots.histogram_panels({"a": draws, "b": draws}, tmp_path / "a.png", log_density=target.log_density, title="both")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_panels_in_rows_with_heights_of_their_own(tmp_path: Path) -> None:
    line = ([0.0, 1.0], [1e-3, 10.0])
    panels = {name: {"a": line} for name in "abc"}
    plots.curve_panels(panels, tmp_path / "rows.png", labels=("x", "y"), log="y", columns=2, shared=False)
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")


def test_points_that_diverged_are_left_out(tmp_path: Path) -> None:
    x = torch.randn(10, 2, generator=seeded())
    plots.scatter_panels({"a": x.where(x < 1, torch.inf)}, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_pictures_of_samples_are_small(tmp_path: Path) -> None:
    for size, draw in ((2, plots.scatter_panels), (3, plots.space_panels)):
        cloud = torch.randn(800, size, generator=seeded())
        draw({str(i): cloud for i in range(6)}, tmp_path / "a.png", captions=["W1 0.1"] * 6, title="Moons")
        assert (tmp_path / "a.png").stat().st_size < 200_000


def test_images_stand_in_rows_with_a_gap_and_spoiled_ones_are_grey() -> None:
    images = torch.full((4, 1, 2, 2), -1.0)
    images[1], images[3] = 5.0, torch.nan
    shown = tile(images, 2)
    assert shown.shape == (6, 6)
    assert shown[0].tolist() == [-1, -1, 0, 1, 1, 0]
    assert shown[3:5, 3:5].eq(0).all()
