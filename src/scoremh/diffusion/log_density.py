r"""Normalised log p from the scores of all noise levels.

With `g(x, sigma) = sigma^2 (div s + |s|^2)`, along any path x(u), sigma(u) from the level lo to a level hi,

    log p_lo(x) = log p_hi(x_hi) - int [ s . x'(u) + g . (log sigma)'(u) ] du

The radial path x k(sigma) / k(lo), where `k^2 = v + sigma^2` and v is the variance of p, keeps the radius typical; the
fixed path stays at x. Both integrals use Gauss-Legendre quadrature in log sigma of the difference to the same integral
for N(0, k^2 I), so that a normal distribution is exact with any number of nodes.

`flow_log_density` is a second estimate, from the same scores along other paths. In the coordinates u of the model the
probability flow `du / d sigma = -sigma s(u, sigma)` moves p_lo to p_hi, and along it

    log p_lo(u_lo) = log p_hi(u_hi) - int sigma div s(u, sigma) d sigma

It costs several times as much. If the two differ, neither can be trusted.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.algebra import Quadrature, gauss_legendre, inner, per_chain, runge_kutta
from scoremh._shared.counting import count
from scoremh.types import ScoreModel, require_event

Path = Literal["radial", "fixed"]
NODES_BETWEEN_LEVELS = 3  # nodes for a change between neighbouring levels, as in replica exchange
MAX_CALL_NUMBERS = 2**19  # numbers in the input tangents of one network call: 64 MB at 128 hidden units


def log_density(
    model: ScoreModel, x: Float[Tensor, "chain *event"], *, nodes: int = 8, path: Path = "radial"
) -> Float[Tensor, " chain"]:
    """Return log p at the model's noise level, normalised.

    Args:
        model: Score at every noise level, such as the result of `fit_score`.
        x: Points, `(chain, *event)`.
        nodes: Number of noise levels at which the score and its divergence are evaluated.
        path: "radial", or "fixed" at x, which needs 1.5 times as many nodes.
    """
    checks.one_of(path, get_args(Path), "path")
    checks.count(nodes, "nodes")
    low, high = noise_span(model)
    checks.kind(x, Tensor, "x to be a torch.Tensor", "Convert it with torch.as_tensor(x, dtype=...).")
    if model.event is not None:
        require_event(x, tuple(model.event.shape))
    standard, quadrature = model.standard, gauss_legendre(nodes)
    with checks.explained():
        parts = [
            _log_density(standard, part, low, high, quadrature, path)
            for part in model.coordinates.inverse(x).split(rows_of_a_call(x, nodes))
        ]
    return torch.cat(parts) - model.coordinates.log_det(model.coordinates.inverse(x))


def log_density_change(
    model: ScoreModel,
    x: Float[Tensor, "chain *event"],
    from_level: Tensor | float,
    to_level: Tensor | float,
    *,
    nodes: int = NODES_BETWEEN_LEVELS,
) -> Float[Tensor, " chain"]:
    """Return log p(x) at one noise level minus log p(x) at another.

    Args:
        model: Scores at every noise level.
        x: Points, `(chain, *event)`.
        from_level: Noise level to subtract, a number or one per chain.
        to_level: Noise level to subtract from, a number or one per chain.
        nodes: Number of noise levels between them at which the score and its divergence are evaluated.
    """
    quadrature, variance, u = gauss_legendre(nodes), model.variance, model.coordinates.inverse(x)
    from_, to = (
        torch.as_tensor(level, dtype=u.dtype, device=u.device).expand(len(u)) for level in (from_level, to_level)
    )
    rows = rows_of_a_call(x, nodes)
    parts = [
        _integral(model.standard, *part, quadrature, "fixed")
        for part in zip(u.split(rows), from_.split(rows), to.split(rows), strict=True)
    ]
    return torch.cat(parts) + log_normal(u, variance + to.square()) - log_normal(u, variance + from_.square())


@dataclass(frozen=True, eq=False)
class LogDensity:
    """The function x -> log p(x) of a model.

    Args:
        model: Score at every noise level.
        nodes: Number of noise levels at which the score and its divergence are evaluated.
        path: "radial" or "fixed".
    """

    model: ScoreModel
    nodes: int = 8
    path: Path = "radial"

    def __call__(self, x: Float[Tensor, "chain *event"]) -> Float[Tensor, " chain"]:
        """Return log p at the model's noise level, normalised."""
        return log_density(self.model, x, nodes=self.nodes, path=self.path)


def noise_span(model: ScoreModel) -> tuple[float, float]:
    """Return the noise level of a model and the highest of its range; raise an error for a model with one level."""
    if model.noise_range is None or model.noise_level is None:
        fix = "Fit it with MultilevelDenoising(), the default except for heavy tails, or use LineIntegral()."
        raise ValueError(checks.message("a score at many noise levels", "a score at one level only", fix))
    return model.noise_level, model.noise_range[1]


