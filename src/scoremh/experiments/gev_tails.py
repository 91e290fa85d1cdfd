"""Beyond the paper's heavy tails: which score and which proposal cover the 99.9 % quantile of GEV(0, 1, 0.5)?

A score is judged twice. In one dimension it can be integrated, which gives the quantiles of the law it stands for, and
those an endless chain would have. And chains are run, whose proposal has to reach the tail in the time there is.
"""

import math
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
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
    plots,
    sample,
)
from scoremh.experiments import _figures as figures
from scoremh.experiments import _gev as gev
from scoremh.experiments._cells import Task, markdown
from scoremh.targets import GeneralizedExtremeValue
from scoremh.types import Proposal, ScoreFn, TargetLike

NAME = "gev-tails"
PAPER, DEFAULT, HEAVY = "the paper's", "default", "heavy tails"
TRUE, UNBENT = "true", "true, straight line"
KNOWN = (TRUE, UNBENT)
LEARNED = (PAPER, DEFAULT, HEAVY)
LANGEVIN, WALK, STUDENT = "MALA", "random walk", "Student walk"
PROPOSALS = (LANGEVIN, WALK, STUDENT)
GOAL = 0.1  # relative error of the 99.9 % quantile
GRID = 40_001  # nodes of the integral of a score
GROUPS = 10  # of chains, whose quantiles tell how well that of all is known
SHOWN = 60  # places of a curve in the picture
BENT, STRAIGHT = LineIntegral("adaptive", bend=(0.0, 1.0)), LineIntegral("adaptive")


@dataclass(frozen=True)
class Config:
    """What decides the numbers.

    Args:
        seeds: One run for each.
        xi: Shape of the law.
        sizes: Numbers of samples to learn from; the paper's first.
        steps: Of the training of a score, the paper's apart, which has its own.
        step_size: h of MALA: the paper's step.
        std: Of a random walk, tuned on the law itself to accept 23.4 %.
        scale: Of a Student walk's steps, tuned likewise.
        freedom: Of its Student law.
        chains: Of every score and proposal.
        warmup: Steps before the first kept draw.
        draws: Kept of every chain, and judged together.
        thin: Steps per kept draw.
    """

    seeds: tuple[int, ...]
    xi: float = 0.5
    sizes: tuple[int, ...] = (10_000, 100_000)
    steps: int = 2000
    step_size: float = 0.1
    std: float = 7.0
    scale: float = 5.0
    freedom: int = 1
    chains: int = 7000
    warmup: int = 300
    draws: int = 7
    thin: int = 40


PRESETS = {
    "quick": Config(seeds=(11,), sizes=(10_000,), chains=2000, warmup=200, draws=5, thin=20),
    "paper": Config(seeds=(1, 2, 3)),
}


def stages(config: Config) -> list[list[Task]]:
    """Return the tasks: scores by kind, size and seed; then chains of each with every proposal, and of the true one."""
    each = [(str(size), str(seed)) for size in config.sizes for seed in config.seeds]
    fits: list[Task] = [("score", kind, *words) for words in each for kind in LEARNED]
    samples: list[Task] = [("samples", *words) for words in each]
    runs: list[Task] = [("chains", kind, move, *words) for words in each for kind in LEARNED for move in PROPOSALS]
    runs += [
        ("chains", kind, move, "0", seed) for kind in KNOWN for seed in map(str, config.seeds) for move in PROPOSALS
    ]
    return [samples + fits, runs]


