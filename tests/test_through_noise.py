"""Scores of all noise levels: divergences in closed form, log p along the noise axis, and decisions by it."""

import math
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import Tensor, nn

from scoremh import (
    MALA,
    PCN,
    Exact,
    LineIntegral,
    MultilevelDenoising,
    RandomWalk,
    Recipe,
    ScoreFit,
    Target,
    ThroughNoise,
    diagnostics,
    diffusion,
    fit_score,
    metropolis_hastings,
    networks,
    sample,
    targets,
)
from scoremh.types import ScoreModel

MEANS = torch.tensor([[-4.0, 0.0], [4.0, 0.0], [0.0, 6.0]]).double()
COVARIANCES = torch.tensor([[[1.0, 0.3], [0.3, 1.0]], [[0.5, 0.0], [0.0, 2.0]], [[2.0, 0.0], [0.0, 0.5]]]).double()
MIXTURE = targets.GaussianMixture(torch.tensor([0.5, 0.3, 0.2]).double(), MEANS, COVARIANCES)
NORMAL = targets.Gaussian(torch.tensor([1.0, -2.0, 0.5]).double(), torch.diag(torch.tensor([1.0, 4.0, 0.5]).double()))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_network(event: int | tuple[int, ...], *, residual: bool) -> networks.NoiseConditionalMLP:
    """Return a network whose last layer is not zero, as it is at first."""
    net = networks.NoiseConditionalMLP(event, hidden=16, residual=residual, generator=seeded()).double()
    nn.init.normal_(net.last.weight, generator=seeded())
    return net.requires_grad_(False)


def trace(score: object, x: Tensor) -> Tensor:
    """Return the trace of a score's Jacobian, by reverse mode and one point at a time."""
    size = x[0].numel()
    rows = [torch.func.jacrev(lambda y: score(y[None])[0])(point).reshape(size, size) for point in x]  # type: ignore[operator]
    return torch.stack([row.diagonal().sum() for row in rows])


@pytest.fixture(scope="module")
def fit() -> ScoreFit:
    samples = MIXTURE.sample(2000, generator=seeded(1)).float()
    return fit_score(samples, recipe=Recipe(steps=2000), generator=seeded(2))


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("event", [3, (2, 2)])
def test_a_network_has_its_divergence_in_closed_form(event: int | tuple[int, ...], residual: bool) -> None:
    net, x = random_network(event, residual=residual), torch.randn(6, *torch.ones(event).shape, generator=seeded())
    x, sigma = x.double(), torch.linspace(0.1, 3.0, 6).double()
    score, divergence = net.level_score(x, sigma)
    torch.testing.assert_close(score, net(x, sigma), rtol=1e-12, atol=1e-12)
    each = torch.cat(
        [trace(lambda y, level=level: net(y, level), row[None]) for row, level in zip(x, sigma, strict=True)]
    )
    torch.testing.assert_close(divergence, each, rtol=1e-10, atol=1e-10)
    by_tangents = diffusion.level_score(net, x, sigma)
    torch.testing.assert_close(by_tangents, (score, divergence), rtol=1e-10, atol=1e-10)


def test_hutchinson_with_all_signs_is_exact_and_the_probes_are_fixed() -> None:
    net, x = random_network(2, residual=False), torch.randn(4, 2, generator=seeded()).double()
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double() / math.sqrt(2)
    torch.testing.assert_close(net.level_score(x, 0.5, signs)[1], net.level_score(x, 0.5)[1])
    probes = [diffusion.random_directions(5, x, 3) for _ in range(2)]
    torch.testing.assert_close(*probes, rtol=0, atol=0)
    assert probes[0].abs().allclose(torch.tensor(1 / math.sqrt(3)).double())


