r"""log p by the probability flow, a second estimate from the same scores along other paths.

In the coordinates u of the model, `du / d log sigma = -sigma^2 s(u, sigma)` carries p_lo to p_hi, and along it

    log p_lo(u_lo) = log p_hi(u_hi) - int sigma^2 div s(u, sigma) d log sigma

It costs several times what the integral along the noise axis does. Where the two differ, neither is to be believed.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks
from scoremh.diffusion.through_noise import log_normal, noise_span, rows_of_a_call
from scoremh.types import ScoreModel


def flow_log_density(
    model: ScoreModel, x: Float[Tensor, "chain *event"], *, steps: int = 16
) -> Float[Tensor, " chain"]:
    """Return log p at the model's noise level by the likelihood of its probability flow.

    Args:
        model: Scores at every noise level, such as `fit_score` returns.
        x: Points, `(chain, *event)`.
        steps: Number of Runge-Kutta steps in log sigma, each with four scores and divergences.
    """
    checks.count(steps, "steps")
    low, high = noise_span(model)
    standard, u = model.standard, model.coordinates.inverse(x)
    parts = [_log_density(standard, part, low, high, steps) for part in u.split(rows_of_a_call(x, 1))]
    return torch.cat(parts) - model.coordinates.log_det(u)


def _log_density(standard: ScoreModel, u: Tensor, low: float, high: float, steps: int) -> Float[Tensor, " chain"]:
    """Return log p at the low level of u, by Runge-Kutta's method of order four."""
    width = math.log(high / low) / steps

    def rate(u: Tensor, time: float) -> tuple[Tensor, Tensor]:
        square = (low * math.exp(time)) ** 2
        score, divergence = standard.level_score(u, math.sqrt(square))
        return -square * score, square * divergence

    total = torch.zeros_like(u.flatten(1)[:, 0])
    for step in range(steps):
        time = step * width
        first, first_trace = rate(u, time)
        second, second_trace = rate(u + width / 2 * first, time + width / 2)
        third, third_trace = rate(u + width / 2 * second, time + width / 2)
        last, last_trace = rate(u + width * third, time + width)
        u = u + width / 6 * (first + 2 * second + 2 * third + last)
        total = total + width / 6 * (first_trace + 2 * second_trace + 2 * third_trace + last_trace)
    top = standard.at(high).log_density
    return (log_normal(u, standard.variance + high**2) if top is None else top(u)) - total
