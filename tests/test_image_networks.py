"""The U-Net: shapes, descriptions, what a new one is, and training on images."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scoremh import Recipe, fit_score
from scoremh.networks import UNet, build, describe
from scoremh.networks.unet import TUTORIAL_CHANNELS
from scoremh.score_matching import MultilevelDenoising

EVENT, CHANNELS = (1, 8, 8), (4, 8, 8)
SIGMA = torch.tensor([0.05, 0.5, 2.0], dtype=torch.float64)
NETWORKS: dict[str, Any] = {
    "unet": lambda g: UNet(EVENT, CHANNELS, generator=g),
    "softplus": lambda g: UNet(EVENT, CHANNELS, "softplus", generator=g),
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(n, *EVENT, generator=seeded(seed), dtype=torch.float64)


def awake(net: Any) -> Any:
    """Return a network whose last layer is not 0."""
    nn.init.normal_(net.last.weight, std=0.3, generator=seeded(5))
    return net.double()


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_keep_shape_and_dtype_and_come_back_from_their_description(name: str) -> None:
    net = awake(NETWORKS[name](seeded()))
    x = images()
    assert (net(x, 0.5).shape, net(x, 0.5).dtype) == (x.shape, torch.float64)
    again = build(describe(net)).double()
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(x, 0.5), net(x, 0.5))
    same, other = (dict(NETWORKS[name](seeded(seed)).named_parameters()) for seed in (0, 1))
    assert all(torch.equal(a, same[key]) for key, a in NETWORKS[name](seeded(0)).named_parameters())
    assert any(not torch.equal(a, other[key]) for key, a in same.items())


@pytest.mark.parametrize("name", NETWORKS)
def test_a_level_for_all_is_the_same_level_for_each(name: str) -> None:
    net, x = awake(NETWORKS[name](seeded())), images()
    torch.testing.assert_close(net(x, 0.3), net(x, x.new_full((3,), 0.3)), atol=1e-12, rtol=1e-12)
    apart = torch.cat([net(x, float(s))[i : i + 1] for i, s in enumerate(SIGMA)])
    torch.testing.assert_close(net(x, SIGMA), apart, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("event", [(1, 8, 8), (3, 7, 5), (1, 28, 28)])
def test_a_new_network_is_the_score_of_blurred_normal_pixels(event: tuple[int, int, int]) -> None:
    x = torch.randn(3, *event, generator=seeded(), dtype=torch.float64)
    wanted = -x / (1 + SIGMA[:, None, None, None] ** 2)
    torch.testing.assert_close(UNet(event).double()(x, SIGMA), wanted, atol=1e-12, rtol=1e-12)


def test_the_tutorials_network_has_the_size_that_the_tutorial_says() -> None:
    sizes = [sum(p.numel() for p in UNet((1, 28, 28), c).parameters()) for c in ((16, 32, 64, 128), TUTORIAL_CHANNELS)]
    assert sizes[0] < 400_000
    assert 1_000_000 < sizes[1] < 2_000_000


def test_a_unet_is_not_a_gradient_by_construction() -> None:
    net = awake(UNet(EVENT, CHANNELS, generator=seeded()))
    jacobian = torch.func.jacrev(lambda y: net(y[None], 0.5)[0].flatten())(images()[0]).reshape(64, 64)
    assert (jacobian - jacobian.mT).abs().max() > 1e-3


def test_images_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(channel, row, column\)"):
        UNet((64,))


def test_fit_score_trains_a_unet_on_images_and_resumes_to_the_same_weights(tmp_path: Path) -> None:
    x, loss = images(64).float(), MultilevelDenoising(0.05, 10.0)
    recipe = Recipe(4, batch=16, check_every=2, patience=None)

    def fitted(steps: Recipe, **options: Any) -> Any:
        net = UNet(EVENT, CHANNELS, generator=seeded())
        return fit_score(x, loss, net, standardize=False, recipe=steps, generator=seeded(2), **options)

    whole = fitted(recipe)
    assert whole.noise_range == (0.05, 10.0)
    assert whole.at(1.0).score(x[:3]).shape == (3, *EVENT)
    assert whole.level_score(x[:2], 1.0)[1].shape == (2,)
    resumed = fitted(recipe, checkpoint=tmp_path / "checkpoint")
    assert all(torch.equal(a, b) for a, b in zip(whole.net.parameters(), resumed.net.parameters(), strict=True))
