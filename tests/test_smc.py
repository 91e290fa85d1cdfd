"""Sequential Monte Carlo over noise levels, and the likelihoods that lead it: closed forms, laws, wrong twins."""

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional

from scoremh import (
    MALA,
    Always,
    Exact,
    LineIntegral,
    MultilevelDenoising,
    Point,
    RandomWalk,
    Recipe,
    Rule,
    Target,
    annealing,
    diffusion,
    fit_score,
    metropolis_hastings,
    smc,
    targets,
)
from scoremh.annealing import Particles
from scoremh.annealing.smc import effective_share, family_error, systematic
from scoremh.coordinates import Affine
from scoremh.targets import LinearObservation, Posterior
from scoremh.types import Kernel, TargetLike
from tests.cases import f64, seeded

MODULE = importlib.import_module("scoremh.annealing.smc")
PRIOR = targets.Gaussian(f64(0.5, -1.0, 0.0), f64(1.0, 2.0, 0.5).diag())
A, Y, STD = f64([1.0, 0.5, -0.3], [0.2, -1.0, 0.8]), f64(1.0, -2.0), 0.3
GAUSSIAN = targets.posterior(PRIOR, targets.linear_observation(A, Y, STD))
LOG_EVIDENCE = float(
    torch.distributions.MultivariateNormal(
        A @ PRIOR.mean, A @ PRIOR.covariance @ A.mT + STD**2 * torch.eye(2).double()
    ).log_prob(Y)
)
MIXTURE = targets.GaussianMixture(f64(0.1, 0.9), f64([-4.0, 0.0], [4.0, 1.0]))
POSTERIOR_OF_MIXTURE = targets.posterior(MIXTURE, targets.linear_observation(f64([1.0, 0.3]), f64(-4.0), std=3.0))


# linear observations


BLUR = f64([[[[0.2, 0.5, 0.3], [0.0, 1.0, 0.1], [0.4, 0.0, 0.0]]]])


def blurred(x: Tensor) -> Tensor:
    return functional.conv2d(x[:, None], BLUR[0].to(x), padding=1)[:, 0]


def blurred_back(y: Tensor) -> Tensor:
    return functional.conv_transpose2d(y[:, None], BLUR[0].to(y), padding=1)[:, 0]


MASK = torch.tensor([[True, False, True], [False, True, True]])
OBSERVATIONS: dict[str, tuple[LinearObservation, Tensor, Tensor, Tensor]] = {  # with A, y and the diagonal of S^1/2
    "matrix": (targets.linear_observation(A, Y, STD), A, Y, f64(STD, STD)),
    "a std for each": (targets.linear_observation(A, Y, f64(0.3, 2.0)), A, Y, f64(0.3, 2.0)),
    "mask": (
        targets.linear_observation(MASK, f64(1.0, 2.0, 3.0, 4.0), 0.5),
        torch.eye(6).double()[MASK.flatten()],
        f64(1.0, 2.0, 3.0, 4.0),
        f64(0.5, 0.5, 0.5, 0.5),
    ),
    "blur": (
        targets.linear_observation(blurred, torch.arange(20.0).reshape(4, 5).double(), 0.5, adjoint=blurred_back),
        blurred(torch.eye(20).double().reshape(20, 4, 5)).flatten(1).mT,
        torch.arange(20.0).double(),
        torch.full((20,), 0.5).double(),
    ),
}


@pytest.mark.parametrize("shape", ["number", "diagonal", "matrix"])
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_a_linear_observation_and_its_bridge_are_the_closed_form(name: str, shape: str) -> None:
    """Density, score and precision against torch.distributions and autograd, to 1e-9."""
    likelihood, matrix, y, deviations = OBSERVATIONS[name]
    if name == "blur":
        likelihood = targets.linear_observation(
            lambda x: blurred(x.double()), y.reshape(4, 5), 0.5, adjoint=lambda y: blurred_back(y.double())
        )
    d = matrix.shape[1]
    root = torch.randn(d, d, generator=seeded()).double().tril()
    root.diagonal().copy_(1 + torch.rand(d, generator=seeded(1)).double())
    root = {"number": f64(1.7)[0], "diagonal": root.diagonal(), "matrix": root}[shape]
    coordinates = Affine(torch.zeros(()).double(), root)
    covariance = coordinates.covariance if shape == "matrix" else coordinates.covariance.expand(d).diag()
    event = {"mask": (2, 3), "blur": (4, 5)}.get(name, (d,))
    x = torch.randn(5, *event, generator=seeded(2)).double().requires_grad_()
    for sigma in (0.0, 0.4, 30.0):
        wide = deviations.square().diag() + sigma**2 * matrix @ covariance @ matrix.mT
        known = torch.distributions.MultivariateNormal(x.flatten(1) @ matrix.mT, wide).log_prob(y)
        at = likelihood.at(sigma, coordinates)
        torch.testing.assert_close(at.log_density(x), known, rtol=1e-9, atol=1e-9)
        (gradient,) = torch.autograd.grad(known.sum(), x)
        torch.testing.assert_close(at.score(x.detach()), gradient, rtol=1e-9, atol=1e-9)
        precision = matrix.mT @ torch.linalg.solve(wide, matrix)
        torch.testing.assert_close(at.precision(d), precision, rtol=1e-9, atol=1e-9)


