"""Judging chains, scores, rules and kernels: tensors in, numbers out, usable on anyone's samples."""

from scoremh.diagnostics.balance import BalanceResidual, balance_residual
from scoremh.diagnostics.cautions import Caution
from scoremh.diagnostics.decisions import Disagreement, disagreement
from scoremh.diagnostics.fields import Conservativity, conservativity
from scoremh.diagnostics.invariance import Stationarity, stationarity
from scoremh.diagnostics.stein import kernel_stein_discrepancy
from scoremh.diagnostics.summaries import Summary, summary

__all__ = [
    "BalanceResidual",
    "Caution",
    "Conservativity",
    "Disagreement",
    "Stationarity",
    "Summary",
    "balance_residual",
    "conservativity",
    "disagreement",
    "kernel_stein_discrepancy",
    "stationarity",
    "summary",
]
