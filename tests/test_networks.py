"""Networks: closed forms against autograd, coordinates against the chain rule."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scoremh import targets
from scoremh.coordinates import Affine, Compose, Sinh, SquareRoot
from scoremh.networks import AtNoiseLevel, InCoordinates, NoiseConditionalMLP, ScoreMLP, build, describe
from scoremh.score_matching import score_and_divergence


def points(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def trace(net: Any, x: Tensor) -> Tensor:
    """Return the divergence from full Jacobians, one chain after another."""
    size = x[0].numel()
    rows = [torch.autograd.functional.jacobian(lambda y: net(y[None])[0], row, create_graph=True) for row in x]
    return torch.stack([row.reshape(size, size).trace() for row in rows])


@pytest.mark.parametrize("event", [(1,), (2,), (7,), (1, 3, 3)])
def test_the_closed_form_of_the_divergence_is_the_trace_of_the_jacobian(event: tuple[int, ...]) -> None:
    net, x = ScoreMLP(event, hidden=16).double(), points(5, *event)
    score, divergence = net.score_and_divergence(x)
    torch.testing.assert_close(score, net(x), atol=0, rtol=0)
    torch.testing.assert_close(divergence, trace(net, x), atol=1e-12, rtol=1e-12)
    weights = list(net.parameters())
    mine, theirs = (torch.autograd.grad(t.sum(), weights, allow_unused=True) for t in (divergence, trace(net, x)))
    for a, b in zip(mine, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("event", [(2,), (1, 3, 3)])
def test_other_networks_get_their_divergence_by_autograd(event: tuple[int, ...]) -> None:
    net, x = AtNoiseLevel(NoiseConditionalMLP(event, hidden=8).double(), 0.5), points(5, *event)
    nn.init.normal_(net.net.last.weight)  # type: ignore[union-attr, arg-type]
    score, divergence = score_and_divergence(net, x)
    torch.testing.assert_close(score, net(x))
    torch.testing.assert_close(divergence, trace(net, x), atol=1e-12, rtol=1e-12)


def test_a_new_noise_conditional_network_is_the_score_of_blurred_normal_samples() -> None:
    net, x, sigma = NoiseConditionalMLP(3).double(), points(4, 3), torch.tensor([0.01, 0.3, 1.0, 8.0]).double()
    torch.testing.assert_close(net(x, sigma), -x / (1 + sigma[:, None] ** 2), atol=1e-14, rtol=1e-12)


def test_the_preconditioning_is_that_of_karras_et_al() -> None:
    net, x = NoiseConditionalMLP(3, hidden=8).double(), points(4, 3)
    nn.init.normal_(net.last.weight)
    for sigma in (0.05, 2.0):
        k = (1 + sigma**2) ** 0.5
        y = torch.cat([x / k, torch.full((4, 1), sigma, dtype=torch.float64).log() / 4], 1)
        for layer in net.body:
            y = nn.functional.silu(layer(y))
        denoised = x / k**2 + sigma / k * net.last(y)
        torch.testing.assert_close(net(x, sigma), (denoised - x) / sigma**2, atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(
            net(x, sigma), net(x, torch.full((4,), sigma, dtype=torch.float64))
        )  # one level, or one each


def test_standard_coordinates_give_the_score_of_the_data() -> None:
    covariance = torch.tensor([[4.0, 1.8], [1.8, 1.0]]).double()
    law = targets.Gaussian([3.0, -2.0], covariance)
    x = law.sample(200_000, generator=torch.Generator().manual_seed(0)).double()

    class Standard(nn.Module):
        def forward(self, u: Tensor) -> Tensor:
            return -u

    net = InCoordinates(Standard(), Affine.whitening(x))
    u = net.coordinates.inverse(x)
    torch.testing.assert_close(u.mean(0), torch.zeros(2).double(), atol=1e-8, rtol=0)
    torch.testing.assert_close(u.T.cov(correction=0), torch.eye(2).double(), atol=1e-8, rtol=0)
    error = (net(x) - law.score(x)).square().sum(1).mean() / law.score(x).square().sum(1).mean()
    assert error < 1e-4  # only the moments of the samples differ from those of the law


def test_standard_coordinates_obey_the_chain_rule_for_any_potential() -> None:
    x = points(50, 3) @ points(3, 3)

    class Score(nn.Module):
        def forward(self, u: Tensor) -> Tensor:
            return -u.pow(3)

    net = InCoordinates(Score(), Affine.whitening(x))
    expected = torch.func.grad(lambda y: -net.coordinates.inverse(y).pow(4).sum() / 4)(x)
    torch.testing.assert_close(net(x), expected, atol=1e-10, rtol=1e-10)


def test_large_events_are_scaled_by_one_number() -> None:
    x = 3 + 2 * points(100, 1, 8, 8)
    net = InCoordinates(ScoreMLP((1, 8, 8)).double(), Affine.whitening(x))
    assert net.coordinates.root.shape == ()
    assert abs(float(net.coordinates.inverse(x).square().mean()) - 1) < 1e-10
    assert net(x).shape == x.shape


def test_samples_without_width_are_refused() -> None:
    line = points(100, 1).repeat(1, 2)
    with pytest.raises(ValueError, match="vary in every direction"):
        Affine.whitening(line)
    with pytest.raises(ValueError, match="a number, a diagonal"):
        Affine(torch.zeros(2), torch.ones(2, 3))


@pytest.mark.parametrize(
    "inside", [ScoreMLP((1, 2, 2), 8), NoiseConditionalMLP(4, 8, 2)], ids=lambda n: type(n).__name__
)
def test_a_network_is_rebuilt_from_its_description(inside: Any) -> None:
    x = points(50, *inside.event).float()
    net = InCoordinates(inside, Affine.whitening(x))
    again = build(describe(net))
    again.load_state_dict(net.state_dict())
    level = [0.3] if isinstance(inside, NoiseConditionalMLP) else []
    assert torch.equal(net(x, *level), again(x, *level))


def test_a_network_of_another_kind_has_to_be_given() -> None:
    with pytest.raises(ValueError, match="Pass the network"):
        build(describe(nn.Linear(2, 2)))
    own = nn.Linear(2, 2)
    assert build(describe(nn.Linear(2, 2)), own) is own


@pytest.mark.parametrize(
    "make", [lambda: ScoreMLP(0), lambda: ScoreMLP(2, hidden=0), lambda: NoiseConditionalMLP(2, layers=0)]
)
def test_bad_sizes_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="of at least 1"):
        make()
    with pytest.raises(ValueError, match="finite and above 0"):
        AtNoiseLevel(ScoreMLP(2), 0.0)


@pytest.mark.parametrize("level", [(), (0.3,)])
def test_a_heavy_tailed_score_is_that_of_the_transformed_law(level: tuple[float, ...]) -> None:
    """With a standard normal z = v / (1 + v^2)^(1/4), the law of x = m + w sinh v has a density in closed form."""

    class Normal(nn.Module):
        def forward(self, z: Tensor, *sigma: float) -> Tensor:
            return -z / (1 + sum(s**2 for s in sigma))

    centre, width = torch.tensor([1.0, -2.0]).double(), torch.tensor([0.5, 3.0]).double()
    net = InCoordinates(Normal(), Compose(Sinh(centre, width), SquareRoot()))

    def log_density(x: Tensor) -> Tensor:
        u = (x - centre) / width
        v = u.asinh()
        z, slope = v / (1 + v**2) ** 0.25, (1 + v**2 / 2) / (1 + v**2) ** 1.25
        return (-z.square() / 2 / (1 + sum(s**2 for s in level)) + slope.log() - (1 + u.square()).log() / 2).sum(1)

    x = (10 * torch.randn(50, 2, generator=torch.Generator().manual_seed(0))).double().requires_grad_()
    (expected,) = torch.autograd.grad(log_density(x).sum(), x)
    torch.testing.assert_close(net(x, *level), expected, atol=1e-12, rtol=1e-10)


def test_a_heavy_tailed_score_falls_off_as_one_over_x() -> None:
    class Normal(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return -4.0 * z  # exp(-2 z^2), and z^2 is |v| nearly: a tail of |x|^-3, with terms in 1 / log |x|

    net = InCoordinates(Normal(), Compose(Sinh(torch.zeros(1).double(), torch.ones(1).double()), SquareRoot()))
    x = torch.tensor([[1e100], [-1e140]], dtype=torch.float64)
    torch.testing.assert_close(x * net(x), torch.full((2, 1), -3.0).double(), atol=1e-2, rtol=0)