def score(target: TargetLike, x: Tensor) -> Tensor:
    assert target.score is not None
    return target.score(x)


def test_a_posterior_a_product_and_a_power_know_the_levels_of_their_parts() -> None:
    x = torch.randn(4, 3, generator=seeded()).double()
    likelihood = targets.linear_observation(A, Y, STD)
    assert isinstance(GAUSSIAN, Posterior)
    for level in (0.5, 3.0):
        own = PRIOR.at(level)
        both = own.score(x) + likelihood.at(level, PRIOR.coordinates).score(x)
        torch.testing.assert_close(score(GAUSSIAN.at(level), x), both)
        model = diffusion.from_denoiser(lambda x, sigma: x / (1 + sigma[:, None] ** 2), like=x)
        for power in (targets.temper(model, 2.0), targets.product(model, model)):
            torch.testing.assert_close(score(power.at(level), x), -2 * x / (1 + level**2))
        mixed = targets.product(targets.temper(model, 2.0), PRIOR, Target(lambda x: -x), weights=[0.5, 2.0, 1.0])
        torch.testing.assert_close(score(mixed.at(level), x), -x / (1 + level**2) + 2 * own.score(x) - x)
    assert GAUSSIAN.at(0.0) is GAUSSIAN
    torch.testing.assert_close(GAUSSIAN.score(x), PRIOR.score(x) + likelihood.score(x))
    for alone in (Target(lambda x: -x), targets.product(Target(log_density=lambda x: -x.sum(1)))):
        with pytest.raises(ValueError, match="knows noise levels"):
            alone.at(1.0)


def test_a_likelihood_that_takes_the_level_is_called_with_it() -> None:
    def log_likelihood(x: Tensor, noise_level: float) -> Tensor:
        return -(x - 1).square().sum(1) / (2 + 2 * noise_level**2)

    posterior = targets.posterior(PRIOR, log_likelihood)
    x = torch.randn(4, 3, generator=seeded()).double()
    torch.testing.assert_close(score(posterior.at(2.0), x), PRIOR.at(2.0).score(x) - (x - 1) / 5)
    torch.testing.assert_close(score(posterior, x), PRIOR.score(x) - (x - 1))
    assert posterior.log_density is not None
    torch.testing.assert_close(posterior.log_density(x), PRIOR.log_density(x) - (x - 1).square().sum(1) / 2)


# pieces


def test_systematic_resampling_rounds_the_expected_numbers() -> None:
    weights = torch.rand(200, generator=seeded()).double() * (torch.rand(200, generator=seeded(1)) < 0.7)
    weights = weights / weights.sum()
    counts = torch.stack([torch.bincount(systematic(weights, seeded(s)), minlength=200) for s in range(200)])
    assert bool(((counts - 200 * weights).abs() < 1).all())
    assert int(counts[:, weights == 0].sum()) == 0
    share = counts.double().mean(0)
    assert float((share - 200 * weights).abs().max()) < 4 * 0.5 / math.sqrt(200)  # a number is off by less than 1


def test_the_error_of_independent_weights_is_that_of_their_mean() -> None:
    w = torch.rand(50, generator=seeded()).double()
    expected = float(w.std() / w.mean()) / math.sqrt(50)
    assert family_error((w / w.sum()).log(), torch.arange(50)) == pytest.approx(expected)
    assert effective_share(torch.full((50,), -math.log(50)).double(), w.log()) == pytest.approx(
        float(w.mean() ** 2 / w.square().mean())
    )


# laws


LAST = f64([1.0, 0.3])
COMPONENTS = LAST @ MIXTURE.means.mT, float(LAST @ LAST.mT) + 3.0**2
EVIDENCES = (
    MIXTURE.weights * torch.distributions.Normal(COMPONENTS[0][0], math.sqrt(COMPONENTS[1])).log_prob(f64(-4.0)).exp()
)
RUNS, COARSE = 60, annealing.geometric(30.0, 0.1, 8)


def unbiased(**options: Any) -> float:
    """Return the p-value that runs estimate the evidence and, times it, the weight and the mean of a mode rightly.

    The product of evidence and mean of draws is unbiased, up to the choice of covariances and step sizes.
    """
    rows = []
    for seed in range(RUNS):
        found = smc(POSTERIOR_OF_MIXTURE, particles=400, generator=seeded(seed), **options)
        first, ratio = found.draws[:, 0] < 0, math.exp(found.log_evidence) / float(EVIDENCES.sum())
        square = (found.draws @ LAST[0] + 4.0).square()
        values = torch.stack([torch.ones(()).double(), first.double().mean(), square.mean()])
        rows.append(ratio * values)
    gain = COMPONENTS[1] - 3.0**2  # of a component, y = a . x + noise with a . x of variance |a|^2
    shrunk, shares = 3.0**2 / COMPONENTS[1], EVIDENCES / EVIDENCES.sum()
    squares = ((COMPONENTS[0][0] + 4.0) * shrunk).square() + gain * shrunk
    expected = torch.stack([torch.ones(()).double(), shares[0], shares @ squares])
    away = torch.stack(rows) - expected
    z = away.mean(0) / (away.std(0) / math.sqrt(RUNS))
    return float(min(1.0, 3 * 2 * stats.t.sf(float(z.abs().max()), RUNS - 1)))


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["flow", "reverse"])
def test_evidence_and_draws_are_unbiased(transport: str) -> None:
    """False alarm: 1e-3."""
    assert unbiased(levels=COARSE, transport=transport) > 1e-3


