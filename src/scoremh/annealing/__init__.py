"""Sampling with noise levels, from high to low.

| name | purpose |
|---|---|
| `geometric`, `karras` | schedules of noise levels |
| `anneal`, `tune_steps` | run chains from the highest level to the lowest; find a step size for each level |
| `noise_ratio` | check whether chains have reached equilibrium at a level |
| `replica_exchange`, `tune_levels` | run chains at all levels, with swaps; choose the levels |
| `smc` | move particles from high to low levels together: posteriors with a diffusion prior, and their evidence |
| `flow`, `flow_levels` | move draws from one level to another by the probability flow; choose the levels |
| `Corrector` | Metropolis-Hastings steps for your own predictor-corrector loop |
"""

from scoremh.annealing.anneal import (
    Annealed,
    Corrector,
    EarlyAnnealingWarning,
    NoiseRatio,
    anneal,
    flow,
    flow_levels,
    geometric,
    karras,
    noise_ratio,
    tune_steps,
)
from scoremh.annealing.replica_exchange import Replicas, replica_exchange, tune_levels
from scoremh.annealing.smc import Particles, Stage, smc

__all__ = [
    "Annealed",
    "Corrector",
    "EarlyAnnealingWarning",
    "NoiseRatio",
    "Particles",
    "Replicas",
    "Stage",
    "anneal",
    "flow",
    "flow_levels",
    "geometric",
    "karras",
    "noise_ratio",
    "replica_exchange",
    "smc",
    "tune_levels",
    "tune_steps",
]
