"""Small operations over chains, quadratures along a line, and Runge-Kutta steps.

With `v = x' - x`, `log p(x') - log p(x) = int_0^1 s(x + t v) . v dt`. A quadrature with nodes t_i in [0, 1] and weights
w_i estimates it by `(sum_i w_i s(x + t_i v)) . v`.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scoremh._shared import checks
from scoremh.types import ScoreFn, SupportFn

Rate = Callable[[Tensor, float], Tensor]  # dx / dt of x and t


def inner(a: Float[Tensor, "chain *event"], b: Float[Tensor, "chain *event"]) -> Float[Tensor, " chain"]:
    """Return the inner product of two events, one per chain."""
    return (a * b).flatten(1).sum(1)


def per_chain(value: Tensor, like: Tensor) -> Tensor:
    """Reshape `(chain,)` so that it broadcasts against `(chain, *event)`."""
    return value.reshape(-1, *(1,) * (like.ndim - 1))


def rows_finite(x: Float[Tensor, "chain *event"]) -> Bool[Tensor, " chain"]:
    """Return which chains have only finite numbers."""
    # 0 times NaN or inf is NaN; this is three times faster than isfinite and all
    return x.mul(0).flatten(1).sum(1) == 0


class Quadrature(NamedTuple):
    """A quadrature on [0, 1]: the weight at both ends, and the inner nodes with their weights."""

    ends: float
    nodes: tuple[float, ...]
    weights: tuple[float, ...]


def newton_cotes(inside: int, *, simpson: bool) -> Quadrature:
    """Return the composite trapezoid or Simpson rule with `inside` equally spaced inner nodes."""
    intervals = inside + 1
    weights = np.full(intervals + 1, 1 / intervals)
    weights[[0, -1]] /= 2
    if simpson:
        weights[1::2] *= 4 / 3
        weights[2:-1:2] *= 2 / 3
        weights[[0, -1]] *= 2 / 3
    nodes = np.arange(1, intervals) / intervals
    return Quadrature(float(weights[0]), tuple(nodes.tolist()), tuple(weights[1:-1].tolist()))


def gauss_legendre(inside: int) -> Quadrature:
    """Return the Gauss-Legendre rule: inner nodes only, exact for polynomials of degree 2 inside - 1."""
    nodes, weights = np.polynomial.legendre.leggauss(inside)
    return Quadrature(0.0, tuple(((nodes + 1) / 2).tolist()), tuple((weights / 2).tolist()))


def line(x: Tensor, v: Tensor, nodes: tuple[float, ...]) -> Float[Tensor, "node chain *event"]:
    """Return x + t v for all nodes t."""
    return x + torch.tensor(nodes, dtype=x.dtype, device=x.device).reshape(-1, *(1,) * x.ndim) * v


def whole_way(support: SupportFn, x: Tensor, v: Tensor, nodes: tuple[float, ...]) -> Bool[Tensor, " chain"]:
    """Return which chains are inside a support at x + v and at x + t v for all nodes t."""
    places = line(x, v, (*nodes, 1.0))
    return support(places.flatten(0, 1)).reshape(len(places), len(x)).all(0)


def scores_along(score: ScoreFn, x: Tensor, v: Tensor, nodes: tuple[float, ...]) -> Float[Tensor, "node chain *event"]:
    """Return s(x + t v) for all nodes t, in one batched score call."""
    places = line(x, v, nodes).flatten(0, 1)
    with checks.explained():
        scores = score(places)
    checks.returned(scores, places, places.shape, "score")
    return scores.reshape(len(nodes), *x.shape)


def weighted_sum(weights: tuple[float, ...], values: Float[Tensor, "node *rest"]) -> Float[Tensor, "*rest"]:
    """Return sum_i w_i values[i]."""
    total: Tensor = torch.tensordot(torch.tensor(weights, dtype=values.dtype, device=values.device), values, dims=1)
    return total


def runge_kutta(rate: Rate, x: Tensor, times: Sequence[float]) -> Tensor:
    """Integrate dx / dt = rate(x, t) through these times by Kutta's 3/8 rule: order four, four rates per step."""
    for start, end in itertools.pairwise(times):
        width = end - start
        first = rate(x, start)
        second = rate(x + width / 3 * first, start + width / 3)
        third = rate(x + width * (second - first / 3), start + 2 * width / 3)
        fourth = rate(x + width * (first - second + third), end)
        x = x + width / 8 * (first + 3 * (second + third) + fourth)
    return x
