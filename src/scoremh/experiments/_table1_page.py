"""What `experiments.table1` says and draws of its results; every number comes from them."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load_file

from scoremh import plots
from scoremh.experiments import _table1_cells as measured
from scoremh.experiments._cells import markdown, spread
from scoremh.experiments._table1_cells import METRICS
from scoremh.experiments._table1_rows import EVEN, METHODS, PAPER_METHODS, Problem

TITLES = {"moons": "Moons", "pinwheel": "Pinwheel", "s_curve": "S-curve", "swiss_roll": "Swiss roll"}
NEAR = 1.15  # times the floor
PICTURED = (*PAPER_METHODS, "annealed")
DOTS = 800  # points of a panel
EVENLY = ("sobol_flow",)  # rows whose draws are not independent
OUTSIDERS = ("kde", "spline_flow")
COUNTED = {
    "step": "step, std or beta",
    "acceptance": "acceptance",
    "score_calls": "score calls",
    "nearest": "to the nearest sample learned from",
    "seconds": "seconds",
}


class Cell(NamedTuple):
    """A number of the table: values over seeds (None where draws ran away), the paper's, and the floors."""

    values: list[float | None]
    paper: float | None
    floor: float | None
    independent: float | None

    @property
    def mean(self) -> float:
        """Over seeds; infinite where one ran away."""
        known = [value for value in self.values if value is not None]
        return statistics.mean(known) if len(known) == len(self.values) else math.inf

    @property
    def settled(self) -> bool:
        """Whether it is a distance at all: the paper's W2 may come out below 0."""
        return self.mean > 0 and (self.floor is None or self.floor > 0)

    def over(self, floor: float | None) -> str:
        """Return the ratio to a floor, as text."""
        return f"{self.mean / floor:.2f}" if floor and self.settled and math.isfinite(self.mean) else ""

    def __str__(self) -> str:
        """Return mean and spread."""
        if not math.isfinite(self.mean):
            return "diverged"
        values = [value for value in self.values if value is not None]
        return number(self.mean) + (f" +- {spread(values):.1g}" if len(values) > 1 else "")


Key = tuple[str, str, str]  # dataset, method, metric


def table(found: Mapping[str, Any]) -> dict[Key, Cell]:
    """Return the cells of the table."""
    gathered: dict[Key, list[dict[str, Any]]] = {}
    for record in found["records"]:
        gathered.setdefault((record["dataset"], record["method"], record["metric"]), []).append(record)
    answer = {}
    for key, there in gathered.items():
        floors, independent = (
            [record[name] for record in there if record.get(name) is not None]
            for name in ("floor", "independent_floor")
        )
        answer[key] = Cell(
            [record["value"] for record in there],
            there[0]["paper"],
            statistics.mean(floors) if floors else None,
            statistics.mean(independent) if independent else None,
        )
    return answer


def number(value: float | None) -> str:
    """Return three digits, and no exponent."""
    if value is None:
        return ""
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.5f}"


def sections(found: Mapping[str, Any]) -> dict[str, str]:
    """Return what the page says of the results, by the name of the place where it goes."""
    cells, names = table(found), {record["dataset"]: record["samples"] for record in found["records"]}
    parts = {name: _dataset(found, cells, name, samples) for name, samples in names.items()}
    settings = "```json\n" + json.dumps(found["settings"], indent=1) + "\n```"
    return parts | {"verdict": _verdict(found, cells), "settings": settings}


def brief(found: Mapping[str, Any]) -> str:
    """Return W1 of the paper's rows and of the best of ours, for the README."""
    cells = table(found)
    rows = [["dataset", *(METHODS[m].words for m in PAPER_METHODS), "best of all rows", "floor"]]
    for name, title in TITLES.items():
        there = {method: cells[name, method, "w1"] for method in METHODS if (name, method, "w1") in cells}
        if not there:
            continue
        best = min((method for method in there if method not in OUTSIDERS), key=lambda method: there[method].mean)
        paper = [f"{there[m]} ({there[m].paper:g})" if m in there else "" for m in PAPER_METHODS]
        rows.append([title, *paper, f"{there[best]}, {METHODS[best].words}", number(there[best].floor)])
    return markdown(rows)


def _dataset(found: Mapping[str, Any], cells: Mapping[Key, Cell], name: str, samples: int) -> str:
    columns = [f"{metric} {what}" for metric in ("W1", "W2", "MMD") for what in ("ours", "paper", "floor", "ratio")]
    first, second = [["method", *columns]], [["method", "exact W1", "ratio", "exact W2", "ratio", *COUNTED.values()]]
    for method in METHODS:
        if (name, method, "w1") not in cells:
            continue
        words, row, exact = METHODS[method].words, [], []
        for metric in METRICS[:3]:
            cell = cells[name, method, metric]
            above = method in PAPER_METHODS[1:] and cell.paper is not None and cell.mean > cell.paper
            row += [
                f"**{cell}**" if above else str(cell),
                "" if cell.paper is None else f"{cell.paper:g}",
                number(cell.floor),
                cell.over(cell.floor),
            ]
        for metric in METRICS[3:]:
            cell = cells[name, method, metric]
            exact += [str(cell), cell.over(cell.floor)]
        runs = [run for run in found["rows"] if (run["dataset"], run["method"]) == (name, method)]
        counts = [[run[key] for run in runs if run.get(key) is not None] for key in COUNTED]
        first.append([words, *row])
        second.append([words, *exact, *(f"{statistics.mean(c):.3g}" if c else "" for c in counts)])
    independent = {m: cells[name, next(iter(METHODS)), m].independent for m in METRICS if (name, "ula", m) in cells}
    said = ", ".join(f"{metric} {number(floor)}" for metric, floor in independent.items() if floor is not None)
    said = said and f"Independent draws have a floor of {said}.\n\n"
    fresh = statistics.mean(run["fresh_nearest"] for run in found["rows"] if run["dataset"] == name)
    seeds = len({record["seed"] for record in found["records"] if record["dataset"] == name})
    return (
        f"{samples:,} draws per row, and as many fresh samples; {seeds} seed{'s' * (seeds > 1)}.\n\n"
        f"{markdown(first)}\n\n{markdown(second)}\n\n{said}"
        f"Fresh samples are {fresh:.3g} from the nearest one that was learned from, in the median.\n\n"
        f"![{TITLES[name]}](table1_{name}.png)"
    )


