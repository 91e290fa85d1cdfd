"""Counting of score calls, the points at which a score is evaluated.

    with score_calls() as calls:
        point, move = kernel.step(point, generator=g)
    calls.total

A divergence costs one more call for each direction along which the score is differentiated.
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

    A surrounding block counts them too, unless `apart`: then the caller adds them where the result is used.
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
    """A score with a check of shape and dtype at every call: a wrong shape would broadcast silently."""

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
