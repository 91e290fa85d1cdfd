"""Is a score the gradient of a log density? A learned one is so only nearly.

A gradient has a symmetric Jacobian J, and its integral around every closed path is 0:

    asymmetry = |J w - J^T w| / |J w|,    circulation = int s . dx around a triangle
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.algebra import gauss_legendre, inner, per_chain, scores_along, weighted_sum
from scoremh.types import ScoreFn


@dataclass(frozen=True)
class Conservativity:
    """How far a score is from a gradient; both numbers are 0 for one.

    Args:
        asymmetry: |J w - J^T w| / |J w| for random w, root mean squares over the points.
        circulation: Root mean square, in nats, of the integral around a triangle at each point: by how much log p fails
            to return to its value.
        side: Root mean square, in nats, of the integral along one side, to compare the circulation with.
    """

    asymmetry: float
    circulation: float
    side: float

    def __str__(self) -> str:
        """Return asymmetry and circulation in a sentence."""
        return (
            f"Jacobian asymmetry {self.asymmetry:.3g}; around a triangle log p fails to return by "
            f"{self.circulation:.3g} nats, where one side changes it by {self.side:.3g}"
        )


def conservativity(
    score: ScoreFn, x: Tensor, *, size: float = 0.5, nodes: int = 8, generator: torch.Generator | None = None
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
    checks.events(x)
    checks.positive(size, "size")
    checks.count(len(x), "number of points", at_least=2)
    x = x.detach()
    w = rng.normal(tuple(x.shape), x, generator)
    with torch.no_grad():
        forward = torch.func.jvp(score, (x,), (w,))[1]
        backward = torch.func.vjp(score, x)[1](w)[0]
        length = size * math.sqrt(float(inner(x - x.mean(0), x - x.mean(0)).mean()))
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
