"""Heavy tails: GEV(0, 1, xi), the generalised extreme value distribution.

Two figures of the paper: ULA and MALA with the true score, and learned scores and acceptances beside MALA. Beyond it:
which score and which proposal reach the 99.9 % quantile? The distribution is known: W1 and MMD are distances to as many
of its equally likely quantiles, and tails are judged by the relative error of two quantiles of the draws.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import integrate, stats
from torch import Tensor

from scoremh import (
    MALA,
    AcceptanceFit,
    Always,
    DivergenceError,
    Exact,
    Learned,
    LineIntegral,
    RandomWalk,
    Recipe,
    ScoreFit,
    StudentWalk,
    fit_acceptance,
    fit_score,
    metropolis_hastings,
    sample,
)
from scoremh.acceptance import Rule
from scoremh.balance_matching import MATCHING, RECIPE
from scoremh.score_matching import LONG_RECIPE
from scoremh.targets import GeneralizedExtremeValue
from scoremh.types import Proposal, ScoreFn, TargetLike
from studies import plots
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.framework.study import values
from studies.framework.tables import mean
from studies.presets import paper_score

MIDDLE = 0.01  # chains start within the quantiles of this and of the rest
TAILS = {"q99": 0.99, "q999": 0.999}
MOST_SHOWN = 10.0  # relative error that a page shows
METRICS = {"w1": "W1", "mmd": "MMD", "q99": "error of the 99 % quantile", "q999": "error of the 99.9 % quantile"}


def seeded(seed: int, xi: float, use: int) -> torch.Generator:
    """Return a generator of its own for every distribution and use, the same for all samplers."""
    return torch.Generator().manual_seed(1_000_000 * seed + 10 * round(100 * (xi + 1)) + use)


def quantile(share: float | np.ndarray, xi: float) -> Any:
    """Return where GEV(0, 1, xi) has this share below it."""
    y = -np.log(-np.log(share))
    return y if xi == 0 else np.expm1(xi * y) / xi


def normal_starts(chains: int, xi: float, generator: torch.Generator) -> Tensor:
    """Return draws from N(0, 1); those outside the middle 98 % of the distribution are moved to the ends of it.

    Some of N(0, 1) is outside the support, and some so near its end that MALA would never leave.
    """
    low, high = (float(quantile(share, xi)) for share in (MIDDLE, 1 - MIDDLE))
    return torch.randn(chains, 1, generator=generator).clamp(low, high)


def exact_draws(chains: int, xi: float, generator: torch.Generator) -> Tensor:
    """Return independent draws."""
    return GeneralizedExtremeValue(xi).sample(chains, generator=generator)


def errors(draws: Tensor, xi: float) -> Record:
    """Return W1, MMD (half an energy distance) and the errors of quantiles; None where draws are not finite."""
    x = draws.detach().double().flatten().numpy()
    if not len(x) or not np.isfinite(x).all():
        return dict.fromkeys(METRICS)
    exact = quantile((np.arange(len(x)) + 0.5) / len(x), xi)
    found = {
        "w1": float(np.abs(np.sort(x) - exact).mean()),
        "mmd": float(stats.energy_distance(x, exact) ** 2 / 2),  # SciPy's is the root
    }
    return found | {name: float(np.quantile(x, share) / quantile(share, xi) - 1) for name, share in TAILS.items()}


def percent(numbers: Sequence[float]) -> str:
    """Return a mean relative error as text; what is not finite is said to have run away."""
    away = sum(not math.isfinite(value) for value in numbers)
    if away:
        return "ran away" if away == len(numbers) else f"{away} of {len(numbers)} ran away"
    if not numbers:
        return ""
    error = statistics.mean(numbers)
    return f"{error:+.0%}" if error < MOST_SHOWN else f"over +{MOST_SHOWN:,.0%}"


def curves(rows: Mapping[str, Sequence[Record]], xis: Sequence[float], key: str) -> dict[str, plots.Curve]:
    """Return the mean size of one number over xi, without points for diverged chains."""
    lines: dict[str, plots.Curve] = {}
    for name, there in rows.items():
        sizes = {xi: [abs(value) for value in values([r for r in there if r["xi"] == xi], key)] for xi in xis}
        good = {xi: statistics.mean(found) for xi, found in sizes.items() if found and all(map(math.isfinite, found))}
        lines[name] = (list(good), list(good.values()))
    return lines


# The first figure: does an accept step matter more as the tail becomes heavier?

STARTS = {"normal": "N(0, 1)", "exact": "the distribution"}
COMPARED = ("ULA", "MALA")
CLEAR_TREND = 0.5  # a rank correlation above is called a trend


@dataclass(frozen=True)
class Adjustment:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1, 2, 3)  # random seeds of the chains
    xis: tuple[float, ...] = (-0.5, -0.3, -0.1, 0.0, 0.1, 0.3, 0.5, 0.7, 0.9)  # shapes of the distribution
    # step sizes h of ULA and MALA. The paper writes "step .1", which is h or, as epsilon, an h of .005
    step_sizes: tuple[float, ...] = (0.1, 0.005)
    chains: int = 5000  # chains from each start; the last draw of each is compared
    steps: int = 600  # steps of a chain
    draws: ClassVar[int] = 1  # of a chain


class Floor(Cell, kind="floor"):
    """As many exact draws as chains have draws."""

    xi: float
    seed: int

    def measure(self, config: "Adjustment | Learning", folder: Path) -> Record:
        n = config.chains * config.draws
        return errors(exact_draws(n, self.xi, seeded(self.seed, self.xi, 1)), self.xi)


class Adjusted(Cell, kind="chains"):
    """The chains of a sampler from a start."""

    sampler: str
    start: str
    xi: float
    step: float
    seed: int

    def measure(self, config: Adjustment, folder: Path) -> Record:
        begin = {"normal": normal_starts, "exact": exact_draws}[self.start]
        initial = begin(config.chains, self.xi, seeded(self.seed, self.xi, 2))
        rule = Always() if self.sampler == "ULA" else Exact()
        kernel = metropolis_hastings(GeneralizedExtremeValue(self.xi), MALA(self.step), rule)
        generator = seeded(self.seed, self.xi, 3)
        return errors(sample(kernel, initial, draws=1, thin=config.steps, generator=generator).last, self.xi)


def adjustment_stages(config: Adjustment) -> list[list[Cell]]:
    """Return chains and the floor of exact draws."""
    axes: dict[str, Any] = {"xi": config.xis, "seed": config.seeds}
    return [grid(Floor, **axes) + grid(Adjusted, sampler=COMPARED, start=STARTS, step=config.step_sizes, **axes)]


def matters_more(records: Records) -> dict[str, bool]:
    """Return for every start, step and metric whether what ULA loses against MALA grows with xi.

    It does where its rank correlation with xi is a trend, and where it is above two standard errors at the largest xi.
    """
    found, xis = {}, records.settings["xis"]
    for start, h, key in product(STARTS, records.settings["step_sizes"], METRICS):
        gaps = []
        for xi in xis:
            place = {"start": start, "xi": xi, "step": h}
            ula, mala = (map(abs, records.values("chains", key, sampler=s, **place)) for s in COMPARED)
            gaps.append([a - b for a, b in zip(ula, mala, strict=True)])
        means, last = [statistics.mean(gap) for gap in gaps], gaps[-1]
        error = statistics.stdev(last) / math.sqrt(len(last)) if len(last) > 1 else 0.0
        slope = 0.0 if len(set(means)) < 2 else float(stats.spearmanr(xis, means).statistic)
        found[f"{key}, {start}, h = {h:g}"] = slope > CLEAR_TREND and means[-1] > 2 * error
    return found


def adjustment_picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw the errors over xi, a panel for every metric and start."""
    panels = {}
    for start, key in product(STARTS, [key for key in METRICS if key != "q99"]):
        lines = {"exact draws": list(records.kinds["floor"])}
        for h, sampler in product(records.settings["step_sizes"], COMPARED):
            lines[f"{sampler}, h = {h:g}"] = records.where("chains", sampler=sampler, start=start, step=h)
        panels[f"{METRICS[key]}, from {STARTS[start]}"] = curves(lines, records.settings["xis"], key)
    draw(panels, docs / "gev-adjustment.png", 3, "GEV(0, 1, xi): with and without an accept step, beside exact draws")


