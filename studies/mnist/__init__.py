"""MNIST from a learned score: the paper's three figures of images, and which sampler is best."""

from studies.mnist.panel import STUDY as PANEL
from studies.mnist.samples import STUDY as SAMPLES
from studies.mnist.tau import STUDY as TAU
from studies.mnist.threshold_map import STUDY as THRESHOLD_MAP

__all__ = ["PANEL", "SAMPLES", "TAU", "THRESHOLD_MAP"]
