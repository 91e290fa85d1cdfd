"""The report: its numbers, its escapes, its size; and, in a real browser, that it is drawn, moves and asks nobody."""

import io
import json
import re
import shutil
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from scoremh import Chains
from scoremh.plots import style
from scoremh.report import Contents, chain_charts, charts, choice, html, pictures, write

LIMIT = 6_000_000
TIMES = "\N{MULTIPLICATION SIGN}"
HOSTILE = "</script><script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(2)>"
TAGS = "<b>x</b> &lt; %{x} <br> --ink"


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def chains(draws: Tensor, probabilities: Tensor | None = None) -> Chains:
    shape = draws.shape[:2]
    counts = torch.zeros(shape, dtype=torch.int64)
    probabilities = (
        torch.rand(shape, generator=torch.Generator().manual_seed(1)) if probabilities is None else probabilities
    )
    return Chains(draws, probabilities, counts, counts, counts)


def contents(*event: int, **changes: Any) -> Contents:
    draws = normal(40, 30, *event, seed=1)
    return replace(
        Contents(
            title="A run",
            about={"data": "data.csv", "seed": "0"},
            columns=[f"column {i}" for i in range(event[0])] if len(event) == 1 else [],
            data=normal(300, *event),
            samples={"MALA": draws[:, -1], "ULA": 2 * normal(50, *event, seed=2)},
            chains=chains(draws),
            histories={
                "score": {
                    "step": [10.0, 20.0, 30.0],
                    "loss": [3.0, 2.0, 1.5],
                    "held_out": [3.0, 2.5, 2.0],
                    "rate": [1.0, 0.5, 0.0],
                }
            },
            metrics={"MALA": {"w1": 0.3, "p_value": None}, "ULA": {"w1": 123.0, "p_value": 0.25}},
            floors={"w1": (0.1, 0.01)},
            warnings=["R-hat 1.2 on column 0: the chains have not mixed."],
        ),
        **changes,
    )


KINDS = {"numbers": (1,), "plane": (2,), "five columns": (5,), "grey images": (8, 8), "colour images": (3, 40, 20)}
CHARTS = {"numbers": 1 + 1 + 1 + 2 + 1, "plane": 3 + 3 + 1 + 2 + 2 + 1, "five columns": 9 + 1 + 3 + 2 + 1}
CHARTS |= {"grey images": 3, "colour images": 3}  # traces, acceptance, training
PICTURES = {"grey images": 4, "colour images": 4}


def slowly(kind: str) -> Any:
    return pytest.param(kind, marks=pytest.mark.slow)