def cell(task: Task, *, config: Config, folder: Path) -> dict[str, Any]:
    """Learn a score and integrate it, or run chains.

    Args:
        task: As `stages` made it.
        config: The preset.
        folder: Of the scores.
    """
    kind, *words, seed = task
    size, law = int(words[-1]), GeneralizedExtremeValue(config.xi)
    own = 1_000_000 * int(seed) + size
    x = law.sample(size, generator=torch.Generator().manual_seed(own)) if size else None
    if kind == "samples":
        assert x is not None
        return dict(gev.measures(x, config.xi)) | {"survival": survival(x, config.xi)}
    path = folder / f"{words[0].replace(' ', '_').replace(chr(39), '')}_{size}_{seed}.safetensors"
    generator = torch.Generator().manual_seed(own + 1)
    if kind == "score":
        assert x is not None
        return _learn(words[0], x, path, config, generator)
    if size and not path.exists():  # its training ran away
        return dict.fromkeys((*gev.METRICS, "acceptance"))
    target: TargetLike = ScoreFit.load(path) if size else law
    proposals: dict[str, Proposal] = {
        LANGEVIN: MALA(config.step_size),
        WALK: RandomWalk(config.std),
        STUDENT: StudentWalk(config.scale, config.freedom),
    }
    initial = gev.starts(config.chains, config.xi, generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateRuleWarning)  # of the unbent line: what it does is to be seen
        kernel = metropolis_hastings(target, proposals[words[1]], STRAIGHT if words[0] == UNBENT else BENT)
    chains = sample(
        kernel,
        initial,
        draws=config.draws,
        warmup=config.warmup,
        thin=config.thin,
        generator=generator,
    )
    numbers: dict[str, Any] = dict(gev.measures(chains.draws, config.xi)) | {"acceptance": chains.acceptance_rate}
    numbers["q999 noise"] = noise(chains.draws, config.xi)
    return numbers | {"survival": survival(chains.draws, config.xi)}


def _learn(kind: str, x: Tensor, path: Path, config: Config, generator: torch.Generator) -> dict[str, Any]:
    """Learn a score, keep it, and return what it says of the tail."""
    recipe, law = Recipe(config.steps), GeneralizedExtremeValue(config.xi)
    places = torch.tensor(gev.quantile(1 - np.logspace(-0.3, -4, SHOWN), config.xi), dtype=x.dtype)[:, None]
    try:
        if kind == PAPER:
            fit = fit_score(x, preset="moons", generator=generator)
        else:
            fit = fit_score(x, heavy_tails=kind == HEAVY, recipe=recipe, generator=generator)
    except DivergenceError as error:
        return dict.fromkeys(gev.TAILS) | {"diverged": error.step}
    fit.save(path)
    found: dict[str, Any] = integrated(fit.score, float(fit.support.low), float(fit.support.high), config.xi)
    for name, share in gev.TAILS.items():
        at = torch.full((1, 1), float(gev.quantile(share, config.xi)))
        found[f"ratio at {name}"] = float(fit.score(at) / law.score(at))
    inside = fit.support(places)
    ratio = torch.where(inside, (fit.score(places) / law.score(places))[:, 0], math.nan)
    return found | {"seconds": fit.seconds, "ratios": [v if math.isfinite(v) else None for v in ratio.tolist()]}


def integrated(score: ScoreFn, low: float, high: float, xi: float) -> dict[str, float]:
    """Return the relative errors of the quantiles of the law that a score stands for between two bounds.

    Args:
        score: Of events of one coordinate.
        low: The lower bound.
        high: The upper bound.
        xi: Of the law that the quantiles are compared with.
    """
    x = np.sinh(np.linspace(math.asinh(low), math.asinh(high), GRID))  # as fine in the middle as a long tail allows
    with torch.no_grad():
        s = score(torch.as_tensor(x, dtype=torch.get_default_dtype())[:, None])[:, 0].double().numpy()
    log_p = integrate.cumulative_trapezoid(s, x, initial=0.0)
    below = integrate.cumulative_trapezoid(np.exp(log_p - log_p.max()), x, initial=0.0)
    return {
        name: float(np.interp(share, below / below[-1], x) / gev.quantile(share, xi) - 1)
        for name, share in gev.TAILS.items()
    }


def noise(draws: Tensor, xi: float) -> float:
    """Return the standard error of the 99.9 % quantile of chains, as a share of it, from groups of them.

    Args:
        draws: `(chain, draw, 1)`.
        xi: Of the law.
    """
    quantiles = [float(group.double().quantile(gev.TAILS["q999"])) for group in draws.tensor_split(GROUPS)]
    return statistics.stdev(quantiles) / math.sqrt(GROUPS) / float(gev.quantile(gev.TAILS["q999"], xi))


def survival(draws: Tensor, xi: float) -> list[float]:
    """Return the share of draws beyond places at which the law's own share falls from a half to a ten-thousandth.

    Args:
        draws: Any shape.
        xi: Of the law.
    """
    places = gev.quantile(1 - np.logspace(-0.3, -4, SHOWN), xi)
    x = np.sort(draws.double().flatten().numpy())
    return [float(v) for v in 1 - np.searchsorted(x, places, side="right") / len(x)]


