"""Posteriors with a diffusion prior, and annealed chains, with known truth: with and without an accept step.

The prior is a mixture of isotropic normal distributions, wrapped as the denoiser that a perfect network would be, and
read at a low noise level. With a linear observation y = A x + noise its posterior is a mixture of normal distributions.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from studies import plots
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.posteriors import compositions, images
from studies.posteriors.cells import RULES, Annealed, Config, Posterior
from studies.posteriors.compositions import BASES, SAMPLERS, Composed, Quotient
from studies.posteriors.images import IMAGES, PARTICLES, TASKS, Generated, Inpainted  # noqa: F401
from studies.posteriors.images import WAYS as IMAGE_WAYS  # noqa: F401
from studies.posteriors.particles import (
    DIMENSIONS as PUBLISHED_DIMENSIONS,
)
from studies.posteriors.particles import (
    EVIDENCE_CASES,
    Evidence,
    Learned,
    ManyModes,
    Published,
    Tall,
)
from studies.posteriors.particles import (
    WAYS as EVIDENCE_WAYS,
)
from studies.posteriors.problems import DIMENSIONS, PROBLEMS, TAU  # noqa: F401 (the template shows TAU)

NAMES = {"mala": "MALA, Simpson", "ula": "ULA", "exact": "exact draws"}
MAX_Z, MIN_P = 4.0, 1e-4  # what counts as Monte Carlo error: 12 numbers of each kind in two seeds
OBSERVATIONS = 1, 2, 4
TALL: dict[str, dict[int, tuple[int, ...]]] = {
    "normal": {10: (2, 8, 32, 90), 32: (2, 8)},
    "mixture": {10: (2, 4, 8)},
}  # numbers of observations, by dimensions
REPEATED = {"normal": 8, "mixture": 4}  # observations up to which there is more than one seed
ERRORS = (0.001, 0.01, 0.1)  # of perturbed scores, of the normal toy in 10 dimensions with eight observations
LEARNED_DIMENSIONS = (8,)
UNADJUSTED_PROBLEMS = {8: 20, 80: 5, 800: 0}  # by dimensions
MAX_OVER_FLOOR = 1.5  # of the mean distance over that of exact draws


def stages(config: Config) -> list[list[Cell]]:
    """Return all cells."""
    posteriors = grid(Posterior, seed=config.seeds, problem=PROBLEMS, d=DIMENSIONS, rule=NAMES)
    published = [
        cell
        for d, problems in zip(PUBLISHED_DIMENSIONS, config.published_problems, strict=True)
        for cell in grid(Published, d=(d,), observations=OBSERVATIONS, accept=(True, False), problem=range(problems))
        if isinstance(cell, Published) and (cell.accept or cell.problem < UNADJUSTED_PROBLEMS[d])
    ]
    tall = [
        cell
        for toy, settings in TALL.items()
        for d, numbers in settings.items()
        for n in numbers
        for cell in grid(
            Tall,
            toy=(toy,),
            d=(d,),
            n=(n,),
            error=(0.0,),
            seed=range(config.tall_seeds if n <= REPEATED[toy] else 1),
        )
    ]
    perturbed = grid(Tall, toy=("normal",), d=(10,), n=(8,), error=ERRORS, seed=(0,))
    many_modes = grid(ManyModes, accept=(True, False), problem=range(config.many_modes_problems))
    learned = grid(Learned, d=LEARNED_DIMENSIONS, observations=OBSERVATIONS)
    evidence = grid(Evidence, case=range(len(EVIDENCE_CASES)), way=EVIDENCE_WAYS)
    composed = [*grid(Composed, sampler=SAMPLERS, seed=config.seeds), *grid(Quotient, base=BASES)]
    chains = grid(Annealed, seed=config.seeds, d=DIMENSIONS, rule=RULES)
    generated = [Generated(what, way) for what, ways in TASKS.items() for way in ways]
    shown = [*grid(Inpainted, accept=(True, False), seed=(1,)), *generated]
    small = [*chains, *posteriors, *evidence, *composed, *shown]
    return [[*small, *learned, *published, *many_modes, *tall, *perturbed]]


def learn(config: Config, folder: Path) -> None:
    """Train the networks of the compositions and of the images, once."""
    compositions.prepare(config, folder)
    images.prepare(config, folder)


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


def tall_rows(records: Records) -> list[Record]:
    """Return the means over seeds of every setting with many observations."""
    keys = dict.fromkeys((r["toy"], r["d"], r["n"], r["error"]) for r in records.kinds.get("tall", ()))
    rows = []
    for toy, d, n, error in keys:
        found = records.where("tall", toy=toy, d=d, n=n, error=error)
        means = {name: sum(r[name] for r in found) / len(found) for name in ("w2", "floor", "calls", "seconds")}
        rows.append({"toy": toy, "d": d, "n": n, "error": error} | means)
    return rows


def at_the_floor(records: Records) -> dict[str, bool]:
    """Return for every cell of the published benchmark whether particles are near the floor."""
    return {
        f"d = {d}, {n} observed": over_floor(records, d=d, observations=n, accept=True) <= MAX_OVER_FLOOR
        for d in PUBLISHED_DIMENSIONS
        for n in OBSERVATIONS
        if records.where("published", d=d, observations=n, accept=True)
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
    images.picture(folder, docs / "posteriors-images.png")
    plots.dot_rows(rows, docs / "posteriors.png", label="variance over the true one, at equal score calls", level=1.0)


STUDY = Study(
    "posteriors",
    "posteriors with a diffusion prior, and annealed chains, against the truth, with an accept step and without",
    Config(),
    stages,
    picture,
    globals(),
    {
        "mala": Claim("with an accept step everything is within Monte Carlo error of the truth", all_agree("mala")),
        "floor": Claim(
            "particles are at most 1.5 times as far from exact draws as these from each other", at_the_floor
        ),
        "ula": Claim("without one, at the same score calls or steps, nothing is", none_agree),
    },
    prepare=learn,
    page="posteriors.md",
    excerpts={"diffusion-models.md": "posteriors-excerpt.md"},
)
