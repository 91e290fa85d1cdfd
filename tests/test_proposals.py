"""Proposals: densities, draws and step sizes of theory."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from scoremh import (
    MALA,
    Always,
    Barker,
    Exact,
    LineIntegral,
    Point,
    ScaledMALA,
    metropolis_hastings,
    sample,
    targets,
    tune,
)
from tests.cases import COVARIANCE, GAUSSIAN, f64, seeded

FALSE_ALARM = 1e-3


@pytest.mark.parametrize("score", [-30.0, -1.0, 0.0, 2.5])
@pytest.mark.parametrize("variance", [0.3, 1.0])
def test_log_prob_integrates_to_one(score: float, variance: float) -> None:
    proposal = Barker(0.4, covariance=f64(variance))
    y = torch.linspace(-10, 10, 20_001, dtype=torch.float64)[:, None]
    given = Point(torch.full_like(y, 0.3), torch.full_like(y, score))
    assert float(torch.trapezoid(proposal.log_prob(Point(y), given=given).exp(), y.squeeze(1))) == pytest.approx(1)


@pytest.mark.parametrize("score", [-3.0, 0.0, 1.5])
def test_draws_have_the_density_of_log_prob(score: float) -> None:
    proposal, n = Barker(0.4), 100_000
    y = torch.linspace(-10, 10, 20_001, dtype=torch.float64)[:, None]
    given = Point(torch.zeros_like(y), torch.full_like(y, score))
    cumulative = torch.cumulative_trapezoid(proposal.log_prob(Point(y), given=given).exp(), y.squeeze(1))
    x = torch.zeros(n, 1, dtype=torch.float64)
    drawn = proposal.sample(Point(x, torch.full_like(x, score)), generator=seeded())

    grid = y.squeeze(1)[1:].numpy()
    p_value = stats.kstest(drawn.squeeze(1).numpy(), lambda z: np.interp(z, grid, cumulative)).pvalue
    assert p_value > FALSE_ALARM / 3


@pytest.mark.parametrize("covariance", [None, f64(0.5, 2.0), COVARIANCE], ids=["identity", "diagonal", "full"])
def test_draws_in_coordinates_of_a_covariance_have_the_mean_of_the_density(covariance: torch.Tensor | None) -> None:
    """E[w_i] = E[z tanh(z g_i / 2)], z ~ N(0, 2h), by Gauss-Hermite quadrature; var(w_i) = 2h - E[w_i]^2."""
    h, n = 0.3, 200_000
    root = (
        torch.eye(2).double()
        if covariance is None
        else torch.linalg.cholesky(covariance.diag() if covariance.ndim == 1 else covariance)
    )
    x = f64([0.9, -0.7]).expand(n, 2)
    at = Point(x, GAUSSIAN.score(x))
    drawn = Barker(h, covariance).sample(at, generator=seeded())
    w = (drawn - x) @ torch.linalg.inv(root).T
    z = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    density = (-z.square() / 2).exp() / math.sqrt(2 * math.pi)
    noise, g = math.sqrt(2 * h) * z, (GAUSSIAN.score(x[:1]) @ root).squeeze(0)
    mean = torch.stack([torch.trapezoid(density * noise * (noise * slope / 2).tanh(), z) for slope in g])
    error = (2 * h - mean.square()).sqrt() / math.sqrt(n)
    assert bool(((w.mean(0) - mean).abs() < 4.5 * error).all())
    assert float((w[:, 0] - mean[0]).mul(w[:, 1] - mean[1]).mean().abs()) < 4.5 * 2 * h / math.sqrt(n)


def test_small_steps_match_those_of_mala() -> None:
    """The ratio of q, over the step's length, tends to that of MALA with the same step size."""
    h, x = 1e-4, GAUSSIAN.sample(100, generator=seeded())
    current = Point(x, GAUSSIAN.score(x))
    y = MALA(h).sample(current, generator=seeded(1))
    proposed = Point(y, GAUSSIAN.score(y))
    ours, theirs = (q.log_q_ratio(current, proposed) for q in (Barker(h), MALA(h)))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    assert float(theirs.abs().max()) > 1e-2


