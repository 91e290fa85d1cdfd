"""Losses of score matching, and `fit_score`."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from scoremh import (
    MALA,
    DenoisingScoreMatching,
    DivergenceError,
    ImplicitScoreMatching,
    LineIntegral,
    MultilevelDenoising,
    Recipe,
    ScoreFit,
    SlicedScoreMatching,
    datasets,
    fit_score,
    metropolis_hastings,
    sample,
    score_matching,
    targets,
)
from scoremh.networks import InCoordinates, NoiseConditionalMLP, ScoreMLP
from scoremh.score_matching import best_noise_level, posterior_mean
from scoremh.training import Loss, train
from tests.cases import f64, seeded

LOSSES: list[Loss] = [
    ImplicitScoreMatching(),
    SlicedScoreMatching(),
    SlicedScoreMatching(variance_reduced=False),
    SlicedScoreMatching(projections=3),
    DenoisingScoreMatching(0.3),
]


def network(event: int | tuple[int, ...], hidden: int = 16) -> ScoreMLP:
    return ScoreMLP(event, hidden, generator=seeded()).double()


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
    net = NoiseConditionalMLP(2, generator=seeded())
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
    many = MultilevelDenoising(sigma, sigma * (1 + 1e-12), variance_reduced=False).loss(Levelled(net), x, generator=g)
    g = seeded(1)
    torch.rand(100, generator=g, dtype=torch.float64)  # the levels
    one = DenoisingScoreMatching(sigma).loss(net, x, generator=g)
    torch.testing.assert_close(many, (1 + sigma**2) * one, atol=1e-9, rtol=1e-9)


def test_the_posterior_mean_is_bayes_rule() -> None:
    x = 100 + torch.randn(7, 3, generator=seeded(), dtype=torch.float64)
    sigma = torch.tensor([0.02, 0.3, 1.0, 5.0], dtype=torch.float64)
    noisy = x[:4] + sigma[:, None] * torch.randn(4, 3, generator=seeded(1), dtype=torch.float64)
    parts = [
        targets.Gaussian(one, std**2 * torch.eye(3).double()).log_density(noisy).exp() for std in sigma for one in x
    ]
    weights = torch.stack(parts).reshape(4, 7, 4).diagonal(dim1=0, dim2=2).mT  # at every point, by its own level
    expected = weights @ x / weights.sum(1, keepdim=True)
    torch.testing.assert_close(posterior_mean(noisy, sigma, x), expected, atol=1e-9, rtol=1e-9)


FALSE_ALARM_RATE = 1e-4


@pytest.mark.parametrize("right", [True, False], ids=["ours", "half the variance"])
def test_less_variance_leaves_the_mean_of_the_gradient(right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hotelling's test of two means of gradients, in two parameters."""
    if not right:
        exact = posterior_mean
        monkeypatch.setattr(score_matching, "posterior_mean", lambda y, sigma, x: exact(y, sigma / 2**0.5, x))
    data, g = datasets.moons(500, generator=seeded()).double(), seeded(1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.tensor([0.7, 0.2], dtype=torch.float64))

        def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
            score: Tensor = -(self.weights[0] * x + self.weights[1] * x.flip(1).tanh()) / (1 + sigma[:, None].square())
            return score

    net = Net()

    def gradients(loss: Loss, batch: int) -> Tensor:
        batches = data[torch.randint(len(data), (1000, batch), generator=g)]
        each = [torch.autograd.grad(loss.loss(net, x, generator=g), net.weights)[0] for x in batches]
        return torch.stack(each)

    reduced, plain = (gradients(MultilevelDenoising(0.1, 5.0, variance_reduced=v), 16) for v in (True, False))
    assert not right or reduced.var(0).sum() < plain.var(0).sum()
    difference = reduced.mean(0) - plain.mean(0)
    statistic = difference @ torch.linalg.solve((reduced.T.cov() + plain.T.cov()) / 1000, difference)
    p_value = float(torch.special.gammaincc(torch.ones(()), statistic.float() / 2))  # chi-squared with 2 degrees
    assert (p_value > FALSE_ALARM_RATE) == right


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


# `fit_score`: what it learns, in which coordinates, and in which files it is kept.


SHORT = Recipe(steps=60, check_every=30, batch=64)


