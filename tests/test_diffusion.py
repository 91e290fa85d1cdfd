"""Diffusion models as scores of all noise levels: adapters, wrong wrappings, real schedulers."""

import math
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scoremh import (
    MALA,
    PCN,
    Always,
    LineIntegral,
    RandomWalk,
    Recipe,
    Sampler,
    ThroughNoise,
    anneal,
    annealing,
    datasets,
    diffusion,
    fit_score,
    metropolis_hastings,
    replica_exchange,
    sample,
    targets,
)
from scoremh.acceptance import Rule
from scoremh.annealing import Corrector
from scoremh.diffusion import DiffusionModel, WrappingWarning, model
from scoremh.types import Kernel, ScoreModel, TargetLike
from tests.cases import f64, seeded

Net = Callable[[Tensor, Tensor], Tensor]
STEPS = 1000
ABAR = (1 - torch.linspace(1e-4, 0.02, STEPS, dtype=torch.float64)).cumprod(0)
SIGMAS = ((1 - ABAR) / ABAR).sqrt()
ROOT = 0.1 * torch.eye(4, dtype=torch.float64)
MIXTURE = targets.GaussianMixture(
    torch.tensor([0.5, 0.3, 0.2]).double(),
    torch.tensor([[-1.0, 0.0, 0.2, 0.0], [0.6, 0.5, 0.0, -0.4], [0.0, -0.8, 0.3, 0.5]]).double(),
    ROOT + 0.02,
)


def column(value: Tensor, like: Tensor) -> Tensor:
    return value.to(like).reshape(-1, *(1,) * (like.ndim - 1))


def networks_of(target: targets.GaussianMixture | targets.Gaussian, sigmas: Tensor = SIGMAS) -> dict[str, Net]:
    """Return the networks by the names of their adapters, for events of any shape with as many coordinates."""

    def sigma_of(index: Tensor) -> Tensor:
        """Return the noise level of a timestep, between two of them a geometric mean."""
        index = index.double().clamp(0, STEPS - 1)
        low = index.floor().long()
        return torch.lerp(sigmas.log()[low], sigmas.log()[(low + 1).clamp(max=STEPS - 1)], index - low).exp()

    def score(x: Tensor, sigma: Tensor) -> Tensor:
        return target.level_score(x.flatten(1), sigma.to(x))[0].reshape(x.shape)

    def denoiser(x: Tensor, sigma: Tensor) -> Tensor:
        return x + column(sigma, x) ** 2 * score(x, sigma)

    def epsilon(y: Tensor, index: Tensor) -> Tensor:
        sigma = sigma_of(index)
        return -column(sigma, y) * score(y * column((1 + sigma**2).sqrt(), y), sigma)

    def x0(y: Tensor, index: Tensor) -> Tensor:
        sigma = sigma_of(index)
        return denoiser(y * column((1 + sigma**2).sqrt(), y), sigma)

    def v(y: Tensor, index: Tensor) -> Tensor:
        abar = column(1 / (1 + sigma_of(index) ** 2), y)
        return abar.sqrt() * epsilon(y, index) - (1 - abar).sqrt() * x0(y, index)

    def velocity(y: Tensor, time: Tensor) -> Tensor:
        time = torch.where(time > 1, time / STEPS, time).clamp(1e-4, 1 - 1e-4)  # time may be counted in steps
        sigma = time / (1 - time)
        x = y * column(1 + sigma, y)
        return -column(sigma, y) * score(x, sigma) - denoiser(x, sigma)

    def indexed_score(x: Tensor, index: Tensor) -> Tensor:
        return score(x, sigma_of(index))

    return {
        "denoiser": denoiser,
        "epsilon": epsilon,
        "x0": x0,
        "v": v,
        "velocity": velocity,
        "score by index": indexed_score,
        "score by sigma": score,
    }


ADAPTERS: dict[str, Callable[..., DiffusionModel]] = {
    "denoiser": diffusion.from_denoiser,
    "epsilon": lambda net, **settings: diffusion.from_epsilon(net, ABAR, **settings),
    "x0": lambda net, **settings: diffusion.from_x0(net, ABAR, **settings),
    "v": lambda net, **settings: diffusion.from_v(net, ABAR, **settings),
    "velocity": diffusion.from_velocity,
    "score by index": lambda net, **settings: diffusion.from_score(net, SIGMAS, **settings),
    "score by sigma": lambda net, **settings: diffusion.from_score(net, SIGMAS, by="sigma", **settings),
}


def model_of(
    name: str, target: targets.GaussianMixture | targets.Gaussian = MIXTURE, **settings: object
) -> DiffusionModel:
    """Return the exact network of this name in its adapter."""
    return ADAPTERS[name](networks_of(target)[name], **{"variance": target.variance} | settings)


# Adapters of diffusion networks: exact networks give exact scores, at any level, shape and dtype.


