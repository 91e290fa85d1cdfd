"""How good are learned acceptances, for the time they take to train, beside rules that take none?"""

import math
from collections import ChainMap
from itertools import product
from pathlib import Path

from scipy import stats

from scoremh import ThroughNoise
from scoremh._shared import checks
from scoremh.balance_matching import MATCHING
from studies import plots
from studies.acceptance import exactness
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
from studies.framework import Claim, Record, Records, Study
from studies.framework.tables import mean, spread
from studies.learning import DATASETS, learned_score

PRESETS = {"paper": Config()}
MAX_DIFFERING = 0.05  # share of decisions


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


def decisions(records: Records) -> list[Record]:
    """Return, by dataset, proposal and rule, how often decisions differ from the adaptive line integral's."""
    found: list[Record] = []
    for dataset, walk in product(DATASETS, WALKS):
        place = {"dataset": dataset, "proposal": checks.named(PROPOSALS[dataset][walk])}
        for form in FORMS:
            trained = BOTH if form == "potential" else walk
            for record in records.where("decisions", dataset=dataset, proposal=trained, form=form):
                found.append({**place, "rule": form, "seconds": record["seconds"], **record[walk]})
        found += [{**place, "rule": "Simpson", **one[walk]} for one in records.where("simpson", dataset=dataset)]
    return found


def decide_alike(records: Records) -> dict[str, bool]:
    """Return which learned rules decide as the adaptive line integral does in all but 5 % of cases."""
    learned = [one for one in decisions(records) if one["rule"] in FORMS]
    return {f"{one['dataset']}, {one['proposal']}, {one['rule']}": one["rate"] < MAX_DIFFERING for one in learned}


def bias(records: Records) -> dict[str, str]:
    """Return the entries of the table by rule: score calls, training, distance and acceptance for both proposals."""
    found = {}
    for rule in (*RULES, *LEARNED):
        there = [one for walk in BIAS_PROPOSALS for one in records.where("bias", rule=rule, proposal=walk)]
        digits = {"calls": ".2g", "distance": ".3f", "acceptance": ".2f"}
        calls, distance, rate = (", ".join(f"{r[key]:{spec}}" for r in there) for key, spec in digits.items())
        found[rule] = f"{calls} | {training_time(records, rule)} | {distance} | {rate}"
    return found


def training_time(records: Records, rule: str) -> str:
    """Return how long trainings of a rule took by the defaults; nothing where it was trained in another way."""
    if rule in RULES:
        return "none"
    form, _, matching = LEARNED[rule]
    seconds = records.values("decisions", "seconds", form=form)
    return f"{min(seconds):.0f} to {max(seconds):.0f}" if seconds and matching == MATCHING[form] else ""


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
    ChainMap(globals(), vars(exactness), {"ThroughNoise": ThroughNoise}),
    {"alike": Claim("learned rules decide as the adaptive line integral does in 95 % of cases", decide_alike)},
    prepare=prepare,
    page="acceptance.md",
    partial=True,
    excerpts={"../README.md": "acceptance-excerpt.md"},
)