def no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "log_factors", lambda before, here, there, share: torch.zeros_like(before))


def weights_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    right, choose = MODULE._Descent.resampled, MODULE.systematic
    chosen: list[Tensor] = []

    def remembered(weights: Tensor, generator: torch.Generator) -> Tensor:
        chosen.append(choose(weights, generator))
        return chosen[-1]

    def kept(self: Any, size: float, *, last: bool) -> bool:
        before = self.log_weights
        done = bool(right(self, size, last=last))
        if done and not last:  # each copy with the weight of the particle it was copied from
            self.log_weights = before[chosen[-1]].log_softmax(0)
        return done

    monkeypatch.setattr(MODULE, "systematic", remembered)
    monkeypatch.setattr(MODULE._Descent, "resampled", kept)


def one_end(monkeypatch: pytest.MonkeyPatch) -> None:
    right = MODULE.log_factors
    monkeypatch.setattr(MODULE, "log_factors", lambda before, here, there, share: right(here, here, there, share))


@pytest.mark.slow
@pytest.mark.parametrize("twin", [no_weight, weights_kept, one_end])
def test_the_same_test_rejects_wrong_twins(twin: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """No weight; weights kept after resampling; both ends of the bridge where the particles are after transport."""
    twin(monkeypatch)
    assert unbiased(levels=COARSE) < 1e-6


def gaussian_case(d: int, observations: int, std: float) -> tuple[TargetLike, float]:
    g = seeded(d)
    prior = targets.Gaussian(torch.randn(d, generator=g).double(), torch.linspace(0.3, 2, d).double().diag())
    matrix = torch.randn(observations, d, generator=g).double() / math.sqrt(d)
    y = matrix @ prior.sample(1, generator=g)[0] + std * torch.randn(observations, generator=g).double()
    wide = matrix @ prior.covariance @ matrix.mT + std**2 * torch.eye(observations).double()
    known = torch.distributions.MultivariateNormal(matrix @ prior.mean, wide).log_prob(y)
    return targets.posterior(prior, targets.linear_observation(matrix, y, std)), float(known)


@pytest.mark.slow
@pytest.mark.parametrize(("d", "observations", "std"), [(2, 1, 0.5), (2, 2, 0.05), (8, 4, 0.2)])
def test_evidence_is_within_three_standard_errors(d: int, observations: int, std: float) -> None:
    """At least 57 of 60 runs, as its definition says; the share within one shows that it is not much too large."""
    posterior, known = gaussian_case(d, observations, std)
    options: dict[str, Any] = {"particles": 200, "levels": annealing.geometric(5.0, 0.05, 8), "steps_per_level": 3}
    runs = [smc(posterior, generator=seeded(seed), **options) for seed in range(60)]
    z = torch.tensor([(found.log_evidence - known) / found.log_evidence_error for found in runs])
    assert int((z.abs() < 3).sum()) >= 57
    assert int((z.abs() < 1).sum()) <= 54


def test_a_normal_posterior_is_found() -> None:
    """Mean and covariance in units of the truth, by chi-square tests at 1e-4 each; draws are nearly independent."""
    found = smc(GAUSSIAN, particles=1000, generator=seeded())
    precision = torch.linalg.inv(PRIOR.covariance) + A.mT @ A / STD**2
    covariance = torch.linalg.inv(precision)
    mean = covariance @ (torch.linalg.solve(PRIOR.covariance, PRIOR.mean) + A.mT @ Y / STD**2)
    u = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (found.draws - mean).mT, upper=False).mT
    effective = found.stages[-1].effective_size  # duplicates of the last resampling have moved a few steps
    assert stats.chi2.sf(float(effective * u.mean(0).square().sum()), 3) > 1e-4
    assert abs(float(u.square().mean()) - 1) < 4 * math.sqrt(2 / (3 * effective))
    assert abs(found.log_evidence - LOG_EVIDENCE) < 4 * found.log_evidence_error
    assert found.levels[-1] == 0
    assert found.hints == []


def generic(x: Tensor) -> Tensor:
    return -((x @ A.mT - Y) / STD).square().sum(1) / 2 - 2 * math.log(STD * math.sqrt(2 * math.pi))


def without_gradient(x: Tensor) -> Tensor:
    residuals = (x.numpy() @ A.numpy().T - Y.numpy()) / STD
    return torch.from_numpy(-(residuals**2).sum(1) / 2 - 2 * np.log(STD * np.sqrt(2 * np.pi)))


@pytest.mark.parametrize(
    ("log_likelihood", "options"),
    [(generic, {}), (without_gradient, {"proposal": RandomWalk, "steps_per_level": 15})],
    ids=["powers", "without a gradient"],
)
def test_any_likelihood_serves(log_likelihood: Callable[[Tensor], Tensor], options: dict[str, Any]) -> None:
    found = smc(targets.posterior(PRIOR, log_likelihood), particles=600, generator=seeded(), **options)
    assert abs(found.log_evidence - LOG_EVIDENCE) < 4 * found.log_evidence_error
    powers = [stage.power for stage in found.stages]
    assert powers == sorted(powers)
    assert powers[0] < 0.1
    assert powers[-1] == 1


