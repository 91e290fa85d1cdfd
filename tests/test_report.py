"""Reports: charts, looks, the page, the Python interface, and a real browser."""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from scoremh import Chains, ScoreMH, datasets
from scoremh.evaluation import Check, Verdict, number
from scoremh.report import Contents, chain_contents, charts, html, images, write
from scoremh.report.charts import COLOURS, DATA, KNOWN, colour_numbers, known_look, look, looks
from tests.cases import seeded
from tests.report_cases import (
    CHARTS,
    HOSTILE,
    IMAGE,
    KINDS,
    PICTURES,
    TAGS,
    chains,
    contents,
    drawings,
    figures,
    hostile,
    image,
    normal,
    numbers,
    slowly,
)


def test_points_frames_and_traces_are_the_numbers_of_the_tensors() -> None:
    shown = contents(2)
    assert shown.chains is not None
    every = drawings(html(shown))
    for one, x in zip(every[:3], [shown.data, *shown.samples.values()], strict=True):
        trace = one["figure"]["data"][0]
        as_many = charts.few(x, 40).numpy()  # as the smallest of them has
        np.testing.assert_array_equal(np.stack([numbers(trace["x"]), numbers(trace["y"])], 1), as_many)
    both = every[3]["figure"]["data"]
    assert [numbers(one["x"]).tolist() for one in both] == [
        numbers(every[i]["figure"]["data"][0]["x"]).tolist() for i in (0, 1)
    ]
    movie = next(one for one in every if one["frames"])
    draws = shown.chains.draws.numpy()
    assert movie["frames"]["labels"] == list(range(1, 31))
    np.testing.assert_array_equal(numbers(movie["frames"]["x"]), draws[..., 0].T)
    np.testing.assert_array_equal(numbers(movie["frames"]["y"]), draws[..., 1].T)
    np.testing.assert_array_equal(numbers(movie["figure"]["data"][1]["x"]), draws[:, 0, 0])
    trace = every[every.index(movie) + 1]["figure"]["data"]
    np.testing.assert_array_equal([numbers(line["y"]) for line in trace], draws[[0, 13, 26, 39], :, 0])


def test_long_chains_are_thinned_evenly_from_the_first_to_the_last() -> None:
    draws = torch.arange(2000.0)[:, None] + torch.arange(1000) / 1000
    _, frames = charts.movie(
        normal(5, 2).double(), torch.stack([draws, draws], 2).double(), charts.view("xy", normal(5, 2), normal(5, 2))
    )
    assert len(frames["labels"]) == charts.FRAMES
    assert (frames["labels"][0], frames["labels"][-1]) == (1, 1000)
    seen = numbers(frames["x"])
    assert seen.shape == (charts.FRAMES, charts.CHAINS)
    np.testing.assert_allclose(seen[-1, [0, -1]], [0.999, 1999.999])


def test_histograms_and_densities_hold_all_samples() -> None:
    numbers_page, plane = figures(html(contents(1))), figures(html(contents(2)))
    data = numbers_page[0]["data"][0]
    width = np.diff(numbers(data["x"]))[0]
    assert numbers(data["y"]).sum() * width == pytest.approx(1, abs=0.02)  # a little lies beyond the axis
    assert float((numbers(data["x"]) * numbers(data["y"])).sum() * width) == pytest.approx(
        float(contents(1).data.mean()), abs=0.05
    )
    heat = plane[4]["data"][0]
    assert numbers(heat["z"]).sum() * heat["dx"] * heat["dy"] == pytest.approx(1, abs=0.03)


def test_a_density_is_highest_where_the_points_are() -> None:
    points = torch.tensor([[3.0, -1.0]]).double().expand(50, 2)
    at = charts.View(("x", "y"), (0.0, 4.0), (-2.0, 2.0))
    heat = charts.densities([points], at)[0]["data"][0]
    row, column = np.unravel_index(numbers(heat["z"]).argmax(), (charts.CELLS, charts.CELLS))
    assert heat["x0"] + column * heat["dx"] == pytest.approx(3, abs=heat["dx"])
    assert heat["y0"] + row * heat["dy"] == pytest.approx(-1, abs=heat["dy"])


def test_acceptance_by_step_is_the_mean_over_chains() -> None:
    chances = torch.rand(7, 30, generator=seeded()).double()
    line = charts.acceptance_by_step(chances)["data"][0]
    np.testing.assert_allclose(numbers(line["y"]), chances.mean(0), rtol=1e-6)
    long = torch.rand(3, 1000, generator=seeded()).double()
    line = charts.acceptance_by_step(long)["data"][0]
    assert line["dx"] == 4
    np.testing.assert_allclose(numbers(line["y"])[:2], [long[:, :4].mean(), long[:, 4:8].mean()], rtol=1e-6)