def test_a_huge_score_does_not_throw_a_chain_far() -> None:
    x = torch.zeros(1000, 1)
    drawn = Barker(0.5).sample(Point(x, torch.full_like(x, 1e30)), generator=seeded())
    assert bool((drawn >= 0).all())
    assert float(drawn.max()) < 6


def test_it_is_tuned_to_the_rate_of_its_limit() -> None:
    law, g = targets.Gaussian(torch.zeros(20)), seeded()
    x = law.sample(200, generator=g)
    kernel = metropolis_hastings(law, Barker(0.3), LineIntegral())
    assert kernel.target_rate == 0.574
    assert metropolis_hastings(law, Barker(0.3), Exact(balance="barker")).target_rate == 0.347
    h = tune(lambda h: metropolis_hastings(law, Barker(h), LineIntegral()), x, steps=100, generator=g)
    _, move = (tuned := metropolis_hastings(law, Barker(h), LineIntegral())).step(tuned.init(x), generator=g)
    assert float(move.log_accept.exp().mean()) == pytest.approx(0.574, abs=0.1)


@pytest.mark.parametrize("step_size", [0.0, -1.0, math.nan])
def test_bad_step_sizes_raise_errors(step_size: float) -> None:
    with pytest.raises(ValueError, match="step_size"):
        Barker(step_size)


# The Langevin step of diffusion models' correctors: what theory says of it in the dimensions of images.


D = 784
NORMAL = targets.Gaussian(torch.zeros(D, dtype=torch.float64))


def normal_at(rho: float, chains: int = 400) -> torch.Tensor:
    """Return chains of N(0, rho^2 I): the noise of a level, rho times as wide as it should be."""
    return rho * torch.randn(chains, D, generator=seeded(3), dtype=torch.float64)


def test_the_step_matches_that_of_score_sde() -> None:
    at = Point(normal_at(1.0, 5), normal_at(1.5, 5))
    assert at.score is not None
    expected = 2 * (0.16 * math.sqrt(D) / at.score.norm(dim=1)) ** 2
    torch.testing.assert_close(ScaledMALA(0.16).step_size(at), expected)


@pytest.mark.parametrize("tau", [0.5, 0.9])
def test_a_chain_that_lags_is_accepted_beyond_the_bound_of_the_theory(tau: float) -> None:
    """With the per-chain step, a right rule accepts if rho^2 > 1 + tau^2, and rejects the moves of converged chains."""
    bound = math.sqrt(1 + tau**2)
    for rho in (1.05 * bound, 0.95 * bound):
        kernel = metropolis_hastings(NORMAL, ScaledMALA(tau), Exact())
        _, move = kernel.step(kernel.init(normal_at(rho)), generator=seeded(1))
        rate = float(move.accepted.double().mean())
        assert (rate > 0.75) if rho > bound else (rate < 0.25), (rho, rate)


@pytest.mark.slow
def test_unadjusted_it_settles_at_the_bound() -> None:
    tau = 0.7
    kernel = metropolis_hastings(NORMAL, ScaledMALA(tau), Always())
    end = sample(kernel, normal_at(3.0), draws=1, thin=60, generator=seeded(1)).last
    assert float(end.square().mean()) == pytest.approx(1 + tau**2, rel=0.01)


def test_in_many_dimensions_the_step_is_near_that_of_the_level() -> None:
    h = ScaledMALA(0.2).step_size(Point(normal_at(1.0, 2000), 2 * normal_at(1.0, 2000)))
    assert float(h.mean()) == pytest.approx(2 * 0.2**2 / 2**2, rel=0.01)
    assert float(h.std() / h.mean()) == pytest.approx(math.sqrt(2 / D), rel=0.1)
