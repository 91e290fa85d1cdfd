"""How near does `ScoreMH` come to tables, beside what one would use instead?"""

import inspect
from pathlib import Path

from scoremh.estimator import table
from studies import plots
from studies.framework import Claim, Records, Study
from studies.framework.tables import mean, over_seeds
from studies.tables.cells import METHODS, OURS, Config, stages
from studies.tables.data import TABLES

detection_rules = "\n\n".join((inspect.getdoc(table.find_column) or "").split("\n\n")[1:3])  # of the docstring
MIN_CLASSIFIED_ROWS = 2000
MAX_W1, MAX_OVER_PEER, MAX_C2ST, MAX_BEYOND, MAX_SECONDS = 1.15, 1.05, 0.02, 0.005, 120.0
MIN_P = 0.05


def present(records: Records) -> list[str]:
    """Return the tables of which floor and our draws were computed, in order."""
    both = [
        {one["table"] for one in records.where("floor")},
        {one["table"] for one in records.where("draws", method=OURS)},
    ]
    return [name for name in TABLES if all(name in found for found in both)]


def ratios(records: Records, table: str, method: str) -> list[float]:
    """Return W1 over the floor for every seed that has both."""
    floors = {one["seed"]: one["w1"] for one in records.where("floor", table=table)}
    there = records.where("draws", table=table, method=method)
    return [one["w1"] / floors[one["seed"]] for one in there if one["seed"] in floors]


def excess(records: Records, table: str, key: str) -> list[float]:
    """Return by how much a number of our draws is above that of fresh rows, for every seed that has both."""
    floors = {one["seed"]: one[key] for one in records.where("floor", table=table)}
    there = records.where("draws", table=table, method=OURS)
    return [one[key] - floors[one["seed"]] for one in there if one["seed"] in floors]


def near_the_floor(records: Records) -> dict[str, bool]:
    """Return on which tables W1 is at most 1.15 times the floor."""
    return {TABLES[name].title: mean(ratios(records, name, OURS)) <= MAX_W1 for name in present(records)}


def not_behind_peers(records: Records) -> dict[str, bool]:
    """Return on which tables W1 is at most 5 % above that of the kernel density estimate and of the spline flow."""
    found = {}
    for name in present(records):
        peers = [ratios(records, name, method) for method in ("kernel", "spline flow")]
        ours = mean(ratios(records, name, OURS))
        found[TABLES[name].title] = all(ours <= MAX_OVER_PEER * mean(peer) for peer in peers if peer)
    return found


def not_told_apart_better_than_fresh(records: Records) -> dict[str, bool]:
    """Return on which tables a classifier is at most .02 better with our draws than with fresh rows."""
    return {TABLES[name].title: mean(excess(records, name, "c2st")) <= MAX_C2ST for name in present(records)}


def not_told_apart(records: Records) -> dict[str, bool]:
    """Return on which tables of 2,000 rows or more a classifier tells draws from rows at most .02 better than a guess.

    On fresh rows a classifier has accuracy 1/2, with a standard error of .011 at this number of rows.
    """
    return {
        TABLES[name].title: mean(records.values("draws", "c2st", table=name, method=OURS)) - 0.5 <= MAX_C2ST
        for name in present(records)
        if TABLES[name].rows >= MIN_CLASSIFIED_ROWS
    }


def within_the_range(records: Records) -> dict[str, bool]:
    """Return on which tables at most .5 % more of our draws than of fresh rows lie beyond the range."""
    return {TABLES[name].title: mean(excess(records, name, "beyond")) <= MAX_BEYOND for name in present(records)}


def no_worse_with_more_steps(records: Records) -> dict[str, bool]:
    """Return on which tables ten times the steps are no worse, up to 5 % of chance."""
    found = {}
    for name in present(records):
        there = [one for one in records.where("draws", table=name, method=OURS) if "w1_long" in one]
        if there:
            found[TABLES[name].title] = mean([one["w1_long"] / one["w1_short"] for one in there]) <= MAX_OVER_PEER
    return found


def no_bound_broken(records: Records) -> dict[str, bool]:
    """Return on which tables with bounds no draw of ours breaks one."""
    found = {}
    for name in present(records):
        if TABLES[name].bounds:
            there = [*records.where("draws", table=name, method=OURS), *records.where("many", table=name)]
            found[TABLES[name].title] = all(one["broken"] == 0 for one in there)
    return found


