"""Distributions and their combinations: scores against autograd, densities against scipy, draws against the CDF."""

import inspect
import itertools
import math
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from scoremh import (
    MALA,
    PCN,
    Always,
    Exact,
    LineIntegral,
    RandomWalk,
    Recipe,
    Taylor,
    diagnostics,
    fit_score,
    hamiltonian,
    metropolis_hastings,
    sample,
    targets,
    tune,
)
from scoremh.acceptance import Rule
from scoremh.kernel import ImproperTargetWarning
from scoremh.targets.distributions import Distribution
from scoremh.types import Kernel, Proposal, Target
from tests.cases import COVARIANCE as PRODUCTS_COVARIANCE
from tests.cases import EXACT_ON_GAUSSIAN, GAUSSIAN, ONE_SIDED, SYMMETRIC, TARGETS, f64, seeded

# The sampler is tested through Rosenblatt's map: conditional CDFs turn an exact draw into independent uniforms. Every
# uniform, and every pair of them as a sum modulo 1, goes through a Kolmogorov-Smirnov test.


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


def close(a: Tensor, b: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_no_distribution_is_missing_from_the_cases() -> None:
    public = {c for name, c in inspect.getmembers(targets, inspect.isclass) if issubclass(c, Distribution)}
    assert public == {type(case.make(torch.float64)) for case in CASES.values()}


@each_case
def test_the_score_is_the_gradient_of_the_log_density(case: Case) -> None:
    target = case.make(torch.float64)
    x = target.sample(500, generator=seeded())
    close(target.score(x), torch.func.grad(lambda x: target.log_density(x).sum())(x), 1e-10)


@each_case
def test_the_log_density_matches_that_of_scipy(case: Case) -> None:
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
    target.sample(3, generator=seeded())
    assert torch.equal(torch.random.get_rng_state(), before)


@each_case
@each_dtype
def test_results_have_the_dtype_of_x(case: Case, dtype: torch.dtype) -> None:
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
    x, mixture = torch.randn(5, 2, generator=seeded()), ([0.5, 0.5], [[0, 0], [3, 1]])
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
    x = torch.randn(5, 1, generator=seeded())
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
    close(near.sample(100, generator=seeded()), gumbel.sample(100, generator=seeded()), tolerance)


def test_outside_its_support_the_extreme_value_distribution_has_no_score() -> None:
    target = targets.GeneralizedExtremeValue([0.5, -0.5, 0.0])  # ends at -2, at 2, nowhere
    x = torch.tensor([[-1.9, 1.9, -9.0], [-2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [-3.0, 3.0, 0.0]])
    outside = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]]).bool()
    assert torch.equal(target.support(x), ~outside.any(1))
    assert torch.equal(target.log_density(x).isneginf(), outside.any(1))
    assert torch.equal(target.score(x).isnan(), outside)


def test_extreme_value_events_have_any_shape() -> None:
    target = targets.GeneralizedExtremeValue(0.2, torch.zeros(2, 3, dtype=torch.float64), [[1.0], [2.0]])
    x = target.sample(5, generator=seeded())
    assert x.shape == (5, 2, 3)
    expected = stats.genextreme.logpdf(x.numpy(), -0.2, 0.0, [[1.0], [2.0]]).sum((1, 2))
    close(target.log_density(x), torch.tensor(expected), 1e-10)


def test_float32_draws_stay_inside_the_support() -> None:
    # The density has a pole at the upper end, where float32 is coarse: one draw in a hundred rounds onto the end.
    target = targets.GeneralizedExtremeValue(-2.0, 1000.0)
    x = target.sample(10_000, generator=seeded())
    assert (x.double() > 1000.4999).sum() > 50
    assert target.support(x).all()


