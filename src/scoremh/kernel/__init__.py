"""The composition of a target, a proposal and an acceptance rule, with the fused loops beside it; Hamiltonian moves."""

from scoremh.kernel.compatibility import DegenerateRuleWarning, ImproperTargetWarning
from scoremh.kernel.composition import metropolis_hastings
from scoremh.kernel.hamiltonian import hamiltonian

__all__ = ["DegenerateRuleWarning", "ImproperTargetWarning", "hamiltonian", "metropolis_hastings"]
