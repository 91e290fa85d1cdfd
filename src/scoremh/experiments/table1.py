"""The paper's Table 1: four datasets, four samplers, three metrics, beside other rules, outsiders and the floor.

No chain starts from data: every row starts from a normal law with the samples' mean and at least their covariance, and
what is judged is the last draw of independent chains, against fresh samples that nothing has seen. Chains of one kernel
run on the law blurred by a noise at which its modes are connected, and their draws are carried down by the probability
flow.
"""

import importlib.metadata
import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from scoremh import plots
from scoremh._files import replacing
from scoremh.experiments import _table1_cells as measured
from scoremh.experiments._cells import fill_in, known, markdown
from scoremh.experiments._table1_cells import LAWS, METHODS, METRICS, PAPER_METHODS, Config

PRESETS = {
    "quick": Config(
        seeds=(1,),
        draws=dict.fromkeys(LAWS, 2000),
        training={"moons": 500, "pinwheel": 500, "s_curve": 150, "swiss_roll": 150},
        steps=300,
        floors=3,
        tests=3,
    ),
    "paper": Config(
        seeds=(1, 2, 3),
        draws={"moons": 2000, "pinwheel": 5000, "s_curve": 5000, "swiss_roll": 2000},
        training={"moons": 1000, "pinwheel": 1000, "s_curve": 300, "swiss_roll": 300},
        steps=300,
        floors=5,
        tests=10,
    ),
}
# The paper's Table 1, by dataset and method: W1, W2, MMD.
PAPER: dict[str, dict[str, tuple[float, float, float]]] = {
    "moons": {
        "ula": (0.143, 0.096, 0.054),
        "score_rw": (0.019, 0.007, 0.004),
        "score_mala": (0.018, 0.004, 0.002),
        "score_pcn": (0.039, 0.021, 0.012),
    },
    "pinwheel": {
        "ula": (0.106, 0.062, 0.022),
        "score_rw": (0.012, 0.001, 0.001),
        "score_mala": (0.086, 0.064, 0.027),
        "score_pcn": (0.016, 0.007, 0.003),
    },
    "s_curve": {
        "ula": (0.082, 0.055, 0.016),
        "score_rw": (0.050, 0.015, 0.004),
        "score_mala": (0.046, 0.014, 0.004),
        "score_pcn": (0.090, 0.051, 0.017),
    },
    "swiss_roll": {
        "ula": (2.881, 14.409, 0.811),
        "score_rw": (2.270, 8.470, 0.400),
        "score_mala": (1.399, 4.575, 0.245),
        "score_pcn": (14.167, 113.824, 6.903),
    },
}
TITLES = {"moons": "Moons", "pinwheel": "Pinwheel", "s_curve": "S-curve", "swiss_roll": "Swiss roll"}
NEAR = 1.15  # of the floor
PICTURED = (*PAPER_METHODS, "annealed")
VERSIONS = ("scoremh", "torch", "numpy", "scipy", "scikit-learn", "pot", "zuko")


def results(cells: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """Return what is kept of the cells that are there: settings, a record per number, and what was counted.

    Args:
        cells: By their names.
        preset: They are of.
    """
    config = PRESETS[preset]
    records, rows = [], []
    for name in LAWS:
        for seed in config.seeds:
            floors = [cells.get(f"floor / {name} / {seed} / {k}") for k in range(config.floors)]
            floor = {m: statistics.mean(f[m] for f in floors if f) if any(floors) else None for m in METRICS}
            for method in METHODS:
                values, counted = (cells.get(f"{what} / {name} / {seed} / {method}") for what in ("metrics", "draws"))
                if values is None or counted is None:
                    continue
                rows.append({"dataset": name, "method": method, "seed": seed, **counted})
                rows[-1] |= {key: values[key] for key in ("nearest", "fresh_nearest")}
                printed = dict(zip(METRICS, PAPER[name].get(method, ()), strict=False))
                for metric in METRICS:
                    records.append(
                        {
                            "dataset": name,
                            "method": method,
                            "metric": metric,
                            "seed": seed,
                            "value": values[metric],
                            "paper": printed.get(metric),
                            "floor": floor[metric],
                            **_independent(floors, metric),
                            "samples": config.draws[name],
                        }
                    )
    others: dict[str, list[dict[str, Any]]] = {what: [] for what in ("test", "sweep", "score", "acceptance")}
    for task, cell in cells.items():
        what, *words = task.split(" / ")
        if what in others:
            names = dict(zip(("dataset", "seed", "method", "number"), words, strict=False))
            others[what].append(names | cell)
    settings = {
        "preset": preset,
        **asdict(config),
        "samples": measured.SAMPLES,
        "level": measured.LEVEL,
        "down": measured.DOWN,
        "annealed": dict(zip(("high", "low", "levels", "steps", "ratio"), measured.ANNEALED, strict=True)),
        "methods": {name: method.words for name, method in METHODS.items()},
        "versions": {name: importlib.metadata.version(name) for name in VERSIONS}
        | {"python": platform.python_version()},
    }
    return json.loads(json.dumps({"settings": settings, "records": records, "rows": rows, **others}))  # type: ignore[no-any-return]


def _independent(floors: Sequence[Mapping[str, Any] | None], metric: str) -> dict[str, float]:
    """Return the floor of independent draws, where fresh samples are not such."""
    values = [one["independent"][metric] for one in floors if one and "independent" in one]
    return {"independent_floor": statistics.mean(values)} if values else {}


Cell = tuple[list[float], float | None, float | None]  # values over seeds, the paper's, the floor


def table(found: Mapping[str, Any]) -> dict[tuple[str, str, str], Cell]:
    """Return the cells of the table, by dataset, method and metric."""
    cells: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for record in found["records"]:
        cells.setdefault((record["dataset"], record["method"], record["metric"]), []).append(record)
    answer: dict[tuple[str, str, str], Cell] = {}
    for key, there in cells.items():
        floors = [record["floor"] for record in there if record["floor"] is not None]
        values = [float("inf") if record["value"] is None else record["value"] for record in there]
        answer[key] = values, there[0]["paper"], statistics.mean(floors) if floors else None
    return answer


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.5f}"


