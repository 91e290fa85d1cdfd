"""The paper's Figure 1: do samplers find the weights of two modes that lie far apart, and from which starts?

The target is 0.8 N((5, 5), I) + 0.2 N((-5, -5), I). What a chain's last draw says about the weights is worth no more
than the number of times the chains went from one mode to the other, so that number stands beside it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from scoremh import (
    MALA,
    AcceptanceFit,
    Always,
    Exact,
    Learned,
    LineIntegral,
    RandomWalk,
    Recipe,
    ScoreFit,
    ThroughNoise,
    annealing,
    fit_acceptance,
    metropolis_hastings,
    replica_exchange,
    sample,
)
from scoremh.acceptance import Rule
from scoremh.balance_matching import RECIPE
from scoremh.sampler import ANNEALING_STEP_SIZE
from scoremh.types import Kernel
from studies import plots
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.framework.tables import mean
from studies.learning import FIGURE_1, learned_score, seeded

WEIGHT = 0.8
BETWEEN = "N(0, I)"
STARTS: dict[str, Callable[[int, Generator], Tensor]] = {
    BETWEEN: lambda n, g: torch.randn(n, 2, generator=g),
    "N((5, 5), I)": lambda n, g: 5 + torch.randn(n, 2, generator=g),
    "the distribution": lambda n, g: FIGURE_1.sample(n, generator=g),
}
MAX_FROM_PAPER = 0.03  # what counts as the paper's number


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1, 2, 3)  # random seeds of samples, trainings and chains
    chains: int = 500  # chains from every start
    steps: int = 800  # steps of a chain
    few_steps: int = 400  # steps of a chain that decides through noise, each of which costs several times more
    settling: int = 100  # first steps in which jumps are not counted
    step_size: float = 0.5  # step size h of ULA and MALA
    wide_std: float = 7.0  # standard deviation of a random walk: half the distance of the modes
    samples: int = 10_000  # samples to learn from
    score_steps: int = 2000  # maximal number of training steps of the score
    acceptance_steps: int = 700  # maximal number of training steps of an acceptance
    anchored_steps: int = 1200  # the same of one with anchors
    levels: int = 6  # noise levels of replica exchange
    sweeps: int = 80  # sweeps of replica exchange, of four local moves at every level and a swap
    settling_sweeps: int = 20  # first sweeps in which jumps are not counted


class Sampler(NamedTuple):
    """A row: its label, its rule (None if that is learned), whether its score is learned, the paper's weight."""

    label: str
    rule: Rule | None
    learned: bool
    paper: float | None = None  # the paper states neither start nor steps


SAMPLERS = {
    "ULA": Sampler("ULA", Always(), False, 0.52),
    "MALA": Sampler("MALA", Exact(), False, 0.79),
    "RW": Sampler("random walk", Exact(), False, 0.79),
    "Score RW": Sampler("Score RW, as trained", None, True),
    "anchored": Sampler("Score RW, anchored", None, True),
    "through noise": Sampler("random walk, through noise", ThroughNoise(), True),
    "replica exchange": Sampler("replica exchange", LineIntegral("simpson"), True),
}
TRAINED = [name for name, sampler in SAMPLERS.items() if sampler.rule is None]


def proposal(sampler: str, config: Config) -> MALA | RandomWalk:
    """Return the proposal of a sampler."""
    return MALA(config.step_size) if sampler in ("ULA", "MALA") else RandomWalk(config.wide_std)


def score_and_samples(config: Config, folder: Path, seed: int) -> tuple[ScoreFit, Tensor]:
    """Return the seed's learned score and its samples."""
    return learned_score("mixture", folder, samples=config.samples, recipe=Recipe(config.score_steps), seed=seed)


class Score(Cell, kind="score"):
    """The learned score."""

    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        return {"seconds": score_and_samples(config, folder, self.seed)[0].seconds}


class Training(Cell, kind="acceptance"):
    """The learned acceptance of a sampler, in the free form."""

    sampler: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        score, x = score_and_samples(config, folder, self.seed)
        anchors = self.sampler == "anchored"
        recipe = replace(RECIPE, steps=config.anchored_steps if anchors else config.acceptance_steps)
        options: Any = {"form": "free", "anchors": anchors, "generator": seeded(3, self.seed)}
        fit = fit_acceptance(score, proposal(self.sampler, config), x, recipe=recipe, **options)
        fit.save(self.path(folder))
        return {"seconds": fit.seconds}

    def path(self, folder: Path) -> Path:
        """Return the file of the fit."""
        return folder / f"{self.sampler} {self.seed}.safetensors"


