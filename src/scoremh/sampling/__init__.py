"""Many transitions of many chains: the loop, its draws and records, a run on disk, and the step size."""

from scoremh.sampling.chains import Chains
from scoremh.sampling.loop import blocks, sample
from scoremh.sampling.tuning import TuningError, tune

__all__ = ["Chains", "TuningError", "blocks", "sample", "tune"]
