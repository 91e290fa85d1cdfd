"""What the weight of the entropy, lambda, does to acceptances of Moons that are trained as the paper does.

Two figures of the paper: maps of a(x', x = (0, 0)) for three lambda, and its mean over a grid against lambda.
"""

from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from scoremh import datasets
from studies import plots
from studies.entropy.cells import (
    ANTISYMMETRIC,
    EXTENT,
    GRID_SHAPE,
    Config,
    MapTraining,
    Reference,
    Score,
    Training,
    free_forms,
    label,
    stages,
)
from studies.framework import Claim, Record, Records, Study
from studies.framework.tables import mean, spread
from studies.learning import seeded

MAP_LAMBDAS = (0.0, 0.1, 1.0)  # the paper's
CURVE_LAMBDAS = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 7.0, 10.0)
MAX_NEAR_0 = 0.05  # what counts as an acceptance "close to 0"
MIN_ENHANCEMENT = 2.0  # and as one that is "significantly enhanced": so many times as much
BEND = 4.0  # lambda where the paper's curve levels off
MIN_RISE = 0.05  # what counts as a rise up to there
MAX_PLATEAU = 0.5  # and what as a plateau beyond: no change larger than this share of the rise
HEADS = {"mean over the grid": "mean", "acceptance of proposals": "on_proposals", "error of the ratio": "error"}


