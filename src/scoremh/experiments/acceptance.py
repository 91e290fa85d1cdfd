"""How good are learned acceptances, for the time they take to train, beside rules that take none?

Fills in the tables of `docs/acceptance.md` and draws its pictures.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from scipy import stats

from scoremh import plots
from scoremh._shared import checks
from scoremh.balance_matching import MATCHING
from scoremh.experiments import _acceptance_cells as measured
from scoremh.experiments._cells import SEPARATOR, fill_in, known, markdown, over_seeds, spread
from scoremh.experiments._figures import preset_file, versions, write

PRESETS = {"paper": measured.SEEDS}
GOAL = 0.05  # decisions that may differ


def _over_seeds(values: Sequence[float]) -> str:
    """Return mean and standard deviation, or nothing where not all seeds are there."""
    return over_seeds(values, 4) if len(values) == len(measured.SEEDS) else ""


def errors(cells: Mapping[str, Any], form: str, pairs: str, walk: str, budget: int) -> list[float]:
    """Return the error of a form after a budget, for the seeds that are there."""
    trained = "both" if form == "potential" else walk
    names = [SEPARATOR.join(["quality", form, pairs, trained, str(budget), str(seed)]) for seed in measured.SEEDS]
    return [cells[name]["errors"][walk] for name in names if name in cells]


def _complete(cells: Mapping[str, Any], form: str, pairs: str, walk: str) -> dict[int, list[float]]:
    """Return the errors of a form by budget, where all seeds are there."""
    found = {budget: errors(cells, form, pairs, walk, budget) for budget in measured.BUDGETS}
    return {budget: there for budget, there in found.items() if len(there) == len(measured.SEEDS)}


def sections(cells: Mapping[str, Any], free_of_training: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Return what the page says of the cells, by the name of the place where it goes."""
    walks = list(measured.PROPOSALS["moons"])
    table = [["", *(f"{walk}, {budget} s" for walk in walks for budget in measured.BUDGETS)]]
    means: dict[str, dict[str, float]] = {walk: {} for walk in walks}
    for kind in measured.KINDS:
        row = [errors(cells, *kind, walk, budget) for walk in walks for budget in measured.BUDGETS]
        table.append([", ".join(kind), *map(_over_seeds, row)])
        for walk in walks:
            for budget, there in _complete(cells, *kind, walk).items():
                means[walk][f"{', '.join(kind)} after {budget} s"] = statistics.mean(there)
    for name in measured.UNTRAINED:
        table.append([name, *(f"{free_of_training[walk][name]:.4f}" for walk in walks for _ in measured.BUDGETS)])
    best = [
        f"{walk}: {(name := min(found, key=found.__getitem__))} with {found[name]:.4f}"
        for walk, found in means.items()
        if found
    ]
    return {
        "quality": f"{markdown(table)}\n\nThe least error of a learned form, {'; '.join(best)}. "
        f"The CPU seconds that trainings took: {_taken(cells)}.",
        "decisions": _decisions(cells),
        "rules": _rules(cells),
    }


def _taken(cells: Mapping[str, Any]) -> str:
    """Say how near to their budgets trainings came."""
    seconds: dict[str, list[float]] = {}
    for name, cell in cells.items():
        kind, *words = name.split(SEPARATOR)
        if kind == "quality":
            seconds.setdefault(words[3], []).append(cell["seconds"])
    return ", ".join(f"{min(taken):.0f} to {max(taken):.0f} for {budget}" for budget, taken in seconds.items())


def _decisions(cells: Mapping[str, Any]) -> str:
    head = ["law, proposal", "rule", "training, s", "decisions that differ", "acceptance: rule, integral", "direct"]
    rows = [[*head, "rms of D_a - log r"]]
    for law in measured.LAWS:
        for walk, proposal in measured.PROPOSALS[law].items():
            where = f"{law}, {checks.named(proposal)}"
            for form in ("potential", "antisymmetric", "free"):
                name = SEPARATOR.join(["decisions", law, "both" if form == "potential" else walk, form])
                if name in cells:
                    cell = cells[name][walk]
                    numbers = [f"{cell['direct']:.3f}", f"{cell['residual']:.2f}"]
                    rows.append([where, form, f"{cells[name]['seconds']:.0f}", *_alike(cell), *numbers])
            if untrained := cells.get(f"simpson / {law}"):
                rows.append([where, "Simpson", "none", *_alike(untrained[walk]), "", ""])
    return markdown(rows)


