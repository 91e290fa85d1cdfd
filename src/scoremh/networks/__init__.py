"""Networks for scores and acceptance functions: the paper's, their forms, and their coordinates."""

from scoremh.networks import forms
from scoremh.networks.acceptances import AcceptanceMLP, PotentialMLP
from scoremh.networks.descriptions import build, describe
from scoremh.networks.forms import *  # noqa: F403  # every form, so that a new one is added there alone
from scoremh.networks.in_coordinates import InCoordinates, InputsInCoordinates
from scoremh.networks.potentials import NoiseConditionalPotential
from scoremh.networks.scores import AtNoiseLevel, NoiseConditionalMLP, ScoreMLP
from scoremh.networks.siamese import AtLevelAndStep, SiameseAcceptance
from scoremh.networks.unets import PotentialUNet, UNet

__all__ = [
    "AcceptanceMLP",
    "AtLevelAndStep",
    "AtNoiseLevel",
    "InCoordinates",
    "InputsInCoordinates",
    "NoiseConditionalMLP",
    "NoiseConditionalPotential",
    "PotentialMLP",
    "PotentialUNet",
    "ScoreMLP",
    "SiameseAcceptance",
    "UNet",
    "build",
    "describe",
]
__all__ += forms.__all__
