"""The paper's sanity check: N(3, 2) by a random walk, with its density and by acceptances learned from scores."""

import math
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch
from scipy import stats

from scoremh import Exact, Learned, RandomWalk, fit_acceptance, fit_score, metropolis_hastings, sample, targets
from scoremh.acceptance import Rule
from scoremh.score_matching import LONG_RECIPE
from scoremh.types import TargetLike
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.framework.runner import earlier
from studies.learning import seeded

MEAN, VARIANCE = 3.0, 2.0
TARGET = targets.Gaussian([MEAN], [[VARIANCE]])
WAYS = ("density", "true score", "learned score")
MAX_DISTANCE = 0.02  # Kolmogorov-Smirnov distance of the three ways to the distribution and to each other


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1, 2, 3)  # random seeds of samples, trainings and chains
    chains: int = 20_000  # chains, each of which gives its last draw
    steps: int = 300  # steps of a chain before it
    std: float = 3.0  # standard deviation of the random walk
    samples: int = 10_000  # samples to learn from


class Way(Cell, kind="gaussian"):
    """Chains by the density, or by a free acceptance with the true or a learned score."""

    way: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        walk, number = RandomWalk(config.std), WAYS.index(self.way)  # every way has starts and steps of its own
        x = TARGET.sample(config.samples, generator=seeded(0, self.seed))
        noise = torch.randn(config.chains, 1, generator=seeded(10 + number, self.seed))
        target: TargetLike = TARGET
        rule: Rule = Exact()
        if self.way == "learned score":
            target = fit_score(x, recipe=LONG_RECIPE, generator=seeded(1, self.seed))
        if self.way != "density":
            rule = Learned(fit_acceptance(target, walk, x, form="free", generator=seeded(3, self.seed)))
        start = (MEAN + 2 * noise).clamp(x.min(), x.max())
        kernel = metropolis_hastings(target, walk, rule)
        chains = sample(kernel, start, draws=1, burn_in=config.steps, generator=seeded(20 + number, self.seed))
        last = chains.last[:, 0].double()
        return {
            "variance": float(last.var()),
            "distance": float(stats.kstest(last.numpy(), stats.norm(MEAN, VARIANCE**0.5).cdf).statistic),
            "draws": [round(value, 4) for value in last.tolist()],
        }


class Between(Cell, kind="between"):
    """The distance between the draws of two ways."""

    first: str
    second: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        draws = [earlier(Way(way, self.seed), folder)["draws"] for way in (self.first, self.second)]
        return {"distance": float(stats.ks_2samp(*draws).statistic)}


def stages(config: Config) -> list[list[Cell]]:
    """Return the chains of all ways, then the distances between them."""
    pairs = [Between(*pair, seed) for seed in config.seeds for pair in combinations(WAYS, 2)]
    return [grid(Way, seed=config.seeds, way=WAYS), [*pairs]]


def farthest(records: Records, kind: str) -> float:
    """Return the largest distance: "gaussian" to the distribution, "between" two ways."""
    return max(records.values(kind, "distance"))


def similar(records: Records) -> bool:
    """Return whether all ways agree with the distribution and with each other, for every seed."""
    return max(farthest(records, kind) for kind in ("gaussian", "between")) < MAX_DISTANCE


def by_chance(n: int) -> float:
    """Return the distance between two samples of n draws that is exceeded in 5 % of cases."""
    return float(stats.kstwobign.ppf(0.95) * math.sqrt(2 / n))


STUDY = Study(
    "gaussian",
    "the sanity check, N(3, 2) by a random walk with the density and with learned acceptances",
    Config(),
    stages,
    None,
    globals(),
    {"similar": Claim("an acceptance trained with a learned score performs like one with the true score", similar)},
)
