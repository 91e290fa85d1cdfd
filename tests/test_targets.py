"""Score against autograd, density against scipy, draws against the CDF.

The sampler is judged through Rosenblatt's map: conditional CDFs turn an exact draw into independent uniforms. Every
uniform, and every pair of them as a sum modulo 1, goes through a Kolmogorov-Smirnov test.
"""

import inspect
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from scoremh import Exact, RandomWalk, metropolis_hastings, targets
from scoremh.targets.distributions import Distribution

Array = np.ndarray[Any, np.dtype[np.float64]]

DRAWS = 20_000
FALSE_ALARM = 1e-4  # that any of the sampler tests of this file fails although all is right

MEAN = np.array([1.0, -2.0, 0.5])
COVARIANCE = np.array([[2.0, 0.6, -0.4], [0.6, 1.0, 0.3], [-0.4, 0.3, 0.5]])
WEIGHTS = np.array([0.5, 0.3, 0.2])
MEANS = np.array([[0.0, 0.0], [4.0, 1.0], [-3.0, 5.0]])
COVARIANCES = np.array([[[1.0, 0.5], [0.5, 2.0]], [[0.3, 0.0], [0.0, 1.0]], [[2.0, -1.0], [-1.0, 1.0]]])
DF = 3.5
XI, MU, SIGMA = np.array([-0.4, 0.0, 0.6]), np.array([2.0, -1.0, 0.0]), np.array([0.5, 1.0, 3.0])
CURVATURE, WIDTH = 0.7, 1.5


class Case(NamedTuple):
    make: Callable[[torch.dtype], Any]
    log_density: Callable[[Array], Array]
    uniforms: Callable[[Array], Array]
    """Rosenblatt's map of x, `(draw, d)`."""


def whiten(x: Array) -> Array:
    return np.linalg.solve(np.linalg.cholesky(COVARIANCE), (x - MEAN).T).T


def student_uniforms(x: Array) -> Array:
    # Given the first i whitened coordinates, the next one is a t with df + i degrees of freedom, times a scale.
    z, i = whiten(x), np.arange(3)
    before = np.cumsum(z**2, axis=1) - z**2
    return np.asarray(stats.t.cdf(z * np.sqrt((DF + i) / (DF + before)), DF + i))


def mixture_log_density(x: Array) -> Array:
    parts = zip(WEIGHTS, MEANS, COVARIANCES, strict=True)
    return np.asarray(np.log(np.sum([w * stats.multivariate_normal(m, c).pdf(x) for w, m, c in parts], axis=0)))


def mixture_uniforms(x: Array) -> Array:
    std = np.sqrt(COVARIANCES[:, 0, 0])
    slope = COVARIANCES[:, 0, 1] / COVARIANCES[:, 0, 0]
    first, second = x[:, :1], x[:, 1:]
    given = WEIGHTS * stats.norm.pdf(first, MEANS[:, 0], std)
    mean = MEANS[:, 1] + slope * (first - MEANS[:, 0])
    conditional = stats.norm.cdf(second, mean, np.sqrt(COVARIANCES[:, 1, 1] - slope * COVARIANCES[:, 0, 1]))
    marginal = (WEIGHTS * stats.norm.cdf(first, MEANS[:, 0], std)).sum(1)
    return np.stack([marginal, (given * conditional).sum(1) / given.sum(1)], axis=1)


def banana_factors(x: Array) -> Any:
    mean = np.stack([0 * x[:, 0], CURVATURE * (x[:, 0] ** 2 - WIDTH**2)], axis=1)
    return stats.norm(mean, [WIDTH, 1.0])


def funnel_factors(x: Array) -> Any:
    std = np.exp(x[:, :1] / 2) * np.ones_like(x)
    std[:, 0] = WIDTH
    return stats.norm(0, std)


def tensors(*values: Array | float, dtype: torch.dtype) -> list[Tensor]:
    return [torch.tensor(value, dtype=dtype) for value in values]


