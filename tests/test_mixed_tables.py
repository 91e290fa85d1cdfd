"""Tables with columns of different kinds, from a user's rows to draws: data frames, files, the command line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from scoremh import Chains, ScoreMH, cli
from tests.cli_cases import BRIEF
from tests.estimator_cases import SMALL

N = 300
KINDS = {"quality": "ordered", "share": (0, 1)}


def mixed(n: int = N, seed: int = 0) -> Any:
    r = np.random.default_rng(seed)
    sex = r.choice(["male", "female"], n)
    return pd.DataFrame(
        {
            "height": (r.normal(size=n) + 2 * (sex == "male")).astype(np.float32),
            "tau": r.exponential(size=n),
            "share": np.clip(r.normal(0.5, 0.4, n), 0, 1),
            "quality": r.integers(3, 9, n),
            "sex": sex,
            "colour": pd.Categorical(r.choice(["red", "green"], n), categories=["red", "green", "never seen"]),
            "size": pd.Categorical(r.choice(["s", "m", "l"], n), categories=["s", "m", "l"], ordered=True),
            "smoker": r.random(n) < 0.3,
            "version": np.ones(n, dtype=np.int32),
            "visits": r.poisson(20, n).astype(np.int16),
        }
    )


FRAME = mixed()


@pytest.fixture(scope="module")
def fitted() -> ScoreMH:
    return ScoreMH(columns=KINDS, **SMALL | {"score_steps": 60, "noise_level": None}).fit(FRAME)


def test_draws_have_the_dtypes_categories_and_order_of_the_rows(fitted: ScoreMH) -> None:
    drawn = fitted.sample(200)
    pd.testing.assert_series_equal(drawn.dtypes, FRAME.dtypes)
    for name in ("sex", "quality", "smoker", "version", "colour"):
        assert set(drawn[name]) <= set(FRAME[name]), name
    assert (drawn["tau"] > 0).all()
    assert drawn["share"].between(0, 1).all()
    assert (drawn["visits"] >= 0).all()


def test_kinds_are_said(fitted: ScoreMH) -> None:
    assert fitted.columns_ == {
        "height": "real",
        "tau": "positive",
        "share": "interval 0 to 1, and exactly 0 or 1",
        "quality": "ordered, 6 levels",
        "sex": "category, 2 levels",
        "colour": "category, 2 levels",
        "size": "ordered, 3 levels",
        "smoker": "category, 2 levels",
        "version": "constant 1",
        "visits": "count",
    }
    assert "positive: tau" in str(fitted)
    assert f"noise level {fitted.noise_level_:g}" in str(fitted)
    assert str(ScoreMH()) == repr(ScoreMH())


def test_saved_and_loaded_with_kinds_and_dtypes(fitted: ScoreMH, tmp_path: Path) -> None:
    fitted.save(tmp_path / "run")
    again = ScoreMH.load(tmp_path / "run")
    pd.testing.assert_frame_equal(again.sample(20), fitted.sample(20))
    np.testing.assert_array_equal(again.score_samples(FRAME[:10]), fitted.score_samples(FRAME[:10]))
    assert again.get_params() == fitted.get_params()
    assert again.columns_ == fitted.columns_
    assert clone(again).columns == KINDS


def test_a_log_density_is_finite_where_rows_can_be_and_minus_infinity_elsewhere(fitted: ScoreMH) -> None:
    rows = FRAME[:4].copy()
    rows.loc[1, "tau"] = -1.0
    rows.loc[2, "quality"] = 9
    found = fitted.score_samples(rows)
    assert np.isfinite(found).tolist() == [True, False, False, True]
    assert found[1] == -np.inf


def test_chains_have_numbers_and_names(fitted: ScoreMH, tmp_path: Path) -> None:
    chains = fitted.sample_chains(5, draws=2)
    assert chains.draws.shape == (5, 2, len(FRAME.columns))
    assert chains.columns == tuple(FRAME.columns)
    chains.save(tmp_path / "chains.nc")
    assert Chains.load(tmp_path / "chains.nc").columns == tuple(FRAME.columns)
    pd.testing.assert_frame_equal(fitted.to_rows(chains.last), fitted.sample(5))
    assert list(chains.to_arviz()["posterior"]["x"].coords["column"].to_numpy()) == list(FRAME.columns)


def test_missing_and_unknown_values_are_refused_with_their_columns(fitted: ScoreMH) -> None:
    holes = FRAME.copy()
    holes.loc[:2, "tau"] = np.nan
    holes.loc[5, "sex"] = None
    with pytest.raises(ValueError, match="rows without missing values, got 3 NaN in 'tau', 1 NaN in 'sex'"):
        ScoreMH(**SMALL).fit(holes)
    other = FRAME[:3].assign(sex="unknown")
    with pytest.raises(ValueError, match="column 'sex' of 'female', 'male', got 'unknown'"):
        fitted.score_samples(other)
    with pytest.raises(TypeError, match="columns of numbers, text, truth values or categories, got datetime64"):
        ScoreMH(**SMALL).fit(FRAME.assign(when=pd.Timestamp("2024-01-01")))


def test_in_a_pipeline_and_as_an_array(fitted: ScoreMH) -> None:
    pipe = make_pipeline(FunctionTransformer(), ScoreMH(columns=KINDS, **SMALL)).fit(FRAME)
    assert list(pipe[-1].sample(3).columns) == list(FRAME.columns)
    assert pipe.score_samples(FRAME[:3]).shape == (3,)
    plain = clone(fitted).set_output(transform="default").fit(FRAME).sample(3)
    assert isinstance(plain, np.ndarray)
    assert plain[0, 4] in ("male", "female")


def test_whole_numbers_of_an_array_stay_whole() -> None:
    rows = np.random.default_rng(0).poisson([3, 40], (200, 2))
    drawn = ScoreMH(**SMALL).fit(rows).sample(5)
    assert drawn.dtype == rows.dtype


def test_every_bound_holds_in_float32() -> None:
    rows = np.random.default_rng(0).beta(0.3, 0.3, (400, 2)).astype(np.float32).clip(1e-6, 1 - 1e-6)
    drawn = ScoreMH(columns={0: (0, 1), "x1": (0, 1)}, **SMALL).fit(rows).sample(500)
    assert drawn.dtype == np.float32
    assert ((drawn > 0) & (drawn < 1)).all()


def test_the_heavy_tailed_walk() -> None:
    rows = np.random.default_rng(0).standard_t(2, (400, 2))
    model = ScoreMH("student", "adaptive", **SMALL).fit(rows)
    assert set(model.columns_.values()) == {"heavy-tailed"}
    assert np.isfinite(model.sample(20)).all()


def test_the_command_line_takes_kinds_and_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, run, rows = tmp_path / "data.csv", tmp_path / "run", tmp_path / "rows.csv"
    FRAME.to_csv(data, index=False)
    words = ["--columns", "quality=ordered", "share=0:1", *[word for word in BRIEF if word != "--quiet"]]
    cli.main(["fit", str(data), "--out", str(run), *words, "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["columns"]["share"] == "interval 0 to 1, and exactly 0 or 1"
    assert said["columns"]["sex"] == "category, 2 levels"
    cli.main(["sample", str(run), "--draws", "40", "--csv", str(rows), "--quiet"])
    drawn = pd.read_csv(rows)
    assert list(drawn.columns) == list(FRAME.columns)
    assert set(drawn["sex"]) <= {"male", "female"}
    assert drawn["visits"].dtype == np.int64
    assert Chains.load(run / "chains.nc").columns == tuple(FRAME.columns)
    mixed(200, seed=1).to_csv(tmp_path / "test.csv", index=False)
    cli.main(["evaluate", str(run), "--reference", str(tmp_path / "test.csv"), "--quiet"])
    cli.main(["report", str(run), "--quiet"])
    assert "sex" in (run / "report.html").read_text()
