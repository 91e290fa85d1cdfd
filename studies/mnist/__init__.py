"""MNIST from a learned score: the paper's three figures of images."""

from studies.mnist.figures import MAP, SAMPLES, TAU

__all__ = ["MAP", "SAMPLES", "TAU"]
