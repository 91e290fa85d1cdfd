"""Sampling with noise levels, from high to low.

| name | purpose |
|---|---|
| `geometric`, `karras` | schedules of noise levels |
| `anneal`, `tune_steps` | run chains from the highest level to the lowest; find a step size for each level |
| `noise_ratio` | check whether chains have reached equilibrium at a level |
| `replica_exchange`, `tune_levels` | run chains at all levels, with swaps; choose the levels |
| `NoiseDenoise` | a move that is reversible for the prior, for which the likelihood alone decides |
| `smc` | move weighted particles from high to low levels: posteriors with a diffusion prior, products, evidence |
| `flow`, `flow_levels` | move draws from one level to another by the probability flow; choose the levels |
| `reverse_diffusion` | the same by the reverse diffusion, with fresh noise |
| `Corrector` | Metropolis-Hastings steps for your own predictor-corrector loop |
"""

from scoremh.annealing.anneal import (
    Annealed,
    Corrector,
    EarlyAnnealingWarning,
    NoiseDenoise,
    NoiseRatio,
    anneal,
    flow,
    flow_levels,
    geometric,
    karras,
    noise_ratio,
    reverse_diffusion,
    tune_steps,
)
from scoremh.annealing.replica_exchange import Replicas, replica_exchange, tune_levels
from scoremh.annealing.smc import Particles, Stage, smc

__all__ = [
    "Annealed",
    "Corrector",
    "EarlyAnnealingWarning",
    "NoiseDenoise",
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
    "reverse_diffusion",
    "smc",
    "tune_levels",
    "tune_steps",
]
