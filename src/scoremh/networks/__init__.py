"""Networks for scores and acceptance functions: the paper's, their forms, and their coordinates."""

from scoremh.networks.in_coordinates import InCoordinates, InputsInCoordinates
from scoremh.networks.mlp import AtNoiseLevel, NoiseConditionalMLP, ScoreMLP
from scoremh.networks.pairs import AcceptanceMLP, Antisymmetric, Form, Free, Potential, PotentialMLP
from scoremh.networks.specs import build, describe

__all__ = [
    "AcceptanceMLP",
    "Antisymmetric",
    "AtNoiseLevel",
    "Form",
    "Free",
    "InCoordinates",
    "InputsInCoordinates",
    "NoiseConditionalMLP",
    "Potential",
    "PotentialMLP",
    "ScoreMLP",
    "build",
    "describe",
]