def _over_seeds(values: Sequence[float]) -> str:
    spread = f" +- {statistics.stdev(values):.1g}" if len(values) > 1 else ""
    return f"{_number(statistics.mean(values))}{spread}"


def sections(found: Mapping[str, Any]) -> dict[str, str]:
    """Return what the page says of the results, by the name of the place where it goes."""
    cells, names = table(found), {record["dataset"]: record["samples"] for record in found["records"]}
    parts = {name: _dataset(found, cells, name, samples) for name, samples in names.items()}
    return parts | {"verdict": _verdict(found, cells), "settings": _settings(found)}


def _dataset(found: Mapping[str, Any], cells: Mapping[tuple[str, str, str], Cell], name: str, samples: int) -> str:
    head = [
        "method",
        *(f"{metric} {what}" for metric in ("W1", "W2", "MMD") for what in ("", "paper", "floor", "ratio")),
    ]
    body, other = [], []
    for method in METHODS:
        if (name, method, "w1") not in cells:
            continue
        row = [METHODS[method].words]
        for metric in METRICS[:3]:
            values, paper, floor = cells[name, method, metric]
            mean = statistics.mean(values)
            ours = _over_seeds(values)
            bold = paper is not None and method != "ula" and mean > paper
            row += [f"**{ours}**" if bold else ours, "" if paper is None else f"{paper:g}"]
            row += ["", ""] if floor is None else [_number(floor), f"{mean / floor:.2f}"]
        body.append(row)
        runs = [run for run in found["rows"] if (run["dataset"], run["method"]) == (name, method)]
        numbers = {key: [run[key] for run in runs if run.get(key) is not None] for key in COUNTED}
        shown = [f"{statistics.mean(values):.3g}" if values else "" for values in numbers.values()]
        exact = []
        for metric in METRICS[3:]:
            values, _, floor = cells[name, method, metric]
            exact += [_over_seeds(values), "" if floor is None else f"{statistics.mean(values) / floor:.2f}"]
        other.append([METHODS[method].words, *exact, *shown])
    second = ["method", "exact W1", "ratio", "exact W2", "ratio", *COUNTED.values()]
    independent = {
        metric: [r["independent_floor"] for r in found["records"] if r["dataset"] == name and r["metric"] == metric]
        for metric in METRICS
        if any("independent_floor" in r and r["dataset"] == name for r in found["records"])
    }
    other_floor = ", ".join(f"{metric} {_number(statistics.mean(values))}" for metric, values in independent.items())
    other_floor = other_floor and f"The floor of independent draws: {other_floor}.\n\n"
    fresh = [run["fresh_nearest"] for run in found["rows"] if run["dataset"] == name]
    return (
        f"{samples:,} draws per row, and as many fresh samples.\n\n"
        f"{markdown([head, *body])}\n\n{markdown([second, *other])}\n\n{other_floor}"
        f"Fresh samples are {statistics.mean(fresh):.3g} from the nearest one that was learned from, in the median.\n\n"
        f"![{TITLES[name]}](table1_{name}.png)"
    )


COUNTED = {
    "step": "step",
    "acceptance": "acceptance",
    "score_calls": "score calls",
    "nearest": "to the nearest sample learned from",
    "seconds": "seconds",
}


def reached(cells: Mapping[tuple[str, str, str], Cell]) -> tuple[list[str], list[str]]:
    """Return the Score-MH cells that are at or below the paper's, and those that are above, in words."""
    below: list[str] = []
    above: list[str] = []
    for (name, method, metric), (values, paper, floor) in cells.items():
        if method in PAPER_METHODS[1:] and paper is not None:
            text = f"{TITLES[name]}, {METHODS[method].words}, {metric.upper()}: {_over_seeds(values)} for {paper:g}"
            text += "" if floor is None else f" (floor {_number(floor)})"
            (below if statistics.mean(values) <= paper else above).append(text)
    return below, above


