"""Steps as long as the distribution, across narrow structure: which rules decide for the true ratio."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from scoremh import MALA, Exact, LineIntegral, RandomWalk, Target, diagnostics, metropolis_hastings, sample, targets
from scoremh.types import Point

FALSE_ALARM = 1e-3  # that any of the tests of right rules fails although all is right


class Rings:
    """Two rings of radius 1 and width 0.1, with weights 0.3 and 0.7."""

    support = None
    weights, centres = torch.tensor([0.3, 0.7]).double(), torch.tensor([[-1.5, 0.0], [1.5, 0.0]]).double()

    def _logits(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        away = x[:, None] - self.centres
        radius = away.norm(dim=2)
        return self.weights.log() - (radius - 1).square() / 0.02, away, radius

    def log_density(self, x: Tensor) -> Tensor:
        return self._logits(x)[0].logsumexp(1)

    def score(self, x: Tensor) -> Tensor:
        logits, away, radius = self._logits(x)
        pull = logits.softmax(1) * (1 - radius) / 0.01 / radius
        return (pull[..., None] * away).sum(1)

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        radius = 1 + 0.1 * torch.randn(3 * n, dtype=torch.float64, generator=generator)
        kept = torch.rand(3 * n, dtype=torch.float64, generator=generator) < radius / 1.6  # p(r) has a factor r
        angle = 2 * math.pi * torch.rand(n, dtype=torch.float64, generator=generator)
        ring = (torch.rand(n, generator=generator) > 0.3).long()
        return self.centres[ring] + radius[kept][:n, None] * torch.stack([angle.cos(), angle.sin()], 1)


def one_dimensional(weights: Tensor, means: Tensor, std: float) -> targets.GaussianMixture:
    return targets.GaussianMixture(weights, means[:, None], torch.full((len(means), 1, 1), std**2).double())


TEETH = torch.arange(9).double()
DISTRIBUTIONS: dict[str, Any] = {
    "narrow modes": one_dimensional(torch.tensor([0.3, 0.7]).double(), torch.tensor([-1.0, 1.0]).double(), 0.15),
    "comb": one_dimensional((TEETH % 3 + 1) / 18, TEETH / 2 - 2, 0.06),
    "rings": Rings(),
}
RIGHT = {"density": Exact(), "exact": LineIntegral("exact"), "adaptive": LineIntegral("adaptive", nodes=127)}
STEPS = {"narrow modes": (0.25, 2.0), "comb": (0.5, 1.5), "rings": (0.3, 2.0)}
CASES = [(name, std) for name, stds in STEPS.items() for std in stds]


def p_value(name: str, std: float, rule: Any, seed: int = 0) -> float:
    distribution = DISTRIBUTIONS[name]
    kernel = metropolis_hastings(distribution, RandomWalk(std), rule)
    generator = torch.Generator().manual_seed(seed)
    return diagnostics.stationarity(kernel, distribution, chains=10_000, steps=20, generator=generator).p_value


@pytest.mark.slow
@pytest.mark.parametrize("rule", RIGHT)
@pytest.mark.parametrize(("name", "std"), CASES)
def test_right_rules_leave_narrow_structure_invariant(name: str, std: float, rule: str) -> None:
    assert p_value(name, std, RIGHT[rule]) > FALSE_ALARM / (len(CASES) * len(RIGHT))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "std"), [(name, stds[1]) for name, stds in STEPS.items()])
def test_simpson_is_refused_there(name: str, std: float) -> None:
    assert p_value(name, std, LineIntegral()) < 1e-20


def test_the_mean_of_the_exact_rule_has_the_true_ratio() -> None:
    """E a(x', x) / E a(x, x') = p(x') / p(x) for a walk, at a pair where Simpson's rule is off by a factor."""
    distribution = one_dimensional(torch.tensor([0.3, 0.7]).double(), torch.tensor([-1.0, 1.0]).double(), 0.4)
    ends, n = torch.tensor([[-0.9], [1.2]]).double(), 50_000
    true = float((distribution.log_density(ends[1:]) - distribution.log_density(ends[:1]))[0])
    rule, means = LineIntegral("exact"), []
    for one, other in (ends, ends.flip(0)):
        current, proposed = (Point(x.expand(n, 1), distribution.score(x[None]).expand(n, 1)) for x in (one, other))
        log_accept = rule.log_accept_against(
            current,
            proposed,
            torch.full((n,), -math.inf).double(),
            target=Target(distribution.score),
            proposal=RandomWalk(1.0),
            generator=torch.Generator().manual_seed(0),
        )
        a = log_accept.exp()
        means.append((float(a.mean()), float(a.std()) / math.sqrt(n)))
    (forth, forth_error), (back, back_error) = means
    error = math.hypot(forth_error / forth, back_error / back)
    assert abs(math.log(forth / back) - true) < 5 * error
    points = [Point(x[None], distribution.score(x[None])) for x in ends]
    simpson = LineIntegral().log_density_change(*points, target=Target(distribution.score))
    assert abs(float(simpson[0]) - true) > 10 * error


def test_the_exact_rule_is_simpsons_on_a_gaussian_and_costs_no_more() -> None:
    normal = targets.Gaussian([0.0, 0.0])
    start = normal.sample(500, generator=torch.Generator().manual_seed(0))
    calls = [
        sample(
            metropolis_hastings(normal, MALA(0.3), rule), start, draws=50, generator=torch.Generator().manual_seed(1)
        )
        for rule in (LineIntegral(), LineIntegral("exact"))
    ]
    assert calls[1].acceptance_rate == pytest.approx(calls[0].acceptance_rate, abs=0.02)
    assert calls[1].score_calls < 1.2 * calls[0].score_calls


@pytest.mark.slow
@pytest.mark.parametrize("step_size", [0.5, 1.0])
def test_the_logistic_distribution_has_its_variance(step_size: float) -> None:
    generator, n = torch.Generator().manual_seed(0), 100_000
    u = torch.rand(n, 1, generator=generator, dtype=torch.float64)
    target = Target(score=lambda x: -2 * x.tanh())
    kernel = metropolis_hastings(target, MALA(step_size), LineIntegral("exact"))
    x = sample(kernel, (u / (1 - u)).log() / 2, draws=1, thin=60, generator=generator).last
    error = float(x.square().std()) / math.sqrt(n)
    assert float(x.square().mean()) == pytest.approx(math.pi**2 / 12, abs=4 * error)


def test_a_score_that_is_not_finite_between_the_points_is_a_rejection() -> None:
    def score(x: Tensor) -> Tensor:
        return torch.where((x.abs() < 0.3), math.nan, -x)

    kernel = metropolis_hastings(Target(score=score), RandomWalk(2.0), LineIntegral("exact"))
    chains = sample(kernel, torch.ones(200, 1), draws=20, generator=torch.Generator().manual_seed(0))
    assert chains.draws.isfinite().all()
    assert chains.nonfinite.any()
