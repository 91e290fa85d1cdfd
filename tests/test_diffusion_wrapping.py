"""A network that is wrapped as what it is not is noticed, one that is wrapped rightly is not."""

import math
import warnings

import pytest
import torch
from torch import Tensor

from scoremh import Recipe, datasets, diffusion, fit_score, targets
from scoremh.diffusion import WrappingWarning, model
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


def scaled(law: targets.GaussianMixture, std: float) -> targets.GaussianMixture:
    factor = std / law.variance**0.5
    return targets.GaussianMixture(law.weights, law.means * factor, law.covariances * factor**2)


def ring() -> targets.GaussianMixture:
    """Points around a circle: by mean and covariance alone, a round normal distribution."""
    angles = torch.arange(12).double() * math.pi / 6
    return targets.GaussianMixture([1 / 12] * 12, torch.stack([angles.cos(), angles.sin()], 1), 0.01 * torch.eye(2))


def curves() -> targets.GaussianMixture:
    """Three smooth functions with smooth noise, in as many coordinates as a small image has."""
    place = torch.linspace(0, 1, 64).double()
    means = torch.stack([(3 * k * place).sin() + 0.3 * k for k in (1, 2, 3)])
    covariance = 0.2 * (-(place[:, None] - place).abs() / 0.2).exp() + 0.01 * torch.eye(64)
    return targets.GaussianMixture([1 / 3] * 3, means, covariance)


# of unit variance, as standardised data are, silence is read as v nearly the right answer
SAMPLED = {
    "mixture": MIXTURE,
    "unit mixture": scaled(MIXTURE, 1.0),
    "unit ring": scaled(ring(), 1.0),
    "unit curves": scaled(curves(), 1.0),
    "correlated": targets.GaussianMixture([1.0], torch.zeros(1, 2).double(), torch.tensor([[1.0, 0.6], [0.6, 1.0]])),
}


def samples_of(law: str) -> Tensor:
    return SAMPLED[law].sample(300, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("law", SAMPLED)
@pytest.mark.parametrize(("adapter", "net"), WRONG)
def test_samples_show_every_wrong_wrapping_whatever_the_variance(adapter: str, net: str, law: str) -> None:
    with pytest.warns(WrappingWarning):
        ADAPTERS[adapter](networks_of(SAMPLED[law])[net], like=samples_of(law))


@pytest.mark.parametrize("law", SAMPLED)
@pytest.mark.parametrize("name", ADAPTERS)
def test_samples_flag_no_right_wrapping(name: str, law: str) -> None:
    assert ADAPTERS[name](networks_of(SAMPLED[law])[name]).check(samples_of(law)) is None


def test_silence_is_right_for_standard_normal_data_and_for_no_others() -> None:
    def silent(x: Tensor, t: Tensor) -> Tensor:
        return torch.zeros_like(x)

    normal = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    assert diffusion.from_v(silent, ABAR).check(normal) is None
    assert diffusion.from_v(silent, ABAR).check((8,)) is None  # noise alone cannot tell
    with pytest.warns(WrappingWarning, match="test 'answer'.*Is it trained"):
        diffusion.from_v(silent, ABAR).check(samples_of("unit ring"))


@pytest.mark.parametrize("law", SAMPLED)
@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_no_simple_denoiser_is_better_than_the_true_one(law: str, sigma: float) -> None:
    """Beyond what chance does to 300 errors of either; one of the three is never far from the truth here."""
    samples = samples_of(law)
    sigma *= SAMPLED[law].variance ** 0.5
    x = samples + sigma * torch.randn(samples.shape, generator=torch.Generator().manual_seed(1), dtype=samples.dtype)
    score, _ = SAMPLED[law].level_score(x, sigma)
    squares = (x + sigma**2 * score - samples).square().mean(1)
    error, chance = float(squares.mean()), float(squares.std()) / 300**0.5
    for denoise in (model.linear_denoiser, model.wiener, model.kernel):
        assert float((denoise(samples, x, sigma) - samples).square().mean()) > error - chance
    assert model.least_error(samples, x, sigma) < 1.35 * error


def test_copies_of_a_sample_do_not_denoise_it() -> None:
    samples = samples_of("unit ring")[:60]
    x = samples + 0.5 * torch.randn(samples.shape, generator=torch.Generator().manual_seed(1), dtype=samples.dtype)
    once = model.kernel(samples, x, 0.5)
    twice = model.kernel(samples.repeat(2, 1), x.repeat(2, 1), 0.5)
    torch.testing.assert_close(twice[:60], once)


def test_the_check_comes_with_the_first_points_and_only_once() -> None:
    model, x = diffusion.from_score(networks_of(NARROW)["epsilon"], [1.0, 100.0], by="sigma"), torch.randn(3, 16)
    with pytest.warns(WrappingWarning, match="wrapped as a score, the network is not one"):
        model.at(2.0).score(x.double())  # type: ignore[misc]
    with warnings.catch_warnings():
        warnings.simplefilter("error", WrappingWarning)
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
