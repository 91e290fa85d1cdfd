"""Rows, tables and runs of the command line to test on."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scoremh import ScoreMH, cli, datasets, targets
from tests.cases import seeded

SMALL: dict[str, Any] = {
    "score_steps": 20,
    "acceptance_steps": 20,
    "annealing_steps": 1,
    "chain_steps": 8,
    "noise_level": 0.6,  # trial chains, which choose it, take half the time of so small a fit
    "verbose": False,
    "random_state": 0,
}
LAW = targets.GaussianMixture([0.3, 0.7], [[-2.0, 0.0], [2.0, 1.0]], [[0.5, 0.2], [0.2, 0.4]])
X = LAW.sample(2000, generator=seeded(1)).double().numpy()
FRAME = pd.DataFrame(X, columns=["width", "height"])


@pytest.fixture(scope="module")
def small() -> ScoreMH:
    return ScoreMH(**SMALL).fit(FRAME)


BRIEF = [
    *("--score-steps", "20", "--acceptance-steps", "20", "--annealing-steps", "1", "--chain-steps", "6"),
    *("--noise-level", "0.6", "--seed", "3", "--quiet"),
]


def write_table(path: Path, n: int = 400, seed: int = 0) -> Path:
    x = datasets.moons(n, generator=seeded(seed))
    pd.DataFrame(x.numpy(), columns=["width", "height"]).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("data") / "data.csv")


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with everything in it."""
    run = tmp_path_factory.mktemp("whole") / "run"
    cli.main(["fit", str(data), "--out", str(run), *BRIEF])
    cli.main(["sample", str(run), "--draws", "60", "--quiet"])
    cli.main(["evaluate", str(run), "--quiet"])
    cli.main(["report", str(run), "--quiet"])
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of that run."""
    copy = tmp_path / "run"
    copy.mkdir()
    for path in whole.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def ended(tokens: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code and what was said to standard error."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        cli.main(tokens)
    return int(str(end.value.code)), capsys.readouterr().err
