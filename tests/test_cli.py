"""The command line, on one run folder: its files, output and errors, and what survives an interruption."""

import dataclasses
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import tomllib
from functools import partial
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch

from scoremh import Chains, Recipe, ScoreMH, cli, datasets, fit_score
from scoremh._shared.progress import named_steps, progress_bar
from scoremh.cli import app, commands, demo
from scoremh.cli.commands import report
from scoremh.estimator.files import RunFolder
from tests.estimator_cases import BRIEF, SMALL, ended, write_table


def test_one_folder_holds_everything(whole: Path, data: Path) -> None:
    assert {path.name for path in whole.iterdir()} == {
        "config.json",
        "score.safetensors",
        "acceptance.safetensors",
        "held_out.safetensors",
        "chains.nc",
        "metrics.json",
        "report.html",
    }
    config = json.loads((whole / "config.json").read_text())
    assert config["versions"]["scoremh"]
    assert config["parameters"]["random_state"] == 3
    assert config["command"].startswith(f"scoremh fit {data} --out")
    assert config["data"] == str(data)
    assert config["columns"] == ["width", "height"]
    chains = Chains.load(whole / "chains.nc")
    assert chains.draws.shape == (60, 6, 2)
    model = ScoreMH.load(whole)
    np.testing.assert_array_equal(model.sample(60, random_state=0).to_numpy(), chains.last.double().numpy())
    metrics = json.loads((whole / "metrics.json").read_text())
    assert metrics["points"] == 20
    assert metrics["floors"]["w1"][0] > 0
    assert metrics["samplers"]["draws"]["w1"] > 0
    assert 0 < metrics["samplers"]["draws"]["p_value"] <= 1
    page = (whole / "report.html").read_text()
    assert "width" in page
    assert "R-hat" in page


@pytest.mark.slow
def test_quiet_says_nothing_and_json_nothing_else(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    cli.main(["fit", str(data), "--out", str(run), *BRIEF])
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
    results = []
    for call in (["sample", str(run), "--draws", "45"], ["evaluate", str(run)], ["report", str(run)], ["doctor"]):
        cli.main([*call, "--json"])
        captured = capfd.readouterr()
        assert captured.err == ""
        results.append(json.loads(captured.out))
    assert results[0]["draws"] == 45
    kept = json.loads((run / "metrics.json").read_text())
    del kept["sha256"]
    assert results[1] == kept | {"removed": []}
    assert results[2]["report"] == str(run / "report.html")
    assert results[3]["versions"]["torch"] == torch.__version__
    cli.main(["evaluate", str(run)])
    captured = capfd.readouterr()
    assert "step 1 of 2: distances" in captured.err
    assert "floor: fresh rows" in captured.out
    assert "; removed report.html, which was about other distances. Next: scoremh report" in captured.out


def test_the_doctor_shows_every_extra_and_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    extras = {name: pins for name, pins in project["optional-dependencies"].items() if name not in ("all", "dev")}
    bare = {name: tuple(re.split("[^a-z0-9-]", pin)[0] for pin in pins) for name, pins in extras.items()}
    assert {name: extra.packages for name, extra in commands.EXTRAS.items()} == bare
    assert {re.split("[^a-z0-9-]", pin)[0] for pin in project["dependencies"]} == set(commands.REQUIRED)
    version = metadata.version

    def without_plotly(name: str) -> str:
        if name == "plotly":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without_plotly)
    cli.main(["doctor"])
    lines = {words[0]: " ".join(words) for line in capsys.readouterr().out.splitlines() if (words := line.split())}
    assert "report missing reports and pictures" in lines["report"]
    assert "plotly missing). Install it: pip install 'scoremh[report]'" in lines["report"]
    assert lines["cli"].startswith("cli installed the command line")