def draw(panels: Mapping[str, Mapping[str, plots.Curve]], path: Path, columns: int, title: str) -> None:
    """Draw errors over xi, each panel with heights of its own."""
    labels = ("xi", "distance, relative error")
    plots.curve_panels(panels, path, labels=labels, log="y", shared=False, columns=columns, title=title)


# The second figure: learned scores and acceptances beside MALA.

EXACT, TRUE, FREE = "MALA", "Score MALA, true score", "Score MALA, learned score"
LINE, ULA, HEAVY = "line integral, learned score", "ULA, learned score", "line integral, heavy-tailed score"
SAMPLERS = (EXACT, TRUE, FREE, LINE, ULA, HEAVY)
PAPER = (TRUE, FREE)  # what the paper calls competitive with MALA
MAX_RATIO = 2.0  # times MALA's error, or the floor's where that is more, for a sampler that is competitive


@dataclass(frozen=True)
class Learning:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1, 2, 3)  # random seeds of samples, trainings and chains
    xis: tuple[float, ...] = (-0.5, -0.2, 0.0, 0.3, 0.6, 0.9)  # shapes of the distribution
    step_size: float = 0.1  # step size h. The paper's "step .1" is taken for h
    samples: int = 10_000  # samples to learn from
    score_steps: int = 1500  # training steps of a score
    acceptance_steps: int = 500  # training steps of an acceptance
    clip: float = 10.0  # largest gradient C of a pair; the paper gives no number
    chains: int = 2000  # chains of every sampler
    warmup: int = 300  # steps before the first kept draw
    draws: int = 5  # draws kept of every chain, which are judged together
    thin: int = 50  # steps between kept draws


