"""Noise levels, from high to low.

| name | what |
|---|---|
| `geometric`, `karras` | schedules of levels |
| `anneal`, `tune_steps` | chains led down from one level to the next; a step size for every level |
| `noise_ratio` | have chains arrived at a level? |
| `replica_exchange`, `tune_levels` | chains at all levels, which change places; where to put the levels |
| `flow`, `flow_levels` | draws carried from one level to another; the levels that this needs |
"""

from scoremh.annealing.annealed import Annealed, anneal
from scoremh.annealing.arrival import EarlyAnnealingWarning, NoiseRatio, noise_ratio
from scoremh.annealing.corrector import Corrector
from scoremh.annealing.level_placement import tune_levels
from scoremh.annealing.probability_flow import flow
from scoremh.annealing.replica_exchange import replica_exchange
from scoremh.annealing.replicas import Replicas
from scoremh.annealing.schedules import flow_levels, geometric, karras
from scoremh.annealing.step_sizes import tune_steps

__all__ = [
    "Annealed",
    "Corrector",
    "EarlyAnnealingWarning",
    "NoiseRatio",
    "Replicas",
    "anneal",
    "flow",
    "flow_levels",
    "geometric",
    "karras",
    "noise_ratio",
    "replica_exchange",
    "tune_levels",
    "tune_steps",
]