def test_the_upper_tail_of_float32_draws_is_not_a_grid() -> None:
    # Above 1000 there are about 1000 of these draws. On a grid of uniforms, 2^-24 wide, about 30 of them would be ties.
    x = targets.GeneralizedExtremeValue(1.0).sample(1_000_000, generator=seeded()).flatten()
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
    x = targets.StudentT(0.1, [0.0]).sample(DRAWS, generator=seeded())
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
def test_errors_say_why(what: str) -> None:
    build, text = REFUSED[what]
    with pytest.raises(ValueError, match=text):
        build()


# Targets made from a log density, or from a target and a support.


class Quadratic(nn.Module):
    """log N(0, diag(1, 1/4)) up to a constant, with parameters that require gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.precision = nn.Parameter(torch.tensor([1.0, 4.0]))

    def forward(self, x: Tensor) -> Tensor:
        return -(self.precision * x.square()).sum(1) / 2


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_score_of_a_log_density_keeps_no_graph(mode: Callable[[], Any]) -> None:
    network = Quadratic()
    target = targets.from_log_density(network)
    assert target.score is not None
    with mode():
        x = torch.randn(6, 2, generator=seeded())  # an inference tensor in the third mode
        score = target.score(x)
    close(score, -x * torch.tensor([1.0, 4.0]), 1e-6)
    assert not score.requires_grad
    assert network.precision.grad is None


def test_the_score_of_a_log_density_can_be_differentiated() -> None:
    target = targets.from_log_density(Quadratic())
    assert target.score is not None
    x = torch.randn(1, 2, generator=seeded())
    expected = torch.diag(torch.tensor([-1.0, -4.0]))
    close(torch.func.jacrev(target.score)(x)[0, :, 0], expected, 1e-6)
    (row,) = torch.autograd.grad(target.score(x.requires_grad_())[0, 1], x)
    close(row[0], expected[1], 1e-6)


def test_the_score_of_a_log_density_keeps_chains_apart() -> None:
    exact = CASES["mixture"].make(torch.float64)
    target = targets.from_log_density(exact.log_density)
    assert target.score is not None
    x = exact.sample(4, generator=seeded())
    close(target.score(x), exact.score(x), 1e-10)
    close(target.score(x)[2:3], target.score(x[2:3]), 1e-10)


@pytest.mark.parametrize("wrong", [lambda x: x.sum(), lambda x: x.sum(1, keepdim=True), lambda x: x])
def test_a_log_density_of_the_wrong_shape_raises_an_error(wrong: Callable[[Tensor], Tensor]) -> None:
    score = targets.from_log_density(wrong).score
    assert score is not None
    with pytest.raises(ValueError, match=r"log_density\(x\) to be a float32 tensor of shape \(3,\)"):
        score(torch.zeros(3, 2))


def test_a_box_includes_its_faces_and_excludes_nan() -> None:
    inside = targets.box([0.0, -1.0], [1.0, float("inf")])
    x = torch.tensor([[0.0, -1.0], [1.0, 1e9], [1.1, 0.0], [0.5, -1.1], [0.5, float("nan")]])
    assert inside(x).tolist() == [True, True, False, False, False]
    assert pickle.loads(pickle.dumps(inside))(x).tolist() == [True, True, False, False, False]


def test_a_box_of_numbers_serves_any_event_in_full_precision() -> None:
    x = torch.full((2, 3, 4), 0.1, dtype=torch.float64)
    x[1, 2, 3] -= 1e-12
    assert targets.box(0.1, 1.0)(x).tolist() == [True, False]


def test_truncation_adds_to_the_support_there_is() -> None:
    target = targets.GeneralizedExtremeValue(0.5)  # from -2 on
    x = torch.tensor([[-3.0], [-1.0], [1.0]])
    once = targets.truncate(target, targets.box(-5.0, 0.0))
    assert isinstance(once, Target)
    assert once.support is not None
    assert once.score is not None
    assert once.log_density is not None
    assert once.support(x).tolist() == [False, True, False]
    close(once.score(x[1:]), target.score(x[1:]), 0)
    close(once.log_density(x[1:]), target.log_density(x[1:]), 0)
    free = targets.truncate(targets.Gaussian([0.0]), targets.box(-5.0, 0.0))
    assert free.support is not None
    assert free.support(x).tolist() == [True, True, False]


# Products of parts: the known ones are differenced exactly, the others integrated.


MIXTURE, BANANA = TARGETS["mixture"], TARGETS["banana"]
SHORT: dict[str, Proposal] = {"rw": RandomWalk(0.9), "mala": MALA(0.2, covariance=PRODUCTS_COVARIANCE), "pcn": PCN(0.5)}
INTEGRATING = {name: rule for name, rule in (EXACT_ON_GAUSSIAN | ONE_SIDED).items() if not isinstance(rule, Exact)}


def score_only(target: Any) -> Target:
    return Target(target.score, support=target.support)


def made(kernel: Kernel, x: Tensor, *, by_run: bool) -> tuple[Tensor, Tensor, int]:
    """Return positions, log a and score calls of a few steps."""
    point, generator = kernel.init(x), seeded(3)
    if by_run:
        assert kernel.run is not None
        _, trace = kernel.run(point, 5, generator=generator)
        return trace.x, trace.log_accept, trace.score_calls
    xs, log_accepts, calls = [], [], 0
    for _ in range(5):
        point, move = kernel.step(point, generator=generator)
        xs.append(point.x)
        log_accepts.append(move.log_accept)
        calls += move.score_calls
    return torch.stack(xs), torch.stack(log_accepts), calls


@pytest.mark.parametrize(
    ("rule", "proposal", "by_run"),
    [
        *itertools.product(INTEGRATING, ["mala"], [False, True]),
        *itertools.product(["simpson", "gauss"], SHORT, [False, True]),
    ],
)
@pytest.mark.filterwarnings("ignore::scoremh.kernel.DegenerateRuleWarning")
def test_with_every_part_known_decisions_match_those_of_exact(rule: str, proposal: str, by_run: bool) -> None:
    target = targets.product(MIXTURE, BANANA, GAUSSIAN, weights=[1.0, 0.5, -0.25])
    x = MIXTURE.sample(50, generator=seeded())
    acceptance = INTEGRATING[rule]
    exact = Exact(balance=acceptance.balance)  # type: ignore[arg-type]
    ours, theirs = (
        made(metropolis_hastings(target, SHORT[proposal], by), x, by_run=by_run) for by in (acceptance, exact)
    )
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
    assert ours[2] == theirs[2]


@pytest.mark.parametrize(
    ("rule", "proposal", "by_run"),
    [
        *itertools.product(SYMMETRIC, ["mala"], [False, True]),
        *itertools.product(["simpson", "gauss"], SHORT, [False, True]),
    ],
)
@pytest.mark.filterwarnings("ignore::scoremh.kernel.DegenerateRuleWarning")
def test_a_gaussian_prior_by_its_score_leaves_no_error(rule: str, proposal: str, by_run: bool) -> None:
    """The integral is exact on the Gaussian, and the mixture is never integrated: log a is that of `Exact`."""
    whole, half = (targets.product(MIXTURE, prior, weights=[1.0, 0.7]) for prior in (GAUSSIAN, score_only(GAUSSIAN)))
    assert half.log_density is None
    acceptance: Any = EXACT_ON_GAUSSIAN[rule]
    if isinstance(acceptance, Exact):
        return
    x = MIXTURE.sample(50, generator=seeded())
    # one step: from the same points, whatever is decided
    first = [
        made(metropolis_hastings(target, SHORT[proposal], by), x, by_run=by_run)[1][0]
        for target, by in ((half, acceptance), (whole, Exact(balance=acceptance.balance)))
    ]
    torch.testing.assert_close(first[0], first[1], rtol=0, atol=1e-10)


class Asked:
    """A function that records where it was evaluated."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function
        self.places: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.places.append(x.clone())
        return self.function(x)

    @property
    def calls(self) -> int:
        return sum(map(len, self.places))


