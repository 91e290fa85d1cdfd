"""Targets built from a log density, from a target and a support, or from several targets.

- `from_log_density`: score = grad log p, by automatic differentiation.
- `truncate`: p*(x) proportional to p(x) on a support and 0 outside, the paper's truncated density (section 3.3).
- `product`: p(x) proportional to prod_i p_i(x)^w_i; `posterior`: prior times likelihood; `temper`: p(x)^beta.

A product consists of parts with a log density (`known`) and parts with a score only (`rest`),

    log p(x) = known(x) + rest(x),    known = sum of w_i log p_i over the parts with a log density

Acceptance rules take the difference of `known` between two points and integrate the score of `rest` along the line
between them.

A product with negative weights may grow in its tails. For normal parts the sum of w_i C_i^-1 must be positive
definite. For other parts the score is evaluated far out: along a direction u, log p changes by s.u per unit of length,
and p ~ r^-a, whose slope is -a / r, has an integral in d dimensions only if a > d:

    r s(m + r u).u < -d    for every direction u
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.algebra import inner
from scoremh.targets.distributions import Blurrable, Distribution, Gaussian
from scoremh.targets.likelihoods import KnownLikelihood, Likelihood, LogLikelihood, gradient_of
from scoremh.types import LogDensityFn, ScoreFn, ScoreModel, SupportFn, Target, TargetLike


class Term(NamedTuple):
    """A weight, the score or log density of a part, and its name in errors."""

    weight: float
    function: Callable[[Tensor], Tensor]
    name: str


@dataclass(frozen=True)
class WeightedSum:
    """The weighted sum of scores or of log densities; raises an error if one of them returns a wrong shape."""

    terms: tuple[Term, ...]
    per_chain: bool = False

    @property
    def divides(self) -> bool:
        """Whether a weight is negative, here or in a nested sum."""
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
    """The intersection of several supports."""

    supports: tuple[SupportFn, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """Return whether x lies in every support."""
        return torch.stack([checks.inside(support(x), x) for support in self.supports]).all(0)


def intersection(*supports: SupportFn | None) -> SupportFn | None:
    """Return the intersection of supports, of which None is everywhere; None if all are None."""
    there = tuple(support for support in supports if support is not None)
    return Intersection(there) if len(there) > 1 else next(iter(there), None)


@dataclass(frozen=True, eq=False)
class Product:
    """A product with at least one part that has a log density; built by `product`, `posterior` and `temper`.

    Args:
        known: Score and log density of the parts that have a log density.
        rest_score: Score of the other parts; None if there are no others.
        support: Function of x that returns where p is positive, `(chain,)`; None for everywhere.
        blurred: Function from a noise level to the product of the parts at that level; None if no part knows levels.
    """

    known: Target
    rest_score: ScoreFn | None = None
    support: SupportFn | None = None
    blurred: Callable[[float], TargetLike] | None = None

    def at(self, noise_level: float) -> TargetLike:
        """Return the product of the parts at a noise level; a part without levels stays as it is.

        Args:
            noise_level: Noise level, in the coordinates of the parts that know it.
        """
        if self.blurred is None:
            fix = "Use what fit_score returns, a diffusion model or a normal mixture."
            raise ValueError(checks.message("a part that knows noise levels", "none", fix))
        return self.blurred(noise_level)

    @property
    def log_density(self) -> LogDensityFn | None:
        """Log p up to a constant if every part has a log density, else None."""
        return self.known.log_density if self.rest_score is None else None

    @property
    def score(self) -> ScoreFn:
        """Grad log p: the sum over all parts."""
        known = self.known.score
        assert known is not None
        if self.rest_score is None:
            return known
        return WeightedSum((Term(1.0, self.rest_score, "rest_score"), Term(1.0, known, "known.score")))


def levels_of(part: TargetLike) -> ScoreModel | None:
    """Return the scores of all noise levels that a target belongs to; None if it knows no levels."""
    model = part if isinstance(part, ScoreModel) else getattr(part, "levels", None)
    return None if model is None or model.noise_range is None else model


def part_at(part: TargetLike, noise_level: float) -> TargetLike:
    """Return a part at a noise level, or as it is if it knows none."""
    model = levels_of(part)
    if model is not None:
        return model.at(noise_level)
    if isinstance(part, Target | Product) and part.blurred is not None:
        return part.blurred(noise_level)
    return part


@dataclass(frozen=True, eq=False)
class Factors:
    """The parts of a product with their powers: a function from a noise level to the product at that level.

    Args:
        parts: Targets.
        weights: Power of every part.
    """

    parts: tuple[TargetLike, ...]
    weights: tuple[float, ...]

    def __call__(self, noise_level: float) -> TargetLike:
        """Return the product of the parts at a noise level; a part without levels stays as it is."""
        return product(*(part_at(part, noise_level) for part in self.parts), weights=self.weights)

    @property
    def flat(self) -> list[tuple[float, TargetLike]]:
        """Weights and parts, with products among the parts divided into theirs."""
        found: list[tuple[float, TargetLike]] = []
        for weight, part in zip(self.weights, self.parts, strict=True):
            inside = part.blurred if isinstance(part, Target | Product) and levels_of(part) is None else None
            own = inside.flat if isinstance(inside, Factors) else [(1.0, part)]
            found += [(weight * factor, each) for factor, each in own]
        return found


@dataclass(frozen=True, eq=False)
class Posterior(Product):
    """Prior times likelihood, of a prior that knows noise levels; made by `posterior`, for `smc`.

    Args:
        known: Score and log density of the parts that have a log density.
        rest_score: Score of the other parts; None if there are no others.
        support: Function of x that returns where p is positive, `(chain,)`; None for everywhere.
        blurred: Function from a noise level to the posterior at that level.
        prior: Prior distribution of x.
        likelihood: Likelihood of the data.
    """

    prior: TargetLike = field(kw_only=True)
    likelihood: Likelihood = field(kw_only=True)

    @property
    def model(self) -> ScoreModel:
        """The prior at all noise levels."""
        model = levels_of(self.prior)
        assert model is not None  # `posterior` has looked
        return model

    @property
    def noise_level(self) -> float:
        """The noise level at which the prior is read; 0 for a normal mixture, which is known without noise."""
        level = 0.0 if isinstance(self.prior, Blurrable) else self.model.noise_level
        assert level is not None  # of a model that knows a range of levels
        return level

    def at(self, noise_level: float) -> TargetLike:
        """Return the prior blurred by noise of this level times the likelihood at that level.

        Args:
            noise_level: Noise level, in the coordinates of the prior; 0 returns the posterior itself.
        """
        if noise_level == 0:
            return self
        return product(self.model.at(noise_level), self.likelihood.at(noise_level, self.model.coordinates))


FAR = 100.0  # distance at which tails are examined, in units of the distance of the farthest point
RANDOM_DIRECTIONS, MAX_AXES = 64, 64


def require_one_event(parts: Sequence[TargetLike]) -> None:
    """Raise an error if the parts are distributions over events of different shapes."""
    events = {f"parts[{i}]": part._event for i, part in enumerate(parts) if isinstance(part, Distribution)}
    if len({tuple(event) for event in events.values()}) > 1:
        got = ", ".join(f"{tuple(event)} of {name}" for name, event in events.items())
        fix = "Every part has to be a distribution of the same x."
        raise ValueError(checks.message("parts with events of one shape", got, fix))


def require_normalizable(parts: Sequence[TargetLike], weights: Sequence[float]) -> None:
    """Raise an error for a product of normal distributions whose precision matrix is not positive definite."""
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
    """Return the share of directions in which p, far away from the points x, falls too slowly to have an integral."""
    centre, size = x.mean(0, keepdim=True), x[0].numel()
    farthest = float((x - centre).abs().max()) or float(centre.abs().max()) or 1.0
    noise = torch.randn(RANDOM_DIRECTIONS, size, generator=torch.Generator().manual_seed(0)).to(x)
    axes = torch.eye(size, dtype=x.dtype, device=x.device)[:MAX_AXES]
    directions = torch.cat([noise / noise.norm(dim=1, keepdim=True), axes, -axes]).reshape(-1, *x.shape[1:])
    radius = FAR * farthest * size**0.5
    return float((radius * inner(score(centre + radius * directions), directions) >= -size).double().mean())


def from_log_density(log_density: LogDensityFn, support: SupportFn | None = None) -> Target:
    """Return the target of a log density; its score is computed by automatic differentiation.

    No graph is kept, even if `log_density` has parameters, unless x itself requires a gradient.

    Args:
        log_density: Function of x `(chain, *event)` that returns log p(x) + const, `(chain,)`; the value of a chain
            must not depend on other chains.
        support: Function of x that returns where p is positive, `(chain,)`; None for everywhere.
    """

    def checked(x: Tensor) -> Tensor:
        value = log_density(x)
        checks.returned(value, x, x.shape[:1], "log_density")
        return value

    def score(x: Tensor) -> Tensor:
        return gradient_of(checked, x)

    return Target(score, log_density, support)


def truncate(target: TargetLike, support: SupportFn) -> Target | Product:
    """Return a target restricted to a support, in addition to its own; score and log density are unchanged."""
    both = intersection(target.support, support)
    if isinstance(target, Product):
        return replace(target, support=both)
    levels = target if isinstance(target, ScoreModel) else getattr(target, "levels", None)
    estimated = getattr(target, "density_is_estimated", False)  # ThroughNoise computes it from `levels`
    blurred = target.blurred if isinstance(target, Target) else None
    return Target(target.score, None if estimated else target.log_density, both, levels=levels, blurred=blurred)


def product(*parts: TargetLike, weights: Sequence[float] | None = None) -> Target | Product:
    """Return the target proportional to the product of parts, each raised to the power of its weight.

    In a kernel, log densities are evaluated at the two ends of a move only, and their difference is exact; parts with
    a score only are integrated by `LineIntegral` or `Taylor`. If every part has a log density, these rules decide as
    `Exact` does.

    Args:
        parts: Targets with a score, a log density, or both; if a part has a log density only, its score is computed by
            automatic differentiation. The support of the product is the intersection of their supports.
        weights: Power of every part, finite and not 0, negative to divide by the part; all 1 by default. A product of
            normal parts that cannot be normalised raises an error; for other parts, a kernel warns if the product grows
            far out.

    Returns:
        A `Product`, or a `Target` with a score if no part has a log density.

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
    knows = any(
        levels_of(part) is not None or (isinstance(part, Target | Product) and part.blurred is not None)
        for part in parts
    )
    blurred = Factors(parts, tuple(powers)) if knows else None
    rest = WeightedSum(tuple(terms["rest"])) if terms["rest"] else None
    if not terms["known_score"]:
        return Target(rest, support=support, blurred=blurred)
    log_density = WeightedSum(tuple(terms["known_log_density"]), per_chain=True)
    return Product(Target(WeightedSum(tuple(terms["known_score"])), log_density), rest, support, blurred)


