"""Many transitions of many chains: the loop, its draws and records, a run on disk, the step size, and warm-up."""

from scoremh.sampling.chains import Chains
from scoremh.sampling.loop import blocks, sample
from scoremh.sampling.tuning import TuningError, tune
from scoremh.sampling.warmup import Warmup, warmup

__all__ = ["Chains", "TuningError", "Warmup", "blocks", "sample", "tune", "warmup"]
