"""Noise levels, from high to low.

| name | what |
|---|---|
| `geometric`, `karras` | schedules of levels |
| `anneal` | chains led down from one level to the next |
| `replica_exchange`, `tune_levels` | chains at all levels, which change places; where to put the levels |
| `flow` | draws carried from one level to another |
"""

from scoremh.annealing.annealed import Annealed, anneal
from scoremh.annealing.corrector import Corrector
from scoremh.annealing.level_placement import tune_levels
from scoremh.annealing.probability_flow import flow
from scoremh.annealing.replica_exchange import replica_exchange
from scoremh.annealing.replicas import Replicas
from scoremh.annealing.schedules import geometric, karras

__all__ = [
    "Annealed",
    "Corrector",
    "Replicas",
    "anneal",
    "flow",
    "geometric",
    "karras",
    "replica_exchange",
    "tune_levels",
]
