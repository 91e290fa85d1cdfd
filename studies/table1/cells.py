"""The cells of Table 1: scores, steps, acceptances, draws, distances, floors and two-sample tests."""

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from scoremh import MultilevelDenoising, Recipe, annealing, metrics
from scoremh.balance_matching import MATCHING, RECIPE
from scoremh.balance_matching.fit import ANCHORED_CLIP, TABLE_PAIRS
from scoremh.sampler import ProposalName
from studies.framework import Cell, Record, Records, grid
from studies.framework.runner import cells_in
from studies.presets import TABLE_3
from studies.table1 import judging, methods, outsiders, paper, problem
from studies.table1.judging import METRICS, MODES
from studies.table1.methods import METHODS
from studies.table1.problem import DATASETS, EVENLY_SPACED, Problem, seeded

TEST_POINTS = 2000  # of a two-sample test


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...]  # random seeds of samples, trainings and chains
    draws: Mapping[str, int]  # by dataset, number of chains of a row and of points to compare them with
    training: Mapping[str, int]  # by dataset, number of training steps of an acceptance
    chain_steps: int  # steps of a chain
    floors: int  # fresh samples whose distances give the floor, for every seed
    tests: int  # two-sample tests, each on other chains, in turn from the scores of all seeds
    tested: tuple[str, ...] = ("annealed", "simpson", "flow", "sobol_flow")  # rows that are tested


class Score(Cell, kind="score"):
    """The learned score of a dataset."""

    dataset: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        return Problem(self.dataset, self.seed, folder).fit_score()


class Step(Cell, kind="steps"):
    """The tuned step of a proposal."""

    dataset: str
    seed: int
    proposal: ProposalName
    own_level: bool

    def measure(self, config: Config, folder: Path) -> Record:
        found = Problem(self.dataset, self.seed, folder)
        return problem.tuned(found.sampler(self.proposal, own_level=self.own_level), self.seed)


def tuned_steps(dataset: str, seed: int, folder: Path) -> methods.Steps:
    """Return the steps that have been tuned."""
    found = cells_in(folder, [Step])
    places = {place: Step(dataset, seed, *place) for place in methods.tunings()}
    return {place: found[cell]["step"] for place, cell in places.items() if cell in found}


class Training(Cell, kind="acceptance"):
    """The learned acceptance of a row."""

    dataset: str
    seed: int
    method: str

    def measure(self, config: Config, folder: Path) -> Record:
        steps, row = tuned_steps(self.dataset, self.seed, folder), METHODS[self.method]
        assert isinstance(row, methods.Chains)
        return methods.train(Problem(self.dataset, self.seed, folder), row, steps, config.training[self.dataset])


class Draws(Cell, kind="draws"):
    """The draws of a row, which are kept in a file."""

    dataset: str
    seed: int
    method: str

    def measure(self, config: Config, folder: Path) -> Record:
        found, row, started = Problem(self.dataset, self.seed, folder), METHODS[self.method], time.perf_counter()
        steps = tuned_steps(self.dataset, self.seed, folder) if isinstance(row, methods.Chains) else {}
        draws, counted = row.draw(found, config.draws[self.dataset], self.seed, config.chain_steps, steps)
        save_file({"draws": draws.clone()}, found.path("draws", self.method))
        return counted | {"seconds": time.perf_counter() - started, "version": methods.VERSION}


class Metrics(Cell, kind="metrics"):
    """The distances of a row's draws to fresh samples."""

    dataset: str
    seed: int
    method: str

    def measure(self, config: Config, folder: Path) -> Record:
        found = Problem(self.dataset, self.seed, folder)
        draws = load_file(found.path("draws", self.method))["draws"]
        return judging.judged(found, draws, config.draws[self.dataset])


class Weights(Cell, kind="weights"):
    """The weights of modes among a row's draws."""

    dataset: str
    seed: int
    method: str

    def measure(self, config: Config, folder: Path) -> Record:
        found = Problem(self.dataset, self.seed, folder)
        return judging.mode_weights(found, load_file(found.path("draws", self.method))["draws"])


class Floor(Cell, kind="floor"):
    """The distances between two fresh samples."""

    dataset: str
    seed: int
    number: int

    def measure(self, config: Config, folder: Path) -> Record:
        return judging.floor(Problem(self.dataset, self.seed, folder), config.draws[self.dataset], self.number)


class TwoSample(Cell, kind="test"):
    """A two-sample test between a row's draws and fresh samples."""

    dataset: str
    seed: int
    method: str
    number: int

    def measure(self, config: Config, folder: Path) -> Record:
        found, steps = Problem(self.dataset, self.seed, folder), tuned_steps(self.dataset, self.seed, folder)
        row, chain_seed = METHODS[self.method], 10_000 + self.number
        draws, _ = row.draw(found, TEST_POINTS, chain_seed, config.chain_steps, steps)
        fresh = judging.independent(self.dataset, TEST_POINTS, seeded(7, self.number))
        return {"p_value": metrics.two_sample_test(draws, fresh, generator=seeded(7, 1000 + self.number)).p_value}


