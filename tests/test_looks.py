"""A sampler has one look on all pictures, which is told from others with any eyes and in grey."""

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from scoremh.report.charts import COLOURS, DATA, KNOWN, colour_numbers, known_look, look, looks

# Colour vision without one kind of cone, on linear RGB: Machado et al. (2009), severity 1.
EYES = {
    "all cones": np.eye(3),
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
MIN_DISTANCE = 15  # in CIELAB, where neighbouring patches of 2.3 are just told apart


def linear(colour: str) -> NDArray[np.float64]:
    """Return linear red, green and blue."""
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return CIELAB coordinates."""
    x, y, z = np.cbrt((XYZ @ rgb.clip(0, 1)) / XYZ.sum(1) + 1e-9)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eyes", EYES)
def test_colours_are_told_apart(eyes: str) -> None:
    places = [lab(np.array(EYES[eyes]) @ linear(colour)) for colour in (*COLOURS, DATA)]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(places, 2)) > MIN_DISTANCE


@pytest.mark.parametrize("colour", [*COLOURS, DATA])
def test_colours_are_seen_on_paper(colour: str) -> None:
    assert 1.05 / (XYZ[1] @ linear(colour) + 0.05) >= 3  # WCAG's contrast of graphics


def test_no_two_kinds_of_sampler_look_alike() -> None:
    kinds = list(KNOWN.values())[: list(KNOWN).index("kernel")]  # those after it never stand beside them
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize(
    "names",
    [
        ("ULA", "ULA, one step for all", "ULA, learned score", "ULA, h = 0.1"),
        ("Simpson", "MALA, Simpson", "line integral, learned score"),
        ("Score MALA", "Score MALA, free", "MALA, Siamese, free", "scoremh"),
        ("potential", "Score MALA, potential", "MALA, potential"),
        ("MALA", "MALA, exact rule"),
        ("random walk", "Student walk", "Score RW"),
        ("exact draws", "Fresh samples", "fresh points", "real images"),
    ],
)
def test_a_sampler_is_known_by_its_name(names: tuple[str, ...]) -> None:
    assert len({known_look(name) for name in names}) == 1
    assert known_look(names[0]) is not None


def test_what_is_no_sampler_has_a_look_that_no_sampler_beside_it_has() -> None:
    assert known_look("copula") != known_look("ULA")  # whole words
    assert known_look("implicit") is None
    found = looks(["implicit", "ULA", "Score MALA", "sliced"])
    assert len(set(found.values())) == 4
    assert look("ULA") == {"color": found["ULA"][0], "marker": found["ULA"][1]}


def test_samplers_of_a_report_have_different_colours() -> None:
    assert colour_numbers(["mine"]) == [0]
    ula = COLOURS.index(look("ULA")["color"])
    assert colour_numbers(["mine", "other", "ULA", "ULA, half the step"])[2] == ula
    for names in (["ULA"] * 6, ["mine", "Score MALA", "fresh", "MALA", "a", "b"]):
        assert len(set(colour_numbers(names))) == 6