def test_a_nonlinear_likelihood_keeps_both_modes() -> None:
    """|x| observed: the posterior of N(0, I) is the ring, of which either half has half of the weight."""
    prior = targets.Gaussian(f64(0.0, 0.0))
    posterior = targets.posterior(prior, lambda x: -(x.norm(dim=1) - 2).square() / (2 * 0.1**2))
    found = smc(posterior, particles=1000, generator=seeded())
    radius = found.draws.norm(dim=1)
    assert abs(float((found.draws[:, 0] > 0).double().mean()) - 0.5) < 4 * 0.5 / math.sqrt(300)
    r = torch.linspace(1.0, 3.0, 2001).double()
    density = r * (-r.square() / 2 - (r - 2).square() / 0.02).exp()
    assert abs(float(radius.mean() - (density @ r) / density.sum())) < 4 * 0.1 / math.sqrt(300)


def test_a_kernel_of_ones_own_is_used_at_every_level() -> None:
    asked = []

    def kernel_at(level: float) -> Kernel:
        asked.append(level)
        return metropolis_hastings(GAUSSIAN.at(level), MALA(0.03 + 0.1 * level**2), LineIntegral())

    levels = annealing.geometric(10.0, 0.2, 12)
    found = smc(GAUSSIAN, particles=400, levels=levels, kernel_at=kernel_at, generator=seeded())
    assert set(asked) == {*levels, 0.0}
    assert found.levels == (*levels, 0.0)
    assert abs(found.log_evidence - LOG_EVIDENCE) < 4 * found.log_evidence_error
    assert math.isnan(found.stages[-1].step_size)


# priors that are learned or adapted


def denoised(x: Tensor, sigma: Tensor) -> Tensor:
    return x + sigma[:, None] ** 2 * MIXTURE.level_score(x, sigma)[0]


def test_a_diffusion_model_is_a_prior() -> None:
    like = MIXTURE.sample(200, generator=seeded())
    model = diffusion.from_denoiser(
        denoised, (0.05, 40.0), variance=MIXTURE.variance, mean=MIXTURE.coordinates.mean, like=like
    )
    likelihood = targets.linear_observation(LAST, f64(-4.0), std=3.0)
    found = smc(targets.posterior(model, likelihood), particles=1000, generator=seeded())
    share = float((found.draws[:, 0] < 0).double().mean())
    assert abs(share - float(EVIDENCES[0] / EVIDENCES.sum())) < 4 * 0.5 / math.sqrt(300)
    assert abs(found.log_evidence - float(EVIDENCES.sum().log())) < 4 * found.log_evidence_error
    assert found.score_calls > 0
    assert found.levels[-2] == pytest.approx(model.noise_level)


def test_first_particles_are_right_in_directions_much_wider_than_the_highest_level() -> None:
    """30 coordinates that vary together, in a model that ends at three times their own width; before, 11 errors off."""
    along, wide = torch.ones(30).double() / 30**0.5, 400.0
    law = targets.Gaussian(
        torch.linspace(-3, 3, 30).double(), torch.eye(30).double() + wide * torch.outer(along, along)
    )
    width = law.variance**0.5
    model = diffusion.from_denoiser(
        lambda x, sigma: x + sigma[:, None] ** 2 * law.level_score(x, sigma)[0],
        (0.02 * width, 3 * width),
        variance=law.variance,
        mean=law.mean + 2,
        like=law.sample(500, generator=seeded()),
    )
    found = smc(
        targets.posterior(model, targets.linear_observation(along[None], [25.0], 1.0)),
        particles=1000,
        generator=seeded(),
    )
    known = torch.distributions.Normal(law.mean @ along, math.sqrt(wide + 2)).log_prob(f64(25.0))
    assert abs(found.log_evidence - float(known)) < 4 * found.log_evidence_error


@pytest.mark.slow
def test_the_highest_level_of_a_mixture_merges_modes_that_lie_apart_in_one_direction_of_many() -> None:
    """Modes 80 apart along the diagonal of 100 dimensions, of mean variance 5: levels up to 10 times 20."""
    means = 4.0 * f64([-1.0], [1.0]).expand(2, 100)
    prior = targets.GaussianMixture(f64(0.9, 0.1), means)
    assert prior.noise_range == pytest.approx((0.01 * math.sqrt(6.76), 10 * math.sqrt(577)))
    seen = targets.linear_observation(torch.ones(1, 100).double() / 10, f64(10.0), std=20.0)
    found = smc(targets.posterior(prior, seen), particles=500, steps_per_level=2, generator=seeded())
    weights = prior.weights * torch.distributions.Normal(10 * means[:, 0], math.sqrt(401)).log_prob(f64(10.0)).exp()
    share, expected = float((found.draws.mean(1) > 0).double().mean()), float(weights[1] / weights.sum())
    assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / 100)