def _alike(cell: Mapping[str, Any]) -> list[str]:
    """Return the decisions that differ, bold where they are many, and both rates of acceptance."""
    rate = f"{cell['rate']:.2%}"
    first, second = cell["accepted"]
    return [rate if cell["rate"] < GOAL else f"**{rate}**", f"{first:.3f}, {second:.3f}"]


def _rules(cells: Mapping[str, Any]) -> str:
    """Return every rule with its cost, its bias, what it needs and where it fails."""
    head = ["rule", "needs", "score calls a step", "training, s", "bias: distance", "acceptance", "fails"]
    rows = [head]
    for name in (*measured.RULES, *measured.LEARNED):
        there = [cell for move in measured.MOVES if (cell := cells.get(f"bias / {name} / {move}"))]
        calls, distances, accepted = (
            ", ".join(f"{cell[key]:{digits}}" for cell in there)
            for key, digits in (("calls", ".2g"), ("distance", ".3f"), ("acceptance", ".2f"))
        )
        row = measured.RULES.get(name) or measured.LEARNED[name]
        rows.append([name, row.needs, calls, _training(cells, row), distances, accepted, row.fails])
    floor = next(cell["floor"] for name, cell in cells.items() if name.startswith("bias"))
    spread = math.sqrt(1 / measured.CHAINS + 1 / measured.EXACT)  # of two coordinates, taken for independent
    chance = stats.kstwobign.ppf(math.sqrt(0.95)) * spread
    return (
        f"{markdown(rows)}\n\nThe exact draws that the chains start from have a distance of {floor:.3f}; by chance it "
        f"is up to {chance:.3f} in 95 of 100 cases, and what lies below that cannot be ranked. One seed."
    )


def _training(cells: Mapping[str, Any], row: measured.Untrained | measured.Trained) -> str:
    """Return how long trainings of a form took, by the defaults; nothing where they were others."""
    if isinstance(row, measured.Untrained):
        return "none"
    if row.matching != MATCHING[row.form]:
        return ""
    seconds = [
        cell["seconds"]
        for name, cell in cells.items()
        if name.startswith("decisions") and name.endswith(f" {row.form}")
    ]
    return f"{min(seconds):.0f} to {max(seconds):.0f}" if seconds else ""


def pictures(cells: Mapping[str, Any], free_of_training: Mapping[str, Mapping[str, float]], docs: Path) -> None:
    """Draw quality for time."""
    panels: dict[str, dict[str, plots.Curve]] = {}
    for walk, proposal in measured.PROPOSALS["moons"].items():
        lines: dict[str, plots.Curve] = {}
        for kind in measured.KINDS:
            there = _complete(cells, *kind, walk)
            means, spreads = map(statistics.mean, there.values()), map(spread, there.values())
            lines[", ".join(kind)] = ([float(budget) for budget in there], list(means), list(spreads))
        panels[checks.named(proposal)] = lines
    levels = {checks.named(proposal): free_of_training[walk] for walk, proposal in measured.PROPOSALS["moons"].items()}
    plots.curve_panels(
        panels,
        docs / "acceptance_quality.png",
        labels=("CPU seconds of training", "mean error of the acceptance"),
        levels=levels,
        log=True,
        families={", ".join(kind): kind for kind in measured.KINDS},
        title="Learned acceptances on Moons, against a line integral with 16 nodes",
    )


def run(preset: str, out: Path, docs: Path | None = None, *, workers: int | None = None, as_is: bool = False) -> None:
    """Compute what is missing, fill in the page where there is one, and draw its pictures.

    Args:
        preset: "paper", the only one.
        out: Folder for fits and results.
        docs: Folder of `acceptance.md` and its pictures.
        workers: Trainings at the same time.
        as_is: Compute nothing, and write the page from the cells that are there.
    """
    folder = out / "acceptance"
    torch.set_num_threads(1)
    cells = known(folder / measured.CELLS_FILE) if as_is else measured.run(folder, workers=workers)
    free_of_training = measured.untrained(folder)
    docs = folder if docs is None else docs
    settings = {"preset": preset, "seeds": measured.SEEDS, "budgets": measured.BUDGETS, "versions": versions()}
    names = [name for task in measured.tasks() if (name := SEPARATOR.join(task)) in cells]
    kept = {name: {key: part for key, part in cells[name].items() if key != "held_out"} for name in names}
    write({"settings": settings, "untrained": free_of_training, "cells": kept}, preset_file(docs, "acceptance", preset))
    pictures(cells, free_of_training, docs)
    fill_in(docs / "acceptance.md", sections(cells, free_of_training))
