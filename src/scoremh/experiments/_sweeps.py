"""Rules of acceptance over a range of MALA's steps, on one dataset: what three of the paper's figures have in common.

Scores, starts, chains and judging are those of Table 1 (`_table1_rows`).
"""

import math
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from scoremh import Always, DegenerateRuleWarning, LineIntegral, Taylor, fit_acceptance, plots
from scoremh.balance_matching import RECIPE, FormName
from scoremh.experiments import _figures as figures
from scoremh.experiments import _table1_rows as rows_of
from scoremh.experiments._cells import SEPARATOR, Task, known, markdown, spread
from scoremh.experiments._figures import Found, where
from scoremh.experiments._table1_cells import distances, floor
from scoremh.experiments._table1_page import Cell, number
from scoremh.experiments._table1_rows import Problem, seeded
from scoremh.types import Acceptance


class Rule(NamedTuple):
    """A line of the figure: a rule, or the form of one that is learned."""

    words: str
    rule: Acceptance | None = None
    form: FormName | None = None


RULES = {
    "ula": Rule("ULA", Always()),
    "taylor1": Rule("Taylor-1", Taylor(1)),
    "taylor1_averaged": Rule("Taylor-1, averaged", Taylor(1, average=True)),
    "taylor2": Rule("Taylor-2", Taylor(2)),
    "taylor2_averaged": Rule("Taylor-2, averaged", Taylor(2, average=True)),
    "simpson": Rule("Simpson", LineIntegral()),
    "gauss3": Rule("Gauss, 3 nodes", LineIntegral("gauss", nodes=3)),
    "score_mala": Rule("Score MALA, free", form="free"),
    "potential": Rule("Score MALA, potential", form="potential"),
}
METRICS = {"mmd": "MMD", "w1": "W1", "exact_w2": "exact W2"}  # the paper's W2 may come out below 0
WORDS = {
    "score": ("seed",),
    "tuned": ("seed",),
    "acceptance": ("form", "factor", "seed"),
    "draws": ("rule", "factor", "seed"),
    "floor": ("seed", "number"),
}
AWAY = 1000  # times the floor
ANY = "any"  # a potential serves every step


@dataclass(frozen=True)
class Sweep:
    """How much of it all.

    Args:
        dataset: Of Table 1.
        rules: Names in `RULES`.
        factors: Steps, as multiples of the tuned one.
        seeds: Of everything: samples, training, chains, and what they are judged on.
        draws: Chains, and points they are judged on.
        chain_steps: Of a chain.
        training: Steps of a learned acceptance's training.
        floors: Fresh samples whose distances give the floor, per seed.
    """

    dataset: str
    rules: tuple[str, ...]
    factors: tuple[float, ...]
    seeds: tuple[int, ...]
    draws: int
    chain_steps: int
    training: int
    floors: int


def stages(config: Sweep) -> list[list[Task]]:
    """Return the tasks, each stage after those it needs."""
    seeds, factors = list(map(str, config.seeds)), list(map(str, config.factors))
    forms = [form for name in config.rules if (form := RULES[name].form)]
    trained = [(form, factor) for form in forms for factor in ([ANY] if form == "potential" else factors)]
    return [
        [("score", seed) for seed in seeds],
        [("tuned", seed) for seed in seeds],
        [("acceptance", *words, seed) for seed in seeds for words in trained],
        [("draws", rule, factor, seed) for seed in seeds for rule in config.rules for factor in factors]
        + [("floor", seed, str(k)) for seed in seeds for k in range(config.floors)],
    ]


def cell(task: Task, *, config: Sweep, folder: Path) -> dict[str, Any]:
    """Compute a task.

    Args:
        task: Its words.
        config: How much.
        folder: Of the files.
    """
    kind, *words = task
    seed = words[0] if kind == "floor" else words[-1]
    problem = Problem(config.dataset, int(seed), folder)
    if kind == "score":
        return rows_of.fitted(problem)
    if kind == "tuned":
        return rows_of.tuned(problem, "mala")
    if kind == "floor":
        return floor(problem, config.draws, int(words[1]))
    tuned: float = known(folder / "cells.json")[SEPARATOR.join(["tuned", seed])]["step"]
    if kind == "acceptance":
        form, factor, _ = words
        step = tuned * (1 if factor == ANY else float(factor))
        return _trained(problem, form, factor, step, config.training)  # type: ignore[arg-type]
    name, factor, _ = words
    return _drawn(problem, RULES[name], factor, tuned * float(factor), config)


