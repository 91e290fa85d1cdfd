"""Losses of score matching: closed forms, known minimisers, and where they have no least value."""

import math

import pytest
import torch
from torch import Tensor, nn

from scoremh import (
    DenoisingScoreMatching,
    DivergenceError,
    ImplicitScoreMatching,
    MultilevelDenoising,
    Recipe,
    SlicedScoreMatching,
    fit_score,
    targets,
)
from scoremh.networks import NoiseConditionalMLP, ScoreMLP
from scoremh.score_matching import best_noise_level
from scoremh.training import Loss, train
from tests.balance_cases import seeded

LOSSES: list[Loss] = [
    ImplicitScoreMatching(),
    SlicedScoreMatching(),
    SlicedScoreMatching(variance_reduced=False),
    SlicedScoreMatching(projections=3),
    DenoisingScoreMatching(0.3),
]


def network(event: int | tuple[int, ...], hidden: int = 16) -> ScoreMLP:
    return ScoreMLP(event, hidden, generator=seeded(0)).double()


class Levelled(nn.Module):
    """A network that takes a level and does not look at it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        answer: Tensor = self.net(x)
        return answer


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_linear_score_learns_the_precision_matrix(loss: Loss) -> None:
    """The minimiser over s(x) = A x + b is known: A = -(C + std^2 I)^-1 and b = -A m, with the samples' moments."""
    covariance = torch.tensor([[1.0, 0.6], [0.6, 0.8]], dtype=torch.float64)
    law = targets.Gaussian(torch.tensor([0.5, -1.0], dtype=torch.float64), covariance)
    x = law.sample(20_000, generator=seeded())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Linear(2, 2).double()
    recipe = Recipe(steps=2500, batch=2000, rate=0.03, clip=None)
    train(net, loss, x, recipe=recipe, generator=seeded(1))
    noise = loss.noise_level**2 if isinstance(loss, DenoisingScoreMatching) else 0.0
    precision = torch.linalg.inv(torch.cov(x.T) + noise * torch.eye(2))
    torch.testing.assert_close(net.weight, -precision, atol=0.1, rtol=0)
    torch.testing.assert_close(net.bias, precision @ x.mean(0), atol=0.1, rtol=0)


@pytest.mark.slow
def test_a_linear_score_that_knows_the_level_learns_every_precision() -> None:
    """`NoiseConditionalMLP` has to find -(C + sigma^2)^-1 at all levels, from samples of a normal law."""
    x = torch.randn(20_000, 2, generator=seeded()) * torch.tensor([1.0, 0.5])
    net = NoiseConditionalMLP(2, generator=seeded(0))
    train(net, MultilevelDenoising(0.1, 3.0), x, recipe=Recipe(steps=2000), generator=seeded(1))
    for sigma in (0.2, 0.5, 1.0, 2.0):
        blurred = x + sigma * torch.randn(x.shape, generator=seeded(2))
        expected = -blurred / (torch.tensor([1.0, 0.25]) + sigma**2)
        error = (net(blurred, sigma) - expected).square().sum(1).mean() / expected.square().sum(1).mean()
        assert error < 0.01, (sigma, error)


def test_the_implicit_loss_is_the_fisher_divergence_up_to_a_constant() -> None:
    """E[ |s|^2 / 2 + tr J ] = E|s - s*|^2 / 2 - E|s*|^2 / 2, over exact draws: a z-test."""
    law = targets.Gaussian(torch.zeros(3, dtype=torch.float64), torch.diag(torch.tensor([1.0, 2.0, 0.5]).double()))
    x, net = law.sample(200_000, generator=seeded()), network(3)
    true = law.score(x)
    with torch.no_grad():
        fisher = ((net(x) - true).square().sum(1) - true.square().sum(1)) / 2
        gap = ImplicitScoreMatching().each(net, x) - fisher
    assert abs(float(gap.mean())) < 5 * float(gap.std()) / math.sqrt(len(gap))


@pytest.mark.parametrize("reduced", [True, False])
def test_sliced_losses_are_the_implicit_one_on_average(reduced: bool) -> None:
    net, x = network((1, 2, 2)), torch.randn(3, 1, 2, 2, generator=seeded(), dtype=torch.float64)
    loss = SlicedScoreMatching(variance_reduced=reduced)
    draws = loss.each(net, x.repeat(40_000, 1, 1, 1), generator=seeded(1)).detach().reshape(-1, 3)
    gap = draws.mean(0) - ImplicitScoreMatching().each(net, x).detach()
    assert (gap.abs() < 5 * draws.std(0) / math.sqrt(len(draws))).all(), gap