@pytest.fixture(scope="module")
def banana() -> tuple[ScoreFit, Tensor]:
    x = targets.Banana().sample(4000, generator=seeded())
    return fit_score(x, recipe=Recipe(steps=2000), generator=seeded(1)), x


def test_few_samples_are_learned_in_fewer_steps() -> None:
    assert [score_matching.recipe_for(rows).steps for rows in (400, 3600, 100_000)] == [1000, 3000, 3000]


@pytest.mark.slow
def test_a_rate_that_rises_slowly_does_not_leave_the_score_linear() -> None:
    g = seeded(1)
    x = torch.cat([datasets.moons(10_000, generator=g), 0.3 * torch.randn(10_000, 6, generator=g)], 1)
    held_out = fit_score(x, generator=g).history["held_out"]
    assert held_out[-1] < 0.98 * held_out[0]  # it stays at its first value if the rate rises in 8 % of the steps


@pytest.mark.slow
def test_the_defaults_learn_a_score(banana: tuple[ScoreFit, Tensor]) -> None:
    fit, _ = banana
    law = targets.Banana()
    fresh = law.sample(20_000, generator=seeded(2))
    true = law.score(fresh)
    error = (fit.score(fresh) - true).square().sum(1).mean() / true.square().sum(1).mean()
    assert error < 0.1  # a tenth of the samples of docs/scores.md
    standard = -(fresh - fresh.mean(0)) / fresh.var(0)  # what a normal law with the same moments would say
    assert error < 0.2 * (standard - true).square().sum(1).mean() / true.square().sum(1).mean()
    assert "NoiseConditionalMLP" in str(fit)
    assert "held-out loss" in str(fit)


@pytest.mark.slow
def test_a_fit_is_a_target(banana: tuple[ScoreFit, Tensor]) -> None:
    fit, x = banana
    kernel = metropolis_hastings(fit, MALA(0.3), LineIntegral())
    chains = sample(kernel, x[:200], draws=50, generator=seeded())
    assert 0.4 < chains.acceptance_rate < 1
    assert bool(fit.support(chains.draws.flatten(0, 1)).all())
    assert bool(fit.support(x).all())
    assert not bool(fit.support(x + 1.2 * (x.amax(0) - x.amin(0))).any())  # its box is that of the data, not the plane


@pytest.mark.slow
def test_a_saved_fit_comes_back(banana: tuple[ScoreFit, Tensor], tmp_path: Path) -> None:
    fit, x = banana
    fit.save(tmp_path / "score.safetensors")
    again = ScoreFit.load(tmp_path / "score.safetensors")
    assert torch.equal(fit.score(x), again.score(x))
    assert str(fit) == str(again)
    assert (again.history, again.recipe, again.seed) == (fit.history, fit.recipe, fit.seed)
    assert torch.equal(again.support.low, fit.support.low)
    with safe_open(tmp_path / "score.safetensors", framework="pt") as file:
        header = json.loads(file.metadata()["scoremh.ScoreFit"])
    assert set(header["versions"]) == {"python", "torch", "scoremh"}


def test_a_fit_of_ones_own_network_is_saved_too(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self, size: int = 2) -> None:
            super().__init__()
            self.line = nn.Linear(size, size)

        def forward(self, x: Tensor) -> Tensor:
            answer: Tensor = self.line(x)
            return answer

    x = torch.randn(200, 2, generator=seeded())
    fit = fit_score(x, net=Own(), recipe=SHORT, generator=seeded())
    assert fit.loss == "ImplicitScoreMatching()"
    fit.save(tmp_path / "own")
    assert torch.equal(ScoreFit.load(tmp_path / "own", net=Own()).score(x), fit.score(x))
    with pytest.raises(
        ValueError, match=r"in .*own, got a network of class Own\. Pass the network: load\(path, net=Own"
    ):
        ScoreFit.load(tmp_path / "own")
    with pytest.raises(
        ValueError, match=r"a net with the weights of .*own, got a different one \(.*size mismatch for net\.line"
    ):
        ScoreFit.load(tmp_path / "own", net=Own(3))


