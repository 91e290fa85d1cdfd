"""Studies are found, run and resumed, or raise errors; the pages are those of the kept records."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from jinja2 import FileSystemLoader

from studies import __main__ as command
from studies.framework import Cell, Claim, Record, Study, grid, pages, runner
from studies.framework.tables import over_seeds
from tests.studies.cases import ROOT


@dataclass(frozen=True)
class Config:
    seeds: tuple[int, ...]
    size: int = 3


class Number(Cell, kind="number"):
    """A number that is known."""

    name: str
    lambda_: float
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        return {"value": self.lambda_ * self.seed, "draws": [1.0, 2.0]}


class Total(Cell, kind="total"):
    """What an earlier cell measured, and more."""

    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        return {"value": config.size + runner.earlier(Number("a", 0.5, self.seed), folder)["value"]}


def stages(config: Config) -> list[list[Cell]]:
    return [grid(Number, seed=config.seeds, name=("a", "b"), lambda_=(0.5, 2.0)), grid(Total, seed=config.seeds)]


KNOWN = Study(
    "known",
    "numbers that are known",
    Config((1, 2)),
    stages,
    None,
    {},
    {"positive": Claim("totals are positive", lambda records: min(records.values("total", "value")) > 0)},
)


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "known.md").write_text("## Known\n\n{{ records.values('total', 'value') | listed }}\n")
    monkeypatch.setattr(pages.ENVIRONMENT, "loader", FileSystemLoader(tmp_path / "templates"))


def test_a_cell_is_a_typed_record() -> None:
    cell = Number("a", 0.5, seed=1)
    assert cell.axes == {"name": "a", "lambda": 0.5, "seed": 1}
    assert Number.of(cell.axes | {"value": 3}) == cell
    assert str(cell) == "number(name=a, lambda=0.5, seed=1)"
    assert len({cell, Number("a", 0.5, 1)}) == 1
    with pytest.raises(AttributeError):
        cell.seed = 2  # type: ignore[misc]


@pytest.mark.usefixtures("templates")
def test_cells_are_computed_once_and_kept_with_their_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner.run(KNOWN, tmp_path)
    folder = tmp_path / "known"
    found = json.loads((folder / "results" / "known.json").read_text())
    # without what only pictures need
    assert found["number"][1] == {"name": "a", "lambda": 2.0, "seed": 1, "value": 2.0}
    assert found["total"] == [{"seed": 1, "value": 3.5}, {"seed": 2, "value": 4.0}]
    page = folder / "reproduction.md"
    assert page.read_text() == "<!-- known -->\n## Known\n\n3.5, 4.0\n<!-- end -->\n"
    before = (folder / runner.FILE).stat().st_mtime_ns
    monkeypatch.setattr(Number, "measure", lambda *given: pytest.fail("computed again"))
    runner.run(KNOWN, tmp_path)
    assert (folder / runner.FILE).stat().st_mtime_ns == before
    for changed in (replace(KNOWN, config=Config((1, 2), size=4)), KNOWN):
        monkeypatch.setattr(runner, "versions", lambda: {"scoremh": "another"})
        with pytest.raises(ValueError, match=r"to hold this study, with (size = 4, got size = 3|versions = )"):
            runner.run(changed, tmp_path)


@pytest.mark.usefixtures("templates")
def test_pages_are_written_again_from_kept_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "all_studies", lambda: {"known": KNOWN})
    with pytest.raises(SystemExit):
        command.main(["known", "--rewrite", "--docs", str(tmp_path)])
    assert "known.json" in capsys.readouterr().err
    results = tmp_path / "results" / "known.json"
    results.parent.mkdir()
    results.write_text(json.dumps({"settings": {}, "number": [], "total": [{"seed": 1, "value": 3.5}]}))
    command.main(["known", "--rewrite", "--docs", str(tmp_path)])
    assert [path.name for path in tmp_path.glob("*.*")] == ["reproduction.md"]
    assert (tmp_path / "reproduction.md").read_text() == "<!-- known -->\n## Known\n\n3.5\n<!-- end -->\n"


class Broken(Cell, kind="broken"):
    """A cell that fails for one seed."""

    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        return {"value": 1 / (2 - self.seed)}


def test_a_failed_cell_is_named_and_those_before_it_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = replace(KNOWN, stages=lambda config: [grid(Broken, seed=config.seeds)])
    with pytest.raises(ZeroDivisionError) as caught:
        runner.run(study, tmp_path)
    assert caught.value.__notes__ == ["It happened in broken(seed=2)."]
    assert list(runner.cells_in(tmp_path / "known", [Broken])) == [Broken(1)]

    def refuse(self: Broken, config: Config, folder: Path) -> Record:
        raise ValueError("expected another seed.")

    monkeypatch.setattr(Broken, "measure", refuse)
    monkeypatch.setattr(runner, "all_studies", lambda: {"known": study})
    monkeypatch.setattr(command, "named_pool", lambda name: contextlib.nullcontext())  # here, where it is patched
    with pytest.raises(SystemExit, match="2"):
        command.main(["known", "--out", str(tmp_path)])
    assert capsys.readouterr().err == "studies: expected another seed. It happened in broken(seed=2).\n"


def test_a_section_has_its_place() -> None:
    page = pages.fill(pages.fill("# Page\n", "a", "one"), "b", "two")
    assert page == "# Page\n\n<!-- a -->\none\n<!-- end -->\n\n<!-- b -->\ntwo\n<!-- end -->\n"
    assert pages.fill(page, "a", "one") == page
    assert pages.fill(page, "a", "other").count("<!-- end -->") == 2


def test_numbers_over_seeds_are_written_with_their_spread_where_there_are_several() -> None:
    assert over_seeds([1.0, 3.0], 2) == "2.00 +- 1.41"
    assert over_seeds([0.5]) == "0.500"
    assert over_seeds([]) == ""


def test_the_command_lists_and_rejects(capsys: pytest.CaptureFixture[str]) -> None:
    command.main([])
    listed = capsys.readouterr().out
    assert all(name in listed and one.shows in listed for name, one in runner.all_studies().items())
    with pytest.raises(SystemExit, match="2"):
        command.main(["tabel1"])
    assert "a study, one of acceptance, " in capsys.readouterr().err


SLOW_CELLS = """
import sys, time
from dataclasses import dataclass
from studies import __main__ as command
from studies.framework import Cell, Study, grid, runner

