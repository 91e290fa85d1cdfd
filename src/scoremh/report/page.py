"""The page of a report: a single file that loads nothing from a network and runs only its own scripts.

`html` and `write` show any `Contents`. `chain_contents` returns the contents for chains alone: their last draws beside
a reference, or beside all draws without one.
"""

import gzip
import math
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from importlib.resources import files
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from scoremh import diagnostics
from scoremh._shared.files import replacing
from scoremh._shared.names import extra
from scoremh.evaluation import MIN_ROWS, Check, Evaluation, evaluate, floor_ratio, number, probability
from scoremh.report import charts, images, sections
from scoremh.report.charts import clip
from scoremh.report.sections import MAX_NAME_LENGTH, Contents, Panel, Section
from scoremh.sampling.chains import Chains

MAX_HISTORIES, MAX_LINES, MAX_METRICS = 4, 30, 16  # so that any file stays below 3 MB
MAX_TEXT_LENGTH = 300  # characters


def html(contents: Contents) -> str:
    """Return the HTML of a page that shows the contents.

    Args:
        contents: Contents of the page.
    """
    with extra("report"):  # imported here, so that this module loads without the extra
        from jinja2 import Environment, PackageLoader
        from plotly.offline import get_plotlyjs

    library, script = get_plotlyjs(), files("scoremh.report").joinpath("script.js").read_text("utf-8")
    own = images if contents.images else sections
    shown = [*own.sections(contents), *_training(contents)]
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
        sections=shown,
        charts=[_drawing(panel) for section in shown for row in section.rows for panel in row],
        verdict=contents.verdict,
        cards=[_card(check) for check in contents.checks],
        library=b64encode(gzip.compress(library.encode(), mtime=0)).decode(),
        script=script,
        digests=[b64encode(sha256(text.encode()).digest()).decode() for text in (library, script)],
    )
    return page.encode(errors="backslashreplace").decode()  # a path may hold bytes that are not UTF-8


def write(contents: Contents, path: str | Path) -> None:
    """Write a page that shows the contents; an interrupted write leaves the old file.

    Args:
        contents: Contents of the page.
        path: File to write.
    """
    page = html(contents)
    with replacing(Path(path)) as partial:
        partial.write_text(page, encoding="utf-8", newline="\n")


def _card(check: Check) -> dict[str, Any]:
    """Return the texts of a check's card: its value, its limits, and its place in percent of twice the upper limit."""
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
    """Return the figure and the frames of a panel for the script of the page."""
    return {"figure": panel.figure, "frames": panel.frames, "group": panel.group}


def _training(contents: Contents) -> Iterator[Section]:
    """Yield the section of training histories, if there are any."""
    panels = [
        Panel(_name(name), f"Lines: the losses of {_name(name)} by step", charts.losses(history))
        for name, history in islice(contents.histories.items(), MAX_HISTORIES)
        if set(history) - {"step"}
    ]
    if panels:
        note = "Held out: the loss on rows not used for training. Click a name in a legend to show or hide its curve."
        yield Section("Training", [note], [[panel] for panel in panels], half=True)


def _table(contents: Contents) -> dict[str, Any]:
    """Return the table of metrics as texts: one row for each sampler, each value with its ratio to the floor."""
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
    """Return a value, and its ratio to the floor if that is meaningful."""
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


MAX_ROWS = 5000  # rows of all draws, shown without a reference


def chain_contents(chains: Chains, reference: Tensor | None = None, columns: Sequence[str] = ()) -> Contents:
    """Return the contents of a report on chains.

    Args:
        chains: Chains to show.
        reference: Rows `(row, *event)` to compare the last draws with; None for no comparison.
        columns: Names of the coordinates; x0, x1, ... if empty.
    """
    event = chains.draws.shape[2:]
    columns = columns or [f"x{i}" for i in range(event.numel())]
    evaluation = None if reference is None else try_evaluation(chains, reference, columns=columns)
    every = chains.draws.flatten(0, 1)
    data = every[:: -(-len(every) // MAX_ROWS)] if reference is None else reference
    warnings = [*diagnostics.summary(chains).warnings, *([] if evaluation is None else evaluation.warnings)]
    return Contents(
        title="Chains",
        about={
            "sampler": chains.description,
            "chains": chains_line(chains),
            "distances": distances_line(evaluation, reference),
        },
        columns=columns,
        data=data,
        samples={"last draws": chains.last},
        chains=chains,
        metrics=metrics_table(evaluation, "last draws"),
        floors={} if evaluation is None else evaluation.floors,
        warnings=warnings,
        data_name="all draws" if reference is None else "the reference",
        verdict=None if evaluation is None else evaluation.verdict,
        checks=() if evaluation is None else evaluation.checks,
    )


def try_evaluation(
    chains: Chains, reference: Tensor, name: str = "the reference", columns: Sequence[str] = ()
) -> Evaluation | None:
    """Return the evaluation of the last draws; None if the reference is too small or the extra `metrics` is missing."""
    if find_spec("ot") is None or len(reference) < MIN_ROWS:
        return None
    return replace(evaluate(chains.last, reference, columns=columns), reference=name)


def chains_line(chains: Chains) -> str:
    """Return a line with the number, length, acceptance and cost of chains."""
    n, kept = chains.draws.shape[:2]
    cost = f", {chains.score_calls / chains.moves:.3g} score calls per accepted move" if chains.moves else ""
    return f"{n:,} with {kept} draws each; acceptance {chains.acceptance_rate:.3f}{cost}"


def distances_line(evaluation: Evaluation | None, reference: Tensor | None) -> str:
    """Return a line that names the rows with which draws were compared, or why they were not compared."""
    if evaluation is not None:
        return f"{evaluation.points:,} points each, to {evaluation.reference}"
    if reference is None:
        return "none: no reference"
    if len(reference) < MIN_ROWS:
        return f"none: fewer than {MIN_ROWS} rows to compare with"
    return "none: pip install 'scoremh[metrics]'" if find_spec("ot") is None else "none yet: run `scoremh evaluate`"


def metrics_table(evaluation: Evaluation | None, own: str) -> dict[str, dict[str, float | None]]:
    """Return metrics and p-values by sampler, for a report."""
    if evaluation is None:
        return {}
    return {
        own if name == "draws" else name: {**values, "p_value": evaluation.p_values[name]}
        for name, values in evaluation.metrics.items()
    }