LEVELS = 0.02, 0.3, 3.0, 30.0
GROUPED = targets.GaussianMixture([0.2, 0.5, 0.3], [[-2.0, 0.0], [1.5, 1.5], [1.0, -2.0]], 0.3 * torch.eye(2))


def points(n: int = 12, event: tuple[int, ...] = (4,)) -> Tensor:
    return MIXTURE.at(0.5).sample(n, generator=seeded()).reshape(n, *event)


@pytest.mark.parametrize("event", [(4,), (1, 2, 2)], ids=["vector", "image"])
@pytest.mark.parametrize("name", ADAPTERS)
def test_an_exact_network_gives_the_score_of_the_blurred_mixture(name: str, event: tuple[int, ...]) -> None:
    model, x = model_of(name), points(event=event)
    levels = [float(SIGMAS[(SIGMAS - sigma).abs().argmin()]) for sigma in LEVELS] if "index" in name else LEVELS
    for sigma in levels:
        true = MIXTURE.at(sigma).score(x.flatten(1)).reshape(x.shape)
        target = model.at(sigma)
        assert target.score is not None
        torch.testing.assert_close(target.score(x), true, rtol=1e-9, atol=1e-9)
        assert target.levels is not None
        assert target.levels.noise_level == sigma
    assert isinstance(model, ScoreModel)
    assert isinstance(model, TargetLike)
    assert model.noise_level == model.noise_range[0]


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_divergence_matches_that_of_autograd_with_one_level_for_every_chain(name: str) -> None:
    model, x = model_of(name), points(event=(2, 2))
    sigma = torch.logspace(-1, 1, len(x)).double()
    if name == "score by index":  # it accepts these levels only; between them its outputs are interpolated
        sigma = SIGMAS[torch.linspace(50, 950, len(x)).long()]
    score, divergence = model.level_score(x, sigma)
    true = MIXTURE.level_score(x.flatten(1), sigma)
    torch.testing.assert_close(score.flatten(1), true[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(divergence, true[1], rtol=1e-9, atol=1e-9)
    for row, level, trace in zip(x, sigma, divergence, strict=True):
        score_at = model.at(float(level)).score
        assert score_at is not None
        jacobian = torch.autograd.functional.jacobian(lambda y, s=score_at: s(y[None])[0], row).reshape(4, 4)
        torch.testing.assert_close(jacobian.trace(), trace, rtol=1e-8, atol=1e-8)


def test_an_estimated_divergence_uses_fixed_probes() -> None:
    x, model = points(), model_of("epsilon", probes=3)
    score, divergence = model.level_score(x, 0.5)
    probes = diffusion.random_directions(4, x, 3)
    expected = diffusion.level_score(lambda y, s: MIXTURE.level_score(y, s)[0], x, 0.5, probes)
    torch.testing.assert_close((score, divergence), expected, rtol=1e-8, atol=1e-8)
    assert not divergence.allclose(model_of("epsilon").level_score(x, 0.5)[1])


def test_products_with_the_jacobian_of_attention_are_computed_by_forward_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def attention(x: Tensor, sigma: Tensor | float) -> Tensor:
        h = x.reshape(len(x), 1, 4, 4)
        return nn.functional.scaled_dot_product_attention(h, h, h).flatten(1)

    monkeypatch.delattr(torch.autograd, "grad")  # reverse mode
    score, divergence = model.jacobian_product(attention, torch.randn(3, 16, generator=seeded()), 1.0, None)
    assert score.shape == (3, 16)
    assert divergence.shape == (3,)


class Recorder:
    """A network that keeps what it was called with."""

    def __init__(self, net: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.net, self.calls = net, list[tuple[Tensor, Tensor]]()

    def __call__(self, x: Tensor, time: Tensor) -> Tensor:
        self.calls.append((x, time))
        return self.net(x, time)


def test_trained_levels_are_timesteps_and_those_between_have_a_time_between() -> None:
    net = Recorder(networks_of(MIXTURE)["epsilon"])
    model, x = diffusion.from_epsilon(net, ABAR, like=(4,), variance=MIXTURE.variance), points()
    assert model.levels == pytest.approx(SIGMAS.tolist())
    net.calls.clear()
    model.at(float(SIGMAS[417])).score(x)  # type: ignore[misc]
    model.at(float(SIGMAS[417:419].log().mean().exp())).score(x)  # type: ignore[misc]
    assert [call[1].unique().tolist() for call in net.calls] == [[417.0], [pytest.approx(417.5)]]
    assert "1000 timesteps (between two of them the time is interpolated in log sigma)" in str(model)
    assert "timesteps" not in str(model_of("denoiser"))


def test_a_network_of_whole_timesteps_is_mixed_from_two_of_them() -> None:
    """With 40 levels, in either order: exact at them; between them nearer than the nearest."""
    exact, levels = networks_of(MIXTURE)["score by sigma"], annealing.geometric(20.0, 0.02, 40)
    net = Recorder(lambda x, index: exact(x, torch.tensor(levels).double()[index]))
    model, x = diffusion.from_score(net, levels, like=(4,), variance=MIXTURE.variance), points()
    net.calls.clear()
    torch.testing.assert_close(model.at(levels[7]).score(x), MIXTURE.at(levels[7]).score(x))  # type: ignore[misc]
    assert [call[1].unique().tolist() for call in net.calls] == [[7]]
    between = math.sqrt(levels[20] * levels[21])
    true = MIXTURE.at(between).score(x)
    mixed, nearest = model.at(between).score(x), exact(x, levels[20] * torch.ones(len(x)))  # type: ignore[misc]
    errors = [float((found - true).norm() / true.norm()) for found in (mixed, nearest)]
    assert [call[1].unique().tolist() for call in net.calls] == [[7], [20], [21]]
    assert all(call[1].dtype == torch.int64 for call in net.calls)
    assert errors[0] < 0.01 < errors[1]
    assert "outputs are interpolated" in str(model)
    again = diffusion.from_score(
        lambda x, index: exact(x, torch.tensor(levels[::-1]).double()[index]), levels[::-1], variance=MIXTURE.variance
    )
    torch.testing.assert_close(again.at(between).score(x), model.at(between).score(x))  # type: ignore[misc]


def test_a_memory_bound_changes_nothing_but_the_size_of_calls() -> None:
    x, sigma = points(23), torch.logspace(-1, 1, 23).double()
    net = Recorder(networks_of(MIXTURE)["v"])
    bounded = diffusion.from_v(net, ABAR, max_rows=6, variance=MIXTURE.variance)
    whole = model_of("v")
    torch.testing.assert_close(bounded.level_score(x, sigma), whole.level_score(x, sigma), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(bounded.at(0.5).score(x), whole.at(0.5).score(x), rtol=1e-12, atol=1e-12)  # type: ignore[misc]
    assert {len(call[0]) for call in net.calls} <= set(range(1, 7))


class Denoiser(nn.Module):
    """The denoiser of N(0, 1), with a parameter whose dtype its input must have."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))
        self.seen = list[tuple[torch.dtype, torch.dtype]]()

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        self.seen.append((x.dtype, sigma.dtype))
        return x * (self.one / (1 + sigma.reshape(-1, 1, 1, 1) ** 2)).to(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("points_dtype", [torch.float32, torch.float64])
def test_a_network_is_called_in_its_dtype_and_returns_that_of_the_points(
    dtype: torch.dtype, points_dtype: torch.dtype
) -> None:
    net, x = Denoiser().to(dtype), torch.randn(20, 1, 3, 3, generator=seeded()).to(points_dtype)
    score = diffusion.from_denoiser(net, (0.1, 20.0)).at(2.0).score
    assert score is not None
    answer = score(x)
    wide = torch.promote_types(dtype, torch.float32)  # a level keeps its digits
    assert set(net.seen) == {(dtype, wide)}
    assert answer.dtype == points_dtype
    digits = max(torch.finfo(dtype).eps, torch.finfo(points_dtype).eps)
    torch.testing.assert_close(answer, -x / 5, rtol=0, atol=4 * digits)


def test_scores_run_in_inference_mode_and_pass_gradients_outside_of_it() -> None:
    model, x = model_of("epsilon"), points()
    with torch.inference_mode():
        inferred = model.at(0.3).score(x)  # type: ignore[misc]
        model.level_score(x, 0.3)
    x.requires_grad_()
    score = model.at(0.3).score(x)  # type: ignore[misc]
    torch.testing.assert_close(score.detach(), inferred)
    (gradient,) = torch.autograd.grad(score.sum(), x)
    direct = points().requires_grad_()
    (expected,) = torch.autograd.grad(MIXTURE.at(0.3).score(direct).sum(), direct)
    torch.testing.assert_close(gradient, expected)


def test_log_p_through_noise_matches_that_of_the_mixture_when_the_mean_is_known() -> None:
    x, mean = MIXTURE.sample(50, generator=seeded()), (MIXTURE.weights @ MIXTURE.means)
    settings: dict[str, Any] = {"noise_level": 0.1, "mean": mean}
    true = MIXTURE.at(0.1).log_density(x)
    found = diffusion.log_density(model_of("epsilon", **settings), x, nodes=32)
    assert float((found - true).abs().max()) < 0.01
    assert model_of("epsilon", **settings).log_density(x).shape == (50,)
    kernel = metropolis_hastings(model_of("v", **settings), RandomWalk(0.5), ThroughNoise(nodes=16))
    assert 0.05 < sample(kernel, x, draws=3, generator=seeded()).acceptance_rate < 0.95


def test_a_prior_by_a_diffusion_model_has_the_posterior_of_conjugacy() -> None:
    """Normal prior with variance 1 + sigma^2, one observation: the mean is known, and the score vanishes there."""
    normal, sigma = targets.Gaussian(torch.zeros(4).double()), 0.5
    prior = model_of("epsilon", normal).at(sigma)
    observed = torch.tensor([1.0, -2.0, 0.0, 3.0]).double()
    target = targets.posterior(prior, lambda x: -(x - observed).square().sum(1) / 2)
    mean = observed * 1.25 / 2.25
    assert target.score is not None
    torch.testing.assert_close(target.score(mean[None]), torch.zeros(1, 4).double(), rtol=0, atol=1e-9)


def annealed(rule: Rule) -> Tensor:
    """Return the draws of 6,000 chains, annealed from noise to the mixture at level 0.2."""
    corrector = Corrector(model_of("epsilon", GROUPED), lambda sigma: MALA(0.5 * (sigma**2 + 0.3)), rule)
    start, levels = 8 * torch.randn(6000, 2, generator=seeded(1)), annealing.geometric(8.0, 0.2, 12)
    return anneal(corrector.kernel_at, levels, start, steps_per_level=10, final_steps=20, generator=seeded(2)).draws


def deviations(x: Tensor) -> tuple[float, float]:
    """Return the largest z-score of the weights of the modes, and that of the variances within them."""
    blurred = GROUPED.at(0.2)
    true = blurred.sample(100_000, generator=seeded(3))
    weights, variances = [], []
    nearest, truly = (torch.cdist(y, GROUPED.means).argmin(1) for y in (x, true))
    for k in range(3):
        share = float((truly == k).double().mean())
        weights.append((float((nearest == k).double().mean()) - share) / math.sqrt(share * (1 - share) / len(x)))
        found, expected = (y[chosen == k].var(0) for y, chosen in ((x, nearest), (true, truly)))
        noise = expected * math.sqrt(2 / int((nearest == k).sum()))  # of the variance of normal numbers
        variances.append(float(((found - expected) / noise).abs().max()))
    return max(map(abs, weights)), max(variances)


@pytest.mark.slow
def test_annealed_mala_has_the_weights_and_variances_of_the_mixture_and_ula_has_not() -> None:
    """Nine numbers each: |z| above 4.5 comes by chance once in 10^4."""
    weights, variances = deviations(annealed(LineIntegral()))
    assert weights < 4.5
    assert variances < 4.5
    with pytest.warns(annealing.EarlyAnnealingWarning, match="without an accept step, use smaller steps"):
        unadjusted = annealed(Always())
    assert deviations(unadjusted)[1] > 8


@pytest.mark.slow
def test_a_corrector_leaves_the_distribution_of_a_level_as_it_is() -> None:
    """From exact draws, with a long step: the variance stays for MALA, and grows for ULA as its theory says."""
    normal = targets.Gaussian(torch.zeros(2).double())
    x = normal.at(1.0).sample(20_000, generator=seeded())
    for rule, expected in ((LineIntegral(), 2.0), (Always(), 2.0 / (1 - 0.25))):  # h / (2 v) = 1 / 4
        corrector = Corrector(model_of("velocity", normal), 1.0, rule, steps=30)
        moved = corrector(x, torch.tensor(1.0), generator=seeded(1))
        assert abs(float(moved.var()) / expected - 1) < 4.5 * math.sqrt(2 / 40_000)
        assert moved.shape == x.shape
        torch.testing.assert_close(corrector(x, 1.0, generator=seeded(1)), moved, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: diffusion.from_epsilon(nn.Identity(), [0.9, 1.2]), "from 0 to below 1"),
        (lambda: diffusion.from_epsilon(nn.Identity(), [0.5]), "two or more positive noise levels"),
        (lambda: diffusion.from_score(nn.Identity(), [1.0, 3.0, 2.0]), "positive noise levels in order"),
        (lambda: diffusion.from_denoiser(nn.Identity(), (2.0, 1.0)), "an increasing noise range"),
        (lambda: diffusion.from_denoiser(nn.Dropout(0.1)), "in evaluation mode"),
        (lambda: diffusion.from_denoiser(nn.Identity(), variance=-1.0), "variance to be finite and above 0"),
        (lambda: diffusion.from_denoiser(nn.Identity(), max_rows=0), "max_rows of at least 1"),
        (lambda: diffusion.from_denoiser(nn.Identity(), noise_level=1e-5), "a noise level from 0.002 to 80"),
        (lambda: model_of("v").at(1000.0), "a noise level from 0.0100005 to 157.407"),
        (lambda: diffusion.from_denoiser(lambda x, sigma: x[:, :1]).score(points()), "to return shape"),
        (lambda: Corrector(MIXTURE, -1.0), "proposal_at to be finite and above 0"),
    ],
)
def test_what_cannot_be_right_raises_an_error(make: Callable[[], object], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        make()


@pytest.mark.parametrize("net", [nn.Dropout(0.1).eval(), nn.Dropout(0.0), nn.BatchNorm1d(4).eval()], ids=str)
def test_layers_that_return_the_same_twice_are_accepted(net: nn.Module) -> None:
    assert diffusion.from_denoiser(net).noise_range == (0.002, 80.0)


def test_a_timestep_of_pure_noise_has_no_level() -> None:
    model = diffusion.from_v(networks_of(MIXTURE)["v"], [*ABAR.tolist(), 0.0])
    assert model.levels is not None
    assert len(model.levels) == 1000
    assert model.noise_range[1] == pytest.approx(float(SIGMAS[-1]))


def test_an_edm_network_brings_the_variance_of_its_data() -> None:
    net = nn.Identity()
    assert diffusion.from_edm(net).variance == 0.25
    net.sigma_data = 2.0  # type: ignore[assignment]
    assert diffusion.from_edm(net).variance == 4.0
    assert diffusion.from_edm(net, variance=1.0).variance == 1.0


# A network with a wrong adapter gives a warning, a network with the right one does not.


# narrow, as images in [0, 1] are: noise alone cannot distinguish the outputs of networks of N(0, I)
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
    samples = NARROW.sample(300, generator=seeded()).reshape(300, *event)
    net = networks_of(NARROW)[name]
    assert ADAPTERS[name](net, variance=NARROW.variance).check(event) is None
    assert ADAPTERS[name](net).check(event) is None  # the variance left at 1
    assert ADAPTERS[name](net).check(samples) is None


@pytest.mark.parametrize(("adapter", "net"), WRONG)
def test_a_wrong_wrapping_is_detected_and_the_right_one_named(adapter: str, net: str) -> None:
    with pytest.warns(WrappingWarning) as caught:
        ADAPTERS[adapter](networks_of(NARROW)[net], variance=NARROW.variance, like=(16,))
    assert len(caught) == 1
    text = str(caught[0].message)
    if adapter == "score by index" and net in BEYOND_TIMESTEPS:
        assert "nor like any other that scoremh.diffusion supports" in text
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
    return SAMPLED[law].sample(300, generator=seeded())


# Every pair on one law, and on the others in turn.
SHOWN = [(*pair, "unit mixture") for pair in WRONG]
SHOWN += [
    (*pair, law) for pair, law in zip(WRONG, cycle(law for law in SAMPLED if law != "unit mixture"), strict=False)
]


@pytest.mark.parametrize(("adapter", "net", "law"), SHOWN)
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

    normal = torch.randn(300, 8, generator=seeded())
    assert diffusion.from_v(silent, ABAR).check(normal) is None
    assert diffusion.from_v(silent, ABAR).check((8,)) is None  # noise alone cannot tell
    with pytest.warns(WrappingWarning, match="test 'answer'.*Check that it is trained"):
        diffusion.from_v(silent, ABAR).check(samples_of("unit ring"))


@pytest.mark.parametrize("law", SAMPLED)
@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_no_simple_denoiser_is_better_than_the_true_one(law: str, sigma: float) -> None:
    """Beyond what chance does to 300 errors of either; one of the three is never far from the truth here."""
    samples = samples_of(law)
    sigma *= SAMPLED[law].variance ** 0.5
    x = samples + sigma * torch.randn(samples.shape, generator=seeded(1), dtype=samples.dtype)
    score, _ = SAMPLED[law].level_score(x, sigma)
    squares = (x + sigma**2 * score - samples).square().mean(1)
    error, chance = float(squares.mean()), float(squares.std()) / 300**0.5
    for denoise in (model.linear_denoiser, model.wiener, model.kernel):
        assert float((denoise(samples, x, sigma) - samples).square().mean()) > error - chance
    assert model.least_error(samples, x, sigma) < 1.35 * error


def test_copies_of_a_sample_do_not_denoise_it() -> None:
    samples = samples_of("unit ring")[:60]
    x = samples + 0.5 * torch.randn(samples.shape, generator=seeded(1), dtype=samples.dtype)
    once = model.kernel(samples, x, 0.5)
    twice = model.kernel(samples.repeat(2, 1), x.repeat(2, 1), 0.5)
    torch.testing.assert_close(twice[:60], once)


def test_the_check_comes_with_the_first_points_and_only_once() -> None:
    model, x = diffusion.from_score(networks_of(NARROW)["epsilon"], [1.0, 100.0], by="sigma"), torch.randn(3, 16)
    with pytest.warns(WrappingWarning, match="adapted as a score but does not behave like one"):
        model.at(2.0).score(x.double())  # type: ignore[misc]
    with pytest.warns(WrappingWarning) as caught:
        diffusion.from_score(networks_of(NARROW)["epsilon"], [1.0, 100.0], by="sigma", like=(16,))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", WrappingWarning)
        model.at(3.0).score(x.double())  # type: ignore[misc]
        model.level_score(x.double(), 3.0)
    assert issubclass(WrappingWarning, UserWarning)


def test_a_score_that_was_learned_is_not_flagged() -> None:
    g = seeded()
    fit = fit_score(datasets.moons(1000, generator=g), recipe=Recipe(steps=300), generator=g).standard
    assert fit.noise_range is not None
    model = diffusion.from_score(fit.net, fit.noise_range, by="sigma")
    assert model.check((2,)) is None
    x = torch.randn(5, 2, generator=g)
    torch.testing.assert_close(model.at(0.7).score(x), fit.at(0.7).score(x))  # type: ignore[misc]


def test_an_untrained_epsilon_network_is_detected() -> None:
    with pytest.warns(WrappingWarning, match="Check that it is trained"):
        diffusion.from_epsilon(lambda x, t: torch.zeros_like(x), ABAR, like=(16,))


def test_a_wrong_variance_is_named() -> None:
    wide = targets.Gaussian(torch.zeros(2).double(), 9 * torch.eye(2).double())
    with pytest.warns(WrappingWarning, match=r"variance=1 was passed, but the network was trained on about 9: pass"):
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


# Networks of the real library diffusers, and exact functions in their place, by what real schedulers say.


diffusers: Any = pytest.importorskip("diffusers")
DIFFUSERS_LEVELS = 0.05, 0.5, 5.0
EXACT = networks_of(MIXTURE)


@pytest.fixture
def untouched_generator() -> Iterator[None]:
    """Restore the global generator, from which diffusers draws first weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def unet(**options: Any) -> Any:
    """Return a small network with random weights."""
    return diffusers.UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=options.pop("out_channels", 1),
        layers_per_block=1,
        block_out_channels=(8, 8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D",) * 3,
        up_block_types=("UpBlock2D",) * 3,
        **options,
    ).eval()


class Output:
    """The output of networks of diffusers: an object with a sample."""

    def __init__(self, sample: Tensor) -> None:
        self.sample = sample


def exact_of(scheduler: Any) -> dict[str, Net]:
    """Return the exact networks for a scheduler's own abar, which are products in float32."""
    abar = scheduler.alphas_cumprod.double()
    return networks_of(MIXTURE, ((1 - abar) / abar).sqrt())


def assert_exact(model: DiffusionModel, tolerance: float = 1e-9) -> None:
    x = MIXTURE.at(0.5).sample(12, generator=seeded()).reshape(12, 1, 2, 2)
    for sigma in DIFFUSERS_LEVELS:
        score = model.at(sigma).score
        assert score is not None
        true = MIXTURE.at(sigma).score(x.flatten(1)).reshape(x.shape)
        torch.testing.assert_close(score(x), true, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("untouched_generator")
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of diffusers, with numpy 2
@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("name", ["DDPMScheduler", "DDIMScheduler", "EulerDiscreteScheduler"])
def test_schedulers_of_the_kind_of_ddpm(name: str, prediction: str) -> None:
    scheduler = getattr(diffusers, name)(prediction_type=prediction)
    exact = exact_of(scheduler)[{"epsilon": "epsilon", "sample": "x0", "v_prediction": "v"}[prediction]]
    scheduler.set_timesteps(10)  # steps of sampling, which are not those of training
    model = diffusion.from_diffusers(lambda x, t: Output(exact(x, t)), scheduler, variance=MIXTURE.variance)
    assert_exact(model)
    assert model.levels is not None
    assert len(model.levels) == 1000


@pytest.mark.usefixtures("untouched_generator")
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_schedulers_of_the_kind_of_edm(prediction: str) -> None:
    """The network is the one for which the scheduler's own preconditioning gives the exact denoiser."""
    scheduler = diffusers.EDMEulerScheduler(prediction_type=prediction)

    def net(y: Tensor, time: Tensor) -> Output:
        sigma = (4 * time).exp()
        one, zero = torch.ones_like(sigma), torch.zeros_like(sigma)
        x = y / column(scheduler.precondition_inputs(one, sigma), y)
        skip, out = (scheduler.precondition_outputs(*pair, sigma) for pair in ((one, zero), (zero, one)))
        return Output((EXACT["denoiser"](x, sigma) - column(skip, y) * x) / column(out, y))

    model = diffusion.from_diffusers(net, scheduler)
    assert model.variance == 0.25
    assert model.noise_range == (0.002, 80.0)
    assert_exact(model, 1e-8)


@pytest.mark.usefixtures("untouched_generator")
def test_the_scheduler_of_the_variance_exploding_process() -> None:
    scheduler = diffusers.ScoreSdeVeScheduler(sigma_max=50.0)
    model = diffusion.from_diffusers(lambda x, t: Output(EXACT["score by sigma"](x, t)), scheduler)
    assert model.noise_range == (0.01, 50.0)
    assert_exact(model)


@pytest.mark.usefixtures("untouched_generator")
@pytest.mark.parametrize("name", ["FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler"])
def test_schedulers_of_flow_matching_count_time_in_steps(name: str) -> None:
    seen = []

    def net(x: Tensor, time: Tensor) -> Output:
        seen.append(time)
        return Output(EXACT["velocity"](x, time / 1000))

    model = diffusion.from_diffusers(net, getattr(diffusers, name)(shift=3.0), variance=MIXTURE.variance)
    assert_exact(model)
    assert seen[-1].unique().tolist() == [pytest.approx(1000 * 5 / 6)]  # sigma = 5, the last level


@pytest.mark.usefixtures("untouched_generator")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_real_unet_in_any_dtype(dtype: torch.dtype) -> None:
    net, x = unet().to(dtype), torch.randn(3, 1, 8, 8, dtype=torch.float64)
    model = diffusion.from_diffusers(net, diffusers.EDMEulerScheduler(), max_rows=64, probes=2)
    score, divergence = model.level_score(x, 2.0)
    with torch.inference_mode():
        scale = (2.0**2 + 0.25) ** -0.5
        raw = net((x * scale).to(dtype), torch.full((3,), math.log(2.0) / 4)).sample.double()
        alone = model.at(2.0).score(x)  # type: ignore[misc]
    torch.testing.assert_close(alone, -(scale**2) * x + 0.5 * scale / 2 * raw, rtol=1e-6, atol=1e-6)
    # with the divergence, attention is computed by another kernel: as near as the dtype of the network is
    torch.testing.assert_close(score, alone, rtol=0, atol=torch.finfo(dtype).eps)
    with torch.inference_mode():
        torch.testing.assert_close(model.level_score(x.clone(), 2.0)[1], divergence)
    assert divergence.shape == (3,)
    assert not score.requires_grad
    assert score.dtype == torch.float64


@pytest.mark.usefixtures("untouched_generator")
def test_chains_run_on_a_real_unet() -> None:
    model = diffusion.from_diffusers(unet(), diffusers.EDMEulerScheduler(), like=(1, 8, 8))
    corrector = Corrector(model, 0.1, LineIntegral(), steps=2)
    start = 10 * torch.randn(4, 1, 8, 8)
    found = anneal(corrector.kernel_at, annealing.karras(10.0, 0.1, 4), start, steps_per_level=2)
    assert found.draws.isfinite().all()
    assert corrector(found.draws, 0.1).shape == (4, 1, 8, 8)


@pytest.mark.usefixtures("untouched_generator")
def test_an_untrained_unet_is_detected() -> None:
    with pytest.warns(WrappingWarning, match="adapted as an epsilon network but does not behave like one"):
        diffusion.from_diffusers(unet(), diffusers.DDPMScheduler(), like=(1, 8, 8))


@pytest.mark.usefixtures("untouched_generator")
def test_classes_and_guidance() -> None:
    net, x = unet(num_class_embeds=3), torch.randn(5, 1, 8, 8)
    scheduler, time = diffusers.EDMEulerScheduler(), torch.full((5,), math.log(1.5) / 4)
    scale = (1.5**2 + 0.25) ** -0.5
    with torch.inference_mode():
        label, null = (net(x * scale, time, class_labels=torch.full((5,), k)).sample for k in (1, 2))
        for weight in (1.0, 3.0):
            model = diffusion.from_diffusers(net, scheduler, class_label=1, null_label=2, guidance_scale=weight)
            raw = null + weight * (label - null)
            score = model.at(1.5).score
            assert score is not None
            torch.testing.assert_close(score(x), -(scale**2) * x + 0.5 * scale / 1.5 * raw, rtol=1e-4, atol=1e-5)
    assert not label.allclose(null)


@pytest.mark.usefixtures("untouched_generator")
def test_the_half_that_is_a_learned_variance_is_left_out() -> None:
    scheduler = diffusers.DDPMScheduler(variance_type="learned_range")
    exact = exact_of(scheduler)["epsilon"]

    def net(x: Tensor, time: Tensor) -> Output:
        return Output(torch.cat([exact(x, time), torch.ones_like(x)], 1))

    assert_exact(diffusion.from_diffusers(net, scheduler, variance=MIXTURE.variance))


@pytest.mark.usefixtures("untouched_generator")
def test_what_is_not_known_raises_an_error() -> None:
    for scheduler in (diffusers.IPNDMScheduler(), diffusers.DDPMScheduler(prediction_type="other")):
        with pytest.raises(ValueError, match="a scheduler of DDPM type"):
            diffusion.from_diffusers(unet(), scheduler)
    with pytest.raises(TypeError, match="a scheduler of diffusers"):
        diffusion.from_diffusers(unet(), torch.linspace(0, 1, 3))
    with pytest.raises(ValueError, match="two labels for guidance"):
        diffusion.from_diffusers(unet(), diffusers.DDPMScheduler(), class_label=1, guidance_scale=2.0)
    inverted = diffusers.FlowMatchEulerDiscreteScheduler(invert_sigmas=True)
    with pytest.raises(ValueError, match="time that runs from data to noise"):
        diffusion.from_diffusers(unet(), inverted)


# One kind of object: whatever knows the scores of all noise levels serves everything that walks along them.


# two modes off the origin, of weights .7 and .3: the model's mean and variance both matter
MODELS_MIXTURE = targets.GaussianMixture(f64(0.7, 0.3), f64([3.0, 1.0], [-1.0, 1.0]), 0.25 * torch.eye(2).double())
MODELS_EXACT = ["mixture", "diffusion"]  # a fit of 50 steps is not
KINDS = [*MODELS_EXACT, "fit"]


@cache
def model_of_models(kind: str) -> ScoreModel:
    if kind == "mixture":
        return MODELS_MIXTURE
    if kind == "diffusion":
        settings = {
            "mean": MODELS_MIXTURE.event,
            "variance": MODELS_MIXTURE.variance,
            "like": MODELS_MIXTURE.sample(100, generator=seeded()),
        }
        return diffusion.from_denoiser(networks_of(MODELS_MIXTURE)["denoiser"], MODELS_MIXTURE.noise_range, **settings)  # type: ignore[arg-type]
    return fit_score(MODELS_MIXTURE.sample(500, generator=seeded()), recipe=Recipe(steps=50), generator=seeded())


def kernel_at(kind: str, level: float) -> Kernel:
    return metropolis_hastings(model_of_models(kind).standard.at(level), MALA(0.3 * level**2), LineIntegral())


def broad(kind: str, level: float, chains: int) -> Tensor:
    return Sampler(model_of_models(kind)).start(chains, noise_level=level, generator=seeded(1))


def in_data_coordinates(kind: str, u: Tensor) -> Tensor:
    return model_of_models(kind).coordinates(u)  # type: ignore[no-any-return]


def annealed_of_models(kind: str, chains: int, steps: int) -> Tensor:
    levels = annealing.geometric(5.0, 0.3, 10)
    start = broad(kind, 5.0, chains)
    u = anneal(lambda level: kernel_at(kind, level), levels, start, steps_per_level=steps, generator=seeded(2)).draws
    return in_data_coordinates(kind, u)


def flowed(kind: str, chains: int, steps: int) -> Tensor:
    levels = annealing.geometric(5.0, model_of_models(kind).noise_range[0], 4 * steps)  # type: ignore[index]
    start = broad(kind, 5.0, chains)
    return in_data_coordinates(kind, annealing.flow(model_of_models(kind).standard.at, levels, start))


def sampled(kind: str, chains: int, steps: int) -> Tensor:
    sampler = Sampler(model_of_models(kind), noise_level=0.5, step_size=0.1)
    return sampler.sample(chains, annealing_steps=steps, chain_steps=2 * steps, generator=seeded(2)).last


def judged_through_noise(kind: str, chains: int, steps: int) -> Tensor:
    own, u = model_of_models(kind).standard, broad(kind, 0.5, chains)
    proposal = PCN(1.0, scale=(own.variance + 0.5**2) ** 0.5)
    kernel = metropolis_hastings(own.at(0.5), proposal, ThroughNoise())
    return in_data_coordinates(kind, sample(kernel, u, draws=1, thin=4 * steps, generator=seeded(2)).last)


def exchanged(kind: str, chains: int, steps: int) -> Tensor:
    levels = annealing.geometric(5.0, 0.3, 5)
    start = broad(kind, 5.0, chains)
    parts = {"model": model_of_models(kind).standard, "draws": 2, "burn_in": 2 * steps, "generator": seeded(2)}
    found = replica_exchange(lambda level: kernel_at(kind, level), levels, start, **parts)  # type: ignore[arg-type]
    return in_data_coordinates(kind, found.draws[:, -1])


WALKS = {
    "anneal": annealed_of_models,
    "flow": flowed,
    "Sampler": sampled,
    "ThroughNoise": judged_through_noise,
    "replica_exchange": exchanged,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_a_score_model(kind: str) -> None:
    found = model_of_models(kind)
    assert isinstance(found, ScoreModel)
    assert found.event is not None
    assert found.event.shape == found.standard.event.shape == (2,)  # type: ignore[union-attr]


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_walk_serves_every_kind(kind: str, walk: str) -> None:
    x = WALKS[walk](kind, 20, 2)
    assert x.shape == (20, 2)
    assert bool(x.isfinite().all())


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("kind", MODELS_EXACT)
def test_exact_models_give_the_weight_of_the_modes(kind: str, walk: str) -> None:
    """The share of the right mode is .7; 5 standard errors of 800 chains are .08."""
    x = WALKS[walk](kind, 800, 12)
    assert float((x[:, 0] > 1).double().mean()) == pytest.approx(0.7, abs=5 * (0.7 * 0.3 / 800) ** 0.5)
    assert float(x[:, 1].mean()) == pytest.approx(1.0, abs=0.2)


def test_a_model_that_knows_no_event_says_what_to_pass() -> None:
    bare = diffusion.from_denoiser(
        networks_of(MODELS_MIXTURE)["denoiser"], (0.02, 20.0), variance=MODELS_MIXTURE.variance
    )
    with pytest.raises(ValueError, match=r"expected a score with an event shape.*like="):
        Sampler(bare).start(3)
    assert Sampler(bare, like=(2,)).start(3).shape == (3, 2)
    assert Sampler(bare, like=f64([1.0, 2.0])).start(3).dtype == torch.float64
