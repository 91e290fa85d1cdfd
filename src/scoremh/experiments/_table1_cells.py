"""What `experiments.table1` computes: scores, acceptances, draws and distances, each a cell that is kept."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from scoremh import MultilevelDenoising, Recipe, metrics
from scoremh.balance_matching import MATCHING, PRESETS, RECIPE
from scoremh.experiments import _outsiders
from scoremh.experiments import _table1_rows as rows_of
from scoremh.experiments._cells import Task, compute, same
from scoremh.experiments._table1_rows import EVEN, LAWS, METHODS, PROPOSED, Problem, drawn, seeded

TESTED = 2000  # points of a two-sample test
METRICS = ("w1", "w2", "mmd", "exact_w1", "exact_w2")
STEPS = (*PROPOSED, "low")
STEPPED = ("acceptance", "draws", "test")  # what needs the steps


@dataclass(frozen=True)
class Config:
    """A preset: how much of it all.

    Args:
        seeds: Of everything: samples, training, chains, and what they are judged on.
        draws: By dataset, chains of a row and points it is judged on.
        training: By dataset, steps of an acceptance's training.
        chain_steps: Of a chain.
        floors: Fresh samples whose distances give the floor, per seed.
        tests: Two-sample tests of `tested`, each on other chains, in turn from the scores of all seeds.
        tested: Rows that are tested.
    """

    seeds: tuple[int, ...]
    draws: Mapping[str, int]
    training: Mapping[str, int]
    chain_steps: int
    floors: int
    tests: int
    tested: tuple[str, ...] = ("annealed", "simpson", "sobol_flow")


def distances(x: Tensor, y: Tensor) -> dict[str, float | None]:
    """Return all metrics between two samples, or nothing where the first ran away to infinity."""
    if not bool(x.isfinite().all()):
        return dict.fromkeys(METRICS)
    return {**metrics.paper_metrics(x, y)._asdict(), "exact_w1": metrics.w1(x, y), "exact_w2": metrics.w2(x, y)}


def nearest(x: Tensor, y: Tensor) -> float:
    """Return the median distance of points of x to the nearest of y: 0 for copies."""
    return float(torch.cat([torch.cdist(part, y).amin(1) for part in x.split(1000)]).median())


def judged(problem: Problem, name: str, n: int) -> dict[str, Any]:
    """Compare a row's draws with samples that nothing has seen."""
    draws, y = load_file(problem.path("draws", name))["draws"], problem.judged(n)
    ended = bool(draws.isfinite().all())
    near = nearest(draws, problem.x) if ended else None
    return {**distances(draws, y), "nearest": near, "fresh_nearest": nearest(y, problem.x)}


def floor(problem: Problem, n: int, number: int) -> dict[str, Any]:
    """Compare a fresh sample with those that draws are judged on; and one of independent draws, where it is not so."""
    law, generator, y = LAWS[problem.name], seeded(6, 100 * problem.seed + number), problem.judged(n)
    found: dict[str, Any] = {**distances(law(n, generator=generator), y)}
    if problem.name in EVEN:
        found["independent"] = distances(independent(problem.name, n, generator), y)
    return found


def independent(name: str, n: int, generator: torch.Generator) -> Tensor:
    """Return n independent draws: where the generator spreads its points evenly, some of a hundred times as many."""
    if name not in EVEN:
        return LAWS[name](n, generator=generator)
    many = LAWS[name](100 * n, generator=generator)
    return many[torch.randperm(len(many), generator=generator)[:n]]


def tested(problem: Problem, name: str, config: Config, steps: Mapping[str, float], number: int) -> dict[str, Any]:
    """Ask a two-sample test to tell a row's draws from fresh samples."""
    draws, _ = drawn(problem, name, config.chain_steps, steps, TESTED, 10_000 + number)
    fresh = independent(problem.name, TESTED, seeded(7, number))
    return {"p_value": metrics.two_sample_test(draws, fresh, generator=seeded(7, 1000 + number)).p_value}


