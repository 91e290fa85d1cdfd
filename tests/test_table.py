"""Kinds of columns: how they are found, that values survive, that no bound is broken, and what a log volume means."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scoremh.estimator.table import CORNER_STD, Category, Column, Constant, PointMasses, Smooth, Steps, Table

N = 2000


def random() -> np.random.Generator:
    return np.random.default_rng(3)


def found_kinds() -> dict[str, tuple[NDArray[Any], str]]:
    """Return values by what they are, with the kind that they should be found to be."""
    r = random()
    return {
        "normal": (r.normal(size=N), "real"),
        "two modes": (np.where(r.random(N) < 0.5, -4, 4) + r.normal(size=N), "real"),
        "far from 0": (100 + 5 * r.normal(size=N), "real"),
        "Laplace": (r.laplace(size=N), "real"),
        "uniform": (r.uniform(2.3, 7.9, N), "interval 2.3 to 7.9"),
        "shares": (r.beta(0.5, 0.5, N), "interval 0 to 1"),
        "per cent": (100 * r.beta(0.8, 0.8, N), "interval 0 to 100"),
        "exponential": (r.exponential(size=N), "positive"),
        "log-normal": (np.exp(r.normal(size=N)), "positive"),
        "leaning on its end": (5 - r.exponential(size=N), "below 5"),
        "Student": (r.standard_t(2, N), "heavy-tailed"),
        "zeros": (np.where(r.random(N) < 0.2, 0, r.exponential(size=N)), "positive, and exactly 0"),
        "clipped": (np.clip(r.normal(0.5, 0.4, N), 0, 1), "interval 0 to 1, and exactly 0 or 1"),
        "whole": (r.poisson(30, N), "count"),
        "skewed counts": (r.geometric(0.02, N) - 1, "count"),
        "six levels": (r.integers(3, 9, N), "ordered, 6 levels"),
        "two values": (r.random(N) < 0.3, "category, 2 levels"),
        "decimals": (np.round(r.normal(size=N), 1), "rounded to 0.1"),
        "constant": (np.full(N, 7.0), "constant 7"),
        "density 0 at 0": (r.beta(2, 5, N), "positive, up to 1"),
        "angles": (r.vonmises(1, 0.7, N), "interval -3.14159 to 3.14159"),
        "at one end, not skewed": (r.beta(4, 1, N), "below 1, from 0"),
        "thinning out above 0": (r.weibull(4, N), "real, from 0"),
        "multiples": (25 * np.round(160 + 20 * r.normal(size=N)), "rounded to 25"),
        "millions": (1e7 * r.normal(size=N), "real"),
    }


CASES = found_kinds()
ROWS = np.stack([np.asarray(values, np.float64) for values, _ in CASES.values()], 1)
TABLE = Table.find(ROWS, list(CASES))


@pytest.mark.parametrize("name", CASES)
def test_kinds_are_found_from_values(name: str) -> None:
    assert str(TABLE.columns[list(CASES).index(name)]) == CASES[name][1]


def test_few_rows_have_no_bounds() -> None:
    assert str(Table.find(random().uniform(size=(60, 1)), ["x"]).columns[0]) == "real, from 0, up to 1"


LIMITS: dict[
    str, tuple[Callable[[np.random.Generator], NDArray[Any]], float, float]
] = {  # values, and what no draw passes
    "sizes": (lambda r: r.weibull(4, N), 0.0, math.inf),
    "shares": (lambda r: r.beta(6, 6, N), 0.0, 1.0),
    "shares, rounded": (lambda r: r.beta(3, 3, N).round(2), 0.0, 1.0),
    "per cent": (lambda r: 100 * r.beta(6, 3, N), 0.0, 100.0),
    "months": (lambda r: r.integers(1, 13, N).astype(float), 1.0, 12.0),
    "ages from 18": (lambda r: 18 + np.floor(r.exponential(12, N)), 18.0, math.inf),
    "multiples of 3": (lambda r: 3 * np.round(np.clip(16 + 6 * r.normal(size=N), 0, 33)), 0.0, 99.0),
    "a tail that ends near 100": (lambda r: r.exponential(11.5, N).clip(max=97), 0.0, math.inf),
    "far from 0": (lambda r: 100 + 5 * r.random(N) ** 0.2, -math.inf, math.inf),
    "negative": (lambda r: r.normal(0.2, 0.1, N), -math.inf, math.inf),
}


@pytest.mark.parametrize("name", LIMITS)
def test_draws_do_not_pass_what_no_value_passes(name: str) -> None:
    law, low, high = LIMITS[name]
    values = law(random())
    column = Table.find(values[:, None], ["x"]).columns[0]
    u = column.coordinates(torch.from_numpy(values), torch.Generator().manual_seed(0))
    wide = u.mean() + 8 * (u - u.mean())
    x = column.values(wide)
    assert low <= float(x.min())
    assert float(x.max()) <= high
    if math.isinf(low):
        assert float(x.min()) < min(0.0, values.min())
    given = Table.find(values[:, None], ["x"], {"x": "real"}).columns[0]  # who gives a kind, knows better
    assert given == Smooth()


def test_draws_beyond_a_limit_are_reflected_and_do_not_gather_there() -> None:
    column = Smooth(limits=(0.0, 1.0))
    u = torch.tensor([[-0.25], [0.25], [1.25], [-7.0]], dtype=torch.float64)
    assert column.values(u).tolist() == [0.25, 0.25, 0.75, 0.0]
    assert column.possible(torch.tensor([-0.1, 0.5])).all()  # a row beyond is rare, and not impossible
    table, lost = Table(("x",), (Smooth(limits=(0.0, math.inf)),)), torch.tensor([[math.inf]], dtype=torch.float64)
    assert table.numbers(lost).isinf().all()  # what is not finite stays visible
    assert np.isinf(table.within_bounds(lost.numpy(), np.float32)).all()
    assert table.within_bounds(np.zeros((1, 1)), np.float32) == 0


@pytest.mark.parametrize(
    "values",
    [
        1e20 * np.random.default_rng(0).normal(size=N),
        (1e12 * np.random.default_rng(0).normal(size=N)).astype(np.float32),
    ],
)
def test_numbers_that_floating_point_makes_whole_are_real(values: NDArray[Any]) -> None:
    assert str(Table.find(values[:, None], ["x"]).columns[0]) == "real"


def test_a_grid_has_one_zero() -> None:
    column = Table.find(random().normal(size=(N, 1)).round(1), ["x"]).columns[0]
    drawn = column.values(torch.linspace(-1, 1, 1001, dtype=torch.float64)[:, None])
    zeros = drawn[drawn == 0]
    assert len(zeros) > 1
    assert not zeros.signbit().any()


def test_what_lies_beyond_the_ends_of_a_grid_cannot_be() -> None:
    column = Table.find(random().integers(1, 13, (N, 1)), ["month"]).columns[0]
    assert column.possible(torch.tensor([0.0, 1.0, 12.0, 13.0])).tolist() == [False, True, True, False]


def test_one_value_beside_a_bound_is_a_category() -> None:
    values = np.array([0.0] * 30 + [3.0] * 20)[:, None]
    assert str(Table.find(values, ["x"], {"x": "positive"}).columns[0]) == "category, 2 levels"


@pytest.mark.parametrize(("centre", "scale"), [(0.0, 1e-8), (5.0, 1e-8), (0.0, 1e-300)])
def test_what_differs_by_less_than_a_step_lies_on_no_grid(centre: float, scale: float) -> None:
    rows = centre + scale * random().normal(size=(N, 1))
    table = Table.find(rows, ["x"])
    assert table.is_plain
    np.testing.assert_array_equal(table.numbers(table.coordinates(rows)).numpy(), rows)


def test_values_survive_with_noise_and_in_the_middle() -> None:
    noisy = TABLE.coordinates(ROWS, torch.Generator().manual_seed(0))
    assert noisy.shape == (N, TABLE.width) == (N, len(TABLE.coordinate_names))
    assert bool(noisy.isfinite().all())
    np.testing.assert_allclose(TABLE.numbers(noisy).numpy(), ROWS, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(TABLE.numbers(TABLE.centre(ROWS)[0]).numpy(), ROWS, rtol=1e-12, atol=1e-12)
    assert TABLE.possible(ROWS).all()


def test_a_table_survives_json() -> None:
    assert Table.from_json(json.loads(json.dumps(TABLE.to_json(), allow_nan=False))) == TABLE


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_bound_is_broken_by_a_million_points_anywhere(dtype: Any) -> None:
    names = [name for name, column in zip(TABLE.names, TABLE.columns, strict=True) if column != Smooth()]
    table = Table(tuple(names), tuple(column for column in TABLE.columns if column != Smooth()))
    g = torch.Generator().manual_seed(0)
    for scale in (1.0, 15.0):  # 10^6 points, in ten parts
        for _ in range(5):
            points = scale * torch.randn(100_000, table.width, generator=g)
            rows = table.within_bounds(table.numbers(points).numpy(), dtype)
            for j, column in enumerate(table.columns):
                low, high = column.bounds
                assert np.isfinite(rows[:, j]).all(), names[j]
                open_ended = isinstance(column, Smooth)
                assert (rows[:, j] > low).all() if open_ended else (rows[:, j] >= low).all(), names[j]
                assert (rows[:, j] < high).all() if open_ended else (rows[:, j] <= high).all(), names[j]


COLUMNS: dict[str, Column] = {
    "ordered": Steps((1.0, 2.0, 5.0), 1.0, (0.0, 2.0), True, Smooth()),
    "count": Steps((), 1.0, (0.0, math.inf), False, Smooth(-0.5)),
    "category": Category((0.0, 1.0, 2.0, 3.0)),
    "zeros": PointMasses(Smooth(0.0), (True, False), (-2.0, 3.0), 1.0),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_log_volume_is_one_over_the_density_of_the_noise(name: str) -> None:
    """With p(u) = P(x) q(u | x), what `centre` says makes P(x) of p in the middle: q there, from a million draws."""
    column, value = COLUMNS[name], torch.full((1_000_000,), 2.0 if name != "zeros" else 0.0, dtype=torch.float64)
    u = column.coordinates(value, torch.Generator().manual_seed(1))
    (middle,), (log_volume,) = column.centre(value[:1])
    radius = 0.1 * float(log_volume.exp()) ** (1 / column.width)
    near = float(((u - middle).norm(dim=1) < radius).double().mean())
    ball = math.pi ** (column.width / 2) / math.gamma(column.width / 2 + 1) * radius**column.width
    assert math.log(near / ball) == pytest.approx(-float(log_volume), abs=0.1)


def test_densities_gain_the_volume_of_their_map() -> None:
    for column in (Smooth(0.0), Smooth(0.0, 1.0), Smooth(-math.inf, 5.0), Smooth(middle=(1.0, 2.0))):
        x = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64, requires_grad=True)
        u, log_volume = column.centre(x)
        (slope,) = torch.autograd.grad(u.sum(), x)
        torch.testing.assert_close(log_volume, slope.abs().log())


def test_corners_are_equally_far_from_each_other() -> None:
    for levels in (2, 3, 10):
        corners = Category(tuple(map(float, range(levels)))).corners
        distances = torch.cdist(corners, corners)
        off = ~torch.eye(levels, dtype=torch.bool)
        torch.testing.assert_close(distances[off], torch.full_like(distances[off], 2.0))
    assert CORNER_STD < 0.3  # 3 of these fit into half the distance


def test_what_cannot_be_is_found_impossible() -> None:
    table = Table(("a", "b", "c"), (Smooth(0.0), Category((0.0, 2.0)), Constant(1.0)))
    rows = np.array([[1.0, 0.0, 1.0], [-1.0, 0.0, 1.0], [1.0, 1.0, 1.0], [1.0, 2.0, 3.0]])
    assert table.possible(rows).tolist() == [True, False, False, False]


def test_given_kinds_by_name_and_position() -> None:
    r = random()
    rows = np.c_[r.exponential(size=N) + 1, r.integers(0, 30, N), r.uniform(0.2, 0.8, N), r.integers(0, 3, N)]
    kinds = {"tau": "positive", 1: "ordered", 2: (0, 1), "sex": "category"}
    found = Table.find(rows, ["tau", "quality", "share", "sex"], kinds)
    assert [str(column) for column in found.columns] == [
        "positive",
        "ordered, 30 levels",
        "interval 0 to 1",
        "category, 3 levels",
    ]


WRONG: dict[str, tuple[Any, str]] = {
    "an unknown column": ({"y": "real"}, "columns among 'x', got 'y'"),
    "an unknown kind": ({"x": "small"}, "the kind of column 'x'"),
    "bounds the wrong way": ({0: (1, 0)}, "bounds of column 'x' in order"),
    "values beyond": ({"x": (0, 1)}, "column 'x' of numbers from 0 to 1, got"),
    "not whole": ({"x": "count"}, "column 'x' of whole numbers, got"),
    "negative": ({"x": "positive"}, "column 'x' of numbers of at least 0, got"),
    "too many levels": ({"x": "category"}, "at most 32 levels in the category 'x', got"),
}


@pytest.mark.parametrize("case", WRONG)
def test_kinds_that_cannot_be_are_refused(case: str) -> None:
    kinds, text = WRONG[case]
    with pytest.raises(ValueError, match=text):
        Table.find(random().normal(size=(100, 1)), ["x"], kinds)


def test_few_values_at_a_bound_are_moved_within_it() -> None:
    x = random().beta(0.8, 0.8, N)
    x[:3] = 0.0
    table = Table.find(x[:, None], ["x"], {"x": (0, 1)})
    assert str(table.columns[0]) == "interval 0 to 1"
    u = table.coordinates(x[:, None])
    assert bool(u.isfinite().all())
    assert 0 < float(table.numbers(u)[0, 0]) < x[3:].min()
    torch.testing.assert_close(table.coordinates(x[:1, None]), u[:1])  # whatever other rows are there
    assert table.possible(x[:1, None]).all()


def test_a_table_of_constants_is_refused() -> None:
    with pytest.raises(ValueError, match="columns that vary, got a constant at each"):
        Table.find(np.ones((100, 2)), ["x", "y"])
