"""Learning a score from samples: losses, and `fit_score`, which puts all together."""

from scoremh.score_matching.fit import ScoreFit, implicit_losses
from scoremh.score_matching.fitting import fit_score, train_score
from scoremh.score_matching.losses import (
    DenoisingScoreMatching,
    ImplicitScoreMatching,
    MultilevelDenoising,
    SlicedScoreMatching,
    score_and_divergence,
)
from scoremh.score_matching.noise_level import best_noise_level
from scoremh.score_matching.plan import MIN_SAMPLES, ScorePlan, score_plan
from scoremh.score_matching.presets import PRESETS, Preset

__all__ = [
    "MIN_SAMPLES",
    "PRESETS",
    "DenoisingScoreMatching",
    "ImplicitScoreMatching",
    "MultilevelDenoising",
    "Preset",
    "ScoreFit",
    "ScorePlan",
    "SlicedScoreMatching",
    "best_noise_level",
    "fit_score",
    "implicit_losses",
    "score_and_divergence",
    "score_plan",
    "train_score",
]
