"""Chains of samplers on two modes that lie far apart, with true and with learned scores, from several starts."""

import time
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
from scoremh.balance_matching import RECIPE, FormName
from scoremh.sampler import ANNEALING_STEP_SIZE
from scoremh.types import Kernel, Proposal
from studies.framework import Cell, Record, grid
from studies.learning import FIGURE_1, learned_score, seeded

BETWEEN = "N(0, I)"
EXACT_START = "the law itself"
STARTS: dict[str, Callable[[int, Generator], Tensor]] = {
    BETWEEN: lambda n, g: torch.randn(n, 2, generator=g),
    "N((5, 5), I)": lambda n, g: 5 + torch.randn(n, 2, generator=g),
    "N(0, 25 I)": lambda n, g: 5 * torch.randn(n, 2, generator=g),
    EXACT_START: lambda n, g: FIGURE_1.sample(n, generator=g),
}
START_LABELS = {start: start for start in STARTS} | {EXACT_START: "the distribution itself"}


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...]  # random seeds of samples, trainings and chains
    chains: int = 500  # chains from every start
    steps: int = 800  # steps of a chain
    few_steps: int = 400  # steps of a chain that decides through noise, each of which costs several times more
    settling: int = 100  # first steps in which jumps are not counted
    step_size: float = 0.5  # step size h of ULA and MALA
    # standard deviation of a random walk that reaches the other mode: half the distance of the modes
    wide_std: float = 7.0
    std: float = 1.7  # standard deviation of a random walk that does not
    samples: int = 10_000  # samples to learn from
    score_steps: int = 2000  # maximal number of training steps of the score
    acceptance_steps: int = 700  # maximal number of training steps of an acceptance
    anchored_steps: int = 1200  # the same of one with anchors
    levels: int = 6  # noise levels of replica exchange
    sweeps: int = 80  # sweeps of replica exchange, of four local moves at every level and a swap
    settling_sweeps: int = 20  # first sweeps in which jumps are not counted


class Sampler(NamedTuple):
    """A sampler: the field of `Config` with its step, and a rule; None if that is learned, in a form."""

    kind: str
    step: str
    rule: Rule | None
    form: FormName = "free"
    anchored: bool = False
    steps: str = "steps"  # the field of `Config` with the number of steps
    score_learned: bool = False  # whether a rule that is given has a learned score; one that is learned always has

    def proposal(self, config: Config) -> Proposal:
        """Return the proposal."""
        size = getattr(config, self.step)
        return MALA(size) if self.step == "step_size" else RandomWalk(size)

    def label(self, settings: Any) -> str:
        """Return its name with its step."""
        if self.step == "levels":
            return f"{self.kind}, {settings[self.step]} levels"
        return f"{self.kind}, {'h =' if self.step == 'step_size' else 'std'} {settings[self.step]:g}"


SAMPLERS = {
    "ULA": Sampler("ULA", "step_size", Always()),
    "RW": Sampler("RW", "wide_std", Exact()),
    "narrow RW": Sampler("RW", "std", Exact()),
    "MALA": Sampler("MALA", "step_size", Exact()),
    "Score RW": Sampler("Score RW", "wide_std", None),
    "narrow Score RW": Sampler("Score RW", "std", None),
    "Score MALA": Sampler("Score MALA", "step_size", None),
    "anchored": Sampler("Score RW, anchored", "wide_std", None, anchored=True),
    "antisymmetric": Sampler("Score RW, antisymmetric, anchored", "wide_std", None, "antisymmetric", anchored=True),
    "potential": Sampler("Score RW, potential, anchored", "wide_std", None, "potential", anchored=True),
    "through noise": Sampler(
        "Score RW, through noise", "wide_std", ThroughNoise(), steps="few_steps", score_learned=True
    ),
    "replica exchange": Sampler("Score MALA, replica exchange", "levels", LineIntegral("simpson"), score_learned=True),
}
TRAINED = [name for name, sampler in SAMPLERS.items() if sampler.rule is None]
LEARNED = [name for name, sampler in SAMPLERS.items() if sampler.rule is None or sampler.score_learned]


def folder_of(seed: int, folder: Path) -> Path:
    """Return the folder of the fits of a seed."""
    place = folder / f"seed_{seed}"
    place.mkdir(exist_ok=True)
    return place


def score_and_samples(config: Config, folder: Path, seed: int) -> tuple[ScoreFit, Tensor]:
    """Return the seed's learned score and its samples."""
    recipe, place = Recipe(steps=config.score_steps), folder_of(seed, folder)
    return learned_score("mixture", place, samples=config.samples, recipe=recipe, seed=seed)


class Score(Cell, kind="score"):
    """The learned score."""

    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        return {"seconds": score_and_samples(config, folder, self.seed)[0].seconds}


