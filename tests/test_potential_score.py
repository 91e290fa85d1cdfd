"""Scores that are gradients by construction: closed forms against autograd, fits, and exact decisions with them."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from scoremh import (
    MALA,
    Exact,
    ImplicitScoreMatching,
    LineIntegral,
    Recipe,
    ScoreFit,
    Target,
    diagnostics,
    diffusion,
    fit_score,
    metropolis_hastings,
    sample,
    targets,
)
from scoremh.networks import AtNoiseLevel, NoiseConditionalPotential
from scoremh.score_matching import score_and_divergence, score_plan
from scoremh.types import Point

SHORT = Recipe(steps=60, check_every=30, batch=64)
NORMAL = targets.Gaussian([1.0, -2.0], [[2.0, 0.9], [0.9, 1.0]])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_potential(event: int | tuple[int, ...]) -> NoiseConditionalPotential:
    """Return a network whose last layer is not zero, as it is at first."""
    net = NoiseConditionalPotential(event, hidden=16, generator=seeded()).double()
    nn.init.normal_(net.last.weight, generator=seeded())
    return net


def points(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(1), dtype=torch.float64)


@pytest.fixture(scope="module")
def fit() -> ScoreFit:
    x = NORMAL.sample(3000, generator=seeded(1))
    return fit_score(x, net="potential", recipe=Recipe(steps=600, check_every=100), generator=seeded(2))


@pytest.fixture(scope="module", params=[False, True], ids=["whitened", "heavy tails"])
def bent(request: pytest.FixtureRequest) -> ScoreFit:
    """A fit in float64 whose potential is far from a normal one."""
    x = points(200, 2) @ points(2, 2)
    fit = fit_score(x, net="potential", heavy_tails=request.param, recipe=SHORT, generator=seeded())
    nn.init.normal_(fit.net.net.last.weight, std=0.1, generator=seeded())  # type: ignore[union-attr, arg-type]
    return fit


@pytest.mark.parametrize("event", [(1,), (3,), (2, 2)])
def test_the_score_is_the_gradient_of_the_potential(event: tuple[int, ...]) -> None:
    net, x, sigma = random_potential(event), points(6, *event), torch.linspace(0.05, 3.0, 6).double()
    (expected,) = torch.autograd.grad(net.potential(x.requires_grad_(), sigma).sum(), x)
    torch.testing.assert_close(net(x, sigma), expected, rtol=1e-10, atol=1e-10)
    assert (net(x, sigma) + x / (1 + sigma.square()).reshape(-1, *[1] * len(event))).abs().max() > 0.1


@pytest.mark.parametrize("event", [(1,), (3,), (2, 2)])
def test_the_divergence_is_the_trace_of_the_hessian(event: tuple[int, ...]) -> None:
    net, x, sigma = random_potential(event), points(6, *event), torch.linspace(0.05, 3.0, 6).double()
    size = x[0].numel()
    hessians = [
        torch.autograd.functional.hessian(lambda y, level=level: net.potential(y[None], level)[0], row)
        for row, level in zip(x, sigma, strict=True)
    ]
    traces = torch.stack([hessian.reshape(size, size).trace() for hessian in hessians])
    score, divergence = net.level_score(x, sigma)
    torch.testing.assert_close(divergence, traces, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(score, net(x, sigma), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(diffusion.level_score(net, x, sigma), (score, divergence), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(score_and_divergence(AtNoiseLevel(net, 0.4), x), net.level_score(x, 0.4))


def test_along_directions_the_hessian_is_that_of_autograd() -> None:
    net, x, v = random_potential(3), points(1, 3), points(2, 3)
    hessian = torch.autograd.functional.hessian(lambda y: net.potential(y[None], 0.3)[0], x[0])
    expected = torch.einsum("di,ij,dj->", v, hessian, v)
    torch.testing.assert_close(net.level_score(x, 0.3, v)[1][0], expected, rtol=1e-10, atol=1e-10)


def test_a_new_network_is_a_standard_normal_blurred() -> None:
    net, x, sigma = NoiseConditionalPotential(3).double(), points(4, 3), torch.tensor([0.01, 0.3, 1.0, 8.0]).double()
    torch.testing.assert_close(net(x, sigma), -x / (1 + sigma[:, None] ** 2))
    torch.testing.assert_close(net.potential(x, sigma), -x.square().sum(1) / (2 * (1 + sigma**2)))


def test_the_weights_learn_through_the_closed_form() -> None:
    """The gradient of a loss in the weights is that of autograd's own double backward."""
    net, x, sigma = random_potential(2), points(5, 2), torch.linspace(0.1, 2.0, 5).double()
    mine = torch.autograd.grad(net(x, sigma).square().sum(), list(net.parameters()))
    (score,) = torch.autograd.grad(net.potential(x.requires_grad_(), sigma).sum(), x, create_graph=True)
    theirs = torch.autograd.grad(score.square().sum(), list(net.parameters()))
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_a_fit_of_a_normal_distribution(fit: ScoreFit) -> None:
    x = NORMAL.sample(2000, generator=seeded(3))
    blurred = targets.Gaussian(NORMAL.mean, NORMAL.covariance * (1 + (fit.noise_level or 0) ** 2))
    true = blurred.score(x)
    assert (fit.score(x) - true).square().sum() / true.square().sum() < 0.02
    difference = fit.potential(x) - blurred.log_density(x)
    assert difference.std() < 0.1
    assert fit.log_density is not None
    assert (fit.log_density(x) - blurred.log_density(x)).square().mean().sqrt() < 0.15  # normalised, through noise
    assert fit.seconds < 120
    assert "NoiseConditionalPotential" in str(fit)


