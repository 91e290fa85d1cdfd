"""Coordinates: inverses, Jacobians and scores against autograd, and heavy tails made light."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from scoremh import (
    Exact,
    LineIntegral,
    MultilevelDenoising,
    Recipe,
    StudentWalk,
    fit_score,
    metropolis_hastings,
    sample,
    targets,
)
from scoremh.coordinates import Affine, Compose, Coordinates, Log, Logit, Sinh, SquareRoot, cholesky
from scoremh.types import Point, Target
from tests.cases import COVARIANCE, f64, seeded

MEAN, SCALE = f64(0.5, -1.0), f64(2.0, 0.3)
MAPS: dict[str, Coordinates] = {
    "number": Affine(MEAN, torch.tensor(1.7, dtype=torch.float64)),
    "diagonal": Affine(MEAN, f64(0.5, 3.0)),
    "matrix": Affine.from_covariance(COVARIANCE, MEAN),
    "sinh": Sinh(MEAN, SCALE),
    "square root": SquareRoot(),
    "heavy tails": Compose(Sinh(MEAN, SCALE), SquareRoot()),
    "log": Log(MEAN),
    "log, below a bound": Log(MEAN, f64(-1.0, 1.0)),
    "logit": Logit(MEAN, MEAN + SCALE),
    "whitened log": Compose(Log(MEAN), Affine.from_covariance(COVARIANCE)),
    "whitened heavy tails": Compose(Compose(Sinh(MEAN, SCALE), SquareRoot()), Affine.from_covariance(COVARIANCE)),
}


def points() -> Tensor:
    return torch.randn(50, 2, dtype=torch.float64, generator=seeded())


def jacobians(coordinates: Coordinates, u: Tensor) -> Tensor:
    answer: Tensor = torch.func.vmap(torch.func.jacrev(lambda row: coordinates(row[None])[0]))(u)
    return answer


@pytest.mark.parametrize("name", MAPS)
def test_the_inverse_is_one(name: str) -> None:
    u = points()
    torch.testing.assert_close(MAPS[name].inverse(MAPS[name](u)), u, atol=1e-10, rtol=1e-10)


KEPT = {"affine": lambda m: Affine(m, SCALE), "sinh": lambda m: Sinh(m, SCALE), "log": Log}


@pytest.mark.parametrize("make", KEPT.values(), ids=KEPT)
def test_coordinates_keep_their_own_numbers(make: Callable[[Tensor], Coordinates]) -> None:
    middle = f64(0.5, -1.0)
    coordinates, u = make(middle), points()
    before = coordinates(u)
    middle += 3
    assert torch.equal(coordinates(u), before)


@pytest.mark.parametrize("name", MAPS)
def test_gradients_and_volumes_match_those_of_the_jacobian(name: str) -> None:
    u, gradient = points(), points().flip(0)
    jacobian = jacobians(MAPS[name], u)
    pulled = torch.einsum("nij,ni->nj", jacobian, gradient)
    torch.testing.assert_close(MAPS[name].pull_gradient(gradient, u), pulled, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(MAPS[name].push_gradient(pulled, u), gradient, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(MAPS[name].log_det(u), jacobian.det().abs().log(), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", MAPS)
def test_scores_match_those_of_the_transformed_density(name: str) -> None:
    coordinates, u = MAPS[name], points().requires_grad_()
    log_density = -coordinates(u).square().sum(1) / 2 + coordinates.log_det(u)
    (wanted,) = torch.autograd.grad(log_density.sum(), u)
    u = u.detach()
    pulled = coordinates.pull_score(-coordinates(u), u)
    torch.testing.assert_close(pulled, wanted, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(
        coordinates.push_score(pulled, u), -coordinates(u), atol=1e-7, rtol=1e-7
    )  # far out in a tail, two terms of 1e3 cancel


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounded_numbers_survive_a_round_trip_at_the_ends_of_their_range(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    tiny = torch.tensor([limits.tiny, 1e-30, 1e-6, 0.3, 1.0, 1e6, 1e30, limits.max], dtype=dtype)[:, None]
    zero, one = torch.zeros(1, dtype=dtype), torch.ones(1, dtype=dtype)
    rounding = 2 * limits.eps * float(tiny.log().abs().max())  # of u, which is relative to x
    torch.testing.assert_close(Log(zero)(Log(zero).inverse(tiny[:-1])), tiny[:-1], atol=0, rtol=rounding)
    logit = Logit(zero, one)
    inside = torch.tensor([limits.tiny, 1e-30, 1e-6, 0.5, 1 - 1e-6, 1 - limits.eps], dtype=dtype)[:, None]
    torch.testing.assert_close(logit(logit.inverse(inside)), inside, atol=0, rtol=rounding)
    torch.testing.assert_close(1 - logit(logit.inverse(inside)), 1 - inside, atol=limits.eps, rtol=rounding)


def test_no_number_leaves_its_bounds_and_volumes_stay_finite() -> None:
    u = f64(-1e4, -800.0, -40.0, 0.0, 40.0, 800.0, 1e4)[:, None]
    logit = Logit(f64(-1.0), f64(3.0))
    assert bool(((logit(u) >= -1) & (logit(u) <= 3)).all())
    assert bool(logit.log_det(u).isfinite().all())
    assert bool((Log(f64(2.0))(u[:6]) >= 2).all())
    assert bool((Log(f64(2.0), f64(-1.0))(u[:6]) <= 2).all())
    assert Logit(f64(0.0), f64(1.0)).inverse(f64(2.0)[:, None]).isnan().all()


def test_impossible_bounds_raise_errors() -> None:
    with pytest.raises(ValueError, match="expected low below high, got"):
        Logit(f64(1.0), f64(1.0))
    with pytest.raises(ValueError, match="expected sign of 1 or -1, got"):
        Log(f64(1.0), f64(0.5))


def test_a_covariance_colours_whitens_and_preconditions() -> None:
    z, affine = points(), Affine.from_covariance(COVARIANCE)
    torch.testing.assert_close(affine.whiten(affine.color(z)), z)
    torch.testing.assert_close(affine.precondition(z), z @ COVARIANCE)
    torch.testing.assert_close(affine.covariance, COVARIANCE)
    assert affine.log_volume(2) == pytest.approx(0.5 * float(COVARIANCE.logdet()))


def test_whitened_samples_have_unit_covariance_wide_rows_and_images_unit_variance() -> None:
    x = points() @ f64([2.0, 0.0], [1.0, 0.1]) + 3
    u = Affine.whitening(x).inverse(x)
    torch.testing.assert_close(u.T @ u / len(u), torch.eye(2, dtype=torch.float64))
    wide = torch.randn(200, 40, generator=seeded(1)) * torch.logspace(-3, 3, 40)  # columns of different units
    wide[:, 3] = 5.0
    squares = Affine.whitening(wide).inverse(wide).square().mean(0)
    torch.testing.assert_close(squares, torch.ones(40).index_fill(0, torch.tensor(3), 0.0))
    wide = wide.double()
    wide[:, 3] = 0.1  # which is not quite its mean
    assert float(Affine.whitening(wide).root[3]) > 1
    images = torch.rand(40, 1, 6, 6, generator=seeded(1))
    whitening = Affine.whitening(images)
    assert whitening.root.ndim == 0
    assert float(whitening.inverse(images).square().mean()) == pytest.approx(1, abs=1e-5)


def test_a_heavy_tail_matches_that_of_a_normal_distribution() -> None:
    u = torch.linspace(3, 6, 30, dtype=torch.float64)[:, None]
    x = MAPS["heavy tails"].outer(SquareRoot()(u.expand(-1, 2)))[:, :1] - MEAN[0]  # type: ignore[operator]
    log_density = -3 * x.log() + Compose(Sinh(MEAN[:1], SCALE[:1]), SquareRoot()).log_det(u)[:, None]
    slope = log_density.diff(dim=0) / u.diff(dim=0)
    curvature = slope.diff(dim=0) / u.diff(dim=0)[1:]
    assert float(curvature.std() / curvature.mean().abs()) < 0.1  # nearly a parabola


@pytest.mark.parametrize(
    ("covariance", "text"),
    [
        (f64([1.0, 2.0], [2.0, 1.0]), "least eigenvalue -1"),
        (f64([1.0, 0.5], [0.0, 1.0]), "asymmetry 0.5"),
        (f64(1.0, -1.0), "one of -1"),
        (f64([1.0, 0.0]), "a square covariance"),
        (f64([math.nan, 0.0], [0.0, 1.0]), "asymmetry nan"),
        (torch.ones(2, 2, 2), "shape (2, 2, 2)"),
    ],
)
def test_what_is_no_covariance_raises_an_error(covariance: Tensor, text: str) -> None:
    with pytest.raises(ValueError, match=r"expected .*, got .*") as error:
        Affine.from_covariance(covariance)
    assert text in str(error.value)


def test_a_covariance_of_another_size_than_the_event_raises_an_error() -> None:
    with pytest.raises(ValueError, match="covariance over 2 and events of shape"):
        Affine.from_covariance(COVARIANCE).color(torch.zeros(3, 5))


def test_a_batch_of_matrices_is_factorised() -> None:
    batch = torch.stack([COVARIANCE, 2 * COVARIANCE])
    root = cholesky(batch)
    torch.testing.assert_close(root @ root.mT, batch)


# Heavy tails: integrals along bent lines, and scores in coordinates in which tails are light.


class Straight(torch.nn.Module):
    """A score that is -rate times the coordinate."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return -self.rate * z