def fast_enough(records: Records) -> bool:
    """Return whether the fit takes at most 120 CPU seconds."""
    return all(one["seconds"] <= MAX_SECONDS for one in records.where("time"))


def not_told_apart_by_a_test(records: Records) -> dict[str, bool]:
    """Return on which tables a two-sample test has p > .05 for more than half of the seeds."""
    found = {}
    for name in present(records):
        there = [one["p_value"] for one in records.where("draws", table=name, method=OURS) if "p_value" in one]
        if there:
            found[TABLES[name].title] = sum(p > MIN_P for p in there) > len(there) / 2
    return found


def flow_ratios(records: Records, table: str) -> list[float]:
    """Return W1 of the flow alone over the floor, for every seed that has both."""
    floors = {one["seed"]: one["w1"] for one in records.where("floor", table=table)}
    there = records.where("draws", table=table, method=OURS)
    return [one["w1_flow"] / floors[one["seed"]] for one in there if "w1_flow" in one and one["seed"] in floors]


def row(records: Records, table: str) -> list[str]:
    """Return the entries of a table's row on the page; empty where something was not computed."""
    ours = records.where("draws", table=table, method=OURS)
    floors = records.where("floor", table=table)
    longer = [one["w1_long"] / one["w1_short"] for one in ours if "w1_long" in one]
    found = [ratios(records, table, method) for method in METHODS]
    found.insert(1, flow_ratios(records, table))
    best = min(mean(one) for one in found if one)
    return [
        *(("**{}**" if one and mean(one) == best else "{}").format(f"{mean(one):.2f}" if one else "") for one in found),
        f"{mean([one['c2st'] for one in ours]):.3f} ({mean([one['c2st'] for one in floors]):.3f})",
        f"{mean([one['beyond'] for one in ours]):.1%} ({mean([one['beyond'] for one in floors]):.1%})",
        over_seeds(longer, 2),
        p_values(ours, "p_value"),
        f"{mean([one['fit_seconds'] for one in ours]):.0f}",
    ]


def p_values(found: list[dict[str, float]], key: str) -> str:
    """Return the p-values of every seed that has one."""
    return ", ".join(f"{one[key]:.3f}".lstrip("0") for one in found if key in one)


def missing(records: Records) -> list[str]:
    """Return the tables that were not computed."""
    return [known.title for name, known in TABLES.items() if name not in present(records)]


def broken(records: Records, method: str) -> float:
    """Return the largest share of draws of a method that break a bound, over tables with bounds."""
    names = {name for name in present(records) if TABLES[name].bounds}
    return max((one["broken"] for one in records.where("draws", method=method) if one["table"] in names), default=0.0)


CLAIMS = {
    "floor": Claim("W1 is at most 1.15 times the floor", near_the_floor),
    "peers": Claim(
        "W1 is at most 5 % above that of the kernel density estimate and of the spline flow", not_behind_peers
    ),
    "classifier": Claim("with 2,000 rows or more, a classifier is at most .02 better than chance", not_told_apart),
    "fresh": Claim("a classifier is at most .02 better than with fresh rows", not_told_apart_better_than_fresh),
    "test": Claim("a two-sample test has p > .05 for most seeds", not_told_apart_by_a_test),
    "range": Claim("at most .5 % more draws than fresh rows lie beyond the range", within_the_range),
    "steps": Claim("ten times the steps make W1 at most 5 % larger", no_worse_with_more_steps),
    "bounds": Claim("no draw breaks a bound", no_bound_broken),
    "time": Claim("a fit of 10,000 rows x 10 columns takes at most 120 CPU seconds", fast_enough),
}


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw W1 over its floor, table by table."""
    rows = {
        TABLES[name].title: {method: found for method in METHODS if (found := ratios(records, name, method))}
        for name in present(records)
    }
    plots.dot_rows(rows, docs / "tables.png", label="W1 over the floor of fresh rows", level=1.0)


STUDY = Study(
    "tables",
    "how near ScoreMH comes to tables, beside what one would use instead",
    Config(),
    stages,
    picture,
    globals(),
    CLAIMS,
    page="tables.md",
)
__all__ = ["METHODS", "STUDY", "broken", "missing", "row"]
