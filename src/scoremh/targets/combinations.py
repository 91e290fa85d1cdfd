"""Targets made of others: of a log density, of a target and a support, or of several targets.

- `from_log_density`: score = grad log p, by automatic differentiation.
- `truncate`: p*(x) proportional to p(x) on a support and 0 outside, the paper's truncated density (section 3.3).
- `product`: p(x) proportional to prod_i p_i(x)^w_i; `posterior`: prior times likelihood; `temper`: p(x)^beta.

A product has a part that is known exactly and a part known by its score alone,

    log p(x) = known(x) + rest(x),    known = sum of w_i log p_i over the parts with a log density

Acceptance rules difference `known` between two points and integrate the score of `rest` on the way from one to the
other.

With negative weights a product may grow in its tails. For normal parts the sum of w_i C_i^-1 has to be positive
definite. For others the score is evaluated far out: along a direction u, log p changes by s.u per unit of length, and
p ~ r^-a, whose slope is -a / r, has an integral in d dimensions only for a > d:

    r s(m + r u).u < -d    for every direction u
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.algebra import inner
from scoremh.targets.distributions import Distribution, Gaussian
from scoremh.types import LogDensityFn, ScoreFn, ScoreModel, SupportFn, Target, TargetLike


class Term(NamedTuple):
    """A weight times the score or log density of a part, with a name for errors."""

    weight: float
    function: Callable[[Tensor], Tensor]
    name: str


@dataclass(frozen=True)
class WeightedSum:
    """The sum of weighted scores or of weighted log densities; one that answers with a wrong shape is refused."""

    terms: tuple[Term, ...]
    per_chain: bool = False

    @property
    def divides(self) -> bool:
        """Whether a weight is negative, here or in a sum that is one of the terms."""
        return any(weight < 0 or (isinstance(f, WeightedSum) and f.divides) for weight, f, _ in self.terms)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the weighted sum at x."""
        total = None
        for weight, function, name in self.terms:
            value = function(x)
            checks.returned(value, x, x.shape[:1] if self.per_chain else x.shape, name)
            value = value if weight == 1 else weight * value
            total = value if total is None else total + value
        assert total is not None
        return total


