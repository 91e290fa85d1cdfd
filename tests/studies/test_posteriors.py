"""Posteriors with a diffusion prior: the known answers, and the page."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from scoremh import Recipe, targets
from studies import posteriors
from studies.posteriors import cells, compositions, images, particles, problems
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
    published_problems=(1,),
    learned_from=200,
    learned_problems=1,
    many_modes_problems=1,
    tall_draws=60,
    tall_seeds=1,
    evidence_seeds=1,
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
    g = seeded(1)
    true = problems.prior(2).sample(200, 0.05, g)
    posteriors_of = (problems.known_posterior(problem, 2, y, 0.05) for y in problems.observed(problem, true, g))
    draws = torch.stack([one.sample(9, generator=g) for one in posteriors_of])
    assert cells.calibrated(draws, true, [lambda x: x[..., 0], lambda x: x[..., 1]]) > 1e-3
    assert cells.calibrated(draws + 0.5, true, [lambda x: x[..., 0]]) < 1e-3


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


@pytest.mark.parametrize("toy", [problems.Singles.normal, problems.Singles.mixture])
def test_the_posterior_of_all_observations_is_that_of_the_single_ones(toy: Callable[..., problems.Singles]) -> None:
    """log p(theta | all) - sum_i log p(theta | x_i) + (n - 1) log p(theta) is a constant; and scores are those."""
    own, x = toy(3, 3, 5), torch.randn(6, 3, generator=seeded()).double()
    singles = [
        targets.GaussianMixture(logs.exp(), means, own.covariances)
        for means, logs in zip(own.means, own.log_weights, strict=True)
    ]
    total = own.truth.log_density(x) + 2 * own.prior.log_density(x)
    rest = total - torch.stack([single.log_density(x) for single in singles]).sum(0)
    torch.testing.assert_close(rest, rest[:1].expand(6))
    for single, model in zip(singles, own.models(0.0, 1), strict=True):
        score = model.at(0.4).score
        assert score is not None
        torch.testing.assert_close(score(x), single.at(0.4).score(x))


def test_a_problem_of_many_modes_is_that_of_its_matrices() -> None:
    own = problems.Observed.many_modes(1)
    variances = own.prior.means.square().mean() + own.variance
    assert float(variances) == pytest.approx(1.0)
    one = targets.Gaussian(own.prior.means[0], own.variance * torch.eye(256).double())
    x = torch.randn(3, 256, generator=seeded()).double()
    log_joint = one.log_density(x) + own.likelihood.log_density(x)
    covariance = own.covariance(0.0)
    mean = covariance @ (own.prior.means[0] / own.variance + own.matrix.mT @ own.y / own.std**2)
    known = targets.Gaussian(mean, covariance).log_density(x) + own.log_joint[0] - math.log(0.1)
    torch.testing.assert_close(log_joint, known)


def test_distances_are_those_of_shifted_draws() -> None:
    x = torch.randn(400, 5, generator=seeded()).double()
    shift = 2 * torch.eye(5).double()[0]
    assert 1.9 < particles.max_sliced_w2(x, x + shift) <= 2.0  # over random directions
    assert particles.sliced_w2(x, x + shift) == pytest.approx(2 / 5**0.5, rel=0.05)
    assert abs(particles.mmd_squared(x, torch.randn(400, 5, generator=seeded(1)).double())) < 0.01
    assert particles.mmd_squared(x, x + shift) > 0.05


@pytest.mark.slow
def test_the_study_writes_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (posteriors, "PROBLEMS", ("inpainting",)),
        (posteriors, "OBSERVATIONS", (2,)),
        (posteriors, "PUBLISHED_DIMENSIONS", (8,)),
        (posteriors, "TALL", {"normal": {10: (2,)}, "mixture": {10: (2,)}}),
        (posteriors, "ERRORS", ()),
        (posteriors, "EVIDENCE_CASES", particles.EVIDENCE_CASES[:1]),
        (posteriors, "LEARNED_DIMENSIONS", (8,)),
        (posteriors, "TASKS", {"plain": ("reverse",), "product": ("smc",)}),
        (posteriors, "SAMPLERS", dict.fromkeys(("smc", "reverse", "exact"), "")),
        (compositions, "SAMPLES", 200),
        (compositions, "RECIPE", Recipe(steps=20)),
        (compositions, "DRAWS", 100),
        (problems, "MANY_DIMENSIONS", (6, 3)),
        (particles, "EVIDENCE_PARTICLES", 60),
        (images, "TRAINING", 20),
        (images, "IMAGES", 2),
        (images, "PARTICLES", 40),
        (images, "DRAWS", 40),
        (particles, "RECIPE", Recipe(steps=20)),
    ):
        monkeypatch.setattr(module, name, value)
    found, page = run_small(posteriors.STUDY, SMALL, tmp_path)
    assert len(found.kinds["posterior"]) == 2 * 3
    assert len(found.kinds["annealed"]) == 2 * 2
    assert len(found.kinds["published"]) == 2
    assert "Not measured" in page
    assert is_picture(tmp_path / "docs" / "posteriors.png")
