"""The probability flow: draws carried from one noise level to another, with nothing random.

`dx / d sigma^2 = -C s(x, sigma) / 2` has the distribution blurred by noise of level sigma at every sigma (Song et al.
2021). Chains may so run at a level where a learned score has the right weights of modes, and their draws be those of
the data.
"""

import itertools
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks
from scoremh.annealing.schedules import check_levels
from scoremh.coordinates import Affine
from scoremh.types import TargetLike


def flow(
    target_at: Callable[[float], TargetLike],
    levels: Sequence[float],
    x: Float[Tensor, "chain *event"],
    *,
    covariance: Tensor | None = None,
) -> Float[Tensor, "chain *event"]:
    """Carry draws from the first noise level to the last along the probability flow, and return them.

    Heun's method in the variance of the noise. A last level of 0 takes away the noise of the one before.

    Args:
        target_at: Function from a noise level to a target with the score of the distribution blurred by it, such as
            `fit.at`.
        levels: Noise levels from high to low, such as `geometric(0.3, 0.02, 8)`; the last may be 0.
        x: Draws of the distribution blurred by the first level.
        covariance: C of the noise sigma^2 C, such as `fit.covariance`; the identity when None.

    Returns:
        As many draws, each at the end of its path.

    Example:
        >>> import torch
        >>> from scoremh import Target, annealing
        >>> def target_at(level):  # N(0, 1) blurred by noise of this level
        ...     return Target(score=lambda x: -x / (1 + level**2))
        >>> x = torch.full((1, 1), 2.0)  # one standard deviation, with noise of variance 3
        >>> end = flow(target_at, [*annealing.geometric(3**0.5, 0.1, 20), 0.0], x)
        >>> round(float(end), 2)
        1.0
    """
    checks.events(x, "x")
    check_levels(levels[:-1] if levels and levels[-1] == 0 else levels)
    coordinates = None if covariance is None else Affine.from_covariance(covariance)

    def drift(x: Tensor, level: float) -> Tensor:
        score = target_at(level).score
        if score is None:
            fix = "Return a target whose score is that of the distribution blurred by this level."
            raise ValueError(checks.message("target_at to give a target with a score", "one without", fix))
        s = score(x)
        return s / -2 if coordinates is None else coordinates.precondition(s) / -2

    with torch.inference_mode(), checks.explained():
        for high, low in itertools.pairwise(levels):
            width, slope = low**2 - high**2, drift(x, high)
            end = x + width * slope
            x = end if low == 0 else torch.add(x, slope + drift(end, low), alpha=width / 2)
    return x.clone()  # an ordinary tensor again
