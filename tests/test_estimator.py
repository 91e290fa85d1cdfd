"""`ScoreMH`: scikit-learn's conventions, tables, noise levels, what a fit says of itself, and its files."""

import copy
import json
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from scoremh import (
    MALA,
    Chains,
    Learned,
    LineIntegral,
    ScoreMH,
    cli,
    metrics,
    metropolis_hastings,
    networks,
    sample,
)
from scoremh._shared.names import AcceptanceName
from scoremh.estimator import model as estimator
from scoremh.estimator.frames import ColumnLayout
from scoremh.estimator.table import CORNER_STD, Category, Column, Constant, PointMasses, Smooth, Steps, Table
from scoremh.sampler import ProposalName
from scoremh.score_matching import fit_score, recipe_for
from tests.cases import seeded
from tests.estimator_cases import BRIEF, FEW, FEW_FRAME, FRAME, LAW, SMALL, X


@pytest.fixture(scope="module")
def trained() -> ScoreMH:
    return ScoreMH(acceptance="potential", score_steps=1500, acceptance_steps=1500, verbose=False, random_state=0).fit(
        X
    )


@pytest.mark.slow
def test_passes_the_checks_of_scikit_learn_and_none_is_skipped() -> None:
    call = [sys.executable, "-m", "pytest", "--noconftest", "-p", "no:cacheprovider", "-q", "tests/estimator_checks.py"]
    ran = subprocess.run(
        call,
        env=os.environ | {"SCIPY_ARRAY_API": "1"},
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout
    assert "xfailed" not in ran.stdout


@pytest.mark.slow
def test_draws_are_like_rows_it_has_not_seen(trained: ScoreMH) -> None:
    fresh = LAW.sample(1000, generator=seeded(2))
    drawn = torch.from_numpy(trained.sample(1000)).float()
    assert metrics.two_sample_test(drawn, fresh, generator=seeded(3)).p_value > 0.001
    assert abs(float((drawn[:, 0] > 0).float().mean()) - 0.7) < 0.06  # four standard errors
    noise = trained.sampler_.start(1000, generator=seeded(4))
    start = trained.score_.coordinates(noise)
    assert metrics.two_sample_test(start, fresh, generator=seeded(3)).p_value == 0.001


@pytest.mark.slow
def test_score_samples_is_the_log_density_normalised(trained: ScoreMH) -> None:
    x = LAW.sample(500, generator=seeded(5))
    found, true = trained.score_samples(x.double().numpy()), LAW.log_density(x).double().numpy()
    assert np.sqrt(np.mean((found - true) ** 2)) < 0.4
    assert abs(np.mean(found - true)) < 0.1
    assert trained.score(x.numpy()) == pytest.approx(np.mean(found), abs=1e-6)


@pytest.mark.slow
def test_diagnosis_has_every_number_and_finds_the_draws_good(trained: ScoreMH) -> None:
    found = trained.diagnose()
    assert [check.level for check in found.checks] == 9 * ["good"]
    assert str(found.verdict).startswith("Good (against held-out and training rows): all 9 checks passed; with ")
    assert found.noticed_shift is not None
    assert found.noticed_shift < 0.5
    assert 0.4 < found.acceptance_rate < 0.75
    assert found.balance_residual is not None
    assert found.balance_residual < 0.5
    assert found.conservativity is not None
    assert found.weights_known_to is not None
    assert found.weights_known_to < 0.25
    assert found.ess is not None
    assert found.ess > 100
    assert "acceptance rate" in str(found)


def test_a_bad_fit_has_a_bad_verdict(small: ScoreMH) -> None:
    found = small.diagnose()
    assert found.verdict.level == "do not use"
    assert found.verdict.advice.startswith("Leave score_steps out: ")
    assert str(found).startswith("Do not use (against held-out and training rows): ")
    assert {check.name: check for check in found.checks}["distance"].level == "do not use"
    assert "r_hat" not in [one.kind for one in found.warnings]  # rows are ends of independent chains
    assert "do not use" in found._repr_html_()
    assert "Do not use" in small._repr_html_inner()


def test_few_rows_are_not_checked() -> None:
    found = ScoreMH(**SMALL).fit(X[:50]).diagnose()
    assert found.verdict.level == "undecided"
    assert "only 5 rows were held out" in found.verdict.reason
    assert found.checks == ()


def test_ten_rows_are_learned_from_and_not_judged() -> None:
    model = ScoreMH(**SMALL).fit(X[:10])
    assert "only 1 rows were held out" in model.diagnose().verdict.reason
    assert np.isfinite(model.sample(20, random_state=1)).all()


def test_too_few_rows_and_too_many_columns_raise_an_error_at_once() -> None:
    with pytest.raises(ValueError, match=r"at least 10 rows, got 1 sample. A reliable fit needs hundreds of rows"):
        ScoreMH().fit(X[:1])
    with pytest.raises(ValueError, match=r"at most 4,000 columns, got 20,000. .*PCA"):
        ScoreMH(**SMALL).fit(np.random.default_rng(0).normal(size=(20, 20_000)))


PAIRS = [(proposal, "potential") for proposal in get_args(ProposalName)]
PAIRS += [("mala", acceptance) for acceptance in get_args(AcceptanceName)]


@pytest.mark.slow
@pytest.mark.parametrize(("proposal", "acceptance"), dict.fromkeys(PAIRS))
def test_every_proposal_with_every_rule(proposal: ProposalName, acceptance: AcceptanceName, tmp_path: Path) -> None:
    model = ScoreMH(**SMALL | {"proposal": proposal, "acceptance": acceptance}).fit(FEW)
    drawn = model.sample(20)
    assert drawn.shape == (20, 2)
    assert np.isfinite(drawn).all()
    assert (model.acceptance_ is None) == (acceptance in ("simpson", "exact", "always"))
    model.save(tmp_path / "run")
    again = ScoreMH.load(tmp_path / "run")
    np.testing.assert_array_equal(again.sample(20), drawn)
    assert np.isfinite(model.score_samples(X[:5])).all()


@pytest.mark.slow
def test_seeds(small: ScoreMH) -> None:
    np.testing.assert_array_equal(small.sample(5), small.sample(5))
    assert not np.array_equal(small.sample(5), small.sample(5, random_state=1))
    again = ScoreMH(**SMALL).fit(FRAME)
    np.testing.assert_array_equal(small.sample(5), again.sample(5))
    unseeded = ScoreMH(**SMALL | {"random_state": None}).fit(FRAME)
    assert not np.array_equal(unseeded.sample(5), unseeded.sample(5))


@pytest.mark.slow
def test_data_frames_keep_their_columns(small: ScoreMH) -> None:
    drawn = small.sample(3)
    assert list(drawn.columns) == ["width", "height"]
    assert drawn.dtypes.tolist() == [np.float64, np.float64]
    plain = ScoreMH(**SMALL).fit(FEW)
    assert isinstance(plain.sample(3), np.ndarray)
    with sklearn.config_context(transform_output="pandas"):
        assert list(plain.sample(3).columns) == ["x0", "x1"]
    assert list(plain.set_output(transform="pandas").sample(3).columns) == ["x0", "x1"]
    assert isinstance(copy.copy(small).set_output(transform="default").sample(3), np.ndarray)
    assert clone(plain)._sklearn_output_config == {"transform": "pandas"}


@pytest.mark.slow
def test_in_a_pipeline() -> None:
    pipe = make_pipeline(StandardScaler(), ScoreMH(**SMALL)).fit(FEW_FRAME)
    drawn = pipe[:-1].inverse_transform(pipe[-1].sample(50))
    assert np.abs(drawn - X.mean(0)).max() < 20
    assert pipe.score_samples(FRAME[:4]).shape == (4,)


@pytest.mark.slow
def test_a_search_finds_the_better_score() -> None:
    search = GridSearchCV(ScoreMH(**SMALL), {"score_steps": [1, 500]}, cv=2).fit(X)
    assert search.best_params_ == {"score_steps": 500}


@pytest.mark.slow
def test_float32_rows_give_float32_draws() -> None:
    assert ScoreMH(**SMALL).fit(FEW.astype(np.float32)).sample(2).dtype == np.float32


@pytest.mark.slow
def test_rows_far_from_zero_keep_their_digits() -> None:
    far = FEW + 1e9
    drawn = ScoreMH(**SMALL).fit(far).sample(100)
    assert len(np.unique(drawn[:, 0])) == 100  # in float32 they are 64 apart
    assert np.abs(drawn - 1e9).max() < 100


def test_columns_that_follow_from_others_are_said() -> None:
    found = ScoreMH(**SMALL).fit(np.c_[FEW, FEW @ [1.0, 2.0]])
    assert "dependent_columns" in [one.kind for one in found.diagnose().warnings]
    assert "Some columns are linear combinations of others" in str(found.diagnose())
    assert np.isfinite(found.sample(5)).all()


def test_parameters_set_after_a_fit_do_not_change_what_was_learned(small: ScoreMH) -> None:
    changed = copy.deepcopy(small).set_params(noise_level=0.9, proposal="rw", acceptance="simpson")
    pd.testing.assert_frame_equal(changed.sample(5), small.sample(5))
    np.testing.assert_array_equal(changed.score_samples(FRAME), small.score_samples(FRAME))


def test_numbers_of_numpy_and_few_rows_are_fine() -> None:
    counts = {name: np.int64(SMALL[name]) for name in ("score_steps", "acceptance_steps", "chain_steps")}
    model = ScoreMH(**SMALL).set_params(**counts, noise_level=np.float32(0.3)).fit(X[:10])
    assert model.sample(2).shape == (2, 2)
    assert np.isfinite(model.score(X[:10]))  # one row was held out: it has no spread


@pytest.mark.slow
def test_chains_too_short_for_r_hat_have_none(tmp_path: Path) -> None:
    model = ScoreMH(**SMALL | {"chain_steps": 1}).fit(FEW)
    assert model.diagnose().r_hat is None
    model.save(tmp_path / "run")
    assert ScoreMH.load(tmp_path / "run").diagnose() == model.diagnose()


def test_every_score_call_is_counted(small: ScoreMH, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    forward = networks.NoiseConditionalMLP.forward

    def counting(self: Any, x: torch.Tensor, sigma: Any) -> torch.Tensor:
        asked.append(len(x))
        return forward(self, x, sigma)

    level_score = networks.NoiseConditionalMLP.level_score

    def counting_tangents(self: Any, x: torch.Tensor, sigma: Any, directions: Any = None) -> Any:
        asked.append(len(x) + x.numel())  # a score, and a tangent for every coordinate
        return level_score(self, x, sigma, directions)

    monkeypatch.setattr(networks.NoiseConditionalMLP, "forward", counting)
    monkeypatch.setattr(networks.NoiseConditionalMLP, "level_score", counting_tangents)
    chains = small.sample_chains(30, draws=4)
    assert chains.score_calls == pytest.approx(sum(asked), rel=0.02)  # a kernel may evaluate one point to check it


def test_chains_start_from_noise_and_end_in_the_sample(small: ScoreMH) -> None:
    chains = small.sample_chains(30, draws=4)
    assert chains.draws.shape == (30, 4, 2)
    np.testing.assert_array_equal(small.sample(30).to_numpy(), chains.last.double().numpy())
    assert not (torch.cdist(chains.last.double(), torch.from_numpy(X)).amin(1) == 0).any()


def test_a_fitted_score_is_a_target(small: ScoreMH) -> None:
    assert small.acceptance_ is not None
    kernel = metropolis_hastings(small.score_, MALA(0.1), LineIntegral())
    assert sample(kernel, torch.zeros(3, 2), draws=2).draws.shape == (3, 2, 2)
    within = metropolis_hastings(small.sampler_.target, small.sampler_.proposal_at(0.1), Learned(small.acceptance_))
    assert sample(within, torch.zeros(3, 2), draws=2).draws.shape == (3, 2, 2)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown proposal": ({"proposal": "hmc"}, "proposal to be one of 'mala', 'rw', 'pcn', 'student', got 'hmc'"),
    "an unknown rule": ({"acceptance": "adaptive"}, "acceptance to be one of 'potential'"),
    "a walk that always goes on": (
        {"proposal": "rw", "acceptance": "always"},
        'proposal="mala" with acceptance="always", ULA, got \'rw\'',
    ),
    "no chain": ({"chain_steps": 0}, "chain_steps of at least 1, got 0"),
    "all held out": ({"validation_fraction": 1.0}, "validation_fraction between 0 and 1, got 1.0"),
    "no training": ({"score_steps": 0}, "score_steps of at least 1, got 0"),
    "a noise level that the score has not learned": ({"noise_level": 9.0}, "noise_level between 0.02 and 5.0, got 9.0"),
    "no annealing": ({"annealing_steps": -1}, "annealing_steps of at least 0, got -1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_parameters_raise_errors_when_fitting(case: str) -> None:
    parameters, text = WRONG[case]
    with pytest.raises(ValueError, match=text.replace("(", r"\(")):
        ScoreMH().set_params(**SMALL | parameters).fit(FEW)


def test_rejected_before_and_after_fitting(small: ScoreMH) -> None:
    for call in ("sample", "diagnose", "sample_chains"):
        with pytest.raises(NotFittedError):
            getattr(ScoreMH(), call)(*[3] * (call == "sample_chains"))
    with pytest.raises(ValueError, match="n_samples of at least 1, got 0"):
        small.sample(0)
    with pytest.raises(ValueError, match="draws of at most chain_steps=8, got 9"):
        small.sample_chains(3, draws=9)
    with pytest.raises(ValueError, match="columns that vary, got only constants"):
        ScoreMH(**SMALL).fit(np.ones((50, 2)))


# Kinds of columns: how they are found, that values survive, that no bound is broken, and what a log volume means.


N = 2000


def random() -> np.random.Generator:
    return np.random.default_rng(3)


def found_kinds() -> dict[str, tuple[NDArray[Any], str]]:
    """Return values by what they are, with the kind that they should be found to be."""
    r = random()
    return {
        "normal": (r.normal(size=N), "real"),
        "two modes": (np.where(r.random(N) < 0.5, -4, 4) + r.normal(size=N), "real"),
        "far from 0": (100 + 5 * r.normal(size=N), "real"),
        "Laplace": (r.laplace(size=N), "real"),
        "uniform": (r.uniform(2.3, 7.9, N), "interval 2.3 to 7.9"),
        "shares": (r.beta(0.5, 0.5, N), "interval 0 to 1"),
        "per cent": (100 * r.beta(0.8, 0.8, N), "interval 0 to 100"),
        "exponential": (r.exponential(size=N), "positive"),
        "log-normal": (np.exp(r.normal(size=N)), "positive"),
        "leaning on its end": (5 - r.exponential(size=N), "real, up to 5"),
        "Student": (r.standard_t(2, N), "heavy-tailed"),
        "zeros": (np.where(r.random(N) < 0.2, 0, r.exponential(size=N)), "positive, and exactly 0"),
        "clipped": (np.clip(r.normal(0.5, 0.4, N), 0, 1), "interval 0 to 1, and exactly 0 or 1"),
        "whole": (r.poisson(30, N), "count"),
        "skewed counts": (r.geometric(0.02, N) - 1, "count"),
        "six levels": (r.integers(3, 9, N), "ordered, 6 levels"),
        "two values": (r.random(N) < 0.3, "category, 2 levels"),
        "decimals": (np.round(r.normal(size=N), 1), "rounded to 0.1"),
        "constant": (np.full(N, 7.0), "constant 7"),
        "density 0 at 0": (r.beta(2, 5, N), "real, from 0, up to 1"),
        "angles": (r.vonmises(1, 0.7, N), "interval -3.14 to 3.14"),
        "at one end, not skewed": (r.beta(4, 1, N), "real, from 0, up to 1"),
        "thinning out above 0": (r.weibull(4, N), "real, from 0"),
        "multiples": (25 * np.round(160 + 20 * r.normal(size=N)), "rounded to 25"),
        "millions": (1e7 * r.normal(size=N), "real"),
        "wide in narrow": (np.where(r.random(N) < 0.3, 10, 1) * r.normal(size=N), "real"),
        "six numbers, not whole": (r.choice([-1.2, 0.31, 0.9, 2.25, 3.1, 5.0], N), "ordered, 6 levels"),
        "forty numbers, not whole": (np.sort(r.normal(size=40))[r.integers(0, 40, N)], "ordered, 40 levels"),
        "zeros on a fine grid": (
            np.where(r.random(N) < 0.4, 0, np.round(500 * r.beta(3, 3, N))),
            "count, and exactly 0",
        ),
        "zeros on a coarse grid": (r.poisson(0.5 + 4 * (r.random(N) < 0.5)), "count"),
        "uniform on a grid": (np.round(r.uniform(40, 100, N), 1), "rounded to 0.1"),
    }


CASES = found_kinds()
ROWS = np.stack([np.asarray(values, np.float64) for values, _ in CASES.values()], 1)
TABLE = Table.find(ROWS, list(CASES))


@pytest.mark.parametrize("name", CASES)
def test_kinds_are_found_from_values(name: str) -> None:
    found = str(TABLE.columns[list(CASES).index(name)])
    number, wanted = r"-?\d+\.?\d*", CASES[name][1]
    assert re.sub(number, "#", found) == re.sub(number, "#", wanted)
    ends, expected = (list(map(float, re.findall(number, text))) for text in (found, wanted))
    np.testing.assert_allclose(ends, expected, atol=0.01)  # 7.89814 for 7.9


def test_few_rows_have_no_bounds() -> None:
    assert str(Table.find(random().uniform(size=(60, 1)), ["x"]).columns[0]) == "real, from 0, up to 1"


LIMITS: dict[
    str, tuple[Callable[[np.random.Generator], NDArray[Any]], float, float]
] = {  # values, and what no draw passes
    "sizes": (lambda r: r.weibull(4, N), 0.0, math.inf),
    "shares": (lambda r: r.beta(6, 6, N), 0.0, 1.0),
    "shares, rounded": (lambda r: r.beta(3, 3, N).round(2), 0.0, 1.0),
    "per cent": (lambda r: 100 * r.beta(6, 3, N), 0.0, 100.0),
    "months": (lambda r: r.integers(1, 13, N).astype(float), 1.0, 12.0),
    "ages from 18": (lambda r: 18 + np.floor(r.exponential(12, N)), 18.0, math.inf),
    "multiples of 3": (lambda r: 3 * np.round(np.clip(16 + 6 * r.normal(size=N), 0, 33)), 0.0, 99.0),
    "a tail that ends near 100": (lambda r: r.exponential(11.5, N).clip(max=97), 0.0, math.inf),
    "far from 0": (lambda r: 100 + 5 * r.random(N) ** 0.2, -math.inf, math.inf),
    "negative": (lambda r: r.normal(0.2, 0.1, N), -math.inf, math.inf),
}


def test_few_rows_of_a_light_tail_are_not_taken_for_a_heavy_one() -> None:
    r = np.random.default_rng(0)
    kinds = [str(Table.find(r.exponential(size=(300, 1)) + 9, ["x"]).columns[0]) for _ in range(60)]
    assert kinds.count("heavy-tailed") <= 9  # 3 of 60 are expected; 30 without the standard error


@pytest.mark.parametrize("name", LIMITS)
def test_draws_do_not_pass_what_no_value_passes(name: str) -> None:
    law, low, high = LIMITS[name]
    values = law(random())
    column = Table.find(values[:, None], ["x"]).columns[0]
    u = column.coordinates(torch.from_numpy(values), seeded())
    wide = u.mean() + 8 * (u - u.mean())
    x = column.values(wide)
    assert low <= float(x.min())
    assert float(x.max()) <= high
    if math.isinf(low):
        assert float(x.min()) < values.min()
    given = Table.find(values[:, None], ["x"], {"x": "real"}).columns[0]  # who gives a kind, knows better
    assert str(given) == "real"


def test_draws_beyond_a_limit_are_reflected_and_do_not_gather_there() -> None:
    column = Smooth(limits=(0.0, 1.0))
    u = torch.tensor([[-0.25], [0.25], [1.25], [-7.0]], dtype=torch.float64)
    assert column.values(u).tolist() == [0.25, 0.25, 0.75, 0.0]
    assert column.possible(torch.tensor([-0.1, 0.5])).all()  # a row beyond is rare, and not impossible
    table, lost = Table(("x",), (Smooth(limits=(0.0, math.inf)),)), torch.tensor([[math.inf]], dtype=torch.float64)
    assert table.numbers(lost).isinf().all()  # values that are not finite stay visible
    assert np.isinf(table.within_bounds(lost.numpy(), np.float32)).all()
    assert table.within_bounds(np.zeros((1, 1)), np.float32) == 0


@pytest.mark.parametrize(
    "values",
    [
        1e20 * np.random.default_rng(0).normal(size=N),
        (1e12 * np.random.default_rng(0).normal(size=N)).astype(np.float32),
    ],
)
def test_numbers_that_floating_point_makes_whole_are_real(values: NDArray[Any]) -> None:
    assert str(Table.find(values[:, None], ["x"]).columns[0]) == "real"


def test_a_grid_has_one_zero() -> None:
    column = Table.find(random().normal(size=(N, 1)).round(1), ["x"]).columns[0]
    drawn = column.values(torch.linspace(-1, 1, 1001, dtype=torch.float64)[:, None])
    zeros = drawn[drawn == 0]
    assert len(zeros) > 1
    assert not zeros.signbit().any()


def test_columns_that_are_nearly_linear_functions_of_each_other_are_not_bent() -> None:
    r = random()
    first, other = r.uniform(0, 300, (2, N)).round()
    table = Table.find(np.stack([first, first + r.poisson(2, N), other], 1), "abc")
    inside = [column.inside for column in table.columns if isinstance(column, Steps)]
    assert [column.kind for column in inside] == ["real", "real", "interval"]


def test_what_lies_beyond_the_ends_of_a_grid_cannot_be() -> None:
    column = Table.find(random().integers(1, 13, (N, 1)), ["month"]).columns[0]
    assert column.possible(torch.tensor([0.0, 1.0, 12.0, 13.0])).tolist() == [False, True, True, False]


def test_one_value_beside_a_bound_is_a_category() -> None:
    values = np.array([0.0] * 30 + [3.0] * 20)[:, None]
    assert str(Table.find(values, ["x"], {"x": "positive"}).columns[0]) == "category, 2 levels"


@pytest.mark.parametrize(("centre", "scale"), [(0.0, 1e-8), (5.0, 1e-8), (0.0, 1e-300)])
def test_what_differs_by_less_than_a_step_lies_on_no_grid(centre: float, scale: float) -> None:
    rows = centre + scale * random().normal(size=(N, 1))
    table = Table.find(rows, ["x"])
    assert table.is_plain
    np.testing.assert_array_equal(table.numbers(table.coordinates(rows)).numpy(), rows)


def test_values_survive_with_noise_and_in_the_middle() -> None:
    noisy = TABLE.coordinates(ROWS, seeded())
    assert noisy.shape == (N, TABLE.width) == (N, len(TABLE.coordinate_names))
    assert bool(noisy.isfinite().all())
    np.testing.assert_allclose(TABLE.numbers(noisy).numpy(), ROWS, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(TABLE.numbers(TABLE.centre(ROWS)[0]).numpy(), ROWS, rtol=1e-12, atol=1e-12)
    assert TABLE.possible(ROWS).all()


def test_a_table_survives_json() -> None:
    assert Table.from_json(json.loads(json.dumps(TABLE.to_json(), allow_nan=False))) == TABLE


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_bound_is_broken_by_a_million_points_anywhere(dtype: Any) -> None:
    names = [name for name, column in zip(TABLE.names, TABLE.columns, strict=True) if column != Smooth()]
    table = Table(tuple(names), tuple(column for column in TABLE.columns if column != Smooth()))
    g = seeded()
    for scale in (1.0, 15.0):  # 10^6 points, in ten parts
        for _ in range(5):
            points = scale * torch.randn(100_000, table.width, generator=g)
            rows = table.within_bounds(table.numbers(points).numpy(), dtype)
            for j, column in enumerate(table.columns):
                low, high = column.bounds
                assert np.isfinite(rows[:, j]).all(), names[j]
                open_ended = isinstance(column, Smooth) and column.kind != "real"  # limits are possible values
                assert (rows[:, j] > low).all() if open_ended else (rows[:, j] >= low).all(), names[j]
                assert (rows[:, j] < high).all() if open_ended else (rows[:, j] <= high).all(), names[j]


COLUMNS: dict[str, Column] = {
    "ordered": Steps((1.0, 2.0, 5.0), 1.0, (0.0, 2.0), True, Smooth()),
    "count": Steps((), 1.0, (0.0, math.inf), False, Smooth(-0.5)),
    "category": Category((0.0, 1.0, 2.0, 3.0)),
    "zeros": PointMasses(Smooth(0.0), (0.0, None), (-2.0, 3.0), 1.0),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_log_volume_is_one_over_the_density_of_the_noise(name: str) -> None:
    """With p(u) = P(x) q(u | x), what `centre` says makes P(x) of p in the middle: q there, from a million draws."""
    column, value = COLUMNS[name], torch.full((1_000_000,), 2.0 if name != "zeros" else 0.0, dtype=torch.float64)
    u = column.coordinates(value, seeded(1))
    (middle,), (log_volume,) = column.centre(value[:1])
    radius = 0.1 * float(log_volume.exp()) ** (1 / column.width)
    near = float(((u - middle).norm(dim=1) < radius).double().mean())
    ball = math.pi ** (column.width / 2) / math.gamma(column.width / 2 + 1) * radius**column.width
    assert math.log(near / ball) == pytest.approx(-float(log_volume), abs=0.1)


def test_densities_gain_the_volume_of_their_map() -> None:
    for column in (Smooth(0.0), Smooth(0.0, 1.0), Smooth(-math.inf, 5.0), Smooth(middle=(1.0, 2.0))):
        x = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64, requires_grad=True)
        u, log_volume = column.centre(x)
        (slope,) = torch.autograd.grad(u.sum(), x)
        torch.testing.assert_close(log_volume, slope.abs().log())


def test_corners_are_equally_far_from_each_other() -> None:
    for levels in (2, 3, 10):
        corners = Category(tuple(map(float, range(levels)))).corners
        distances = torch.cdist(corners, corners)
        off = ~torch.eye(levels, dtype=torch.bool)
        torch.testing.assert_close(distances[off], torch.full_like(distances[off], 2.0))
    assert CORNER_STD < 0.3  # 3 of these fit into half the distance


def test_what_cannot_be_is_found_impossible() -> None:
    table = Table(("a", "b", "c"), (Smooth(0.0), Category((0.0, 2.0)), Constant(1.0)))
    rows = np.array([[1.0, 0.0, 1.0], [-1.0, 0.0, 1.0], [1.0, 1.0, 1.0], [1.0, 2.0, 3.0]])
    assert table.possible(rows).tolist() == [True, False, False, False]


def test_given_kinds_by_name_and_position() -> None:
    r = random()
    rows = np.c_[r.exponential(size=N) + 1, r.integers(0, 30, N), r.uniform(0.2, 0.8, N), r.integers(0, 3, N)]
    kinds = {"tau": "positive", 1: "ordered", 2: (0, 1), "sex": "category"}
    found = Table.find(rows, ["tau", "quality", "share", "sex"], kinds)
    assert [str(column) for column in found.columns] == [
        "positive",
        "ordered, 30 levels",
        "interval 0 to 1",
        "category, 3 levels",
    ]


TABLE_WRONG: dict[str, tuple[Any, str]] = {
    "an unknown column": ({"y": "real"}, "columns among 'x', got 'y'"),
    "an unknown kind": ({"x": "small"}, "the kind of column 'x'"),
    "bounds the wrong way": ({0: (1, 0)}, "bounds of column 'x' in order"),
    "values beyond": ({"x": (0, 1)}, "column 'x' of numbers from 0 to 1, got"),
    "not whole": ({"x": "count"}, "column 'x' of whole numbers, got"),
    "negative": ({"x": "positive"}, "column 'x' of numbers of at least 0, got"),
    "too many levels": ({"x": "category"}, "at most 32 levels in the category 'x', got"),
}


@pytest.mark.parametrize("case", TABLE_WRONG)
def test_impossible_kinds_raise_errors(case: str) -> None:
    kinds, text = TABLE_WRONG[case]
    with pytest.raises(ValueError, match=text):
        Table.find(random().normal(size=(100, 1)), ["x"], kinds)


def test_few_values_at_a_bound_are_moved_within_it() -> None:
    x = random().beta(0.8, 0.8, N)
    x[:3] = 0.0
    table = Table.find(x[:, None], ["x"], {"x": (0, 1)})
    assert str(table.columns[0]) == "interval 0 to 1"
    u = table.coordinates(x[:, None])
    assert bool(u.isfinite().all())
    assert 0 < float(table.numbers(u)[0, 0]) < x[3:].min()
    torch.testing.assert_close(table.coordinates(x[:1, None]), u[:1])  # whatever other rows are there
    assert table.possible(x[:1, None]).all()


def test_a_table_of_constants_raises_an_error() -> None:
    with pytest.raises(ValueError, match="columns that vary, got only constants"):
        Table.find(np.ones((100, 2)), ["x", "y"])


# Tables with columns of different kinds, from a user's rows to draws: data frames, files, the command line.


MIXED_N = 300
KINDS = {"quality": "ordered", "share": (0, 1)}


def mixed(n: int = MIXED_N, seed: int = 0) -> Any:
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


MIXED_FRAME = mixed()


@pytest.fixture(scope="module")
def fitted() -> ScoreMH:
    return ScoreMH(columns=KINDS, **SMALL | {"score_steps": 60}).fit(MIXED_FRAME)


def test_draws_have_the_dtypes_categories_and_order_of_the_rows(fitted: ScoreMH) -> None:
    drawn = fitted.sample(200)
    pd.testing.assert_series_equal(drawn.dtypes, MIXED_FRAME.dtypes)
    for name in ("sex", "quality", "smoker", "version", "colour"):
        assert set(drawn[name]) <= set(MIXED_FRAME[name]), name
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
    np.testing.assert_array_equal(again.score_samples(MIXED_FRAME[:10]), fitted.score_samples(MIXED_FRAME[:10]))
    assert again.get_params() == fitted.get_params()
    assert again.columns_ == fitted.columns_
    assert clone(again).columns == KINDS


def test_a_log_density_is_finite_where_rows_can_be_and_minus_infinity_elsewhere(fitted: ScoreMH) -> None:
    rows = MIXED_FRAME[:4].copy()
    rows.loc[1, "tau"] = -1.0
    rows.loc[2, "quality"] = 9
    found = fitted.score_samples(rows)
    assert np.isfinite(found).tolist() == [True, False, False, True]
    assert found[1] == -np.inf


def test_chains_have_numbers_and_names(fitted: ScoreMH, tmp_path: Path) -> None:
    chains = fitted.sample_chains(5, draws=2)
    assert chains.draws.shape == (5, 2, len(MIXED_FRAME.columns))
    assert chains.columns == tuple(MIXED_FRAME.columns)
    chains.save(tmp_path / "chains.nc")
    assert Chains.load(tmp_path / "chains.nc").columns == tuple(MIXED_FRAME.columns)
    pd.testing.assert_frame_equal(fitted.to_rows(chains.last), fitted.sample(5))
    assert list(chains.to_arviz()["posterior"]["x"].coords["column"].to_numpy()) == list(MIXED_FRAME.columns)


def test_missing_and_unknown_values_raise_errors_with_their_columns(fitted: ScoreMH) -> None:
    holes = MIXED_FRAME.copy()
    holes.loc[:2, "tau"] = np.nan
    holes.loc[5, "sex"] = None
    with pytest.raises(ValueError, match=r"3 NaN in 'tau', 1 NaN in 'sex'\. .* missing=\"model\""):
        ScoreMH(**SMALL).fit(holes)
    other = MIXED_FRAME[:3].assign(sex="unknown")
    with pytest.raises(ValueError, match="column 'sex' of 'female', 'male', got 'unknown'"):
        fitted.score_samples(other)
    with pytest.raises(TypeError, match="columns of numbers, text, booleans, categories or dates, got timedelta64"):
        ScoreMH(**SMALL).fit(MIXED_FRAME.assign(when=pd.Timedelta("1 day")))


@pytest.mark.slow
def test_in_a_pipeline_and_as_an_array(fitted: ScoreMH) -> None:
    pipe = make_pipeline(FunctionTransformer(), ScoreMH(columns=KINDS, **SMALL)).fit(MIXED_FRAME)
    assert list(pipe[-1].sample(3).columns) == list(MIXED_FRAME.columns)
    assert pipe.score_samples(MIXED_FRAME[:3]).shape == (3,)
    plain = clone(fitted).set_params(noise_level=0.6).set_output(transform="default").fit(MIXED_FRAME).sample(3)
    assert isinstance(plain, np.ndarray)
    assert plain[0, 4] in ("male", "female")


@pytest.mark.slow
def test_whole_numbers_of_an_array_stay_whole() -> None:
    rows = np.random.default_rng(0).poisson([3, 40], (200, 2))
    drawn = ScoreMH(**SMALL).fit(rows).sample(5)
    assert drawn.dtype == rows.dtype


@pytest.mark.slow
def test_every_bound_holds_in_float32() -> None:
    rows = np.random.default_rng(0).beta(0.3, 0.3, (400, 2)).astype(np.float32).clip(1e-6, 1 - 1e-6)
    drawn = ScoreMH(columns={0: (0, 1), "x1": (0, 1)}, **SMALL).fit(rows).sample(500)
    assert drawn.dtype == np.float32
    assert ((drawn > 0) & (drawn < 1)).all()


@pytest.mark.slow
def test_the_heavy_tailed_walk() -> None:
    rows = np.random.default_rng(0).standard_t(2, (400, 2))
    model = ScoreMH(**SMALL | {"proposal": "student", "acceptance": "exact"}).fit(rows)
    assert set(model.columns_.values()) == {"heavy-tailed"}
    assert np.isfinite(model.sample(20)).all()


@pytest.mark.slow
def test_the_command_line_takes_kinds_and_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, run, rows = tmp_path / "data.csv", tmp_path / "run", tmp_path / "rows.csv"
    MIXED_FRAME.to_csv(data, index=False)
    words = ["--columns", "quality=ordered", "share=0:1", *[word for word in BRIEF if word != "--quiet"]]
    cli.main(["fit", str(data), "--out", str(run), *words, "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["columns"]["share"] == "interval 0 to 1, and exactly 0 or 1"
    assert said["columns"]["sex"] == "category, 2 levels"
    cli.main(["sample", str(run), "--draws", "40", "--csv", str(rows), "--quiet"])
    drawn = pd.read_csv(rows)
    assert list(drawn.columns) == list(MIXED_FRAME.columns)
    assert set(drawn["sex"]) <= {"male", "female"}
    assert drawn["visits"].dtype == np.int64
    assert Chains.load(run / "chains.nc").columns == tuple(MIXED_FRAME.columns)
    mixed(200, seed=1).to_csv(tmp_path / "test.csv", index=False)
    cli.main(["evaluate", str(run), "--reference", str(tmp_path / "test.csv"), "--quiet"])
    cli.main(["report", str(run), "--quiet"])
    assert "sex" in (run / "report.html").read_text()


# Missing values, dates, decimals, tails, and conditions on columns.


def dated(n: int = 200) -> Any:
    """Return dates in three forms, with numbers, categories and a constant; every column has missing values."""
    r = np.random.default_rng(5)
    day = pd.Timestamp("2023-01-01") + pd.to_timedelta(r.integers(0, 700, n), "D")
    frame = pd.DataFrame(
        {
            "whole": day.strftime("%Y%m%d").astype(int),
            "text": day.strftime("%Y-%m-%d"),
            "when": (day + pd.to_timedelta(r.integers(0, 86_400, n), "s")).tz_localize("Europe/Berlin", ambiguous=True),
            "amount": np.where(r.random(n) < 0.4, 0.0, np.exp(r.normal(3, 1, n)).round(2)),
            "region": r.choice(["north", "south", "west"], n, p=[0.6, 0.3, 0.1]),
            "version": np.full(n, 1.5),
        }
    )
    for name in frame.columns:
        frame[name] = frame[name].mask(r.random(n) < 0.1)
    return frame


DATED = dated()


@pytest.fixture(scope="module")
def with_dates() -> ScoreMH:
    return ScoreMH(missing="model", **SMALL).fit(DATED)


@pytest.mark.slow
def test_missing_values_and_dates_come_back_as_they_were(with_dates: ScoreMH, tmp_path: Path) -> None:
    drawn = with_dates.sample(200)
    pd.testing.assert_series_equal(drawn.dtypes, DATED.dtypes)
    assert drawn.isna().any().all()  # in every column
    assert not drawn.isna().all().any()
    for name, date in (("whole", "%Y%m%d"), ("text", "%Y-%m-%d")):
        texts = drawn[name].dropna().map(lambda one: f"{one:.0f}" if isinstance(one, float) else one)
        days = pd.to_datetime(texts, format=date)  # raises an error for dates that do not exist
        assert days.between("2023-01-01", "2024-12-01").all()
    assert set(drawn["version"].dropna()) == {1.5}
    assert set(drawn["region"].dropna()) <= {"north", "south", "west"}
    assert (drawn["amount"].dropna() == drawn["amount"].dropna().round(2)).all()
    assert with_dates.columns_["text"].startswith("date, 2023-01-0")
    assert with_dates.columns_["version"] == "constant 1.5, or missing"
    assert np.isfinite(with_dates.score_samples(DATED[:20])).all()
    with_dates.save(tmp_path / "run")
    pd.testing.assert_frame_equal(ScoreMH.load(tmp_path / "run").sample(20), with_dates.sample(20))
    with_dates.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert re.search(r'"ticktext":\["missing","north","south","west"\]', page)  # in place of codes
    assert re.search(r'"ticktext":\["missing","202[34]-\d\d-\d\d"', page)


def test_an_evaluation_compares_missing_values(with_dates: ScoreMH) -> None:
    found = with_dates.evaluate(DATED, n_samples=60)
    assert found.p_values["draws"] > 0
    more = DATED.assign(amount=DATED["amount"].mask(np.random.default_rng(0).random(len(DATED)) < 0.7))
    checks = {check.name: check for check in with_dates.evaluate(more, n_samples=100).checks}
    assert checks["columns"].level == "do not use"
    assert "amount" in checks["columns"].text


@pytest.mark.slow
def test_rows_of_given_columns(with_dates: ScoreMH) -> None:
    conditions: list[tuple[dict[str, Any], Callable[[Any], Any]]] = [
        ({"region": "west"}, lambda rows: rows["region"] == "west"),
        ({"region": ["north", "west"], "amount": 0}, lambda rows: rows["region"].ne("south") & rows["amount"].eq(0)),
        ({"text": ("2023-06-01", "2023-09-01")}, lambda rows: rows["text"].between("2023-06-01", "2023-09-01")),
        ({"whole": (20230601, 20230901)}, lambda rows: rows["whole"].between(20230601, 20230901)),
        ({"amount": None}, lambda rows: rows["amount"].isna()),
        (
            {"text": ("2023-06-01", "2023-06-05"), "region": "west"},
            lambda rows: rows["text"].between("2023-06-01", "2023-06-05"),
        ),
    ]
    for given, holds in conditions:
        rows = with_dates.sample(12, given=given)
        assert len(rows) == 12
        assert holds(rows).all(), given


CANNOT: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown level": ({"region": "east"}, "column 'region' of 'north', 'south', 'west', got 'east'"),
    "a number of a real column": ({"amount": 12.5}, "a range for column 'amount'"),
    "another constant": ({"version": 2.0}, "values of column 'version'"),
    "dates beyond the rows": ({"text": ("2030-01-01", "2030-02-01")}, "a range of column 'text' that meets"),
    "ends in the wrong order": ({"amount": (2, 1)}, "a range of column 'amount' from low to high, got 2 to 1"),
    "half a range": ({"amount": (1,)}, "a condition on column 'amount'"),
    "an unknown column": ({"size": 1}, "columns among 'whole'"),
    "what no row fulfils": ({"amount": (1e6, 2e6)}, "a condition that some draws fulfil, got none of"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.slow] * (name == "what no row fulfils")) for name in CANNOT]
)
def test_a_condition_that_no_row_fulfils_is_an_error(with_dates: ScoreMH, case: str) -> None:
    given, text = CANNOT[case]
    with pytest.raises(ValueError, match=text):
        with_dates.sample(5, given=given)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a column missing everywhere": ({"x": [None] * 20}, "column 'x' with values, got only missing values"),
    "a column of NaN": ({"x": [np.nan] * 20}, "column 'x' with values, got only missing values"),
    "numbers too large to tell apart": (
        {"x": [2**62 + i for i in range(20)]},
        "column 'x' that float64 keeps apart, got 20 different numbers, of which it keeps 1",
    ),
    "a date that does not exist": (
        {"x": [20240101 + i for i in range(19)] + [20240230]},
        "dates that exist .* '20240230' in row 19",
    ),
    "dates of two formats": (
        {"x": [f"2024-01-{i + 10}" for i in range(19)] + ["31.01.2024"]},
        "dates of one format, yyyy-mm-dd, .* row 19",
    ),
    "text among dates": (
        {"x": [f"2024-01-{i + 10}" for i in range(19)] + ["soon"]},
        "dates that exist .* 'soon' in row 19",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_columns_that_cannot_be_learned_are_named(case: str) -> None:
    columns, text = BAD[case]
    with pytest.raises(ValueError, match=text):
        ScoreMH(missing="model", **SMALL).fit(pd.DataFrame(columns).assign(y=np.arange(20) % 7))


def test_columns_of_the_same_name_are_an_error() -> None:
    with pytest.raises(ValueError, match="columns with different names, got 'a' twice"):
        ScoreMH(**SMALL).fit(pd.DataFrame(random().normal(size=(30, 3)), columns=["a", "b", "a"]))


def test_many_names_are_not_all_printed() -> None:
    printed = str(Table(tuple(f"x{i}" for i in range(3000)), (Smooth(),) * 3000))
    assert printed.endswith("x18, x19 and 2,980 more")


TABLES: dict[str, tuple[Any, type[Exception], str]] = {
    "no columns": (pd.DataFrame(index=range(12)), ValueError, "a data frame with columns, got one without"),
    "lists": (pd.DataFrame({"a": [[1]] * 12}), TypeError, "columns of numbers, text, .* got object in column 'a'"),
    "three axes": (np.ones((12, 2, 2)), ValueError, r"2 axes, \(row, column\), got .* \(12, 2, 2\). Reshape your data"),
    "infinite": (np.where(np.eye(12, 3), np.inf, 1.0), ValueError, "finite numbers, got 1 inf in 'x0', 1 inf in 'x1'"),
    "an array of identifiers": (2**62 + np.arange(24).reshape(12, 2), ValueError, "'x0' that float64 keeps apart"),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_that_cannot_be_learned_raise_errors(case: str) -> None:
    table, error, text = TABLES[case]
    with pytest.raises(error, match=text):
        ScoreMH(**SMALL).fit(table)


def test_dates_of_a_time_zone_keep_its_clock() -> None:
    days = pd.Series(pd.date_range("2024-01-01", periods=300, tz="Europe/Berlin"))  # summer and winter time
    layout = ColumnLayout.of(days)
    seconds = layout.numbers(days)
    assert not (seconds % 86_400).any()  # midnight, and not 22 or 23 hours in UTC
    pd.testing.assert_series_equal(layout.values(seconds), days, check_freq=False)


SHARES = {  # of copies by training steps, with 102 rows to learn from
    "right at once": ({505: 0.55}, 505),
    "copies": ({505: 0.9, 252: 0.75, 126: 0.58}, 126),
    "then too wide": ({505: 0.62, 252: 0.3}, 505),
    "then a little too wide": ({505: 0.9, 252: 0.3}, 252),  # 504 would not be tried after 505
    "too wide": ({505: 0.2, 1010: 0.3, 2020: 0.38, 3000: 0.39}, 3000),
}


@pytest.mark.parametrize("case", SHARES)
def test_training_is_shorter_if_draws_are_copies_and_longer_if_they_are_too_wide(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares, chosen = dict(SHARES[case][0]), SHARES[case][1]
    monkeypatch.setattr(estimator, "fit_score", lambda x, *, recipe, **options: recipe)
    monkeypatch.setattr(estimator, "share_of_copies", lambda recipe, x, generator: shares.pop(recipe.steps))
    recipe: Any = ScoreMH(verbose=False)._learned_score(torch.zeros(102, 2), seeded(), None)
    assert (recipe.steps, recipe.patience) == (chosen, None)
    assert not shares  # each was tried


def test_copies_are_counted_whatever_the_origin_and_if_rows_are_repeated() -> None:
    x = torch.randn(100, 3, generator=seeded())
    near, far = (fit_score(rows, recipe=recipe_for(9), generator=seeded()) for rows in (x, x + 3000))
    share = estimator.share_of_copies(near, x, seeded())
    assert estimator.share_of_copies(far, x + 3000, seeded()) == pytest.approx(share, abs=0.05)
    assert estimator.share_of_copies(near, x.repeat(2, 1), seeded()) == pytest.approx(share, abs=0.01)


@pytest.mark.slow
def test_few_rows_of_many_columns_are_not_learned_by_heart() -> None:
    """In 12 dimensions the usual number of steps for 80 rows gives copies: they are .5 for new rows."""
    rows = random().normal(size=(80, 12))
    found = ScoreMH(verbose=False, random_state=0).fit(rows)
    assert found.score_.recipe.steps < recipe_for(72).steps
    seen = torch.from_numpy(rows[~(rows[:, None] == found.held_out_).all(2).any(1)]).float()
    assert abs(estimator.share_of_copies(found.score_, seen, seeded()) - 0.5) < 0.15


def test_eight_digits_are_dates_only_if_most_of_them_are() -> None:
    numbers = np.random.default_rng(0).integers(10_000_000, 99_999_999, 100)
    assert "date" not in ScoreMH(**SMALL).fit(pd.DataFrame({"code": numbers, "y": np.arange(100)})).columns_["code"]
    days = pd.date_range("2024-01-01", periods=100).strftime("%Y%m%d").astype(int).to_numpy()
    drawn = ScoreMH(**SMALL).fit(np.c_[days, np.arange(100)]).sample(20)
    assert drawn.dtype == days.dtype
    pd.to_datetime(pd.Series(drawn[:, 0]).astype(str), format="%Y%m%d")  # raises an error if one does not exist
    given = ScoreMH(columns={"day": "count"}, **SMALL).fit(pd.DataFrame({"day": days, "y": np.arange(100)}))
    assert given.columns_["day"] == "count"


def test_ten_rows_are_enough_for_few_columns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        few = DATED[["text", "amount"]]
        assert len(ScoreMH(missing="model", **SMALL).fit(few[:10]).sample(5)) == 5
    with pytest.raises(ValueError, match="more rows than coordinates, 12 of 6 columns, got 9 to learn from"):
        ScoreMH(missing="model", **SMALL).fit(DATED[:10])


def test_a_missing_value_has_its_probability() -> None:
    """P(missing) of the density of the coordinates, at the centre times the volume of the noise."""
    values = np.where(random().random(N) < 0.3, np.nan, random().normal(size=N))
    (column,) = Table.find(values[:, None], ["x"]).columns
    missing = torch.full((400_000,), math.nan, dtype=torch.float64)
    u = column.coordinates(missing, seeded())
    (middle,), (log_volume,) = column.centre(missing[:1])
    near = float(((u - middle).norm(dim=1) < 0.1).double().mean())
    assert math.log(near / (math.pi * 0.1**2)) == pytest.approx(-float(log_volume), abs=0.1)
    assert column.values(u).isnan().all()
    assert not column.values(column.coordinates(torch.zeros(1000, dtype=torch.float64), seeded())).isnan().any()


def test_draws_far_out_are_reflected_before_an_exponential_map() -> None:
    for values in (random().standard_t(2, N), np.exp(random().normal(size=N))):
        (column,) = Table.find(values[:, None], ["x"]).columns
        assert str(column) in ("heavy-tailed", "positive")
        u = column.coordinates(torch.from_numpy(values), None)
        far = column.values(u.mean() + 5 * (u - u.mean()))
        assert float(far.abs().max()) <= 3.2 * np.abs(values).max()
        torch.testing.assert_close(column.values(u), torch.from_numpy(values))


@pytest.mark.parametrize(("decimals", "dtype"), [(1, np.float32), (2, np.float64), (6, np.float64)])
def test_draws_have_the_decimals_of_the_rows(decimals: int, dtype: Any) -> None:
    values = random().normal(size=(N, 1)).round(decimals).astype(dtype)
    table = Table.find(values, ["x"], {"x": "real"})
    drawn = table.numbers(table.coordinates(values).double() + 0.123456789).numpy()
    np.testing.assert_allclose(drawn, drawn.round(decimals), atol=1e-12)
    assert table.columns[0] == Smooth(decimals=decimals)
    assert Table.find(random().normal(size=(N, 1)), ["x"]).columns[0] == Smooth()


# A fitted estimator as files: saved and loaded without pickle, damaged files raise errors, killed fits resume.


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
        model.set_params(pool="two").fit(FEW_FRAME)


@pytest.mark.parametrize("name", ["config.json", "score.safetensors", "acceptance.safetensors", "held_out.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_a_damaged_file_raises_an_error_with_its_name(small: ScoreMH, tmp_path: Path, name: str, damage: str) -> None:
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


def test_another_version_raises_an_error(small: ScoreMH, tmp_path: Path) -> None:
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
    while not (tmp_path / "score-1000.checkpoint").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    resumed = ScoreMH(**options).fit(X, checkpoint=tmp_path)
    np.testing.assert_array_equal(resumed.sample(10), ScoreMH(**options).fit(X).sample(10))
