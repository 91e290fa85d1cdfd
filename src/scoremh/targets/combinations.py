"""Targets made from what is at hand: a log density, or a target and a support."""

import torch
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.support import Box as Box
from scoremh.types import LogDensityFn, SupportFn, Target, TargetLike


def from_log_density(log_density: LogDensityFn, support: SupportFn | None = None) -> Target:
    """Make a target of a log density alone; the score is its gradient.

    No graph is kept, whatever parameters `log_density` has, unless x itself requires a gradient.

    Args:
        log_density: x of shape `(chain, *event)` to log p(x) + const of shape `(chain,)`, each chain on its own.
        support: as in `Target`.
    """

    def total(x: Tensor) -> Tensor:
        value = log_density(x)
        checks.answer(value, x, x.shape[:1], "log_density")
        return value.sum()  # no chain enters the term of another: the gradient of the sum is that of each

    def score(x: Tensor) -> Tensor:
        with torch.set_grad_enabled(x.requires_grad and torch.is_grad_enabled()):
            gradient: Tensor = torch.func.grad(total)(x)
        return gradient

    return Target(score, log_density, support)


def truncate(target: TargetLike, support: SupportFn) -> Target:
    """Restrict a target to a support, beside the one it has; its score and log density stay as they are."""
    own = target.support
    return Target(target.score, target.log_density, support if own is None else lambda x: own(x) & support(x))
