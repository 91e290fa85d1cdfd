"""A fitted estimator as files: saved and loaded without pickle, damaged files refused, killed fits resumed."""

import json
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scoremh import ScoreMH
from tests.estimator_cases import FRAME, SMALL, X, small

__all__ = ["small"]  # a fixture


def test_saved_and_loaded_without_pickle(small: ScoreMH, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.save(tmp_path / "run")
    names = {"config.json", "score.safetensors", "acceptance.safetensors", "held_out.safetensors"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == names

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a pickle")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    again = ScoreMH.load(tmp_path / "run")
    pd.testing.assert_frame_equal(again.sample(5), small.sample(5))
    np.testing.assert_array_equal(again.score_samples(FRAME), small.score_samples(FRAME))
    assert again.diagnose() == small.diagnose()
    assert again.get_params() == small.get_params()
    with pytest.raises(FileExistsError, match="to be a new folder, got one with a run in it"):
        small.save(tmp_path / "run")


@pytest.mark.parametrize("name", ["config.json", "score.safetensors", "acceptance.safetensors", "held_out.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_a_damaged_file_is_refused_by_name(small: ScoreMH, tmp_path: Path, name: str, damage: str) -> None:
    small.save(tmp_path / "run")
    path = tmp_path / "run" / name
    raw = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        middle = len(raw) // 2
        path.write_bytes(raw[:middle] + (b"" if damage == "cut" else bytes([raw[middle] ^ 255]) + raw[middle + 1 :]))
    with pytest.raises((ValueError, FileNotFoundError), match=name):
        ScoreMH.load(tmp_path / "run")


def test_another_version_is_refused(small: ScoreMH, tmp_path: Path) -> None:
    small.save(tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    config["versions"]["scoremh"] = "0.0.1"
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config.json of scoremh .*, got one of scoremh 0.0.1"):
        ScoreMH.load(tmp_path / "run")


@pytest.mark.slow
def test_a_killed_fit_goes_on_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    options = {**SMALL, "score_steps": 1000, "acceptance_steps": 200}
    script = (
        "import numpy as np; from scoremh import ScoreMH, training; training.loop.SAVE_SECONDS = 0.0\n"
        f"ScoreMH(**{options!r}).fit(np.load({str(tmp_path / 'x.npy')!r}), checkpoint={str(tmp_path)!r})"
    )
    np.save(tmp_path / "x.npy", X)
    process = subprocess.Popen([sys.executable, "-c", script])
    while not (tmp_path / "score.checkpoint").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    resumed = ScoreMH(**options).fit(X, checkpoint=tmp_path)
    np.testing.assert_array_equal(resumed.sample(10), ScoreMH(**options).fit(X).sample(10))