class Training(Cell, kind="acceptance"):
    """The learned acceptance of a sampler."""

    sampler: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        score, x = score_and_samples(config, folder, self.seed)
        sampler = SAMPLERS[self.sampler]
        recipe = replace(RECIPE, steps=config.anchored_steps if sampler.anchored else config.acceptance_steps)
        options: Any = {"form": sampler.form, "anchors": sampler.anchored, "generator": seeded(3, self.seed)}
        started = time.process_time()
        fit = fit_acceptance(score, sampler.proposal(config), x, recipe=recipe, **options)
        fit.save(self.path(folder))
        return {"seconds": time.process_time() - started, "balance": fit.history["balance"][-1]}

    def path(self, folder: Path) -> Path:
        """Return the file of the fit."""
        return folder_of(self.seed, folder) / f"{self.sampler}.safetensors"


class Original(Cell, kind="original"):
    """Independent draws."""

    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        return described(FIGURE_1.sample(config.chains, generator=seeded(2, self.seed))[:, None])


class Chains(Cell, kind="chains"):
    """The chains of a sampler from a start; those of a learned score start within its box."""

    sampler: str
    start: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        number, which = list(SAMPLERS).index(self.sampler), list(STARTS).index(self.start)
        initial = STARTS[self.start](config.chains, seeded(10 + which, self.seed))
        generator = seeded(20 + len(STARTS) * number + which, self.seed)
        if self.sampler in LEARNED:
            score, _ = score_and_samples(config, folder, self.seed)
            initial = initial.clamp(score.support.low, score.support.high)
            if self.sampler == "replica exchange":
                return exchanged(score, initial, config, generator)
        chains = sample(
            self.kernel(config, folder),
            initial,
            draws=getattr(config, SAMPLERS[self.sampler].steps) - config.settling,
            burn_in=config.settling,
            generator=generator,
        )
        return described(chains.draws, initial, chains.acceptance_rate)

    def kernel(self, config: Config, folder: Path) -> Kernel:
        """Return the kernel of the chains."""
        sampler = SAMPLERS[self.sampler]
        rule, proposal = sampler.rule, sampler.proposal(config)
        if self.sampler not in LEARNED:
            assert rule is not None
            return metropolis_hastings(FIGURE_1, proposal, rule)
        score, _ = score_and_samples(config, folder, self.seed)
        if rule is None:
            fit = AcceptanceFit.load(Training(self.sampler, self.seed).path(folder))
            rule = Learned(fit, "metropolis" if sampler.anchored else "direct")  # as trained, most would be rejected
        return metropolis_hastings(score, proposal, rule)


def exchanged(score: ScoreFit, initial: Tensor, config: Config, generator: Generator) -> Record:
    """Return what replica exchange finds, all of whose levels start from the same points."""
    assert score.noise_level is not None
    assert score.noise_range is not None
    levels = annealing.geometric(score.noise_range[1], score.noise_level, config.levels)

    def kernel_at(level: float) -> Kernel:
        step_size = ANNEALING_STEP_SIZE * level**2
        return metropolis_hastings(
            score.at(level), MALA(step_size, covariance=score.covariance), LineIntegral("simpson")
        )

    options: Any = {"draws": config.sweeps - config.settling_sweeps, "burn_in": config.settling_sweeps}
    found = replica_exchange(kernel_at, levels, initial, model=score, generator=generator, **options)
    return described(found.draws, initial, found.acceptance_rates[-1])


KINDS = (Score, Training, Original, Chains)


def stages(config: Config) -> list[list[Cell]]:
    """Return scores, acceptances, and chains."""
    chains = grid(Chains, seed=config.seeds, sampler=SAMPLERS, start=STARTS)
    return [
        grid(Score, seed=config.seeds),
        grid(Training, seed=config.seeds, sampler=TRAINED),
        [*grid(Original, seed=config.seeds), *chains],
    ]


def mode(x: Tensor) -> Tensor:
    """Return 0 for points nearer to (5, 5), 1 for the others."""
    return (x.sum(-1) < 0).long()


def weight(x: Tensor) -> float:
    """Return the share of points that are nearer to (5, 5)."""
    return float((mode(x) == 0).double().mean())


def described(draws: Tensor, initial: Tensor | None = None, acceptance_rate: float | None = None) -> Record:
    """Return weight, that of the later half of all draws, jumps, and the variance of a coordinate around its mode.

    Args:
        draws: Draws `(chain, draw, 2)`.
        initial: Starts of the chains; independent draws have none, and no jumps.
        acceptance_rate: Acceptance rate of the chains.
    """
    side, last = mode(draws), draws[:, -1]
    centre = torch.where(mode(last)[:, None] == 0, 5.0, -5.0)
    found: Record = {"weight": weight(last), "variance": float((last - centre).square().mean())}
    if initial is not None:
        jumps, half = float((side[:, 1:] != side[:, :-1]).sum(1).double().mean()), draws.shape[1] // 2
        found |= {"start_weight": weight(initial), "jumps": jumps, "acceptance": acceptance_rate}
        found["late_weight"] = weight(draws[:, half:])
    return found | {"points": [[round(value, 3) for value in point] for point in last.tolist()]}
