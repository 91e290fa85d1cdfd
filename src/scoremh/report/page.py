"""The page: one file with all that it needs inside, which asks nothing of a network and runs no script but its own."""

import math
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from scoremh._shared.files import replacing
from scoremh.report import charts, images, vectors
from scoremh.report.contents import Contents, ratio
from scoremh.report.figures import clip
from scoremh.report.panels import Panel, Section

HISTORIES, LINES, METRICS = 6, 40, 24  # shown at most; the file has to stay below 6 MB whatever it is given
TEXT = 500  # characters of a text


def html(contents: Contents) -> str:
    """Return a page that shows the contents."""
    from plotly.offline import get_plotlyjs  # here, so that only those wait for it who want a page

    scripts = [get_plotlyjs(), files("scoremh.report").joinpath("script.js").read_text("utf-8")]
    own = images if contents.images else vectors
    sections = [*own.sections(contents), *_training(contents)]
    environment = Environment(
        loader=PackageLoader("scoremh.report", ""), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    page = environment.get_template("template.html").render(
        title=clip(contents.title, TEXT),
        about={clip(key, 60): clip(value, TEXT) for key, value in islice(contents.about.items(), LINES)},
        warnings=[clip(text, TEXT) for text in contents.warnings[:LINES]],
        more_warnings=max(0, len(contents.warnings) - LINES),
        table=_table(contents),
        sections=sections,
        charts=[_drawing(panel) for section in sections for row in section.rows for panel in row],
        scripts=scripts,
        digests=[b64encode(sha256(script.encode()).digest()).decode() for script in scripts],
    )
    return page.encode(errors="backslashreplace").decode()  # a path may hold bytes that are no text


def write(contents: Contents, path: str | Path) -> None:
    """Write a page that shows the contents; a write that is killed leaves the old file."""
    page = html(contents)
    with replacing(Path(path)) as partial:
        partial.write_text(page, encoding="utf-8", newline="\n")


def _drawing(panel: Panel) -> dict[str, Any]:
    """Return what the script draws, and moves."""
    return {"figure": panel.figure, "frames": panel.frames, "group": panel.group}


def _training(contents: Contents) -> Iterator[Section]:
    """Yield the histories, where there are some."""
    panels = [
        Panel(clip(name, 60), f"Lines: the losses of {clip(name, 60)}, step by step", charts.losses(history))
        for name, history in islice(contents.histories.items(), HISTORIES)
        if set(history) - {"step"}
    ]
    if panels:
        words = [
            "Held out: the loss on rows that were not trained on. Click a name in a legend to show or hide its curve."
        ]
        yield Section("Training", words, [panels])


def _table(contents: Contents) -> dict[str, Any]:
    """Return the metrics as texts: a row for every sampler, each value with its ratio to the floor."""
    names = list(dict.fromkeys(name for row in contents.metrics.values() for name in row))[:METRICS]
    floors = {name: contents.floors[name] for name in names if name in contents.floors}
    return {
        "names": [clip(name, 60) for name in names],
        "rows": [
            (clip(sampler, 60), [_cell(row.get(name), floors.get(name)) for name in names])
            for sampler, row in islice(contents.metrics.items(), LINES)
        ],
        "floors": [f"{floors[name][0]:.3g} ± {floors[name][1]:.2g}" if name in floors else "" for name in names]
        if floors
        else [],
    }


def _cell(value: float | None, floor: tuple[float, float] | None) -> tuple[str, str]:
    """Return a value and how many times its floor it is, where that says something."""
    if value is None:
        return "—", ""
    if not math.isfinite(value):
        return "not finite", ""
    times = None if floor is None else ratio(value, floor)
    if times is None:
        return f"{value:.3g}", ""
    return f"{value:.3g}", f"{times:.2g}" if times < 100 else f"{times:,.0f}"
