"""The report in a real browser: it is drawn, it moves, and it asks nobody."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from scoremh.report import html
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
    hostile,
    normal,
    slowly,
)


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


@pytest.mark.slow
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
            assert one.page.locator("h1").count() == 1
            assert not one.said
