"""`scoremh demo`: what the accept step is worth, in three panels and six lines, in about a minute on one core.

Two moons by step size, a product of two learned scores, and a table; everything is learned from samples on the way.
"""

import math
import statistics
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scoremh import (
    MALA,
    Always,
    LineIntegral,
    Sampler,
    ScoreMH,
    anneal,
    annealing,
    datasets,
    fit_score,
    metrics,
    metropolis_hastings,
    smc,
    targets,
)
from scoremh._shared import checks
from scoremh._shared.files import write_bytes
from scoremh.cli.app import Output
from scoremh.estimator.files import CONFIG, REPORT
from scoremh.report.charts import DATA, INK, PAPER, looks

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

POINTS = 5000  # samples that each score is learned from
CHAINS, STEPS = 1000, 100  # of every step size
FRESH = 4  # samples of fresh points that draws, and each other, are compared with
STEP_SIZES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
NOISE_LEVEL = 0.2  # of the moons' spread, at which chains run
DIVERGED = 100.0  # distance from 0 of a diverged point; the two moons lie within 3
PLACES = ((-2.0, 0.0), (0.0, 1.8), (2.0, 0.0))  # modes of each factor of the product, which weigh the same
VARIANCES = (0.12, 0.3, 0.6)
PARTICLES = 2000
LEVELS = (5.0, 0.05, 40, 20)  # of the chains without an accept step: highest and lowest noise, levels, steps at each
ROWS, FRESH_ROWS = 2000, 1000
SHOWN_ROWS = 4
ACCEPTED, UNADJUSTED = "with the accept step", "without it (ULA)"
WEIGHTED, ANNEALED = "with weights and accept steps (smc)", "without them (annealed ULA)"


class Bias(NamedTuple):
    """W1 between draws and fresh points over that between fresh points, by step size; None if chains diverged."""

    accepted: list[float | None]
    unadjusted: list[float | None]


def run_demo(out: Path, picture: Path, seed: int, output: Output) -> None:
    """Compute the three panels, and write the picture, the table and its report."""
    if picture.parent != out and not picture.parent.is_dir():
        raise FileNotFoundError(checks.message("a folder for the picture", picture.parent, "Create it first."))
    if (out / CONFIG).exists():
        raise FileExistsError(
            checks.message(f"{out} to be a new folder", "one with another run", "Choose another folder.")
        )
    out.mkdir(parents=True, exist_ok=True)
    seconds = [time.perf_counter()]

    def took() -> str:
        seconds.append(time.perf_counter())
        return f"{seconds[-1] - seconds[-2]:.0f} s"

    moons = bias(seed)
    output.message(f"1. {told_bias(moons)} ({took()})")
    weights = product_weights(seed)
    output.message(f"2. {told_weights(weights)} ({took()})")
    rows, fresh = (rides(n, seed + i) for i, n in enumerate((ROWS, FRESH_ROWS)))
    model = ScoreMH(verbose=False, random_state=seed).fit(rows)
    drawn, verdict = model.sample(FRESH_ROWS), str(model.evaluate(fresh).verdict)
    rows.to_csv(out / "rides.csv", index=False)
    model.report(out / REPORT)
    output.message(f"3. A table of {ROWS:,} rows. {verdict} ({took()})")
    draw(moons, weights, (rows, drawn, verdict), picture)
    output.message(f"Took {time.perf_counter() - seconds[0]:.0f} s. See {picture}, and open {out / REPORT}.")
    found = {"step_sizes": STEP_SIZES, **moons._asdict(), "weights": weights, "verdict": verdict}
    output.result(
        found | {"picture": str(picture)}, f"For a table of your own: scoremh fit {out / 'rides.csv'} --out run"
    )


def bias(seed: int) -> Bias:
    """Return how far chains end from fresh points of two moons, with the accept step and without it, by step size."""
    generator = torch.Generator().manual_seed(seed)
    fit = fit_score(datasets.moons(POINTS, generator=generator), generator=generator)
    fresh = independent_moons(FRESH * CHAINS, generator).split(CHAINS)
    floor = statistics.mean(metrics.w1(x, y) for x, y in combinations(fresh, 2))
    ours = Sampler(fit, NOISE_LEVEL, "mala", LineIntegral())
    start = ours.descend(CHAINS, generator=generator)
    found = Bias([], [])
    for step_size in STEP_SIZES:
        stepped = replace(ours, step_size=step_size)
        for sampler, ratios in ((stepped, found.accepted), (replace(stepped, acceptance=Always()), found.unadjusted)):
            last = sampler.run(start, STEPS, generator=generator).last
            diverged = not bool((last.abs() < DIVERGED).all())
            ratios.append(None if diverged else statistics.mean(metrics.w1(last, x) for x in fresh) / floor)
    return found


