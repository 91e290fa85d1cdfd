"""Posteriors with a diffusion prior, and annealed chains, with known truth: with and without an accept step.

The prior is a mixture of isotropic normal distributions, wrapped as the denoiser that a perfect network would be, and
read at a low noise level. With a linear observation y = A x + noise its posterior is a mixture of normal distributions.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from studies import plots
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.posteriors.cells import RULES, Annealed, Config, Posterior
from studies.posteriors.problems import DIMENSIONS, PROBLEMS, TAU  # noqa: F401 (the template shows TAU)

NAMES = {"mala": "MALA, Simpson", "ula": "ULA", "exact": "exact draws"}
MAX_Z, MIN_P = 4.0, 1e-4  # what counts as Monte Carlo error: 12 numbers of each kind in two seeds
PRESETS = {"paper": Config()}


def stages(config: Config) -> list[list[Cell]]:
    """Return all cells."""
    posteriors = grid(Posterior, seed=config.seeds, problem=PROBLEMS, d=DIMENSIONS, rule=NAMES)
    return [[*grid(Annealed, seed=config.seeds, d=DIMENSIONS, rule=RULES), *posteriors]]


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
    (Posterior, Annealed),
    picture,
    globals(),
    {
        "mala": Claim("with an accept step everything is within Monte Carlo error of the truth", all_agree("mala")),
        "ula": Claim("without one, at the same score calls or steps, nothing is", none_agree),
    },
    page="posteriors.md",
)
