"""Judging draws against rows: distances beside their floors, checks with their limits, and one verdict in words."""

from scoremh.evaluation.agreement import Agreement, agreement
from scoremh.evaluation.checks import Check
from scoremh.evaluation.distances import MAX_POINTS, MIN_ROWS, P_VALUE_LIMIT, Evaluation, evaluate, floor_ratio
from scoremh.evaluation.verdicts import Verdict, verdict

__all__ = [
    "MAX_POINTS",
    "MIN_ROWS",
    "P_VALUE_LIMIT",
    "Agreement",
    "Check",
    "Evaluation",
    "Verdict",
    "agreement",
    "evaluate",
    "floor_ratio",
    "verdict",
]