def test_scores_show_the_covariance_of_a_model() -> None:
    """In units of the truth; normal models are found exactly, a mixture is where its scores are nearly linear."""
    wide = targets.Gaussian(f64(1.0, -2.0), f64([4.0, 1.9], [1.9, 1.0]))
    for law, tolerance in ((wide, 1e-6), (MIXTURE, 0.2)):
        known, found = (MODULE.normal_of(each) for each in (law, as_model(law)))
        torch.testing.assert_close(found.covariance, known.covariance, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(found.mean, known.mean, rtol=tolerance, atol=tolerance)


def test_a_learned_score_is_a_prior_in_its_own_coordinates() -> None:
    """Noise is sigma z in standard coordinates, the observation in those of x, whose scales are 3 and .1."""
    scale = f64(3.0, 0.1).float()
    x = torch.randn(4000, 2, generator=seeded()) * scale + f64(10.0, -5.0).float()
    fit = fit_score(x, MultilevelDenoising(high=5.0), recipe=Recipe(steps=1500), generator=seeded())
    y, std = x.mean(0) + scale, 0.5 * scale
    found = smc(
        targets.posterior(fit, targets.linear_observation(torch.eye(2), y, std)), particles=1000, generator=seeded()
    )
    u = (found.draws - x.mean(0)) / scale
    assert float((u.mean(0) - 0.8).abs().max()) < 0.1  # 1 / (1 + .25)
    assert float((u.std(0) - math.sqrt(0.2)).abs().max()) < 0.05
    known = torch.distributions.Normal(0, (scale**2 + std**2).sqrt()).log_prob(scale).sum()
    assert abs(found.log_evidence - float(known)) < 0.2


# compositions


def as_model(law: targets.Gaussian | targets.GaussianMixture) -> diffusion.DiffusionModel:
    """Return a normal mixture as a diffusion model, which knows scores only."""
    width = law.variance**0.5
    return diffusion.from_denoiser(
        lambda x, sigma: x + sigma[:, None] ** 2 * law.level_score(x, sigma)[0],
        (0.01 * width, 10 * width),
        variance=law.variance,
        mean=law.event,
        like=law.sample(500, generator=seeded()),
    )


FIRST, SECOND = (
    targets.Gaussian(f64(1.0, -1.0), f64(1.0, 0.3).diag()),
    targets.Gaussian(f64(-1.0, 0.0), f64(0.5, 2.0).diag()),
)
WIDE = targets.Gaussian(f64(0.0, 0.0), 4 * torch.eye(2).double())
PRODUCTS: dict[str, tuple[list[targets.Gaussian], list[float]]] = {
    "a power": ([FIRST], [2.0]),
    "a root": ([FIRST], [0.5]),
    "two": ([FIRST, SECOND], [1.0, 1.0]),
    "two observations, one prior too many": ([FIRST, SECOND, WIDE], [1.0, 1.0, -1.0]),
}


def product_of(parts: list[targets.Gaussian], powers: list[float]) -> tuple[Tensor, Tensor, float]:
    """Return mean, covariance and the log of the normalising constant of a product of normal densities."""
    precisions = [torch.linalg.inv(part.covariance) for part in parts]
    precision = torch.stack([w * own for w, own in zip(powers, precisions, strict=True)]).sum(0)
    pulls = [w * own @ part.mean for w, own, part in zip(powers, precisions, parts, strict=True)]
    mean = torch.linalg.solve(precision, torch.stack(pulls).sum(0))
    zero = torch.zeros(1, 2).double()
    at_zero = sum(w * float(part.log_density(zero)) for w, part in zip(powers, parts, strict=True))
    covariance = torch.linalg.inv(precision)
    return mean, covariance, at_zero - float(targets.Gaussian(mean, covariance).log_density(zero))


@pytest.mark.parametrize("known", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["known", "scores"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_and_powers_are_found_with_their_constant(name: str, known: bool) -> None:
    parts, powers = PRODUCTS[name]
    mean, covariance, constant = product_of(parts, powers)
    models: list[TargetLike] = [*parts] if known else [*map(as_model, parts[:2]), *parts[2:]]  # the prior is known
    target = targets.product(*models, weights=powers) if len(parts) > 1 else targets.temper(models[0], powers[0])
    found = smc(target, particles=600, generator=seeded(2))
    flow_error = 0.001  # where the weights are equal, what is left
    assert abs(found.log_evidence - constant) < 4 * found.log_evidence_error + flow_error
    u = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (found.draws - mean).mT, upper=False).mT
    assert stats.chi2.sf(300 * float(u.mean(0).square().sum()), 2) > 1e-4  # of draws that count for half
    assert abs(float(u.square().mean()) - 1) < 4 * math.sqrt(2 / 600)


@pytest.mark.slow
def test_the_constant_of_a_product_with_a_very_wide_part_is_right() -> None:
    parts = [targets.Gaussian([mean], [[variance]]) for mean, variance in ((0.9, 0.05), (1.1, 0.05), (0.0, 1e4))]
    found = smc(targets.product(*parts, weights=[1, 1, -1]), particles=50, generator=seeded())
    # N(0.9; 1.1, 0.1) times the integral of N(1, 0.025) / N(0, 1e4), whose second factor is 100 sqrt(2 pi)
    expected = -math.log(2 * math.pi * 0.1) / 2 - 0.2 + math.log(100 * math.sqrt(2 * math.pi)) + 1.025 / 2e4
    assert found.log_evidence == pytest.approx(expected, abs=1e-3)


def test_the_evidence_of_a_narrow_component_is_right() -> None:
    prior = targets.GaussianMixture([0.5, 0.5], [[-50.0], [50.0]], [[[1e-4]], [[1.0]]])
    seen = targets.linear_observation([[1.0]], [-50.0], std=0.02)
    found = smc(targets.posterior(prior, seen), particles=400, generator=seeded())
    expected = math.log(0.5) - math.log(2 * math.pi * (1e-4 + 4e-4)) / 2
    assert abs(found.log_evidence - expected) < 4 * found.log_evidence_error


def test_a_product_of_mixtures_has_the_weights_of_its_modes() -> None:
    """Each has modes at -3 and 3; the weights multiply."""
    means, narrow = f64([-3.0, 0.0], [3.0, 0.0]), 0.25 * torch.eye(2).double()
    laws = [targets.GaussianMixture(f64(w, 1 - w), means, narrow) for w in (0.2, 0.6)]
    found = smc(targets.product(*map(as_model, laws)), particles=1000, generator=seeded())
    share = float((found.draws[:, 0] < 0).double().mean())
    expected = 0.2 * 0.6 / (0.2 * 0.6 + 0.8 * 0.4)
    assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected)) * max(found.log_evidence_error, 0.06)