def independent_moons(n: int, generator: torch.Generator) -> Tensor:
    """Return independent points: scikit-learn spaces the points of a sample evenly, so take a few of many."""
    many = datasets.moons(50 * n, generator=generator)
    return many[torch.randperm(len(many), generator=generator)[:n]]


def product_weights(seed: int) -> dict[str, list[float]]:
    """Return the weights of the modes of a product: the true ones, by `smc`, and by chains without an accept step.

    Both factors have modes at the same places, of the same weight; they agree most closely where both are narrow.
    """
    generator = torch.Generator().manual_seed(seed)
    law = targets.GaussianMixture([1 / 3] * 3, PLACES, torch.stack([v * torch.eye(2) for v in VARIANCES]))
    factors = [fit_score(law.sample(POINTS, generator=generator), generator=generator) for _ in range(2)]
    both = targets.product(*factors)
    particles = smc(both, particles=PARTICLES, generator=generator).draws
    high, low, count, steps = LEVELS
    noise = high * torch.randn(PARTICLES, 2, generator=generator) @ torch.linalg.cholesky(factors[0].covariance).mT
    unadjusted = anneal(
        lambda level: metropolis_hastings(both.at(level), MALA(0.2 * level**2, factors[0].covariance), Always()),
        annealing.geometric(high, low, count),
        noise,
        steps_per_level=steps,
        measure_noise=False,
        generator=generator,
    ).draws
    axis = torch.linspace(-6, 6, 800)
    grid = torch.cartesian_prod(axis, axis)
    true = (2 * law.log_density(grid)).double().softmax(0)
    return {
        "true": shares(grid, true),
        WEIGHTED: shares(particles, torch.full((PARTICLES,), 1 / PARTICLES).double()),
        ANNEALED: shares(unadjusted, torch.full((PARTICLES,), 1 / PARTICLES).double()),
    }


def shares(points: Tensor, weights: Tensor) -> list[float]:
    """Return the total weight of the points nearest to each mode."""
    nearest = torch.cdist(points, torch.tensor(PLACES)).argmin(1)
    return [float(weights[nearest == i].sum()) for i in range(len(PLACES))]


def rides(n: int, seed: int) -> "pd.DataFrame":
    """Return rows of a made-up table: rides of a bicycle hire, by hour, kind of day, temperature and humidity."""
    import pandas as pd

    rng = np.random.default_rng(seed)
    busy = np.array([1, 1, 1, 1, 1, 2, 4, 8, 10, 6, 5, 6, 7, 6, 6, 7, 9, 11, 9, 6, 4, 3, 2, 1])
    hour, weekend = rng.choice(24, n, p=busy / busy.sum()), rng.random(n) < 2 / 7
    temperature = np.round(12 + 7 * np.sin((hour - 9) / 24 * 2 * np.pi) + rng.normal(0, 5, n), 1)
    humidity = np.clip(75 - 1.4 * (temperature - 12) + rng.normal(0, 9, n), 0, 100).round().astype(int)
    rush = 1.5 * np.exp(-(((hour - 8) / 2.0) ** 2)) * ~weekend + 1.6 * np.exp(-(((hour - 17) / 2.5) ** 2))
    level = 3.3 + rush + 0.05 * temperature - 0.01 * humidity + 0.7 * weekend + rng.normal(0, 0.2, n)
    day = np.where(weekend, "weekend", "workday")
    columns = {"hour": hour, "day": day, "temperature": temperature, "humidity": humidity}
    return pd.DataFrame(columns | {"rides": rng.poisson(np.exp(level))})


def first_diverged(moons: Bias) -> float | None:
    """Return the smallest step size at which chains without an accept step diverge, if any."""
    return next((h for h, ratio in zip(STEP_SIZES, moons.unadjusted, strict=True) if ratio is None), None)


def told_bias(moons: Bias) -> str:
    """Return a sentence on the first panel."""
    kept = [ratio for ratio in moons.accepted if ratio is not None]
    lost = max(i for i, ratio in enumerate(moons.unadjusted) if ratio is not None)
    end = first_diverged(moons)
    return (
        f"Two moons, a score learned from {POINTS:,} points. With the accept step draws are {min(kept):.1f} to "
        f"{max(kept):.1f} times as far from fresh points as other fresh points are, at any step size; without it (ULA) "
        f"{moons.unadjusted[lost]:.1f} times at step {STEP_SIZES[lost]:g}"
        + (f", and it diverges at {end:g}." if end else ".")
    )


