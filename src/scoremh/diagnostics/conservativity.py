"""Conservativity: is a score the gradient of a log density? A learned score is one only approximately.

A gradient has a symmetric Jacobian J, and its integral around every closed path is 0:

    asymmetry = |J w - J^T w| / |J w|,    circulation = int s . dx around a triangle

The effect on an accept step: if the ratio along one path is r, it is r exp(c) along another path to the same candidate,
where c is the circulation around both. Metropolis's a = min(1, r) then changes by at most about |c| r if r < 1, and not
at all if r > 1. In equilibrium, candidates with r < 1 contribute half of the acceptance rate (as many moves go down as
up), so that the share of decisions that depend on the path is at most

    mean |c| x acceptance rate / 2  <=  rms c / 2

for small c independent of r: at most 5 % if the circulation is MAX_CIRCULATION = .1 nats.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.algebra import gauss_legendre, inner, per_chain, scores_along, weighted_sum
from scoremh._shared.checks import Samples, as_tensor
from scoremh.types import ScoreFn, TargetLike

MAX_CIRCULATION = 0.1  # nats, beyond which more than 5 % of the decisions may depend on the path of the integral


@dataclass(frozen=True)
class Conservativity:
    """How far a score is from a gradient, for which asymmetry and circulation are 0.

    Args:
        asymmetry: |J w - J^T w| / |J w| for random w, with root mean squares over the points.
        circulation: Root mean square, in nats, of the integral around a triangle at each point: the amount by which
            log p fails to return to its value.
        side: Root mean square, in nats, of the integral along one side, for comparison with the circulation.
    """

    asymmetry: float
    circulation: float
    side: float

    def __str__(self) -> str:
        """Return asymmetry, circulation, what it means for decisions, and its limit."""
        return (
            f"Jacobian asymmetry {self.asymmetry:.3g}; around a triangle log p fails to return by "
            f"{self.circulation:.3g} nats, where one side changes it by {self.side:.3g}: at most "
            f"{min(1.0, self.circulation / 2):.2g} of the decisions on moves of this size depend on the path of the "
            f"integral. The limit is {MAX_CIRCULATION:g} nats."
        )


def conservativity(
    score: ScoreFn, x: Samples, *, size: float = 0.5, nodes: int = 8, generator: torch.Generator | None = None
) -> Conservativity:
    """Measure how far a score is from being a gradient around the points x.

    Args:
        score: x -> grad log p(x).
        x: Points to measure at, `(chain, *event)`, at least two; data or draws are a good choice.
        size: Length of a triangle's sides from its corner x, in units of the points' root mean square distance from
            their mean.
        nodes: Number of Gauss-Legendre nodes on each side.
        generator: Random number generator; the same seed gives the same draws.

    Returns:
        The asymmetry of the Jacobian and the circulation.
    """
    x = as_tensor(x, "x", torch.get_default_dtype())
    checks.events(x)
    checks.positive(size, "size")
    checks.count(len(x), "number of points", at_least=2)
    x = x.detach()
    length = size * math.sqrt(float(inner(x - x.mean(0), x - x.mean(0)).mean()))
    return _measured(score, x, length, nodes, generator)


def conservativity_by_level(
    target_at: Callable[[float], TargetLike],
    levels: Iterable[float],
    x: Samples,
    *,
    step: float = 1.0,
    nodes: int = 8,
    generator: torch.Generator | None = None,
) -> dict[float, Conservativity]:
    """Measure at every noise level how far the score is from a gradient, around triangles as large as a step.

    Args:
        target_at: Function from a noise level to a target with the score of the distribution blurred by it, such as
            `fit.standard.at`.
        levels: Noise levels to measure at.
        x: Draws without noise, `(row, *event)`, in coordinates in which the noise is N(0, level^2 I): for
            `fit.standard.at` the coordinates of the network, `fit.coordinates.inverse(samples)`.
        step: Standard deviation of a step over the noise level: sqrt(2h) / level for MALA.
        nodes: Number of Gauss-Legendre nodes on each side.
        generator: Random number generator; the same seed gives the same numbers.

    Returns:
        The result at every level.
    """
    x = as_tensor(x, "x", torch.get_default_dtype())
    checks.events(x)
    checks.positive(step, "step")
    found = {}
    for level in levels:
        checks.positive(level, "level")
        score = target_at(level).score
        if score is None:
            fix = "Return a target whose score is that of the distribution blurred by this level."
            raise ValueError(checks.message("target_at to return a target with a score", "one without", fix))
        blurred = x.detach() + level * rng.normal(tuple(x.shape), x, generator)
        found[level] = _measured(score, blurred, step * level * math.sqrt(x[0].numel()), nodes, generator)
    return found


def lowest_conservative_level(found: Mapping[float, Conservativity], *, limit: float = MAX_CIRCULATION) -> float:
    """Return the lowest noise level down to which the circulation stays within a limit; infinity if there is none.

    Args:
        found: Result of `conservativity_by_level`.
        limit: Largest circulation, in nats.
    """
    checks.positive(limit, "limit")
    lowest = math.inf
    for level in sorted(found, reverse=True):
        if not found[level].circulation <= limit:
            break
        lowest = level
    return lowest


def _measured(
    score: ScoreFn, x: Tensor, length: float, nodes: int, generator: torch.Generator | None
) -> Conservativity:
    """Return the asymmetry at points x and the circulation around triangles with sides of this length from x."""
    w = rng.normal(tuple(x.shape), x, generator)
    with torch.no_grad():
        forward = torch.func.jvp(score, (x,), (w,))[1]
        backward = torch.func.vjp(score, x)[1](w)[0]
        corners = [x, *(x + length * _directions(x, generator) for _ in range(2))]
        sides = [_integral(score, corners[i], corners[(i + 1) % 3], nodes) for i in range(3)]
    asymmetry = _rms(forward - backward) / max(_rms(forward), torch.finfo(x.dtype).tiny)
    return Conservativity(asymmetry, _rms(sum(sides[1:], sides[0])), _rms(torch.stack(sides)))


def _directions(x: Tensor, generator: torch.Generator | None) -> Tensor:
    z = rng.normal(tuple(x.shape), x, generator)
    return z / per_chain(inner(z, z).sqrt(), z)


def _integral(score: ScoreFn, a: Tensor, b: Tensor, nodes: int) -> Tensor:
    rule = gauss_legendre(nodes)
    return inner(weighted_sum(rule.weights, scores_along(score, a, b - a, rule.nodes)), b - a)


def _rms(values: Tensor) -> float:
    return math.sqrt(float(values.double().square().mean()))
