"""How well the weights of modes are known: by two estimates of log p, and by clusters among rows and draws."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from scoremh import diffusion
from scoremh.score_matching import ScoreFit

CLUSTERS, ROWS_PER_CLUSTER = 5, 20  # number of clusters, fewer where there are few rows
MAX_ROWS = 500  # of which log p is computed in both ways


class ModeWeights(NamedTuple):
    """How well the weights of modes are known.

    Args:
        known_to: Error of the logarithm of a weight, by what the probability flow and the integral along the noise axis
            make of log p: the standard deviation over clusters of the difference of the two.
        difference: Difference between the share of a cluster among draws and among held-out rows, of the cluster where
            it is largest in standard errors.
        z: That difference in standard errors.
    """

    known_to: float
    difference: float
    z: float


def mode_weights(score: ScoreFit, draws: Tensor, held_out: Tensor) -> ModeWeights:
    """Return how well the weights of modes are known.

    Args:
        score: Learned score.
        draws: Draws of the sampler.
        held_out: Rows that nothing was learned from.
    """
    from sklearn.cluster import KMeans

    u, v = (score.coordinates.inverse(rows).flatten(1).double() for rows in (held_out, draws))
    count = min(CLUSTERS, max(1, len(u) // ROWS_PER_CLUSTER))
    means = KMeans(count, n_init=4, random_state=0).fit(u.numpy()).cluster_centers_
    of_rows, of_draws = (torch.cdist(x, torch.from_numpy(means)).argmin(1) for x in (u, v))
    shares, found = (labels.bincount(minlength=count) / len(labels) for labels in (of_rows, of_draws))
    errors = (shares * (1 - shares) * (1 / len(u) + 1 / len(v))).clamp(min=1 / len(u) ** 2).sqrt()
    worst = int(((found - shares) / errors).abs().argmax())
    some, labels = held_out[:MAX_ROWS], of_rows[:MAX_ROWS]
    with torch.inference_mode():
        differ = (diffusion.flow_log_density(score, some) - diffusion.log_density(score, some)).double()
    present = [differ[labels == k] for k in range(count) if bool((labels == k).any())]
    weights = torch.tensor([len(part) / len(some) for part in present], dtype=torch.float64)
    medians = torch.stack([part.median() for part in present])
    spread = weights @ (medians - weights @ medians).square()
    difference = float((found - shares)[worst].abs())
    return ModeWeights(math.sqrt(float(spread)), difference, difference / float(errors[worst]))