def test_a_fit_is_a_gradient_in_the_coordinates_of_the_samples(bent: ScoreFit) -> None:
    x = points(30, 2)
    (expected,) = torch.autograd.grad(bent.potential(x.requires_grad_()).sum(), x)
    torch.testing.assert_close(bent.score(x), expected, rtol=1e-10, atol=1e-10)
    assert diagnostics.conservativity(bent.score, x.detach(), generator=seeded()).asymmetry < 1e-12
    for level in (0.05, 1.0):
        found = bent.level_score(x, level)
        torch.testing.assert_close(found, diffusion.level_score(bent.net, x, level), rtol=1e-9, atol=1e-9)


def test_exact_decisions_are_those_of_the_line_integral(bent: ScoreFit) -> None:
    """log r is antisymmetric, and what the score itself adds up to along the line."""
    x, y = 0.5 * points(20, 2), 0.5 * points(40, 2)[20:]
    target, proposal = Target(bent.score, bent.potential), MALA(0.3)
    here, there = (Point.at(at, target, frozenset({"score", "log_density"})) for at in (x, y))
    forth = Exact().log_ratio(here, there, target=target, proposal=proposal)
    back = Exact().log_ratio(there, here, target=target, proposal=proposal)
    torch.testing.assert_close(forth, -back, rtol=1e-12, atol=1e-12)
    integral = LineIntegral("gauss", nodes=64).log_ratio(here, there, target=target, proposal=proposal)
    torch.testing.assert_close(forth, integral, rtol=1e-6, atol=1e-6)


def test_chains_run_in_inference_mode(fit: ScoreFit) -> None:
    kernel = metropolis_hastings(Target(fit.score, fit.potential, fit.support), MALA(0.8), Exact())
    chains = sample(kernel, NORMAL.sample(50, generator=seeded()), draws=5, generator=seeded())
    assert 0.5 < chains.acceptance_rate < 1
    with torch.inference_mode():
        x = NORMAL.sample(5, generator=seeded())
        torch.testing.assert_close(
            diffusion.level_score(fit.net, x, 0.3), fit.level_score(x, 0.3), rtol=1e-3, atol=1e-3
        )


def test_a_saved_fit_comes_back(fit: ScoreFit, tmp_path: Path) -> None:
    fit.save(tmp_path / "potential")
    again, x = ScoreFit.load(tmp_path / "potential"), NORMAL.sample(10, generator=seeded())
    assert torch.equal(again.score(x), fit.score(x))
    assert torch.equal(again.potential(x), fit.potential(x))


def test_what_has_no_potential_is_refused() -> None:
    x = torch.randn(100, 2, generator=seeded())
    plain = fit_score(x, recipe=SHORT, generator=seeded())
    with pytest.raises(ValueError, match=r"gradient of a potential, got one by NoiseConditionalMLP.*net=\"potential\""):
        _ = plain.potential
    with pytest.raises(ValueError, match=r"net to be one of 'potential', got 'other'"):
        fit_score(x, net="other", recipe=SHORT)
    with pytest.raises(TypeError, match="MultilevelDenoising for networks that take a level"):
        fit_score(x, ImplicitScoreMatching(), "potential", recipe=SHORT)
    with pytest.raises(ValueError, match="of at least 1"):
        NoiseConditionalPotential(2, layers=0)


def test_the_dtype_is_that_of_the_samples_and_the_seed_decides_the_weights() -> None:
    nets = [score_plan(points(50, 2), net="potential", generator=seeded(seed)).net for seed in (1, 1, 2)]
    first, same, other = (next(net.parameters()) for net in nets)
    assert first.dtype == torch.float64
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
