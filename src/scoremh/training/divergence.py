"""The error of a training whose loss is not finite, or has no least value."""

from scoremh._shared import checks


class DivergenceError(RuntimeError):
    """Training diverged. Carries the `step`, the `loss` and the `history` up to there."""

    def __init__(self, text: str, step: int, loss: float, history: dict[str, list[float]]) -> None:
        super().__init__(text)
        self.step, self.loss, self.history = step, loss, history

    @classmethod
    def at(cls, step: int, name: str, value: float, floor: float, history: dict[str, list[float]]) -> "DivergenceError":
        """Return the error for a loss that is not finite or below its floor.

        Args:
            step: Step at which it was computed.
            name: Name of the loss, for the text.
            value: The loss.
            floor: Loss below which it is taken for unbounded.
            history: History up to there.
        """
        if value < floor:
            expected, got = f"a {name} loss above {floor:.4g}", f"{value:.4g} at step {step}"
            fix = (
                "It has no least value where the samples have no width in some direction. Use DenoisingScoreMatching "
                "or MultilevelDenoising, or add noise to the samples."
            )
        else:
            expected, got = f"a finite {name} loss", f"{value} at step {step}"
            fix = (
                "Lower the rate, set clip, or look for outliers among the samples, and for places without a finite "
                "score."
            )
        return cls(checks.message(expected, got, fix), step, value, history)
