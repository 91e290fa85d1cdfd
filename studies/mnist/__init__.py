"""MNIST from a learned score: the paper's three figures of images, and which sampler is best."""

from studies.mnist.figures import MAP, SAMPLES, TAU
from studies.mnist.panel import STUDY as PANEL

__all__ = ["MAP", "PANEL", "SAMPLES", "TAU"]