def told_weights(weights: Mapping[str, Sequence[float]]) -> str:
    """Return a sentence on the second panel."""
    texts = {name: " ".join(f"{share:.2f}" for share in found) for name, found in weights.items()}
    return (
        f"The product of two learned scores. Its modes weigh {texts['true']}; {WEIGHTED} {texts[WEIGHTED]}, "
        f"{ANNEALED} {texts[ANNEALED]}."
    )


def draw(
    moons: Bias,
    weights: Mapping[str, Sequence[float]],
    table: "tuple[pd.DataFrame, pd.DataFrame, str]",
    path: Path,
) -> None:
    """Draw the three panels into a PNG."""
    import io

    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(wspace=0.05)
    figure = Figure(figsize=(14.5, 4.4), dpi=110, layout=layout, facecolor=PAPER)
    axes = figure.subplots(1, 3, width_ratios=(1.05, 1, 1.2))
    draw_bias(axes[0], moons)
    draw_weights(axes[1], weights)
    draw_table(axes[2], *table)
    for axis in axes:
        axis.tick_params(labelsize=9, colors=INK)
        axis.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_bytes(path, buffer.getvalue())


def panel_looks() -> dict[str, tuple[str, str]]:
    """Return colour and marker of the two kinds of chains, as in all pictures."""
    found = looks(["ScoreMH", "ULA"])
    return {ACCEPTED: found["ScoreMH"], UNADJUSTED: found["ULA"]}


def draw_bias(axis: "Axes", moons: Bias) -> None:
    """Draw the distance to fresh points against the step size, and mark the step at which ULA diverges."""
    for (name, (colour, marker)), ratios in zip(panel_looks().items(), moons, strict=True):
        axis.plot(STEP_SIZES, [math.nan if r is None else r for r in ratios], marker, ls="-", color=colour, label=name)
    axis.axhline(1, color=INK, linewidth=0.8, linestyle="dotted")
    axis.text(0.02, 0.04, "1: as far as other fresh points are", fontsize=9, color=INK, transform=axis.transAxes)
    end = first_diverged(moons)
    if end is not None:
        colour, _ = panel_looks()[UNADJUSTED]
        axis.axvline(end, color=colour, linewidth=1.2, linestyle="dashed")
        axis.annotate("diverges", (end, 1), (-4, 40), textcoords="offset points", rotation=90, ha="right", color=colour)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_ylim(bottom=0.55)
    axis.set_xticks(STEP_SIZES, [f"{h:g}" for h in STEP_SIZES])
    axis.minorticks_off()
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_xlabel("step size", fontsize=10, color=INK)
    axis.set_ylabel("distance to fresh points (W1)", fontsize=10, color=INK)
    axis.set_title("Two moons, one learned score", fontsize=12, color=INK, pad=10)
    axis.legend(fontsize=9, frameon=False, loc="upper left")


def draw_weights(axis: "Axes", weights: Mapping[str, Sequence[float]]) -> None:
    """Draw the weights of the modes as bars, with their numbers."""
    shades = [DATA, *(colour for colour, _ in panel_looks().values())]
    for i, (name, found) in enumerate(weights.items()):
        places = [mode + 0.28 * (i - 1) for mode in range(len(found))]
        bars = axis.bar(places, found, width=0.26, color=shades[i], label=name)
        axis.bar_label(bars, fmt="%.2f", fontsize=8.5, color=INK, padding=1)
    axis.set_xticks(range(len(PLACES)), ["narrow mode", "middle", "wide mode"])
    axis.set_yticks([])
    axis.set_ylabel("weight", fontsize=10, color=INK)
    axis.spines["left"].set_visible(False)
    axis.set_title("The modes of a product of two learned scores", fontsize=12, color=INK, pad=10)
    axis.legend(fontsize=9, frameon=False, loc="upper right")


def draw_table(axis: "Axes", rows: "pd.DataFrame", drawn: "pd.DataFrame", verdict: str) -> None:
    """Write rows of the table and drawn rows, and the verdict below them."""
    axis.axis("off")
    axis.set_title("Rows of a table, and rows that were drawn", fontsize=12, color=INK, pad=10)
    look: dict[str, Any] = {"transform": axis.transAxes, "va": "top", "color": INK}
    height = 0.97
    for name, frame in (("real", rows), ("drawn", drawn)):
        text = frame.head(SHOWN_ROWS).to_string(index=False)
        axis.text(0.0, height, name, fontsize=10, fontweight="bold", **look)
        axis.text(0.14, height, text, fontsize=9.5, family="monospace", linespacing=1.4, **look)
        height -= 0.38
    axis.text(0.0, height, textwrap.fill(f"Verdict: {verdict}", 70), fontsize=9.5, linespacing=1.3, **look)
