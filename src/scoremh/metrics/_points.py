"""Two samples as matrices in float64, and sums over all pairs of their points in pieces that fit into memory."""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.samples import Samples, as_tensor

Points = Float[Tensor, "_ coordinate"]
MAX_DISTANCES = 2**25  # distances held at a time: 256 MB in float64


def as_matrix(x: Samples, name: str = "x") -> Points:
    """Return a sample `(point, *event)` as a matrix in float64; in float32 a distance far from 0 loses its digits."""
    points = as_tensor(x, name)
    checks.events(points, name)
    return points.detach().flatten(1).double()


def as_matrices(x: Samples, y: Samples) -> tuple[Points, Points]:
    """Return two samples as matrices; refuse samples whose events differ in shape."""
    x, y = as_tensor(x, "x"), as_tensor(y, "y")
    first, second = as_matrix(x, "x"), as_matrix(y, "y")
    if x.shape[1:] != y.shape[1:]:
        got = f"{checks.describe(x)} and {checks.describe(y)}"
        fix = "Compare samples of the same variables; the first axis is the point."
        raise ValueError(checks.message("two samples of one event shape", got, fix))
    return first, second.to(first.device)


def distance_blocks(x: Points, y: Points) -> Iterator[Float[Tensor, "_ _"]]:
    """Yield the Euclidean distances from the points of x to all of y, some rows at a time."""
    for rows in x.split(max(1, MAX_DISTANCES // len(y))):
        yield torch.cdist(rows, y, compute_mode="donot_use_mm_for_euclid_dist")


def sum_over_pairs(x: Points, y: Points, function: Callable[[Tensor], Tensor] = lambda distance: distance) -> float:
    """Return the sum over all pairs of a function of their distance."""
    return sum(float(function(distance).sum()) for distance in distance_blocks(x, y))
