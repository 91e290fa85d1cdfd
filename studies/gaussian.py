"""The paper's sanity check: N(3, 2) by a random walk, with its density and by acceptances learned from scores."""

from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import torch
from scipy import stats

from scoremh import Exact, Learned, RandomWalk, fit_score, metropolis_hastings, sample, targets
from scoremh.acceptance import Rule
from scoremh.balance_matching import MATCHING, RECIPE
from scoremh.score_matching import LONG_RECIPE
from scoremh.types import TargetLike
from studies import plots
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.framework.runner import earlier
from studies.learning import PAPER_ENTROPY, learned_acceptance, seeded

MEAN, VARIANCE = 3.0, 2.0
TARGET = targets.Gaussian([MEAN], [[VARIANCE]])
ENTROPY = "true score, entropy as in the paper"
WAYS = {
    "density": "RW, by the density",
    "true score": "Score RW, true score",
    "learned score": "Score RW, learned score",
    ENTROPY: "Score RW, true score, entropy",
}
PAPER_WAYS = [way for way in WAYS if way != ENTROPY]
MAX_DISTANCE = 0.02  # Kolmogorov-Smirnov distance of the paper's three ways to the distribution and to each other


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...]  # random seeds of samples, trainings and chains
    chains: int = 20_000  # chains, each of which gives its last draw
    steps: int = 300  # steps of a chain before it
    std: float = 3.0  # standard deviation of the random walk
    samples: int = 10_000  # samples to learn from
    score_steps: int = LONG_RECIPE.steps  # maximal number of training steps of the score
    acceptance_steps: int = RECIPE.steps  # maximal number of training steps of an acceptance


PRESETS = {
    "quick": Config(seeds=(11,), chains=5000, steps=100, score_steps=2000, acceptance_steps=600),
    "paper": Config(seeds=(1, 2, 3)),
}


class Way(Cell, kind="gaussian"):
    """Chains by the density, or by a free acceptance with the true or a learned score."""

    way: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        walk, number = RandomWalk(config.std), list(WAYS).index(self.way)  # every way has starts and steps of its own
        x = TARGET.sample(config.samples, generator=seeded(0, self.seed))
        noise = torch.randn(config.chains, 1, generator=seeded(10 + number, self.seed))
        target: TargetLike = TARGET
        rule: Rule = Exact()
        if self.way == "learned score":
            score_recipe = replace(LONG_RECIPE, steps=config.score_steps)
            target = fit_score(x, recipe=score_recipe, generator=seeded(1, self.seed))
        if self.way != "density":
            matching = PAPER_ENTROPY if self.way == ENTROPY else MATCHING["free"]
            recipe = replace(RECIPE, steps=config.acceptance_steps)
            rule = Learned(learned_acceptance(target, walk, x, "free", matching, recipe=recipe, seed=self.seed))
        start = (MEAN + 2 * noise).clamp(x.min(), x.max())
        kernel = metropolis_hastings(target, walk, rule)
        chains = sample(kernel, start, draws=1, burn_in=config.steps, generator=seeded(20 + number, self.seed))
        last = chains.draws[:, -1, 0].double()
        return {
            "mean": float(last.mean()),
            "variance": float(last.var()),
            "distance": float(stats.kstest(last.numpy(), stats.norm(MEAN, VARIANCE**0.5).cdf).statistic),
            "acceptance": chains.acceptance_rate,
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
    """Return the chains of all ways, then the distances between the paper's."""
    pairs = [Between(*pair, seed) for seed in config.seeds for pair in combinations(PAPER_WAYS, 2)]
    return [grid(Way, seed=config.seeds, way=WAYS), [*pairs]]


def farthest(records: Records) -> Record:
    """Return the record of one of the paper's ways that is farthest from the distribution."""
    ways = [record for record in records.kinds["gaussian"] if record["way"] in PAPER_WAYS]
    return max(ways, key=lambda record: record["distance"])


def farthest_apart(records: Records) -> Record:
    """Return the record of the two ways that are farthest from each other."""
    return max(records.kinds["between"], key=lambda record: record["distance"])


def similar(records: Records) -> bool:
    """Return whether the paper's ways agree with the distribution and with each other, for every seed."""
    return all(one(records)["distance"] < MAX_DISTANCE for one in (farthest, farthest_apart))


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw the histograms of the first seed over the density."""
    seed = records.settings["seeds"][0]
    shown = {name: record for way, name in WAYS.items() for record in records.where("gaussian", way=way, seed=seed)}
    plots.histogram_panels(
        {name: torch.tensor(record["draws"]) for name, record in shown.items()},
        docs / "gaussian.png",
        captions=[
            f"mean {record['mean']:.2f}, variance {record['variance']:.2f}\ndistance {record['distance']:.4f}"
            for record in shown.values()
        ],
        log_density=TARGET.log_density,
        title=f"N(3, 2) by a random walk: last draws, and the density (seed {seed})",
    )


STUDY = Study(
    "gaussian",
    "the sanity check, N(3, 2) by a random walk with the density and with learned acceptances",
    PRESETS,
    stages,
    (Way, Between),
    picture,
    globals(),
    {"similar": Claim("an acceptance trained with a learned score performs like one with the true score", similar)},
    shows_draws=True,
)
