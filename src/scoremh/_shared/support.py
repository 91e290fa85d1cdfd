"""Supports, outside of which a density is 0: the paper's truncated p* (section 3.3)."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.parameters import Values, written


@dataclass(frozen=True, eq=False)
class Box:
    """The support low <= x <= high; made by `box`."""

    low: Tensor
    high: Tensor

    def __call__(self, x: Float[Tensor, "chain *event"]) -> Bool[Tensor, " chain"]:
        """Return whether every coordinate lies between the bounds."""
        for bound in (self.low, self.high):
            require_event(x, bound.shape or x.shape[1:])
        return ((self.low.to(x) <= x) & (x <= self.high.to(x))).flatten(1).all(1)


def box(low: Values, high: Values) -> Box:
    """Return the support of all x between two bounds, each a number (for every coordinate) or event-shaped.

    >>> box(0.0, [1.0, 2.0])(torch.tensor([[0.5, 1.5], [1.5, 0.5]]))
    tensor([ True, False])
    """
    # Numbers are kept in float64: the bound 0.1 shall not become that of float32 when x is in float64.
    bounds = [b.clone() if isinstance(b, Tensor) else torch.tensor(b, dtype=torch.float64) for b in (low, high)]
    if not (bounds[0] < bounds[1]).all():
        got = f"low={bounds[0].tolist()} and high={bounds[1].tolist()}"
        raise ValueError(checks.message("low below high in every coordinate", got, "Swap or correct the bounds."))
    return Box(*bounds)


def require_event(x: Tensor, event: tuple[int, ...]) -> None:
    """Refuse an x whose events have another shape: it would broadcast silently."""
    if x.shape[1:] != event:
        fix = "The first axis is the chain; the rest is one event."
        raise ValueError(checks.message(f"x of shape {written('chain', *event)}", checks.describe(x), fix))
