"""Posteriors with a diffusion prior, and annealed chains, with known truth: with and without an accept step.

The prior is a mixture of isotropic normal distributions, wrapped as the denoiser that a perfect network would be, and
read at a low noise level. With a linear observation y = A x + noise its posterior is a mixture of normal distributions.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from studies import plots
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.posteriors.cells import (  # noqa: F401 (the template shows SLICES)
    PUBLISHED_DIMENSIONS,
    RULES,
    SLICES,
    Annealed,
    Config,
    Posterior,
    Published,
)
from studies.posteriors.problems import DIMENSIONS, PROBLEMS, TAU  # noqa: F401 (the template shows TAU)

NAMES = {"mala": "MALA, Simpson", "ula": "ULA", "exact": "exact draws"}
MAX_Z, MIN_P = 4.0, 1e-4  # what counts as Monte Carlo error: 12 numbers of each kind in two seeds
OBSERVATIONS = 1, 2, 4
WAYS = {8: (True, False), 80: (True,)}  # with an accept step and without, by the number of dimensions
MAX_OVER_FLOOR = 1.5  # of the mean distance over that of exact draws
PRESETS = {"paper": Config()}


def stages(config: Config) -> list[list[Cell]]:
    """Return all cells."""
    posteriors = grid(Posterior, seed=config.seeds, problem=PROBLEMS, d=DIMENSIONS, rule=NAMES)
    published = [
        cell
        for d, problems in zip(PUBLISHED_DIMENSIONS, config.published_problems, strict=True)
        for cell in grid(Published, d=(d,), observations=OBSERVATIONS, accept=WAYS[d], problem=range(problems))
    ]
    return [[*grid(Annealed, seed=config.seeds, d=DIMENSIONS, rule=RULES), *posteriors, *published]]


def agrees(record: Record) -> bool:
    """Return whether everything that was measured in a cell is within Monte Carlo error of the truth."""
    z_scores = [abs(value) for key, value in record.items() if key.endswith("_z") and key != "mean_z"]
    p_values = [value for key, value in record.items() if key.endswith("_p")]
    return max(z_scores) < MAX_Z and min(p_values, default=1.0) > MIN_P


def share_agreeing(records: Records, kind: str, **axes: Any) -> str:
    """Return how many cells agree with the truth, as text."""
    found = records.where(kind, **axes)
    return f"{sum(map(agrees, found))} of {len(found)}"


def all_agree(rule: str) -> Callable[[Records], dict[str, bool]]:
    """Return for every table whether all cells of a rule agree with the truth."""
    return lambda records: {
        kind: all(agrees(record) for record in records.where(kind, rule=rule)) for kind in ("posterior", "annealed")
    }


def none_agree(records: Records) -> dict[str, bool]:
    """Return for every table whether no cell of ULA agrees with the truth."""
    return {kind: not any(map(agrees, records.where(kind, rule="ula"))) for kind in ("posterior", "annealed")}


def over_floor(records: Records, **axes: Any) -> float:
    """Return the mean distance over the mean distance of exact draws."""
    found = records.where("published", **axes)
    return sum(float(record["w1"]) for record in found) / sum(float(record["floor"]) for record in found)


def evidence_within(records: Records, **axes: Any) -> str:
    """Return how many log evidences are within three standard errors of the truth, as text."""
    z_scores = records.values("published", "evidence_z", **axes)
    return f"{sum(abs(float(z)) < 3 for z in z_scores)} of {len(z_scores)}"


def at_the_floor(records: Records) -> dict[str, bool]:
    """Return for every cell of the published benchmark whether particles are near the floor."""
    return {
        f"d = {d}, {n} observed": over_floor(records, d=d, observations=n, accept=True) <= MAX_OVER_FLOOR
        for d in PUBLISHED_DIMENSIONS
        for n in OBSERVATIONS
    }


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw the variances of all posteriors over the true ones, of every seed."""
    rows = {
        f"{problem}, {d} dimensions": {
            name: records.values("posterior", "variance", problem=problem, d=d, rule=rule)
            for rule, name in NAMES.items()
        }
        for d in DIMENSIONS
        for problem in PROBLEMS
    }
    plots.dot_rows(rows, docs / "posteriors.png", label="variance over the true one, at equal score calls", level=1.0)


STUDY = Study(
    "posteriors",
    "posteriors with a diffusion prior, and annealed chains, against the truth, with an accept step and without",
    PRESETS,
    stages,
    (Posterior, Annealed, Published),
    picture,
    globals(),
    {
        "mala": Claim("with an accept step everything is within Monte Carlo error of the truth", all_agree("mala")),
        "floor": Claim(
            "particles are at most 1.5 times as far from exact draws as these from each other", at_the_floor
        ),
        "ula": Claim("without one, at the same score calls or steps, nothing is", none_agree),
    },
    page="posteriors.md",
)