def _path(problem: Problem, form: str, factor: str) -> Path:
    return problem.path(form, "mala", *([] if factor == ANY else [factor]))


def _trained(problem: Problem, form: FormName, factor: str, step: float, steps: int) -> dict[str, Any]:
    """Learn an acceptance with the defaults of `fit_acceptance`, but for the number of steps."""
    generator = seeded(3, problem.seed)
    fit = fit_acceptance(
        problem.score.at(rows_of.LEVEL),
        problem.proposal("mala", step),
        problem.blurred(generator),
        form=form,
        recipe=replace(RECIPE, steps=rows_of.POTENTIAL * steps if form == "potential" else steps),
        generator=generator,
    )
    fit.save(_path(problem, form, factor))
    return {"seconds": fit.seconds, "held_out": fit.history["held_out"][-1]}


def _drawn(problem: Problem, line: Rule, factor: str, step: float, config: Sweep) -> dict[str, Any]:
    rule = line.rule
    if rule is None:
        assert line.form is not None
        rule = rows_of.learned_rule(_path(problem, line.form, ANY if line.form == "potential" else factor))
    begin, generator = seeded(5, problem.seed), seeded(4, problem.seed)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DegenerateRuleWarning
        )  # the paper has such a rule, and the page says what it is
        draws, counted = rows_of.chained(
            problem, "mala", step, rule, config.chain_steps, config.draws, begin, generator
        )
    return {**distances(draws, problem.judged(config.draws)), **counted}


def table(found: Found) -> dict[tuple[str, float, str], Cell]:
    """Return the numbers over seeds, by rule, factor and metric."""
    seeds = found["settings"]["seeds"]
    answer = {}
    for name in found["settings"]["rules"]:
        for factor in found["settings"]["factors"]:
            there = where(found["draws"], rule=name, factor=factor)
            for metric in METRICS:
                floors = [record[metric] for record in found["floor"]]
                if len(there) == len(seeds):
                    level = statistics.mean(floors) if floors else None
                    answer[name, factor, metric] = Cell([record[metric] for record in there], None, level, None)
    return answer


def steps(found: Found) -> dict[float, float]:
    """Return the step of every factor, a mean over seeds."""
    tuned = statistics.mean(record["step"] for record in found["tuned"])
    return {factor: factor * tuned for factor in found["settings"]["factors"]}


def away(cell: Cell) -> bool:
    """Say whether chains left the samples behind."""
    return cell.mean > AWAY * abs(cell.floor or math.inf)


def shown(found: Found, metric: str) -> str:
    """Return a table of one metric: rules and steps, and what a step of a chain costs."""
    cells, names = table(found), found["settings"]["rules"]
    rows = [[METRICS[metric], *(f"h = {h:.3g}" for h in steps(found).values()), "score calls", "acceptance"]]
    middle = min(found["settings"]["factors"], key=lambda factor: abs(math.log(factor)))
    for name in names:
        there = [cells[name, factor, metric] for factor in steps(found) if (name, factor, metric) in cells]
        numbers = ["ran away" if away(cell) else str(cell) for cell in there]
        runs = where(found["draws"], rule=name, factor=middle)
        if len(numbers) == len(steps(found)):
            calls = statistics.mean(calls_per_step(found, run) for run in runs)
            rate = statistics.mean(run["acceptance"] for run in runs)
            rows.append([RULES[name].words, *numbers, f"{calls:.2f}", f"{rate:.2f}"])
    level = statistics.mean(record[metric] for record in found["floor"])
    return f"{markdown(rows)}\n\nThe floor is {number(level)}."


def calls_per_step(found: Found, run: figures.Record) -> float:
    """Return the score calls of one step of one chain."""
    return float(run["score_calls"] / (found["settings"]["draws"] * (run["steps"] + 1)))


