"""Noise levels, from high to low.

| name | what |
|---|---|
| `geometric`, `karras` | schedules of levels |
| `anneal`, `tune_steps` | chains led down from one level to the next; a step size for every level |
| `noise_ratio` | have chains arrived at a level? |
| `replica_exchange`, `tune_levels` | chains at all levels, which change places; where to put the levels |
| `smc` | particles that come down the levels together: posteriors with a diffusion prior, and their evidence |
| `flow`, `flow_levels` | draws carried from one level to another; the levels that this needs |
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
