"""The paper's heavy tails, first figure: does an accept step matter more as the tail of GEV(0, 1, xi) becomes heavier?

ULA and MALA with the true score and density, and a random walk with Student's steps, which the paper does not have.
Chains start from N(0, 1), which is a test of how they mix, or from the law itself, which is a test of what they leave
as it is: an unadjusted chain drifts away from the law, an adjusted one can not.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scoremh import MALA, Always, Exact, StudentWalk, metropolis_hastings, plots, sample
from scoremh.experiments import _figures as figures
from scoremh.experiments import _gev as gev
from scoremh.experiments._cells import Task, markdown
from scoremh.targets import GeneralizedExtremeValue

NAME = "gev-adjustment"
STARTS = {"normal": "N(0, 1)", "exact": "the law"}
STEPPED = ("plain ULA", "ULA", "MALA")  # those that take the step size
WALK = "Student walk"
FAR = 1 - 1e-6  # a chain beyond this quantile of the law has run away: a millionth of the law is there
CLEAR = 0.5  # a rank correlation above is called a trend


@dataclass(frozen=True)
class Config:
    """What decides the numbers.

    Args:
        seeds: One run for each.
        xis: Shapes of the law.
        step_sizes: h of ULA and MALA. The paper says "step .1", which is h or, as epsilon, an h of .005.
        chains: From each start; the last draw of each is judged.
        looks: Steps after which they are looked at, the first one dividing the others.
        scale: Of a Student walk's steps.
        freedom: Of its Student law.
    """

    seeds: tuple[int, ...]
    xis: tuple[float, ...] = (-0.5, -0.3, -0.1, 0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    step_sizes: tuple[float, ...] = (0.1, 0.005)
    chains: int = 5000
    looks: tuple[int, ...] = (100, 600)
    scale: float = 2.0
    freedom: int = 1


PRESETS = {
    "quick": Config(seeds=(11,), xis=(-0.5, 0.0, 0.5, 0.9), chains=2000, looks=(100, 300)),
    "paper": Config(seeds=(1, 2, 3)),
}


def stages(config: Config) -> list[list[Task]]:
    """Return the tasks: chains by sampler, start, xi, step and seed, and the floor of exact draws by xi and seed."""
    tasks: list[Task] = []
    for xi in config.xis:
        for seed in config.seeds:
            tasks.append(("floor", str(xi), str(seed)))
            for start in STARTS:
                tasks.append(("chains", WALK, start, str(xi), "none", str(seed)))
                tasks += [
                    ("chains", sampler, start, str(xi), str(h), str(seed))
                    for sampler in STEPPED
                    for h in config.step_sizes
                ]
    return [tasks]


def cell(task: Task, *, config: Config, folder: Path) -> dict[str, Any]:
    """Return how far the draws of one sampler are from the law.

    Args:
        task: As `stages` made it.
        config: The preset.
        folder: Not used.
    """
    kind, *words = task
    if kind == "floor":
        xi, seed = float(words[0]), int(words[1])
        return dict(gev.measures(gev.fresh(config.chains, xi, _generator(seed, xi, 1)), xi))
    sampler, start, xi, h, seed = words[0], words[1], float(words[2]), words[3], int(words[4])
    begin = {"normal": gev.starts, "exact": gev.fresh}[start]
    initial = begin(config.chains, xi, _generator(seed, xi, 2))
    generator = _generator(seed, xi, 3)
    if sampler == "plain ULA":
        return plain(initial, xi, float(h), config.looks[-1], generator)
    law = GeneralizedExtremeValue(xi)
    proposal = StudentWalk(config.scale, config.freedom) if sampler == WALK else MALA(float(h))
    kernel = metropolis_hastings(law, proposal, Always() if sampler == "ULA" else Exact())
    thin = config.looks[0]
    chains = sample(kernel, initial, draws=config.looks[-1] // thin, thin=thin, generator=generator)
    found: dict[str, Any] = {}
    for look in config.looks[:-1]:
        found |= {
            f"{key} at {look}": value for key, value in gev.measures(chains.draws[:, look // thin - 1], xi).items()
        }
    return (
        found
        | dict(gev.measures(chains.last, xi))
        | {
            "acceptance": chains.acceptance_rate,
            "outside": float((chains.outside + chains.nonfinite).sum()) / (len(initial) * config.looks[-1]),
            "met the end": float(((chains.outside + chains.nonfinite).sum(1) > 0).double().mean()),
            "far": far(chains.last, xi),
        }
    )


def _generator(seed: int, xi: float, use: int) -> torch.Generator:
    """Return a generator of its own for every law and use, the same for all samplers."""
    return torch.Generator().manual_seed(1_000_000 * seed + 10 * round(100 * (xi + 1)) + use)


def far(draws: Tensor, xi: float) -> float:
    """Return the share of chains that ran away, to where a millionth of the law is on either side."""
    low, high = (float(gev.quantile(share, xi)) for share in (1 - FAR, FAR))
    return float(((draws < low) | (draws > high)).double().mean())


def plain(initial: Tensor, xi: float, h: float, steps: int, generator: torch.Generator) -> dict[str, Any]:
    """Run ULA as it is written, `x <- x + h s(x) + sqrt(2h) z`, with no word on where the density is positive.

    Outside the support the score is not a number, nor is the chain from there on.

    Args:
        initial: Where the chains start.
        xi: Of the law.
        h: Step size.
        steps: Of every chain.
        generator: Source of randomness.

    Returns:
        The share of chains that were lost so, and how far the others are from the law.
    """
    law, x = GeneralizedExtremeValue(xi), initial
    for _ in range(steps):
        x = x + h * law.score(x) + math.sqrt(2 * h) * torch.randn(x.shape, generator=generator)
    left = x[x.isfinite()[:, 0] & law.support(x.nan_to_num(nan=0.0))]
    return dict(gev.measures(left, xi)) | {"lost": 1 - len(left) / len(x), "far": far(left, xi) if len(left) else 0.0}


def excess(found: figures.Found, start: str, h: float, key: str) -> list[tuple[float, float]]:
    """Return for every xi by how much ULA's error exceeds MALA's: the mean over seeds, and its standard error.

    Args:
        found: All records.
        start: A name in `STARTS`.
        h: Step size.
        key: In `METRICS`.
    """
    pairs = []
    for xi in found["settings"]["xis"]:
        errors = [
            [abs(value) for value in _values(found["chains"], key, sampler=sampler, start=start, xi=xi, step=h)]
            for sampler in ("ULA", "MALA")
        ]
        gaps = [a - b for a, b in zip(*errors, strict=True)]
        error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
        pairs.append((statistics.mean(gaps), error))
    return pairs


def _values(records: Sequence[figures.Record], key: str, **words: Any) -> list[float]:
    return figures.values(figures.where(records, **words), key)


def rows(found: figures.Found, start: str) -> dict[str, list[figures.Record]]:
    """Return the records of every line, by its name."""
    lines = {"exact draws": list(found["floor"])}
    for h in found["settings"]["step_sizes"]:
        for sampler in STEPPED:
            lines[f"{sampler}, h = {h:g}"] = figures.where(found["chains"], sampler=sampler, start=start, step=h)
    lines[WALK] = figures.where(found["chains"], sampler=WALK, start=start)
    return lines


def section(found: figures.Found) -> str:
    """Say what was found.

    Args:
        found: Settings and records.
    """
    given = found["settings"]
    parts = [
        "## Heavy tails: does the accept step matter more? (Appendix B, ULA against MALA)",
        "The paper compares ULA and MALA on GEV(0, 1, xi) with the true score, and supposes that the accept step "
        "matters more as the tail becomes heavier. It gives no numbers, and does not say whether its step of .1 is h "
        "or epsilon (h = epsilon^2 / 2): both are here.",
        f"{given['chains']:,} chains of {given['looks'][-1]:,} steps, seeds {_listed(given['seeds'])}; mean +- "
        "standard deviation over seeds. The last draw of every chain is judged against the law: W1 and MMD (half an "
        "energy distance) to as many of its quantiles, and the relative errors of two quantiles of the draws. *Exact "
        "draws* are as many independent draws of the law: nothing better can be expected. For xi >= 1 there is no W1, "
        "for want of a mean; below, it is ruled by the few largest draws as xi comes near 1, and a good W1 does not "
        "say that the tail is right, nor a bad one that the body is wrong. Errors of quantiles look at the tail.",
        "*ULA* does not take a candidate outside the support, as all kernels here; *plain ULA* is the formula alone, "
        f"whose chains are lost when they leave the support. *{WALK}* has steps of scale {given['scale']:g} with "
        f"{given['freedom']} degree(s) of freedom, and the exact accept step.",
    ]
    for start, words in STARTS.items():
        lines = rows(found, start)
        parts.append(
            f"**Chains that start from {words}**"
            + (
                ", a draw outside the middle 98 % of the law moved to its ends: a test of mixing. A tail that chains "
                "had no time to reach is missing from their draws."
                if start == "normal"
                else ": a test of stationarity. What the kernel leaves as it is stays right, whatever the time."
            )
        )
        parts += [f"{name}:\n\n{gev.table(lines, given['xis'], key)}" for key, name in gev.METRICS.items()]
    parts += ["**Outside the support, and far away**", _edge(found), "**More steps**", _looks(found)]
    parts += ["**Does the accept step matter more as the tail becomes heavier?**", verdict(found)]
    return "\n\n".join(parts)


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(f"{value}" for value in values)


def _edge(found: figures.Found) -> str:
    given = found["settings"]
    table = [["", *(f"xi = {xi:g}" for xi in given["xis"])]]
    kinds = (
        ("ULA", "outside", "candidates of ULA outside the support"),
        ("ULA", "met the end", "chains of ULA that met it at least once"),
        ("plain ULA", "lost", "chains of plain ULA lost"),
        ("plain ULA", "far", "of the others, run away"),
    )
    for h in given["step_sizes"]:
        for sampler, key, words in kinds:
            values = [
                _values(found["chains"], key, sampler=sampler, start="normal", xi=xi, step=h) for xi in given["xis"]
            ]
            table.append([f"{words}, h = {h:g}", *(f"{statistics.mean(v):.2%}" if v else "" for v in values)])
    return (
        "The law ends at -1 / xi: below for xi > 0, above for xi < 0. Beyond it there is no score. Near the lower end "
        "the score is so steep that a step of ULA overshoots, into the tail; at the upper end it leads inward, and "
        "noise carries chains out. Chains from N(0, 1); a chain has run away where it is beyond all but a millionth of "
        f"the law, on either side ({1 - FAR:.0e}).\n\n{markdown(table)}"
    )


def _looks(found: figures.Found) -> str:
    given = found["settings"]
    samplers = [(s, h) for s in ("ULA", "MALA") for h in given["step_sizes"]] + [(WALK, "none")]
    table = [["99.9 % quantile, chains from N(0, 1)", *(f"xi = {xi:g}" for xi in given["xis"])]]
    for sampler, h in samplers:
        for look in given["looks"]:
            key = "q999" if look == given["looks"][-1] else f"q999 at {look}"
            values = [
                gev.percent(_values(found["chains"], key, sampler=sampler, start="normal", xi=xi, step=h))
                for xi in given["xis"]
            ]
            step = "" if h == "none" else f", h = {h:g}"
            table.append([f"{sampler}{step}, {look:,} steps", *values])
    return (
        "A walk of n small steps comes about sqrt(2 h n) far, where the score does not lead it; the 99.9 % quantile is "
        f"at {_quantiles(given['xis'])}.\n\n{markdown(table)}"
    )


def _quantiles(xis: Sequence[float]) -> str:
    return ", ".join(f"{float(gev.quantile(0.999, xi)):.3g} for xi = {xi:g}" for xi in xis)


def verdict(found: figures.Found) -> str:
    """Return for every start, step and metric whether what ULA loses against MALA grows with xi.

    Args:
        found: Settings and records.
    """
    given = found["settings"]
    table = [["chains from", "h", "metric", "rank correlation with xi", "at the heaviest tail", "matters more?"]]
    answers: dict[str, list[bool]] = {}
    for start, words in STARTS.items():
        for h in given["step_sizes"]:
            for key, name in gev.METRICS.items():
                gaps = excess(found, start, h, key)
                trend = gev.trend(given["xis"], [gap for gap, _ in gaps])
                mean, error = gaps[-1]
                grows = trend > CLEAR and mean > 2 * error
                answers.setdefault(key, []).append(grows)
                text = f"{mean:+.3g} +- {error:.1g}" if len(given["seeds"]) > 1 else f"{mean:+.3g}, one seed"
                table.append([words, f"{h:g}", name, f"{trend:+.2f}", text, "yes" if grows else "no"])
    body, tail = ([a for key in keys for a in answers[key]] for keys in (("w1", "mmd"), tuple(gev.TAILS)))
    said = (
        f"By W1 and MMD the accept step matters more with a heavier tail in {sum(body)} of {len(body)} comparisons, by "
        f"the quantiles of the tail in {sum(tail)} of {len(tail)}: "
    )
    if all(body) and all(tail):
        said += "this agrees with the paper."
    elif not any(body) and not any(tail):
        said += "this does not agree with the paper."
    else:
        said += "this agrees with the paper in part."
    return (
        "ULA's error less MALA's, mean and standard error over seeds. *Matters more*: its rank correlation with xi is "
        f"above {CLEAR:g}, and at the largest xi it is above two standard errors.\n\n{markdown(table)}\n\n{said} In "
        "the tail of a heavy law the score is flat, and a step of ULA there is nearly exact. What an accept step mends "
        "is likely, though this was not measured, what the steep lower end throws from there into the tail."
    )


def picture(found: figures.Found, path: Path) -> None:
    """Draw the errors over xi, a panel per metric.

    Args:
        found: Settings and records.
        path: The file to write.
    """
    xis = found["settings"]["xis"]
    panels: dict[str, Mapping[str, plots.Curve]] = {}
    for start, words in STARTS.items():
        for key, name in gev.METRICS.items():
            if key == "q99":
                continue
            panels[f"{name}, from {words}"] = gev.curves(rows(found, start), xis, key)
    gev.draw(panels, path, columns=3, title="GEV(0, 1, xi): with and without an accept step, beside exact draws")


FIGURE = figures.Figure(
    NAME,
    PRESETS,
    {"chains": ("sampler", "start", "xi", "step", "seed"), "floor": ("xi", "seed")},
    stages,
    cell,
    section,
    picture,
)
run = FIGURE.run