KINDS = (Score, Step, Training, Draws, Metrics, Weights, Floor, TwoSample)


def stages(config: Config) -> list[list[Cell]]:
    """Return the cells seed by seed, then the tests."""
    numbers = range(config.tests)
    tests = [
        TwoSample(name, config.seeds[number % len(config.seeds)], row, number)
        for name, row, number in product(DATASETS, config.tested, numbers)
    ]
    return [*(stage for seed in config.seeds for stage in stages_of_seed(config, seed)), [*tests]]


def stages_of_seed(config: Config, seed: int) -> list[list[Cell]]:
    """Return the stages of one seed; rows that need no training come first."""
    learned = methods.learned_rows()
    others = [name for name in METHODS if name not in learned]
    axes: dict[str, Any] = {"dataset": DATASETS, "seed": [seed]}
    with_modes = axes | {"dataset": [name for name in DATASETS if name in MODES]}
    return [
        grid(Score, **axes),
        [Step(name, seed, *place) for name, place in product(DATASETS, methods.tunings())],
        grid(Draws, **axes, method=others),
        [*grid(Floor, **axes, number=range(config.floors)), *grid(Metrics, **axes, method=others)],
        grid(Training, **axes, method=learned),
        grid(Draws, **axes, method=learned),
        [*grid(Metrics, **axes, method=learned), *grid(Weights, **with_modes, method=METHODS)],
    ]


def settings(config: Config) -> dict[str, Any]:
    """Return everything that determines the numbers, except the code and its versions."""
    networks = {
        name: {"hidden": row.hidden, "blocks": row.blocks, "rate": methods.RATE_TIMES_WIDTH / row.hidden}
        for name, row in TABLE_3.items()
    }
    schedule = ("high", "low", "levels", "steps", "step_size_over_noise_squared")
    chosen = {
        **asdict(config),
        "samples": problem.SAMPLES,
        "score": {"net": "NoiseConditionalMLP(residual=True)", "loss": repr(MultilevelDenoising()), **asdict(Recipe())},
        "level": problem.NOISE_LEVEL,
        "down": [*annealing.flow_levels(problem.NOISE_LEVEL, MultilevelDenoising().low), 0.0],
        "annealed": dict(zip(schedule, methods.ANNEALING, strict=True)),
        "flow": dict(zip(("high", "low"), methods.FLOW, strict=True)),
        "replica_exchange": dict(zip(("high", "levels", "steps_per_swap"), methods.EXCHANGE, strict=True)),
        "acceptance": {"networks": networks, "matching": {k: repr(v) for k, v in MATCHING.items()}, **asdict(RECIPE)},
        "anchored": {"clip_per_root": ANCHORED_CLIP, "pairs": TABLE_PAIRS},
        "potential": {"steps_times": methods.POTENTIAL_STEPS},
        "tested_points": TEST_POINTS,
        "outsiders": {"bandwidths": outsiders.BANDWIDTHS, "spline_flow": outsiders.SIZES, **asdict(outsiders.RECIPE)},
        "methods": {name: method.label for name, method in METHODS.items()},
    }
    return json.loads(json.dumps(chosen))  # type: ignore[no-any-return]


KEPT = ("score", "acceptance", "weights", "test")  # kinds that are kept as they are


def summary(records: Records) -> Records:
    """Return the records to keep: every number of the table beside the paper's, and the counts."""
    numbers: list[Record] = []
    rows: list[Record] = []
    counts = {Draws.of(record): record for record in records.kinds["draws"]}
    for found in records.kinds["metrics"]:
        place = {axis: found[axis] for axis in ("dataset", "method", "seed")}
        counted = counts[Draws(found["dataset"], found["seed"], found["method"])]
        rows.append(place | {k: v for k, v in (counted | found).items() if k not in {*place, *METRICS}})
        floors = records.where("floor", dataset=found["dataset"], seed=found["seed"])
        row = methods.ANCHORED.get(found["method"]) or found["method"]
        printed = paper.TABLE_1[found["dataset"]].get(row, {})
        for metric in METRICS:
            record = {"metric": metric, "value": found[metric], "paper": printed.get(metric)}
            record |= {"floor": mean_floor(floors, metric), "samples": records.settings["draws"][found["dataset"]]}
            if found["dataset"] in EVENLY_SPACED:
                record["independent_floor"] = mean_floor([floor["independent"] for floor in floors], metric)
            numbers.append(place | record)
    kinds = {"records": numbers, "rows": rows}
    return Records(records.settings, kinds | {kind: records.kinds[kind] for kind in KEPT})


def mean_floor(floors: Sequence[Record], metric: str) -> float | None:
    """Return the mean of a metric over floors, None if there are none."""
    return statistics.mean(floor[metric] for floor in floors) if floors else None
