"""Noise levels, from high to low: schedules, chains annealed over them, and draws carried between them."""

from scoremh.annealing.annealed import Annealed, anneal
from scoremh.annealing.corrector import Corrector
from scoremh.annealing.probability_flow import flow
from scoremh.annealing.schedules import geometric, karras

__all__ = ["Annealed", "Corrector", "anneal", "flow", "geometric", "karras"]