@pytest.mark.parametrize("target", [MIXTURE, NORMAL], ids=["mixture", "normal"])
def test_normal_mixtures_are_blurred_in_closed_form(target: targets.GaussianMixture | targets.Gaussian) -> None:
    x = target.sample(20, generator=seeded()) + 1
    score, divergence = target.level_score(x, 0.7)
    blurred = target.at(0.7)
    torch.testing.assert_close(score, blurred.score(x))
    torch.testing.assert_close(divergence, trace(blurred.score, x))
    levels = torch.linspace(0.1, 2.0, 20).double()
    each = torch.cat([target.at(float(level)).score(row[None]) for row, level in zip(x, levels, strict=True)])
    torch.testing.assert_close(target.level_score(x, levels)[0], each)
    assert isinstance(target, ScoreModel)


def test_blurring_adds_noise() -> None:
    """The sampler of the blurred distribution and noise on draws agree, by the log density that both have."""
    draws = MIXTURE.sample(20_000, generator=seeded()) + 0.7 * torch.randn(20_000, 2, generator=seeded(1)).double()
    again = MIXTURE.at(0.7).sample(20_000, generator=seeded(2))
    means = [MIXTURE.at(0.7).log_density(x) for x in (draws, again)]
    assert abs(float(means[0].mean() - means[1].mean())) < 5 * float(means[0].std()) / 100