@pytest.mark.parametrize("width", [1, 2])
def test_acceptance_by_position_belongs_to_where_a_move_began(width: int) -> None:
    """Chains that jump between -1, where moves are accepted, and 1, where they are not."""
    draws = torch.tensor([-1.0, 1.0]).repeat(30).expand(6, 60)[..., None].expand(6, 60, width)
    chances = torch.tensor([0.0, 1.0]).repeat(30).expand(6, 60)  # of the move that led to a draw
    shown = contents(width, chains=chains(draws.clone(), chances.clone()))
    chart = figures(html(shown))[-2]["data"][0]
    if width == 1:
        places, means = numbers(chart["x"]), numbers(chart["y"])
        means = {round(float(x)): float(mean) for x, mean in zip(places, means, strict=True) if np.isfinite(mean)}
    else:
        z = numbers(chart["z"])
        means = {round(chart["x0"] + k * chart["dx"]): float(z[i, k]) for i, k in np.argwhere(np.isfinite(z))}
    assert means == {-1: 1.0, 1: 0.0}


def test_the_most_different_columns_are_chosen() -> None:
    data, samples = normal(1000, 5), normal(1000, 5, seed=1)
    samples[:, 3] += 2
    samples[:, 1] += 1
    pairs = charts.most_different(data.double(), samples.double())
    assert pairs[0] == (1, 3)
    assert len(pairs) == 3
    page = html(contents(5, data=data, samples={"MALA": samples}))
    assert [one["layout"]["xaxis"]["title"]["text"] for one in figures(page)[:2]] == ["column 1"] * 2
    assert "these are the pairs on which MALA and the data differ most" in page


def test_a_pair_that_differs_only_in_its_dependence_is_found_among_many_columns() -> None:
    data, samples = normal(1000, 60).double(), normal(1000, 60, seed=1).double()
    data[:, 41] = (data[:, 7] + 0.2 * data[:, 41]) / 1.04**0.5  # of the same own law
    assert charts.most_different(data, samples)[0] == (7, 41)


def test_an_axis_shows_the_data_though_samples_ran_away() -> None:
    data = torch.linspace(0, 1, 1001).double()
    low, high = charts.limits(data, torch.tensor([1e30, 0.5, -1e30]).double())
    assert -1.3 < low < 0
    assert 1 < high < 2.3
    low, high = charts.limits(data, data)


def test_images_match_those_of_the_tensors() -> None:
    grey = torch.linspace(-1, 1, 64).reshape(1, 8, 8).repeat(40, 1, 1)
    shown = contents(8, 8, data=grey, samples={"MALA": grey.flip(1)})
    sources = re.findall(r'src="(data:image/png[^"]+)"', html(shown))
    tile = image(sources[0])[9:17, 18:26]
    expected = ((grey[0] + 1) / 2 * 255).round()
    assert np.abs(tile[..., 0] - expected.numpy()).max() <= 1
    assert (tile[..., -1] == 255).all()
    assert (image(sources[0])[8, :, -1] == 0).all()  # between images the page is seen
    np.testing.assert_array_equal(image(sources[1])[:8, :8, 0], tile[::-1, :, 0])
    frames = next(one["frames"] for one in drawings(html(contents(3, 8, 8))) if one["frames"])
    assert len(frames["images"]) == 30
    assert image(frames["images"][7]).shape == (35, 35, 4)


def test_a_large_image_is_averaged_and_channels_that_are_no_colours_too() -> None:
    flat = torch.tensor([0.0, 1.0]).repeat_interleave(32).expand(2, 64, 64)[:, None]
    small = images.shades(flat, (0.0, 1.0))
    assert small.shape == (2, 32, 32, 1)
    assert small[0, 5].flatten().tolist() == [0] * 16 + [255] * 16
    assert images.shades(normal(2, 5, 8, 8), (0.0, 1.0)).shape == (2, 8, 8, 1)
    assert "The mean of their 5 channels is shown." in html(contents(5, 8, 8))


# A sampler has one look on all pictures, which is told from others with any eyes and in grey.


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
def test_colours_are_distinguishable(eyes: str) -> None:
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


# The page of a report: its sections, its table, its escapes and its size.


LIMIT = 3_000_000
TIMES = "\N{MULTIPLICATION SIGN}"