def _verdict(found: Mapping[str, Any], cells: Mapping[tuple[str, str, str], Cell]) -> str:
    below, above = reached(cells)
    lines = [f"- At or below the paper: {len(below)} of the {len(below) + len(above)} Score-MH cells computed (of 36)."]
    lines += [f"  - Above: {text}." for text in above]
    for name in TITLES:
        ratios = {
            method: max(
                statistics.mean(values) / floor
                for metric in METRICS
                for values, _, floor in [cells[name, method, metric]]
                if floor
            )
            for method in METHODS
            if all((name, method, metric) in cells and cells[name, method, metric][2] for metric in METRICS)
            and method not in ("kde", "spline_flow")
        }
        if ratios:
            best = min(ratios, key=ratios.__getitem__)
            word = "within" if ratios[best] <= NEAR else "**not** within"
            lines.append(
                f"- {TITLES[name]}: the best row, {METHODS[best].words}, is at most {ratios[best]:.2f} times the floor "
                f"in all five metrics: {word} {NEAR}."
            )
    for name in TITLES:
        for row in found["settings"]["tested"]:
            p = [run["p_value"] for run in found["test"] if (run["dataset"], run["method"]) == (name, row)]
            if p:
                passed = sum(value > 0.05 for value in p)
                lines.append(
                    f"- {TITLES[name]}, {METHODS[row].words}: not told from fresh data at {measured.TESTED:,} points "
                    f"in {passed} of {len(p)} two-sample tests (p > 0.05)."
                )
    return "\n".join(lines)


def _settings(found: Mapping[str, Any]) -> str:
    settings = found["settings"]
    shown = {key: value for key, value in settings.items() if key not in ("methods", "tested")}
    return "```json\n" + json.dumps(shown, indent=1) + "\n```"


def pictures(found: Mapping[str, Any], cells_folder: Path, docs: Path) -> None:
    """Draw the samples of the rows beside fresh ones, and W1 against the step.

    Args:
        found: The results.
        cells_folder: Where the draws are.
        docs: Folder to draw into.
    """
    seed = found["settings"]["seeds"][0]
    cells = table(found)
    for name in LAWS:
        problem = measured.Problem(name, seed, cells_folder)
        there = [m for m in PICTURED if problem.path("draws", m).exists() and (name, m, "w1") in cells]
        panels = {"Fresh samples": problem.judged(2000)}
        panels |= {METHODS[m].words: load_file(problem.path("draws", m))["draws"][:2000] for m in there}
        captions = ["", *(f"W1 {_over_seeds(cells[name, m, 'w1'][0])}" for m in there)]
        draw = plots.scatter_panels if problem.x.shape[1] == 2 else plots.space_panels
        draw(panels, docs / f"table1_{name}.png", captions=captions, title=TITLES[name])
    if not found["sweep"]:
        return
    lines: dict[str, plots.Curve] = {}
    rates: dict[str, plots.Curve] = {}
    for method in measured.SWEPT:
        runs = [run for run in found["sweep"] if run["method"] == method and run["w1"] is not None]
        by_factor = {f: [run for run in runs if float(run["number"]) == f] for f in measured.SWEEP}
        by_factor = {f: there for f, there in by_factor.items() if there}
        xs = [statistics.mean(run["step"] for run in there) for there in by_factor.values()]
        for target, key in ((lines, "w1"), (rates, "acceptance")):
            values = [[run[key] for run in there] for there in by_factor.values()]
            spreads = [statistics.stdev(v) if len(v) > 1 else 0.0 for v in values]
            target[METHODS[method].words] = (xs, [statistics.mean(v) for v in values], spreads)
    floor = cells["swiss_roll", "ula", "w1"][2]
    panels_ = {"W1": lines, "acceptance": rates}
    plots.curve_panels(
        panels_,
        docs / "table1_steps.png",
        labels=("step size h", "W1, and acceptance"),
        levels={"W1": {} if floor is None else {"floor": floor}, "acceptance": {}},
        log=True,
        title="Swiss roll: W1 against the step size",
    )


def write(found: Mapping[str, Any], cells_folder: Path, docs: Path) -> None:
    """Keep the results, fill in the page and draw its pictures.

    Args:
        found: The results.
        cells_folder: Where the draws are.
        docs: Folder with `reproduction.md`; results go to `results/table1.json` in it.
    """
    (docs / "results").mkdir(parents=True, exist_ok=True)
    with replacing(docs / "results" / "table1.json") as partial:
        partial.write_text(json.dumps(found, indent=1) + "\n")
    fill_in(docs / "reproduction.md", sections(found))
    pictures(found, cells_folder, docs)


def run(preset: str, out: Path, docs: Path | None = None, *, workers: int | None = None, as_is: bool = False) -> None:
    """Compute what is missing, and write the page.

    Args:
        preset: A name in `PRESETS`.
        out: Folder of the cells; the page too, where no other is given.
        docs: Folder of the page and its pictures.
        workers: Cells at the same time.
        as_is: Compute nothing, and write what is there.
    """
    folder = out / "table1" / preset
    torch.set_num_threads(1)
    cells = known(folder / "cells.json") if as_is else measured.run(PRESETS[preset], folder, workers=workers)
    write(results(cells, preset), folder, folder if docs is None else docs)