@pytest.mark.parametrize("by_run", [False, True], ids=["step", "run"])
@pytest.mark.parametrize(
    ("rule", "between"), [(LineIntegral("simpson"), 1), (LineIntegral("gauss", nodes=3), 3)], ids=["simpson", "gauss"]
)
@pytest.mark.parametrize("proposal", [RandomWalk(0.9), MALA(0.2)], ids=["rw", "mala"])
def test_known_parts_are_evaluated_at_the_candidates_only(
    proposal: Proposal, rule: LineIntegral, between: int, by_run: bool
) -> None:
    chains = 7
    score, log_density, rest = Asked(GAUSSIAN.score), Asked(GAUSSIAN.log_density), Asked(MIXTURE.score)
    target = targets.product(Target(rest), Target(score, log_density))
    kernel = metropolis_hastings(target, proposal, rule)
    x = MIXTURE.sample(chains, generator=seeded())
    _, _, calls = made(kernel, x, by_run=by_run)
    points = 5 + 1  # candidates, and the start
    at_ends = rule.rule == "simpson" or isinstance(proposal, MALA)
    assert log_density.calls == points * chains
    assert score.calls == (points * chains if isinstance(proposal, MALA) else 0)
    assert rest.calls == (points if at_ends else 0) * chains + 5 * between * chains
    assert calls == rest.calls - (chains if at_ends else 0)  # those of the start are not a move's


