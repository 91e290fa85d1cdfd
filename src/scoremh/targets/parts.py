"""A product of parts, p = prod_i p_i^w_i: what is known of it exactly, and what by a score alone.

    log p(x) = known(x) + rest(x),    known = sum of w_i log p_i over the parts with a log density

Acceptance rules difference `known` between two points and integrate the score of `rest` on the way from one to the
other. `product`, `posterior` and `temper` build it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from scoremh._shared import checks
from scoremh.types import LogDensityFn, ScoreFn, SupportFn, Target


class Term(NamedTuple):
    """A weight times the score or log density of a part, with a name for errors."""

    weight: float
    function: Callable[[Tensor], Tensor]
    name: str


@dataclass(frozen=True)
class WeightedSum:
    """The sum of weighted scores or of weighted log densities; one that answers with a wrong shape is refused.

    Args:
        terms: Weights and functions of x.
        per_chain: Whether every function returns one number per chain, as log densities do, and not an event.
    """

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
            checks.answer(value, x, x.shape[:1] if self.per_chain else x.shape, name)
            value = value if weight == 1 else weight * value
            total = value if total is None else total + value
        assert total is not None
        return total


@dataclass(frozen=True)
class Intersection:
    """The support of all x that lie in several supports.

    Args:
        supports: Functions of x that return a bool per chain.
    """

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
