"""Networks for scores and acceptance functions: the paper's, their forms, and their coordinates."""

from scoremh.networks.mlp import NoiseConditionalMLP, ScoreMLP
from scoremh.networks.pairs import AcceptanceMLP, Antisymmetric, Form, Free, Potential, PotentialMLP
from scoremh.networks.specs import build, describe
from scoremh.networks.wrappers import AtLevel, HeavyTailed, StandardInputs, Standardized

__all__ = [
    "AcceptanceMLP",
    "Antisymmetric",
    "AtLevel",
    "Form",
    "Free",
    "HeavyTailed",
    "NoiseConditionalMLP",
    "Potential",
    "PotentialMLP",
    "ScoreMLP",
    "StandardInputs",
    "Standardized",
    "build",
    "describe",
]
