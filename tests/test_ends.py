"""Bounds of columns: the coefficient they are found by, hardly any false alarm, hits, and the numbers taken."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from scoremh.estimator import table

Law = Callable[[np.random.Generator, int], NDArray[np.float64]]
SEEDS, SIZES = 100, (200, 2000, 10_000)
MAX_FALSE_ALARMS = 7  # of 200 ends: with a rate of 1 %, more come once in 1,000 runs


def modes(r: np.random.Generator, n: int) -> NDArray[np.float64]:
    which = r.choice(3, n, p=[0.3, 0.3, 0.4])
    return np.array([-5.0, 1.0, 3.0])[which] + np.array([0.2, 0.6, 1.0])[which] * r.normal(size=n)


WITHOUT_BOUNDS: dict[str, Law] = {
    "normal": lambda r, n: r.normal(size=n),
    "normal, far from 0": lambda r, n: 10 + 2 * r.normal(size=n),
    "Student, 5": lambda r, n: r.standard_t(5, n),
    "Student, 3": lambda r, n: r.standard_t(3, n),
    "Laplace": lambda r, n: r.laplace(size=n),
    "Gumbel": lambda r, n: r.gumbel(size=n),
    "two modes": lambda r, n: np.where(r.random(n) < 0.5, -4, 4) + r.normal(size=n),
    "three modes": modes,
    "a ring": lambda r, n: np.cos(2 * np.pi * r.random(n)) + 0.1 * r.normal(size=n),
    "uniform with noise": lambda r, n: r.random(n) + 0.1 * r.normal(size=n),
    "exponential with noise": lambda r, n: r.exponential(size=n) + 0.2 * r.normal(size=n),
}
WITH_BOUNDS: dict[str, tuple[Law, float, float]] = {
    "shares of density 0 at 0": (lambda r, n: r.beta(2, 5, n), 0.0, math.nan),  # (1 - x)^4 at 1 is like a normal tail
    "shares of density 0 at both": (lambda r, n: r.beta(2, 2, n), 0.0, 1.0),
    "shares with poles": (lambda r, n: r.beta(0.7, 0.9, n), 0.0, 1.0),
    "at one bound, not skewed": (lambda r, n: r.beta(5, 1, n), -math.inf, 1.0),
    "angles": (lambda r, n: r.vonmises(0, 1, n), -math.pi, math.pi),
    "degrees": (lambda r, n: np.degrees(r.vonmises(2, 0.5, n) % (2 * np.pi)), 0.0, 360.0),
    "half a normal": (lambda r, n: np.abs(r.normal(size=n)), 0.0, math.inf),
    "sizes": (lambda r, n: r.rayleigh(size=n), 0.0, math.inf),
}
POWER = {2000: 0.6, 10_000: 0.8}  # least share of seeds at which exactly these bounds are found


def found(law: Law, n: int) -> NDArray[np.float64]:
    return np.array([table.find_bounds(law(np.random.default_rng([n, seed]), n)) for seed in range(SEEDS)])


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", WITHOUT_BOUNDS)
def test_hardly_any_column_without_bounds_is_given_one(name: str, n: int) -> None:
    assert np.isfinite(found(WITHOUT_BOUNDS[name], n)).sum() <= MAX_FALSE_ALARMS


def test_false_alarms_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LIMITS", "LIMITS_OF_THE_OTHER_END"):
        monkeypatch.setattr(table, name, ((0.5, math.inf),))  # every end that is half a standard deviation off
    assert np.isfinite(found(WITHOUT_BOUNDS["normal"], 2000)).sum() > MAX_FALSE_ALARMS


@pytest.mark.parametrize("n", POWER)
@pytest.mark.parametrize("name", WITH_BOUNDS)
def test_bounds_are_found(name: str, n: int) -> None:
    law, *bounds = WITH_BOUNDS[name]
    known = ~np.isnan(bounds)
    hits = np.isclose(found(law, n)[:, known], np.array(bounds)[known]).all(1).mean()
    assert hits >= POWER[n]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0, 5.0])
def test_the_coefficient_of_a_power(power: float) -> None:
    """Of distances from the last of many points that lie like quantiles of t^a."""
    x = ((np.arange(20_000) + 0.5) / 20_000) ** (1 / power)
    assert table._gini(1 - x) == pytest.approx(1 / (2 + 1 / power), abs=1e-3)


@pytest.mark.parametrize(
    ("end", "reach", "bound"),
    [(0.004, 0.01, 0.0), (2.303, 0.01, 2.3), (-3.14, 0.004, -math.pi), (-359.2, 1.5, -360.0), (7.0, 0.0, 7.0)],
)
def test_the_roundest_number(end: float, reach: float, bound: float) -> None:
    assert table.roundest(end, reach)[0] == pytest.approx(bound, abs=1e-12)


def test_a_bound_is_within_reach_and_never_above_the_end() -> None:
    r = np.random.default_rng(0)
    for end, reach in zip(
        10 ** r.uniform(-8, 8, 500) * r.choice([-1, 1], 500), 10 ** r.uniform(-9, 3, 500), strict=True
    ):
        bound, step = table.roundest(end, reach)
        assert end - max(table.ZERO_REACH * reach, 1e-12) <= bound <= end
        assert step > 0


def test_a_small_mode_is_no_bound() -> None:
    """5 % of the values in a mode of their own: distances to the gap beyond it look like those from a bound."""
    law: Law = lambda r, n: np.where(r.random(n) < 0.05, -6, 0) + r.normal(size=n)  # noqa: E731
    assert np.isfinite(found(law, 2000)[:, 0]).mean() <= 0.2