def section(found: figures.Found) -> str:
    """Say what was found.

    Args:
        found: Settings and records.
    """
    given = found["settings"]
    steps = given["warmup"] + given["draws"] * given["thin"]
    seeds = ", ".join(map(str, given["seeds"]))
    parts = [
        "## Heavy tails: what covers the 99.9 % quantile (beyond the paper)",
        f"GEV(0, 1, {given['xi']:g}), whose 99 % and 99.9 % quantiles are {gev.quantile(0.99, given['xi']):.3g} and "
        f"{gev.quantile(0.999, given['xi']):.3g}. Scores: *{PAPER}*, sliced score matching with its network for Moons; "
        f"*{DEFAULT}*, `fit_score(x)`; *{HEAVY}*, `fit_score(x, heavy_tails=True)`, which learns in coordinates where "
        "tails like powers are those of a normal law; the latter two with "
        f"{given['steps']:,} training steps. Proposals: MALA with h = {given['step_size']:g} (the paper's step), a "
        f"random walk with std {given['std']:g}, and a Student walk with scale {given['scale']:g} and "
        f"{given['freedom']} degree(s) of freedom, all with a line integral of the score. The line is straight in "
        'asinh(x), `LineIntegral("adaptive", bend=(0, 1))`: along one that is straight in x, the nodes of a long step '
        f"miss the middle of the law (last row, with the true score). {given['chains']:,} chains of "
        f"{steps:,} steps from N(0, 1), a draw outside the middle 98 % of the law moved to its ends; {given['draws']} "
        f"draws of each, {given['thin']} steps apart, are judged together. Seeds {seeds}; mean +- standard deviation "
        "of the relative error.",
        "*Integrated* is the error of the law that the score stands for, which endless chains would have: no proposal "
        "can mend it. The samples' own quantile errs too, with so few of them beyond it; and with the true score and a "
        f"Student walk the chains' own noise is a standard error of {_noise(found)} of the 99.9 % quantile, by seed.",
        *(_table(found, key) for key in gev.TAILS),
        "How steep the learned score is, as a share of the true one:\n\n" + _ratios(found),
        verdict(found),
    ]
    return "\n\n".join(parts)


def _table(found: figures.Found, key: str) -> str:
    given = found["settings"]
    rows = [[f"{gev.METRICS[key]}: score", "samples", "samples' own", "integrated", *PROPOSALS]]
    for size in given["sizes"]:
        own = gev.percent(figures.values(figures.where(found["samples"], size=size), key))
        for kind in LEARNED:
            alone = gev.percent(figures.values(figures.where(found["score"], score=kind, size=size), key))
            rows.append(
                [kind, f"{size:,}", own, alone, *(gev.percent(_chains(found, kind, m, size, key)) for m in PROPOSALS)]
            )
    for kind in KNOWN:
        rows.append([kind, "", "", "", *(gev.percent(_chains(found, kind, m, 0, key)) for m in PROPOSALS)])
    return markdown(rows)


def _chains(found: figures.Found, kind: str, move: str, size: int, key: str) -> list[float]:
    return figures.values(figures.where(found["chains"], score=kind, proposal=move, size=size), key)


def _noise(found: figures.Found) -> str:
    there = figures.where(found["chains"], score=TRUE, proposal=STUDENT)
    return ", ".join(f"{record['q999 noise']:.1%}" for record in there)


def _ratios(found: figures.Found) -> str:
    rows = [["score", "samples", *(f"at the {share:.1%} quantile" for share in gev.TAILS.values())]]
    for size in found["settings"]["sizes"]:
        for kind in LEARNED:
            there = [r for r in figures.where(found["score"], score=kind, size=size) if "diverged" not in r]
            values = [gev.mean_and_spread([r[f"ratio at {key}"] for r in there]) for key in gev.TAILS]
            rows.append([kind, f"{size:,}", *values])
    return markdown(rows)


def reached(values: Sequence[float]) -> bool:
    """Say whether a quantile is covered: its mean relative error over seeds, by size, is within the goal.

    Args:
        values: Relative errors, one per seed.
    """
    return bool(values) and statistics.mean(abs(value) for value in values) <= GOAL


