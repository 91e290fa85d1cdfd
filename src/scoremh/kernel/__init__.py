"""Kernels: Metropolis-Hastings with any proposal and rule, Hamiltonian Monte Carlo, and moves decided in groups."""

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
