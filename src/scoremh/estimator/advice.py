"""The one thing to do next where a fit is not good, with a value."""

from collections.abc import Sequence

import numpy as np

from scoremh.evaluation import Check
from scoremh.evaluation.checks import worst
from scoremh.sampler import Sampler
from scoremh.score_matching import ScoreFit

USUAL_SCORE_STEPS = 8000  # those of `ScoreMH`
CONNECTING_LEVEL = 1.0  # noise level, in standard deviations, at which modes of a table are connected
FALLING_SHARE = 0.1  # of all that a held-out loss fell; a larger one over the last half of training is still falling
MIN_CHECKS = 4  # of a held-out loss; with fewer, nobody knows whether it still fell
LEAKS = frozenset({"range", "density", "clusters"})  # checks that fail where chains are in the wrong places


def advice(sampler: Sampler, checks: Sequence[Check], rows: int) -> str:
    """Return what to change in a fit, with a value; more steps of a chain are no remedy for a wrong score.

    Args:
        sampler: Sampler that was learned.
        checks: Checks of its draws.
        rows: Number of rows, held out and learned from.
    """
    assert isinstance(sampler.score, ScoreFit)  # the estimator has learned it
    made, allowed = int(sampler.score.history["step"][-1]), sampler.score.recipe.steps
    if made == allowed and made < USUAL_SCORE_STEPS:
        return f"Fit with score_steps={USUAL_SCORE_STEPS}."
    bad = worst(checks)
    if bad is not None and bad.name == "copies":
        return f"Fit with score_steps={max(1, made // 2)}: draws repeat rows that were learned from."
    if bad is not None and bad.name in LEAKS and sampler.noise_level < CONNECTING_LEVEL:
        return f"Fit with noise_level={CONNECTING_LEVEL}."
    if still_falling(sampler.score):
        return f"Fit with score_steps={2 * allowed}: the held-out loss was still falling."
    return f"Fit with about {4 * rows:,} rows: the held-out loss no longer fell, and more steps would not help."


def still_falling(score: ScoreFit) -> bool:
    """Return whether the held-out loss still fell when training ended at its limit of steps, or nobody knows.

    It fell over the last half of the training, by more than a share of all that it fell and by more than it rose
    between checks; or there were too few checks to tell.

    Args:
        score: Score that was learned with held-out rows.
    """
    held_out = np.array(score.history["held_out"])
    if score.history["step"][-1] < score.recipe.steps:
        return False  # training stopped early
    if len(held_out) < MIN_CHECKS:
        return True
    late = held_out[len(held_out) // 2 - 1 :]
    rises = np.diff(late).clip(min=0).sum()
    return bool(late[0] - late[-1] > max(rises, FALLING_SHARE * (held_out[0] - held_out.min())))
