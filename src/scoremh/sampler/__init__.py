"""`Sampler`: a score, a noise level, a proposal, a rule and a step, from noise to draws."""

from scoremh._shared.names import ProposalName
from scoremh.sampler.from_noise import ANNEALING_LEVELS, ANNEALING_STEP_SIZE, Sampler
from scoremh.sampler.level_kernel import LevelKernel

__all__ = ["ANNEALING_LEVELS", "ANNEALING_STEP_SIZE", "LevelKernel", "ProposalName", "Sampler"]
