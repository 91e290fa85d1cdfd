"""Metropolis-Hastings sampling when only a score is known.

A score-based Metropolis-Hastings sampler is the composition of a **score**, a **proposal**, an **acceptance rule** and
a **kernel**.
"""

from typing import TYPE_CHECKING, Any

from scoremh import annealing, datasets, diagnostics, diffusion, metrics, networks, targets
from scoremh.acceptance import Always, Exact, Learned, LineIntegral, Taylor, ThroughNoise, TwoCoin
from scoremh.annealing import anneal, replica_exchange
from scoremh.balance_matching import AcceptanceFit, BalanceMatching, fit_acceptance
from scoremh.kernel import DegenerateRuleWarning, hamiltonian, metropolis_hastings
from scoremh.proposals import MALA, PCN, Barker, RandomWalk, StudentWalk
from scoremh.sampler import Sampler
from scoremh.sampling import Chains, TuningError, Warmup, sample, tune, warmup
from scoremh.score_matching import (
    DenoisingScoreMatching,
    ImplicitScoreMatching,
    MultilevelDenoising,
    ScoreFit,
    SlicedScoreMatching,
    fit_score,
)
from scoremh.training import DivergenceError, Fit, Recipe
from scoremh.types import Acceptance, Kernel, Move, Point, Proposal, Target, Trace

if TYPE_CHECKING:
    from scoremh.estimator import ScoreMH

__version__ = "0.1.0"

__all__ = [
    "MALA",
    "PCN",
    "Acceptance",
    "AcceptanceFit",
    "Always",
    "BalanceMatching",
    "Barker",
    "Chains",
    "DegenerateRuleWarning",
    "DenoisingScoreMatching",
    "DivergenceError",
    "Exact",
    "Fit",
    "ImplicitScoreMatching",
    "Kernel",
    "Learned",
    "LineIntegral",
    "Move",
    "MultilevelDenoising",
    "Point",
    "Proposal",
    "RandomWalk",
    "Recipe",
    "Sampler",
    "ScoreFit",
    "ScoreMH",
    "SlicedScoreMatching",
    "StudentWalk",
    "Target",
    "Taylor",
    "ThroughNoise",
    "Trace",
    "TuningError",
    "TwoCoin",
    "Warmup",
    "anneal",
    "annealing",
    "datasets",
    "diagnostics",
    "diffusion",
    "fit_acceptance",
    "fit_score",
    "hamiltonian",
    "metrics",
    "metropolis_hastings",
    "networks",
    "replica_exchange",
    "sample",
    "targets",
    "tune",
    "warmup",
]


def __getattr__(name: str) -> Any:
    """Load the estimator, and scikit-learn with it, only where it is asked for."""
    if name == "ScoreMH":
        from scoremh.estimator import ScoreMH

        return ScoreMH
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, the estimator among them."""
    return __all__
