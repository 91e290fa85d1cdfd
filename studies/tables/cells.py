"""Measurements on every table: the floor, and the draws of every method."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scoremh import ScoreMH, annealing, metrics
from studies.framework import Cell, Record, grid
from studies.learning import seeded
from studies.tables import peers
from studies.tables.data import TABLES, Known, funnel, standard_units

OURS = "scoremh"
METHODS = (OURS, *peers.PEERS)
CHANCE_TABLES = ("one",)  # of one column: W1 is cheap there, and fluctuates most
CHANCE_SEEDS, CHANCE_FIRST_SEED = 200, 10_000  # that no fit has


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1,)
    tables: tuple[str, ...] = tuple(TABLES)
    points: int = 1000  # of W1, at most
    rows: int = 2000  # of the classifier, of the range, and of the bounds, at most
    floors: int = 3  # pairs of fresh samples that a floor of a generated table is averaged over
    chains: int = 200  # with ten times the steps, beside as many with the usual ones
    steps: int | None = None  # of the training of the score; the default if None
    acceptance: str = "simpson"
    timed: tuple[int, int] = (10_000, 10)  # rows and columns of the fit whose time is measured, all defaults


class Floor(Cell, kind="floor"):
    """What fresh rows have: W1 between two samples, a classifier's accuracy, the share beyond the range."""

    table: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        known = TABLES[self.table]
        train, judge, other = known.split(self.seed, config.rows)
        units = [(judge, other)]
        if known.law is not None:
            units += [known.split(1000 * self.seed + i, config.rows)[1:] for i in range(1, config.floors)]
        w1 = [distance(known, train, a, b, config.points) for a, b in units]
        return {
            "w1": float(np.mean(w1)),
            "c2st": accuracy(known, train, other, judge, self.seed),
            "beyond": beyond(train, judge),
        }


class Chance(Cell, kind="chance"):
    """What W1 over the floor is of one seed, for a perfect sampler: nine of ten values."""

    table: str

    def measure(self, config: Config, folder: Path) -> Record:
        known, ratios = TABLES[self.table], []
        for seed in range(CHANCE_FIRST_SEED, CHANCE_FIRST_SEED + CHANCE_SEEDS):
            train, judge, perfect = known.split(seed, config.rows)
            pairs = [known.split(1000 * seed + i, config.rows)[1:] for i in range(config.floors)]
            floor = np.mean([distance(known, train, a, b, config.points) for a, b in pairs])
            ratios.append(distance(known, train, perfect, judge, config.points) / floor)
        low, high = np.quantile(ratios, [0.05, 0.95])
        return {"fresh_low": float(low), "fresh_high": float(high)}


class Draws(Cell, kind="draws"):
    """The draws of a method beside rows that it has not seen."""

    table: str
    method: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        known = TABLES[self.table]
        train, judge, _ = known.split(self.seed, config.rows)
        n, start = min(config.rows, len(judge)), time.process_time()
        more: Record = {}
        if self.method == OURS:
            model = fitted(known, train, config, self.seed)
            more = {"fit_seconds": time.process_time() - start}
            draws = model.sample(n)
            more |= self._by_the_flow_alone(model, known, train, judge, config)
            more |= self._with_more_steps(model, train, judge, config)
            more |= {
                "c2st": accuracy(known, train, draws, judge, self.seed),
                "p_value": p_value(known, train, draws, judge, self.seed),
            }
        else:
            draws = peers.drawn(self.method, train, n, seeded(3, self.seed))
        found = {"w1": distance(known, train, draws, judge, config.points), "beyond": beyond(train, draws)}
        return found | {"broken": broken(known, draws)} | more

    def _by_the_flow_alone(self, model: ScoreMH, known: Known, train: Any, judge: Any, config: Config) -> Record:
        """Return what the same score gives without a chain: noise of the highest level, carried down."""
        sampler, n = model.sampler_, min(config.rows, len(judge))
        low, high = sampler.noise_range
        start = sampler.start(n, generator=seeded(5, self.seed))
        rows = model.to_rows(model.table_.numbers(sampler.carry_down(start, annealing.flow_levels(high, low))))
        return {"w1_flow": distance(known, train, rows, judge, config.points)}

    def _with_more_steps(self, model: ScoreMH, train: Any, judge: Any, config: Config) -> Record:
        """Return W1 of fewer chains with the usual steps, and with ten times as many."""
        n, known, usual = min(config.chains, len(judge)), TABLES[self.table], model.chain_steps
        short = model.sample(n)
        model.chain_steps = 10 * usual
        long = model.sample(n)
        model.chain_steps = usual
        found = {"w1_short": short, "w1_long": long}
        return {name: distance(known, train, rows, judge, n) for name, rows in found.items()}


