"""Which acceptance rule, noise level and number of steps are the defaults of `ScoreMH`: all on the same scores."""

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from scoremh import LineIntegral, ScoreMH
from scoremh.balance_matching import RECIPE
from studies.framework import Cell, Records, Study, grid
from studies.framework.study import Record
from studies.framework.tables import mean
from studies.learning import seeded
from studies.tables.cells import accuracy, beyond, distance
from studies.tables.data import Known

Random = np.random.Generator


def named(*columns: NDArray[Any]) -> pd.DataFrame:
    """Return a frame of columns."""
    return pd.DataFrame({f"x{number}": column for number, column in enumerate(columns)})


def rings(n: int, r: Random) -> pd.DataFrame:
    """Return two rings that are linked, in three dimensions."""
    angle, second = 2 * np.pi * r.random(n), r.random(n) < 0.4
    flat = np.c_[np.cos(angle), np.sin(angle), np.zeros(n)]
    upright = np.c_[1 + np.cos(angle), np.zeros(n), np.sin(angle)]
    return named(*(np.where(second[:, None], upright, flat) + 0.08 * r.normal(size=(n, 3))).T)


def regression(n: int, r: Random) -> pd.DataFrame:
    """Return a response to two numbers and a group."""
    a, b, group = r.normal(size=n), r.random(n), r.random(n) < 0.3
    return named(a, b, np.sin(2 * a) + b**2 + (1 + a) * group + 0.2 * r.normal(size=n)).assign(group=group)


def clusters(n: int, r: Random) -> pd.DataFrame:
    """Return five skewed clusters in six dimensions."""
    which = r.choice(5, n, p=[0.4, 0.25, 0.2, 0.1, 0.05])
    return named(*(3 * np.random.default_rng(5).normal(size=(5, 6))[which] + r.gamma(2.0, 0.5, size=(n, 6))).T)


def series(n: int, r: Random) -> pd.DataFrame:
    """Return twelve values of a series whose noise has a random size."""
    x, size = [r.normal(size=n)], np.exp(0.5 * r.normal(size=n))
    for _ in range(11):
        x.append(0.8 * x[-1] + 0.6 * size * r.normal(size=n))
    return named(*x)


def orders(n: int, r: Random) -> pd.DataFrame:
    """Return orders: a kind, a number of items, a price, a discount that many do not have."""
    kind = r.choice(3, n, p=[0.6, 0.3, 0.1])
    items = 1 + r.poisson(1.0 + kind)
    price = np.round(items * np.exp(1 + 0.6 * kind + 0.4 * r.normal(size=n)), 2)
    discount = np.where(r.random(n) < 0.7 - 0.2 * kind, 0.0, r.beta(2, 8, n) * price)
    return pd.DataFrame(
        {"kind": np.array(["book", "tool", "toy"])[kind], "items": items, "price": price, "off": discount}
    )


def sheet(n: int, r: Random) -> pd.DataFrame:
    """Return a rolled sheet in five dimensions."""
    u, v = 1.5 + 3 * r.random(n), r.random(n)
    return named(*(np.c_[u * np.cos(2 * u), u * np.sin(2 * u), 5 * v, u * v, u] + 0.1 * r.normal(size=(n, 5))).T)


def waiting(n: int, r: Random) -> pd.DataFrame:
    """Return times that are long together."""
    z = r.normal(size=(n, 4)) @ np.linalg.cholesky(0.5 + 0.5 * np.eye(4)).T / np.sqrt(r.chisquare(4, n) / 4)[:, None]
    return named(*np.exp(0.5 * z).T)


def signs(n: int, r: Random) -> pd.DataFrame:
    """Return six columns, of which the last depends on the signs of two others."""
    x = r.normal(size=(n, 5))
    return named(*x.T, np.sign(x[:, 0] * x[:, 1]) + 0.3 * r.normal(size=n))


