"""Noise levels, from high to low: chains annealed over them, and draws carried between them."""

from scoremh.annealing.annealed import Annealed, anneal, flow, geometric, karras

__all__ = ["Annealed", "anneal", "flow", "geometric", "karras"]