class Tags(HTMLParser):
    """Counts elements and gathers the texts that a reader sees."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no samples": (lambda: contents(2, samples={}), "expected at least one sampler's samples, got none"),
    "samples of other events": (
        lambda: contents(2, samples={"MALA": normal(5, 3)}),
        r"expected samples\['MALA'\] to have events of shape \(2,\), like the data, got \(3,\). Pass",
    ),
    "chains of other events": (
        lambda: contents(2, chains=chains(normal(4, 5, 3))),
        r"expected chains.draws to have events of shape \(2,\), like the data, got \(3,\). Pass",
    ),
    "chains without draws": (
        lambda: contents(2, chains=chains(normal(4, 0, 2))),
        "expected chains with at least one draw",
    ),
    "a column without a name": (
        lambda: contents(2, columns=["x"]),
        "expected 2 columns, one per coordinate, got 1. Name",
    ),
    "data without rows": (lambda: contents(2, data=normal(0, 2)), "expected data of shape"),
    "data that are nowhere finite": (lambda: contents(2, data=normal(3, 2) / 0), "expected data with a finite row"),
    "events of four axes": (
        lambda: Contents("", {}, [], normal(3, 1, 1, 1, 1), {"MALA": normal(3, 1, 1, 1, 1)}),
        "expected events that are vectors or images, got events of shape",
    ),
    "a history of two lengths": (
        lambda: contents(2, histories={"score": {"step": [1.0], "loss": [1.0, 2.0]}}),
        r"expected histories\['score'\] of one length, got {'step': 1, 'loss': 2}",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_together_raises_an_error(name: str) -> None:
    make, text = REFUSED[name]
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_is_left_out_and_counted(kind: str) -> None:
    shown = contents(*KINDS[kind])
    assert shown.chains is not None
    broken, draws, data = shown.samples["MALA"].clone(), shown.chains.draws.clone(), shown.data.clone()
    broken[3], broken[5], draws[4, 6], data[0] = torch.nan, torch.inf, -torch.inf, torch.nan
    page = html(replace(shown, data=data, samples={"MALA": broken}, chains=chains(draws)))
    assert "2 of 40 rows of MALA are not finite and are left out." in page
    assert "1 of 300 rows of the data are not finite and are left out." in page
    assert "1 of 1,200 draws are not finite and are left out." in page
    assert drawings(page)
    if kind == "plane":
        assert len(numbers(figures(page)[1]["data"][0]["x"])) == 38


@pytest.mark.parametrize("kind", KINDS)
def test_a_sampler_that_ran_away_altogether_still_has_a_page(kind: str) -> None:
    shown = contents(*KINDS[kind])
    lost = normal(20, 30, *KINDS[kind]) * torch.inf
    page = html(replace(shown, samples={"ULA": lost[:, 0]}, chains=chains(lost)))
    assert "20 of 20 rows of ULA are not finite" in page


@pytest.mark.parametrize("kind", KINDS)
def test_little_is_enough_for_a_page(kind: str) -> None:
    event = KINDS[kind]
    shown = Contents("", {}, contents(*event).columns, normal(1, *event), {"data": normal(1, *event)})
    page = html(shown)
    assert "No warnings." in page
    assert "<h2>Metrics" not in page
    assert html(replace(shown, chains=chains(normal(1, 1, *event)))).count("<figure>") > page.count("<figure>")


@pytest.mark.parametrize("kind", KINDS)
def test_charts_are_valid_figures_and_their_number_is_right(kind: str) -> None:
    from plotly.graph_objects import Figure

    page = html(contents(*KINDS[kind]))
    found = figures(page)
    assert len(found) == CHARTS[kind]
    assert page.count("<img ") == PICTURES.get(kind, 0)
    for one in json.loads(re.sub(r'"--[a-z0-9-]+"', '"#123456"', json.dumps(found))):
        Figure(one)


def test_colours_match_those_of_the_static_pictures_and_all_are_defined() -> None:
    page = html(contents(2))
    light = dict(re.findall(r"(--[\w-]+): (#\w+);", page.split("@media")[0]))
    assert tuple(value for name, value in light.items() if "series" in name) == charts.COLOURS
    assert set(re.findall(r'"(--[a-z0-9-]+)"', json.dumps(figures(page)))) <= set(light)


def test_metrics_stand_beside_their_floors() -> None:
    text = " ".join(
        re.sub(
            r"<[^>]+>", " ", html(contents(2)).split('<table class="stacked single">')[1].split("</table>")[0]
        ).split()
    )
    assert text == f"sampler w1 p_value MALA 0.3 3 {TIMES} — ULA 123 1,230 {TIMES} 0.25 floor 0.1 ± 0.01"
    odd = {"MALA": {"w1": float("nan"), "gap": -0.5}}
    page = html(contents(2, metrics=odd, floors={"gap": (-0.1, 0.2), "w1": (0.1, 0.01)}))
    rows = page.split("<tbody>")[1].split("</tbody>")[0]
    assert "not finite" in rows
    assert TIMES not in rows


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_users_stay_texts(kind: str) -> None:
    event = KINDS[kind]
    seen, usual = Tags(html(hostile(*event))), Tags(html(replace(contents(*event), samples=hostile(*event).samples)))
    assert (seen.tags["script"], seen.tags["img"], seen.tags["b"]) == (3, usual.tags["img"], 0)
    assert {HOSTILE, IMAGE, TAGS} <= set(seen.texts)


def test_the_script_of_plotly_does_not_end_early() -> None:
    from plotly.offline import get_plotlyjs

    assert "</script" not in get_plotlyjs().lower()
    assert "\r" not in get_plotlyjs()  # the parser would change it, and then its digest


@pytest.mark.slow
def test_the_same_contents_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        write(contents(5), tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes() == html(contents(5)).encode()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]
    with pytest.raises(FileNotFoundError, match="expected a folder to write to"):
        write(contents(2), tmp_path / "none" / "a.html")


def crowded(*event: int, rows: int, many: int, draws: int) -> Contents:
    """Return more of everything than a page can show."""
    text = "\N{GRINNING FACE}" * 5000
    walk = normal(many, draws, *event)
    samplers = {f"{i}{text}": normal(rows, *event, seed=i) for i in range(9)}
    curve = normal(20_000).tolist()
    return contents(
        *event,
        title=text,
        about={f"{i}{text}": text for i in range(200)},
        columns=[f"{i}{text}" for i in range(event[0])],
        data=normal(rows, *event, seed=20),
        samples=samplers,
        chains=chains(walk),
        histories={f"{i}{text}": {f"{k}{text}": curve for k in range(12)} for i in range(12)},
        metrics={f"{i}{text}": {f"{k}{text}": 1.0 for k in range(60)} for i in range(100)},
        warnings=[text] * 200,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: crowded(2, rows=5000, many=2000, draws=400),
        lambda: crowded(400, rows=1500, many=600, draws=70),
        lambda: crowded(28, 28, rows=100, many=40, draws=100),
        lambda: crowded(3, 96, 128, rows=40, many=20, draws=40),
    ],
    ids=["plane", "many columns", "grey images", "large colour images"],
)
def test_a_page_is_below_3_mb_whatever_it_shows(make: Callable[[], Contents]) -> None:
    size = len(html(make()).encode())
    assert size < LIMIT


def test_the_verdict_and_its_checks_are_on_top() -> None:
    checks = [
        Check("range", 0.05, 0.005, 0.03, 0.001, f"5 % lie beyond {HOSTILE}"),
        Check("p", 1.0, 1.15, 1.5, 1.0, "fine"),
    ]
    page = html(
        contents(2, verdict=Verdict("do not use", f"because of {IMAGE}", "Fit with score_steps=8000."), checks=checks)
    )
    seen = Tags(page)
    assert seen.tags["article"] == 2
    assert page.index('class="verdict do-not-use"') < page.index('class="cards"') < page.index("<main>")
    assert [text for text in seen.texts if text in ("Do not use", "0.05", "1")][:3] == ["Do not use", "0.05", "1"]
    assert "good up to 0.005, usable up to 0.03" in page
    assert HOSTILE not in page.split("<main>")[0]


def test_columns_have_their_statistics_and_correlations_stand_side_by_side() -> None:
    shown = contents(5)
    page = html(shown)
    cells = re.findall(r'<td data-label="([^"]*)">([^<]*)</td>', page.split("<h2>Columns</h2>")[1])
    means = [value for name, value in cells if name == "mean"]
    draws = shown.samples["MALA"].double()
    assert means[:2] == [number(float(x[:, 0].mean())) for x in (shown.data.double(), draws)]
    apart = [value for name, value in cells if name == "KS"]
    assert apart[1] == number(stats.ks_2samp(shown.data[:, 0].numpy(), draws[:, 0].numpy()).statistic)
    shades = [one["data"][0] for one in figures(page) if one["data"][0].get("zmin") == -1]
    expected = stats.spearmanr(shown.data.numpy()).statistic
    np.testing.assert_allclose(numbers(shades[0]["z"]), expected, atol=1e-6)


def test_losses_are_on_a_logarithmic_axis_where_they_are_positive() -> None:
    assert charts.losses({"loss": [3.0, 1.0], "held_out": [2.0, 1.0]})["layout"]["yaxis"]["type"] == "log"
    assert charts.losses({"loss": [3.0, -1.0]})["layout"]["yaxis"]["type"] == "linear"


def test_ranks_are_flat_where_chains_agree_and_autocorrelation_matches_that_of_the_draws() -> None:
    parts, what = charts.rank_densities(normal(400, 40).double())
    assert what == "quarter"
    assert all(float((part - 1).abs().max()) < 0.2 for part in parts)
    apart = normal(2, 500).double() + torch.tensor([[0.0], [9.0]])
    parts, what = charts.rank_densities(apart)
    assert (what, float(parts[0][10:].sum()), float(parts[1][:10].sum())) == ("chain", 0.0, 0.0)
    walk = normal(300, 60, 1).double().cumsum(1)
    for lag in range(1, 60):
        walk[:, lag] = 0.5 * walk[:, lag - 1] + normal(300, 1, seed=lag).double()
    curve = numbers(charts.autocorrelation(walk[:, 10:], ["x"])["data"][0]["y"])
    np.testing.assert_allclose(curve[:4], [1, 0.5, 0.25, 0.125], atol=0.05)


# Reports and pictures of chains and of estimators, and the error if a library for them is missing.


BRIEF: dict[str, Any] = {
    "score_steps": 20,
    "acceptance_steps": 20,
    "acceptance": "potential",
    "chain_steps": 6,
}


@pytest.fixture(scope="module")
def model() -> ScoreMH:
    x = datasets.moons(400, generator=seeded()).numpy()
    return ScoreMH(**BRIEF, verbose=False, random_state=0).fit(x)


@pytest.mark.parametrize("event", [(1,), (2,), (5,), (8, 8)])
def test_chains_alone_have_a_report(event: tuple[int, ...], tmp_path: Path) -> None:
    drawn = chains(normal(40, 30, *event))
    drawn.report(tmp_path / "alone.html")
    page = (tmp_path / "alone.html").read_text()
    assert "Samples beside all draws" in page
    assert "none: no reference" in page
    assert "<h2>Metrics" not in page
    drawn.report(tmp_path / "beside.html", normal(60, *event, seed=2))
    page = (tmp_path / "beside.html").read_text()
    assert "Samples beside reference" in page
    assert "<h2>Metrics" in page


def test_a_report_of_chains_has_their_cautions_and_those_of_the_evaluation() -> None:
    stuck = normal(40, 1, 2).expand(-1, 30, -1) + 1e-3 * normal(40, 30, 2, seed=1)
    shown = chain_contents(chains(stuck), normal(100, 2, seed=3) + 5)
    assert [getattr(one, "kind", "") for one in shown.warnings] == ["r_hat", "p_value"]
    assert "The draws differ significantly from the reference" in str(shown.warnings[1])
    assert shown.metrics["last draws"]["p_value"] == 0.001


def test_a_reference_too_small_to_compare_with_is_shown() -> None:
    shown = chain_contents(chains(normal(40, 30, 2)), normal(10, 2))
    assert not shown.metrics
    assert shown.about["distances"] == "none: fewer than 20 rows to compare with"


@pytest.mark.slow
def test_an_estimator_writes_a_report_with_held_out_or_given_rows(model: ScoreMH, tmp_path: Path) -> None:
    model.report(tmp_path / "held.html")
    page = (tmp_path / "held.html").read_text()
    assert page.index('aria-label="Verdict"') < page.index("Score MALA (potential)")  # below what is read first
    assert page.count("Score MALA (potential)") == 1
    assert "40 held-out rows" in page
    assert "<h2>Metrics" in page
    assert "20 points each, to held-out rows" in page
    assert "R-hat" in page
    given = datasets.moons(70, generator=seeded(1)).numpy()
    model.report(tmp_path / "given.html", given)
    page = (tmp_path / "given.html").read_text()
    assert "70 given rows" in page
    points = figures(page)[0]["data"][0]
    np.testing.assert_array_equal(np.stack([numbers(points["x"]), numbers(points["y"])], 1), given)


@pytest.mark.parametrize("event", [(1,), (2,), (3,), (4, 4)])
def test_chains_have_a_static_picture(event: tuple[int, ...], tmp_path: Path) -> None:
    drawn = chains(normal(40, 30, *event))
    figure = drawn.plot(tmp_path / "chains.png")
    assert (tmp_path / "chains.png").read_bytes().startswith(b"\x89PNG")
    assert len(figure.axes) == (3 if event == (1,) else 5)  # draws, traces, ranks
    trace = figure.axes[1].lines[0].get_ydata()
    np.testing.assert_array_equal(np.asarray(trace), drawn.draws[0].flatten(1)[:, 0].double().numpy())
    if event != (1,):
        assert len(np.asarray(figure.axes[0].collections[0].get_offsets())) == 1200


def test_a_picture_leaves_out_what_is_not_finite_and_rejects_empty_data(tmp_path: Path) -> None:
    draws = normal(40, 30, 2)
    draws[3, 4] = torch.nan
    figure = chains(draws).plot()
    assert len(np.asarray(figure.axes[0].collections[0].get_offsets())) == 1199
    with pytest.raises(ValueError, match="chains with a finite draw, got none"):
        chains(draws * torch.nan).plot()
    with pytest.raises(ValueError, match="at least one panel, got none"):
        images.scatter_panels({}, tmp_path / "none.png")


def test_panels_have_the_axes_of_the_first_where_others_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(images, "save_figure", lambda figure, path: drawn.append(figure))
    fresh, diverged = normal(500, 2), 1e30 * normal(500, 2)
    diverged[0] = torch.nan
    images.scatter_panels({"fresh": fresh, "near": fresh + 1, "ULA": diverged}, tmp_path / "moons.png")
    low, high = drawn[0].axes[0].get_xlim()
    assert -20 < low < float(fresh.min()) < float(fresh.max()) < high < 20


MISSING: dict[str, tuple[tuple[str, ...], Any]] = {
    "jinja2": (("jinja2",), lambda: html(contents(2))),
    "plotly": (("plotly", "plotly.offline"), lambda: html(contents(2))),
    "PIL": (("PIL",), lambda: html(contents(8, 8))),
    "matplotlib": (("matplotlib", "matplotlib.figure"), lambda: chains(normal(4, 5, 2)).plot()),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_library_is_named_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modules, call = MISSING[name]
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"pip install 'scoremh\[report\]'") as raised:
        call()
    assert name in str(raised.value)


def test_without_exact_distances_a_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ot", None)
    shown = chain_contents(chains(normal(40, 30, 2)), normal(100, 2))
    assert shown.about["distances"] == "none: pip install 'scoremh[metrics]'"
    assert not shown.metrics


@pytest.mark.slow
def test_the_command_without_its_library_says_what_to_install() -> None:
    script = "import sys; sys.modules['cyclopts'] = None; from scoremh.cli import main; main(['doctor'])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.startswith("scoremh: expected cyclopts")
    assert "pip install 'scoremh[cli]'" in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.slow
def test_importing_the_report_loads_no_plotting_library() -> None:
    names = ("matplotlib", "plotly", "jinja2", "PIL", "ot", "cyclopts")
    script = f"import sys, scoremh.report.images, scoremh.cli; print([n for n in {names} if n in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_a_report_is_of_the_chains_that_were_saved(tmp_path: Path) -> None:
    drawn = chains(normal(40, 30, 2))
    drawn.save(tmp_path / "chains.nc")
    Chains.load(tmp_path / "chains.nc").report(tmp_path / "a.html")
    drawn.report(tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


# The report in a real browser: it is drawn, it moves, and it makes no request.


@dataclass
class Opened:
    """A page in the browser, with its messages and requests."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


