"""Kernels: target, proposal and rule composed, with the fused loops beside; Hamiltonian moves; groups of moves."""

from scoremh.kernel.compatibility import DegenerateRuleWarning, ImproperTargetWarning
from scoremh.kernel.composition import metropolis_hastings
from scoremh.kernel.hamiltonian import hamiltonian
from scoremh.kernel.surrogate import names_its_ratio, surrogate

__all__ = [
    "DegenerateRuleWarning",
    "ImproperTargetWarning",
    "hamiltonian",
    "metropolis_hastings",
    "names_its_ratio",
    "surrogate",
]