def test_variance_is_reduced() -> None:
    net, x = network(4), torch.randn(5000, 4, generator=seeded(), dtype=torch.float64)
    reduced, plain = (
        SlicedScoreMatching(variance_reduced=v).each(net, x, generator=seeded(1)).detach() for v in (True, False)
    )
    exact = ImplicitScoreMatching().each(net, x).detach()
    assert (reduced - exact).var() < (plain - exact).var()


def test_more_projections_are_a_mean_over_them() -> None:
    net, x = network(2), torch.randn(4000, 2, generator=seeded(), dtype=torch.float64)
    exact = ImplicitScoreMatching().each(net, x).detach()
    one, nine = (
        (SlicedScoreMatching(projections=k).each(net, x, generator=seeded(1)).detach() - exact).var() for k in (1, 9)
    )
    assert 7 < one / nine < 11


def test_the_denoising_loss_has_its_closed_form() -> None:
    """For s(x) = -a x and x ~ N(0, I) it is (a^2 std^2 + (1 - a std^2)^2) d / 2: a z-test over batches."""
    a, std, d = 0.7, 0.4, 3

    class Linear(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return -a * x

    g = seeded()
    values = [
        float(DenoisingScoreMatching(std).loss(Linear(), torch.randn(5000, d, generator=g).double(), generator=g))
        for _ in range(100)
    ]
    exact = (a**2 * std**2 + (1 - a * std**2) ** 2) * d / 2
    mean, sd = torch.tensor(values).mean(), torch.tensor(values).std()
    assert abs(float(mean) - exact) < 5 * float(sd) / 10


def test_one_level_of_many_is_the_denoising_loss_with_its_weight() -> None:
    net, x, sigma = network(2), torch.randn(100, 2, generator=seeded(), dtype=torch.float64), 0.3
    g = seeded(1)
    many = MultilevelDenoising(sigma, sigma * (1 + 1e-12)).loss(Levelled(net), x, generator=g)
    g = seeded(1)
    torch.rand(100, generator=g, dtype=torch.float64)  # the levels
    one = DenoisingScoreMatching(sigma).loss(net, x, generator=g)
    torch.testing.assert_close(many, (1 + sigma**2) * one, atol=1e-9, rtol=1e-9)


def test_the_closed_form_of_the_trace_does_not_change_the_loss() -> None:
    net, x = network(3), torch.randn(50, 3, generator=seeded(), dtype=torch.float64)
    plain = nn.Sequential(net)  # hides the closed form
    losses = [ImplicitScoreMatching().loss(n, x) for n in (net, plain)]
    torch.testing.assert_close(*losses, atol=1e-12, rtol=1e-12)
    for mine, theirs in zip(*(torch.autograd.grad(v, list(net.parameters())) for v in losses), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("loss", [*LOSSES, MultilevelDenoising()], ids=repr)
def test_a_loss_draws_from_its_generator_only(loss: Loss) -> None:
    x = torch.randn(20, 1, 2, 2, generator=seeded())
    net: nn.Module = NoiseConditionalMLP((1, 2, 2)) if isinstance(loss, MultilevelDenoising) else ScoreMLP((1, 2, 2))
    before = torch.get_rng_state()
    values = [float(loss.loss(net, x, generator=seeded(3)).detach()) for _ in range(2)]
    assert values[0] == values[1]
    assert torch.equal(before, torch.get_rng_state())


def test_the_level_moves_only_for_a_reason() -> None:
    """The score of N(0, 1) blurred by every level: with enough samples the lowest level is better than the middle."""

    class Blurred(nn.Module):
        def forward(self, x: Tensor, sigma: float) -> Tensor:
            return -x / (1 + sigma**2)

    x = torch.randn(1000, 1, generator=seeded())
    assert best_noise_level(Blurred(), [0.01, 1.0, 2.0], x) == 0.01
    assert best_noise_level(Blurred(), [0.0100, 0.0101, 1.0], x) == 0.0101


CIRCLE = torch.linspace(0, 2 * math.pi, 3000)


THIN = torch.stack([CIRCLE.cos(), CIRCLE.sin()], 1)


@pytest.mark.parametrize("loss", [ImplicitScoreMatching(), SlicedScoreMatching()], ids=repr)
def test_a_loss_without_a_bound_stops_and_names_the_remedy(loss: Loss) -> None:
    with pytest.raises(DivergenceError, match="Use DenoisingScoreMatching") as caught:
        fit_score(THIN, loss, recipe=Recipe(rate=0.01), generator=seeded())
    assert caught.value.step > 0
    assert caught.value.loss < -100


def test_denoising_learns_where_the_others_have_no_bound() -> None:
    fit = fit_score(THIN, DenoisingScoreMatching(0.2), recipe=Recipe(steps=500), generator=seeded())
    assert fit.score(THIN).isfinite().all()
