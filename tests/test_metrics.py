"""Metrics against closed forms and independent implementations; tests against their declared error rates."""

import math
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import ot
import pytest
import torch
from scipy import stats
from scipy.optimize import linear_sum_assignment
from sklearn.metrics.pairwise import rbf_kernel
from torch import Tensor

from scoremh import datasets, metrics
from tests.cases import seeded


def normal(n: int, *event: int, seed: int = 0) -> Tensor:
    return torch.randn(n, *event, generator=seeded(seed), dtype=torch.float64)


DISTANCES: dict[str, Any] = {
    "w1": metrics.w1,
    "w2": metrics.w2,
    "sliced_w2": lambda x, y: metrics.sliced_w2(x, y, generator=seeded()),
    "energy_distance": metrics.energy_distance,
    "mmd_squared": lambda x, y: metrics.mmd_squared(x, y, bandwidth=1.0, unbiased=False),
}


@pytest.mark.parametrize("name", DISTANCES)
def test_a_sample_is_at_no_distance_from_itself_in_any_order(name: str) -> None:
    x = normal(60, 3)
    assert DISTANCES[name](x, x[torch.randperm(60, generator=seeded(1))]) == pytest.approx(0, abs=1e-9)
    assert DISTANCES[name](x, x + 1) > 0.1


@pytest.mark.parametrize("name", DISTANCES)
def test_distances_are_symmetric_and_do_not_move_with_the_samples(name: str) -> None:
    x, y = normal(50, 2), 1 + 0.5 * normal(70, 2, seed=1)
    value = DISTANCES[name](x, y)
    assert DISTANCES[name](y, x) == pytest.approx(value, rel=1e-6)
    assert DISTANCES[name](x + 1000, y + 1000) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("name", DISTANCES)
def test_events_of_any_shape_and_both_dtypes(name: str) -> None:
    x, y = normal(40, 2, 3), 1 + normal(40, 2, 3, seed=1)
    value = DISTANCES[name](x, y)
    assert isinstance(value, float)
    assert DISTANCES[name](x.flatten(1), y.flatten(1)) == pytest.approx(value, rel=1e-9)
    assert DISTANCES[name](x.float(), y.float()) == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize("name", DISTANCES)
def test_pieces_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = normal(50, 2), 1 + normal(33, 2, seed=1)
    whole = DISTANCES[name](x, y)
    monkeypatch.setattr(metrics, "MAX_DISTANCES", 100)
    assert DISTANCES[name](x, y) == pytest.approx(whole, rel=1e-9)


@pytest.mark.slow
def test_a_translation_is_transported_by_its_length() -> None:
    x, v = normal(80, 3), torch.tensor([1.0, -2.0, 2.0], dtype=torch.float64)
    assert metrics.w1(x, x + v) == pytest.approx(3)
    assert metrics.w2(x, x + v) == pytest.approx(3)
    sliced = metrics.sliced_w2(x, x + v, projections=20_000, generator=seeded())
    assert sliced == pytest.approx(math.sqrt(9 / 3), rel=0.02)  # E (v.u)^2 = |v|^2 / d over directions u


def test_transport_scales_with_the_samples() -> None:
    x, y = normal(60, 2), normal(60, 2, seed=1) + 1
    assert metrics.w1(3 * x, 3 * y) == pytest.approx(3 * metrics.w1(x, y))
    assert metrics.w2(3 * x, 3 * y) == pytest.approx(3 * metrics.w2(x, y))
    assert metrics.energy_distance(3 * x, 3 * y) == pytest.approx(3 * metrics.energy_distance(x, y))
    assert metrics.mmd_squared(3 * x, 3 * y, bandwidth=3.0) == pytest.approx(metrics.mmd_squared(x, y, bandwidth=1.0))


def test_the_distance_between_two_normals_matches_that_of_the_closed_form() -> None:
    """W2 of N(0, 1) and N(1, 4) is sqrt(1 + 1); the energy distance of two normals by its integral."""
    n = 200_000
    u = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    z = math.sqrt(2) * torch.erfinv(2 * u - 1)
    assert metrics.w2(z[:, None], 1 + 2 * z[:, None]) == pytest.approx(math.sqrt(2), abs=1e-3)
    assert metrics.w1(z[:, None], 3 + z[:, None]) == pytest.approx(3)
    few = z[::100, None]
    expected = 2 * folded(1.0, math.sqrt(5)) - folded(0.0, math.sqrt(2)) - folded(0.0, math.sqrt(8))
    assert metrics.energy_distance(few, 1 + 2 * few) == pytest.approx(expected, rel=0.01)
    k = [1 / math.sqrt(1 + s) * math.exp(-m / (2 * (1 + s))) for s, m in ((2, 0), (8, 0), (5, 1))]
    assert metrics.mmd_squared(few, 1 + 2 * few, bandwidth=1.0, unbiased=False) == pytest.approx(
        k[0] + k[1] - 2 * k[2], rel=0.01
    )


