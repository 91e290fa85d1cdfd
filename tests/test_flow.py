"""The probability flow: its order, what its discretisation changes, and its former integrator as a wrong twin."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from scoremh import Target, annealing, metrics, targets
from scoremh.types import TargetLike

LOW = 0.02
MAX_VARIANCE_CHANGE, MAX_WEIGHT_CHANGE = 0.005, 0.005


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mixture(weights: Tensor, means: Tensor, std: Tensor) -> targets.GaussianMixture:
    """Return a mixture of round normal distributions in standard units."""
    mean = weights @ means
    scale = ((weights @ (means - mean).square()).mean() + weights @ std.square()).sqrt()
    d = means.shape[1]
    covariances = (std / scale).square()[:, None, None] * torch.eye(d, dtype=torch.float64)
    return targets.GaussianMixture(weights, (means - mean) / scale, covariances)


def curve(points: Tensor, std: float) -> targets.GaussianMixture:
    n = len(points)
    return mixture(torch.full((n,), 1 / n, dtype=torch.float64), points, torch.full((n,), std, dtype=torch.float64))


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


ANGLES = torch.linspace(0, 2 * math.pi, 101, dtype=torch.float64)[:-1]
GRID = torch.linspace(-2.5, 2.5, 101, dtype=torch.float64)
MODES = {
    "two modes": mixture(double(0.7, 0.3), double(-3, 0, 3, 0).reshape(2, 2), double(0.7, 0.25)),
    "five modes in 6-D": mixture(
        double(0.4, 0.3, 0.15, 0.1, 0.05),
        3 * torch.randn(5, 6, generator=seeded(), dtype=torch.float64),
        double(*[0.6] * 5),
    ),
}
CURVED = {
    "ring": curve(torch.stack([ANGLES.cos(), ANGLES.sin()], 1), 0.06),
    "banana": curve(torch.stack([GRID, GRID.square()], 1), 0.15),
}


def in_the_variance(target_at: Callable[[float], TargetLike], x: Tensor, high: float) -> Tensor:
    """Return draws carried down by the integrator of 0.2.0: Heun's method in sigma^2 on eight geometric levels."""
    for start, end in itertools.pairwise([*annealing.geometric(high, LOW, 8), 0.0]):
        first = target_at(start).score
        assert first is not None
        step = x + (start**2 - end**2) / 2 * (slope := first(x))
        if end == 0:
            return step
        second = target_at(end).score
        assert second is not None
        x = x + (start**2 - end**2) / 4 * (slope + second(step))
    return x


def carried(law: targets.GaussianMixture, x: Tensor, high: float) -> Tensor:
    return annealing.flow(law.at, [*annealing.flow_levels(high, LOW), 0.0], x)


def finely(law: targets.GaussianMixture, x: Tensor, high: float) -> Tensor:
    return annealing.flow(law.at, [*annealing.geometric(high, LOW, 60), 0.0], x)


def weights(law: targets.GaussianMixture, x: Tensor) -> Tensor:
    nearest = torch.cdist(x, law.means).argmin(1)
    return torch.bincount(nearest, minlength=len(law.means)) / len(x)


def spread(law: targets.GaussianMixture, x: Tensor) -> float:
    """Return the mean squared distance to the nearest mode, or to the curve."""
    return float(torch.cdist(x, law.means).amin(1).square().mean())


def test_the_flow_of_a_normal_distribution_is_known_and_its_error_is_of_fourth_order() -> None:
    covariance = torch.tensor([[2.0, 0.6], [0.6, 1.0]], dtype=torch.float64)
    x = torch.randn(20, 2, generator=seeded(), dtype=torch.float64)

    def target_at(level: float) -> Target:  # N(0, C) with noise level^2 C
        return Target(lambda x: -torch.linalg.solve(covariance, x.T).T / (1 + level**2))

    def error(steps: int) -> float:
        moved = annealing.flow(target_at, annealing.geometric(2.0, 0.1, steps), x, covariance=covariance)
        return float((moved / (x * (1.01 / 5.0) ** 0.5) - 1).abs().max())

    assert error(11) < 1e-5
    assert 12 < error(11) / error(21) < 20
    sharp = annealing.flow(target_at, [0.1, 0.0], x, covariance=covariance)
    assert not sharp.is_inference()
    torch.testing.assert_close(sharp, x / 1.01**0.5, rtol=1e-4, atol=0)  # and not x / 1.01, the mean of x given noise


@pytest.mark.parametrize("high", [0.3, 0.6, 1.0, 2.0, 5.0])
def test_no_width_of_a_normal_distribution_changes_by_more_than_half_a_percent(high: float) -> None:
    widths = torch.logspace(-2.5, 0.5, 61, dtype=torch.float64)

    def target_at(level: float) -> Target:
        return Target(lambda x: -x / (widths.square() + level**2))

    x = (widths.square() + high**2).sqrt()[None]
    exact = widths.square() + LOW**2
    found = annealing.flow(target_at, annealing.flow_levels(high, LOW), x)[0].square()
    assert float((found / exact - 1).abs().max()) < MAX_VARIANCE_CHANGE
    removed = annealing.flow(target_at, [*annealing.flow_levels(high, LOW), 0.0], x)[0].square()
    wide = widths > 2.5 * LOW  # where a score at LOW can know the width
    assert float((removed / widths.square() - 1)[wide].abs().max()) < 2 * MAX_VARIANCE_CHANGE


@pytest.mark.parametrize("high", [0.6, 2.0, 5.0])
@pytest.mark.parametrize("law", [*MODES, *CURVED])
def test_the_discretisation_changes_no_variance_and_no_weight(law: str, high: float) -> None:
    """The same starts as those of the flow on 60 levels: what differs is the discretisation alone."""
    known = (MODES | CURVED)[law]
    x = known.at(high).sample(2000, generator=seeded())
    found, fine, twin = carried(known, x, high), finely(known, x, high), in_the_variance(known.at, x, high)
    assert float((found.var(0) / fine.var(0) - 1).abs().max()) < MAX_VARIANCE_CHANGE
    if law in MODES:
        assert float((weights(known, found) - weights(known, fine)).abs().max()) < MAX_WEIGHT_CHANGE
    if high >= 2:
        assert float((twin.var(0) / fine.var(0) - 1).abs().max()) > 2 * MAX_VARIANCE_CHANGE


@pytest.mark.parametrize("law", [*MODES, *CURVED])
def test_exact_blurred_draws_become_exact_draws(law: str) -> None:
    known, n = (MODES | CURVED)[law], 2000
    x, y = known.at(2.0).sample(n, generator=seeded(1)), known.sample(n, generator=seeded(2))
    found, twin = carried(known, x, 2.0), in_the_variance(known.at, x, 2.0)
    assert metrics.two_sample_test(found[:1000], y[:1000], permutations=200, generator=seeded(3)).p_value > 0.005
    assert spread(known, found) == pytest.approx(spread(known, y), rel=0.08)
    assert spread(known, twin) < 0.75 * spread(known, y)


def test_the_two_sample_test_rejects_the_former_integrator() -> None:
    known, n = MODES["five modes in 6-D"], 2000
    x, y = known.at(2.0).sample(n, generator=seeded(1)), known.sample(n, generator=seeded(2))
    twin = in_the_variance(known.at, x, 2.0)
    assert metrics.two_sample_test(twin, y, permutations=400, generator=seeded(3)).p_value < 0.005