def test_a_line_that_is_straight_in_asinh_finds_what_long_steps_cross() -> None:
    """From the middle of the law to 10,000: the integral is known, and only the bent line has it."""
    law = targets.GeneralizedExtremeValue(torch.tensor(0.5, dtype=torch.float64))
    known = Target(law.score)
    ends = torch.tensor([[0.0], [1e4]], dtype=torch.float64)
    here, there = (Point.at(x[None], known, frozenset({"score"})) for x in ends)
    true = float(law.log_density(ends).diff())
    bent, straight = (
        float(rule.log_density_change(here, there, target=known))
        for rule in (LineIntegral("gauss", nodes=16, coordinates=(0.0, 1.0)), LineIntegral("gauss"))
    )
    assert bent == pytest.approx(true, rel=1e-3)
    assert abs(straight - true) > 10


def test_a_bent_line_decides_as_the_density_does() -> None:
    law = targets.GeneralizedExtremeValue(torch.tensor(0.5, dtype=torch.float64))
    walk, initial = StudentWalk(5.0, 1), law.sample(2000, generator=seeded())
    known = Target(law.score, support=law.support)
    ends = [
        sample(metropolis_hastings(target, walk, rule), initial, draws=1, thin=20, generator=seeded(1)).last
        for target, rule in ((law, Exact()), (known, LineIntegral("gauss", nodes=32, coordinates=(0.0, 1.0))))
    ]
    assert (ends[0] == ends[1]).double().mean() > 0.99