@pytest.mark.parametrize("proposal", [RandomWalk(0.9), MALA(0.2)], ids=["rw", "mala"])
@pytest.mark.parametrize("rule", [LineIntegral(), LineIntegral("exact"), Taylor(2, average=True)], ids=repr)
def test_a_product_leaves_its_target_invariant(proposal: Proposal, rule: Rule) -> None:
    """False alarm: 1e-4 for each of six; the product of p with N / N, the latter Gaussian by its score alone."""
    target = targets.product(MIXTURE, GAUSSIAN, score_only(GAUSSIAN), weights=[1.0, -1.0, 1.0])
    kernel = metropolis_hastings(target, proposal, rule)
    verdict = diagnostics.stationarity(kernel, MIXTURE, chains=20_000, steps=10, generator=seeded(1))
    assert verdict.p_value > 1e-4, verdict
    if isinstance(proposal, MALA):
        wrong = metropolis_hastings(target, MALA(0.5), Always())
        assert diagnostics.stationarity(wrong, MIXTURE, generator=seeded(1)).p_value < 1e-6


def test_supports_are_intersected_and_counted() -> None:
    box = targets.box(-1.0, 1.0)
    half = targets.product(
        Target(GAUSSIAN.score, support=targets.box([-9.0, -9.0], [0.5, 9.0])), targets.truncate(MIXTURE, box)
    )
    target = targets.truncate(half, targets.box(-0.9, 9.0))
    assert isinstance(target, targets.Product)
    x = f64([0.0, 0.0], [0.7, 0.0], [-0.95, 0.0], [0.0, 2.0])
    assert target.support is not None
    assert target.support(x).tolist() == [True, False, False, False]
    for proposal in (RandomWalk(1.0), MALA(0.5)):
        kernel = metropolis_hastings(target, proposal, LineIntegral())
        chains = sample(kernel, x[:1].expand(20, 2).clone(), draws=50, generator=seeded())
        assert target.support(chains.draws.flatten(0, 1)).all()
        assert int(chains.outside.sum()) > 0
        assert int(chains.nonfinite.sum()) == 0


