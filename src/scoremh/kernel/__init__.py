"""The composition of a target, a proposal and an acceptance rule, with the fused loops beside it."""

from scoremh.kernel.compatibility import DegenerateRuleWarning
from scoremh.kernel.composition import metropolis_hastings

__all__ = ["DegenerateRuleWarning", "metropolis_hastings"]
