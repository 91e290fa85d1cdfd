"""The page: a single file that loads nothing from a network and runs no script but its own."""

import gzip
import math
from base64 import b64encode
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

from scoremh._shared.extras import extra
from scoremh._shared.files import replacing
from scoremh.evaluation import Check, floor_ratio
from scoremh.evaluation.verdicts import number, probability
from scoremh.report import charts, images, vectors
from scoremh.report.contents import Contents
from scoremh.report.figures import clip
from scoremh.report.panels import MAX_NAME_LENGTH, Panel, Section

MAX_HISTORIES, MAX_LINES, MAX_METRICS = 4, 30, 16  # the file has to stay below 3 MB whatever it shows
MAX_TEXT_LENGTH = 300  # characters


def html(contents: Contents) -> str:
    """Return a page that shows the contents.

    Args:
        contents: What to show.
    """
    with extra("report"):  # here, so that importing this module needs none of them
        from jinja2 import Environment, PackageLoader
        from plotly.offline import get_plotlyjs

    library, script = get_plotlyjs(), files("scoremh.report").joinpath("script.js").read_text("utf-8")
    own = images if contents.images else vectors
    sections = [*own.sections(contents), *_training(contents)]
    environment = Environment(
        loader=PackageLoader("scoremh.report", ""), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    page = environment.get_template("template.html").render(
        title=clip(contents.title, MAX_TEXT_LENGTH),
        about={_name(key): clip(value, MAX_TEXT_LENGTH) for key, value in islice(contents.about.items(), MAX_LINES)},
        warnings=[clip(caution, MAX_TEXT_LENGTH) for caution in contents.warnings[:MAX_LINES]],
        more_warnings=max(0, len(contents.warnings) - MAX_LINES),
        table=_table(contents),
        sections=sections,
        charts=[_drawing(panel) for section in sections for row in section.rows for panel in row],
        verdict=contents.verdict,
        cards=[_card(check) for check in contents.checks],
        library=b64encode(gzip.compress(library.encode(), mtime=0)).decode(),
        script=script,
        digests=[b64encode(sha256(text.encode()).digest()).decode() for text in (library, script)],
    )
    return page.encode(errors="backslashreplace").decode()  # a path may hold bytes that are no text


def write(contents: Contents, path: str | Path) -> None:
    """Write a page that shows the contents; an interrupted write leaves the old file.

    Args:
        contents: What to show.
        path: File to write.
    """
    page = html(contents)
    with replacing(Path(path)) as partial:
        partial.write_text(page, encoding="utf-8", newline="\n")


def _card(check: Check) -> dict[str, Any]:
    """Return a check as a card shows it: its number, its limits, and how far along to twice the last one it is."""
    top = max(2 * check.usable, 1e-9)
    return {
        "name": check.name,
        "level": check.level,
        "class": check.level.replace(" ", "-"),
        "value": number(check.value),
        "limits": f"good up to {number(check.good)}, usable up to {number(check.usable)}",
        "p": f"p {probability(check.p_value)}"
        + ", within chance" * (check.value > check.good and check.level == "good"),
        "text": check.text,
        "place": round(min(100.0, 100 * check.value / top), 1),
        "good": round(100 * check.good / top, 1),
    }


def _drawing(panel: Panel) -> dict[str, Any]:
    """Return what the script draws, and moves."""
    return {"figure": panel.figure, "frames": panel.frames, "group": panel.group}


def _training(contents: Contents) -> Iterator[Section]:
    """Yield the training histories, where there are some."""
    panels = [
        Panel(_name(name), f"Lines: the losses of {_name(name)} by step", charts.losses(history))
        for name, history in islice(contents.histories.items(), MAX_HISTORIES)
        if set(history) - {"step"}
    ]
    if panels:
        note = (
            "Held out: the loss on rows that were not trained on. Click a name in a legend to show or hide its curve."
        )
        yield Section("Training", [note], [[panel] for panel in panels], half=True)


def _table(contents: Contents) -> dict[str, Any]:
    """Return the metrics as texts: a row for every sampler, each value with its ratio to the floor."""
    names = list(dict.fromkeys(name for row in contents.metrics.values() for name in row))[:MAX_METRICS]
    floors = {name: contents.floors[name] for name in names if name in contents.floors}
    samplers = islice(contents.metrics.items(), MAX_LINES)
    return {
        "names": [_name(name) for name in names],
        "rows": [(_name(sampler), _cells(values, names, floors)) for sampler, values in samplers],
        "floors": [_floor(floors.get(name)) for name in names] if floors else [],
    }


def _cells(
    values: Mapping[str, float | None], names: list[str], floors: Mapping[str, tuple[float, float]]
) -> list[tuple[str, str]]:
    return [_cell(values.get(name), floors.get(name)) for name in names]


def _cell(value: float | None, floor: tuple[float, float] | None) -> tuple[str, str]:
    """Return a value, and its multiple of the floor where that is meaningful."""
    if value is None:
        return "—", ""
    if not math.isfinite(value):
        return "not finite", ""
    ratio = None if floor is None else floor_ratio(value, floor)
    if ratio is None:
        return number(value), ""
    return number(value), number(ratio, 2) if ratio < 100 else f"{ratio:,.0f}"


def _floor(floor: tuple[float, float] | None) -> str:
    return "" if floor is None else f"{number(floor[0])} ± {number(floor[1], 2)}"


def _name(text: object) -> str:
    return clip(text, MAX_NAME_LENGTH)