@pytest.mark.slow
def test_a_uniform_prior_keeps_its_bounds() -> None:
    """p(theta)^(1 - n) of a uniform prior is constant within its bounds, and 0 outside."""
    bounds = targets.box([0.0, -9.0], 9.0)
    prior = Target(torch.zeros_like, lambda x: x.new_zeros(len(x)), bounds)
    target = targets.product(as_model(FIRST), as_model(SECOND), prior, weights=[1.0, 1.0, -1.0])
    found = smc(target, particles=600, generator=seeded())
    assert bool((found.draws[:, 0] >= 0).all())
    mean, covariance, _ = product_of([FIRST, SECOND], [1.0, 1.0])
    low = (0 - float(mean[0])) / float(covariance[0, 0]) ** 0.5
    expected = float(mean[0]) + float(covariance[0, 0]) ** 0.5 * stats.truncnorm.mean(low, math.inf)
    assert abs(float(found.draws[:, 0].mean()) - expected) < 4 * 0.4 / math.sqrt(200)


@pytest.mark.slow
def test_many_observations_take_one_call_of_a_conditional_network() -> None:
    """theta ~ N(0, 4 I), x_i = theta + z_i: the posterior of all is normal; single ones come from one network."""
    observations, calls = torch.randn(12, 2, generator=seeded()).double() + 1, []

    def net(theta: Tensor, sigma: Tensor, x: Tensor) -> Tensor:
        calls.append(len(theta))
        variance, noise = 4 / 5, sigma[:, None].square()
        return (variance * theta + noise * 0.8 * x) / (variance + noise)

    like = targets.Gaussian(0.8 * observations[0], 0.8 * torch.eye(2).double()).sample(200, generator=seeded())
    first = diffusion.from_denoiser(
        diffusion.Conditional(net, observations[:1]), (0.01, 8.0), variance=0.8, mean=like.mean(0), like=like
    )
    singles = [first.given(x) for x in observations]
    joint = diffusion.together(singles)
    assert joint is not None
    theta = torch.randn(5, 2, generator=seeded(1)).double()
    values, divergences = joint.level_score(theta.repeat(12, 1), 0.7)
    for single, value, divergence in zip(singles, values.chunk(12), divergences.chunk(12), strict=True):
        torch.testing.assert_close((value, divergence), single.level_score(theta, 0.7))
        torch.testing.assert_close(value, score(single.at(0.7), theta))
    assert diffusion.together([first, as_model(FIRST)]) is None
    calls.clear()
    prior = targets.Gaussian(f64(0.0, 0.0), 4 * torch.eye(2).double())
    target = targets.product(*singles, prior, weights=[1.0] * 12 + [-11.0])
    found = smc(target, particles=300, levels=annealing.geometric(2.0, 0.05, 8), generator=seeded())
    assert all(rows % 12 == 0 for rows in calls[12:])  # after one call each for their covariances
    precision = 1 / 4 + 12
    mean = observations.sum(0) / precision
    z = (found.draws.mean(0) - mean) * math.sqrt(precision) * math.sqrt(100)
    assert float(z.abs().max()) < 4
    assert abs(float((found.draws - mean).square().mean()) * precision - 1) < 4 * math.sqrt(2 / 200)
    with pytest.raises(TypeError, match="a model of a Conditional network"):
        as_model(FIRST).given(observations[0])


def test_a_way_that_costs_too_much_weight_is_halved() -> None:
    """Two given levels for a product of mixtures: others come between, and the weights of modes are right."""
    means, narrow = f64([-3.0, 0.0], [3.0, 0.0]), 0.25 * torch.eye(2).double()
    laws = [targets.GaussianMixture(f64(w, 1 - w), means, narrow) for w in (0.2, 0.6, 0.5, 0.5, 0.5)]
    found = smc(targets.product(*laws), particles=500, levels=[8.0, 0.05], generator=seeded())
    assert len(found.levels) > 3
    share, expected = float((found.draws[:, 0] < 0).double().mean()), 0.12 / (0.12 + 0.32)
    assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected)) * max(found.log_evidence_error, 0.06)