@dataclass(frozen=True)
class Config:
    seeds: tuple[int, ...] = (1,)

class Slow(Cell, kind="slow"):
    seed: int
    def measure(self, config, folder):
        time.sleep(0.3)
        return {"n": self.seed}

slow = Study("slow", "", Config(), lambda config: [grid(Slow, seed=range(200))], None, {})
runner.all_studies = lambda: {"slow": slow}
if __name__ == "__main__":
    command.main()
"""


def begun_study(folder: Path) -> subprocess.Popen[bytes]:
    """Start a study of slow cells in two processes, and return when three are done."""
    script = folder / "slow.py"
    script.write_text(SLOW_CELLS)
    process = subprocess.Popen(
        [sys.executable, str(script), "slow", "--out", str(folder), "--pool", "2"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "src")))},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # where the tests run in the background
    )
    while cells_done(folder) < 3:
        assert process.poll() is None
        time.sleep(0.05)
    return process


def cells_done(folder: Path) -> int:
    path = folder / "slow" / runner.FILE
    return len(json.loads(path.read_text())["slow"]) if path.exists() else 0


def in_session(leader: int) -> list[int]:
    """Return the processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            found += [int(stat.parent.name)] * (int(session) == leader and state != "Z")
    return found


def session_ends(leader: int, seconds: float = 30.0) -> bool:
    """Return whether all processes of a session end soon."""
    deadline = time.monotonic() + seconds
    while (left := in_session(leader)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not left


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_end_with_a_study_that_is_killed(tmp_path: Path) -> None:
    process = begun_study(tmp_path)
    assert len(in_session(process.pid)) >= 3
    process.kill()
    process.communicate(timeout=20)  # the end of a pipe that the workers hold as well
    assert session_ends(process.pid)


@pytest.mark.slow
def test_ctrl_c_stops_at_once_and_keeps_what_is_done(tmp_path: Path) -> None:
    process = begun_study(tmp_path)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 130
    assert errors.decode() == f"studies: stopped. Finished cells are in {tmp_path}; the same command resumes.\n"
    assert 3 <= cells_done(tmp_path) < 100