CASES = {
    "gaussian": Case(
        lambda dtype: targets.Gaussian(*tensors(MEAN, COVARIANCE, dtype=dtype)),
        stats.multivariate_normal(MEAN, COVARIANCE).logpdf,
        lambda x: stats.norm.cdf(whiten(x)),
    ),
    "mixture": Case(
        lambda dtype: targets.GaussianMixture(*tensors(WEIGHTS, MEANS, COVARIANCES, dtype=dtype)),
        mixture_log_density,
        mixture_uniforms,
    ),
    "student": Case(
        lambda dtype: targets.StudentT(*tensors(DF, MEAN, COVARIANCE, dtype=dtype)),
        stats.multivariate_t(MEAN, COVARIANCE, DF).logpdf,
        student_uniforms,
    ),
    "extreme value": Case(
        lambda dtype: targets.GeneralizedExtremeValue(*tensors(XI, MU, SIGMA, dtype=dtype)),
        lambda x: stats.genextreme.logpdf(x, -XI, MU, SIGMA).sum(1),
        lambda x: stats.genextreme.cdf(x, -XI, MU, SIGMA),
    ),
    "gumbel": Case(
        lambda dtype: targets.GeneralizedExtremeValue(torch.tensor(0.0, dtype=dtype), 1.0, 2.0),
        lambda x: stats.gumbel_r.logpdf(x[:, 0], 1.0, 2.0),
        lambda x: stats.gumbel_r.cdf(x, 1.0, 2.0),
    ),
    "banana": Case(
        lambda dtype: targets.Banana(*tensors(CURVATURE, WIDTH, dtype=dtype)),
        lambda x: banana_factors(x).logpdf(x).sum(1),
        lambda x: banana_factors(x).cdf(x),
    ),
    "funnel": Case(
        lambda dtype: targets.Funnel(4, torch.tensor(WIDTH, dtype=dtype)),
        lambda x: funnel_factors(x).logpdf(x).sum(1),
        lambda x: funnel_factors(x).cdf(x),
    ),
}

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def close(a: Tensor, b: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_no_distribution_is_missing_from_the_cases() -> None:
    public = {c for name, c in inspect.getmembers(targets, inspect.isclass) if issubclass(c, Distribution)}
    assert public == {type(case.make(torch.float64)) for case in CASES.values()}


@each_case
def test_the_score_is_the_gradient_of_the_log_density(case: Case) -> None:
    target = case.make(torch.float64)
    x = target.sample(500, generator=seeded(0))
    close(target.score(x), torch.func.grad(lambda x: target.log_density(x).sum())(x), 1e-10)


@each_case
def test_the_log_density_is_that_of_scipy(case: Case) -> None:
    target = case.make(torch.float64)
    x = target.sample(500, generator=seeded(1))
    close(target.log_density(x), torch.tensor(case.log_density(x.numpy())), 1e-10)


def p_values(case: Case, x: Tensor) -> list[float]:
    u = case.uniforms(x.numpy())
    columns = [*u.T, *((a + b) % 1 for a, b in itertools.combinations(u.T, 2))]
    return [float(stats.kstest(column, "uniform").pvalue) for column in columns]


def threshold() -> float:
    """Return Bonferroni's share of the false alarms: one per p-value here, and one for the Student tail below."""
    d = [len(case.make(torch.float64).sample(1)[0]) for case in CASES.values()]
    return FALSE_ALARM / (sum(n + n * (n - 1) // 2 for n in d) + 1)


@each_case
def test_draws_follow_the_cdf(case: Case) -> None:
    x = case.make(torch.float64).sample(DRAWS, generator=seeded(2))
    assert min(p_values(case, x)) > threshold()


FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "scale of the last coordinate": lambda x: torch.cat([x[:, :-1], 1.1 * x[:, -1:]], dim=1),
    "location of the last coordinate": lambda x: torch.cat([x[:, :-1], x[:, -1:] + 0.1 * x[:, -1].std()], dim=1),
    "dependence of the coordinates": lambda x: x.reshape(-1, 4, x.shape[1]).sort(1).values.flatten(0, 1),
}


WRONG = [pair for pair in itertools.product(CASES, FAULTS) if pair != ("gumbel", "dependence of the coordinates")]


@pytest.mark.parametrize(("name", "fault"), WRONG)
def test_wrong_draws_do_not(name: str, fault: str) -> None:
    case = CASES[name]
    x = case.make(torch.float64).sample(DRAWS, generator=seeded(3))
    assert min(p_values(case, FAULTS[fault](x))) < threshold()


@each_case
@each_dtype
def test_draws_have_the_dtype_of_the_parameters_and_the_bits_of_the_seed(case: Case, dtype: torch.dtype) -> None:
    target = case.make(dtype)
    x = target.sample(7, generator=seeded(4))
    assert x.dtype == dtype
    assert x.shape == (7, *target.sample(1)[0].shape)
    assert torch.equal(x, target.sample(7, generator=seeded(4)))
    assert not torch.equal(x, target.sample(7, generator=seeded(5)))


@each_case
def test_the_global_generator_is_not_touched(case: Case) -> None:
    target, before = case.make(torch.float64), torch.random.get_rng_state()
    target.sample(3)
    target.sample(3, generator=seeded(0))
    assert torch.equal(torch.random.get_rng_state(), before)


@each_case
@each_dtype
def test_answers_have_the_dtype_of_x(case: Case, dtype: torch.dtype) -> None:
    x = case.make(torch.float64).sample(100, generator=seeded(6)).to(dtype)
    exact = case.make(torch.float64)
    for target in (case.make(torch.float32), exact):
        score, log_density = target.score(x), target.log_density(x)
        assert score.dtype == log_density.dtype == dtype
        assert (score.shape, log_density.shape) == (x.shape, x.shape[:1])
        close(score.double(), exact.score(x.double()), 1e-3)
        close(log_density.double(), exact.log_density(x.double()), 1e-3)


@each_case
def test_every_distribution_serves_as_a_target(case: Case) -> None:
    target = case.make(torch.float64)
    kernel = metropolis_hastings(target, RandomWalk(0.1), Exact())
    point, move = kernel.step(kernel.init(target.sample(50, generator=seeded(7))), generator=seeded(8))
    assert move.accepted.any()
    torch.testing.assert_close(point.log_density, target.log_density(point.x))


def test_default_matrices_are_the_identity_and_one_matrix_serves_all_components() -> None:
    eye, one = torch.eye(2), torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    x, mixture = torch.randn(5, 2, generator=seeded(0)), ([0.5, 0.5], [[0, 0], [3, 1]])
    for short, long in (
        (targets.Gaussian([1, 2]), targets.Gaussian([1.0, 2.0], eye)),
        (targets.StudentT(3, [1, 2]), targets.StudentT(3.0, [1.0, 2.0], eye)),
        (targets.GaussianMixture(*mixture), targets.GaussianMixture(*mixture, eye.expand(2, 2, 2))),
        (targets.GaussianMixture(*mixture, one), targets.GaussianMixture(*mixture, [one.tolist()] * 2)),
    ):
        assert torch.equal(short.score(x), long.score(x))
        assert torch.equal(short.log_density(x), long.log_density(x))


def test_parameters_take_the_widest_dtype_given() -> None:
    assert targets.Gaussian(torch.zeros(2), torch.eye(2, dtype=torch.float64)).sample(1).dtype == torch.float64
    assert targets.Gaussian([0, 0]).sample(1).dtype == torch.get_default_dtype()
    # a number beside a tensor is not rounded through float32
    assert targets.StudentT(0.1, torch.zeros(2, dtype=torch.float64)).df == 0.1


def test_parameters_are_copies_without_a_graph() -> None:
    mean = torch.zeros(2)
    target = targets.Gaussian(mean)
    mean += 1
    assert target.mean.tolist() == [0, 0]
    assert not targets.Gaussian(mean.requires_grad_()).sample(1).requires_grad


def test_weights_that_sum_to_1_but_for_rounding_are_normalised() -> None:
    x = torch.randn(5, 1, generator=seeded(0))
    rounded, exact = (targets.GaussianMixture([w] * 3, [[0], [1], [2]]).log_density(x) for w in (0.3331, 1 / 3))
    close(rounded, exact, 1e-6)


def test_repr_shows_the_parameters_on_one_line() -> None:
    expected = "Gaussian(mean=tensor([0., 1.]), covariance=tensor([[1., 0.], [0., 1.]]))"
    assert repr(targets.Gaussian([0.0, 1.0])) == expected
    assert "covariance=a float32 tensor of shape (30, 30)" in repr(targets.Gaussian(torch.zeros(30)))


@pytest.mark.parametrize("xi", [1e-8, -1e-8, 1e-14, -1e-14, 1e-300])
def test_the_extreme_value_distribution_is_continuous_at_shape_0(xi: float) -> None:
    near, gumbel = (targets.GeneralizedExtremeValue(torch.tensor(v, dtype=torch.float64)) for v in (xi, 0.0))
    x = torch.linspace(-2, 8, 50, dtype=torch.float64)[:, None]
    tolerance = 100 * abs(xi) + 1e-13  # the derivatives in xi at 0 are below 100 on these x
    close(near.log_density(x), gumbel.log_density(x), tolerance)
    close(near.score(x), gumbel.score(x), tolerance)
    close(near.sample(100, generator=seeded(0)), gumbel.sample(100, generator=seeded(0)), tolerance)


def test_outside_its_support_the_extreme_value_distribution_has_no_score() -> None:
    target = targets.GeneralizedExtremeValue([0.5, -0.5, 0.0])  # ends at -2, at 2, nowhere
    x = torch.tensor([[-1.9, 1.9, -9.0], [-2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [-3.0, 3.0, 0.0]])
    outside = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]]).bool()
    assert torch.equal(target.support(x), ~outside.any(1))
    assert torch.equal(target.log_density(x).isneginf(), outside.any(1))
    assert torch.equal(target.score(x).isnan(), outside)


