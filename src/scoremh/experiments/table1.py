"""The paper's Table 1: four datasets, four samplers, three metrics, beside other rules, outsiders and the floor.

No chain starts from data: every row starts from a normal law with the samples' mean and at least their covariance, and
what is judged is the last draw of independent chains, against fresh samples that nothing has seen. Chains of one kernel
run on the law blurred by a noise at which its modes are connected, and their draws are carried down by the probability
flow.
"""

import importlib.util
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from scoremh._shared import checks
from scoremh.experiments import _figures as figures
from scoremh.experiments import _table1_cells as measured
from scoremh.experiments import _table1_page as page
from scoremh.experiments._cells import SEPARATOR, fill_in, known
from scoremh.experiments._table1_cells import METRICS, Config
from scoremh.experiments._table1_rows import EVEN, LAWS, METHODS

PRESETS = {
    "quick": Config(
        seeds=(11,),  # none of the paper preset's
        draws=dict.fromkeys(LAWS, 2000),
        training={"moons": 250, "pinwheel": 250, "s_curve": 80, "swiss_roll": 80},
        chain_steps=200,
        floors=3,
        tests=2,
    ),
    "paper": Config(
        seeds=(1, 2, 3),
        draws={"moons": 2000, "pinwheel": 5000, "s_curve": 5000, "swiss_roll": 2000},
        training={"moons": 1000, "pinwheel": 1000, "s_curve": 300, "swiss_roll": 300},
        chain_steps=300,
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
MARK = "<!-- table1 -->"  # where the README has its table
WORDS = {
    "score": ("dataset", "seed"),
    "acceptance": ("dataset", "seed", "proposal", "form"),
    "test": ("dataset", "seed", "method", "number"),
}


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
            for method in METHODS:
                values, counted = (cells.get(f"{what} / {name} / {seed} / {method}") for what in ("metrics", "draws"))
                if values is None or counted is None:
                    continue
                which = {"dataset": name, "method": method, "seed": seed}
                rows.append(which | counted | {key: values[key] for key in ("nearest", "fresh_nearest")})
                printed = dict(zip(METRICS, PAPER[name].get(method, ()), strict=False))
                for metric in METRICS:
                    record = {"metric": metric, "value": values[metric], "paper": printed.get(metric)}
                    record |= {"floor": _mean(floors, metric), "samples": config.draws[name]}
                    if name in EVEN:
                        record["independent_floor"] = _mean([f and f.get("independent") for f in floors], metric)
                    records.append(which | record)
    others: dict[str, list[dict[str, Any]]] = {what: [] for what in WORDS}
    for task, cell in cells.items():
        what, *words = task.split(SEPARATOR)
        if what in WORDS:
            named: dict[str, Any] = dict(zip(WORDS[what], words, strict=True))
            others[what].append(named | {"seed": int(named["seed"])} | cell)
    settings = {"preset": preset, **measured.settings(config), "versions": figures.versions("zuko")}
    return json.loads(json.dumps({"settings": settings, "records": records, "rows": rows, **others}))  # type: ignore[no-any-return]


def _mean(floors: Sequence[Mapping[str, Any] | None], metric: str) -> float | None:
    values = [one[metric] for one in floors if one]
    return statistics.mean(values) if values else None


def run(preset: str, out: Path, docs: Path | None = None, *, workers: int | None = None, as_is: bool = False) -> None:
    """Compute what is missing, and write the page, its pictures, `results/table1.json` and the README's table.

    Args:
        preset: A name in `PRESETS`.
        out: Folder of the cells; the page too, where no other is given.
        docs: Folder of the page and its pictures.
        workers: Cells at the same time.
        as_is: Compute nothing, and write what is there.
    """
    if importlib.util.find_spec("zuko") is None:
        expected = "zuko, for the row of a normalizing flow"
        raise ImportError(checks.message(expected, "no such package", "Run: pip install 'scoremh[flows]'"))
    folder = out / "table1" / preset
    docs = folder if docs is None else docs
    path = figures.preset_file(docs, "table1", preset)
    torch.set_num_threads(1)
    cells = known(folder / "cells.json") if as_is else measured.run(PRESETS[preset], folder, workers=workers)
    found = results(cells, preset)
    if not found["records"]:
        fix = "Run the same without --as-is."
        raise ValueError(checks.message(f"results to write in {folder}", "none", fix))
    figures.write(found, path)
    fill_in(docs / "reproduction.md", page.sections(found))
    readme = docs.parent / "README.md"
    if readme.exists() and MARK in readme.read_text():
        fill_in(readme, {"table1": page.brief(found)})
    page.pictures(found, folder, docs)