def _cell(task: Task, config: Config, out: Path, known: Mapping[str, Any]) -> dict[str, Any]:
    what, name, seed, *rest = task
    problem, n = Problem(name, int(seed), out), config.draws[name]
    steps = {kind: known[f"steps / {name} / {seed} / {kind}"]["step"] for kind in STEPS} if what in STEPPED else {}
    match what:
        case "score":
            return rows_of.fitted(problem)
        case "steps" if rest[0] == "low":
            level = problem.score.noise_level
            assert level is not None
            return rows_of.tuned(problem, "mala", level)
        case "steps":
            return rows_of.tuned(problem, rest[0])
        case "acceptance":
            kind, form = rest
            return rows_of.trained(problem, kind, form, steps[kind], config.training[name])  # type: ignore[arg-type]
        case "draws":
            draws, counted = drawn(problem, rest[0], config.chain_steps, steps, n, int(seed))
            save_file({"draws": draws.clone()}, problem.path("draws", rest[0]))
            return {**counted}
        case "metrics":
            return judged(problem, rest[0], n)
        case "floor":
            return floor(problem, n, int(rest[0]))
        case _:
            return tested(problem, rest[0], config, steps, int(rest[1]))


def run(config: Config, out: Path, *, workers: int | None = None) -> dict[str, Any]:
    """Compute all cells that are not in the folder yet, seed by seed.

    Args:
        config: How much of it all.
        out: Folder of the cells and the files.
        workers: Cells at the same time; as many as there are cores if None.
    """
    out.mkdir(parents=True, exist_ok=True)
    stages = [stage for seed in config.seeds for stage in _stages(config, str(seed))]
    turns = [(k, config.seeds[k % len(config.seeds)]) for k in range(config.tests)]
    stages.append(
        [("test", name, str(seed), row, str(k)) for name in LAWS for row in config.tested for k, seed in turns]
    )
    same(out / "settings.json", settings(config), out / "cells.json")
    cells: dict[str, Any] = {}
    for tasks in stages:
        cell = partial(_cell, config=config, out=out, known=cells)
        cells |= compute(tasks, cell, out / "cells.json", workers=workers)
    return cells


def settings(config: Config) -> dict[str, Any]:
    """Return all that decides the numbers, but for the code and its versions."""
    networks = {
        name: {"hidden": row.hidden, "blocks": row.blocks, "rate": rows_of.RATE / row.hidden}
        for name, row in PRESETS.items()
    }
    chosen = {
        **asdict(config),
        "samples": rows_of.SAMPLES,
        "score": {"net": "NoiseConditionalMLP(residual=True)", "loss": repr(MultilevelDenoising()), **asdict(Recipe())},
        "level": rows_of.LEVEL,
        "down": [*rows_of.DOWN, 0.0],
        "annealed": dict(
            zip(("high", "low", "levels", "steps", "step_size_over_noise_squared"), rows_of.ANNEALED, strict=True)
        ),
        "flow": dict(zip(("high", "low", "levels"), rows_of.FLOW, strict=True)),
        "acceptance": {"networks": networks, "matching": {k: repr(v) for k, v in MATCHING.items()}, **asdict(RECIPE)},
        "potential": {"steps_times": rows_of.POTENTIAL},
        "tested_points": TESTED,
        "outsiders": {
            "bandwidths": _outsiders.BANDWIDTHS,
            "spline_flow": _outsiders.SIZES,
            **asdict(_outsiders.RECIPE),
        },
        "methods": {name: method.words for name, method in METHODS.items()},
    }
    return json.loads(json.dumps(chosen))  # type: ignore[no-any-return]


def _stages(config: Config, seed: str) -> list[list[Task]]:
    """Return the cells of one seed, each stage after those it needs."""
    untrained = [name for name, method in METHODS.items() if not method.form]
    trained = {name: method for name, method in METHODS.items() if method.form}
    trainings = sorted({(str(method.proposal), str(method.form)) for method in trained.values()})

    def rows(what: str, *words: str) -> list[Task]:
        return [(what, name, seed, word) for name in LAWS for word in words]

    floors = rows("floor", *map(str, range(config.floors)))
    return [
        [("score", name, seed) for name in LAWS],
        rows("steps", *STEPS),
        rows("draws", *untrained),
        [*floors, *rows("metrics", *untrained)],
        [("acceptance", name, seed, *training) for name in LAWS for training in trainings],
        rows("draws", *trained),
        rows("metrics", *trained),
    ]