def reached(cells: Mapping[Key, Cell]) -> tuple[list[str], list[str], list[str]]:
    """Return the Score-MH cells at or below the paper's, those above, and those that are no distance, in words."""
    below: list[str] = []
    above: list[str] = []
    unsettled: list[str] = []
    for (name, method, metric), cell in cells.items():
        if method in PAPER_METHODS[1:] and cell.paper is not None:
            floor = "" if cell.floor is None else f" (floor {number(cell.floor)})"
            text = f"{TITLES[name]}, {METHODS[method].words}, {metric.upper()}: {cell} for {cell.paper:g}{floor}"
            (unsettled if cell.mean <= 0 else below if cell.mean <= cell.paper else above).append(text)
    return below, above, unsettled


def _best(cells: Mapping[Key, Cell], name: str, methods: Sequence[str], floor: str) -> tuple[str, str, float] | None:
    """Return the method whose worst ratio to a floor is least, where that is, and the ratio."""
    worst = {}
    for method in methods:
        there = {metric: cells[name, method, metric] for metric in METRICS if (name, method, metric) in cells}
        ratios = {m: c.mean / getattr(c, floor) for m, c in there.items() if getattr(c, floor) and c.settled}
        if ratios:
            where = max(ratios, key=ratios.__getitem__)
            worst[method] = where, ratios[where]
    if not worst:
        return None
    best = min(worst, key=lambda method: worst[method][1])
    return best, *worst[best]


def _verdict(found: Mapping[str, Any], cells: Mapping[Key, Cell]) -> str:
    below, above, unsettled = reached(cells)
    count = len(below) + len(above) + len(unsettled)
    lines = _missing(found)
    lines += [f"- At or below the paper: {len(below)} of the {count} Score-MH cells computed (of 36)."]
    lines += [f"  - Above: {text}." for text in above]
    lines += [f"  - Not settled, and counted as neither: {text}." for text in unsettled]
    ours = [method for method in METHODS if method not in OUTSIDERS]
    for name, title in TITLES.items():
        separate = [method for method in ours if method not in EVENLY]
        floor = "independent" if name in EVEN else "floor"
        for methods, kind, words in (
            (ours, "floor", "best row"),
            (separate, floor, "best row of independent draws"),
        ):
            if best := _best(cells, name, methods, kind):
                method, metric, ratio = best
                word = "within" if ratio <= NEAR else "**not** within"
                of = "floor of independent draws" if kind == "independent" else "floor"
                lines.append(
                    f"- {title}: the {words}, {METHODS[method].words}, is at most {ratio:.2f} times the {of} over all "
                    f"metrics (in {metric}): {word} {NEAR}."
                )
    for name, title in TITLES.items():
        for row in found["settings"]["tested"]:
            p = [run["p_value"] for run in found["test"] if (run["dataset"], run["method"]) == (name, row)]
            if p:
                passed = sum(value > 0.05 for value in p)
                fits = len({run["seed"] for run in found["test"] if run["dataset"] == name})
                mild = "; evenly spread draws make this test mild" if row in EVENLY else ""
                lines.append(
                    f"- {title}, {METHODS[row].words}: not told from fresh data at {measured.TESTED:,} points in "
                    f"{passed} of {len(p)} two-sample tests (p > 0.05; as many seeds of chains, {fits} of "
                    f"scores{mild})."
                )
    return "\n".join(lines)


def _missing(found: Mapping[str, Any]) -> list[str]:
    """Say which datasets and seeds of the preset are not there yet."""
    there = {(record["dataset"], record["seed"]) for record in found["records"]}
    missing = []
    for name, title in TITLES.items():
        seeds = [str(seed) for seed in found["settings"]["seeds"] if (name, seed) not in there]
        missing += [f"{title} (seeds {', '.join(seeds)})"] if seeds else []
    return [f"- **Not computed yet**: {'; '.join(missing)}."] if missing else []


def pictures(found: Mapping[str, Any], folder: Path, docs: Path) -> None:
    """Draw the samples of the rows beside fresh ones, and W1 against the step.

    Args:
        found: The results.
        folder: Where the draws are.
        docs: Folder to draw into.
    """
    seed, cells = found["settings"]["seeds"][0], table(found)
    for name in {record["dataset"]: None for record in found["records"]}:
        problem = Problem(name, seed, folder)
        there = [m for m in PICTURED if problem.path("draws", m).exists() and (name, m, "w1") in cells]
        panels = {"Fresh samples": problem.judged(DOTS)}
        panels |= {METHODS[m].words: load_file(problem.path("draws", m))["draws"][:DOTS] for m in there}
        captions = ["", *(f"W1 {cells[name, m, 'w1']}" for m in there)]
        draw = plots.scatter_panels if problem.x.shape[1] == 2 else plots.space_panels
        draw(panels, docs / f"table1_{name}.png", captions=captions, title=TITLES[name])
