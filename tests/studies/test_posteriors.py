"""Posteriors with a diffusion prior: the known answers, and the page."""

from pathlib import Path

import pytest
import torch

from scoremh import targets
from studies import posteriors
from studies.posteriors import cells, problems
from studies.posteriors.calibration import calibration
from tests.cases import seeded
from tests.studies.cases import is_picture, run_small

SMALL = cells.Config(
    seeds=(21,),
    steps=10,
    pool=20,
    observations=(10, 10),
    draws=(2, 2),
    annealed_chains=(60, 60),
    annealed_levels=3,
    annealed_steps=2,
    annealed_final=2,
    particles=(60, 60),
    published_draws=30,
    published_problems=(1, 1),
)


def test_the_denoiser_matches_that_of_the_mixture() -> None:
    own = problems.prior(2)
    exact = targets.GaussianMixture(own.weights, own.means, own.variances[0] * torch.eye(2).double())
    two = problems.separated(2)
    other = targets.GaussianMixture(two.weights, two.means, torch.diag(two.variances[0]))
    x, sigma = torch.randn(20, 2, generator=seeded(), dtype=torch.float64), torch.full((20,), 0.7).double()
    for mixture, law in ((own, exact), (two, other)):
        torch.testing.assert_close(mixture.denoised(x, sigma), x + 0.49 * law.at(0.7).score(x))


@pytest.mark.parametrize("d", problems.DIMENSIONS)
@pytest.mark.parametrize("problem", problems.PROBLEMS)
def test_an_observation_matches_that_of_its_matrix(problem: str, d: int) -> None:
    x = problems.prior(d).sample(3, 0.0, seeded())
    torch.testing.assert_close(problems.seen(problem, x), x @ problems.operator(problem, d).mT)


@pytest.mark.parametrize("problem", problems.PROBLEMS)
def test_the_known_posterior_is_calibrated(problem: str) -> None:
    verdict = calibration(
        lambda n, generator: problems.prior(2).sample(n, 0.05, generator),
        lambda x, generator: problems.observed(problem, x[None], generator)[0],
        lambda y, generator: problems.known_posterior(problem, 2, y, 0.05).sample(31, generator=generator),
        generator=seeded(1),
    )
    assert verdict.passed, verdict


@pytest.mark.parametrize("rule", cells.RULES)
def test_chains_agree_with_the_known_posterior_where_they_are_adjusted(rule: str) -> None:
    """On a seed that the page does not use; in the plane."""
    record = cells.Posterior("deblurring", 2, rule, 31).measure(cells.Config(), Path())
    assert posteriors.agrees(record) == (rule == "mala"), record


def test_the_published_posterior_is_that_of_its_matrices() -> None:
    """Draws against prior times likelihood: weighted draws of the prior have the same mean."""
    own = problems.Observed.published(2, 1, 5)
    likelihood = targets.linear_observation(own.matrix, own.y, own.std)
    x = own.prior.sample(200_000, 0.0, seeded())
    weights = likelihood.log_density(x)
    assert float(own.log_joint.logsumexp(0)) == pytest.approx(float(weights.exp().mean().log()), abs=0.05)
    mean = weights.softmax(0) @ x
    draws = own.draws(20_000, seeded(1))
    assert float(((draws.mean(0) - mean) / draws.std(0)).abs().max()) < 0.1
    inverse = torch.linalg.inv(own.covariance(0.7))
    wide = own.std**2 * torch.eye(1).double() + 0.49 * own.matrix @ own.matrix.mT
    torch.testing.assert_close(
        inverse, torch.eye(2).double() / 1.49 + own.matrix.mT @ torch.linalg.solve(wide, own.matrix)
    )


@pytest.mark.slow
def test_the_study_writes_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posteriors, "PROBLEMS", ("inpainting",))
    monkeypatch.setattr(posteriors, "OBSERVATIONS", (2,))
    found, page = run_small(posteriors.STUDY, SMALL, tmp_path)
    assert len(found.kinds["posterior"]) == 2 * 3
    assert len(found.kinds["annealed"]) == 2 * 2
    assert len(found.kinds["published"]) == 2 * 2
    assert "all cells agree with the truth" in page
    assert is_picture(tmp_path / "docs" / "posteriors.png")