def refuse(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


def drawings(page: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="drawings">(.*?)</script>', page, re.DOTALL)
    assert found
    return list(json.loads(found[1], parse_constant=refuse))


def figures(page: str) -> list[dict[str, Any]]:
    return [one["figure"] for one in drawings(page) if one["figure"]]


def numbers(code: dict[str, str]) -> Any:
    x = np.frombuffer(b64decode(code["bdata"]), f"<{code['dtype']}")
    return x.reshape([int(size) for size in code["shape"].split(",")]) if "shape" in code else x


def image(source: str) -> Any:
    """Return the pixels of a PNG, bytes (row, column, RGBA), by a reader that is not ours."""
    png = b64decode(source.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGBA")).astype(int)


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
        r"expected samples\['MALA'\] to have events of shape \(2,\), as the data, got \(3,\). Pass",
    ),
    "chains of other events": (
        lambda: contents(2, chains=chains(normal(4, 5, 3))),
        r"expected chains.draws to have events of shape \(2,\), as the data, got \(3,\). Pass",
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
def test_what_does_not_fit_together_is_refused(name: str) -> None:
    make, text = REFUSED[name]
    with pytest.raises(ValueError, match=text):
        make()


def test_points_frames_and_traces_are_the_numbers_of_the_tensors() -> None:
    shown = contents(2)
    assert shown.chains is not None
    every = drawings(html(shown))
    for one, x in zip(every[:3], [shown.data, *shown.samples.values()], strict=True):
        trace = one["figure"]["data"][0]
        np.testing.assert_array_equal(np.stack([numbers(trace["x"]), numbers(trace["y"])], 1), x.numpy())
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
    _, frames = chain_charts.movie(
        normal(5, 2).double(), torch.stack([draws, draws], 2).double(), charts.view("xy", normal(5, 2), normal(5, 2))
    )
    assert len(frames["labels"]) == chain_charts.FRAMES
    assert (frames["labels"][0], frames["labels"][-1]) == (1, 1000)
    seen = numbers(frames["x"])
    assert seen.shape == (chain_charts.FRAMES, chain_charts.CHAINS)
    np.testing.assert_allclose(seen[-1, [0, -1]], [0.999, 1999.999])


def test_histograms_and_densities_hold_all_samples() -> None:
    numbers_page, plane = figures(html(contents(1))), figures(html(contents(2)))
    data = numbers_page[0]["data"][0]
    width = np.diff(numbers(data["x"]))[0]
    assert numbers(data["y"]).sum() * width == pytest.approx(1, abs=0.02)  # a little lies beyond the axis
    assert float((numbers(data["x"]) * numbers(data["y"])).sum() * width) == pytest.approx(
        float(contents(1).data.mean()), abs=0.05
    )
    heat = plane[3]["data"][0]
    assert numbers(heat["z"]).sum() * heat["dx"] * heat["dy"] == pytest.approx(1, abs=0.03)


def test_a_density_is_highest_where_the_points_are() -> None:
    points = torch.tensor([[3.0, -1.0]]).double().expand(50, 2)
    at = charts.View(("x", "y"), (0.0, 4.0), (-2.0, 2.0))
    heat = charts.densities([points], at)[0]["data"][0]
    row, column = np.unravel_index(numbers(heat["z"]).argmax(), (charts.CELLS, charts.CELLS))
    assert heat["x0"] + column * heat["dx"] == pytest.approx(3, abs=heat["dx"])
    assert heat["y0"] + row * heat["dy"] == pytest.approx(-1, abs=heat["dy"])


def test_acceptance_by_step_is_the_mean_over_chains() -> None:
    chances = torch.rand(7, 30, generator=torch.Generator().manual_seed(0)).double()
    line = chain_charts.acceptance_by_step(chances)["data"][0]
    np.testing.assert_allclose(numbers(line["y"]), chances.mean(0), rtol=1e-6)
    long = torch.rand(3, 1000, generator=torch.Generator().manual_seed(0)).double()
    line = chain_charts.acceptance_by_step(long)["data"][0]
    assert line["dx"] == 4
    np.testing.assert_allclose(numbers(line["y"])[:2], [long[:, :4].mean(), long[:, 4:8].mean()], rtol=1e-6)


@pytest.mark.parametrize("width", [1, 2])
def test_acceptance_by_place_belongs_to_where_a_move_began(width: int) -> None:
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
    pairs = choice.most_different(data.double(), samples.double())
    assert pairs[0] == (1, 3)
    assert len(pairs) == 3
    page = html(contents(5, data=data, samples={"MALA": samples}))
    assert [one["layout"]["xaxis"]["title"]["text"] for one in figures(page)[:2]] == ["column 1"] * 2
    assert "these are the pairs on which MALA and the data differ most" in page


def test_a_pair_that_differs_only_in_its_dependence_is_found_among_many_columns() -> None:
    data, samples = normal(1000, 60).double(), normal(1000, 60, seed=1).double()
    data[:, 41] = (data[:, 7] + 0.2 * data[:, 41]) / 1.04**0.5  # of the same own law
    assert choice.most_different(data, samples)[0] == (7, 41)


def test_an_axis_shows_the_data_though_samples_ran_away() -> None:
    data = torch.linspace(0, 1, 1001).double()
    low, high = choice.limits(data, torch.tensor([1e30, 0.5, -1e30]).double())
    assert -1.3 < low < 0
    assert 1 < high < 2.3
    low, high = choice.limits(data, data)
    assert -0.1 < low < 0.01
    assert choice.limits(torch.ones(3).double(), torch.ones(3).double()) == pytest.approx((0.94, 1.06))


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


def test_colours_are_those_of_the_plots_and_all_are_defined() -> None:
    page = html(contents(2))
    light = dict(re.findall(r"(--[\w-]+): (#\w+);", page.split("@media")[0]))
    assert tuple(light[f"--series-{i}"] for i in range(5)) == style.COLOURS
    assert set(re.findall(r'"(--[a-z0-9-]+)"', json.dumps(figures(page)))) <= set(light)


def test_images_are_those_of_the_tensors() -> None:
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
    small = pictures.shades(flat, (0.0, 1.0))
    assert small.shape == (2, 32, 32, 1)
    assert small[0, 5].flatten().tolist() == [0] * 16 + [255] * 16
    assert pictures.shades(normal(2, 5, 8, 8), (0.0, 1.0)).shape == (2, 8, 8, 1)
    assert "The mean of their 5 channels is shown." in html(contents(5, 8, 8))


def test_metrics_stand_beside_their_floors() -> None:
    text = " ".join(re.sub(r"<[^>]+>", " ", html(contents(2)).split("<table>")[1].split("</table>")[0]).split())
    assert text == f"sampler w1 p_value MALA 0.3 3 {TIMES} — ULA 123 1,230 {TIMES} 0.25 floor 0.1 ± 0.01"
    odd = {"MALA": {"w1": float("nan"), "gap": -0.5}}
    page = html(contents(2, metrics=odd, floors={"gap": (-0.1, 0.2), "w1": (0.1, 0.01)}))
    rows = page.split("<tbody>")[1].split("</tbody>")[0]
    assert "not finite" in rows
    assert TIMES not in rows


def hostile(*event: int) -> Contents:
    shown = contents(*event)
    names = [HOSTILE, IMAGE, TAGS]
    return replace(
        shown,
        title=HOSTILE,
        about={HOSTILE: IMAGE, "path": "/data/\udcff"},
        columns=(2 * names)[: len(shown.columns)],
        samples=dict(zip(names, [*shown.samples.values(), shown.data], strict=True)),
        histories={HOSTILE: {"loss": [2.0, 1.0], IMAGE: [1.0, 2.0], TAGS: [1.0, 3.0]}},
        metrics={HOSTILE: {IMAGE: 0.5}},
        floors={IMAGE: (0.1, 0.1)},
        warnings=[HOSTILE, IMAGE, TAGS],
    )


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
def test_a_page_is_below_6_mb_whatever_it_shows(make: Callable[[], Contents]) -> None:
    size = len(html(make()).encode())
    assert size < LIMIT


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    driver = pytest.importorskip("playwright.sync_api")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])  # root has no sandbox
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page in the browser, and all that it said and asked for."""

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


@pytest.mark.parametrize("kind", ["plane", "grey images", *map(slowly, ("numbers", "five columns", "colour images"))])
def test_a_browser_draws_everything_and_asks_for_nothing(kind: str, browser: Any, tmp_path: Path) -> None:
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
                assert page.locator(f"#drawing-{number} .point").count() == len(x)
            assert page.locator("#drawing-3 .heatmaplayer image").count() == 1
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


def test_the_slider_moves_the_points_to_the_draws_of_its_step(browser: Any, tmp_path: Path) -> None:
    shown = contents(2)
    assert shown.chains is not None
    with opened(browser, tmp_path, html(shown)) as one:
        page, number = one.page, 6
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
            assert one.page.locator("h1").count() == 1
            assert not one.said
