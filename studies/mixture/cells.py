"""Chains of samplers on two modes that lie far apart, with true and with learned scores, from several starts."""

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
    RandomWalk,
    Recipe,
    ScoreFit,
    fit_acceptance,
    metropolis_hastings,
    sample,
)
from scoremh.balance_matching import RECIPE
from scoremh.types import Acceptance, Proposal, TargetLike
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
    settling: int = 100  # first steps in which jumps are not counted
    step_size: float = 0.5  # step size h of ULA and MALA
    # standard deviation of a random walk that reaches the other mode: half the distance of the modes
    wide_std: float = 7.0
    std: float = 1.7  # standard deviation of a random walk that does not
    samples: int = 10_000  # samples to learn from
    score_steps: int = 2000  # maximal number of training steps of the score
    acceptance_steps: int = 700  # maximal number of training steps of an acceptance


class Sampler(NamedTuple):
    """A sampler: the field of `Config` with its step, and a rule; None if that is learned, together with the score."""

    kind: str
    step: str
    rule: Acceptance | None

    def proposal(self, config: Config) -> Proposal:
        """Return the proposal."""
        size = getattr(config, self.step)
        return MALA(size) if self.step == "step_size" else RandomWalk(size)

    def label(self, settings: Any) -> str:
        """Return its name with its step."""
        return f"{self.kind}, {'h =' if self.step == 'step_size' else 'std'} {settings[self.step]:g}"


SAMPLERS = {
    "ULA": Sampler("ULA", "step_size", Always()),
    "RW": Sampler("RW", "wide_std", Exact()),
    "narrow RW": Sampler("RW", "std", Exact()),
    "MALA": Sampler("MALA", "step_size", Exact()),
    "Score RW": Sampler("Score RW", "wide_std", None),
    "narrow Score RW": Sampler("Score RW", "std", None),
    "Score MALA": Sampler("Score MALA", "step_size", None),
}
LEARNED = [name for name, sampler in SAMPLERS.items() if sampler.rule is None]


def folder_of(seed: int, folder: Path) -> Path:
    """Return the folder of what is learned with a seed."""
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
        recipe, proposal = replace(RECIPE, steps=config.acceptance_steps), SAMPLERS[self.sampler].proposal(config)
        fit = fit_acceptance(score, proposal, x, form="free", recipe=recipe, generator=seeded(3, self.seed))
        fit.save(self.path(folder))
        return {"seconds": fit.seconds, "balance": fit.history["balance"][-1]}

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
        sampler, rule = SAMPLERS[self.sampler], SAMPLERS[self.sampler].rule
        initial = STARTS[self.start](config.chains, seeded(10 + which, self.seed))
        target: TargetLike = FIGURE_1
        if rule is None:
            score, _ = score_and_samples(config, folder, self.seed)
            path = Training(self.sampler, self.seed).path(folder)
            target, rule = score, Learned(AcceptanceFit.load(path))
            initial = initial.clamp(score.support.low, score.support.high)
        chains = sample(
            metropolis_hastings(target, sampler.proposal(config), rule),
            initial,
            draws=config.steps - config.settling,
            warmup=config.settling,
            generator=seeded(20 + len(STARTS) * number + which, self.seed),
        )
        return described(chains.draws, initial, chains.acceptance_rate)


KINDS = (Score, Training, Original, Chains)


def stages(config: Config) -> list[list[Cell]]:
    """Return scores, acceptances, and chains."""
    chains = grid(Chains, seed=config.seeds, sampler=SAMPLERS, start=STARTS)
    return [
        grid(Score, seed=config.seeds),
        grid(Training, seed=config.seeds, sampler=LEARNED),
        [*grid(Original, seed=config.seeds), *chains],
    ]


def mode(x: Tensor) -> Tensor:
    """Return 0 for points nearer to (5, 5), 1 for the others."""
    return (x.sum(-1) < 0).long()


def weight(x: Tensor) -> float:
    """Return the share of points that are nearer to (5, 5)."""
    return float((mode(x) == 0).double().mean())


def described(draws: Tensor, initial: Tensor | None = None, acceptance_rate: float | None = None) -> Record:
    """Return weight, jumps per chain, and the variance of a coordinate around its mode, 1 for the target.

    Args:
        draws: Draws `(chain, draw, 2)`.
        initial: Starts of the chains; independent draws have none, and no jumps.
        acceptance_rate: Acceptance rate of the chains.
    """
    side, last = mode(draws), draws[:, -1]
    centre = torch.where(mode(last)[:, None] == 0, 5.0, -5.0)
    found: Record = {"weight": weight(last), "variance": float((last - centre).square().mean())}
    if initial is not None:
        jumps = float((side[:, 1:] != side[:, :-1]).sum(1).double().mean())
        found |= {"start_weight": weight(initial), "jumps": jumps, "acceptance": acceptance_rate}
    return found | {"points": [[round(value, 3) for value in point] for point in last.tolist()]}