def verdict(found: figures.Found) -> str:
    """Say which of them covers the 99.9 % quantile within a tenth.

    Args:
        found: Settings and records.
    """
    given, said = found["settings"], []
    for size in given["sizes"]:
        own = figures.values(figures.where(found["samples"], size=size), "q999")
        scores = [
            kind
            for kind in LEARNED
            if reached(figures.values(figures.where(found["score"], score=kind, size=size), "q999"))
        ]
        both = [
            f"{kind} with {move}"
            for kind in LEARNED
            for move in PROPOSALS
            if reached(_chains(found, kind, move, size, "q999"))
        ]
        paper = reached(_chains(found, PAPER, LANGEVIN, size, "q999"))
        said.append(
            f"- From {size:,} samples, whose own 99.9 % quantile errs by {statistics.mean(map(abs, own)):.1%} on "
            f"average, it is within {GOAL:.0%} for these scores when integrated: {', '.join(scores) or 'none'}; "
            f"and for these chains: {', '.join(both) or 'none'}. The paper's setting (its score, MALA with its step) "
            f"{'covers it' if paper else 'does not cover it'}."
        )
    moves = [move for move in PROPOSALS if reached(_chains(found, TRUE, move, 0, "q999"))]
    said.append(f"- With the true score it is within {GOAL:.0%} for: {', '.join(moves) or 'none'}.")
    away = float(gev.quantile(gev.TAILS["q999"], given["xi"]))
    needed = away**2 / (2 * given["step_size"])
    few = given["xi"] / math.sqrt(0.001 * given["sizes"][0])
    return (
        f"Within {GOAL:.0%} (mean size of the error over seeds):\n\n"
        + "\n".join(said)
        + "\n\nMALA's steps are sqrt(2h) "
        f"long where the score is flat: to come as far as {away:.3g} takes a chain about {needed:,.0f} of them, "
        "whatever its score. The 99.9 % quantile of "
        f"{given['sizes'][0]:,} independent draws has a standard error of about xi / sqrt(n / 1000) = {few:.0%}, with "
        f"{given['sizes'][0] // 1000} of them beyond it: a score learned from them can do better only by what it "
        "carries over from the rest of the tail."
    )


def picture(found: figures.Found, path: Path) -> None:
    """Draw what share of the draws lies beyond x, and how steep the scores are there.

    Args:
        found: Settings and records.
        path: The file to write.
    """
    given = found["settings"]
    size, seed = given["sizes"][-1], given["seeds"][0]
    shares = np.logspace(-0.3, -4, SHOWN)
    places = [float(v) for v in gev.quantile(1 - shares, given["xi"])]

    def curve(values: Sequence[float | None]) -> plots.Curve:
        return places, [math.nan if y is None or y <= 0 else y for y in values]  # a gap, on a logarithmic axis

    def tail(kind: str, move: str, of: int) -> plots.Curve:
        there = figures.where(found["chains"], score=kind, proposal=move, size=of, seed=seed)
        return curve(there[0]["survival"]) if there and "survival" in there[0] else ([], [])

    own = figures.where(found["samples"], size=size, seed=seed)[0]["survival"]
    panels: dict[str, dict[str, plots.Curve]] = {}
    for title, kinds, moves in (
        ("scores, with a Student walk", LEARNED, (STUDENT,)),
        ("proposals, with the heavy-tailed score", (HEAVY,), PROPOSALS),
    ):
        lines: dict[str, plots.Curve] = {"law": (places, list(shares)), "samples": curve(own)}
        lines |= {f"{kind}, {move}": tail(kind, move, size) for kind in kinds for move in moves}
        panels[f"share of draws beyond x: {title}"] = lines
    ratios = figures.where(found["score"], size=size, seed=seed)
    panels["learned score / true score"] = {
        "law": (places, [1.0] * SHOWN),
        **{f"{r['score']}, {STUDENT}": curve(r["ratios"]) for r in ratios if "ratios" in r},
    }
    plots.curve_panels(
        panels,
        path,
        labels=("x", ""),
        log=True,
        shared=False,
        title=f"The tail of GEV(0, 1, {given['xi']:g}), learned from {size:,} samples, seed {seed}",
    )


FIGURE = figures.Figure(
    NAME,
    PRESETS,
    {
        "samples": ("size", "seed"),
        "score": ("score", "size", "seed"),
        "chains": ("score", "proposal", "size", "seed"),
    },
    stages,
    cell,
    section,
    picture,
)
run = FIGURE.run
