"""The probability flow: draws carried from one noise level to another, with nothing random.

    dx / d sigma = -sigma C s(x, sigma)

carries the distribution blurred by noise sigma z, z ~ N(0, C), from one sigma to the next (Song et al. 2021; in sigma,
Karras et al. 2022). Chains can therefore run at a level where a learned score has the right weights of modes, and their
draws be carried down to the data. The variable matters: with the variance sigma^2 in place of sigma, Heun's method on
eight levels left a tenth of the variance of real tables behind.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.algebra import runge_kutta
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

    Kutta's 3/8 rule in sigma: four scores a step, order four. With `flow_levels` its error changes no variance by more
    than .5 % and no weight of a mode by more than .005. A last level of 0 removes the noise of the level before it.

    Args:
        target_at: Function from a noise level to a target with the score of the distribution blurred by it, such as
            `fit.at`.
        levels: Noise levels from high to low, such as `flow_levels(2.0, 0.02)`; the last may be 0.
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
        >>> end = flow(target_at, [*annealing.flow_levels(3**0.5, 0.02), 0.0], x)
        >>> round(float(end), 2)
        1.0
    """
    checks.events(x, "x")
    to_data = bool(levels) and levels[-1] == 0
    noisy = levels[:-1] if to_data else levels
    check_levels(noisy)
    coordinates = None if covariance is None else Affine.from_covariance(covariance)

    def drift(x: Tensor, level: float) -> Tensor:
        score = target_at(level).score
        if score is None:
            fix = "Return a target whose score is that of the distribution blurred by this level."
            raise ValueError(checks.message("target_at to give a target with a score", "one without", fix))
        s = score(x)
        return -level * (s if coordinates is None else coordinates.precondition(s))

    with torch.inference_mode(), checks.explained():
        x = runge_kutta(drift, x, noisy)
        if to_data:  # one step in sigma^2 leaves a normal distribution its variance; the mean given x would narrow it
            x = x - noisy[-1] / 2 * drift(x, noisy[-1])
    return x.clone()  # an ordinary tensor again