def test_what_is_not_a_fit_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    save_file({"x": torch.zeros(2)}, tmp_path / "other")
    for name in ("text", "other"):
        with pytest.raises(ValueError, match=r"expected a file that ScoreFit\.save wrote"):
            ScoreFit.load(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        fit_score(torch.randn(50, 2), recipe=SHORT).save(tmp_path / "missing" / "score")


def test_the_same_seed_gives_the_same_weights_and_the_global_generator_is_untouched() -> None:
    x = torch.randn(200, 2, generator=seeded())
    before = torch.get_rng_state()
    a, b, c = (fit_score(x, recipe=SHORT, generator=seeded(seed)).score(x) for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("event", [(2,), (1, 8, 8)])
def test_any_dtype_and_event(dtype: torch.dtype, event: tuple[int, ...]) -> None:
    x = torch.randn(100, *event, generator=seeded(), dtype=dtype)
    score = fit_score(x, recipe=SHORT, generator=seeded()).score(x)
    assert score.shape == x.shape
    assert score.dtype == dtype
    assert not score.requires_grad


def test_images_may_have_pixels_that_are_always_dark() -> None:
    x = datasets.digits()
    assert (x == x[0]).all(0).any()
    fit = fit_score(x, recipe=SHORT, generator=seeded())
    assert fit.score(x[:3]).isfinite().all()
    assert bool(fit.support(x + 0.01 * torch.randn(x.shape, generator=seeded())).all())
    with pytest.raises(ValueError, match="a constant at"):
        fit_score(x, SlicedScoreMatching(), recipe=SHORT)


def test_samples_may_carry_a_graph() -> None:
    x = torch.randn(100, 2, generator=seeded(), requires_grad=True)
    assert not fit_score(2 * x, recipe=SHORT, generator=seeded()).score(x).isnan().any()


class Takes3(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1]


GOOD = torch.randn(100, 2, generator=seeded())


BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "too few": (lambda: fit_score(GOOD[:5]), ValueError, "at least 8 samples, got 5 samples"),
    "constant": (lambda: fit_score(torch.cat([GOOD, torch.ones(100, 1)], 1)), ValueError, r"a constant at \[2\]"),
    "nan": (lambda: fit_score(GOOD.log()), ValueError, "NaN or inf"),
    "integers": (lambda: fit_score(GOOD.int()), TypeError, "floating"),
    "no level": (lambda: fit_score(GOOD, MultilevelDenoising(), ScoreMLP(2)), TypeError, "of x alone"),
    "a level": (lambda: fit_score(GOOD, ImplicitScoreMatching(), NoiseConditionalMLP(2)), TypeError, "x and a level"),
    "shape": (lambda: fit_score(GOOD, net=Takes3()), ValueError, r"net\(x\) to be a float32 tensor of shape \(2, 2\)"),
    "dtype": (lambda: fit_score(GOOD.double(), net=ScoreMLP(2)), ValueError, "a net for a float64 tensor of shape"),
    "size": (lambda: fit_score(GOOD, net=ScoreMLP(3)), ValueError, "a net for a float32 tensor of shape"),
    "levels": (lambda: MultilevelDenoising(1.0, 0.5), ValueError, "low below high"),
    "std": (lambda: DenoisingScoreMatching(0.0), ValueError, "finite and above 0"),
    "projections": (lambda: SlicedScoreMatching(projections=0), ValueError, "at least 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_raises_an_error(case: str) -> None:
    make, error, match = BAD[case]
    with pytest.raises(error, match=match):
        make()


def test_standardised_fits_do_not_depend_on_the_units() -> None:
    """Score of c x + m is that of x over c: the same bits in, up to rounding."""
    x = torch.randn(500, 2, generator=seeded(), dtype=torch.float64) ** 3
    a = fit_score(x, recipe=SHORT, generator=seeded(1))
    b = fit_score(1000 * x + 7, recipe=SHORT, generator=seeded(1))
    assert isinstance(a.net, InCoordinates)
    torch.testing.assert_close(a.score(x), 1000 * b.score(1000 * x + 7), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("heavy_tails", [False, True])
@pytest.mark.parametrize("standardize", [False, True])
def test_a_fit_has_its_score_in_the_coordinates_of_its_network(*, standardize: bool, heavy_tails: bool) -> None:
    """There it is the network inside; its score in x is that one, pushed through the coordinates."""
    x = torch.randn(200, 2, generator=seeded(), dtype=torch.float64) @ f64([2.0, 0.0], [1.0, 0.5]) + 3
    options = {"standardize": standardize, "heavy_tails": heavy_tails, "recipe": SHORT, "generator": seeded(1)}
    fit = fit_score(x, MultilevelDenoising(), **options)  # type: ignore[arg-type]
    u = fit.coordinates.inverse(x)
    torch.testing.assert_close(fit.coordinates(u), x)
    inside, outside = fit.standard.at(0.3).score, fit.at(0.3).score
    assert inside is not None
    assert outside is not None
    torch.testing.assert_close(outside(x), fit.coordinates.push_score(inside(u), u))
    net = fit.net.net if isinstance(fit.net, InCoordinates) else fit.net
    assert torch.equal(inside(u), net(u, 0.3))
    assert isinstance(net, NoiseConditionalMLP)
    if not (standardize or heavy_tails):
        assert torch.equal(u, x)
    if standardize:
        torch.testing.assert_close(u.T.cov(correction=0), torch.eye(2).double(), atol=1e-10, rtol=0)


@pytest.mark.parametrize("heavy_tails", [False, True])
@pytest.mark.parametrize("standardize", [False, True])
def test_a_saved_fit_has_its_coordinates(tmp_path: Path, *, standardize: bool, heavy_tails: bool) -> None:
    x = torch.randn(100, 2, generator=seeded())
    fit = fit_score(x, standardize=standardize, heavy_tails=heavy_tails, recipe=SHORT, generator=seeded(1))
    fit.save(tmp_path / "fit.safetensors")
    again = ScoreFit.load(tmp_path / "fit.safetensors")
    assert torch.equal(again.score(x), fit.score(x))
    assert str(again.coordinates) == str(fit.coordinates)
    assert torch.equal(again.coordinates.inverse(x), fit.coordinates.inverse(x))
    assert again.noise_level == fit.noise_level


@pytest.mark.slow
def test_with_residual_layers_a_flat_direction_is_learned_beside_a_bent_one() -> None:
    """On Swiss roll the second coordinate is uniform on [0, 21], apart from noise. Plain layers never see its ends."""
    x = datasets.swiss_roll(10_000, generator=seeded())
    spread, level = float(x[:, 1].std()), 0.5
    width = math.hypot(level * spread, 0.5)
    y = datasets.swiss_roll(2000, generator=seeded(1)) + level * spread * torch.randn(2000, 3, generator=seeded(2))
    normal = torch.distributions.Normal(0.0, 1.0)
    ends = [(y[:, 1] - end) / width for end in (0.0, 21.0)]
    true = (normal.log_prob(ends[0]).exp() - normal.log_prob(ends[1]).exp()) / width
    true = true / (normal.cdf(ends[0]) - normal.cdf(ends[1]))
    errors = []
    for residual in (True, False):
        net = NoiseConditionalMLP(3, residual=residual, generator=seeded())
        fit = fit_score(x, net=net, recipe=Recipe(2000), generator=seeded(3))
        learned = fit.net(y, level)[:, 1]
        errors.append(float((learned - true).square().mean() / true.square().mean()) ** 0.5)
    assert errors[0] < 0.25 < 0.4 < errors[1]


@pytest.mark.slow
def test_a_heavy_tail_is_learned_in_coordinates_that_make_it_light(tmp_path: Path) -> None:
    """Where samples are rare the score has to come from the shape of the tail: -(1 + 1 / xi) / x.

    On four other seeds 100,000 samples gave it within 3 % at the 99.9 % quantile, beyond which 100 of them lie.
    """
    law = targets.GeneralizedExtremeValue(0.5)
    x = law.sample(100_000, generator=seeded())
    far = torch.tensor([[((-math.log(0.999)) ** -0.5 - 1) / 0.5]])  # the 99.9 % quantile
    true = law.score(far)
    errors = {}
    for heavy in (False, True):
        fit = fit_score(x, heavy_tails=heavy, recipe=Recipe(steps=2000), generator=seeded(1))
        errors[heavy] = float((fit.score(far) - true).abs() / true.abs())
    assert errors[True] < 0.1
    assert errors[True] < errors[False] / 5
    fit.save(tmp_path / "heavy.safetensors")
    again = ScoreFit.load(tmp_path / "heavy.safetensors")
    assert torch.equal(again.score(x), fit.score(x))
    assert "ScoreMLP" in str(again)
    assert again.middle == fit.middle
