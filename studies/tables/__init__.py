"""How near does `ScoreMH` come to tables, beside what one would use instead?"""

import inspect
from pathlib import Path

from scoremh.estimator import table
from studies import plots
from studies.framework import Claim, Record, Records, Study
from studies.tables.cells import METHODS, OURS, Config, stages
from studies.tables.data import TABLES

detection_rules = "\n\n".join((inspect.getdoc(table.find_column) or "").split("\n\n")[1:3])  # of the docstring
MIN_CLASSIFIED_ROWS = 2000
MAX_W1, MAX_OVER_PEER, MAX_C2ST, MAX_BEYOND, MAX_SECONDS = 1.15, 1.05, 0.02, 0.005, 120.0
MIN_P = 0.05


def draws(records: Records, name: str, method: str = OURS) -> Record:
    """Return the record of a method's draws."""
    (found,) = records.where("draws", table=name, method=method)
    return found


def fresh(records: Records, name: str) -> Record:
    """Return the record of fresh rows."""
    (found,) = records.where("floor", table=name)
    return found


def ratio(records: Records, name: str, method: str = OURS, key: str = "w1") -> float:
    """Return W1 over the floor."""
    return float(draws(records, name, method)[key] / fresh(records, name)["w1"])


def near_the_floor(records: Records) -> dict[str, bool]:
    """Return on which tables W1 is at most 1.15 times the floor."""
    return {TABLES[name].title: ratio(records, name) <= MAX_W1 for name in records.settings["tables"]}


def not_behind_peers(records: Records) -> dict[str, bool]:
    """Return on which tables W1 is at most 5 % above that of the kernel density estimate and of the spline flow."""
    return {
        TABLES[name].title: ratio(records, name)
        <= MAX_OVER_PEER * min(ratio(records, name, method) for method in ("kernel", "spline flow"))
        for name in records.settings["tables"]
    }


def not_told_apart_better_than_fresh(records: Records) -> dict[str, bool]:
    """Return on which tables a classifier is at most .02 better with our draws than with fresh rows."""
    return {
        TABLES[name].title: draws(records, name)["c2st"] - fresh(records, name)["c2st"] <= MAX_C2ST
        for name in records.settings["tables"]
    }


def not_told_apart(records: Records) -> dict[str, bool]:
    """Return on which tables of 2,000 rows or more a classifier tells draws from rows at most .02 better than a guess.

    On fresh rows a classifier has accuracy 1/2, with a standard error of .011 at this number of rows.
    """
    large = [name for name in records.settings["tables"] if TABLES[name].rows >= MIN_CLASSIFIED_ROWS]
    return {TABLES[name].title: draws(records, name)["c2st"] - 0.5 <= MAX_C2ST for name in large}


def within_the_range(records: Records) -> dict[str, bool]:
    """Return on which tables at most .5 % more of our draws than of fresh rows lie beyond the range."""
    return {
        TABLES[name].title: draws(records, name)["beyond"] - fresh(records, name)["beyond"] <= MAX_BEYOND
        for name in records.settings["tables"]
    }


def longer(records: Records, name: str) -> float:
    """Return W1 with ten times the steps over W1 with the usual number."""
    one = draws(records, name)
    return float(one["w1_long"] / one["w1_short"])


def no_bound_broken(records: Records) -> dict[str, bool]:
    """Return on which tables with bounds no draw of ours breaks one."""
    bounded = [name for name in records.settings["tables"] if TABLES[name].bounds]
    return {TABLES[name].title: draws(records, name)["broken"] == 0 for name in bounded}


def row(records: Records, name: str) -> list[str]:
    """Return the entries of a table's row on the page; the least W1 is bold."""
    one, other = draws(records, name), fresh(records, name)
    found = [ratio(records, name, method) for method in METHODS]
    found.insert(1, ratio(records, name, key="w1_flow"))
    return [
        *(f"**{value:.2f}**" if value == min(found) else f"{value:.2f}" for value in found),
        f"{one['c2st']:.3f} ({other['c2st']:.3f})",
        f"{one['beyond']:.1%} ({other['beyond']:.1%})",
        f"{longer(records, name):.2f}",
        f"{one['p_value']:.3f}".lstrip("0"),
        f"{one['fit_seconds']:.0f}",
    ]


def broken(records: Records, method: str) -> float:
    """Return the largest share of draws of a method that break a bound, over tables with bounds."""
    bounded = [name for name in records.settings["tables"] if TABLES[name].bounds]
    return max((draws(records, name, method)["broken"] for name in bounded), default=0.0)


CLAIMS = {
    "floor": Claim("W1 is at most 1.15 times the floor", near_the_floor),
    "peers": Claim(
        "W1 is at most 5 % above that of the kernel density estimate and of the spline flow", not_behind_peers
    ),
    "classifier": Claim("with 2,000 rows or more, a classifier is at most .02 better than chance", not_told_apart),
    "fresh": Claim("a classifier is at most .02 better than with fresh rows", not_told_apart_better_than_fresh),
    "test": Claim(
        "a two-sample test has p > .05",
        lambda records: {TABLES[n].title: draws(records, n)["p_value"] > MIN_P for n in records.settings["tables"]},
    ),
    "range": Claim("at most .5 % more draws than fresh rows lie beyond the range", within_the_range),
    "steps": Claim(
        "ten times the steps make W1 at most 5 % larger",
        lambda records: {TABLES[n].title: longer(records, n) <= MAX_OVER_PEER for n in records.settings["tables"]},
    ),
    "bounds": Claim("no draw breaks a bound", no_bound_broken),
    "time": Claim(
        "a fit of 10,000 rows x 10 columns takes at most 120 CPU seconds",
        lambda records: max(records.values("time", "seconds")) <= MAX_SECONDS,
    ),
}


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw W1 over its floor, table by table."""
    rows = {
        TABLES[name].title: {method: [ratio(records, name, method)] for method in METHODS}
        for name in records.settings["tables"]
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
__all__ = ["STUDY", "broken", "row"]
