"""Heavy tails: integrals along bent lines, and scores in coordinates in which tails are light."""

import pytest
import torch

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
from scoremh.coordinates import Compose, Sinh, SquareRoot
from scoremh.types import Point, Target


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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
        for rule in (LineIntegral("adaptive", coordinates=(0.0, 1.0)), LineIntegral("adaptive"))
    )
    assert bent == pytest.approx(true, rel=1e-3)
    assert abs(straight - true) > 10


def test_a_bent_line_decides_as_the_density_does() -> None:
    law = targets.GeneralizedExtremeValue(torch.tensor(0.5, dtype=torch.float64))
    walk, initial = StudentWalk(5.0, 1), law.sample(2000, generator=seeded())
    known = Target(law.score, support=law.support)
    ends = [
        sample(metropolis_hastings(target, walk, rule), initial, draws=1, thin=20, generator=seeded(1)).last
        for target, rule in ((law, Exact()), (known, LineIntegral("adaptive", coordinates=(0.0, 1.0))))
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


def test_heavy_tails_take_the_implicit_loss_unless_another_is_asked_for() -> None:
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


def test_a_heavy_tailed_fit_says_where_its_middle_is_and_what_it_cannot_do() -> None:
    x = targets.GeneralizedExtremeValue(0.5).sample(500, generator=seeded())
    fit = fit_score(x, heavy_tails=True, recipe=Recipe(steps=2, check_every=1), generator=seeded())
    (centre,), (width,) = fit.middle  # type: ignore[misc]
    assert centre == pytest.approx(float(x.median()))
    assert width == pytest.approx(float((x - x.median()).abs().median()))
    assert "in coordinates of heavy tails" in repr(fit)
    metropolis_hastings(fit, StudentWalk(1.0), LineIntegral("adaptive", coordinates=fit.middle))
    with pytest.raises(ValueError, match="expected noise with a covariance, got noise in coordinates of heavy tails"):
        _ = fit.covariance
    with pytest.raises(ValueError, match=r"one by ScoreMLP\. Fit it with MultilevelDenoising\(\)"):
        fit.at(0.1)
    with pytest.raises(ValueError, match="expected a score with heavy tails, got one without"):
        _ = fit_score(x, recipe=Recipe(steps=1, check_every=1), generator=seeded()).middle
