"""Run folders when things go wrong: interrupted commands, full disks and damaged files lose nothing."""

import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from scoremh import Chains, ScoreMH, cli
from scoremh.cli.commands import report
from scoremh.estimator.files import RunFolder
from tests.cli_cases import BRIEF, data, ended, run, whole

__all__ = ["data", "run", "whole"]  # fixtures


@pytest.mark.parametrize(
    "name", ["config.json", "score.safetensors", "held_out.safetensors", "chains.nc", "metrics.json"]
)
def test_a_damaged_file_is_refused_by_name(run: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    raw = (run / name).read_bytes()
    (run / name).write_bytes(raw[: len(raw) // 2])
    code, said = ended(["report", str(run)], capsys)
    assert code == 2
    assert str(run / name) in said


def test_files_of_another_run_do_not_become_part_of_a_new_one(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "config.json").unlink()
    code, said = ended(["fit", str(data), "--out", str(run), *BRIEF], capsys)
    assert code == 2
    assert f"{run} to be a new folder, got one with chains.nc in it. Move it away" in said


def test_a_write_that_is_killed_leaves_the_old_file_or_the_new_one(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, old = RunFolder.open(run), (run / "metrics.json").read_text()

    def half(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.put("metrics.json", half)
    assert RunFolder.open(run).get("metrics.json").read_text() == old
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if target.name != "metrics.json":
            return replace(self, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # after it was written, before it took its place
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.put("metrics.json", lambda path: path.write_text("new"))
    assert RunFolder.open(run).get("metrics.json").read_text() == old
    RunFolder.open(run).put("metrics.json", lambda path: path.write_text("new"))
    assert RunFolder.open(run).get("metrics.json").read_text() == "new"


def test_two_commands_on_one_run_keep_what_the_other_wrote(run: Path) -> None:
    first, second = RunFolder.open(run), RunFolder.open(run)
    first.put("chains.nc", lambda path: path.write_text("new"))
    second.put("metrics.json", lambda path: path.write_text("{}"))
    now = RunFolder.open(run)
    assert now.get("chains.nc").read_text() == "new"
    assert now.get("metrics.json").read_text() == "{}"


@pytest.mark.parametrize("name", ["config.json", "metrics.json", "report.html"])
def test_no_write_follows_a_link_out_of_the_folder(run: Path, data: Path, name: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    for link in (run / f"{name}.partial", run / name):
        outside.write_bytes((run / name).read_bytes() if (run / name).exists() else b"mine")
        before = outside.read_bytes()
        link.unlink(missing_ok=True)
        link.symlink_to(outside)
        cli.main(["evaluate", str(run), "--quiet"])
        cli.main(["report", str(run), "--quiet"])
        assert outside.read_bytes() == before
    if name == "config.json":  # which a fit alone writes
        cli.main(["fit", str(data), "--out", str(run), "--overwrite", *BRIEF])
        assert outside.read_bytes() == before
    assert not (run / name).is_symlink()


def test_a_linked_folder_is_refused_by_name(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (outside := tmp_path / "outside").mkdir()
    (outside / "mine").write_bytes(b"mine")
    (run / "sampling").symlink_to(outside)
    for call in (["sample", str(run), "--overwrite"], ["sample", str(run), "--resume"], ["report", str(run)]):
        code, said = ended(call, capsys)
        assert code == 2
        assert f"{run / 'sampling'}, a symbolic link to {outside}. Replace the link" in said
    assert [path.name for path in outside.iterdir()] == ["mine"]


def test_a_linked_lock_is_refused_by_name(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (outside := tmp_path / "outside").write_bytes(b"mine")
    (run / "writer.lock").symlink_to(outside)
    code, said = ended(["sample", str(run), "--overwrite"], capsys)
    assert code != 0
    assert f"{run / 'writer.lock'}, got a symbolic link to {outside}. Remove the link" in said
    assert outside.read_bytes() == b"mine"


def limited(size: int) -> Any:
    """Return what makes a process's files no larger than this, as on a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["fit", "sample", "report"])
def test_a_full_disk_is_one_line_and_loses_nothing(command: str, run: Path, data: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    words = {
        "fit": ["fit", str(data), "--out", str(tmp_path / "new"), *BRIEF],
        "sample": ["sample", str(run), "--draws", "2000", "--quiet"],
        "report": ["report", str(run), "--quiet"],
    }[command]
    call = [sys.executable, "-m", "scoremh.cli", *words]
    ran = subprocess.run(call, capture_output=True, text=True, preexec_fn=limited(20_000))
    assert ran.returncode == 1, ran.stderr
    assert ran.stderr.startswith("scoremh: ")
    assert ran.stderr.count("\n") == 1
    assert "arge" in ran.stderr  # File too large
    after = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert {name: after[name] for name in before if name != "config.json"} == {
        name: raw for name, raw in before.items() if name != "config.json"
    }
    assert not [name for name in after if name.endswith(".partial")]
    report(run)  # it is still whole


def stoppable() -> None:
    """Hear Ctrl-C again, where the tests were started in the background, which does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def begun(call: list[str], until: Path) -> subprocess.Popen[str]:
    """Start a command whose trainings are saved often, and return when a file is there."""
    often = "import sys; from scoremh import cli; from scoremh import training; training.SAVE_SECONDS = 0.1; "
    command = [sys.executable, "-c", f"{often}cli.main(sys.argv[1:])", *call]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=stoppable)
    while not until.exists():
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.02)
    return process


@pytest.mark.slow
def test_ctrl_c_stops_a_fit_and_resume_ends_with_the_same_bits(data: Path, tmp_path: Path) -> None:
    options = [*BRIEF[2:], "--score-steps", "4000"]
    call = ["fit", str(data), "--out", str(tmp_path / "run"), *options]
    process = begun(call, tmp_path / "run" / "score.checkpoint")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert said.startswith("scoremh: interrupted. Nothing is lost. Resume with: scoremh fit")
    assert "Traceback" not in said
    cli.main([*call, "--resume"])
    cli.main(["fit", str(data), "--out", str(tmp_path / "other"), *options])
    again, other = ScoreMH.load(tmp_path / "run"), ScoreMH.load(tmp_path / "other")
    pd.testing.assert_frame_equal(again.sample(10), other.sample(10))
    assert not list((tmp_path / "run").glob("*.checkpoint"))


@pytest.mark.slow
def test_ctrl_c_stops_a_sampling_and_resume_ends_with_the_same_bits(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = (run / "chains.nc").read_bytes()
    call = ["sample", str(run), "--draws", "20000", "--trace", "2", "--quiet"]
    process = begun(call, run / "sampling" / "annealing" / "stage-0002")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "--resume" in said
    assert (run / "chains.nc").read_bytes() == old
    code, said = ended(call, capsys)
    assert code == 2
    assert "Add --resume to resume it, or --overwrite" in said
    cli.main([*call, "--resume"])
    resumed = Chains.load(run / "chains.nc")
    cli.main(call)
    assert torch.equal(resumed.draws, Chains.load(run / "chains.nc").draws)
