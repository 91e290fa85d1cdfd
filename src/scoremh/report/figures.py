"""The parts of plotly figures: numbers, texts, axes. A colour that begins with -- is a property of style.css."""

import html
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from scoremh.report.looks import COLOURS, colour_numbers

Figure = dict[str, Any]
WIDE_RATIO = 1e4  # distance from 0 over standard deviation, above which float32 has too few digits


def series(number: int) -> str:
    """Return the colour of a curve; those of style.css, then the first again."""
    return f"--series-{number % len(COLOURS)}"


def colours(names: Sequence[str]) -> list[str]:
    """Return the colours of the data, which come first, and of samplers."""
    return ["--data", *map(series, colour_numbers(names[1:]))]


def clip(text: object, most: int) -> str:
    """Return a text, cut off where it is longer than that."""
    text = str(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def literal(text: str) -> str:
    """Return a text that plotly shows as it is: it would read tags, entities and, where one hovers, %{...} in it."""
    return html.escape(clip(text, 40), quote=False).replace("%", "&#37;")


def packed(x: Tensor) -> dict[str, str]:
    """Return numbers as plotly reads them, a third of the size of their digits; NaN is a gap.

    In float32, but for numbers so far from 0 that it could not tell them apart: times in seconds, for example.
    """
    x = x.detach().cpu().double()
    seen = x[x.isfinite()]
    wide = len(seen) > 1 and bool(seen.abs().max() > WIDE_RATIO * seen.std())
    raw = (x if wide else x.float()).numpy().tobytes()
    code = {"dtype": "f8" if wide else "f4", "bdata": b64encode(raw).decode()}
    return code if x.ndim == 1 else {**code, "shape": ", ".join(map(str, x.shape))}


def axis(title: str = "", limits: Sequence[float] | None = None, **more: Any) -> dict[str, Any]:
    """Return an axis."""
    return {
        "title": {"text": literal(title), "standoff": 8},
        "gridcolor": "--line",
        "linecolor": "--line",
        "zeroline": False,
        "ticks": "",
        "automargin": True,
        "nticks": 6,
        **({} if limits is None else {"range": list(limits)}),
        **more,
    }


def figure(traces: Sequence[dict[str, Any]], x: dict[str, Any], y: dict[str, Any], **layout: Any) -> Figure:
    """Return a figure on the page's own background and in its colours."""
    return {
        "data": list(traces),
        "layout": {
            "xaxis": x,
            "yaxis": y,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "system-ui, sans-serif", "size": 12, "color": "--soft"},
            "margin": {"l": 44, "r": 8, "t": 8, "b": 36},
            "hoverlabel": {"bgcolor": "--paper", "bordercolor": "--line", "font": {"color": "--ink"}},
            "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
            "showlegend": False,
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "--data", "activecolor": "--ink"},
            "uirevision": 1,  # a curve that was hidden by a click in the legend stays so
            **layout,
        },
    }
