"""Kernels: target, proposal and rule composed, with the fused loops beside; Hamiltonian moves; groups of moves."""

from scoremh.kernel.grouped import grouped
from scoremh.kernel.hamiltonian import hamiltonian
from scoremh.kernel.metropolis import DegenerateRuleWarning, ImproperTargetWarning, metropolis_hastings

__all__ = [
    "DegenerateRuleWarning",
    "ImproperTargetWarning",
    "grouped",
    "hamiltonian",
    "metropolis_hastings",
]
