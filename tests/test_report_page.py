"""The page of a report: its sections, its table, its escapes and its size."""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from scoremh.evaluation import Check, Verdict, number
from scoremh.report import Contents, charts, html, write
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
    normal,
    numbers,
)

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


def test_colours_are_those_of_the_static_pictures_and_all_are_defined() -> None:
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


def test_ranks_are_flat_where_chains_agree_and_autocorrelation_is_that_of_the_draws() -> None:
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