def dismissed(said: list[str], dialog: Any) -> None:
    said.append(f"dialog: {dialog.message}")
    dialog.dismiss()


@contextmanager
def opened(browser: Any, path: Path, text: str, **options: Any) -> Iterator[Opened]:
    path = path / "report.html"
    path.write_text(text, encoding="utf-8")
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
    page = context.new_page()
    one = Opened(page)
    page.on("console", lambda message: one.said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: one.said.append(f"error: {error}"))
    page.on("dialog", partial(dismissed, one.said))
    page.on("request", lambda request: one.asked.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector(".chart:not(:has(.main-svg))", state="detached")
    yield one
    context.close()


def places(page: Any, number: int) -> Any:
    """Return where the points of a chart's last trace are drawn, in pixels of its plot."""
    text = page.eval_on_selector_all(
        f"#drawing-{number} .trace.scatter:last-child .point",
        "points => points.map((one) => one.getAttribute('transform'))",
    )
    return np.array([[float(x) for x in re.findall(r"-?[\d.]+", one)[:2]] for one in text])


def pixels(page: Any, number: int, points: Tensor) -> Any:
    """Return where points belong, in pixels of a chart's plot, by its axes' ends and its size on the screen."""
    layout = page.eval_on_selector(
        f"#drawing-{number}", "({_fullLayout: l}) => [l.xaxis.range, l.yaxis.range, [l.xaxis._length, l.yaxis._length]]"
    )
    (left, right), (low, high), (wide, tall) = layout
    x, y = points.double().numpy().T
    return np.stack([(x - left) / (right - left) * wide, (high - y) / (high - low) * tall], 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plane", "grey images", *map(slowly, ("numbers", "five columns", "colour images"))])
def test_a_browser_draws_everything_and_requests_nothing(kind: str, browser: Any, tmp_path: Path) -> None:
    shown = contents(*KINDS[kind])
    with opened(browser, tmp_path, html(shown)) as one:
        page = one.page
        assert page.locator(".chart:has(.overplot path[d], .overplot image)").count() == CHARTS[kind]
        assert page.locator(".chart[aria-label]:not([aria-label=''])").count() == CHARTS[kind]
        widths = page.eval_on_selector_all("main img", "all => all.map((one) => one.alt && one.naturalWidth)")
        assert len(widths) == PICTURES.get(kind, 0)
        assert all(widths)
        if kind == "plane":
            for number, x in enumerate([shown.data, *shown.samples.values()]):
                assert page.locator(f"#drawing-{number} .point").count() == min(len(x), 40)  # as many of each
            assert page.locator("#drawing-3 .point").count() == 2 * 40
            assert page.locator("#drawing-4 .heatmaplayer image").count() == 1
        page.locator(".chart").first.hover()
        offered = page.eval_on_selector_all(".modebar-btn", "all => all.map((one) => one.dataset.title)")
        assert set(offered) == {"Download plot as a PNG", "Reset axes"}  # and no sharing with a server
        assert not one.said
        assert {url.split(":")[0] for url in one.asked} <= {"file", "data", "blob"}
        assert sum(url.startswith("file:") for url in one.asked) == 1  # the page itself


@pytest.mark.slow
def test_the_page_may_not_ask_for_anything(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, html(contents(2))) as one:
        assert one.page.locator("meta[content*=\"form-action 'none'\"]").count() == 1
        attempt = "fetch('http://127.0.0.1:9/').then(() => 'asked', () => 'refused')"
        assert one.page.evaluate(attempt) == "refused"
        assert any("Content Security Policy" in text for text in one.said)
        assert not [url for url in one.asked if url.startswith("http")]


@pytest.mark.slow
def test_the_slider_moves_the_points_to_the_draws_of_its_step(browser: Any, tmp_path: Path) -> None:
    shown = contents(2)
    assert shown.chains is not None
    with opened(browser, tmp_path, html(shown)) as one:
        page, number = one.page, 9
        slider = page.locator(f"#slider-{number}")
        before = places(page, number)
        for step, move in ((0, []), (2, ["ArrowRight", "ArrowRight"]), (29, ["End"])):
            slider.focus()
            for key in move:
                slider.press(key)
            assert page.locator("output").inner_text() == f"draw {step + 1}"
            np.testing.assert_allclose(
                places(page, number), pixels(page, number, shown.chains.draws[:, step]), atol=0.02
            )  # plotly rounds to 0.01
        assert np.abs(places(page, number) - before).max() > 10
        slider.click()  # its middle, by the mouse
        assert 12 <= int(slider.input_value()) <= 17
        page.emulate_media(color_scheme="dark")
        expected = pixels(page, number, shown.chains.draws[:, int(slider.input_value())])
        np.testing.assert_allclose(places(page, number), expected, atol=0.02)
        assert not one.said


@pytest.mark.slow
def test_play_goes_through_the_draws_and_stops(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, html(contents(1, chains=chains(normal(20, 3, 1))))) as one:
        page = one.page
        outline = "#drawing-1 .trace.scatter:last-child .js-line"
        before = page.get_attribute(outline, "d")
        page.get_by_role("button", name="Play").click()
        page.get_by_text("draw 3", exact=True).wait_for()
        page.get_by_role("button", name="Play").wait_for()
        assert page.get_attribute(outline, "d") != before
        assert not one.said


@pytest.mark.slow
def test_the_slider_changes_the_images(browser: Any, tmp_path: Path) -> None:
    text = html(contents(8, 8))
    frames = next(one["frames"] for one in drawings(text) if one["frames"])
    with opened(browser, tmp_path, text) as one:
        picture, slider = one.page.locator("#drawing-3"), one.page.locator("#slider-3")
        assert picture.get_attribute("src") == frames["images"][0]
        slider.focus()
        slider.press("ArrowRight")
        assert picture.get_attribute("src") == frames["images"][1] != frames["images"][0]
        assert not one.said


def contrast(first: str, second: str) -> float:
    """Return WCAG's contrast of two colours, from 1 to 21."""

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([light(first), light(second)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.slow
def test_light_and_dark_are_different_and_readable(browser: Any, tmp_path: Path) -> None:
    style = "(one, name) => getComputedStyle(one)[name]"
    seen = {}
    with opened(browser, tmp_path, html(contents(2))) as one:
        page = one.page
        page.evaluate("Plotly.relayout('drawing-0', {'xaxis.range': [-1, 1]})")
        for scheme in ("light", "dark", "light again"):
            page.emulate_media(color_scheme=scheme.split()[0])
            background = page.eval_on_selector("body", style, "backgroundColor")
            for selector in ("h1", "p", "dt", ".warnings h2", "td", "small", "figcaption", "output"):
                assert contrast(page.eval_on_selector(selector, style, "color"), background) > 4.5, (scheme, selector)
            for selector in ("#drawing-0 .xtick text", "#drawing-1 .xtitle"):
                assert contrast(page.eval_on_selector(selector, style, "fill"), background) > 4.5, (scheme, selector)
            points = page.eval_on_selector("#drawing-1 .point", style, "fill")
            assert contrast(points, background) > 3
            seen[scheme] = background, points
            # a zoom stays, and all charts of the pair have it
            for number in (0, 1, 5):
                assert page.evaluate(f"document.getElementById('drawing-{number}').layout.xaxis.range") == [-1, 1]
        assert not one.said
    assert seen["light"] == seen["light again"]
    assert seen["light"][0] != seen["dark"][0]
    assert seen["light"][1] != seen["dark"][1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plane", *map(slowly, ("numbers", "five columns", "grey images"))])
def test_hostile_names_do_nothing_and_are_seen_as_they_are(kind: str, browser: Any, tmp_path: Path) -> None:
    """Without the page's policy, which would stop a script: escapes alone have to."""
    event = KINDS[kind]
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html(hostile(*event)), count=1)
    with opened(browser, tmp_path, text) as one:
        page = one.page
        count = "name => document.querySelectorAll(name).length"
        assert page.evaluate(count, "body script") == 3
        assert page.evaluate(count, "img[src=x], svg b, .chart a[href], svg a") == 0
        assert page.locator("h1").inner_text() == HOSTILE
        assert page.locator(".warnings li").all_inner_texts() == [HOSTILE, IMAGE, TAGS]
        legend = page.locator(".legendtext").all_text_contents()
        assert legend[-2:] == [IMAGE, TAGS]
        if kind == "plane":
            assert page.locator("#drawing-0 .xtitle").text_content() == HOSTILE
            assert page.locator("#drawing-0 .ytitle").text_content() == IMAGE
        if kind == "five columns":
            titles = set(page.locator(".xtitle, .ytitle").all_text_contents())
            assert titles >= {HOSTILE, IMAGE, TAGS}
        if kind == "numbers":
            page.locator("#drawing-0").hover()
            page.wait_for_selector("#drawing-0 .hovertext")
            labels = " ".join(page.locator("#drawing-0 .hovertext").all_text_contents())
            assert all(f"{name} at " in labels for name in ("data", HOSTILE, IMAGE, TAGS)), labels
        assert not one.said


@pytest.mark.slow
def test_a_phone_needs_no_sideways_scrolling(browser: Any, tmp_path: Path) -> None:
    for kind in ("plane", "colour images"):
        text = html(hostile(*KINDS[kind]))
        with opened(
            browser, tmp_path, text, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True
        ) as one:
            assert one.page.evaluate("document.documentElement.scrollWidth") <= 360
            sizes = one.page.eval_on_selector_all(
                ".chart", "all => all.map((one) => one.getBoundingClientRect().right)"
            )
            assert max(sizes) <= 360
            starts = one.page.eval_on_selector_all(
                "figure", "all => all.map((one) => one.getBoundingClientRect().left)"
            )
            assert len(set(starts)) == 1  # one column
            assert one.page.locator("h1").count() == 1
            assert not one.said
