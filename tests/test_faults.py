"""Full disks, damaged files, and `make soak` itself."""

import errno
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from benchmarks.soak import __main__ as command
from benchmarks.soak import damage, faults, fuzz, kills, steady
from benchmarks.soak.work import BEGUN
from scoremh import (
    MALA,
    LineIntegral,
    Target,
    annealing,
    fit_score,
    metropolis_hastings,
    networks,
    replica_exchange,
    sample,
    targets,
)
from scoremh._shared.files import write_json
from scoremh.estimator.files import RunFolder
from scoremh.training import Recipe
from scoremh.types import Kernel
from studies.framework import runner
from tests.cases import seeded
from tests.estimator_cases import ended

SIZE = 32_000_000


class Disk:
    """A small disk.

    Args:
        path: Where it is mounted.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.ballast = path, path / "ballast"

    def fill(self, free: int = 0) -> None:
        """Fill it up except for some bytes."""
        with self.ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                file.truncate(max(0, file.tell() - free))

    def empty(self) -> None:
        """Make room again."""
        self.ballast.unlink()

    def files(self) -> dict[str, bytes]:
        """Return all that is on it."""
        found = [path for path in self.path.rglob("*") if path.is_file() and path != self.ballast]
        return {str(path.relative_to(self.path)): path.read_bytes() for path in found}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Return a disk of 32 MB; skip the test if none can be mounted."""
    path = tmp_path / "disk"
    path.mkdir()
    call = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(path)]
    try:
        subprocess.run(call, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no tmpfs can be mounted")
    yield Disk(path)
    subprocess.run(["umount", "--lazy", str(path)], check=True)


# Every writer on a full disk: an error, the old file whole, nothing half-written, and the same call goes on after.


KERNEL = metropolis_hastings(Target(score=lambda x: -x), MALA(0.5), LineIntegral())
LAW = targets.Gaussian(torch.zeros(2), torch.eye(2))


def chains(folder: Path | None = None) -> object:
    return sample(KERNEL, torch.zeros(20, 2), draws=300, generator=seeded(), store=folder)


def kernel_at(level: float) -> Kernel:
    return metropolis_hastings(LAW.at(level), MALA(0.5 * level**2), LineIntegral())


def trained(path: Path) -> object:
    samples, recipe = LAW.sample(200, generator=seeded()), Recipe(steps=4, batch=16, check_every=2)
    return fit_score(samples, net=networks.ScoreMLP(2), recipe=recipe, generator=seeded(), checkpoint=path)


WRITERS: dict[str, Callable[[Path], object]] = {
    "chains": lambda folder: chains().save(folder / "chains.nc"),  # type: ignore[attr-defined]
    "plot": lambda folder: chains().plot(folder / "chains.png"),  # type: ignore[attr-defined]
    "report": lambda folder: chains().report(folder / "report.html"),  # type: ignore[attr-defined]
    "store": lambda folder: chains(folder / "store"),
    "anneal": lambda folder: annealing.anneal(
        kernel_at, [2.0, 1.0], torch.zeros(900, 2), steps_per_level=2, generator=seeded(), store=folder / "levels"
    ),
    "replicas": lambda folder: replica_exchange(
        kernel_at, [1.0, 0.5], torch.zeros(50, 2), model=LAW, draws=40, generator=seeded(), store=folder / "replicas"
    ),
    "checkpoint": lambda folder: trained(folder / "checkpoint"),
    "fit": lambda folder: trained(folder / "checkpoint").save(folder / "score.safetensors"),  # type: ignore[attr-defined]
    "json": lambda folder: write_json(folder / "run.json", {"numbers": list(range(3000))}),
    "study": lambda folder: runner.write_json({"numbers": list(range(3000))}, folder / "records.json"),
}


@pytest.mark.parametrize(("name", "free"), [*((name, 0) for name in WRITERS), ("store", 4096), ("fit", 4096)])
def test_a_full_disk_is_an_error_and_loses_nothing(name: str, free: int, disk: Disk) -> None:
    (disk.path / "kept").write_bytes(b"kept")
    disk.fill(free)
    with pytest.raises(OSError, match=r"No space left on device|os error 28") as caught:
        WRITERS[name](disk.path)
    assert caught.value.errno in (errno.ENOSPC, None)
    assert not [path for path in disk.files() if path.endswith(".partial")]
    disk.empty()
    WRITERS[name](disk.path)
    written = disk.files()
    disk.fill()
    if name in ("chains", "plot", "report", "fit", "json", "study"):
        with pytest.raises(OSError, match="No space left"):
            WRITERS[name](disk.path)
    assert disk.files() == written


COMMANDS = {
    "sample": ["--draws", "60", "--seed", "1", "--quiet"],
    "evaluate": ["--seed", "1", "--quiet"],
    "report": ["--quiet"],
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_on_a_full_disk_ends_with_one_line(
    command: str, run: Path, disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    place = disk.path / "run"
    place.mkdir()
    for path in run.iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    before = disk.files()
    disk.fill()
    code, said = ended([command, str(place), *COMMANDS[command]], capsys)
    assert code == 1, said
    assert said.startswith("scoremh: ")
    assert said.count("\n") == 1
    assert {name: raw for name, raw in disk.files().items() if "sampling" not in name} == before
    RunFolder.open(place).get("metrics.json")
    disk.empty()
    from scoremh import cli

    cli.main([command, str(place), *COMMANDS[command], *["--resume"] * (place / "sampling").exists()])


# Loaders given noise and forged files, and files that are damaged: the same as `make soak`, in fewer executions.


EXECUTIONS, DAMAGES = 60, 100
MAX_BYTES = 1_000_000_000


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz.LOADERS)
def test_a_loader_rejects_noise_by_name(name: str, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = fuzz.fuzz(name, EXECUTIONS, tmp_path)
    assert refused > EXECUTIONS / 3
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < MAX_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("name", damage.CASES)
def test_damage_raises_an_error_with_its_name_or_changes_nothing(name: str, tmp_path: Path) -> None:
    found = damage.campaign(name, DAMAGES, tmp_path)
    assert {outcome for _, outcome in found} <= {"refused by name", "the same result"}
    assert all(kind in ("delete", "add", "flip", "byte", "cut", "swap") for kind, _ in found)
    changed = {kind for kind, outcome in found if outcome == "the same result"}
    assert changed <= (
        {"delete"} if name != "store of a killed run" else {"delete", "flip", "byte", "cut", "add", "swap"}
    )


# `make soak` itself: it notices growth, failing tests and errors of loaders, and resumes.


def test_growth_of_memory_and_open_files_is_detected() -> None:
    flat = [steady.Usage(100, 5)] * 8
    assert steady.growth(flat) == (0.0, 0)
    assert steady.growth([steady.Usage(100 + i, 5 + i) for i in range(8)]) == (107 / 105 - 1, 2)
    assert steady.growth([steady.Usage(10 * i, i) for i in range(4)] + flat[:4]) == (0.0, 0)  # before the second half


@pytest.mark.slow
def test_an_open_file_of_every_round_is_counted() -> None:
    with ExitStack() as files:
        found = steady.campaign(0.0, lambda: files.enter_context(Path(__file__).open()))
    assert steady.growth(found)[1] == 2


@pytest.mark.slow
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


@pytest.mark.slow
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
