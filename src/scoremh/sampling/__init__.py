"""Sampling: the loop over many chains, its draws and records, runs on disk, step sizes and warm-up."""

from scoremh.sampling.chains import Chains
from scoremh.sampling.sample import blocks, sample
from scoremh.sampling.tuning import TuningError, Warmup, tune, warmup

__all__ = ["Chains", "TuningError", "Warmup", "blocks", "sample", "tune", "warmup"]