class Chains(Cell, kind="chains"):
    """The chains of a sampler from a start; those of a learned score start within its box."""

    sampler: str
    start: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        number, which = list(SAMPLERS).index(self.sampler), list(STARTS).index(self.start)
        initial = STARTS[self.start](config.chains, seeded(10 + which, self.seed))
        generator = seeded(20 + len(STARTS) * number + which, self.seed)
        if SAMPLERS[self.sampler].learned:
            score, _ = score_and_samples(config, folder, self.seed)
            initial = initial.clamp(score.support.low, score.support.high)
            if self.sampler == "replica exchange":
                return described(exchanged(score, initial, config, generator))
        steps = config.few_steps if self.sampler == "through noise" else config.steps
        options: Any = {"draws": steps - config.settling, "burn_in": config.settling, "generator": generator}
        return described(sample(self.kernel(config, folder), initial, **options).draws)

    def kernel(self, config: Config, folder: Path) -> Kernel:
        """Return the kernel of the chains."""
        _, rule, learned, _ = SAMPLERS[self.sampler]
        if rule is None:
            fit = AcceptanceFit.load(Training(self.sampler, self.seed).path(folder))
            rule = Learned(fit, "metropolis" if self.sampler == "anchored" else "direct")
        target = score_and_samples(config, folder, self.seed)[0] if learned else FIGURE_1
        return metropolis_hastings(target, proposal(self.sampler, config), rule)


def exchanged(score: ScoreFit, initial: Tensor, config: Config, generator: Generator) -> Tensor:
    """Return draws by replica exchange, all of whose levels start from the same points."""
    assert score.noise_level is not None
    assert score.noise_range is not None
    levels = annealing.geometric(score.noise_range[1], score.noise_level, config.levels)

    def kernel_at(level: float) -> Kernel:
        step = MALA(ANNEALING_STEP_SIZE * level**2, covariance=score.covariance)
        return metropolis_hastings(score.at(level), step, LineIntegral("simpson"))

    options: Any = {"draws": config.sweeps - config.settling_sweeps, "burn_in": config.settling_sweeps}
    return replica_exchange(kernel_at, levels, initial, model=score, generator=generator, **options).draws


def described(draws: Tensor) -> Record:
    """Return the weight of (5, 5) among the last draws, jumps per chain, and the last draws, of `(chain, draw, 2)`."""
    upper, last = draws.sum(-1) >= 0, draws[:, -1]
    jumps = float((upper[:, 1:] != upper[:, :-1]).sum(1).double().mean())
    points = [[round(value, 3) for value in point] for point in last.tolist()]
    return {"weight": float(upper[:, -1].double().mean()), "jumps": jumps, "points": points}


def stages(config: Config) -> list[list[Cell]]:
    """Return scores, acceptances, and chains."""
    chains = grid(Chains, seed=config.seeds, sampler=SAMPLERS, start=STARTS)
    return [grid(Score, seed=config.seeds), grid(Training, seed=config.seeds, sampler=TRAINED), chains]


def mean_weight(records: Records, sampler: str, start: str) -> float:
    """Return the mean weight over seeds."""
    return mean(records.values("chains", "weight", sampler=sampler, start=start))


def finds(records: Records, sampler: str) -> bool:
    """Return whether the weight is within three standard errors of as many exact draws of 0.8, from every start."""
    draws = records.settings["chains"] * len(records.settings["seeds"])
    error = math.sqrt(WEIGHT * (1 - WEIGHT) / draws)
    return all(abs(mean_weight(records, sampler, start) - WEIGHT) <= 3 * error for start in STARTS)


def ula_misses(records: Records) -> bool:
    """Return whether there is a start from which ULA and MALA both have the paper's weights."""
    both = {name: SAMPLERS[name].paper or 0.0 for name in ("ULA", "MALA")}
    near = {s: [abs(mean_weight(records, n, s) - w) <= MAX_FROM_PAPER for n, w in both.items()] for s in STARTS}
    return any(map(all, near.values()))


def learned_finds(records: Records) -> dict[str, bool]:
    """Return which rows with a learned score find the weights, from every start."""
    return {one.label: finds(records, name) for name, one in SAMPLERS.items() if one.learned}


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw the first seed's last draws of chains from between the modes."""
    seed = records.settings["seeds"][0]
    there = {name: records.where("chains", sampler=name, start=BETWEEN, seed=seed)[0] for name in SAMPLERS}
    plots.scatter_panels(
        {SAMPLERS[name].label: torch.tensor(record["points"]) for name, record in there.items()},
        docs / "mixture.png",
        captions=[f"weight {r['weight']:.2f}\n{r['jumps']:.2g} jumps per chain" for r in there.values()],
        title=f"Two modes of weights 0.8 and 0.2: the last draws of chains from {BETWEEN}",
    )


STUDY = Study(
    "mixture",
    "the paper's Figure 1: do samplers find the weights of two modes that lie far apart, and from which starts?",
    Config(),
    stages,
    picture,
    globals(),
    {
        "ula_misses": Claim("ULA misses the relative weights where MALA finds them", ula_misses),
        "learned": Claim("with a learned score, the weights are found from every start", learned_finds),
    },
)
