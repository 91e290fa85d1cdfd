"""Many transitions of many chains: the loop, its draws and records, a run on disk, the step size, and warm-up."""

from scoremh.sampling.chains import Chains
from scoremh.sampling.sample import blocks, sample
from scoremh.sampling.tuning import TuningError, Warmup, tune, warmup

__all__ = ["Chains", "TuningError", "Warmup", "blocks", "sample", "tune", "warmup"]
