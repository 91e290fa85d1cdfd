"""Networks for scores and acceptance functions, the forms of acceptance functions, and networks in coordinates."""

from scoremh.networks.acceptance import FORMS, AcceptanceMLP, Antisymmetric, Form, Free, Potential, PotentialMLP
from scoremh.networks.saving import build, describe
from scoremh.networks.scores import (
    AtNoiseLevel,
    InCoordinates,
    InputsInCoordinates,
    NoiseConditionalMLP,
    ScoreMLP,
)
from scoremh.networks.unet import UNet

__all__ = [
    "FORMS",
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
    "UNet",
    "build",
    "describe",
]
