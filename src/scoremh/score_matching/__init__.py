"""Learning a score from samples: losses, and `fit_score`, which puts all together."""

from scoremh.score_matching.fits import ScoreFit, implicit_losses
from scoremh.score_matching.fitting import LEAST, PRESETS, Preset, fit_score
from scoremh.score_matching.losses import (
    DenoisingScoreMatching,
    ImplicitScoreMatching,
    MultilevelDenoising,
    SlicedScoreMatching,
    choose_level,
    score_and_divergence,
)

__all__ = [
    "LEAST",
    "PRESETS",
    "DenoisingScoreMatching",
    "ImplicitScoreMatching",
    "MultilevelDenoising",
    "Preset",
    "ScoreFit",
    "SlicedScoreMatching",
    "choose_level",
    "fit_score",
    "implicit_losses",
    "score_and_divergence",
]
