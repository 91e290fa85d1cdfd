"""How good are learned scores? Against laws whose score is known, and on the paper's datasets by held-out loss.

Fills in the tables of `docs/scores.md` and draws its pictures. Every fit is a cell of its own in `scores.json`; cells
that are there are not computed again, so that an interrupted run goes on.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scoremh import (
    DenoisingScoreMatching,
    DivergenceError,
    ImplicitScoreMatching,
    MultilevelDenoising,
    ScoreFit,
    SlicedScoreMatching,
    datasets,
    diagnostics,
    fit_score,
    plots,
    targets,
)
from scoremh.experiments._cells import Task, compute, fill_in, markdown
from scoremh.experiments._cells import known as saved
from scoremh.networks import AtNoiseLevel
from scoremh.training import Loss

SAMPLES, FRESH, GOAL = 10_000, 50_000, 0.02
SEEDS = (1, 2, 3)  # the datasets are fitted with the first
PRESETS = {"paper": SEEDS}
CELLS_FILE = "scores.json"
JUDGED = 10_000  # fresh samples for a held-out loss, whose trace takes d products


class Law(NamedTuple):
    """A law with a known score."""

    name: str
    law: Any


CORRELATED = 0.8 ** (torch.arange(10.0)[:, None] - torch.arange(10.0)).abs()
FIGURE_1 = targets.GaussianMixture([0.8, 0.2], [[5.0, 5.0], [-5.0, -5.0]])
GEV = targets.GeneralizedExtremeValue
LAWS = {
    "mixture": Law("0.8 N((5, 5), I) + 0.2 N((-5, -5), I), Figure 1", FIGURE_1),
    "banana": Law("Banana", targets.Banana()),
    "gumbel": Law("GEV, xi = 0 (Gumbel)", GEV(0.0)),
    "frechet": Law("GEV, xi = 0.3 (Frechet: heavy upper tail)", GEV(0.3)),
    "weibull": Law("GEV, xi = -0.3 (Weibull: score infinite at its endpoint)", GEV(-0.3)),
    "gaussian": Law(
        "10-dimensional Gaussian, correlations 0.8 to the distance", targets.Gaussian(torch.zeros(10), CORRELATED)
    ),
}
DATASETS: dict[str, Callable[..., Tensor]] = {
    "moons": datasets.moons,
    "pinwheel": datasets.pinwheel,
    "pinwheel, correct": partial(datasets.pinwheel, variant="correct"),
    "s_curve": datasets.s_curve,
    "swiss_roll": datasets.swiss_roll,
}
# The last column of the table, and what gives it: a loss with the network that fits it, or the paper's settings.
LOSSES: dict[str, Loss | None] = {
    "ImplicitScoreMatching, ScoreMLP": ImplicitScoreMatching(),
    "SlicedScoreMatching, ScoreMLP": SlicedScoreMatching(),
    "DenoisingScoreMatching(0.05), ScoreMLP": DenoisingScoreMatching(0.05),
    "MultilevelDenoising, NoiseConditionalMLP": MultilevelDenoising(),
    "the paper's preset": None,
}


def seeded(offset: int, seed: int = SEEDS[0]) -> torch.Generator:
    """Return a generator: 0 for the samples, 1 for the training, 2 for what the fit is judged on."""
    return torch.Generator().manual_seed(10 * seed + offset)


def known(key: str, seed: int) -> dict[str, Any]:
    """Fit the defaults to samples of a law, and measure E|s_fit - s|^2 / E|s|^2 on fresh ones."""
    law = LAWS[key].law
    fit = fit_score(law.sample(SAMPLES, generator=seeded(0, seed)), generator=seeded(1, seed))
    x = law.sample(FRESH, generator=seeded(2, seed))
    true, inside = law.score(x), fit.support(x)
    error, size = (fit.score(x) - true).square().sum(1), true.square().sum(1)
    shares = [float(error[rows].sum() / size[rows].sum()) for rows in (slice(None), inside)]
    tilt = (
        diagnostics.conservativity(fit.score, x[inside][:2000], generator=seeded(2, seed)).asymmetry
        if x.shape[1] > 1
        else 0.0
    )
    return {
        "all": shares[0],
        "inside": shares[1],
        "outside": int((~inside).sum()),
        "level": fit.noise_level,
        "asymmetry": tilt,
        "seconds": fit.seconds,
        "steps": fit.history["step"][-1],
    }


def fitted(dataset: str, loss: str) -> ScoreFit:
    """Fit one pair of a loss and a network to a dataset."""
    x = DATASETS[dataset](SAMPLES, generator=seeded(0))
    if LOSSES[loss] is None:
        return fit_score(x, preset=dataset.partition(",")[0], generator=seeded(1))
    return fit_score(x, LOSSES[loss], generator=seeded(1))


def unknown(dataset: str, loss: str, folder: Path) -> dict[str, Any]:
    """Fit one pair, and measure the implicit loss on fresh samples; the fit itself is kept in a file."""
    try:
        fit = fitted(dataset, loss)
    except DivergenceError as stopped:
        return {"diverged": stopped.step, "history": stopped.history}
    fit.save(folder / f"{dataset} {loss}.safetensors")
    x = DATASETS[dataset](JUDGED, generator=seeded(2))
    net = fit.net if fit.noise_level is None else AtNoiseLevel(fit.net, fit.noise_level)
    each = torch.cat([ImplicitScoreMatching().each(net, part) for part in x.split(1000)]).double()
    error = float(each.std()) / math.sqrt(len(each))
    return {"loss": float(each.mean()), "error": error, "seconds": fit.seconds, "history": fit.history}


def _cell(task: Task, folder: Path) -> dict[str, Any]:
    return known(task[1], int(task[2])) if task[0] == "known" else unknown(task[1], task[2], folder)


def cells_of(out: Path, *, workers: int | None = None) -> dict[str, Any]:
    """Compute all cells that are not in the folder yet."""
    out.mkdir(parents=True, exist_ok=True)
    tasks: list[Task] = [("known", law, str(seed)) for law in LAWS for seed in SEEDS]
    tasks += [("unknown", data, loss) for data in DATASETS for loss in LOSSES]
    return compute(tasks, partial(_cell, folder=out), out / CELLS_FILE, workers=workers)


def sections(cells: dict[str, Any]) -> dict[str, str]:
    """Return what the page says of the cells, by the name of the place where it goes."""
    rows, above = [["law", *(f"seed {seed}" for seed in SEEDS), "mean", "outside", "level", "asymmetry", "seconds"]], []
    for key, law in LAWS.items():
        runs = [cells[f"known / {key} / {seed}"] for seed in SEEDS]
        mean = {name: sum(run[name] for run in runs) / len(runs) for name in runs[0]}
        shares = [f"{100 * e:.2g} %" for e in (*(run["inside"] for run in runs), mean["inside"])]
        if mean["inside"] > GOAL:
            above.append(law.name)
            shares[-1] = f"**{shares[-1]}**"
        outside = f"{100 * mean['all']:.2g} % with {mean['outside']:.1f} draws outside" if mean["outside"] else ""
        rest = [outside, f"{mean['level']:.2g}", f"{mean['asymmetry']:.2g}", f"{mean['seconds']:.0f}"]
        rows.append([law.name, *shares, *rest])
    reached = f"reached on all but {len(above)}: {'; '.join(above)}" if above else "reached on all of them"
    table = [["dataset", *LOSSES]]
    table += [[data, *(_shown(cells[f"unknown / {data} / {loss}"]) for loss in LOSSES)] for data in DATASETS]
    stopped = [
        f"`{loss}` was stopped at step {cells[f'unknown / pinwheel / {loss}']['diverged']:,}"
        for loss in LOSSES
        if "diverged" in cells[f"unknown / pinwheel / {loss}"]
    ]
    trap = "; ".join(stopped) or "no loss fell so low within its steps"
    return {
        "known": f"{markdown(rows)}\n\nIn the mean over seeds, {GOAL:.0%} is {reached}.",
        "unknown": markdown(table),
        "trap": f"On the paper's Pinwheel {trap}.",
    }


def _shown(cell: Mapping[str, Any]) -> str:
    if "diverged" in cell:
        return f"diverged at step {cell['diverged']:,}"
    return f"{cell['loss']:.2f} +- {cell['error']:.2f}"


def pictures(cells: dict[str, Any], out: Path, docs: Path) -> None:
    """Draw the fields and the trap."""
    for data, title in (
        ("moons", "Moons"),
        ("pinwheel", "The paper's Pinwheel: arms along the diagonal have no width"),
    ):
        fits = {}
        for loss in ("MultilevelDenoising, NoiseConditionalMLP", "SlicedScoreMatching, ScoreMLP", "the paper's preset"):
            path = out / f"{data} {loss}.safetensors"
            if path.exists():
                fits[loss] = ScoreFit.load(path)
        plots.field_panels(
            {loss.partition(",")[0]: fit.score for loss, fit in fits.items()},
            DATASETS[data](3000, generator=seeded(2)),
            docs / f"scores_{data}.png",
            captions=[f"implicit loss {_shown(cells[f'unknown / {data} / {loss}'])}" for loss in fits],
            title=title,
        )
    lines = {}
    for data, word in (("pinwheel", "as printed"), ("pinwheel, correct", "corrected")):
        for loss in ("ImplicitScoreMatching", "SlicedScoreMatching"):
            history = cells[f"unknown / {data} / {loss}, ScoreMLP"]["history"]
            lines[f"{loss.removesuffix('ScoreMatching').lower()}, {word}"] = (history["step"], history["held_out"])
    plots.curves(
        lines,
        docs / "scores_trap.png",
        labels=("training step", "held-out loss (standard coordinates)"),
        title="Two Pinwheels: the loss of the one as printed has no lower bound",
    )


def run(preset: str, out: Path, docs: Path | None = None, *, workers: int | None = None, as_is: bool = False) -> None:
    """Compute what is missing, fill in the page where there is one, and draw its pictures.

    Args:
        preset: "paper", the only one.
        out: Folder for fits and results.
        docs: Folder of `scores.md` and its pictures.
        workers: Fits at the same time.
        as_is: Compute nothing.
    """
    folder = out / "scores"
    torch.set_num_threads(1)
    cells = saved(folder / CELLS_FILE) if as_is else cells_of(folder, workers=workers)
    docs = folder if docs is None else docs
    pictures(cells, folder, docs)
    fill_in(docs / "scores.md", sections(cells))
