"""Targets made from a log density, or from a target and a support.

- `from_log_density`: score = grad log p, by automatic differentiation.
- `truncate`: p*(x) proportional to p(x) on a support and 0 outside, the paper's truncated density (section 3.3).
"""

import torch
from torch import Tensor

from scoremh._shared import checks
from scoremh.types import LogDensityFn, SupportFn, Target, TargetLike


def from_log_density(log_density: LogDensityFn, support: SupportFn | None = None) -> Target:
    """Return the target of a log density alone; its score is the gradient.

    No graph is kept, whatever parameters `log_density` has, unless x itself requires a gradient.

    Args:
        log_density: Function of x `(chain, *event)` that returns log p(x) + const, `(chain,)`, each chain on its own.
        support: Function of x that returns where p is positive, `(chain,)`; None for everywhere.
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
    """Return a target restricted to a support, beside the one it has; its score and log density stay as they are."""
    own = target.support
    return Target(target.score, target.log_density, support if own is None else lambda x: own(x) & support(x))
