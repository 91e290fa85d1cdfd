"""Metropolis-Hastings sampling when only a score is known.

A score-based Metropolis-Hastings sampler is the composition of a **score**, a **proposal**, an **acceptance rule** and
a **kernel**.
"""

from scoremh import diagnostics, targets
from scoremh._fitness import DegenerateRuleWarning
from scoremh.acceptance import Always, Exact, LineIntegral, Taylor
from scoremh.chains import Chains
from scoremh.kernel import metropolis_hastings
from scoremh.proposals import MALA, PCN, RandomWalk
from scoremh.sampling import sample
from scoremh.tuning import TuningError, tune
from scoremh.types import Acceptance, Kernel, Move, Point, Proposal, Target, Trace

__version__ = "0.1.0"

__all__ = [
    "MALA",
    "PCN",
    "Acceptance",
    "Always",
    "Chains",
    "DegenerateRuleWarning",
    "Exact",
    "Kernel",
    "LineIntegral",
    "Move",
    "Point",
    "Proposal",
    "RandomWalk",
    "Target",
    "Taylor",
    "Trace",
    "TuningError",
    "diagnostics",
    "metropolis_hastings",
    "sample",
    "targets",
    "tune",
]