def trainings(settings: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the forms and lambdas that are trained."""
    return [*product(free_forms(settings["clips"]), settings["lambdas"]), (ANTISYMMETRIC, 0.0)]


def means_by_lambda(records: Records, form: str, key: str) -> dict[float, float]:
    """Return the means over seeds by lambda, if there are any."""
    weights = records.settings["lambdas"]
    found = {weight: records.values("entropy", key, form=form, lambda_=weight) for weight in weights}
    return {weight: mean(values) for weight, values in found.items() if values}


def enhanced(records: Records) -> dict[str, bool]:
    """Return by form whether the acceptance is near 0 without entropy, and raised by it."""
    found = {form: maps(records, form) for form in complete(records)}
    return {form: one["near_0"] and one["raised"] for form, one in found.items()}


def complete(records: Records) -> list[str]:
    """Return the trainings of the free form that are there for every lambda."""
    settings = records.settings
    there = {form: means_by_lambda(records, form, "mean") for form in free_forms(settings["clips"])}
    return [form for form, means in there.items() if len(means) == len(settings["lambdas"])]


def maps(records: Records, form: str) -> Record:
    """Return the mean acceptance without entropy and with it, and what that is called."""
    without, *others = means_by_lambda(records, form, "mean").values()
    return {
        "without": without,
        "others": dict(zip(records.settings["lambdas"][1:], others, strict=True)),
        "near_0": without < MAX_NEAR_0,
        "raised": max(others) >= MIN_ENHANCEMENT * without,
    }


def shape(means: dict[float, float], noise: float) -> tuple[bool, bool]:
    """Return whether a curve over lambda rises to the bend by more than noise, and is then level."""
    rise = means[BEND] - means[0.0]
    beyond = max(abs(value - means[BEND]) for weight, value in means.items() if weight >= BEND)
    rises = rise > max(MIN_RISE, 2 * noise)
    return rises, rises and beyond <= MAX_PLATEAU * rise


def curve(records: Records, form: str) -> Record:
    """Return the curve of a form, and whether it rises and levels off."""
    means = means_by_lambda(records, form, "mean")
    every = [records.values("entropy", "mean", form=form, lambda_=weight) for weight in means]
    rises, level = shape(means, max(map(spread, every)))
    last = max(means)
    return {
        "rises": rises,
        "level": level,
        "flat": max(means.values()) - min(means.values()) <= MIN_RISE,
        "least": min(means.values()),
        "largest": max(means.values()),
        "without": means[0.0],
        "bend": means[BEND],
        "last": means[last],
        "last_lambda": last,
        "one_seed": len(every[0]) == 1,
    }


def rises_and_plateaus(records: Records) -> dict[str, bool]:
    """Return by form whether the acceptance rises to the bend and plateaus beyond."""
    return {form: curve(records, form)["level"] for form in complete(records)}


def map_picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw the maps of the first seed, clipped at the largest C and not clipped, beside the antisymmetric form."""
    settings, seed = records.settings, records.settings["seeds"][0]
    clipped, unclipped = list(free_forms(settings["clips"]))[-2:]
    wanted = [(clipped, weight) for weight in settings["lambdas"]] + [(ANTISYMMETRIC, 0.0)]
    wanted += [(unclipped, weight) for weight in settings["lambdas"]]
    shown = {
        f"{label(form, settings['clips'])}, lambda = {weight:g}": record
        for form, weight in wanted
        for record in records.where("entropy", form=form, lambda_=weight, seed=seed)
    }
    plots.map_panels(
        {name: torch.tensor(record["map"]).reshape(GRID_SHAPE).T for name, record in shown.items()},
        docs / "entropy-maps.png",
        extent=EXTENT,
        samples=datasets.moons(600, generator=seeded(2, seed)),
        mark=(0.0, 0.0),
        captions=[f"mean {record['mean']:.3f}" for record in shown.values()],
        label="a(x', x), with x = (0, 0) at the cross",
        columns=len(settings["lambdas"]) + 1,
        title="What entropy does to the acceptance of a random walk on Moons (its samples in white)",
    )


def curve_picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw both means and the error of the ratio against lambda, and rules without a lambda as levels."""
    clips = records.settings["clips"]
    panels: dict[str, dict[str, plots.Curve]] = {}
    levels: dict[str, dict[str, float]] = {}
    for head, key in HEADS.items():
        panels[head] = {label(form, clips): line(records, form, key) for form in free_forms(clips)}
        levels[head] = {"antisymmetric, without entropy": mean(records.values("entropy", key, form=ANTISYMMETRIC))}
    for reference in records.kinds["reference"]:
        levels["error of the ratio"]["the same answer to all"] = reference["coin_error"]
    plots.curve_panels(
        panels,
        docs / "entropy-curve.png",
        labels=("lambda", "acceptance, or its error"),
        levels=levels,
        title="Acceptance against the weight of the entropy, Moons",
    )


def line(records: Records, form: str, key: str) -> plots.Curve:
    """Return a number over lambda with its spread over seeds."""
    means = means_by_lambda(records, form, key)
    bars = [spread(records.values("entropy", key, form=form, lambda_=weight)) for weight in means]
    return list(means), list(means.values()), bars


MAPS = Study(
    "entropy-maps",
    "the paper's Figure 2: the learned acceptance a(x', x = (0, 0)) on Moons, for three weights of the entropy",
    {
        "quick": Config(seeds=(11,), lambdas=MAP_LAMBDAS, steps=200, score_steps=2000),
        "paper": Config(seeds=(1, 2, 3), lambdas=MAP_LAMBDAS),
    },
    partial(stages, kind=MapTraining),
    (Score, Reference, MapTraining),
    map_picture,
    globals(),
    {"enhanced": Claim("without entropy the acceptance is close to 0; with it, significantly enhanced", enhanced)},
    shows_draws=True,
)
CURVE = Study(
    "entropy-curve",
    "acceptance against lambda, the weight of the entropy: the mean of a(x', (0, 0)) over a grid, on Moons",
    {
        "quick": Config(seeds=(11,), lambdas=(0.0, 1.0, 4.0, 10.0), steps=200, score_steps=2000),
        "paper": Config(seeds=(1, 2, 3), lambdas=CURVE_LAMBDAS),
    },
    partial(stages, kind=Training),
    (Score, Reference, Training),
    curve_picture,
    globals(),
    {"rises": Claim("the mean acceptance rises sharply up to lambda = 4 and plateaus beyond", rises_and_plateaus)},
)