def posterior(
    prior: TargetLike, log_likelihood: Callable[..., Tensor] | Likelihood | TargetLike
) -> Target | Product | Posterior:
    """Return the target proportional to prior times likelihood.

    Args:
        prior: Prior distribution of x; a score is enough, such as the result of `fit_score`.
        log_likelihood: `linear_observation(A, y, std)`; or a function of x `(chain, *event)`, or of x and the noise
            level, that returns the log likelihood of the data, `(chain,)`; its gradient is computed by automatic
            differentiation. Or a target with its own score.

    Returns:
        A product. If the prior knows noise levels, it does too: `.at(sigma)` is the posterior at a noise level, and
        `smc` draws from it.

    Example:
        >>> target = posterior(Target(score=lambda x: -x), lambda x: -(x - 2).square().sum(1) / 2)
        >>> target.score(torch.ones(1, 1))
        tensor([[0.]])
    """
    if isinstance(log_likelihood, Likelihood):
        likelihood = log_likelihood
    elif isinstance(log_likelihood, TargetLike):
        both = product(prior, log_likelihood)
        if log_likelihood.log_density is None or getattr(log_likelihood, "density_is_estimated", False):
            return both
        score = log_likelihood.score or from_log_density(log_likelihood.log_density).score
        likelihood = KnownLikelihood(Target(score, log_likelihood.log_density))
    elif callable(log_likelihood):
        likelihood = LogLikelihood(log_likelihood)
    else:
        fix = "Pass a function of x that returns the log likelihood, one number per chain."
        raise TypeError(checks.message("a callable log likelihood", checks.describe(log_likelihood), fix))
    both, model = (
        product(prior, log_likelihood if isinstance(log_likelihood, TargetLike) else likelihood),
        levels_of(prior),
    )
    if model is None:
        return both
    likelihood = likelihood.at(0.0, model.coordinates)  # what all levels share is computed once
    assert isinstance(both, Product)  # the likelihood has a log density
    return Posterior(both.known, both.rest_score, both.support, both.blurred, prior=prior, likelihood=likelihood)


