"""Acceptance against lambda, the weight of the entropy: the paper's mean of a(x', (0, 0)) over a grid, on Moons."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scoremh import plots
from scoremh.experiments import _entropy as measured
from scoremh.experiments import _figures as figures
from scoremh.experiments._cells import Task, spread
from scoremh.experiments._entropy import Config

PRESETS = {
    "quick": Config(seeds=(11,), lambdas=(0.0, 1.0, 4.0, 10.0), steps=200, score_steps=2000),
    "paper": Config(seeds=(1, 2, 3), lambdas=(0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 7.0, 10.0)),
}
BEND = 4.0  # where the paper's curve levels off
RISE = 0.05  # what counts as a rise up to there
PLATEAU = 0.5  # and what as a plateau beyond: no change larger than this share of the rise


def cell(task: Task, *, config: Config, folder: Path) -> dict[str, Any]:
    """Compute one cell, without the map.

    Args:
        task: Its words.
        config: The preset.
        folder: Of the score.
    """
    found = measured.cell(task, config=config, folder=folder)
    return {key: value for key, value in found.items() if key != "map"}


def shape(weights: Sequence[float], means: Sequence[float], noise: float) -> tuple[bool, bool]:
    """Say whether a curve rises from lambda = 0 to the bend, by more than noise, and is then level.

    Args:
        weights: The lambda, rising.
        means: Of the acceptance, at each.
        noise: The spread over seeds.
    """
    by_weight = dict(zip(weights, means, strict=True))
    rise = by_weight[BEND] - by_weight[0.0]
    beyond = max(abs(mean - by_weight[BEND]) for weight, mean in by_weight.items() if weight >= BEND)
    rises = rise > max(RISE, 2 * noise)
    return rises, rises and beyond <= PLATEAU * rise


def verdict(found: figures.Found, form: str) -> str:
    """Say whether the curve is the paper's, and what the acceptance is worth.

    Args:
        found: The results.
        form: With clipping or without.
    """
    weights = [weight for weight in found["settings"]["lambdas"] if measured.runs(found, form, weight)]
    if not {0.0, BEND} <= set(weights):
        return f"- {measured.named(form)}: not computed yet."
    every = [figures.values(measured.runs(found, form, weight), "mean") for weight in weights]
    alone = "" if len(every[0]) > 1 else " One seed: the spread is not known, and taken for 0."
    means = [sum(values) / len(values) for values in every]
    rises, level = shape(weights, means, max(map(spread, every)))
    bend, last = f"{means[weights.index(BEND)]:.3f} at lambda = {BEND:g}", f"{means[-1]:.3f} at {weights[-1]:g}"
    if rises:
        said = f"rises from {means[0]:.3f} without entropy to {bend}, and {'plateaus' if level else 'goes on'}: {last}"
    elif max(means) - min(means) <= RISE:
        said = f"lies between {min(means):.3f} and {max(means):.3f} whatever lambda is: no rise"
    else:
        said = f"does not rise: {means[0]:.3f} without entropy, {bend}, {last}"
    return (
        f"- {measured.named(form)}: **{'agrees' if level else 'does not agree'}**. The mean over "
        f"the grid {said}.{alone} {measured.judged(found, form)}"
    )


def section(found: figures.Found) -> str:
    """Say what was found.

    Args:
        found: The results.
    """
    forms = "\n".join(verdict(found, form) for form in measured.free_forms(found["settings"]["clips"]))
    paragraphs = (
        "## Acceptance against lambda",
        f'The paper: as lambda goes from 0 to around {BEND:g}, the mean acceptance "rises sharply", and "plateaus" '
        "beyond. It clips gradients, and does not say where.",
        measured.setting(found),
        measured.table(found),
        f"Counted as a rise: more than {RISE:g}, and than twice the largest spread over seeds; as a plateau: no change "
        f"beyond lambda = {BEND:g} of more than {PLATEAU:g} of the rise.",
        forms,
        "Clipped, gradients longer than C cannot be learned; not clipped, the balance term has no bound, and the "
        f"entropy at most log 2 times lambda. {measured.WITHOUT}",
    )
    return "\n\n".join(paragraphs)


def picture(found: figures.Found, path: Path) -> None:
    """Draw both means and the error of the ratio against lambda, and rules without a lambda as levels.

    Args:
        found: The results.
        path: The file to write.
    """
    settings = found["settings"]
    keys = {"mean over the grid": "mean", "acceptance of proposals": "on_proposals", "error of the ratio": "error"}
    panels: dict[str, dict[str, plots.Curve]] = {}
    levels: dict[str, dict[str, float]] = {}
    for words, key in keys.items():
        lines: dict[str, plots.Curve] = {}
        for form in measured.free_forms(settings["clips"]):
            runs = {weight: measured.runs(found, form, weight) for weight in settings["lambdas"]}
            values = {weight: figures.values(there, key) for weight, there in runs.items() if there}
            means = [sum(several) / len(several) for several in values.values()]
            lines[measured.named(form)] = (list(values), means, list(map(spread, values.values())))
        panels[words] = lines
        if there := measured.runs(found, measured.ANTISYMMETRIC, 0.0):
            levels[words] = {"antisymmetric, without entropy": figures.mean(there, key)}
    for reference in found["reference"]:
        levels.setdefault("error of the ratio", {})["the same answer to all"] = reference["coin_error"]
    plots.curve_panels(
        panels,
        path,
        labels=("lambda", "acceptance, or its error"),
        levels=levels,
        title="Acceptance against the weight of the entropy, Moons",
    )


FIGURE = figures.Figure("entropy-curve", PRESETS, measured.WORDS, measured.stages, cell, section, picture)
run = FIGURE.run
