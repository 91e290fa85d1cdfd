"""Judging chains, scores, rules and kernels: tensors in, numbers out, usable on anyone's samples.

| function | question |
|---|---|
| `summary` | Have the chains mixed? ESS, R-hat and Monte Carlo errors, acceptance and cost |
| `stationarity` | Does a kernel leave its target invariant? |
| `disagreement` | Do two acceptance rules take the same decisions? |
| `balance_residual` | Is a learned acceptance in detailed balance? |
| `conservativity` | Is a score the gradient of a log density? |
| `calibration` | Are posterior draws right on average over simulated data? |
| `kernel_stein_discrepancy` | How far are samples from the distribution with this score? |
"""

from scoremh.diagnostics.balance import BalanceResidual, balance_residual
from scoremh.diagnostics.calibration import Calibration, calibration
from scoremh.diagnostics.cautions import Caution
from scoremh.diagnostics.conservativity import Conservativity, conservativity
from scoremh.diagnostics.disagreement import Disagreement, disagreement
from scoremh.diagnostics.stationarity import Stationarity, stationarity
from scoremh.diagnostics.stein import kernel_stein_discrepancy
from scoremh.diagnostics.summary import Summary, summary

__all__ = [
    "BalanceResidual",
    "Calibration",
    "Caution",
    "Conservativity",
    "Disagreement",
    "Stationarity",
    "Summary",
    "balance_residual",
    "calibration",
    "conservativity",
    "disagreement",
    "kernel_stein_discrepancy",
    "stationarity",
    "summary",
]
