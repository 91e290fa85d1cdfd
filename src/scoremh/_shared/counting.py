"""Score calls, counted where they happen: at how many points a score was evaluated.

    with score_calls() as calls:
        point, move = kernel.step(point, generator=g)
    calls.total

A divergence costs one call more for each of the directions along which it is differentiated.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import Tensor

from scoremh._shared import checks
from scoremh.types import ScoreFn


@dataclass
class ScoreCalls:
    """The score calls within a `with` block."""

    total: int = 0


_current: ContextVar[ScoreCalls | None] = ContextVar("score_calls", default=None)


@contextmanager
def score_calls(*, apart: bool = False) -> Iterator[ScoreCalls]:
    """Count the score calls of this thread within the block.

    A surrounding block counts them too, unless they are to be counted `apart`, by who brings the result home.
    """
    calls, outer = ScoreCalls(), _current.get()
    token = _current.set(calls)
    try:
        yield calls
    finally:
        _current.reset(token)
        if outer is not None and not apart:
            outer.total += calls.total


def count(calls: int) -> None:
    """Add score calls to the current block."""
    current = _current.get()
    if current is not None:
        current.total += calls


class CheckedScore:
    """A score whose values must have the shape and dtype of x: others would broadcast silently and change the step."""

    def __init__(self, score: ScoreFn) -> None:
        self.score = score

    def __call__(self, x: Tensor) -> Tensor:
        """Return the score at x."""
        value = self.score(x)
        if type(value) is not Tensor or value.shape != x.shape or value.dtype != x.dtype:
            checks.returned(value, x, x.shape, "score")
        return value


class CountedScore(CheckedScore):
    """A checked score whose calls are counted."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the score at x."""
        count(len(x))
        return super().__call__(x)
