"""Rows, tables and runs of the command line to test on."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scoremh import cli, datasets, targets
from tests.cases import seeded

SMALL: dict[str, Any] = {
    "acceptance": "potential",  # so that all parts are there
    "score_steps": 20,
    "acceptance_steps": 20,
    "chain_steps": 8,
    "verbose": False,
    "random_state": 0,
}
LAW = targets.GaussianMixture([0.3, 0.7], [[-2.0, 0.0], [2.0, 1.0]], [[0.5, 0.2], [0.2, 0.4]])
X = LAW.sample(2000, generator=seeded(1)).double().numpy()
FRAME = pd.DataFrame(X, columns=["width", "height"])
FEW = X[
    :400
]  # for tests in which the number of rows does not matter: most of a fit's time goes into comparing draws with rows
FEW_FRAME = FRAME[:400]


BRIEF = [
    *("--score-steps", "20", "--acceptance-steps", "20", "--annealing-steps", "1", "--chain-steps", "6"),
    *("--acceptance", "potential", "--noise-level", "0.6", "--seed", "3", "--quiet"),
]


def write_table(path: Path, n: int = 400, seed: int = 0) -> Path:
    x = datasets.moons(n, generator=seeded(seed))
    pd.DataFrame(x.numpy(), columns=["width", "height"]).to_csv(path, index=False)
    return path


def ended(tokens: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code and what was said to standard error."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        cli.main(tokens)
    return int(str(end.value.code)), capsys.readouterr().err
