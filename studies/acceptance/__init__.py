"""How good are learned acceptances, for the time they take to train, beside rules that take none?"""

import math
from collections import ChainMap
from itertools import product
from pathlib import Path

from scipy import stats

from scoremh import ThroughNoise
from scoremh._shared import checks
from studies import plots
from studies.acceptance import elsewhere, exactness
from studies.acceptance.cells import KINDS, Config, stages
from studies.acceptance.rules import (
    BIAS_PROPOSALS,
    BOTH,
    FORMS,
    LEARNED,
    PAIRS,
    PROPOSALS,
    RULES,
    UNTRAINED,
    WALKS,
)
from studies.framework import Record, Records, Study
from studies.framework.tables import mean, spread
from studies.learning import DATASETS, learned_score

PRESETS = {"paper": Config()}


def prepare(config: Config, folder: Path) -> None:
    """Learn the scores that all cells use."""
    for dataset in DATASETS:
        learned_score(dataset, folder, samples=config.samples)


def errors(records: Records, form: str, pairs: str, walk: str) -> dict[int, list[float]]:
    """Return the errors of a form by budget, where all seeds are there."""
    trained = BOTH if form == "potential" else walk
    found = {}
    for budget in records.settings["budgets"]:
        there = records.where("quality", form=form, pairs=pairs, proposal=trained, budget=budget)
        if len(there) == len(records.settings["seeds"]):
            found[budget] = [record["errors"][walk] for record in there]
    return found


def least_errors(records: Records) -> dict[str, Record]:
    """Return the learned form with the least error by proposal."""
    found: dict[str, list[Record]] = {walk: [] for walk in WALKS}
    for walk, form, pairs in product(WALKS, FORMS, PAIRS):
        for budget, there in errors(records, form, pairs, walk).items():
            found[walk].append({"form": form, "pairs": pairs, "budget": budget, "error": mean(there)})
    return {walk: min(every, key=lambda one: one["error"]) for walk, every in found.items() if every}


def bias(records: Records) -> dict[str, str]:
    """Return the entries of the table by rule: score calls, distance and acceptance for both proposals."""
    found = {}
    for rule in (*RULES, *LEARNED):
        there = [one for walk in BIAS_PROPOSALS for one in records.where("bias", rule=rule, proposal=walk)]
        digits = {"calls": ".2g", "distance": ".3f", "acceptance": ".2f"}
        calls, distance, rate = (", ".join(f"{r[key]:{spec}}" for r in there) for key, spec in digits.items())
        found[rule] = f"{calls} | {distance} | {rate}"
    return found


def least_error(records: Records, form: str, walk: str) -> str:
    """Return the least error of a form over pairings and budgets, and how it was trained; nothing if it was not."""
    found = [
        (mean(values), pairs, budget)
        for pairs in PAIRS
        for budget, values in errors(records, form, pairs, walk).items()
    ]
    if not found:
        return ""
    error, pairs, budget = min(found)
    return f"{error:.4f} ({pairs}, {budget} s)"


def seconds_taken(records: Records) -> dict[int, tuple[float, float]]:
    """Return the shortest and the longest training of every budget, in CPU seconds."""
    taken = {budget: records.values("quality", "seconds", budget=budget) for budget in records.settings["budgets"]}
    return {budget: (min(seconds), max(seconds)) for budget, seconds in taken.items() if seconds}


def distance_by_chance(chains: int, exact: int) -> float:
    """Return the distance of exact draws that is exceeded in 5 % of cases, of two coordinates taken for independent."""
    return float(stats.kstwobign.ppf(math.sqrt(0.95)) * math.sqrt(1 / chains + 1 / exact))


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw the error over the time of training."""
    panels: dict[str, dict[str, plots.Curve]] = {}
    for walk, proposal in PROPOSALS["moons"].items():
        lines: dict[str, plots.Curve] = {}
        for kind in product(FORMS, PAIRS):
            there = errors(records, *kind, walk)
            times, means = [float(budget) for budget in there], [mean(values) for values in there.values()]
            lines[", ".join(kind)] = (times, means, [spread(values) for values in there.values()])
        panels[checks.named(proposal)] = lines
    untrained = {record["proposal"]: record for record in records.kinds["untrained"]}
    plots.curve_panels(
        panels,
        docs / "acceptance_quality.png",
        labels=("CPU seconds of training", "mean error of the acceptance"),
        levels={checks.named(PROPOSALS["moons"][w]): {n: untrained[w][n] for n in UNTRAINED} for w in WALKS},
        log=True,
        families={", ".join(kind): kind for kind in product(FORMS, PAIRS)},
        title="Learned acceptances on Moons, against a line integral with 16 nodes",
    )


STUDY = Study(
    "acceptance",
    "how good learned acceptances are, for the time they take to train, beside rules that take none",
    PRESETS,
    stages,
    KINDS,
    picture,
    ChainMap(
        globals(), vars(exactness), {"ELSEWHERE_RULES": elsewhere.RULES, "ThroughNoise": ThroughNoise}, vars(elsewhere)
    ),
    prepare=prepare,
    page="acceptance.md",
    partial=True,
    excerpts={"../README.md": "acceptance-excerpt.md"},
)
