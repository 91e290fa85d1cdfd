"""How good are acceptance rules: their bias and cost, and what a learned one reaches for its training time."""

import math
from collections import ChainMap
from pathlib import Path

from scipy import stats

from scoremh import ThroughNoise
from scoremh._shared import checks
from studies import plots
from studies.acceptance import exactness, laws
from studies.acceptance.cells import Config, score_of_moons, stages
from studies.acceptance.rules import BIAS_PROPOSALS, BOTH, COMPARED, FORMS, LEARNED, PROPOSALS, RULES, UNTRAINED
from studies.framework import Records, Study
from studies.framework.tables import mean, spread


def prepare(config: Config, folder: Path) -> None:
    """Learn the score that all cells use."""
    score_of_moons(config, folder)


def errors(records: Records, form: str, walk: str) -> dict[int, list[float]]:
    """Return the errors of a form by budget, a number for every seed."""
    trained = BOTH if form == "potential" else walk
    there = {b: records.where("quality", form=form, proposal=trained, budget=b) for b in records.settings["budgets"]}
    return {budget: [record["errors"][walk] for record in found] for budget, found in there.items()}


def bias(records: Records) -> dict[str, str]:
    """Return the entries of the table by rule: score calls, distance and acceptance for both proposals."""
    found = {}
    for rule in (*RULES, *(f"{form}, metropolis" for form in LEARNED)):
        there = [one for walk in BIAS_PROPOSALS for one in records.where("bias", rule=rule, proposal=walk)]
        digits = {"calls": ".2g", "distance": ".3f", "acceptance": ".2f"}
        calls, distance, rate = (", ".join(f"{r[key]:{spec}}" for r in there) for key, spec in digits.items())
        found[rule] = f"{calls} | {distance} | {rate}"
    return found


def least_error(records: Records, form: str, walk: str) -> str:
    """Return the least error of a form over budgets, and the budget."""
    error, budget = min((mean(values), budget) for budget, values in errors(records, form, walk).items())
    return f"{error:.4f} ({FORMS[form]}, {budget} s)"  # type: ignore[index]


def distance_by_chance(chains: int, exact: int) -> float:
    """Return the distance of exact draws that is exceeded in 5 % of cases, of two coordinates taken for independent."""
    return float(stats.kstwobign.ppf(math.sqrt(0.95)) * math.sqrt(1 / chains + 1 / exact))


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw the error over the time of training."""
    panels: dict[str, dict[str, plots.Curve]] = {}
    levels: dict[str, dict[str, float]] = {}
    for walk, proposal in PROPOSALS.items():
        head, lines = checks.named(proposal), {form: errors(records, form, walk) for form in FORMS}
        panels[head] = {
            form: (list(there), list(map(mean, there.values())), list(map(spread, there.values())))
            for form, there in lines.items()
        }
        (untrained,) = records.where("untrained", proposal=walk)
        levels[head] = {name: untrained[name] for name in UNTRAINED}
    plots.curve_panels(
        panels,
        docs / "acceptance_quality.png",
        labels=("CPU seconds of training", "mean error of the acceptance"),
        levels=levels,
        log=True,
        title="Learned acceptances on Moons, against a line integral with 16 nodes",
    )


STUDY = Study(
    "acceptance",
    "how good acceptance rules are: bias, cost, and what learned ones reach for their training time",
    Config(),
    stages,
    picture,
    ChainMap(globals(), vars(exactness), vars(laws), {"ThroughNoise": ThroughNoise, "COMPARED": COMPARED}),
    prepare=prepare,
    page="acceptance.md",
    excerpts={"../README.md": "acceptance-excerpt.md"},
)
