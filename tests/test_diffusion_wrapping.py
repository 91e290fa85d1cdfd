"""A network that is wrapped as what it is not is noticed, one that is wrapped rightly is not."""

import warnings

import pytest
import torch
from torch import Tensor

from scoremh import Recipe, datasets, diffusion, fit_score, targets
from scoremh.diffusion import WrappingWarning
from tests.diffusion_cases import ABAR, ADAPTERS, MIXTURE, networks_of

# narrow, as images in [0, 1] are: what networks of N(0, I) answer cannot be told apart by noise alone
NARROW = targets.GaussianMixture(
    [0.5, 0.5], torch.tensor([[-0.3], [0.3]]).double().expand(2, 16), 0.02 * torch.eye(16).double()
)
CALLS = {
    "denoiser": "diffusion.from_denoiser(net)",
    "epsilon": "diffusion.from_epsilon(net, alphas_cumprod)",
    "x0": "diffusion.from_x0(net, alphas_cumprod)",
    "v": "diffusion.from_v(net, alphas_cumprod)",
    "velocity": "diffusion.from_velocity(net)",
    "score by index": "diffusion.from_score(net, sigmas)",
    "score by sigma": 'diffusion.from_score(net, sigmas, by="sigma")',
}
# a network that takes whole timesteps only is not called with other times, so nothing better is found for these
BEYOND_TIMESTEPS = "denoiser", "velocity", "score by sigma"
WRONG = [(adapter, net) for adapter in ADAPTERS for net in ADAPTERS if adapter != net]


@pytest.mark.parametrize("event", [(16,), (1, 4, 4)], ids=["vector", "image"])
@pytest.mark.parametrize("name", ADAPTERS)
def test_a_right_wrapping_is_not_flagged(name: str, event: tuple[int, ...]) -> None:
    samples = NARROW.sample(300, generator=torch.Generator().manual_seed(0)).reshape(300, *event)
    net = networks_of(NARROW)[name]
    assert ADAPTERS[name](net, variance=NARROW.variance).check(event) is None
    assert ADAPTERS[name](net).check(event) is None  # the variance left at 1
    assert ADAPTERS[name](net).check(samples) is None


@pytest.mark.parametrize(("adapter", "net"), WRONG)
def test_a_wrong_wrapping_is_noticed_and_the_right_one_named(adapter: str, net: str) -> None:
    with pytest.warns(WrappingWarning) as caught:
        ADAPTERS[adapter](networks_of(NARROW)[net], variance=NARROW.variance, like=(16,))
    assert len(caught) == 1
    text = str(caught[0].message)
    if adapter == "score by index" and net in BEYOND_TIMESTEPS:
        assert "nothing else that scoremh.diffusion knows" in text
    else:
        assert text.endswith(f"Use {CALLS[net]}.")


# told times of another kind, they answer nearly 0 or nearly their input: with that, linear denoisers
LINEAR = ("v", "score by sigma"), ("velocity", "x0")


@pytest.mark.parametrize(("adapter", "net"), [pair for pair in WRONG if pair not in LINEAR])
def test_samples_show_a_wrong_wrapping_whatever_the_variance(adapter: str, net: str) -> None:
    samples = MIXTURE.sample(300, generator=torch.Generator().manual_seed(0))
    with pytest.warns(WrappingWarning):
        ADAPTERS[adapter](networks_of(MIXTURE)[net], like=samples)


def test_the_check_comes_with_the_first_points_and_only_once() -> None:
    model, x = diffusion.from_score(networks_of(NARROW)["epsilon"], [1.0, 100.0], by="sigma"), torch.randn(3, 16)
    with pytest.warns(WrappingWarning, match="wrapped as a score, the network is not one"):
        model.at(2.0).score(x.double())  # type: ignore[misc]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.at(3.0).score(x.double())  # type: ignore[misc]
        model.level_score(x.double(), 3.0)
    assert issubclass(WrappingWarning, UserWarning)


def test_a_score_that_was_learned_is_not_flagged() -> None:
    g = torch.Generator().manual_seed(0)
    fit = fit_score(datasets.moons(1000, generator=g), recipe=Recipe(steps=300), generator=g).standard
    assert fit.noise_range is not None
    model = diffusion.from_score(fit.net, fit.noise_range, by="sigma")
    assert model.check((2,)) is None
    x = torch.randn(5, 2, generator=g)
    torch.testing.assert_close(model.at(0.7).score(x), fit.at(0.7).score(x))  # type: ignore[misc]


def test_an_untrained_epsilon_network_is_noticed() -> None:
    with pytest.warns(WrappingWarning, match="Is it trained"):
        diffusion.from_epsilon(lambda x, t: torch.zeros_like(x), ABAR, like=(16,))


def test_a_wrong_variance_is_named() -> None:
    wide = targets.Gaussian(torch.zeros(2).double(), 9 * torch.eye(2).double())
    with pytest.warns(WrappingWarning, match=r"variance=1 was passed, and the network was trained on about 9: pass"):
        ADAPTERS["epsilon"](networks_of(wide)["epsilon"], like=(2,))


def test_a_denoiser_for_one_level_only_is_an_error_and_not_a_wrong_broadcast() -> None:
    """As many rows as coordinates would broadcast a level for every chain over the coordinates."""

    def scalar_denoiser(x: Tensor, sigma: Tensor) -> Tensor:
        return x / (1 + sigma**2)

    with pytest.raises(RuntimeError, match="size of tensor"):
        diffusion.from_denoiser(scalar_denoiser, like=(16,))


def test_the_check_draws_nothing_from_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    assert ADAPTERS["v"](networks_of(NARROW)["v"]).check((16,)) is None
    assert torch.equal(before, torch.random.get_rng_state())