class FitTime(Cell, kind="time"):
    """The CPU seconds of a fit by the defaults, the diagnosis among them."""

    rows: int
    columns: int

    def measure(self, config: Config, folder: Path) -> Record:
        random = np.random.default_rng(5)
        parts = [funnel(self.rows, random).to_numpy() for _ in range(-(-self.columns // 4))]
        x, start = np.concatenate(parts, 1)[:, : self.columns], time.process_time()
        model = ScoreMH(score_steps=config.steps, verbose=False, random_state=0)
        model.fit(x)
        return {"seconds": time.process_time() - start}


def fitted(known: Known, train: Any, config: Config, seed: int) -> ScoreMH:
    """Return an estimator with its defaults except the acceptance."""
    settings: dict[str, Any] = {"acceptance": config.acceptance, "score_steps": config.steps}
    return ScoreMH(columns=known.columns or None, verbose=False, random_state=seed, **settings).fit(train)


def distance(known: Known, train: Any, a: Any, b: Any, points: int) -> float:
    """Return W1 in the standard units of the training rows."""
    n = min(points, len(a), len(b))
    x, y = (torch.from_numpy(standard_units(one[:n], train, robust=known.robust)) for one in (a, b))
    return float(metrics.w1(x, y))


def accuracy(known: Known, train: Any, a: Any, b: Any, seed: int) -> float:
    """Return the accuracy of a classifier that tells two samples apart."""
    x, y = (torch.from_numpy(standard_units(one, train, robust=known.robust)) for one in (a, b))
    return float(metrics.c2st(x, y, generator=seeded(4, seed)))


def p_value(known: Known, train: Any, a: Any, b: Any, seed: int) -> float:
    """Return the p-value of the two-sample test of the energy distance."""
    x, y = (torch.from_numpy(standard_units(one, train, robust=known.robust)) for one in (a, b))
    return metrics.two_sample_test(x, y, generator=seeded(6, seed)).p_value


def beyond(train: Any, rows: Any) -> float:
    """Return the share of rows of which a number lies beyond the range of the training rows."""
    names = [name for name in train if train[name].dtype.kind in "iuf"]
    return float(((rows[names] < train[names].min()) | (rows[names] > train[names].max())).any(axis=1).mean())


def broken(known: Known, rows: Any) -> float:
    """Return the share of rows that break a bound."""
    outside = [((rows[name] < low) | (rows[name] > high)).to_numpy() for name, (low, high) in known.bounds.items()]
    return float(np.any(outside, 0).mean()) if outside else 0.0


def stages(config: Config) -> list[list[Cell]]:
    """Return the cells, the slowest peer last."""
    each: dict[str, Any] = {"table": config.tables, "seed": config.seeds}
    chance = grid(Chance, table=[name for name in CHANCE_TABLES if name in config.tables])
    quick = [*chance, *grid(Floor, **each), *grid(Draws, **each, method=METHODS[:-1])]
    return [quick, [FitTime(*config.timed)], grid(Draws, **each, method=METHODS[-1:])]
