"""A fitted estimator as files: saved and loaded without pickle, damaged files refused, killed fits resumed."""

import copy
import json
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

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


@pytest.mark.parametrize("pool", [None, 2, ThreadPoolExecutor(1)], ids=["none", "number", "executor"])
def test_clones_share_a_pool_and_files_and_pickles_hold_a_number_alone(
    small: ScoreMH, tmp_path: Path, pool: Any
) -> None:
    model = copy.deepcopy(small).set_params(pool=pool)
    assert clone(model).pool is pool
    assert clone(model).get_params() == model.get_params()
    assert not hasattr(clone(model), "sampler_")
    model.save(tmp_path / "run")
    number = pool if pool == 2 else None
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), ScoreMH.load(tmp_path / "run")):
        assert again.get_params() == model.get_params() | {"pool": number}
        pd.testing.assert_frame_equal(again.sample(5), small.sample(5))
    with pytest.raises(TypeError, match="expected pool to be a number or to have map, got str 'two'"):
        model.set_params(pool="two").fit(FRAME)


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
        "import numpy as np; from scoremh import ScoreMH, training; training.SAVE_SECONDS = 0.0\n"
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
