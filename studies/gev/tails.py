"""Beyond the paper's heavy tails: which score and which proposal cover the 99.9 % quantile of GEV(0, 1, 0.5)?

A score is judged twice. In one dimension it can be integrated, which gives the quantiles of the distribution it stands
for, and those an endless chain would have. And chains are run, whose proposal has to reach the tail in the time there
is.
"""

import math
import statistics
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import integrate
from torch import Tensor

from scoremh import (
    MALA,
    DegenerateRuleWarning,
    DivergenceError,
    LineIntegral,
    RandomWalk,
    Recipe,
    ScoreFit,
    StudentWalk,
    fit_score,
    metropolis_hastings,
    sample,
)
from scoremh.score_matching import LONG_RECIPE
from scoremh.targets import GeneralizedExtremeValue
from scoremh.types import Proposal, ScoreFn, TargetLike
from studies.framework import Cell, Record, grid
from studies.gev import common
from studies.gev.common import METRICS, TAILS
from studies.presets import paper_score

PAPER, DEFAULT, HEAVY = "the paper's", "default", "heavy tails"
TRUE, UNBENT = "true", "true, straight line"
KNOWN = (TRUE, UNBENT)
LEARNED = (PAPER, DEFAULT, HEAVY)
LANGEVIN, WALK, STUDENT = "MALA", "random walk", "Student walk"
PROPOSALS = (LANGEVIN, WALK, STUDENT)
NODES = 40_001  # of the integral of a score
GROUPS = 10  # of chains, whose quantiles tell how well that of all is known
PLACES = 60  # of a curve in the picture
SHARES = np.logspace(-0.3, -4, PLACES)  # of the distribution beyond these places: a half to a ten-thousandth
BENT, STRAIGHT = LineIntegral("adaptive", coordinates=(0.0, 1.0)), LineIntegral("adaptive")


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...]  # random seeds of samples, trainings and chains
    xi: float = 0.5  # shape of the distribution
    sizes: tuple[int, ...] = (10_000, 100_000)  # numbers of samples to learn from; the paper's first
    steps: int = 2000  # training steps of a score, the paper's apart, which has its own
    step_size: float = 0.1  # step size h of MALA: the paper's step
    std: float = 7.0  # standard deviation of a random walk, tuned on the distribution itself to accept 23.4 %
    scale: float = 5.0  # scale of a Student walk's steps, tuned likewise
    freedom: int = 1  # degrees of freedom of its steps
    chains: int = 7000  # chains of every score and proposal
    warmup: int = 300  # steps before the first kept draw
    draws: int = 7  # draws kept of every chain, which are judged together
    thin: int = 40  # steps between kept draws

    def proposal(self, name: str) -> Proposal:
        """Return a proposal by name."""
        if name == LANGEVIN:
            return MALA(self.step_size)
        return RandomWalk(self.std) if name == WALK else StudentWalk(self.scale, self.freedom)


def seeded(size: int, seed: int, use: int) -> torch.Generator:
    """Return a generator: 0 for samples, 1 for trainings and chains."""
    return torch.Generator().manual_seed(1_000_000 * seed + size + use)


def samples(size: int, seed: int, xi: float) -> Tensor:
    """Return the samples to learn from."""
    return GeneralizedExtremeValue(xi).sample(size, generator=seeded(size, seed, 0))


class Samples(Cell, kind="samples"):
    """The samples themselves."""

    size: int
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        x = samples(self.size, self.seed, config.xi)
        return common.errors(x, config.xi) | {"survival": survival(x, config.xi)}


class Score(Cell, kind="score"):
    """A score learned from samples."""

    score: str
    size: int
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        xi, exact = config.xi, GeneralizedExtremeValue(config.xi)
        try:
            fit = self.fit(config)
        except DivergenceError as error:
            return dict.fromkeys(TAILS) | {"diverged": error.step}
        fit.save(self.path(folder))
        found: Record = integrated(fit.score, float(fit.support.low), float(fit.support.high), xi)
        for name, share in TAILS.items():
            at = torch.full((1, 1), float(common.quantile(share, xi)))
            found[f"ratio at {name}"] = float(fit.score(at) / exact.score(at))
        places = torch.tensor(common.quantile(1 - SHARES, xi), dtype=torch.get_default_dtype())[:, None]
        ratio = torch.where(fit.support(places), (fit.score(places) / exact.score(places))[:, 0], math.nan)
        return found | {"seconds": fit.seconds, "ratios": [v if math.isfinite(v) else None for v in ratio.tolist()]}

    def fit(self, config: Config) -> ScoreFit:
        """Return the fit."""
        x, generator = samples(self.size, self.seed, config.xi), seeded(self.size, self.seed, 1)
        if self.score == PAPER:
            return paper_score(x, "moons", generator=generator)
        recipe = replace(LONG_RECIPE if self.score == HEAVY else Recipe(), steps=config.steps)
        return fit_score(x, heavy_tails=self.score == HEAVY, recipe=recipe, generator=generator)

    def path(self, folder: Path) -> Path:
        """Return the file of the fit."""
        return folder / f"{self.score.replace(' ', '_').replace(chr(39), '')}_{self.size}_{self.seed}.safetensors"