@pytest.mark.parametrize("path", ["radial", "fixed"])
def test_a_normal_distribution_is_exact_with_any_number_of_nodes(path: diffusion.Path) -> None:
    normal = targets.Gaussian(torch.tensor([3.0, -1.0]).double(), 4 * torch.eye(2).double())
    x = normal.sample(50, generator=seeded())
    found = diffusion.log_density(normal, x, nodes=1, path=path)
    torch.testing.assert_close(found, normal.at(normal.noise_level).log_density(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("path", "nodes", "error"), [("radial", 16, 0.005), ("fixed", 24, 0.002), ("radial", 32, 1e-5)]
)
def test_log_p_of_a_mixture_converges(path: diffusion.Path, nodes: int, error: float) -> None:
    x = MIXTURE.sample(500, generator=seeded())
    true = MIXTURE.at(MIXTURE.noise_level).log_density(x)
    assert float((diffusion.log_density(MIXTURE, x, nodes=nodes, path=path) - true).abs().max()) < error


def test_a_change_of_the_level_is_the_difference_of_two_log_densities() -> None:
    x = MIXTURE.sample(200, generator=seeded())
    found = diffusion.log_density_change(MIXTURE, x, 0.5, 0.8, nodes=6)
    torch.testing.assert_close(
        found, MIXTURE.at(0.8).log_density(x) - MIXTURE.at(0.5).log_density(x), atol=1e-6, rtol=0
    )


def test_every_chain_may_have_levels_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    x = MIXTURE.sample(6, generator=seeded())
    low, high = torch.linspace(0.1, 0.6, 6).double(), torch.linspace(0.7, 3.0, 6).double()
    each = [
        diffusion.log_density_change(MIXTURE, row[None], float(a), float(b))
        for row, a, b in zip(x, low, high, strict=True)
    ]
    monkeypatch.setattr(import_module("scoremh.diffusion.log_density"), "MAX_CALL_NUMBERS", 48)  # four rows a call
    torch.testing.assert_close(diffusion.log_density_change(MIXTURE, x, low, high), torch.cat(each))


def test_a_fit_answers_through_its_whitening(fit: ScoreFit) -> None:
    x = MIXTURE.sample(10, generator=seeded(3)).float()
    score, divergence = fit.level_score(x, 0.3)
    torch.testing.assert_close(score, fit.at(0.3).score(x))  # type: ignore[misc]
    torch.testing.assert_close(divergence, trace(fit.at(0.3).score, x), rtol=1e-4, atol=1e-4)
    assert isinstance(fit, ScoreModel)
    assert isinstance(fit.standard, ScoreModel)


def test_log_p_of_a_fit_is_that_of_u_and_a_volume(fit: ScoreFit) -> None:
    assert fit.log_density is not None
    x = MIXTURE.sample(10, generator=seeded(3)).float()
    inside = diffusion.log_density(fit.standard, fit.coordinates.inverse(x))
    torch.testing.assert_close(fit.log_density(x), inside - fit.coordinates.log_det(x))


def test_log_p_of_a_fit_is_normalised_and_near_the_truth(fit: ScoreFit) -> None:
    assert fit.log_density is not None
    axis = torch.linspace(-12, 14, 300)
    cells = torch.cartesian_prod(axis, axis)
    total = float(fit.log_density(cells).double().exp().sum()) * float(axis[1] - axis[0]) ** 2
    assert total == pytest.approx(1, abs=0.1)
    x = MIXTURE.sample(2000, generator=seeded(3))
    error = fit.log_density(x.float()).double() - MIXTURE.log_density(x)
    assert float(error.square().mean().sqrt()) < 0.5


def test_calls_are_divided_without_a_change(fit: ScoreFit, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fit.log_density is not None
    x = MIXTURE.sample(50, generator=seeded(3)).float()
    whole = fit.log_density(x)
    monkeypatch.setattr(import_module("scoremh.diffusion.log_density"), "MAX_CALL_NUMBERS", 100)
    torch.testing.assert_close(fit.log_density(x), whole, rtol=1e-5, atol=1e-5)


def test_chains_with_a_learned_score_find_the_weights_that_line_integrals_miss(fit: ScoreFit) -> None:
    proposal = PCN(1.0, mean=fit.coordinates.mean, covariance=fit.covariance)  # type: ignore[arg-type]
    start = (fit.coordinates.mean + torch.randn(1000, 2, generator=seeded())).clamp(fit.support.low, fit.support.high)  # type: ignore[operator]
    shares = {}
    for rule in (ThroughNoise(), LineIntegral("gauss", nodes=16)):
        x = sample(metropolis_hastings(fit, proposal, rule), start, draws=1, thin=60, generator=seeded(5)).last.double()
        nearest = torch.cdist(x, MEANS).argmin(1)
        shares[rule] = nearest.bincount(minlength=3) / len(x)
    true = torch.tensor([0.5, 0.3, 0.2])
    distances = [float((share - true).abs().sum() / 2) for share in shares.values()]
    assert distances[0] < 0.1
    assert distances[1] > 2 * distances[0]


@pytest.mark.parametrize("rule", [ThroughNoise(nodes=24), ThroughNoise(nodes=24, integrate_below=0.5)])
@pytest.mark.parametrize("proposal", [RandomWalk(3.0), MALA(0.3)])
def test_the_rule_leaves_an_exact_mixture_invariant(rule: ThroughNoise, proposal: RandomWalk | MALA) -> None:
    kernel = metropolis_hastings(MIXTURE, proposal, rule)
    assert diagnostics.stationarity(kernel, MIXTURE, chains=4000, generator=seeded(7)).p_value > 1e-4


def test_the_test_refuses_too_few_nodes() -> None:
    kernel = metropolis_hastings(MIXTURE, RandomWalk(3.0), ThroughNoise(nodes=2))
    assert diagnostics.stationarity(kernel, MIXTURE, chains=4000, generator=seeded(7)).p_value < 1e-6


def test_short_moves_are_integrated_and_long_ones_are_not() -> None:
    rule = ThroughNoise(nodes=24, integrate_below=0.5)
    kernel = metropolis_hastings(MIXTURE, RandomWalk(1.0), rule)
    point = kernel.init(MIXTURE.sample(200, generator=seeded()))
    _, move = kernel.step(point, generator=seeded(1))
    there = MIXTURE.at(MIXTURE.noise_level)
    through = there.log_density(move.proposed) - there.log_density(point.x)
    line = metropolis_hastings(MIXTURE, RandomWalk(1.0), LineIntegral()).step(point, generator=seeded(1))[1].log_accept
    short = (move.proposed - point.x).norm(dim=1) < 0.5
    assert 0 < int(short.sum()) < 200
    torch.testing.assert_close(move.log_accept[short], line[short], atol=1e-9, rtol=0)
    torch.testing.assert_close(move.log_accept[~short], through[~short].clamp(max=0), atol=1e-3, rtol=0)


def test_exact_accepts_a_fit_and_says_which_density_it_uses(fit: ScoreFit) -> None:
    kernel = metropolis_hastings(fit, MALA(0.1), Exact())
    assert "through noise" in kernel.description
    assert "through noise" not in metropolis_hastings(MIXTURE, MALA(0.1), Exact()).description


def test_a_product_integrates_the_score_of_a_fit(fit: ScoreFit) -> None:
    assert not isinstance(targets.product(fit, fit), targets.Product)


def test_a_level_of_a_fit_is_judged_at_that_level(fit: ScoreFit) -> None:
    kernel = metropolis_hastings(fit.at(1.0), RandomWalk(1.0), ThroughNoise())
    x = MIXTURE.sample(5, generator=seeded(3)).float()
    found = kernel.init(x).log_density
    torch.testing.assert_close(found, diffusion.log_density(replace(fit, noise_level=1.0), x))


def test_a_truncated_fit_keeps_its_levels(fit: ScoreFit) -> None:
    half = targets.truncate(fit, lambda x: x[:, 0] > 0)
    x = MIXTURE.sample(200, generator=seeded(3)).float().abs()
    chains = sample(metropolis_hastings(half, RandomWalk(2.0), ThroughNoise()), x, draws=10, generator=seeded(4))
    assert bool((chains.draws[..., 0] > 0).all())
    assert int(chains.outside.sum()) > 0
    assert not isinstance(targets.product(half, half), targets.Product)


def test_the_cost_of_log_p_is_counted(fit: ScoreFit) -> None:
    x = MIXTURE.sample(10, generator=seeded(3)).float()
    for rule in (ThroughNoise(), Exact()):
        kernel = metropolis_hastings(fit.standard, RandomWalk(0.5), rule)
        chains = sample(kernel, fit.coordinates.inverse(x), draws=5, generator=seeded(4))
        assert chains.score_calls == 5 * 10 * 8 * (1 + 2)
        assert kernel.step(kernel.init(fit.coordinates.inverse(x)), generator=seeded(4))[1].score_calls == 10 * 8 * 3


def test_a_target_of_one_level_is_refused() -> None:
    with pytest.raises(ValueError, match=r"knows the scores of all noise levels.*LineIntegral"):
        metropolis_hastings(Target(score=lambda x: -x), RandomWalk(1.0), ThroughNoise())


def test_a_score_without_levels_has_no_density(fit: ScoreFit) -> None:
    alone = replace(fit, noise_range=None, noise_level=None)
    assert alone.log_density is None
    with pytest.raises(ValueError, match="knows noise levels"):
        metropolis_hastings(alone, RandomWalk(1.0), ThroughNoise())


def test_levels_that_were_not_learned_are_refused(fit: ScoreFit) -> None:
    with pytest.raises(ValueError, match="as learned"):
        metropolis_hastings(replace(fit, noise_level=1e-3), RandomWalk(1.0), ThroughNoise())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"nodes": 0}, "nodes"), ({"path": "straight"}, "path"), ({"integrate_below": -1.0}, "integrate_below")],
)
def test_bad_parameters_are_refused(arguments: dict[str, object], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        ThroughNoise(**arguments)  # type: ignore[arg-type]


def test_other_networks_and_heavy_tails_go_the_general_way() -> None:
    class Plain(nn.Module):
        """A score of x and a level that is none of our networks."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
            level = torch.as_tensor(sigma, dtype=x.dtype).reshape(-1, 1)
            score: Tensor = (self.linear(x).tanh() - x) / (1 + level.square())
            return score

    samples = targets.StudentT(5.0, [0.0, 0.0]).sample(500, generator=seeded()).float()
    loss, recipe = MultilevelDenoising(), Recipe(steps=20, check_every=10)
    learned = fit_score(samples, loss, Plain(), heavy_tails=True, recipe=recipe, generator=seeded())
    x = samples[:5]
    score, divergence = learned.level_score(x, 0.5)
    torch.testing.assert_close(divergence, trace(lambda y: learned.net(y, 0.5), x), rtol=1e-3, atol=1e-3)
    assert learned.log_density is not None
    assert learned.log_density(x).isfinite().all()
    assert score.shape == x.shape
