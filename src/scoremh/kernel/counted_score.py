"""Scores as kernels call them: checked, and counted; and the calls of a log density made of scores."""

from collections.abc import Callable

from torch import Tensor

from scoremh._shared import checks
from scoremh.types import LogDensityFn, ScoreFn, Target


class CheckedScore:
    """A score whose every answer has the shape and the dtype of x: another one would be broadcast, and be another step.

    Args:
        score: The score.
    """

    def __init__(self, score: ScoreFn) -> None:
        self.score = score

    def __call__(self, x: Tensor) -> Tensor:
        """Return the score at x."""
        value = self.score(x)
        if type(value) is not Tensor or value.shape != x.shape or value.dtype != x.dtype:
            checks.answer(value, x, x.shape, "score")
        return value


def checked(target: Target) -> Target:
    """Return a target whose scores are checked at every call."""
    score, known = (part and CheckedScore(part) for part in (target.score, target.known_score))
    return target._replace(score=score, known_score=known)


class CountedScore:
    """A score that counts the points at which it was evaluated.

    Args:
        score: The score.
    """

    def __init__(self, score: ScoreFn) -> None:
        self.score, self.calls = score, 0

    def __call__(self, x: Tensor) -> Tensor:
        """Return the score at x."""
        self.calls += len(x)
        return self.score(x)


def density_calls(log_density: LogDensityFn | None, x: Tensor) -> int:
    """Return the score calls that the log density of these points takes; 0 where it is none made of scores."""
    calls: Callable[[Tensor], int] | None = getattr(log_density, "score_calls", None)
    return 0 if calls is None else calls(x)
