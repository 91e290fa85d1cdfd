"""Adapters of diffusion networks: exact networks give exact scores, at any level, shape and dtype."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scoremh import (
    MALA,
    Always,
    LineIntegral,
    RandomWalk,
    ThroughNoise,
    anneal,
    annealing,
    diffusion,
    metropolis_hastings,
    sample,
    targets,
)
from scoremh.acceptance import Rule
from scoremh.annealing import Corrector
from scoremh.types import ScoreModel, TargetLike
from tests.diffusion_cases import ABAR, ADAPTERS, MIXTURE, SIGMAS, model_of, networks_of

LEVELS = 0.02, 0.3, 3.0, 30.0
GROUPED = targets.GaussianMixture([0.2, 0.5, 0.3], [[-2.0, 0.0], [1.5, 1.5], [1.0, -2.0]], 0.3 * torch.eye(2))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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
def test_the_divergence_is_that_of_autograd_with_one_level_for_every_chain(name: str) -> None:
    model, x = model_of(name), points(event=(2, 2))
    sigma = torch.logspace(-1, 1, len(x)).double()
    if name == "score by index":  # it knows these levels only; between them its answers are mixed
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
    """The denoiser of N(0, 1), with a parameter that has a dtype, which answers only what has that dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))
        self.seen = list[tuple[torch.dtype, torch.dtype]]()

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        self.seen.append((x.dtype, sigma.dtype))
        return x * (self.one / (1 + sigma.reshape(-1, 1, 1, 1) ** 2)).to(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("points_dtype", [torch.float32, torch.float64])
def test_a_network_is_called_in_its_dtype_and_answers_in_that_of_the_points(
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


def test_log_p_through_noise_is_that_of_the_mixture_when_the_mean_is_known() -> None:
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
    with pytest.warns(annealing.EarlyAnnealingWarning, match="without an accept step, make smaller steps"):
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
        (lambda: diffusion.from_score(nn.Identity(), [1.0, 3.0, 2.0]), "that rise or fall"),
        (lambda: diffusion.from_denoiser(nn.Identity(), (2.0, 1.0)), "a noise range that rises"),
        (lambda: diffusion.from_denoiser(nn.Dropout(0.1)), "in evaluation mode"),
        (lambda: diffusion.from_denoiser(nn.Identity(), variance=-1.0), "variance to be finite and above 0"),
        (lambda: diffusion.from_denoiser(nn.Identity(), max_rows=0), "max_rows of at least 1"),
        (lambda: diffusion.from_denoiser(nn.Identity(), noise_level=1e-5), "a noise level from 0.002 to 80"),
        (lambda: model_of("v").at(1000.0), "a noise level from 0.0100005 to 157.407"),
        (lambda: diffusion.from_denoiser(lambda x, sigma: x[:, :1]).score(points()), "to return shape"),
        (lambda: Corrector(MIXTURE, -1.0), "proposal_at to be finite and above 0"),
    ],
)
def test_what_cannot_be_right_is_refused(make: Callable[[], object], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        make()


@pytest.mark.parametrize("net", [nn.Dropout(0.1).eval(), nn.Dropout(0.0), nn.BatchNorm1d(4).eval()], ids=str)
def test_layers_that_answer_the_same_twice_are_accepted(net: nn.Module) -> None:
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
