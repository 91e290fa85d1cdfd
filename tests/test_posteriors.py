"""Posteriors and products against closed forms and grids; every false-alarm rate is that of a bound on |z|."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from scoremh import MALA, Always, LineIntegral, Recipe, Target, fit_score, metropolis_hastings, sample, targets
from scoremh.acceptance import Rule

MAX_Z = 5.0  # of at most 40 normal numbers in a test: a false alarm once in 40,000


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def after(target: Any, proposal: MALA, start: Tensor, steps: int, rule: Rule | None = None) -> Tensor:
    """Return where independent chains are after some steps, with the line integral by default."""
    kernel = metropolis_hastings(target, proposal, rule or LineIntegral())
    assert kernel.run is not None
    return kernel.run(kernel.init(start), steps, generator=seeded(1))[0].x


def assert_moments(x: Tensor, mean: Tensor, covariance: Tensor) -> None:
    """Compare means and second moments of independent draws with those of a Gaussian, after whitening."""
    root = torch.linalg.cholesky(covariance)
    u = torch.linalg.solve_triangular(root, (x - mean).mT, upper=False).mT
    n, d = u.shape
    assert float((u.mean(0) * math.sqrt(n)).abs().max()) < MAX_Z
    second = u.mT @ u / n - torch.eye(d).to(u)
    errors = torch.sqrt((1 + torch.eye(d).to(u)) / n)  # Var u_i u_j is 1, and 2 where i = j
    assert float((second / errors).abs().max()) < MAX_Z


@pytest.mark.parametrize("condition", [1e0, 1e2, 1e4])
@pytest.mark.parametrize("exact_start", [True, False])
def test_a_gaussian_prior_by_its_score_times_a_gaussian_likelihood(condition: float, exact_start: bool) -> None:
    """The posterior has this condition number. From exact draws 20 steps; from the prior 200; ULA is refused."""
    d, g = 4, seeded()
    basis = torch.linalg.qr(torch.randn(d, d, generator=g, dtype=torch.float64)).Q
    scales = torch.logspace(
        0, -math.log10(3 * condition - 2), d, dtype=torch.float64
    )  # 2 is the likelihood's precision
    prior = targets.Gaussian(torch.ones(d).double(), basis @ torch.diag(scales) @ basis.mT)
    likelihood = targets.Gaussian(torch.randn(d, generator=g, dtype=torch.float64), 0.5 * torch.eye(d).double())
    precisions = prior.covariance.inverse(), likelihood.covariance.inverse()
    covariance = (precisions[0] + precisions[1]).inverse()
    covariance = (covariance + covariance.mT) / 2
    mean = covariance @ (precisions[0] @ prior.mean + precisions[1] @ likelihood.mean)
    target = targets.posterior(Target(prior.score), likelihood.log_density)
    eigenvalues = torch.linalg.eigvalsh(covariance)
    assert float(eigenvalues[-1] / eigenvalues[0]) == pytest.approx(condition)
    start = (targets.Gaussian(mean, covariance) if exact_start else prior).sample(4000, generator=g)
    proposal, steps = MALA(0.3, covariance=covariance), 20 if exact_start else 200
    assert_moments(after(target, proposal, start, steps), mean, covariance)
    with pytest.raises(AssertionError):
        assert_moments(after(target, proposal, start, steps, Always()), mean, covariance)


def test_many_single_posteriors_and_one_prior_less() -> None:
    """N posteriors of one observation each, times the prior to the power 1 - N: by scores, and with the prior known."""
    n, g = 5, seeded(2)
    prior = targets.Gaussian(torch.zeros(2).double(), torch.tensor([[1.0, 0.3], [0.3, 2.0]]).double())
    noise = 0.8 * torch.eye(2).double()
    data = torch.randn(n, 2, generator=g, dtype=torch.float64)

    def posterior(rows: Tensor) -> targets.Gaussian:
        precision = prior.covariance.inverse() + len(rows) * noise.inverse()
        covariance = precision.inverse()
        return targets.Gaussian(covariance @ noise.inverse() @ rows.sum(0), (covariance + covariance.mT) / 2)

    truth = posterior(data)
    singles = [Target(posterior(row[None]).score) for row in data]
    for less in (Target(prior.score), prior):
        target = targets.product(*singles, less, weights=[1.0] * n + [1.0 - n])
        start = prior.sample(4000, generator=g)
        x = after(target, MALA(0.4, covariance=truth.covariance), start, 100)
        assert_moments(x, truth.mean, truth.covariance)


def test_two_overlapping_mixtures_multiplied() -> None:
    """Against a grid: means of functions under 8,000 chains that start from draws of the grid itself."""
    eye = 0.3 * torch.eye(2).double()
    first = targets.GaussianMixture([0.5, 0.5], torch.tensor([[-1.0, 0.0], [1.0, 0.0]]).double(), eye)
    second = targets.GaussianMixture([0.3, 0.7], torch.tensor([[0.6, -0.8], [0.2, 0.9]]).double(), 2 * eye)
    side, g = torch.linspace(-4, 4, 801, dtype=torch.float64), seeded(3)
    grid = torch.cartesian_prod(side, side)
    p = (first.log_density(grid) + second.log_density(grid)).softmax(0)
    within = (torch.rand(8000, 2, generator=g, dtype=torch.float64) - 0.5) * (side[1] - side[0])
    start = grid[torch.multinomial(p, 8000, replacement=True, generator=g)] + within

    def functions(x: Tensor) -> Tensor:
        return torch.stack([x[:, 0], x[:, 1], x[:, 0] ** 2, x[:, 1] ** 2, x.prod(1), (x[:, 0] > 0.0025).double()], 1)

    truth = (p[:, None] * functions(grid)).sum(0)
    for known in (Target(first.score), first):
        target = targets.product(known, Target(second.score, second.log_density))
        values = functions(after(target, MALA(0.03), start, 60))
        z = (values.mean(0) - truth) / (values.std(0) / math.sqrt(len(values)))
        assert float(z.abs().max()) < MAX_Z, z


def test_a_product_of_two_learned_scores_runs() -> None:
    """Two standard normals with means -1 and 1 in the first coordinate: the product is near N(0, I / 2)."""
    g = seeded(4)
    shift = torch.tensor([1.0, 0.0])
    scores = [
        fit_score(
            sign * shift + torch.randn(2000, 2, generator=g), recipe=Recipe(steps=300, check_every=100), generator=g
        )
        for sign in (-1.0, 1.0)
    ]
    target = targets.product(*scores)
    kernel = metropolis_hastings(target, MALA(0.1), LineIntegral())
    chains = sample(kernel, torch.randn(200, 2, generator=g), draws=50, warmup=100, generator=g)
    x = chains.draws.flatten(0, 1)
    assert x.isfinite().all()
    assert chains.acceptance_rate > 0.5
    assert float(x.mean(0).abs().max()) < 0.5  # the parts have -1 and 1
    assert 0.2 < float(x.var(0).mean()) < 0.9  # the parts have 1
