"""Metropolis-Hastings sampling when only a score is known.

A score-based Metropolis-Hastings sampler is the composition of a **score**, a **proposal**, an **acceptance rule** and
a **kernel**.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scoremh.acceptance import Always, Exact, Learned, LineIntegral, Rule, Taylor, ThroughNoise
    from scoremh.annealing.anneal import anneal
    from scoremh.annealing.replica_exchange import replica_exchange
    from scoremh.annealing.smc import smc
    from scoremh.balance_matching import AcceptanceFit, BalanceMatching, fit_acceptance
    from scoremh.estimator import ScoreMH
    from scoremh.kernel import DegenerateRuleWarning, metropolis_hastings
    from scoremh.kernel.hamiltonian import hamiltonian
    from scoremh.proposals import MALA, PCN, Barker, RandomWalk, ScaledMALA, StudentWalk
    from scoremh.sampler import Sampler
    from scoremh.sampling import Chains, TuningError, Warmup, tune, warmup
    from scoremh.sampling.sample import sample
    from scoremh.score_matching import (
        DenoisingScoreMatching,
        ImplicitScoreMatching,
        MultilevelDenoising,
        ScoreFit,
        SlicedScoreMatching,
        fit_score,
    )
    from scoremh.training import DivergenceError, Fit, Recipe
    from scoremh.types import Kernel, Move, Point, Proposal, Target, Trace

__version__ = "0.3.0"

__all__ = [
    "MALA",
    "PCN",
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
    "Rule",
    "Sampler",
    "ScaledMALA",
    "ScoreFit",
    "ScoreMH",
    "SlicedScoreMatching",
    "StudentWalk",
    "Target",
    "Taylor",
    "ThroughNoise",
    "Trace",
    "TuningError",
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
    "smc",
    "targets",
    "tune",
    "warmup",
]

_HOMES = {  # public names by module; the other names in `__all__` are modules
    "acceptance": "Always Exact Learned LineIntegral Rule Taylor ThroughNoise",
    "annealing": "anneal replica_exchange smc",
    "balance_matching": "AcceptanceFit BalanceMatching fit_acceptance",
    "estimator": "ScoreMH",
    "kernel": "DegenerateRuleWarning hamiltonian metropolis_hastings",
    "proposals": "MALA PCN Barker RandomWalk ScaledMALA StudentWalk",
    "sampler": "Sampler",
    "sampling": "Chains TuningError Warmup sample tune warmup",
    "score_matching": "DenoisingScoreMatching ImplicitScoreMatching MultilevelDenoising ScoreFit SlicedScoreMatching "
    "fit_score",
    "training": "DivergenceError Fit Recipe",
    "types": "Kernel Move Point Proposal Target Trace",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that `scoremh --help` does not import torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names.split()), None)
    value = import_module(f"scoremh.{name}") if home is None else getattr(import_module(f"scoremh.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names only."""
    return [*__all__, "__version__"]
