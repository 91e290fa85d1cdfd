"""The front door: scikit-learn's conventions, what a fit learns and says of itself, and its files."""

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from scoremh import MALA, Learned, LineIntegral, ScoreMH, metrics, metropolis_hastings, networks, sample
from scoremh._shared.names import AcceptanceName
from scoremh.sampler import ProposalName
from tests.estimator_cases import FRAME, LAW, SMALL, X, small

__all__ = ["small"]  # a fixture


@pytest.fixture(scope="module")
def trained() -> ScoreMH:
    return ScoreMH(score_steps=1500, acceptance_steps=1500, verbose=False, random_state=0).fit(X)


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
    fresh = LAW.sample(1000, generator=torch.Generator().manual_seed(2))
    drawn = torch.from_numpy(trained.sample(1000)).float()
    assert metrics.two_sample_test(drawn, fresh, generator=torch.Generator().manual_seed(3)).p_value > 0.001
    assert abs(float((drawn[:, 0] > 0).float().mean()) - 0.7) < 0.06  # four standard errors
    noise = trained.sampler_.start(1000, generator=torch.Generator().manual_seed(4))
    start = trained.score_.coordinates(noise)
    assert metrics.two_sample_test(start, fresh, generator=torch.Generator().manual_seed(3)).p_value == 0.001


@pytest.mark.slow
def test_score_samples_is_the_log_density_normalised(trained: ScoreMH) -> None:
    x = LAW.sample(500, generator=torch.Generator().manual_seed(5))
    found, true = trained.score_samples(x.double().numpy()), LAW.log_density(x).double().numpy()
    assert np.sqrt(np.mean((found - true) ** 2)) < 0.4
    assert abs(np.mean(found - true)) < 0.1
    assert trained.score(x.numpy()) == pytest.approx(np.mean(found), abs=1e-6)


@pytest.mark.slow
def test_diagnosis_has_every_number_and_finds_the_draws_good(trained: ScoreMH) -> None:
    found = trained.diagnose()
    assert [check.level for check in found.checks] == 8 * ["good"]
    assert str(found.verdict) == (
        "Usable: training ended after 1,500 steps, before its held-out loss had settled. Fit with score_steps=8000."
    )
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


def test_a_bad_fit_says_so(small: ScoreMH) -> None:
    found = small.diagnose()
    assert found.verdict.level == "do not use"
    assert found.verdict.advice == "Fit with score_steps=8000."
    assert str(found).startswith("Do not use: ")
    assert {check.name: check for check in found.checks}["distance"].level == "do not use"
    assert "r_hat" not in [one.kind for one in found.warnings]  # rows are ends of independent chains
    assert "do not use" in found._repr_html_()
    assert "Do not use" in small._repr_html_inner()


def test_few_rows_are_not_judged() -> None:
    found = ScoreMH(**SMALL).fit(X[:50]).diagnose()
    assert found.verdict.level == "usable"
    assert "only 5 rows were held out" in found.verdict.reason
    assert found.checks == ()


PAIRS = [(p, a) for p in get_args(ProposalName) for a in get_args(AcceptanceName) if p == "mala" or a != "always"]


@pytest.mark.slow
@pytest.mark.parametrize(("proposal", "acceptance"), PAIRS)
def test_every_proposal_with_every_rule(proposal: ProposalName, acceptance: AcceptanceName, tmp_path: Path) -> None:
    model = ScoreMH(proposal, acceptance, **SMALL).fit(X)
    drawn = model.sample(20)
    assert drawn.shape == (20, 2)
    assert np.isfinite(drawn).all()
    assert (model.acceptance_ is None) == (acceptance in ("simpson", "adaptive", "always"))
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


