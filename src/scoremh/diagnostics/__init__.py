"""Diagnostics of chains, scores, rules and kernels: tensors in, numbers out, for samples of any origin.

| function | question |
|---|---|
| `summary` | Have the chains mixed? ESS, R-hat and Monte Carlo errors, acceptance and cost |
| `stationarity` | Does a kernel leave its target invariant? |
| `disagreement` | Do two acceptance rules take the same decisions? |
| `balance_residual` | Is a learned acceptance in detailed balance? |
| `conservativity`, `conservativity_by_level` | Is a score the gradient of a log density? Down to which noise level? |
| `kernel_stein_discrepancy` | How far are samples from the distribution with this score? |
"""

from scoremh.diagnostics.balance import BalanceResidual, balance_residual
from scoremh.diagnostics.conservativity import (
    MAX_CIRCULATION,
    Conservativity,
    conservativity,
    conservativity_by_level,
    lowest_conservative_level,
)
from scoremh.diagnostics.disagreement import Disagreement, disagreement
from scoremh.diagnostics.stationarity import Stationarity, stationarity
from scoremh.diagnostics.stein import kernel_stein_discrepancy
from scoremh.diagnostics.summary import Caution, Summary, summary

__all__ = [
    "MAX_CIRCULATION",
    "BalanceResidual",
    "Caution",
    "Conservativity",
    "Disagreement",
    "Stationarity",
    "Summary",
    "balance_residual",
    "conservativity",
    "conservativity_by_level",
    "disagreement",
    "kernel_stein_discrepancy",
    "lowest_conservative_level",
    "stationarity",
    "summary",
]
