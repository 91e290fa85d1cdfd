"""What Table 1 says: its tables, how the rows compare with the paper and with the floor, and the pictures."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load_file

from studies import plots
from studies.framework import Record, Records
from studies.framework.study import values
from studies.framework.tables import mean, number, number_and_spread
from studies.table1.judging import METRICS
from studies.table1.methods import ANCHORED, METHODS, NOT_INDEPENDENT, OUTSIDERS, PAPER_METHODS, VERSION
from studies.table1.problem import EVENLY_SPACED, Problem

TITLES = {"moons": "Moons", "pinwheel": "Pinwheel", "s_curve": "S-curve", "swiss_roll": "Swiss roll"}
NEAR_FLOOR = 1.15  # times the floor
LEVEL = 0.05  # of a two-sample test
PICTURED = (*PAPER_METHODS, "annealed")
DOTS = 800  # points of a panel
COUNTED = {
    "step": "step, std or beta",
    "acceptance": "acceptance",
    "score_calls": "score calls",
    "nearest": "to the nearest sample learned from",
    "seconds": "seconds",
}


class Entry(NamedTuple):
    """A number of the table: values over seeds (infinite where draws diverged), the paper's, and the floors."""

    values: list[float]
    paper: float | None
    floor: float | None
    independent: float | None

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return mean(self.values)

    @property
    def is_distance(self) -> bool:
        """Whether it is a distance at all: the paper's W2 may come out below 0."""
        return self.mean > 0 and (self.floor is None or self.floor > 0)

    def over(self, floor: float | None) -> str:
        """Return the ratio to a floor, as text."""
        return f"{self.mean / floor:.2f}" if floor and self.is_distance and math.isfinite(self.mean) else ""

    def __str__(self) -> str:
        """Return mean and spread."""
        return number_and_spread(self.values)


class Place(NamedTuple):
    """Where a number stands."""

    dataset: str
    method: str
    metric: str


def entries(records: Records) -> dict[Place, Entry]:
    """Return the numbers of the table."""
    found: dict[Place, list[Record]] = {}
    for record in records.kinds["records"]:
        found.setdefault(Place(*(record[axis] for axis in Place._fields)), []).append(record)
    return {place: entry(there) for place, there in found.items()}


def entry(records: Sequence[Record]) -> Entry:
    """Return a number of the table from its records over seeds."""
    floors = [[r[key] for r in records if r.get(key) is not None] for key in ("floor", "independent_floor")]
    return Entry(values(records, "value"), records[0]["paper"], *(mean(floor) if floor else None for floor in floors))


def compared_with_paper(records: Records, methods: Sequence[str] = PAPER_METHODS[1:]) -> dict[Place, Entry]:
    """Return the numbers of rows that the paper has numbers for."""
    return {p: e for p, e in entries(records).items() if p.method in methods and e.paper is not None}


def reached(records: Records, methods: Sequence[str] = PAPER_METHODS[1:]) -> dict[str, bool]:
    """Return which numbers of the Score-MH rows are at or below the paper's; a negative one is not a distance."""
    there = {place: entry for place, entry in compared_with_paper(records, methods).items() if entry.mean > 0}
    return {described(place, entry): entry.mean <= (entry.paper or 0) for place, entry in there.items()}


def reached_with_anchors(records: Records) -> dict[str, bool]:
    """Return the same of the rows with anchors."""
    return reached(records, list(ANCHORED))


def label(entry: Entry, method: str, seeds: int) -> str:
    """Return the name of a row, with the number of its seeds where it has not all."""
    count = len(entry.values)
    return METHODS[method].label + ("" if count == seeds else f" ({count} seed{'s' * (count > 1)})")


def rows_by_version(records: Records) -> dict[bool, dict[str, list[str]]]:
    """Return the datasets of every row, of rows that today's code drew (True) and of others."""
    found: dict[bool, dict[str, list[str]]] = {True: {}, False: {}}
    for row in records.kinds["rows"]:
        there = found[row.get("version", 1) == VERSION].setdefault(METHODS[row["method"]].label, [])
        if TITLES[row["dataset"]] not in there:
            there.append(TITLES[row["dataset"]])
    return found


def missing_rows(records: Records) -> dict[str, list[str]]:
    """Return the datasets that a row has not been computed on."""
    there = {(row["dataset"], row["method"]) for row in records.kinds["rows"]}
    missing = {
        row.label: [title for name, title in TITLES.items() if (name, method) not in there]
        for method, row in METHODS.items()
    }
    return {label: titles for label, titles in missing.items() if titles}


def with_datasets(rows: Mapping[str, Sequence[str]]) -> str:
    """Return rows as text, each with its datasets where it has not all."""
    return "; ".join(
        name if len(there) == len(TITLES) else f"{name} ({', '.join(there)})" for name, there in rows.items()
    )


