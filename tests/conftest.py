"""What several files of tests share and is expensive to make: brief fits, a run folder, a browser.

The library is imported by the fixtures: by this file it would be before its shapes can be checked (../conftest.py).
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def small() -> Any:
    """Return a brief fit to a table with two columns; a test that changes it changes a copy."""
    from scoremh import ScoreMH
    from tests.estimator_cases import FRAME, SMALL

    return ScoreMH(**SMALL).fit(FRAME)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table on disk."""
    from tests.estimator_cases import write_table

    return write_table(tmp_path_factory.mktemp("data") / "data.csv")


@pytest.fixture(scope="session")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run folder with everything in it; a test that changes it takes `run`, a copy."""
    from scoremh import cli
    from tests.estimator_cases import BRIEF

    run = tmp_path_factory.mktemp("whole") / "run"
    cli.main(["fit", str(data), "--out", str(run), *BRIEF])
    cli.main(["sample", str(run), "--draws", "60", "--quiet"])
    cli.main(["evaluate", str(run), "--quiet"])
    cli.main(["report", str(run), "--quiet"])
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of that run folder."""
    copy = tmp_path / "run"
    copy.mkdir()
    for path in whole.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Return a real browser, for the tests of pages."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    driver = pytest.importorskip("playwright.sync_api")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])  # root has no sandbox
        yield browser
        browser.close()