class Fit(Cell, kind="fit"):
    """A learned score, one with heavy tails, and acceptances with the first and with the true score."""

    xi: float
    seed: int

    def measure(self, config: Learning, folder: Path) -> Record:
        target, generator = GeneralizedExtremeValue(self.xi), seeded(self.seed, self.xi, 5)
        x = target.sample(config.samples, generator=generator)
        score = fit_score(x, recipe=Recipe(config.score_steps), generator=generator)
        score.save(self.path(folder, "score"))
        long = replace(LONG_RECIPE, steps=config.score_steps, check_every=100)
        fit_score(x, heavy_tails=True, recipe=long, generator=generator).save(self.path(folder, "heavy"))
        options: dict[str, Any] = {
            "matching": replace(MATCHING["free"], clip=config.clip),
            "recipe": replace(RECIPE, steps=config.acceptance_steps, check_every=100),
            "generator": generator,
        }
        trained: dict[str, TargetLike] = {TRUE: target, FREE: score}
        for name, known in trained.items():
            fit = fit_acceptance(known, MALA(config.step_size), x, form="free", **options)
            fit.save(self.path(folder, name))
        return {"score seconds": score.seconds}

    def path(self, folder: Path, name: str) -> Path:
        """Return the file of a fit."""
        return folder / f"{name}_{self.xi:g}_{self.seed}.safetensors"


class Sampled(Cell, kind="chains"):
    """The chains of a sampler."""

    sampler: str
    xi: float
    seed: int

    def measure(self, config: Learning, folder: Path) -> Record:
        generator, (target, rule) = seeded(self.seed, self.xi, 0), self.target_and_rule(folder)
        initial = normal_starts(config.chains, self.xi, generator)
        kernel = metropolis_hastings(target, MALA(config.step_size), rule)
        options: dict[str, Any] = {"draws": config.draws, "burn_in": config.warmup, "thin": config.thin}
        return errors(sample(kernel, initial, **options, generator=generator).draws, self.xi)

    def target_and_rule(self, folder: Path) -> tuple[TargetLike, Rule]:
        """Return the target and the acceptance rule."""
        fit = Fit(self.xi, self.seed)
        known: TargetLike = GeneralizedExtremeValue(self.xi)
        if self.sampler not in (EXACT, TRUE):
            known = ScoreFit.load(fit.path(folder, "heavy" if self.sampler == HEAVY else "score"))
        if self.sampler in PAPER:
            return known, Learned(AcceptanceFit.load(fit.path(folder, self.sampler)))
        rules: dict[str, Rule] = {EXACT: Exact(), ULA: Always()}
        return known, rules.get(self.sampler, LineIntegral("simpson"))


