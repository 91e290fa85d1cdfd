"""How well the weights of modes are known, by two estimates of log p from the same score."""

import math

import torch
from torch import Tensor

from scoremh import diffusion
from scoremh.score_matching import ScoreFit

CLUSTERS, ROWS_PER_CLUSTER = 5, 20  # number of clusters, fewer where there are few rows
MAX_ROWS = 500  # of which log p is computed in both ways


def weights_known_to(score: ScoreFit, held_out: Tensor) -> float:
    """Return the error of the logarithm of a weight: how differently two estimates of log p weigh clusters of rows.

    The probability flow and the integral along the noise axis agree on log p where the score is right; the standard
    deviation over clusters of their difference is what the weights of modes are known to.

    Args:
        score: Learned score.
        held_out: Rows that nothing was learned from.
    """
    from sklearn.cluster import KMeans

    some = held_out[:MAX_ROWS]
    u = score.coordinates.inverse(some).flatten(1).double().numpy()
    count = min(CLUSTERS, max(1, len(held_out) // ROWS_PER_CLUSTER))
    labels = torch.from_numpy(KMeans(count, n_init=4, random_state=0).fit_predict(u))
    with torch.inference_mode():
        differ = (diffusion.flow_log_density(score, some) - diffusion.log_density(score, some)).double()
    parts = [differ[labels == k] for k in range(count)]
    weights = torch.tensor([len(part) / len(some) for part in parts], dtype=torch.float64)
    medians = torch.stack([part.median() for part in parts])
    return math.sqrt(float(weights @ (medians - weights @ medians).square()))