def test_light_coordinates_and_back() -> None:
    x = torch.tensor([[-1e5], [-3.0], [0.0], [0.5], [1e5]], dtype=torch.float64)
    light = Compose(Sinh(torch.tensor([0.5]).double(), torch.tensor([2.0]).double()), SquareRoot())
    z = light.inverse(x)
    assert torch.allclose(light(z), x)
    assert z.diff(dim=0).gt(0).all()


def test_samples_of_which_half_are_the_same_have_no_width() -> None:
    x = torch.cat([torch.zeros(60, 1), torch.randn(40, 1, generator=seeded())])
    with pytest.raises(ValueError, match="expected samples that differ from each other"):
        fit_score(x, heavy_tails=True)


def test_heavy_tails_take_the_implicit_loss_unless_another_is_requested() -> None:
    x = targets.GeneralizedExtremeValue(0.5).sample(400, generator=seeded())
    short = Recipe(steps=4, check_every=2)
    fit = fit_score(x, heavy_tails=True, recipe=short, generator=seeded())
    assert "ImplicitScoreMatching" in fit.loss
    assert fit.noise_level is None
    plain = fit_score(x, recipe=short, generator=seeded())
    assert fit.support.high > 2 * plain.support.high - x.max()  # wider, as the tail is
    assert fit.support(x).all()
    levelled = fit_score(x, MultilevelDenoising(), heavy_tails=True, recipe=short, generator=seeded())
    assert levelled.noise_level is not None


def test_a_heavy_tailed_fit_names_its_middle_and_its_limits() -> None:
    x = targets.GeneralizedExtremeValue(0.5).sample(500, generator=seeded())
    fit = fit_score(x, heavy_tails=True, recipe=Recipe(steps=2, check_every=1), generator=seeded())
    (centre,), (width,) = fit.middle  # type: ignore[misc]
    assert centre == pytest.approx(float(x.median()))
    assert width == pytest.approx(float((x - x.median()).abs().median()))
    assert "in coordinates of heavy tails" in repr(fit)
    metropolis_hastings(fit, StudentWalk(1.0), LineIntegral("exact", coordinates=fit.middle))
    with pytest.raises(ValueError, match="expected noise with a covariance, got noise in coordinates of heavy tails"):
        _ = fit.covariance
    with pytest.raises(ValueError, match=r"by ScoreMLP, which takes none\. Fit it with MultilevelDenoising\(\)"):
        fit.at(0.1)
    with pytest.raises(ValueError, match="expected a score with heavy tails, got one without"):
        _ = fit_score(x, recipe=Recipe(steps=1, check_every=1), generator=seeded()).middle