def described(place: Place, entry: Entry) -> str:
    """Return a number with its place, the paper's and the floor."""
    floor = "" if entry.floor is None else f" (floor {number(entry.floor)})"
    where = f"{TITLES[place.dataset]}, {METHODS[place.method].label}, {place.metric.upper()}"
    return f"{where}: {entry} for {entry.paper:g}{floor}"


def counted(records: Records, dataset: str, method: str, key: str) -> str:
    """Return the mean of what was counted in a row, as text."""
    runs = [run[key] for run in records.where("rows", dataset=dataset, method=method) if run.get(key) is not None]
    return f"{mean(runs):.3g}" if runs else ""


class Best(NamedTuple):
    """The row of a dataset whose largest ratio to a floor is least."""

    title: str
    rows: str
    label: str
    ratio: float
    floor: str
    metric: str


def best_row(
    found: Mapping[Place, Entry], name: str, methods: Sequence[str], floor: str
) -> tuple[str, str, float] | None:
    """Return the method whose largest ratio to a floor is least, the metric of that ratio, and the ratio."""
    worst = {}
    for method in methods:
        there = {m: found[p] for m in METRICS if (p := Place(name, method, m)) in found}
        ratios = {m: e.mean / getattr(e, floor) for m, e in there.items() if getattr(e, floor) and e.is_distance}
        if ratios:
            metric = max(ratios, key=ratios.__getitem__)
            worst[method] = (method, metric, ratios[metric])
    return min(worst.values(), key=lambda one: one[2], default=None)


def best_rows(every: Mapping[Place, Entry], seeds: int) -> list[Best]:
    """Return the best row of every dataset, and the best of independent draws, of those that have all seeds."""
    found = {place: entry for place, entry in every.items() if len(entry.values) == seeds}
    ours = [method for method in METHODS if method not in OUTSIDERS]
    separate = [method for method in ours if method not in NOT_INDEPENDENT]
    answer = []
    for name, title in TITLES.items():
        floor = "independent" if name in EVENLY_SPACED else "floor"
        kinds = (("best row", ours, "floor"), ("best row of independent draws", separate, floor))
        for rows, methods, kind in kinds:
            if one := best_row(found, name, methods, kind):
                method, metric, ratio = one
                of = "floor of independent draws" if kind == "independent" else "floor"
                answer.append(Best(title, rows, METHODS[method].label, ratio, of, metric))
    return answer


def mode_weights(records: Records, dataset: str) -> dict[str, list[float]]:
    """Return the total variation between weights of modes and the true ones by row, over seeds."""
    there = {method: records.values("weights", "total_variation", dataset=dataset, method=method) for method in METHODS}
    return {method: values for method, values in there.items() if values}


def not_rejected(records: Records, dataset: str, method: str) -> tuple[int, int]:
    """Return in how many two-sample tests draws are not distinguished from fresh samples, and how many there are."""
    p = [run["p_value"] for run in records.where("test", dataset=dataset, method=method)]
    return sum(value > LEVEL for value in p), len(p)


def missing_seeds(records: Records) -> dict[str, list[int]]:
    """Return the seeds of the preset that are not there yet, by dataset."""
    there = {(record["dataset"], record["seed"]) for record in records.kinds["records"]}
    seeds = records.settings["seeds"]
    missing = {title: [seed for seed in seeds if (name, seed) not in there] for name, title in TITLES.items()}
    return {title: seeds for title, seeds in missing.items() if seeds}


def best_by_w1(found: Mapping[Place, Entry], dataset: str) -> str:
    """Return our row with the least W1."""
    ours = [p for p in found if p.dataset == dataset and p.metric == "w1" and p.method not in OUTSIDERS]
    return min(ours, key=lambda place: found[place].mean).method


def pictures(records: Records, folder: Path, docs: Path) -> None:
    """Draw the samples of rows beside fresh ones; keep the picture where rows of it were not computed again."""
    seed = records.settings["seeds"][0]
    for name in {record["dataset"]: None for record in records.kinds["metrics"]}:
        problem = Problem(name, seed, folder)
        there = [m for m in PICTURED if records.where("metrics", dataset=name, method=m, seed=seed)]
        path = docs / f"table1_{name}.png"
        if path.exists() and len(there) < len(PICTURED):
            continue
        panels = {"Fresh samples": problem.fresh(DOTS)}
        panels |= {METHODS[m].label: load_file(problem.path("draws", m))["draws"][:DOTS] for m in there}
        w1 = [number_and_spread(records.values("metrics", "w1", dataset=name, method=m)) for m in there]
        draw = plots.scatter_panels if problem.x.shape[1] == 2 else plots.space_panels
        captions = ["", *(f"W1 {one}" for one in w1)]
        draw(panels, path, captions=captions, title=TITLES[name])
