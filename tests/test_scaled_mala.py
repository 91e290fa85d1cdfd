"""The Langevin step of diffusion models' correctors: what theory says of it in the dimensions of images."""

import math

import pytest
import torch

from scoremh import Always, Exact, ScaledMALA, metropolis_hastings, sample, targets
from scoremh.types import Point

D = 784
NORMAL = targets.Gaussian(torch.zeros(D, dtype=torch.float64))


def normal_at(rho: float, chains: int = 400) -> torch.Tensor:
    """Return chains of N(0, rho^2 I): the noise of a level, rho times as wide as it should be."""
    return rho * torch.randn(chains, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def test_the_step_is_that_of_score_sde() -> None:
    at = Point(normal_at(1.0, 5), normal_at(1.5, 5))
    assert at.score is not None
    expected = 2 * (0.16 * math.sqrt(D) / at.score.norm(dim=1)) ** 2
    torch.testing.assert_close(ScaledMALA(0.16).step_size(at), expected)


@pytest.mark.parametrize("tau", [0.5, 0.9])
def test_a_chain_that_lags_is_accepted_beyond_the_bound_of_the_theory(tau: float) -> None:
    """With the per-chain step a right rule accepts where rho^2 > 1 + tau^2, and refuses chains that have arrived."""
    bound = math.sqrt(1 + tau**2)
    for rho in (1.05 * bound, 0.95 * bound):
        kernel = metropolis_hastings(NORMAL, ScaledMALA(tau), Exact())
        _, move = kernel.step(kernel.init(normal_at(rho)), generator=torch.Generator().manual_seed(1))
        rate = float(move.accepted.double().mean())
        assert (rate > 0.75) if rho > bound else (rate < 0.25), (rho, rate)


def test_unadjusted_it_settles_at_the_bound() -> None:
    tau = 0.7
    kernel = metropolis_hastings(NORMAL, ScaledMALA(tau), Always())
    end = sample(kernel, normal_at(3.0), draws=1, thin=60, generator=torch.Generator().manual_seed(1)).last
    assert float(end.square().mean()) == pytest.approx(1 + tau**2, rel=0.01)


def test_in_many_dimensions_the_step_is_near_that_of_the_level() -> None:
    h = ScaledMALA(0.2).step_size(Point(normal_at(1.0, 2000), 2 * normal_at(1.0, 2000)))
    assert float(h.mean()) == pytest.approx(2 * 0.2**2 / 2**2, rel=0.01)
    assert float(h.std() / h.mean()) == pytest.approx(math.sqrt(2 / D), rel=0.1)