def learning_stages(config: Learning) -> list[list[Cell]]:
    """Return trainings, then chains and the floor."""
    axes: dict[str, Any] = {"xi": config.xis, "seed": config.seeds}
    return [grid(Fit, **axes), [*grid(Floor, **axes), *grid(Sampled, **axes, sampler=SAMPLERS)]]


def competitive(records: Records, sampler: str, key: str) -> list[float]:
    """Return the xi at which a sampler's error is at most twice that of MALA, or of exact draws where that is more."""

    def error(found: list[Record]) -> float:
        return mean([abs(value) for value in values(found, key)])

    good = []
    for xi in records.settings["xis"]:
        own, mala = (records.where("chains", sampler=name, xi=xi) for name in (sampler, EXACT))
        if error(own) <= MAX_RATIO * max(error(mala), error(records.where("floor", xi=xi))):
            good.append(xi)
    return good


def paper_is_competitive(records: Records) -> dict[str, bool]:
    """Return for every sampler of the paper, metric and xi whether it is competitive with MALA."""
    places = product(PAPER, ("w1", "mmd"), records.settings["xis"])
    return {f"{s}, {METRICS[key]}, xi = {xi:g}": xi in competitive(records, s, key) for s, key, xi in places}


def learning_picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw the errors over xi, a panel for every metric."""
    lines = {"exact draws": list(records.kinds["floor"])} | {s: records.where("chains", sampler=s) for s in SAMPLERS}
    panels = {name: curves(lines, records.settings["xis"], key) for key, name in METRICS.items()}
    draw(panels, docs / "gev-learned.png", 2, "GEV(0, 1, xi): learned scores and acceptances beside MALA")


# Beyond the paper: which score and which proposal reach the 99.9 % quantile?

PAPERS, DEFAULT, HEAVY_TAILS, KNOWN = "the paper's", "default", "heavy tails", "true"
LEARNED = (PAPERS, DEFAULT, HEAVY_TAILS)
PROPOSALS = ("MALA", "random walk", "Student walk")
NODES = 40_001  # of the integral of a score
MAX_ERROR = 0.1  # relative error of the 99.9 % quantile that counts as reached


@dataclass(frozen=True)
class Tail:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1, 2, 3)  # random seeds of samples, trainings and chains
    xi: float = 0.5  # shape of the distribution
    samples: int = 100_000  # to learn from
    steps: int = 2000  # training steps of a score, the paper's apart, which has its own
    step_size: float = 0.1  # step size h of MALA: the paper's step
    std: float = 7.0  # standard deviation of a random walk, tuned on the distribution itself to accept 23.4 %
    scale: float = 5.0  # scale of a Student walk's steps, with one degree of freedom, tuned likewise
    chains: int = 7000  # chains of every score and proposal
    warmup: int = 300  # steps before the first kept draw
    draws: int = 7  # draws kept of every chain, which are judged together
    thin: int = 40  # steps between kept draws

    def proposal(self, name: str) -> Proposal:
        """Return a proposal by name."""
        if name == "MALA":
            return MALA(self.step_size)
        return RandomWalk(self.std) if name == "random walk" else StudentWalk(self.scale, 1)


class Score(Cell, kind="score"):
    """A score learned from samples, judged by the quantiles of its integral: those of endless chains."""

    score: str
    size: int
    seed: int

    def measure(self, config: Tail, folder: Path) -> Record:
        x, generator = exact_draws(self.size, config.xi, self.seeded(0)), self.seeded(1)
        try:
            if self.score == PAPERS:
                fit = paper_score(x, "moons", generator=generator)
            else:
                heavy = self.score == HEAVY_TAILS
                recipe = replace(LONG_RECIPE if heavy else Recipe(), steps=config.steps)
                fit = fit_score(x, heavy_tails=heavy, recipe=recipe, generator=generator)
        except DivergenceError:
            return {"q999": None}
        fit.save(self.path(folder))
        return {"q999": integrated(fit.score, float(fit.support.low), float(fit.support.high), config.xi)}

    def seeded(self, use: int) -> torch.Generator:
        """Return a generator: 0 for samples, 1 for trainings and chains."""
        return torch.Generator().manual_seed(1_000_000 * self.seed + self.size + use)

    def path(self, folder: Path) -> Path:
        """Return the file of the fit."""
        return folder / f"{self.score.replace(' ', '_').replace(chr(39), '')}_{self.size}_{self.seed}.safetensors"


class TailChains(Cell, kind="chains"):
    """Chains with a score and a proposal; a score that is known was learned from 0 samples."""

    score: str
    proposal: str
    size: int
    seed: int

    def measure(self, config: Tail, folder: Path) -> Record:
        learned = Score(self.score, self.size, self.seed)
        if self.size and not learned.path(folder).exists():
            return dict.fromkeys(METRICS)
        target: TargetLike = ScoreFit.load(learned.path(folder)) if self.size else GeneralizedExtremeValue(config.xi)
        generator = learned.seeded(1)
        initial = normal_starts(config.chains, config.xi, generator)
        # straight in asinh(x): along a line in x, the nodes of a long step miss the middle of the distribution
        rule = LineIntegral("exact", coordinates=(0.0, 1.0))
        kernel = metropolis_hastings(target, config.proposal(self.proposal), rule)
        options: dict[str, Any] = {"draws": config.draws, "burn_in": config.warmup, "thin": config.thin}
        return errors(sample(kernel, initial, **options, generator=generator).draws, config.xi)


def tail_stages(config: Tail) -> list[list[Cell]]:
    """Return scores by kind and seed; then chains of each with every proposal, and of the true one."""
    size, seeds = [config.samples], config.seeds
    chains = grid(TailChains, size=size, seed=seeds, score=LEARNED, proposal=PROPOSALS)
    chains += grid(TailChains, size=[0], score=[KNOWN], seed=seeds, proposal=PROPOSALS)
    return [grid(Score, size=size, seed=seeds, score=LEARNED), chains]


def integrated(score: ScoreFn, low: float, high: float, xi: float) -> float:
    """Return the error of the 99.9 % quantile of the distribution that a score stands for between two bounds."""
    x = np.sinh(np.linspace(math.asinh(low), math.asinh(high), NODES))  # as fine in the middle as a long tail allows
    with torch.no_grad():
        s = score(torch.as_tensor(x, dtype=torch.get_default_dtype())[:, None])[:, 0].double().numpy()
    log_p = integrate.cumulative_trapezoid(s, x, initial=0.0)
    below = integrate.cumulative_trapezoid(np.exp(log_p - log_p.max()), x, initial=0.0)
    return float(np.interp(TAILS["q999"], below / below[-1], x) / quantile(TAILS["q999"], xi) - 1)


def tail_errors(records: Records, score: str, proposal: str) -> list[float]:
    """Return the errors of the 99.9 % quantile, by seed; those of the integral if the proposal is "integrated"."""
    if proposal == "integrated":
        return records.values("score", "q999", score=score)
    return records.values("chains", "q999", score=score, proposal=proposal)


def reached_by(records: Records, score: str) -> list[str]:
    """Return the proposals with which chains with a score reach the quantile."""
    found = {move: [abs(error) for error in tail_errors(records, score, move)] for move in PROPOSALS}
    return [move for move, sizes in found.items() if mean(sizes) <= MAX_ERROR]


ADJUSTMENT = Study(
    "gev-adjustment",
    "heavy tails, first figure: does an accept step matter more as the tail of GEV(0, 1, xi) becomes heavier?",
    Adjustment(),
    adjustment_stages,
    adjustment_picture,
    globals(),
    {"matters_more": Claim("the accept step matters more as the tail becomes heavier", matters_more)},
)
LEARNING = Study(
    "gev-learned",
    "heavy tails, second figure: learned scores and acceptances on GEV(0, 1, xi), beside MALA",
    Learning(),
    learning_stages,
    learning_picture,
    globals(),
    {"competitive": Claim("score-based MALA is competitive with MALA, by W1 and MMD", paper_is_competitive)},
)
TAIL = Study(
    "gev-tails",
    "beyond the paper's heavy tails: which score and which proposal reach the 99.9 % quantile of GEV(0, 1, 0.5)?",
    Tail(),
    tail_stages,
    None,
    globals(),
    {
        "paper_reaches": Claim(
            "the paper's score and MALA with its step reach the 99.9 % quantile",
            lambda records: "MALA" in reached_by(records, PAPERS),
        )
    },
)
