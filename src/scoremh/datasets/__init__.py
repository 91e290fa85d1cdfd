"""Samples as tensors `(n, *event)`: from generators, from collections of images, from a file of your own.

Generators return tensors of `dtype` (by default torch's default) on the device of their `generator`, and touch no
global random state. Images are float32 and lie in [-1, 1]. `load` reads csv, npy, npz and parquet files.
"""

from scoremh.datasets.files import load
from scoremh.datasets.generators import gaussian, moons, pinwheel, s_curve, swiss_roll
from scoremh.datasets.images import digits, mnist

__all__ = ["digits", "gaussian", "load", "mnist", "moons", "pinwheel", "s_curve", "swiss_roll"]
