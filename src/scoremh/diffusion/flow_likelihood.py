r"""log p by the probability flow, a second estimate from the same scores along other paths.

In the coordinates u of the model, `du / d sigma = -sigma s(u, sigma)` carries p_lo to p_hi, and along it

    log p_lo(u_lo) = log p_hi(u_hi) - int sigma div s(u, sigma) d sigma

It costs several times what the integral along the noise axis does. Where the two differ, neither is to be believed.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.algebra import runge_kutta
from scoremh.diffusion.through_noise import log_normal, noise_span, rows_of_a_call
from scoremh.types import ScoreModel


def flow_log_density(
    model: ScoreModel, x: Float[Tensor, "chain *event"], *, steps: int = 16
) -> Float[Tensor, " chain"]:
    """Return log p at the model's noise level by the likelihood of its probability flow.

    Args:
        model: Scores at every noise level, such as `fit_score` returns.
        x: Points, `(chain, *event)`.
        steps: Number of Runge-Kutta steps between geometric noise levels, each with four scores and divergences.
    """
    checks.count(steps, "steps")
    low, high = noise_span(model)
    standard, u = model.standard, model.coordinates.inverse(x)
    parts = [_log_density(standard, part, low, high, steps) for part in u.split(rows_of_a_call(x, 1))]
    return torch.cat(parts) - model.coordinates.log_det(u)


def _log_density(standard: ScoreModel, u: Tensor, low: float, high: float, steps: int) -> Float[Tensor, " chain"]:
    """Return log p at the low level of u."""

    def rate(state: Tensor, level: float) -> Tensor:
        score, divergence = standard.level_score(state[:, :-1].unflatten(1, u.shape[1:]), level)
        return level * torch.cat([-score.flatten(1), divergence[:, None]], 1)

    levels = [low * (high / low) ** (i / steps) for i in range(steps + 1)]
    start = torch.cat([u.flatten(1), u.new_zeros(len(u), 1)], 1)
    end = runge_kutta(rate, start, levels)
    u, total = end[:, :-1].unflatten(1, u.shape[1:]), end[:, -1]
    top = standard.at(high).log_density
    return (log_normal(u, standard.variance + high**2) if top is None else top(u)) - total
