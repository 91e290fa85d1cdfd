"""`make soak` itself: it notices growth, failing tests and errors of loaders, and resumes."""

import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.soak import __main__ as command
from benchmarks.soak import damage, faults, fuzz, kills, steady
from benchmarks.soak.work import BEGUN


def test_growth_of_memory_and_open_files_is_noticed() -> None:
    flat = [steady.Usage(100, 5)] * 8
    assert steady.growth(flat) == (0.0, 0)
    assert steady.growth([steady.Usage(100 + i, 5 + i) for i in range(8)]) == (107 / 105 - 1, 2)
    assert steady.growth([steady.Usage(10 * i, i) for i in range(4)] + flat[:4]) == (0.0, 0)  # before the second half


def test_an_open_file_of_every_round_is_counted() -> None:
    with ExitStack() as files:
        found = steady.campaign(0.0, lambda: files.enter_context(Path(__file__).open()))
    assert steady.growth(found)[1] == 2


def test_tests_that_fail_or_are_skipped_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "test_three.py"
    text = "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\ndef test_c(): pytest.skip('no disk')\n"
    file.write_text(text)
    assert faults.outcome(str(file)) == faults.Outcome(passed=1, skipped=1, failed=1)
    assert all((faults.ROOT / name).is_file() for name in faults.FAULTS.values())


def test_an_error_of_a_loader_that_is_not_ours_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(folder: Path) -> None:
        raise RuntimeError("of somebody else")

    monkeypatch.setattr(fuzz, "LOADERS", {"csv": fuzz.Loader(lambda: {"a.csv": b"x"}, "a.csv", load)})
    part = command.fuzzed(3)
    assert part.failures == 1
    assert "of somebody else" in part.text
    assert "0 files in all" in part.text


def test_files_that_take_much_memory_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    highest = iter([2.0, 2.6])
    monkeypatch.setattr(command, "highest_memory", lambda: next(highest))
    monkeypatch.setattr(fuzz, "LOADERS", {"csv": fuzz.Loader(lambda: {"a.csv": b"x"}, "a.csv", lambda folder: None)})
    assert command.fuzzed(3).failures == 1


def test_damage_that_is_accepted_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(folder: Path) -> str:
        return "".join(path.read_bytes().hex() for path in folder.iterdir())

    silent = damage.Case(lambda folder: (folder / "a").write_bytes(bytes(9)), read)
    monkeypatch.setattr(damage, "CASES", {"silent": silent})
    assert command.damages(20).failures > 10


SCRIPT = f"""
import sys, time
from pathlib import Path
place = Path(sys.argv[1]) / "steps"
print("{BEGUN}", flush=True)
for _ in range(20 - (len(place.read_bytes()) if place.exists() else 0)):
    time.sleep(0.05)
    with place.open("ab") as file:
        file.write(b".")
print(RESULT)
"""


@pytest.mark.parametrize(
    ("result", "outcome"), [("20", "the same bits"), ("time.time()", "ANOTHER RESULT OR AN ERROR")]
)
def test_work_is_killed_and_compared(
    result: str, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (script := tmp_path / "work.py").write_text(SCRIPT.replace("RESULT", result))
    monkeypatch.setattr(kills, "command", lambda kind, folder: [sys.executable, str(script), folder])
    monkeypatch.setattr(kills, "KINDS", {"work": None})
    monkeypatch.setattr(kills, "MAX_SECONDS", 1.0)
    found = kills.campaign(0.0, kills=3)
    assert found["work"]["kills"] >= 3
    assert set(found["work"]) <= {"kills", "orphans", outcome}
    assert found["work"][outcome] > 0


def test_a_part_that_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "DONE", tmp_path / "soak")
    calls = Counter[str]()

    def part() -> command.Part:
        calls["part"] += 1
        return command.Part("Title", "text", 1)

    assert command.kept("part", part) == command.kept("part", part) == ("Title", "text", 1)
    assert calls["part"] == 1