def test_a_product_that_cannot_be_normalised_on_the_way_is_rejected_before_it_runs() -> None:
    """Of variances .3, .3 and 1.1 with weights 1, 1, -3 it can at the data, 2 / .3 > 3 / 1.1, but not far above."""
    narrow, base = (targets.Gaussian(f64(0.0, 0.0), v * torch.eye(2).double()) for v in (0.3, 1.1))
    parts: list[TargetLike] = [as_model(narrow), as_model(narrow), base]
    feasible = targets.product(*parts, weights=[1.0, 1.0, -1.0])
    assert bool(smc(feasible, particles=50, levels=[3.0, 0.5], generator=seeded()).draws.isfinite().all())
    with pytest.raises(
        ValueError, match=r"at every noise level, got a precision of -0\.\d+ at level 3 in the direction \["
    ):
        smc(targets.product(*parts, weights=[1.0, 1.0, -3.0]), particles=50, levels=[3.0, 0.5], generator=seeded())


# runs


def test_a_killed_run_goes_on_and_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"particles": 60, "levels": [8.0, 2.0, 0.5], "steps_per_level": 3}
    whole = smc(GAUSSIAN, generator=seeded(1), **options)
    right, left = MODULE.sample, 0

    class StopError(Exception):
        pass

    def stopping(*args: Any, **keywords: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise StopError
        return right(*args, **keywords)

    monkeypatch.setattr(MODULE, "sample", stopping)
    for left in (1, 3):  # noqa: B007 (counted down by `stopping`)
        with pytest.raises(StopError):
            smc(GAUSSIAN, generator=seeded(1), store=tmp_path, **options)
    monkeypatch.setattr(MODULE, "sample", right)
    for generator in (seeded(1), None):
        again = smc(GAUSSIAN, generator=generator, store=tmp_path, **options)
        assert torch.equal(whole.draws, again.draws)
        assert (whole.stages, whole.log_evidence, whole.score_calls) == (
            again.stages,
            again.log_evidence,
            again.score_calls,
        )
    with pytest.raises(ValueError, match="to hold this run, with particles = 50"):
        smc(GAUSSIAN, generator=seeded(1), store=tmp_path, **options | {"particles": 50})
    other = targets.posterior(PRIOR, targets.linear_observation(A, Y + 1, STD))
    with pytest.raises(ValueError, match="to hold this run, with the log likelihood at three points = "):
        smc(other, generator=seeded(1), store=tmp_path, **options)


def test_the_same_seed_gives_the_same_draws() -> None:
    runs = [smc(GAUSSIAN, particles=50, levels=[5.0, 1.0], generator=seeded(s)) for s in (1, 1, 2)]
    assert torch.equal(runs[0].draws, runs[1].draws)
    assert not torch.equal(runs[0].draws, runs[2].draws)
    assert not runs[0].draws.is_inference()
    assert runs[0].draws.dtype == torch.float64
    single = targets.posterior(targets.Gaussian([0.0, 0.0]), targets.linear_observation([[1.0, 1.0]], [1.0], 0.5))
    assert smc(single, particles=50, levels=[5.0, 1.0]).draws.dtype == torch.float32


def test_weights_that_are_not_finite_are_counted() -> None:
    def partly(x: Tensor) -> Tensor:
        return generic(x).where(x[:, 0] < 1.5, torch.nan)

    found = smc(targets.posterior(PRIOR, partly), particles=200, generator=seeded())
    assert found.nonfinite > 0
    assert bool((found.draws[:, 0] < 1.5).all())
    assert "weights were NaN or infinite" in repr(found)


@pytest.mark.slow
def test_a_support_of_the_prior_holds_for_the_draws() -> None:
    fit = diffusion.from_denoiser(
        lambda x, sigma: x + sigma[:, None] ** 2 * PRIOR.level_score(x, sigma)[0],
        variance=PRIOR.variance,
        mean=PRIOR.mean,
        like=PRIOR.sample(200, generator=seeded()),
    )
    half = targets.truncate(fit, targets.box([-9.0, -9.0, 0.0], 9.0))
    found = smc(targets.posterior(half, targets.linear_observation(A, Y, STD)), particles=200, generator=seeded())
    assert bool((found.draws[:, 2] >= 0).all())


def test_the_result_is_shown_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = smc(GAUSSIAN, particles=50, levels=[5.0, 1.0], generator=seeded())
    assert "Particles(50 draws of (3,); log evidence" in repr(found)
    assert found.plot(tmp_path / "stages.png") is not None
    assert (tmp_path / "stages.png").stat().st_size > 1000
    few = Particles(found.draws, 0.0, 0.1, found.stages, 3, 0, 1)
    assert "descend from 3 of 50" in repr(few)


class OneLevel(targets.Gaussian):
    """A distribution that knows no noise levels."""

    noise_level = noise_range = None  # type: ignore[assignment]


def posterior_of(log_likelihood: Callable[..., Any]) -> TargetLike:
    return targets.posterior(PRIOR, log_likelihood)


LEARNED = diffusion.from_denoiser(
    lambda x, sigma: x / (1 + sigma[:, None] ** 2), (0.01, 20.0), like=torch.randn(200, 3, generator=seeded()).double()
)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a likelihood of another shape": (
        {"target": posterior_of(lambda x: x)},
        r"log_likelihood\(x\) to be a float64 tensor of shape \(20,\).*got a float64 tensor of shape \(20, 3\)",
    ),
    "one number for all": ({"target": posterior_of(lambda x: x.sum())}, r"log_likelihood\(x\).*of shape \(\)"),
    "impossible data": (
        {"target": posterior_of(lambda x: x[:, 0] - torch.inf)},
        r"positive at some particles, got 0 at all 20 particles at noise level 14\.1\d+\. Check the log likelihood",
    ),
    "a model of one level": (
        {"target": targets.posterior(OneLevel([0.0, 0.0]), lambda x: -x.sum(1))},
        "a posterior or a product of models that know noise levels, got Product",
    ),
    "a target": ({"target": Target(lambda x: -x)}, "a posterior or a product of models"),
    "levels that rise": ({"levels": [1.0, 2.0]}, r"levels from high to low, got \[1.0, 2.0\]"),
    "the same level twice": ({"levels": [1.0, 1.0]}, "each below the one before"),
    "a level that is not known": (
        {"target": targets.posterior(LEARNED, generic), "levels": [1e6, 1.0]},
        "levels from at most 20 to at least 0.01, where the prior is read, got 1e.06 to 1",
    ),
    "one particle": ({"particles": 1}, "particles of at least 2, got 1"),
    "no steps": ({"steps_per_level": 0}, "steps_per_level of at least 1"),
    "no transport": ({"transport": "bus"}, "transport"),
    "a product that is carried back": (
        {"target": targets.temper(PRIOR, 2.0), "transport": "reverse"},
        'transport="flow" of a product',
    ),
    "no kernel": ({"kernel_at": lambda level: None}, "kernel_at to return a Kernel"),
    "a model without events": (
        {"target": targets.posterior(diffusion.from_denoiser(lambda x, s: x), lambda x: -x.sum(1))},
        "a model that knows the shape of an event",
    ),
}