def folded(mean: float, std: float) -> float:
    """E|N(mean, std^2)|."""
    ratio = mean / std
    return float(std * math.sqrt(2 / math.pi) * math.exp(-(ratio**2) / 2) + mean * (1 - 2 * stats.norm.cdf(-ratio)))


@pytest.mark.parametrize(("n", "m"), [(60, 60), (40, 70)])
def test_exact_transport_matches_that_of_other_solvers(n: int, m: int) -> None:
    x, y = normal(n, 2), normal(m, 2, seed=1) * 1.5 + 0.3
    distance = torch.cdist(x, y).numpy()
    assert metrics.w1(x, y) == pytest.approx(float(ot.emd2([], [], distance)))
    assert metrics.w2(x, y) == pytest.approx(math.sqrt(float(ot.emd2([], [], distance**2))))
    if n == m:
        assert metrics.w1(x, y) == pytest.approx(float(distance[linear_sum_assignment(distance)].mean()))
    assert metrics.w1(x[:, :1], y[:, :1]) == pytest.approx(stats.wasserstein_distance(x[:, 0], y[:, 0]))
    assert metrics.sliced_w2(x[:, :1], y[:, :1]) == pytest.approx(metrics.w2(x[:, :1], y[:, :1]))


@pytest.mark.parametrize(("n", "m"), [(50, 50), (30, 45)])
@pytest.mark.parametrize("unbiased", [True, False])
def test_means_over_pairs_match_those_of_loops(n: int, m: int, unbiased: bool) -> None:
    x, y = normal(n, 2), normal(m, 2, seed=1) + 0.5

    def mean(a: Tensor, b: Tensor, k: Any, *, own: bool) -> float:
        values = [k(p, q) for i, p in enumerate(a) for j, q in enumerate(b) if not (own and unbiased and i == j)]
        return float(sum(values) / len(values))

    def distance(p: Tensor, q: Tensor) -> float:
        return float((p - q).norm())

    def kernel(p: Tensor, q: Tensor) -> float:
        return math.exp(-float((p - q).square().sum()) / (2 * 0.7**2))

    sums = [(mean(x, x, k, own=True), mean(y, y, k, own=True), mean(x, y, k, own=False)) for k in (distance, kernel)]
    energy, mmd = (2 * sums[0][2] - sums[0][0] - sums[0][1]), (sums[1][0] + sums[1][1] - 2 * sums[1][2])
    assert metrics.energy_distance(x, y, unbiased=unbiased) == pytest.approx(energy)
    assert metrics.mmd_squared(x, y, bandwidth=0.7, unbiased=unbiased) == pytest.approx(mmd)


def test_means_over_pairs_match_those_of_other_libraries() -> None:
    x, y = normal(80, 1), normal(60, 1, seed=1) + 0.5
    assert metrics.energy_distance(x, y) == pytest.approx(stats.energy_distance(x[:, 0], y[:, 0]) ** 2)
    width = float(torch.pdist(y).median())
    k = [float(rbf_kernel(a, b, gamma=0.5 / width**2).mean()) for a, b in ((x, x), (y, y), (x, y))]
    assert metrics.mmd_squared(x, y, unbiased=False) == pytest.approx(k[0] + k[1] - 2 * k[2])


@pytest.mark.slow
def test_the_permutation_test_keeps_its_level() -> None:
    """Under one law the p-values are uniform on 1/40, ..., 1: a false alarm in 1,000 runs of this test."""
    values = [
        metrics.two_sample_test(
            normal(25, 2, seed=seed), normal(35, 2, seed=1000 + seed), permutations=39, generator=seeded(seed)
        ).p_value
        for seed in range(400)
    ]
    jittered = np.array(values) - np.random.default_rng(0).uniform(0, 1 / 40, len(values))
    assert stats.kstest(jittered, "uniform").pvalue > 1e-3


def test_the_permutation_test_has_power_and_says_its_distance() -> None:
    x, y = normal(300, 2), normal(200, 2, seed=1) * 1.5
    verdict = metrics.two_sample_test(x, y, permutations=199, generator=seeded())
    assert verdict.p_value == 1 / 200
    assert verdict.energy_distance == pytest.approx(metrics.energy_distance(x, y))
    same = metrics.two_sample_test(x, x.clone(), permutations=99, generator=seeded())
    assert same.p_value == 1