def setting(found: Found) -> str:
    """Say how it was done."""
    s = found["settings"]
    seeds = f"{len(s['seeds'])} seed{'s' * (len(s['seeds']) > 1)} ({', '.join(map(str, s['seeds']))})"
    return (
        f"As in Table 1: {rows_of.SAMPLES:,} samples to learn from, MALA at noise {rows_of.LEVEL} of their spread with "
        f"their covariance, from a broad normal law, {s['chain_steps']} steps, carried down by the probability flow; "
        f"{s['draws']:,} chains, judged on as many fresh samples; {seeds}, mean and standard deviation. Steps are "
        "multiples of the one that is accepted at MALA's most efficient rate. Score calls are those of one step of one "
        "chain, acceptance that at the tuned step."
    )


def good_steps(found: Found, metric: str, times: float) -> dict[str, list[float]]:
    """Return, by rule, the factors at which the metric is below so many times its least over all rules."""
    cells = table(found)
    least = min(cell.mean for (_, _, m), cell in cells.items() if m == metric)
    names, factors = found["settings"]["rules"], found["settings"]["factors"]
    return {name: [f for f in factors if cells[name, f, metric].mean <= times * least] for name in names}


def compared(found: Found, name: str, other: str, metric: str) -> tuple[int, int]:
    """Return at how many steps a rule is better than another, and at how many worse, beyond the noise over seeds.

    The noise is twice the standard error of their difference over seeds; one seed has none that is known, and counts.
    """
    better = worse = 0
    for factor in found["settings"]["factors"]:
        own, theirs = (
            figures.values(where(found["draws"], rule=rule, factor=factor), metric) for rule in (name, other)
        )
        gaps = [0.0 if a == b else a - b for a, b in zip(own, theirs, strict=True)]
        gap = statistics.mean(gaps)
        noise = 2 * spread(gaps) / math.sqrt(len(gaps)) if math.isfinite(gap) else 0.0
        better, worse = better + (gap < -noise), worse + (gap > noise)
    return better, worse


def draw(found: Found, path: Path, metrics: Sequence[str], title: str) -> None:
    """Draw the metrics over steps, and acceptance rates.

    Args:
        found: The results.
        path: The file to write.
        metrics: A panel each.
        title: Above all.
    """
    cells, panels = table(found), {}
    levels: dict[str, Mapping[str, float]] = {}
    for metric in metrics:
        lines: dict[str, plots.Curve] = {}
        for name in found["settings"]["rules"]:
            good = [factor for factor in steps(found) if (name, factor, metric) in cells]
            good = [f for f in good if cells[name, f, metric].mean > 0 and not away(cells[name, f, metric])]
            values = [cells[name, factor, metric] for factor in good]
            bars = [spread([v for v in value.values if v is not None]) for value in values]
            lines[RULES[name].words] = ([steps(found)[factor] for factor in good], [v.mean for v in values], bars)
        head = METRICS.get(metric, metric)
        panels[head] = lines
        level = statistics.mean(record[metric] for record in found["floor"])
        levels[head] = {"floor": level} if level > 0 else {}
    panels["acceptance"] = {
        RULES[name].words: (list(steps(found).values()), [_rate(found, name, factor) for factor in steps(found)])
        for name in found["settings"]["rules"]
    }
    plots.curve_panels(
        panels, path, labels=("step size h", ""), levels=levels, log=True, columns=2, shared=False, title=title
    )


def _rate(found: Found, name: str, factor: float) -> float:
    """Return an acceptance rate, a mean over seeds; none that is 0, on a logarithmic axis."""
    rates = [record["acceptance"] for record in where(found["draws"], rule=name, factor=factor)]
    return statistics.mean(rates) or math.nan if rates else math.nan


def figure(
    name: str, presets: Mapping[str, Sweep], section: Callable[[Found], str], picture: Callable[[Found, Path], None]
) -> figures.Figure:
    """Return a figure of this kind."""
    return figures.Figure(name, presets, WORDS, stages, cell, section, picture)
