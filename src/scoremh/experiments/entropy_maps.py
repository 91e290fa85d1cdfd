"""The paper's Figure 2: the learned acceptance a(x', x = (0, 0)) on Moons, for three weights of the entropy."""

from pathlib import Path

import torch

from scoremh import datasets, plots
from scoremh.experiments import _entropy as measured
from scoremh.experiments import _figures as figures
from scoremh.experiments._acceptance_cells import seeded
from scoremh.experiments._entropy import Config

LAMBDAS = (0.0, 0.1, 1.0)  # the paper's
PRESETS = {
    "quick": Config(seeds=(11,), lambdas=LAMBDAS, steps=200, score_steps=2000),
    "paper": Config(seeds=(1, 2, 3), lambdas=LAMBDAS),
}
NEAR_0 = 0.05  # what counts as an acceptance "close to 0"
ENHANCED = 2.0  # and as one that is "significantly enhanced": so many times as much


def verdict(found: figures.Found, form: str) -> str:
    """Say whether the acceptance is near 0 without entropy, and raised by it, as the paper has it.

    Args:
        found: The results.
        form: With clipping or without.
    """
    weights = found["settings"]["lambdas"]
    records = [measured.runs(found, form, weight) for weight in weights]
    if not all(records):
        return f"- {measured.named(form)}: not computed yet."
    first, *others = (figures.mean(there, "mean") for there in records)
    near, raised = first < NEAR_0, max(others) >= ENHANCED * first
    said = ", ".join(f"{value:.3f} for {weight:g}" for weight, value in zip(weights[1:], others, strict=True))
    return (
        f"- {measured.named(form)}: **{'agrees' if near and raised else 'does not agree'}**. "
        f"Without entropy the mean of a is {first:.3f}, {'' if near else 'not '}close to 0; with lambda it is {said}: "
        f"{'' if raised else 'not '}significantly enhanced. {measured.judged(found, form)}"
    )


def section(found: figures.Found) -> str:
    """Say what was found.

    Args:
        found: The results.
    """
    forms = "\n".join(verdict(found, form) for form in measured.free_forms(found["settings"]["clips"]))
    paragraphs = (
        "## Figure 2: what entropy does to the acceptance",
        'The paper: trained without entropy, the acceptance is "close to 0"; with lambda 0.1 and 1 it is '
        '"significantly enhanced". It clips gradients, and does not say where.',
        measured.setting(found),
        measured.table(found),
        f"Counted as close to 0: a mean below {NEAR_0:g}; as significantly enhanced: {ENHANCED:g} times the mean "
        "without entropy, for one of the lambda.",
        forms,
        f"{measured.WITHOUT} More lambda: [acceptance against lambda](#acceptance-against-lambda).",
    )
    return "\n\n".join(paragraphs)


def picture(found: figures.Found, path: Path) -> None:
    """Draw the maps of the first seed, clipped at the largest C and not clipped, beside the antisymmetric form.

    Args:
        found: The results.
        path: The file to write.
    """
    settings = found["settings"]
    seed = settings["seeds"][0]
    clipped, unclipped = measured.free_forms(settings["clips"])[-2:]
    wanted = [(clipped, weight) for weight in settings["lambdas"]] + [(measured.ANTISYMMETRIC, 0.0)]
    wanted += [(unclipped, weight) for weight in settings["lambdas"]]
    shown = {
        f"{measured.named(form)}, lambda = {weight:g}": record
        for form, weight in wanted
        for record in figures.where(measured.runs(found, form, weight), seed=seed)
    }
    plots.map_panels(
        {name: torch.tensor(record["map"]).reshape(measured.GRID_SHAPE).T for name, record in shown.items()},
        path,
        extent=measured.EXTENT,
        samples=datasets.moons(600, generator=seeded(2, seed)),
        mark=(0.0, 0.0),
        captions=[f"mean {record['mean']:.3f}" for record in shown.values()],
        label="a(x', x), with x = (0, 0) at the cross",
        columns=len(settings["lambdas"]) + 1,
        title="What entropy does to the acceptance of a random walk on Moons (its samples in white)",
    )


FIGURE = figures.Figure("entropy-maps", PRESETS, measured.WORDS, measured.stages, measured.cell, section, picture)
run = FIGURE.run
