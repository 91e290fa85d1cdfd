"""Networks for scores: the paper's, one that takes the noise level as an input, and their coordinates."""

from scoremh.networks.mlp import NoiseConditionalMLP, ScoreMLP
from scoremh.networks.specs import build, describe
from scoremh.networks.wrappers import AtLevel, Standardized

__all__ = ["AtLevel", "NoiseConditionalMLP", "ScoreMLP", "Standardized", "build", "describe"]
