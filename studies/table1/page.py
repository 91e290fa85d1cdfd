"""What Table 1 says: its tables, how the rows compare with the paper and with the floor, and the pictures."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load_file

from studies import plots
from studies.framework import Record, Records
from studies.framework.study import values
from studies.framework.tables import mean, number, number_and_spread, table
from studies.table1.cells import TEST_POINTS
from studies.table1.judging import METRICS
from studies.table1.methods import METHODS, NOT_INDEPENDENT, OUTSIDERS, PAPER_METHODS
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


def compared_with_paper(records: Records) -> dict[Place, Entry]:
    """Return the numbers of the paper's Score-MH rows."""
    return {p: e for p, e in entries(records).items() if p.method in PAPER_METHODS[1:] and e.paper is not None}


def reached(records: Records) -> dict[str, bool]:
    """Return which numbers of the Score-MH rows are at or below the paper's; one below 0 is no distance."""
    there = {place: entry for place, entry in compared_with_paper(records).items() if entry.mean > 0}
    return {described(place, entry): entry.mean <= (entry.paper or 0) for place, entry in there.items()}


def described(place: Place, entry: Entry) -> str:
    """Return a number with its place, the paper's and the floor."""
    floor = "" if entry.floor is None else f" (floor {number(entry.floor)})"
    where = f"{TITLES[place.dataset]}, {METHODS[place.method].label}, {place.metric.upper()}"
    return f"{where}: {entry} for {entry.paper:g}{floor}"


def dataset_numbers(records: Records, found: Mapping[Place, Entry], name: str) -> dict[str, Any]:
    """Return the tables of one dataset and what stands beside them."""
    there = [method for method in METHODS if Place(name, method, "w1") in found]
    of_dataset = records.where("records", dataset=name)
    independent = {m: found[Place(name, there[0], m)].independent for m in METRICS}
    return {
        "title": TITLES[name],
        "samples": of_dataset[0]["samples"],
        "seeds": len({record["seed"] for record in of_dataset}),
        "paper_metrics": table([paper_row(found, name, method) for method in there]),
        "exact_metrics": table([exact_row(records, found, name, method) for method in there]),
        "independent": {metric: number(floor) for metric, floor in independent.items() if floor is not None},
        "fresh": mean([run["fresh_nearest"] for run in records.where("rows", dataset=name)]),
    }


def paper_row(found: Mapping[Place, Entry], name: str, method: str) -> dict[str, str]:
    """Return a row of the paper's metrics; numbers of Score-MH rows above the paper's are bold."""
    row = {"method": METHODS[method].label}
    for metric in METRICS[:3]:
        one, head = found[Place(name, method, metric)], metric.upper()
        above = method in PAPER_METHODS[1:] and one.paper is not None and one.mean > one.paper
        row |= {f"{head} ours": f"**{one}**" if above else str(one)}
        row |= {f"{head} paper": "" if one.paper is None else f"{one.paper:g}"}
        row |= {f"{head} floor": number(one.floor), f"{head} ratio": one.over(one.floor)}
    return row


def exact_row(records: Records, found: Mapping[Place, Entry], name: str, method: str) -> dict[str, str]:
    """Return a row of exact distances, and of what was counted."""
    row = {"method": METHODS[method].label}
    for metric, head in (("exact_w1", "exact W1"), ("exact_w2", "exact W2")):
        one = found[Place(name, method, metric)]
        row |= {head: str(one), f"{head} ratio": one.over(one.floor)}
    for key, head in COUNTED.items():
        counts = [run[key] for run in records.where("rows", dataset=name, method=method) if run.get(key) is not None]
        row[head] = f"{mean(counts):.3g}" if counts else ""
    return row


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


def best_rows(found: Mapping[Place, Entry]) -> list[Best]:
    """Return the best row of every dataset, and the best of independent draws."""
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


def two_sample_results(records: Records) -> list[dict[str, Any]]:
    """Return how often draws of a row could not be distinguished from fresh samples."""
    answer = []
    for name, title in TITLES.items():
        for method in records.settings["tested"]:
            p = [run["p_value"] for run in records.where("test", dataset=name, method=method)]
            fits = len({run["seed"] for run in records.where("test", dataset=name)})
            one = {"title": title, "label": METHODS[method].label, "passed": sum(value > LEVEL for value in p)}
            answer += [one | {"count": len(p), "fits": fits, "mild": method in NOT_INDEPENDENT}] if p else []
    return answer


def missing_seeds(records: Records) -> dict[str, list[int]]:
    """Return the seeds of the preset that are not there yet, by dataset."""
    there = {(record["dataset"], record["seed"]) for record in records.kinds["records"]}
    seeds = records.settings["seeds"]
    missing = {title: [seed for seed in seeds if (name, seed) not in there] for name, title in TITLES.items()}
    return {title: seeds for title, seeds in missing.items() if seeds}


def excerpt(found: Mapping[Place, Entry]) -> str:
    """Return W1 of the paper's rows and of the best of ours."""
    rows = []
    for name, title in TITLES.items():
        there = {method: found[p] for method in METHODS if (p := Place(name, method, "w1")) in found}
        if there:
            best = min((m for m in there if m not in OUTSIDERS), key=lambda method: there[method].mean)
            paper = {METHODS[m].label: f"{there[m]} ({there[m].paper:g})" if m in there else "" for m in PAPER_METHODS}
            last = {"best of all rows": f"{there[best]}, {METHODS[best].label}", "floor": number(there[best].floor)}
            rows.append({"dataset": title, **paper, **last})
    return table(rows)


def numbers(records: Records) -> dict[str, Any]:
    """Return what the template needs."""
    found = entries(records)
    compared = compared_with_paper(records)
    return {
        "count": len(compared),
        "unsettled": [described(place, entry) for place, entry in compared.items() if entry.mean <= 0],
        "best": best_rows(found),
        "near": NEAR_FLOOR,
        "tests": two_sample_results(records),
        "test_points": TEST_POINTS,
        "missing": missing_seeds(records),
        "datasets": {n: dataset_numbers(records, found, n) for n in TITLES if any(p.dataset == n for p in found)},
        "json": json.dumps(records.settings, indent=1),
        "excerpt": excerpt(found),
    }


def pictures(records: Records, folder: Path, docs: Path) -> None:
    """Draw the samples of rows beside fresh ones."""
    seed = records.settings["seeds"][0]
    for name in {record["dataset"]: None for record in records.kinds["metrics"]}:
        problem = Problem(name, seed, folder)
        there = [m for m in PICTURED if records.where("metrics", dataset=name, method=m, seed=seed)]
        panels = {"Fresh samples": problem.fresh(DOTS)}
        panels |= {METHODS[m].label: load_file(problem.path("draws", m))["draws"][:DOTS] for m in there}
        w1 = [number_and_spread(records.values("metrics", "w1", dataset=name, method=m)) for m in there]
        draw = plots.scatter_panels if problem.x.shape[1] == 2 else plots.space_panels
        captions = ["", *(f"W1 {one}" for one in w1)]
        draw(panels, docs / f"table1_{name}.png", captions=captions, title=TITLES[name])