def test_extreme_value_events_have_any_shape() -> None:
    target = targets.GeneralizedExtremeValue(0.2, torch.zeros(2, 3, dtype=torch.float64), [[1.0], [2.0]])
    x = target.sample(5, generator=seeded(0))
    assert x.shape == (5, 2, 3)
    expected = stats.genextreme.logpdf(x.numpy(), -0.2, 0.0, [[1.0], [2.0]]).sum((1, 2))
    close(target.log_density(x), torch.tensor(expected), 1e-10)


def test_float32_draws_stay_inside_the_support() -> None:
    # The density has a pole at the upper end, where float32 is coarse: one draw in a hundred rounds onto the end.
    target = targets.GeneralizedExtremeValue(-2.0, 1000.0)
    x = target.sample(10_000, generator=seeded(0))
    assert (x.double() > 1000.4999).sum() > 50
    assert target.support(x).all()


def test_the_upper_tail_of_float32_draws_is_not_a_grid() -> None:
    # Above 1000 there are about 1000 of these draws. On a grid of uniforms, 2^-24 wide, about 30 of them would be ties.
    x = targets.GeneralizedExtremeValue(1.0).sample(1_000_000, generator=seeded(0)).flatten()
    tail = x[x > 1000]
    assert len(tail) > 800
    assert len(tail) - len(set(tail.tolist())) <= 3