TABLES: dict[str, Known] = {
    "rings": Known("two linked rings, 2,500 x 3", 2500, rings),
    "regression": Known("a response, 2,000 x 4", 2000, regression),
    "clusters": Known("five skewed clusters, 3,000 x 6", 3000, clusters),
    "series": Known("a series, 2,000 x 12", 2000, series),
    "orders": Known("orders, 2,500 x 4", 2500, orders),
    "sheet": Known("a rolled sheet, 2,000 x 5", 2000, sheet),
    "waiting": Known("waiting times, 2,000 x 4", 2000, waiting, robust=True),
    "signs": Known("signs, 500 x 6", 500, signs),
}
FLOW, DEFAULT, EXACT = "the flow alone", "simpson", "exact"
LEARNED = ("potential", "free")
LOW, LONG = "simpson, noise level 0.3", "simpson, 200 steps"
METHODS = (FLOW, DEFAULT, EXACT, *LEARNED, LOW, LONG)


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1, 2, 3)
    tables: tuple[str, ...] = tuple(TABLES)
    rows: int = 1000  # draws of every method, and fresh rows
    steps: int = 1000  # training steps of a learned acceptance: a quarter of the default
    floors: int = 3  # pairs of fresh samples that a floor is averaged over


class Compared(Cell, kind="compared"):
    """Draws by every method with one score, beside rows that it has not seen."""

    table: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        known = TABLES[self.table]
        pairs = [known.split(1000 * self.seed + i, config.rows)[1:] for i in range(config.floors)]
        train, judge, other = known.split(self.seed, config.rows)
        floor = float(np.mean([distance(known, train, a, b, config.rows) for a, b in pairs]))
        began = time.process_time()
        model = ScoreMH(verbose=False, random_state=self.seed).fit(train)
        found: Record = {
            "seconds": time.process_time() - began,
            "fresh": {"c2st": accuracy(known, train, other, judge, self.seed), "beyond": beyond(train, judge)},
        }
        for method in METHODS:
            began = time.process_time()
            points = self.points(method, model, train, config)
            seconds = time.process_time() - began
            rows = model.to_rows(model.table_.numbers(points))
            found[method] = {
                "w1": distance(known, train, rows, judge, config.rows) / floor,
                "c2st": accuracy(known, train, rows, judge, self.seed),
                "beyond": beyond(train, rows),
                "seconds": seconds,
            }
        return found

    def points(self, method: str, model: ScoreMH, train: Any, config: Config) -> torch.Tensor:
        """Return the points that a method draws; the time includes the training of a learned acceptance."""
        sampler, generator, steps, n = model.sampler_, seeded(3, self.seed), int(model.chain_steps), config.rows
        if method == FLOW:
            return sampler.carry_down(sampler.descend(n, generator=generator))
        if method == EXACT:
            sampler = replace(sampler, acceptance=LineIntegral("exact"), group_size=None)
        elif method in LEARNED:
            numbers = model._numbers(train)
            x = model.table_.coordinates(numbers, seeded(4, self.seed)).to(model.score_.event)
            recipe = replace(RECIPE, steps=config.steps)
            sampler = sampler.learn_acceptance(x, method, generator=generator, recipe=recipe)  # type: ignore[arg-type]
        elif method == LOW:
            sampler = replace(sampler, noise_level=0.3, step_size=None).tune(200, steps=100, generator=generator)
        elif method == LONG:
            steps *= 4
        return sampler.sample(n, chain_steps=steps, generator=generator).last


def stages(config: Config) -> list[list[Cell]]:
    """Return all fits."""
    return [grid(Compared, seed=config.seeds, table=config.tables)]


def over_all(records: Records, method: str, key: str) -> tuple[float, float]:
    """Return the mean of a number of a method over tables and seeds, and its standard error beside the flow alone."""
    there = records.where("compared")
    values = [one[method][key] for one in there]
    apart = [value - one[FLOW][key] for value, one in zip(values, there, strict=True)]
    return mean(values), float(np.std(apart, ddof=1)) / math.sqrt(len(apart)) if len(apart) > 1 else 0.0


def difference(records: Records, method: str) -> str:
    """Return by how much W1 of a method is above that of the flow alone, with its standard error."""
    value, error = over_all(records, method, "w1")
    return f"{value - over_all(records, FLOW, 'w1')[0]:+.3f} +- {error:.3f}"


def fresh(records: Records, key: str) -> float:
    """Return the mean of a number of fresh rows."""
    return mean([one["fresh"][key] for one in records.where("compared")])


STUDY = Study(
    "defaults",
    "which acceptance rule, noise level and number of steps serve tables best, on the same scores",
    Config(),
    stages,
    None,
    globals(),
    page="choosing.md",
)