@pytest.mark.parametrize(("arguments", "text"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_right_is_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        smc(**{"target": GAUSSIAN, "particles": 20, "generator": seeded()} | arguments)


BAD_OBSERVATIONS: dict[str, tuple[Callable[[], object], str]] = {
    "a vector": (lambda: targets.linear_observation(f64(1.0, 2.0), [1.0], 0.1), r"A of shape \(observation, d\)"),
    "other numbers": (lambda: targets.linear_observation(A, [1.0], 0.1), "y with 2 numbers, as many as A observes"),
    "no noise": (lambda: targets.linear_observation(A, Y, 0.0), "std above 0"),
    "NaN": (lambda: targets.linear_observation(A, Y * torch.nan, 0.1), "A and y to be finite"),
    "no adjoint": (lambda: targets.linear_observation(lambda x: x, Y, 0.1), "the adjoint of a function A, got none"),
    "a wrong adjoint": (
        lambda: targets.linear_observation(lambda x: 2 * x, Y, 0.1, adjoint=lambda y: y),
        "functions with <A x, y> other than",
    ),
    "other events": (
        lambda: targets.linear_observation(A, Y, 0.1).score(torch.zeros(2, 4)),
        "x with 3 coordinates, as many as A has columns",
    ),
}


@pytest.mark.parametrize(("make", "text"), BAD_OBSERVATIONS.values(), ids=BAD_OBSERVATIONS)
def test_bad_observations_are_refused(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_evidence_does_not_overflow() -> None:
    """Log likelihoods of -1e8 and 1e8 are far beyond exp."""
    for offset in (-1e8, 1e8):
        found = smc(posterior_of(lambda x, c=offset: generic(x) + c), particles=100, levels=[5.0, 1.0, 0.2])
        assert math.isfinite(found.log_evidence)
        assert found.log_evidence == pytest.approx(offset, abs=100)


# a move that is reversible for the prior


def moved(rule: Rule, moves: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Return where exact draws of a normal posterior are after some moves, and its mean and covariance."""
    low = 0.05
    prior = targets.Gaussian(PRIOR.mean, PRIOR.covariance + low**2 * torch.eye(3).double())
    precision = torch.linalg.inv(prior.covariance) + A.mT @ A / 1.0**2
    covariance = torch.linalg.inv(precision)
    mean = covariance @ (torch.linalg.solve(prior.covariance, prior.mean) + A.mT @ Y)
    x = targets.Gaussian(mean, (covariance + covariance.mT) / 2).sample(4000, generator=seeded())
    move = annealing.NoiseDenoise(PRIOR, 1.0, low=low)
    kernel = metropolis_hastings(targets.linear_observation(A, Y, 1.0), move, rule)
    point, g = kernel.init(x), seeded(1)
    for _ in range(moves):
        point, _ = kernel.step(point, generator=g)
    return point.x, mean, covariance


def test_noising_and_denoising_leaves_the_posterior_as_it_is() -> None:
    """By the likelihood alone. Means by z-tests at 4; variances to 5 %, 3.6 standard errors and the discretisation."""
    x, mean, covariance = moved(Exact())
    deviations = covariance.diagonal().sqrt()
    assert float(((x.mean(0) - mean) / deviations).abs().max()) < 4 / math.sqrt(4000) + 0.01
    assert float((x.var(0) / covariance.diagonal() - 1).abs().max()) < 0.08
    away, _, _ = moved(Always())  # without the likelihood, towards the prior
    assert float(((away.mean(0) - mean) / deviations).abs().max()) > 0.3


def test_only_the_ratio_of_noising_and_denoising_is_known() -> None:
    point = Point(torch.zeros(2, 3).double())
    with pytest.raises(NotImplementedError, match="relative to the prior"):
        annealing.NoiseDenoise(PRIOR, 1.0).log_prob(point, given=point)