@dataclass(frozen=True)
class Intersection:
    """The support of all x that lie in several supports."""

    supports: tuple[SupportFn, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """Return whether x lies in every support."""
        return torch.stack([checks.inside(support(x), x) for support in self.supports]).all(0)


def intersection(*supports: SupportFn | None) -> SupportFn | None:
    """Return where all of these supports hold; None, for everywhere, where all are None."""
    there = tuple(support for support in supports if support is not None)
    return Intersection(there) if len(there) > 1 else next(iter(there), None)


@dataclass(frozen=True, eq=False)
class Product:
    """A target made of parts of which at least one has a log density; built by `product`, `posterior` and `temper`.

    Args:
        known: Score and log density of the parts that have a log density.
        rest_score: Score of the other parts; None where there are none.
        support: Function of x that returns where p is positive, `(chain,)`; None for everywhere.
    """

    known: Target
    rest_score: ScoreFn | None = None
    support: SupportFn | None = None

    @property
    def log_density(self) -> LogDensityFn | None:
        """Log p up to a constant where every part has a log density, else None."""
        return self.known.log_density if self.rest_score is None else None

    @property
    def score(self) -> ScoreFn:
        """Grad log p: the sum over all parts."""
        known = self.known.score
        assert known is not None
        if self.rest_score is None:
            return known
        return WeightedSum((Term(1.0, self.rest_score, "rest_score"), Term(1.0, known, "known.score")))


FAR = 100.0  # how far out to ask, in units of the farthest of the points
RANDOM_DIRECTIONS, MAX_AXES = 64, 64


def require_one_event(parts: Sequence[TargetLike]) -> None:
    """Refuse distributions over events of several shapes."""
    events = {f"parts[{i}]": part._event for i, part in enumerate(parts) if isinstance(part, Distribution)}
    if len({tuple(event) for event in events.values()}) > 1:
        got = ", ".join(f"{tuple(event)} of {name}" for name, event in events.items())
        fix = "Every part has to be a distribution of the same x."
        raise ValueError(checks.message("parts with events of one shape", got, fix))


def require_normalizable(parts: Sequence[TargetLike], weights: Sequence[float]) -> None:
    """Refuse a product of normal distributions whose precision matrix is not positive definite."""
    normal = [part for part in parts if isinstance(part, Gaussian)]
    if len(normal) < len(parts) or min(weights) > 0:
        return
    precisions = [torch.linalg.inv(part.covariance.double()) for part in normal]
    total = sum(weight * precision for weight, precision in zip(weights, precisions, strict=True))
    assert isinstance(total, Tensor)
    least = float(torch.linalg.eigvalsh(total)[0])
    if not least > 0:
        fix = "Give less weight to the parts that are divided by, or check that they are wider than the others."
        got = f"weights {list(weights)}, with which the precision matrix has an eigenvalue of {least:.3g}"
        raise ValueError(checks.message("a product that can be normalised", got, fix))


def share_outward(score: ScoreFn, x: Tensor) -> float:
    """Return the share of directions in which p falls too slowly, far out from points x, to have an integral."""
    centre, size = x.mean(0, keepdim=True), x[0].numel()
    farthest = float((x - centre).abs().max()) or float(centre.abs().max()) or 1.0
    noise = torch.randn(RANDOM_DIRECTIONS, size, generator=torch.Generator().manual_seed(0)).to(x)
    axes = torch.eye(size, dtype=x.dtype, device=x.device)[:MAX_AXES]
    directions = torch.cat([noise / noise.norm(dim=1, keepdim=True), axes, -axes]).reshape(-1, *x.shape[1:])
    radius = FAR * farthest * size**0.5
    return float((radius * inner(score(centre + radius * directions), directions) >= -size).double().mean())


def from_log_density(log_density: LogDensityFn, support: SupportFn | None = None) -> Target:
    """Return the target of a log density alone; its score is the gradient.

    No graph is kept, whatever parameters `log_density` has, unless x itself requires a gradient.

    Args:
        log_density: Function of x `(chain, *event)` that returns log p(x) + const, `(chain,)`, each chain on its own.
        support: Function of x that returns where p is positive, `(chain,)`; None for everywhere.
    """

    def total(x: Tensor) -> Tensor:
        value = log_density(x)
        checks.returned(value, x, x.shape[:1], "log_density")
        return value.sum()  # no chain enters the term of another: the gradient of the sum is that of each

    def score(x: Tensor) -> Tensor:
        with torch.set_grad_enabled(x.requires_grad and torch.is_grad_enabled()):
            gradient: Tensor = torch.func.grad(total)(x)
        return gradient

    return Target(score, log_density, support)


def truncate(target: TargetLike, support: SupportFn) -> Target | Product:
    """Return a target restricted to a support, beside the one it has; its score and log density stay as they are."""
    both = intersection(target.support, support)
    if isinstance(target, Product):
        return replace(target, support=both)
    levels = target if isinstance(target, ScoreModel) else getattr(target, "levels", None)
    estimated = getattr(target, "density_is_estimated", False)  # ThroughNoise asks the levels for it
    return Target(target.score, None if estimated else target.log_density, both, levels=levels)


def product(*parts: TargetLike, weights: Sequence[float] | None = None) -> Target | Product:
    """Return the target proportional to the product of parts, each to the power of its weight.

    In a kernel, parts with a log density are differenced exactly and never evaluated between the points; parts with a
    score only are integrated, by `LineIntegral` or `Taylor`. With every part known these rules decide as `Exact` does.

    Args:
        parts: Targets with a score, a log density, or both; a part with a log density only gets its score by automatic
            differentiation. The support of the product is where all of them are positive.
        weights: Power of every part, finite and not 0, negative to divide by it; 1 for each by default. Normal parts
            that cannot be normalised so are refused; with others, a kernel warns where the product grows far out.

    Returns:
        A `Product`, or a `Target` with a score where no part has a log density.

    Example:
        >>> prior, single = Target(score=lambda x: -x), Target(score=lambda x: -3 * x + 1)
        >>> product(single, prior, weights=[2.0, -1.0]).score(torch.ones(1, 1))  # two observations, one prior too many
        tensor([[-3.]])
    """
    powers = _checked_weights(parts, weights)
    require_one_event(parts)
    require_normalizable(parts, powers)
    terms: dict[str, list[Term]] = {"known_score": [], "known_log_density": [], "rest": []}
    for index, (part, weight) in enumerate(zip(parts, powers, strict=True)):
        for name, function in _functions(part).items():
            where = f"parts[{index}].{'log_density' if name == 'known_log_density' else 'score'}"
            terms[name].append(Term(weight, function, where))
    support = intersection(*(part.support for part in parts))
    rest = WeightedSum(tuple(terms["rest"])) if terms["rest"] else None
    if not terms["known_score"]:
        return Target(rest, support=support)
    log_density = WeightedSum(tuple(terms["known_log_density"]), per_chain=True)
    return Product(Target(WeightedSum(tuple(terms["known_score"])), log_density), rest, support)


def posterior(prior: TargetLike, log_likelihood: LogDensityFn | TargetLike) -> Target | Product:
    """Return the target proportional to prior times likelihood.

    Args:
        prior: Prior distribution of x; its score alone is enough, for example that of `fit_score`.
        log_likelihood: Function of x `(chain, *event)` that returns the log likelihood of the data, `(chain,)`, whose
            gradient is then computed by automatic differentiation; or a target with a score of its own.

    Example:
        >>> target = posterior(Target(score=lambda x: -x), lambda x: -(x - 2).square().sum(1) / 2)
        >>> target.score(torch.ones(1, 1))
        tensor([[0.]])
    """
    if isinstance(log_likelihood, TargetLike):
        return product(prior, log_likelihood)
    if not callable(log_likelihood):
        fix = "Pass a function of x that returns the log likelihood, one number per chain."
        raise TypeError(checks.message("a log likelihood to call", checks.describe(log_likelihood), fix))
    return product(prior, from_log_density(log_likelihood))


def temper(target: TargetLike, beta: float) -> Target | Product:
    """Return the target proportional to p^beta.

    Args:
        target: What is known of p.
        beta: Inverse temperature, above 0: below 1 the target is flatter than p, above 1 it is narrower.
    """
    checks.positive(beta, "beta")
    return product(target, weights=[beta])


def _checked_weights(parts: tuple[TargetLike, ...], weights: Sequence[float] | None) -> list[float]:
    """Return the weights of these parts, having refused a product of nothing and parts or weights that are none."""
    if not parts:
        raise ValueError(checks.message("at least one part", "none", "Pass targets: product(prior, likelihood)."))
    fix = "Wrap a score as Target(score=...), a log density as targets.from_log_density(...)."
    for part in parts:
        checks.kind(part, TargetLike, "a Target for every part", fix)
        if part.score is None and part.log_density is None:
            raise ValueError(checks.message("parts with a score or a log density", "a part with neither", fix))
    numbers = [1.0] * len(parts) if weights is None else [float(weight) for weight in weights]
    if len(numbers) != len(parts):
        fix = "Pass one weight for every part."
        raise ValueError(checks.message(f"{len(parts)} weights for as many parts", len(numbers), fix))
    if not all(math.isfinite(number) and number != 0 for number in numbers):
        fix = "Leave out a part that shall not count."
        raise ValueError(checks.message("weights that are finite and not 0", numbers, fix))
    return numbers


def _functions(part: TargetLike) -> dict[str, LogDensityFn]:
    """Return the functions of a part by what they are: of its known part, or of the rest."""
    if isinstance(part, Product):
        functions = _functions(part.known)
        return functions if part.rest_score is None else functions | {"rest": part.rest_score}
    # a density that is estimated from a score is no better than the integral of that score, for short moves worse
    if part.log_density is not None and not getattr(part, "density_is_estimated", False):
        score = from_log_density(part.log_density).score if part.score is None else part.score
        assert score is not None
        return {"known_score": score, "known_log_density": part.log_density}
    assert part.score is not None
    return {"rest": part.score}
