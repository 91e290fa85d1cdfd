"""What `experiments.mixture` measures: chains of samplers, with true and with learned scores, from several starts."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from scoremh.experiments._acceptance_cells import FIGURE_1, learned_score, seeded
from scoremh.experiments._cells import Task
from scoremh.types import Acceptance, Proposal, TargetLike

FIRST = "N(0, I)"
STARTS: dict[str, Callable[[int, Generator], Tensor]] = {
    FIRST: lambda n, g: torch.randn(n, 2, generator=g),
    "N((5, 5), I)": lambda n, g: 5 + torch.randn(n, 2, generator=g),
    "N(0, 25 I)": lambda n, g: 5 * torch.randn(n, 2, generator=g),
    "the law itself": lambda n, g: FIGURE_1.sample(n, generator=g),
}
WORDS = {
    "score": ("seed",),
    "acceptance": ("sampler", "seed"),
    "original": ("seed",),
    "chains": ("sampler", "start", "seed"),
}


@dataclass(frozen=True)
class Config:
    """What decides the numbers.

    Args:
        seeds: Of samples, trainings and chains.
        chains: From every start.
        steps: Of a chain.
        settling: Of those, the first ones, in which jumps are not counted.
        step_size: Of ULA and MALA, h.
        wide_std: Of a random walk whose candidates reach the other mode: half the distance between the modes.
        std: Of a random walk whose candidates do not.
        samples: To learn from.
        score_steps: Of the score's training, at most.
        acceptance_steps: Of an acceptance's training, at most.
    """

    seeds: tuple[int, ...]
    chains: int = 500
    steps: int = 800
    settling: int = 100
    step_size: float = 0.5
    wide_std: float = 7.0
    std: float = 1.7
    samples: int = 10_000
    score_steps: int = 2000
    acceptance_steps: int = 700


def samplers(config: Config) -> dict[str, tuple[Proposal, Acceptance | None]]:
    """Return proposals and rules by name; a rule that is None is learned.

    Args:
        config: The preset.
    """
    wide, narrow, langevin = RandomWalk(config.wide_std), RandomWalk(config.std), MALA(config.step_size)
    return {
        "ULA": (langevin, Always()),
        "RW": (wide, Exact()),
        "narrow RW": (narrow, Exact()),
        "MALA": (langevin, Exact()),
        "Score RW": (wide, None),
        "narrow Score RW": (narrow, None),
        "Score MALA": (langevin, None),
    }


def stages(config: Config) -> list[list[Task]]:
    """Return the tasks: scores, acceptances, chains.

    Args:
        config: The preset.
    """
    seeds, every = [str(seed) for seed in config.seeds], samplers(config)
    acceptances = [("acceptance", name, seed) for seed in seeds for name, (_, rule) in every.items() if rule is None]
    chains = [("chains", name, start, seed) for seed in seeds for name in every for start in STARTS]
    originals = [("original", seed) for seed in seeds]
    return [[("score", seed) for seed in seeds], [*acceptances], [*originals, *chains]]


def cell(task: Task, *, config: Config, folder: Path) -> dict[str, Any]:
    """Learn a score or an acceptance, or run the chains of a sampler from a start.

    Args:
        task: Its words.
        config: The preset.
        folder: Of scores and acceptances.
    """
    (kind, *words), seed = task[:-1], int(task[-1])
    place = folder / f"seed_{seed}"
    place.mkdir(exist_ok=True)
    if kind == "original":
        return describe(FIGURE_1.sample(config.chains, generator=seeded(2, seed))[:, None])
    if kind == "score":
        return {"seconds": scored(config, place, seed)[0].seconds}
    if kind == "acceptance":
        score, x = scored(config, place, seed)
        proposal, _ = samplers(config)[words[0]]
        recipe = replace(RECIPE, steps=config.acceptance_steps)
        fit = fit_acceptance(score, proposal, x, form="free", recipe=recipe, generator=seeded(3, seed))
        fit.save(place / f"{words[0]}.safetensors")
        return {"seconds": fit.seconds, "balance": fit.history["balance"][-1]}
    return run_chains(words[0], words[1], config, place, seed)


def scored(config: Config, place: Path, seed: int) -> tuple[ScoreFit, Tensor]:
    """Return the seed's learned score, and the samples it is of."""
    recipe = Recipe(steps=config.score_steps)
    return learned_score("mixture", place, samples=config.samples, recipe=recipe, seed=seed)


def run_chains(name: str, start: str, config: Config, place: Path, seed: int) -> dict[str, Any]:
    """Run the chains of a sampler from a start; those of a learned score begin within its box."""
    number, which = list(samplers(config)).index(name), list(STARTS).index(start)
    proposal, rule = samplers(config)[name]
    initial = STARTS[start](config.chains, seeded(10 + which, seed))
    target: TargetLike = FIGURE_1
    if rule is None:
        score, _ = scored(config, place, seed)
        target, rule = score, Learned(AcceptanceFit.load(place / f"{name}.safetensors"))
        initial = initial.clamp(score.support.low, score.support.high)
    chains = sample(
        metropolis_hastings(target, proposal, rule),
        initial,
        draws=config.steps - config.settling,
        warmup=config.settling,
        generator=seeded(20 + len(STARTS) * number + which, seed),
    )
    return describe(chains.draws, initial, chains.acceptance_rate)


def nearer(x: Tensor) -> Tensor:
    """Return 0 for points nearer to (5, 5), 1 for the others.

    Args:
        x: The points.
    """
    return (x.sum(-1) < 0).long()


def share(x: Tensor) -> float:
    """Return the share of points that are nearer to (5, 5).

    Args:
        x: The points.
    """
    return float((nearer(x) == 0).double().mean())


def describe(draws: Tensor, initial: Tensor | None = None, acceptance_rate: float | None = None) -> dict[str, Any]:
    """Return weight, jumps per chain, and the variance of a coordinate around its mode, 1 for the law.

    Args:
        draws: `(chain, draw, 2)`.
        initial: Where the chains began; independent draws have no beginning and no jumps.
        acceptance_rate: Of the chains.
    """
    side, last = nearer(draws), draws[:, -1]
    centre = torch.where(nearer(last)[:, None] == 0, 5.0, -5.0)
    found: dict[str, Any] = {"weight": share(last), "variance": float((last - centre).square().mean())}
    if initial is not None:
        jumps = float((side[:, 1:] != side[:, :-1]).sum(1).double().mean())
        found |= {"start_weight": share(initial), "jumps": jumps, "acceptance": acceptance_rate}
    return found | {"points": [[round(value, 3) for value in point] for point in last.tolist()]}
