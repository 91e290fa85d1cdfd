"""What a kernel's evaluations cost: a score that counts its calls, and the calls of a log density made of scores."""

from collections.abc import Callable

from torch import Tensor

from scoremh.types import LogDensityFn, ScoreFn


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