def test_a_uniform_of_exactly_1_gives_an_ordinary_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scoremh._shared.rng.log_uniform", lambda shape, like, generator: like.new_zeros(shape))
    assert targets.GeneralizedExtremeValue(0.5).sample(1).isfinite().all()
    weights = torch.full((10,), 0.1, dtype=torch.float64)
    assert weights.cumsum(0)[-1] < 1
    assert targets.GaussianMixture(weights, [[1000.0]] * 10).sample(1) > 900


def test_the_tails_of_a_float32_student_are_not_cut() -> None:
    # Of |t| > 1e22 here, chi2 is below the least positive float32.
    x = targets.StudentT(0.1, [0.0]).sample(DRAWS, generator=seeded(0))
    far = int((x.abs() > 1e22).sum())
    assert stats.binomtest(far, DRAWS, 2 * stats.t.sf(1e22, 0.1)).pvalue > threshold()


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "mean without axis": (lambda: targets.Gaussian(0.0), r"mean of shape \(d,\), got a float32 tensor of shape \(\)"),
    "empty mean": (lambda: targets.Gaussian([]), r"mean of shape \(d,\)"),
    "mean not finite": (lambda: targets.Gaussian([0.0, float("nan")]), "mean to be finite, got nan"),
    "covariance of another size": (lambda: targets.Gaussian([0.0], torch.eye(2)), r"covariance of shape \(1, 1\)"),
    "one covariance per nothing": (lambda: targets.Gaussian([0.0], [[[1.0]]]), r"covariance of shape \(1, 1\)"),
    "asymmetric": (lambda: targets.Gaussian([0, 0], [[1, 0.2], [0.3, 1]]), "covariance to be symmetric.*asymmetry 0.1"),
    "indefinite": (lambda: targets.Gaussian([0, 0], [[1, 2], [2, 1]]), "positive definite, got .*eigenvalue -1"),
    "one indefinite": (
        lambda: targets.GaussianMixture([0.5, 0.5], [[0], [1]], [[[1]], [[-1]]]),
        "covariances to be symmetric and positive definite",
    ),
    "weights sum": (lambda: targets.GaussianMixture([0.5, 0.6], [[0], [1]]), "weights that sum to 1.*Divide them"),
    "weights sign": (lambda: targets.GaussianMixture([1.5, -0.5], [[0], [1]]), "weights to be finite and above 0"),
    "weights number": (lambda: targets.GaussianMixture([1.0], [[0], [1]]), r"weights of shape \(2,\)"),
    "means without axis": (lambda: targets.GaussianMixture([0.5, 0.5], [0, 1]), r"means of shape \(k, d\)"),
    "covariances number": (lambda: targets.GaussianMixture([1.0], [[0]], [[[1]], [[1]]]), r"shape \(1, 1, 1\)"),
    "df": (lambda: targets.StudentT(0, [0.0]), "df to be finite and above 0, got 0.0"),
    "df per coordinate": (lambda: targets.StudentT([1.0], [0.0]), r"df of shape \(\)"),
    "scale": (lambda: targets.GeneralizedExtremeValue(0.1, 0.0, -1.0), "scale to be finite and above 0, got -1.0"),
    "broadcast": (lambda: targets.GeneralizedExtremeValue([0.1, 0.2], [1, 2, 3]), r"broadcast, got \[\(2,\), \(3,\)"),
    "banana width": (lambda: targets.Banana(0.5, 0.0), "width to be finite and above 0"),
    "funnel width": (lambda: targets.Funnel(2, float("inf")), "width to be finite and above 0"),
    "funnel dimension": (lambda: targets.Funnel(1), "dimension of at least 2, got 1"),
    "bounds swapped": (lambda: targets.box(1.0, 0.0), "low below high.*Swap"),
    "bounds equal in one": (lambda: targets.box([0.0, 0.0], [1.0, 0.0]), "low below high"),
    "bounds nan": (lambda: targets.box(float("nan"), 1.0), "low below high"),
    "no draws": (lambda: targets.Banana().sample(0), "n of at least 1, got 0"),
    "x of one event": (lambda: targets.Banana().score(torch.zeros(2)), r"x of shape \(chain, 2\)"),
    "x that broadcasts": (lambda: targets.GeneralizedExtremeValue(0.1).log_density(torch.zeros(4, 3)), r"\(chain, 1\)"),
    "x outside the box's space": (lambda: targets.box([0, 0], [1, 1])(torch.zeros(4, 1)), r"x of shape \(chain, 2\)"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_say_why(what: str) -> None:
    build, text = REFUSED[what]
    with pytest.raises(ValueError, match=text):
        build()
