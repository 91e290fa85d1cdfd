"""Pictures are drawn, and an error is raised if there is nothing to draw."""

from pathlib import Path
from typing import Any

import torch

from studies import plots
from studies.plots import looks_of, tile
from tests.cases import seeded


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG")


def test_no_two_curves_look_alike() -> None:
    names = ["ULA, h = 0.1", "ULA, h = 0.005", "MALA, h = 0.1", "MALA, h = 0.005", "Student walk", "Simpson"]
    looks = looks_of(names)
    assert list(looks) == names
    assert len({(look.colour, look.line) for look in looks.values()}) == len(names)  # in colour
    assert len({(look.marker, look.line) for look in looks.values()}) == len(names)  # in grey


def test_panels_in_rows_with_heights_of_their_own(tmp_path: Path) -> None:
    panels: dict[str, Any] = {name: {"a": ([0.0, 1.0], [1e-3, 10.0])} for name in "abc"}
    options: dict[str, Any] = {"labels": ("x", "y"), "levels": {"a": {"floor": 0.1}}, "log": "y", "columns": 2}
    plots.curve_panels(panels, tmp_path / "rows.png", shared=False, **options)
    plots.curves({"a": ([1.0, 10.0], [1.0, 2.0], [0.1, 0.1])}, tmp_path / "one.png", labels=("x", "y"), log=True)
    plots.dot_rows({"row": {"ours": [1.0, 2.0]}, "other": {}}, tmp_path / "dots.png", label="x", level=1.0)
    assert all(map(is_png, tmp_path.iterdir()))


def test_points_that_diverged_are_left_out(tmp_path: Path) -> None:
    x = torch.randn(800, 2, generator=seeded())
    clouds = {str(i): x.where(x < 3, torch.inf) for i in range(7)}
    plots.scatter_panels(clouds, tmp_path / "a.png", captions=["W1 0.1"] * 7, title="Moons")
    assert is_png(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size < 200_000


def test_images_stand_in_rows_with_a_gap_and_spoiled_ones_are_grey(tmp_path: Path) -> None:
    images = torch.full((4, 1, 2, 2), -1.0)
    images[1], images[3] = 5.0, torch.nan
    shown = tile(images, 2)
    assert shown.shape == (6, 6)
    assert shown[0].tolist() == [-1, -1, 0, 1, 1, 0]
    assert shown[3:5, 3:5].eq(0).all()
    plots.image_panels({"a": images}, tmp_path / "images.png", columns=1, images_per_row=2)
    assert is_png(tmp_path / "images.png")