def temper(target: TargetLike, beta: float) -> Target | Product:
    """Return the target proportional to p^beta.

    Args:
        target: Target with a score, a log density, or both.
        beta: Inverse temperature, above 0. Below 1 the result is flatter than p, above 1 it is narrower.
    """
    checks.positive(beta, "beta")
    return product(target, weights=[beta])


def _checked_weights(parts: tuple[TargetLike, ...], weights: Sequence[float] | None) -> list[float]:
    """Return the weights as floats, after checking parts and weights."""
    if not parts:
        raise ValueError(checks.message("at least one part", "none", "Pass targets: product(prior, likelihood)."))
    fix = "Wrap a score in Target(score=...), a log density in targets.from_log_density(...)."
    for part in parts:
        checks.kind(part, TargetLike, "a Target for every part", fix)
        if part.score is None and part.log_density is None:
            raise ValueError(checks.message("parts with a score or a log density", "a part with neither", fix))
    numbers = [1.0] * len(parts) if weights is None else [float(weight) for weight in weights]
    if len(numbers) != len(parts):
        fix = "Pass one weight for every part."
        raise ValueError(checks.message(f"{len(parts)} weights for {len(parts)} parts", len(numbers), fix))
    if not all(math.isfinite(number) and number != 0 for number in numbers):
        fix = "Leave out a part instead of giving it weight 0."
        raise ValueError(checks.message("weights that are finite and not 0", numbers, fix))
    return numbers


def _functions(part: TargetLike) -> dict[str, LogDensityFn]:
    """Return the known score and log density of a part, its rest score, or both, by name."""
    if isinstance(part, Product):
        functions = _functions(part.known)
        return functions if part.rest_score is None else functions | {"rest": part.rest_score}
    # a log density estimated from a score is no better than the integral of that score, and worse for short moves
    if part.log_density is not None and not getattr(part, "density_is_estimated", False):
        score = from_log_density(part.log_density).score if part.score is None else part.score
        assert score is not None
        return {"known_score": score, "known_log_density": part.log_density}
    assert part.score is not None
    return {"rest": part.score}