@pytest.mark.slow
def test_rows_as_csv_and_another_reference(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["sample", str(run), "--draws", "30", "--csv", str(tmp_path / "drawn.csv")])
    assert "; removed metrics.json and report.html, which were about other draws. Next" in capsys.readouterr().out
    assert not (run / "metrics.json").exists()  # they were of other draws
    frame = pd.read_csv(tmp_path / "drawn.csv")
    assert list(frame.columns) == ["width", "height"]
    np.testing.assert_allclose(frame.to_numpy(), Chains.load(run / "chains.nc").last.numpy(), rtol=1e-6)
    reference = write_table(tmp_path / "test.csv", 100, seed=9)
    cli.main(["evaluate", str(run), "--reference", str(reference), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["points"], found["reference"]) == (30, f"rows of {reference}")
    assert not (run / "report.html").exists()  # it had other numbers
    kept = json.loads((run / "metrics.json").read_text())
    del kept["sha256"]
    assert kept | {"removed": []} == found


@pytest.mark.slow
def test_images_are_drawn_and_shown_as_images(tmp_path: Path) -> None:
    np.save(tmp_path / "digits.npy", datasets.digits()[:300].reshape(300, 8, 8).numpy())
    run = tmp_path / "run"
    cli.main(["fit", str(tmp_path / "digits.npy"), "--out", str(run), *BRIEF])
    cli.main(["sample", str(run), "--draws", "20", "--quiet"])
    assert Chains.load(run / "chains.nc").draws.shape == (20, 6, 8, 8)
    cli.main(["evaluate", str(run), "--quiet"])
    cli.main(["report", str(run), "--quiet"])
    assert (run / "report.html").stat().st_size < 6_000_000


WRONG: dict[str, tuple[str, str]] = {
    "an unknown command": ("smaple RUN", 'Did you mean "sample"?'),
    "an unknown option": ("sample RUN --darws 10", "Unknown option: --darws. Did you mean --draws?"),
    "an unknown choice": ("fit DATA --out NEW --proposal mla", 'Did you mean "mala"?'),
    "half a step": ("sample RUN --draws 1.5", "expected a whole number, got '1.5'"),
    "a seed below 0": ("fit DATA --out NEW --seed -1", "seed of at least 0, got -1"),
    "too few rows": ("fit FEW --out NEW", "at least 10 rows"),
    "a name twice": ("fit TWICE --out NEW", "'a' more than once"),
    "another run where the demo would be": ("demo --out RUN", "got one with another run"),
    "no number": ("sample RUN --draws many", "expected a whole number, got 'many'"),
    "a missing file": ("fit nothing.csv --out NEW", "nothing.csv to be a file, got no such file"),
    "a missing reference": ("evaluate RUN --reference nothing.csv", "nothing.csv to be a file, got no such file"),
    "a folder in place of a file": ("fit EMPTY --out NEW", "to be a file, got a folder"),
    "a missing run": ("sample NEW", "to be the folder of a run, got no such folder"),
    "a folder without a run": ("report EMPTY", "to be the folder of a run, got no config.json in it"),
    "text among numbers": (
        "fit TEXT --out NEW",
        "at most 32 levels in the category 'height', got 40. Remove the column, merge rare levels, or correct text",
    ),
    "text in a reference": (
        "evaluate RUN --reference TEXT",
        "expected column 'height' of numbers, got 'tall'",
    ),
    "a folder that is a file": ("fit DATA --out DATA", "to be a new folder, got a file"),
    "a folder with a run": (
        "fit DATA --out RUN",
        "got one with a run in it. Choose another folder, or add --overwrite",
    ),
    "a finished fit to resume": ("fit DATA --out RUN --resume", "an interrupted fit in"),
    "a fit to resume that is not there": ("fit DATA --out NEW --resume", "got no such folder"),
    "a sampling to resume that is not there": ("sample RUN --resume", "got none. Leave --resume out."),
    "no draws": ("sample RUN --draws 0", "draws of at least 1, got 0"),
    "more trace than steps": ("sample RUN --trace 7", "a trace of 1 to 6 draws, the steps of a chain, got 7"),
    "a reference of another shape": ("evaluate RUN --reference WIDE", "rows of shape (2,), got (3,)"),
    "a reference of other columns": ("evaluate RUN --reference OTHER", "the columns width, height, got a, b"),
    "a folder for rows that is not there": ("sample RUN --csv NEW/x.csv", "a file to write rows to"),
    "a folder that takes no files": ("fit DATA --out LOCKED/run", "to be writable, got"),
    "an invalid noise level": ("fit DATA --out NEW --noise-level -1", "noise_level between 0.02 and 5.0, got -1.0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line_and_loses_nothing(
    case: str, run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, text = WRONG[case]
    lines = [f"{i},{i}.5\n" for i in range(39)]  # with text among them, levels of a category
    (tmp_path / "text.csv").write_text("".join(["width,height\n", *lines, "39,tall\n"]))
    (tmp_path / "wide.csv").write_text("a,b,c\n1,2,3\n4,5,7\n")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n3,5\n")
    (tmp_path / "few.csv").write_text("a,b\n1,2\n3,5\n")
    (tmp_path / "twice.csv").write_text("a,a\n1,2\n3,5\n")
    (tmp_path / "empty").mkdir()
    locked = Path("/sys") if os.geteuid() == 0 else tmp_path / "locked"  # root may write to any ordinary folder
    if os.geteuid() != 0:
        locked.mkdir(mode=0o500)
    places = {"RUN": run, "DATA": data, "NEW": tmp_path / "new", "EMPTY": tmp_path / "empty", "LOCKED": locked}
    places |= {"TEXT": tmp_path / "text.csv", "WIDE": tmp_path / "wide.csv", "OTHER": tmp_path / "other.csv"}
    places |= {"FEW": tmp_path / "few.csv", "TWICE": tmp_path / "twice.csv"}
    for name, place in places.items():
        words = words.replace(name, str(place))
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    code, said = ended([*words.split(), "--quiet"], capsys)
    assert code == 2
    assert text in said
    assert said.startswith("scoremh: ")
    assert said.count("\n") == 1
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    assert not (tmp_path / "new").exists()
    code, said = ended([*words.split(), "--debug"], capsys)
    assert "Traceback" in said


@pytest.mark.slow
def test_overwriting_removes_the_run_and_nothing_else(run: Path, data: Path) -> None:
    (run / "notes.txt").write_text("mine")
    cli.main(["fit", str(data), "--out", str(run), "--overwrite", *BRIEF])
    left = {"config.json", "score.safetensors", "acceptance.safetensors", "held_out.safetensors", "notes.txt"}
    assert {path.name for path in run.iterdir()} == left


def test_the_report_shows_the_verdict_and_how_its_chains_mix(run: Path) -> None:
    folder = RunFolder.open(run)
    chains = Chains.load(folder.get("chains.nc"))
    stuck = chains.draws[:, :1].expand(-1, 6, -1) + 1e-3 * torch.randn(60, 6, 2)
    folder.put("chains.nc", dataclasses.replace(chains, draws=stuck).save, outdates=["metrics.json"])
    cli.main(["report", str(run), "--quiet"])
    page = (run / "report.html").read_text()
    assert '<section class="verdict do-not-use"' in page
    assert "Leave score_steps out: " in page
    shown = re.findall(r'<td data-label="R-hat">([\d.]+)</td>', page)
    assert len(shown) == 2
    assert min(map(float, shown)) > 10  # the chains are stuck, and the table says so


@pytest.mark.parametrize(
    "tokens",
    [
        *(["--help"], ["fti"], ["fit", "--ou", "x"], ["evaluate", "--help"], ["--version"]),
        *(
            ["fit", "nowhere.csv", "--out", "x"],
            ["fit", __file__, "--out", "x"],
            ["sample", "nowhere"],
            ["evaluate", "nowhere"],
            ["report", "nowhere"],
        ),
    ],
)
def test_help_typos_and_wrong_paths_need_no_torch(tokens: list[str]) -> None:
    script = (
        "import sys\nfrom scoremh.cli import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'pandas', 'numpy', 'sklearn') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", script, *tokens], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_the_terminal_says_what_happened(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, rows = tmp_path / "run", tmp_path / "new.csv"
    aloud = [word for word in BRIEF if word != "--quiet"]
    cli.main(["fit", str(data), "--out", str(run), *aloud])
    said = capsys.readouterr().out
    assert re.search(r"\ntook \d+ s: score \d+, chains \d+, checks \d+\n", said)
    assert f"Next: scoremh sample {run} --draws 1000 --csv new.csv" in said
    assert "conservativity" not in said
    cli.main(["sample", str(run), "--draws", "30", "--csv", str(rows)])
    said = capsys.readouterr().out
    assert re.match(rf"30 rows -> {re.escape(str(rows))} in \d+ s\n", said)
    assert "MALA" not in said
    cli.main(["sample", str(run), "--draws", "30", "--verbose"])
    assert "MALA" in capsys.readouterr().out  # kernels are for experts


@pytest.mark.slow
def test_rows_under_a_condition(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "right.csv"
    words = ["sample", str(whole), "--draws", "20", "--given", "width=0:9", "--csv", str(rows)]
    cli.main(words)
    assert re.match(rf"20 rows with width=0:9 -> {re.escape(str(rows))} in \d+ s", capsys.readouterr().out)
    assert pd.read_csv(rows)["width"].between(0, 9).all()
    assert ended(words[:-2], capsys) == (2, mock.ANY)
    assert ended([*words[:4], "--given", "width", "--csv", str(rows)], capsys)[0] == 2


def test_lines_of_help_match_those_of_the_commands() -> None:
    for name, line in app.COMMANDS.items():
        command = getattr(commands, name)
        assert command.__doc__.splitlines()[0] == line


@pytest.mark.slow
def test_long_commands_number_their_steps(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    seen = []
    aloud = [word for word in BRIEF if word != "--quiet"]
    for call in (["fit", str(data), "--out", str(run), *aloud], ["sample", str(run)], ["evaluate", str(run)]):
        cli.main(call)
        seen.append(re.findall(r"step (\d) of (\d)", capfd.readouterr().err))
    for found, total in zip(seen, (7, 2, 2), strict=True):
        assert {int(of) for _, of in found} == {total}
        assert {int(step) for step, _ in found} == set(range(1, total + 1))


def test_what_cannot_be_learned_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).normal(size=(50, 1))
    np.savez(tmp_path / "x.npz", good=x, flat=np.ones((50, 1)), tiny=1e-300 * x)
    call = ["fit", str(tmp_path / "x.npz"), "--out", str(tmp_path / "run"), *BRIEF]
    for key in ("flat", "tiny"):
        assert ended([*call, "--key", key], capsys)[0] == 2
        assert not (tmp_path / "run").exists()
    cli.main([*call, "--key", "good"])
    assert (tmp_path / "run" / "score.safetensors").exists()


@pytest.mark.slow
def test_the_demo_ends_with_a_picture_a_table_and_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small: dict[str, Any] = {"POINTS": 300, "CHAINS": 60, "STEPS": 10, "STEP_SIZES": (0.05, 0.2, 50.0)}
    small |= {"PARTICLES": 100, "LEVELS": (5.0, 0.1, 5, 2), "ROWS": 300, "FRESH_ROWS": 100}
    brief = {name: SMALL[name] for name in ("score_steps", "chain_steps")}
    small |= {"fit_score": partial(fit_score, recipe=Recipe(steps=20)), "ScoreMH": partial(ScoreMH, **brief)}
    for name, value in small.items():
        monkeypatch.setattr(demo, name, value)
    cli.main(["demo", "--out", str(tmp_path / "demo")])
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert [line.split(".")[0] for line in lines[:3]] == ["1", "2", "3"]
    assert "diverges at 50" in lines[0]
    assert (tmp_path / "demo" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert len(pd.read_csv(tmp_path / "demo" / "rides.csv")) == 300
    assert "<html" in (tmp_path / "demo" / "report.html").read_text()


def test_weights_of_modes_are_shares_of_the_nearest() -> None:
    points = torch.tensor(demo.PLACES).repeat(2, 1) + 0.1
    assert demo.shares(points, torch.full((6,), 1 / 6)) == pytest.approx([1 / 3] * 3)


# Run folders when things go wrong: interrupted commands, full disks and damaged files lose nothing.


@pytest.mark.parametrize(
    "name", ["config.json", "score.safetensors", "held_out.safetensors", "chains.nc", "metrics.json"]
)
def test_a_damaged_file_raises_an_error_with_its_name(run: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.slow
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


def test_a_linked_folder_raises_an_error_with_its_name(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (outside := tmp_path / "outside").mkdir()
    (outside / "mine").write_bytes(b"mine")
    (run / "sampling").symlink_to(outside)
    for call in (["sample", str(run), "--overwrite"], ["sample", str(run), "--resume"], ["report", str(run)]):
        code, said = ended(call, capsys)
        assert code == 2
        assert f"{run / 'sampling'}, a symbolic link to {outside}. Replace the link" in said
    assert [path.name for path in outside.iterdir()] == ["mine"]


def test_a_linked_lock_raises_an_error_with_its_name(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    process = begun(call, tmp_path / "run" / "score-4000.checkpoint")
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


# Progress bars: numbered in long commands, and drawn in notebooks without more than IPython.


def test_a_notebook_shows_a_bar_without_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=shown.append)
    display = ModuleType("IPython.display")
    monkeypatch.setattr(display, "HTML", str, raising=False)

    def first(page: str, *, display_id: bool) -> Any:
        assert display_id
        shown.append(page)
        return handle

    monkeypatch.setattr(display, "display", first, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with named_steps("the score <b>", "checks"), progress_bar(10, "training <b>", unit="steps", show=True) as tick:
        for _ in range(10):
            tick(1, "loss 0.1")
    assert "step 1 of 2: the score &lt;b&gt;" in shown[0]
    assert '<progress value="0" max="10"' in shown[0]
    assert '<progress value="10" max="10"' in shown[-1]
    assert "100 %" in shown[-1]
    assert "loss 0.1" in shown[-1]
    assert len(shown) <= 4  # the first and the last, and few between


def test_bars_are_named_and_more_than_announced_are_not(capfd: pytest.CaptureFixture[str]) -> None:
    with named_steps("one"):
        for label in ("one", "two"):
            with progress_bar(1, label, unit="steps", show=True) as tick:
                tick(1)
        with progress_bar(1, "hidden", unit="steps", show=False) as tick:
            tick(1)
    found = capfd.readouterr().err
    assert "step 1 of 1: one" in found
    assert "two" in found
    assert "of 1: two" not in found
    assert "hidden" not in found
