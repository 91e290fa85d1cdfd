"""A score that counts its calls."""

from torch import Tensor

from scoremh.types import ScoreFn


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