def test_data_frames_keep_their_columns(small: ScoreMH) -> None:
    drawn = small.sample(3)
    assert list(drawn.columns) == ["width", "height"]
    assert drawn.dtypes.tolist() == [np.float64, np.float64]
    plain = ScoreMH(**SMALL).fit(X)
    assert isinstance(plain.sample(3), np.ndarray)
    with sklearn.config_context(transform_output="pandas"):
        assert list(plain.sample(3).columns) == ["x0", "x1"]
    assert list(plain.set_output(transform="pandas").sample(3).columns) == ["x0", "x1"]
    assert isinstance(copy.copy(small).set_output(transform="default").sample(3), np.ndarray)
    assert clone(plain)._sklearn_output_config == {"transform": "pandas"}


def test_in_a_pipeline() -> None:
    pipe = make_pipeline(StandardScaler(), ScoreMH(**SMALL)).fit(FRAME)
    drawn = pipe[:-1].inverse_transform(pipe[-1].sample(50))
    assert np.abs(drawn - X.mean(0)).max() < 20
    assert pipe.score_samples(FRAME[:4]).shape == (4,)


@pytest.mark.slow
def test_a_search_finds_the_better_score() -> None:
    search = GridSearchCV(ScoreMH(**SMALL), {"score_steps": [1, 500]}, cv=2).fit(X)
    assert search.best_params_ == {"score_steps": 500}


def test_float32_rows_give_float32_draws() -> None:
    assert ScoreMH(**SMALL).fit(X.astype(np.float32)).sample(2).dtype == np.float32


def test_rows_far_from_zero_keep_their_digits() -> None:
    far = X + 1e9
    drawn = ScoreMH(**SMALL).fit(far).sample(100)
    assert len(np.unique(drawn[:, 0])) == 100  # in float32 they are 64 apart
    assert np.abs(drawn - 1e9).max() < 100


def test_columns_that_follow_from_others_are_said() -> None:
    found = ScoreMH(**SMALL).fit(np.c_[X, X @ [1.0, 2.0]])
    assert "dependent_columns" in [one.kind for one in found.diagnose().warnings]
    assert "Some columns follow from the others" in str(found.diagnose())
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


def test_chains_too_short_for_r_hat_have_none(tmp_path: Path) -> None:
    model = ScoreMH(**SMALL | {"chain_steps": 1}).fit(X)
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
    assert chains.score_calls == pytest.approx(sum(asked), rel=0.02)  # a kernel may look at a point once to check it


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
    "an unknown rule": ({"acceptance": "exact"}, "acceptance to be one of 'potential'"),
    "a walk that always goes on": (
        {"proposal": "rw", "acceptance": "always"},
        'proposal="mala" with acceptance="always", ULA, got \'rw\'',
    ),
    "no chain": ({"chain_steps": 0}, "chain_steps of at least 1, got 0"),
    "all held out": ({"validation_fraction": 1.0}, "validation_fraction between 0 and 1, got 1.0"),
    "no training": ({"score_steps": 0}, "score_steps of at least 1, got 0"),
    "a noise level that the score has not learned": ({"noise_level": 9.0}, "noise_level between 0.02 and 5.0, got 9.0"),
    "no annealing": ({"annealing_steps": 0}, "annealing_steps of at least 1, got 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_parameters_are_refused_when_fitting(case: str) -> None:
    parameters, text = WRONG[case]
    with pytest.raises(ValueError, match=text.replace("(", r"\(")):
        ScoreMH().set_params(**SMALL | parameters).fit(X)


def test_refused_before_and_after_fitting(small: ScoreMH) -> None:
    for call in ("sample", "diagnose", "sample_chains"):
        with pytest.raises(NotFittedError):
            getattr(ScoreMH(), call)(*[3] * (call == "sample_chains"))
    with pytest.raises(ValueError, match="n_samples of at least 1, got 0"):
        small.sample(0)
    with pytest.raises(ValueError, match="draws of at most chain_steps, 8, got 9"):
        small.sample_chains(3, draws=9)
    with pytest.raises(ValueError, match="columns that vary, got a constant at each"):
        ScoreMH(**SMALL).fit(np.ones((50, 2)))