@pytest.mark.slow
def test_a_classifier_tells_what_differs() -> None:
    x, y = normal(500, 2), normal(700, 2, seed=1)
    assert metrics.c2st(x, y, generator=seeded()) == pytest.approx(0.5, abs=0.06)
    assert metrics.c2st(x, y + 5, generator=seeded()) > 0.97
    ring = torch.nn.functional.normalize(normal(500, 2, seed=2)) * 2
    assert metrics.c2st(x, ring, generator=seeded()) > 0.75  # the same mean, another shape
    assert metrics.c2st(x, y, generator=seeded(3)) == metrics.c2st(x, y, generator=seeded(3))


def test_a_floor_is_between_fresh_samples() -> None:
    found = metrics.floor(datasets.moons, metrics.energy_distance, 100, repeats=20, generator=seeded())
    assert len(found.values) == 20
    assert found.mean == pytest.approx(sum(found.values) / 20)
    expected = [
        metrics.energy_distance(datasets.moons(100, generator=seeded(i)), datasets.moons(100, generator=seeded(99 + i)))
        for i in range(20)
    ]
    assert found.mean == pytest.approx(sum(expected) / 20, rel=0.5)
    data = metrics.floor(normal(200, 2), metrics.energy_distance, 100, repeats=3, generator=seeded())
    assert 0 < data.mean < 0.2  # disjoint halves: a shared point would pull it down to 0
    again = metrics.floor(normal(200, 2), metrics.energy_distance, 100, repeats=3, generator=seeded())
    assert data == again
    assert "between two samples of 100, 3 times" in str(data)


def test_modes_and_generators_are_left_as_they_were() -> None:
    x, y = normal(30, 2), normal(30, 2, seed=1)
    before = torch.random.get_rng_state()
    for mode in (True, False):
        with torch.set_grad_enabled(mode):
            for distance in DISTANCES.values():
                distance(x, y)
            metrics.two_sample_test(x, y, permutations=9)
            metrics.c2st(x, y)
            assert torch.is_grad_enabled() == mode
    assert torch.equal(before, torch.random.get_rng_state())
    assert isinstance(metrics.w1(x.requires_grad_(), y), float)


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "other dimensions": (
        lambda: metrics.w1(normal(5, 2), normal(5, 3)),
        ValueError,
        r"two samples of one event shape, got a float64 tensor of shape \(5, 2\) and .* \(5, 3\)",
    ),
    "no points": (lambda: metrics.w2(normal(0, 2), normal(5, 2)), ValueError, "x of shape .* with n of at least 1"),
    "NaN": (
        lambda: metrics.energy_distance(normal(5, 2), normal(5, 2) * math.nan),
        ValueError,
        "expected y to be finite, got NaN or inf in 5 of 5 rows",
    ),
    "a vector": (
        lambda: metrics.mmd_squared(normal(5), normal(5)),
        ValueError,
        r"x\[:, None\] if events are numbers, x\[None\]",
    ),
    "one point, unbiased": (
        lambda: metrics.energy_distance(normal(1, 2), normal(5, 2), unbiased=True),
        ValueError,
        "at least two points for an unbiased mean, got 1",
    ),
    "no bandwidth": (lambda: metrics.mmd_squared(normal(5, 2), normal(5, 2) * 0), ValueError, "points that differ"),
    "a negative bandwidth": (
        lambda: metrics.mmd_squared(normal(5, 2), normal(5, 2), bandwidth=-1.0),
        ValueError,
        "bandwidth to be finite and above 0",
    ),
    "no directions": (lambda: metrics.sliced_w2(normal(5, 2), normal(5, 2), projections=0), ValueError, "projections"),
    "too few to classify": (lambda: metrics.c2st(normal(3, 2), normal(9, 2)), ValueError, "at least 5 points in each"),
    "too few for a floor": (
        lambda: metrics.floor(normal(150, 2), metrics.w1, 100),
        ValueError,
        "at least 200 points, got 150 points",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rejected(case: str) -> None:
    attempt, kind, text = REFUSED[case]
    with pytest.raises(kind, match=text):
        attempt()


@pytest.mark.slow
def test_twenty_thousand_points_fit_in_four_gigabytes() -> None:
    script = """
        import resource, torch
        from scoremh import metrics
        x = torch.randn(20_000, 2)
        y = torch.randn(20_000, 2)
        metrics.energy_distance(x, y), metrics.mmd_squared(x, y), metrics.sliced_w2(x, y)
        metrics.two_sample_test(x[:10_000], y[:10_000], permutations=99)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 4