def rows_of_a_call(x: Tensor, nodes: int) -> int:
    """Return the number of points in one network call, which has a tangent for every coordinate at every node."""
    return max(1, MAX_CALL_NUMBERS // (nodes * x[0].numel() ** 2))


def _log_density(
    standard: ScoreModel, u: Tensor, low: float, high: float, quadrature: Quadrature, path: Path
) -> Float[Tensor, " chain"]:
    """Return log p of u at the low level: a normal log density, corrected at the high level and along the path."""
    variance = standard.variance
    stretch = math.sqrt((variance + high**2) / (variance + low**2)) if path == "radial" else 1.0
    value = log_normal(u, variance + low**2) - _integral(standard, u, low, high, quadrature, path)
    top = standard.at(high).log_density
    return value if top is None else value + top(u * stretch) - log_normal(u * stretch, variance + high**2)


def log_normal(u: Tensor, variance: Tensor | float) -> Float[Tensor, " chain"]:
    """Return the log density of N(0, variance I), with one variance for all chains or one per chain."""
    wide = torch.as_tensor(variance, dtype=u.dtype, device=u.device)
    return -(inner(u, u) / wide + u[0].numel() * (2 * math.pi * wide).log()) / 2


def _integral(
    standard: ScoreModel, u: Tensor, low: Tensor | float, high: Tensor | float, quadrature: Quadrature, path: Path
) -> Float[Tensor, " chain"]:
    """Return the integral from low to high minus the integral for N(0, k^2 I), with all nodes in one call."""
    low, high = (torch.as_tensor(level, dtype=u.dtype, device=u.device).expand(len(u)) for level in (low, high))
    width, variance = (high / low).log(), standard.variance
    levels = low * (width * u.new_tensor(quadrature.nodes)[:, None]).exp()  # (node, chain)
    wide = variance + levels.square()  # k^2
    stretch = (wide / (variance + low.square())).sqrt() if path == "radial" else torch.ones_like(wide)
    places = per_chain(stretch.flatten(), u) * u.repeat(len(levels), *(1,) * (u.ndim - 1))  # every chain at every node
    sigma, wide = levels.flatten(), wide.flatten()
    score, divergence = _level_score(standard, places, sigma)
    inward = places / per_chain(wide, places)
    excess = score + inward  # 0 for N(0, k^2 I)
    # g minus the g of N(0, k^2 I) is sigma^2 (div s + d / k^2 + excess . (s - x / k^2)); on the radial path the term
    # s . x' adds sigma^2 excess . x / k^2
    along = score if path == "radial" else score - inward
    rate = sigma.square() * (divergence + u[0].numel() / wide + inner(excess, along))
    return width * (u.new_tensor(quadrature.weights) @ rate.reshape(levels.shape))


def _level_score(model: ScoreModel, x: Tensor, sigma: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return score and divergence, and count one score call plus one per direction of the divergence."""
    count(len(x) * (1 + (model.probes or x[0].numel())))
    return model.level_score(x, sigma)


def flow_log_density(
    model: ScoreModel, x: Float[Tensor, "chain *event"], *, steps: int = 16
) -> Float[Tensor, " chain"]:
    """Return log p at the model's noise level as the likelihood of its probability flow.

    Args:
        model: Score at every noise level, such as the result of `fit_score`.
        x: Points, `(chain, *event)`.
        steps: Number of Runge-Kutta steps between geometric noise levels, each with four scores and divergences.
    """
    checks.count(steps, "steps")
    low, high = noise_span(model)
    standard, u = model.standard, model.coordinates.inverse(x)
    parts = [_log_density_by_flow(standard, part, low, high, steps) for part in u.split(rows_of_a_call(x, 1))]
    return torch.cat(parts) - model.coordinates.log_det(u)


def _log_density_by_flow(
    standard: ScoreModel, u: Tensor, low: float, high: float, steps: int
) -> Float[Tensor, " chain"]:
    """Return log p at the low level of u."""

    def rate(state: Tensor, level: float) -> Tensor:
        score, divergence = _level_score(standard, state[:, :-1].unflatten(1, u.shape[1:]), level)
        return level * torch.cat([-score.flatten(1), divergence[:, None]], 1)

    levels = [low * (high / low) ** (i / steps) for i in range(steps + 1)]
    start = torch.cat([u.flatten(1), u.new_zeros(len(u), 1)], 1)
    end = runge_kutta(rate, start, levels)
    u, total = end[:, :-1].unflatten(1, u.shape[1:]), end[:, -1]
    top = standard.at(high).log_density
    return (log_normal(u, standard.variance + high**2) if top is None else top(u)) - total