class Chains(Cell, kind="chains"):
    """Chains with a score and a proposal; a score that is known was learned from 0 samples."""

    score: str
    proposal: str
    size: int
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        path = Score(self.score, self.size, self.seed).path(folder)
        if self.size and not path.exists():
            return dict.fromkeys((*METRICS, "acceptance"))
        target: TargetLike = ScoreFit.load(path) if self.size else GeneralizedExtremeValue(config.xi)
        generator = seeded(self.size, self.seed, 1)
        initial = common.normal_starts(config.chains, config.xi, generator)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegenerateRuleWarning)  # of the straight line: what it does is to be seen
            rule = STRAIGHT if self.score == UNBENT else BENT
            kernel = metropolis_hastings(target, config.proposal(self.proposal), rule)
        options: dict[str, Any] = {"draws": config.draws, "burn_in": config.warmup, "thin": config.thin}
        chains = sample(kernel, initial, **options, generator=generator)
        return common.errors(chains.draws, config.xi) | {
            "acceptance": chains.acceptance_rate,
            "q999 noise": quantile_error(chains.draws, config.xi),
            "survival": survival(chains.draws, config.xi),
        }


def stages(config: Config) -> list[list[Cell]]:
    """Return scores by kind, size and seed; then chains of each with every proposal, and of the true one."""
    sizes, seeds = config.sizes, config.seeds
    chains = grid(Chains, size=sizes, seed=seeds, score=LEARNED, proposal=PROPOSALS)
    chains += grid(Chains, size=[0], score=KNOWN, seed=seeds, proposal=PROPOSALS)
    return [[*grid(Samples, size=sizes, seed=seeds), *grid(Score, size=sizes, seed=seeds, score=LEARNED)], chains]


def integrated(score: ScoreFn, low: float, high: float, xi: float) -> Record:
    """Return the relative errors of the quantiles of the distribution that a score stands for between two bounds.

    Args:
        score: Score of events of one coordinate.
        low: Lower bound.
        high: Upper bound.
        xi: Shape of the distribution that the quantiles are compared with.
    """
    x = np.sinh(np.linspace(math.asinh(low), math.asinh(high), NODES))  # as fine in the middle as a long tail allows
    with torch.no_grad():
        s = score(torch.as_tensor(x, dtype=torch.get_default_dtype())[:, None])[:, 0].double().numpy()
    log_p = integrate.cumulative_trapezoid(s, x, initial=0.0)
    below = integrate.cumulative_trapezoid(np.exp(log_p - log_p.max()), x, initial=0.0)
    below /= below[-1]
    return {n: float(np.interp(share, below, x) / common.quantile(share, xi) - 1) for n, share in TAILS.items()}


def quantile_error(draws: Tensor, xi: float) -> float:
    """Return the standard error of the 99.9 % quantile of chains, as a share of it, from groups of them.

    Args:
        draws: Draws `(chain, draw, 1)`.
        xi: Shape of the distribution.
    """
    quantiles = [float(group.double().quantile(TAILS["q999"])) for group in draws.tensor_split(GROUPS)]
    return statistics.stdev(quantiles) / math.sqrt(GROUPS) / float(common.quantile(TAILS["q999"], xi))


def survival(draws: Tensor, xi: float) -> list[float]:
    """Return the share of draws beyond the places that have `SHARES` of the distribution beyond them."""
    x = np.sort(draws.double().flatten().numpy())
    places = common.quantile(1 - SHARES, xi)
    return [float(v) for v in 1 - np.searchsorted(x, places, side="right") / len(x)]