def test_tune_and_stores_know_products(tmp_path: Any) -> None:
    target = targets.posterior(score_only(GAUSSIAN), MIXTURE.log_density)
    x = MIXTURE.sample(16, generator=seeded())
    step_size = tune(lambda h: metropolis_hastings(target, MALA(h), LineIntegral()), x, generator=seeded())
    kernel = metropolis_hastings(target, MALA(step_size), LineIntegral())
    assert kernel.target_rate == pytest.approx(0.574)
    kept = sample(kernel, x, draws=20, generator=seeded(), store=tmp_path / "run")
    again = sample(kernel, x, draws=20, generator=seeded(), store=tmp_path / "run")
    assert torch.equal(kept.draws, again.draws)
    assert "LineIntegral" in kernel.description
    same = diagnostics.disagreement(
        LineIntegral(), LineIntegral("gauss"), target=target, proposal=MALA(0.2), x=x, generator=seeded()
    )
    assert same.rate == 0  # both integrate the Gaussian only, and without error


def test_parts_are_nested_and_tempered() -> None:
    inner = targets.product(score_only(GAUSSIAN), MIXTURE, weights=[2.0, 3.0])
    outer = targets.temper(targets.product(inner, BANANA, weights=[-1.0, 1.0]), 0.5)
    x = MIXTURE.sample(5, generator=seeded())
    assert isinstance(outer, targets.Product)
    assert outer.rest_score is not None
    assert outer.known.log_density is not None
    torch.testing.assert_close(outer.rest_score(x), -GAUSSIAN.score(x))
    known = 0.5 * (BANANA.log_density(x) - 3 * MIXTURE.log_density(x))
    torch.testing.assert_close(outer.known.log_density(x), known)
    total = 0.5 * (BANANA.score(x) - 3 * MIXTURE.score(x) - 2 * GAUSSIAN.score(x))
    torch.testing.assert_close(outer.score(x), total)
    density_only = targets.product(Target(log_density=MIXTURE.log_density), score_only(GAUSSIAN))
    assert density_only.score is not None
    torch.testing.assert_close(density_only.score(x), MIXTURE.score(x) + GAUSSIAN.score(x))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (lambda: targets.product(), ValueError, "expected at least one part, got none"),
        (
            lambda: targets.product(GAUSSIAN, weights=[1.0, 2.0]),
            ValueError,
            "expected 1 weights for 1 parts, got 2",
        ),
        (lambda: targets.product(GAUSSIAN, weights=[]), ValueError, "expected 1 weights"),
        (lambda: targets.product(GAUSSIAN, weights=[math.nan]), ValueError, "weights that are finite and not 0"),
        (lambda: targets.product(GAUSSIAN, weights=[math.inf]), ValueError, "weights that are finite and not 0"),
        (lambda: targets.product(GAUSSIAN, weights=[0.0]), ValueError, "Leave out a part"),
        (lambda: targets.product(Target()), ValueError, "a part with neither"),
        (lambda: targets.temper(GAUSSIAN, 0.0), ValueError, "beta to be finite and above 0"),
        (lambda: targets.temper(GAUSSIAN, math.inf), ValueError, "beta to be finite"),
    ],
)
def test_bad_products_raise_errors(arguments: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        arguments()


def test_parts_that_are_invalid_raise_errors() -> None:
    """In a process of its own: here the types of arguments are checked before."""
    script = """
from scoremh import targets
for call in (lambda: targets.product(abs), lambda: targets.posterior(targets.Gaussian([0.0]), 3.0)):
    try:
        call()
    except TypeError as error:
        print(error)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = ran.stdout.splitlines()
    assert lines[0].startswith("expected a Target for every part, got ")
    assert lines[1].startswith("expected a callable log likelihood, got float 3.0")


@pytest.mark.parametrize(
    ("part", "error", "text"),
    [
        (Target(lambda x: -x.double()), TypeError, r"parts\[1\].score\(x\) to be a float32 tensor"),
        (Target(lambda x: -x[:, :1]), ValueError, r"parts\[1\].score\(x\) to be a float32 tensor of shape \(4, 2\)"),
        (Target(lambda x: -x, lambda x: x), ValueError, r"parts\[1\].log_density\(x\) .* of shape \(4,\)"),
        (Target(lambda x: -x, lambda x: x.sum(1).double()), TypeError, r"parts\[1\].log_density\(x\)"),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_parts_that_disagree_raise_errors_at_the_start(
    part: Target, error: type[Exception], text: str, known: bool
) -> None:
    first = targets.Gaussian([0.0, 0.0])
    target = targets.product(first if known else score_only(first), part)
    kernel = metropolis_hastings(target, MALA(0.1), LineIntegral())
    with pytest.raises(error, match=text):
        kernel.init(torch.zeros(4, 2))


def test_distributions_of_other_events_raise_errors() -> None:
    plane, space = targets.Gaussian([0.0, 0.0]), targets.Gaussian([0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match=r"events of one shape, got \(2,\) of parts\[0\], \(3,\) of parts\[2\]"):
        targets.product(plane, Target(lambda x: -x), space)
    kernel = metropolis_hastings(targets.product(score_only(plane), space), MALA(0.1), LineIntegral())
    with pytest.raises(ValueError, match="x of shape"):
        kernel.init(torch.zeros(4, 2))


WIDE, NARROW = targets.Gaussian(f64(0.0, 0.0), f64([4.0, 0.0], [0.0, 1.0])), targets.Gaussian(f64(1.0, 0.0))


@pytest.mark.parametrize(("weights", "proper"), [((1.0, -3.9), False), ((2.0, -1.0), True), ((1.0, -1.0), False)])
def test_normal_parts_that_cannot_be_normalised_raise_errors(weights: tuple[float, float], proper: bool) -> None:
    """N(m, I) over diag(4, 1): precision w_1 I + w_2 diag(1/4, 1)."""
    if proper:
        targets.product(NARROW, WIDE, weights=weights)
        return
    with pytest.raises(ValueError, match=r"a product that can be normalised, got weights .* an eigenvalue of"):
        targets.product(NARROW, WIDE, weights=weights)


def student(freedom: float) -> targets.StudentT:
    return targets.StudentT(freedom, f64(0.0, 0.0))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("parts", "proper"),
    [
        ((NARROW, score_only(WIDE)), False),  # as above, but not seen when it is built
        ((score_only(WIDE), MIXTURE), False),
        ((student(10.0), student(5.0)), True),  # r^-(12 - 7 + 2), which has an integral in the plane
        ((student(6.0), student(5.0)), False),  # r^-1, which falls and has none
    ],
    ids=["normal", "mixture", "heavy", "too heavy"],
)
def test_a_product_that_grows_far_out_warns(parts: tuple[Any, Any], proper: bool, known: bool) -> None:
    whole = targets.product(*(parts if known else map(score_only, parts)), weights=(1.0, -1.0))
    kernels = (
        metropolis_hastings(whole, MALA(0.1), LineIntegral()),
        hamiltonian(whole, 0.1, 2, LineIntegral()),
    )
    for kernel in kernels:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kernel.init(torch.randn(10, 2, generator=seeded(), dtype=torch.float64))
        assert [one.category for one in caught] == ([] if proper else [ImproperTargetWarning])
    bounded = metropolis_hastings(targets.truncate(whole, targets.box(-9.0, 9.0)), MALA(0.1), LineIntegral())
    bounded.init(torch.zeros(10, 2, dtype=torch.float64))  # a warning is an error here


def test_what_needs_the_whole_density_raises_an_error() -> None:
    target = targets.product(GAUSSIAN, score_only(MIXTURE))
    with pytest.raises(ValueError, match="a target with a log_density"):
        metropolis_hastings(target, MALA(0.1), Exact())

    class Greedy(RandomWalk):
        needs = frozenset({"log_density"})

    with pytest.raises(ValueError, match="parts that have a score only"):
        metropolis_hastings(target, Greedy(0.1), LineIntegral())


def test_numbers_that_are_not_finite_are_counted() -> None:
    nowhere = Target(lambda x: -x, lambda x: torch.where(x[:, 0] > 0, -math.inf, 0.0).to(x))
    target = targets.product(nowhere, score_only(GAUSSIAN))
    kernel = metropolis_hastings(target, RandomWalk(1.0), LineIntegral())
    chains = sample(kernel, -torch.ones(20, 2).double(), draws=20, generator=seeded())
    assert (chains.draws[..., 0] <= 0).all()
    assert int(chains.outside.sum()) > 0
    broken = Target(lambda x: torch.where(x > 0, math.nan, -x))
    kernel = metropolis_hastings(targets.product(GAUSSIAN, broken), RandomWalk(1.0), LineIntegral())
    chains = sample(kernel, -torch.ones(20, 2).double(), draws=20, generator=seeded())
    assert (chains.draws <= 0).all()
    assert int(chains.nonfinite.sum()) > 0


# Posteriors and products against closed forms and grids; every false-alarm rate is that of a bound on |z|.


MAX_Z = 5.0  # of at most 40 normal numbers in a test: a false alarm once in 40,000


def after(target: Any, proposal: MALA, start: Tensor, steps: int, rule: Rule | None = None) -> Tensor:
    """Return where independent chains are after some steps, with the line integral by default."""
    kernel = metropolis_hastings(target, proposal, rule or LineIntegral())
    assert kernel.run is not None
    return kernel.run(kernel.init(start), steps, generator=seeded(1))[0].x


def assert_moments(x: Tensor, mean: Tensor, covariance: Tensor) -> None:
    """Compare means and second moments of independent draws with those of a Gaussian, after whitening."""
    root = torch.linalg.cholesky(covariance)
    u = torch.linalg.solve_triangular(root, (x - mean).mT, upper=False).mT
    n, d = u.shape
    assert float((u.mean(0) * math.sqrt(n)).abs().max()) < MAX_Z
    second = u.mT @ u / n - torch.eye(d).to(u)
    errors = torch.sqrt((1 + torch.eye(d).to(u)) / n)  # Var u_i u_j is 1, and 2 where i = j
    assert float((second / errors).abs().max()) < MAX_Z


@pytest.mark.parametrize("condition", [1e0, 1e2, 1e4])
@pytest.mark.parametrize("exact_start", [True, False])
def test_a_gaussian_prior_by_its_score_times_a_gaussian_likelihood(condition: float, exact_start: bool) -> None:
    """The posterior has this condition number. From exact draws 20 steps; from the prior 200; ULA is rejected."""
    d, g = 4, seeded()
    basis = torch.linalg.qr(torch.randn(d, d, generator=g, dtype=torch.float64)).Q
    scales = torch.logspace(
        0, -math.log10(3 * condition - 2), d, dtype=torch.float64
    )  # 2 is the likelihood's precision
    prior = targets.Gaussian(torch.ones(d).double(), basis @ torch.diag(scales) @ basis.mT)
    likelihood = targets.Gaussian(torch.randn(d, generator=g, dtype=torch.float64), 0.5 * torch.eye(d).double())
    precisions = prior.covariance.inverse(), likelihood.covariance.inverse()
    covariance = (precisions[0] + precisions[1]).inverse()
    covariance = (covariance + covariance.mT) / 2
    mean = covariance @ (precisions[0] @ prior.mean + precisions[1] @ likelihood.mean)
    target = targets.posterior(Target(prior.score), likelihood.log_density)
    eigenvalues = torch.linalg.eigvalsh(covariance)
    assert float(eigenvalues[-1] / eigenvalues[0]) == pytest.approx(condition)
    start = (targets.Gaussian(mean, covariance) if exact_start else prior).sample(4000, generator=g)
    proposal, steps = MALA(0.3, covariance=covariance), 20 if exact_start else 200
    assert_moments(after(target, proposal, start, steps), mean, covariance)
    with pytest.raises(AssertionError):
        assert_moments(after(target, proposal, start, steps, Always()), mean, covariance)


def test_many_single_posteriors_and_one_prior_less() -> None:
    """N posteriors of one observation each, times the prior to the power 1 - N: by scores, and with the prior known."""
    n, g = 5, seeded(2)
    prior = targets.Gaussian(torch.zeros(2).double(), torch.tensor([[1.0, 0.3], [0.3, 2.0]]).double())
    noise = 0.8 * torch.eye(2).double()
    data = torch.randn(n, 2, generator=g, dtype=torch.float64)

    def posterior(rows: Tensor) -> targets.Gaussian:
        precision = prior.covariance.inverse() + len(rows) * noise.inverse()
        covariance = precision.inverse()
        return targets.Gaussian(covariance @ noise.inverse() @ rows.sum(0), (covariance + covariance.mT) / 2)

    truth = posterior(data)
    singles = [Target(posterior(row[None]).score) for row in data]
    for less in (Target(prior.score), prior):
        target = targets.product(*singles, less, weights=[1.0] * n + [1.0 - n])
        start = prior.sample(4000, generator=g)
        x = after(target, MALA(0.4, covariance=truth.covariance), start, 100)
        assert_moments(x, truth.mean, truth.covariance)


@pytest.mark.slow
def test_two_overlapping_mixtures_multiplied() -> None:
    """Against a grid: means of functions under 8,000 chains that start from draws of the grid itself."""
    eye = 0.3 * torch.eye(2).double()
    first = targets.GaussianMixture([0.5, 0.5], torch.tensor([[-1.0, 0.0], [1.0, 0.0]]).double(), eye)
    second = targets.GaussianMixture([0.3, 0.7], torch.tensor([[0.6, -0.8], [0.2, 0.9]]).double(), 2 * eye)
    side, g = torch.linspace(-4, 4, 801, dtype=torch.float64), seeded(3)
    grid = torch.cartesian_prod(side, side)
    p = (first.log_density(grid) + second.log_density(grid)).softmax(0)
    within = (torch.rand(8000, 2, generator=g, dtype=torch.float64) - 0.5) * (side[1] - side[0])
    start = grid[torch.multinomial(p, 8000, replacement=True, generator=g)] + within

    def functions(x: Tensor) -> Tensor:
        return torch.stack([x[:, 0], x[:, 1], x[:, 0] ** 2, x[:, 1] ** 2, x.prod(1), (x[:, 0] > 0.0025).double()], 1)

    truth = (p[:, None] * functions(grid)).sum(0)
    for known in (Target(first.score), first):
        target = targets.product(known, Target(second.score, second.log_density))
        values = functions(after(target, MALA(0.03), start, 60))
        z = (values.mean(0) - truth) / (values.std(0) / math.sqrt(len(values)))
        assert float(z.abs().max()) < MAX_Z, z


@pytest.mark.slow
def test_a_product_of_two_learned_scores_runs() -> None:
    """Two standard normals with means -1 and 1 in the first coordinate: the product is near N(0, I / 2)."""
    g = seeded(4)
    shift = torch.tensor([1.0, 0.0])
    scores = [
        fit_score(
            sign * shift + torch.randn(2000, 2, generator=g), recipe=Recipe(steps=300, check_every=100), generator=g
        )
        for sign in (-1.0, 1.0)
    ]
    target = targets.product(*scores)
    kernel = metropolis_hastings(target, MALA(0.1), LineIntegral())
    chains = sample(kernel, torch.randn(200, 2, generator=g), draws=50, burn_in=100, generator=g)
    x = chains.draws.flatten(0, 1)
    assert x.isfinite().all()
    assert chains.acceptance_rate > 0.5
    assert float(x.mean(0).abs().max()) < 0.5  # the parts have -1 and 1
    assert 0.2 < float(x.var(0).mean()) < 0.9  # the parts have 1
