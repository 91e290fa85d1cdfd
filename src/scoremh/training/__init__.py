"""One optimisation loop for every network: Adam, a schedule, averaged weights, early stopping, checkpoints.

What is judged and returned are averaged weights, `a += (1 - decay) (w - a)` after every step. The decay grows to its
value from the start, so that the average forgets where the training began. A held-out loss is computed with the same
random numbers every time: its changes are those of the network. A loss that is above the least one by no more than a
standard error, or by 2 % of what was gained since the first, counts as equal, and the later wins: its weights are
averaged longer and at a lower rate.
"""

from scoremh.training.divergence import DivergenceError
from scoremh.training.fit import Fit, versions
from scoremh.training.loop import split, train
from scoremh.training.losses import DetailedLoss, Loss, ProbedLoss
from scoremh.training.plan_text import plan_text
from scoremh.training.recipe import Recipe

__all__ = [
    "DetailedLoss",
    "DivergenceError",
    "Fit",
    "Loss",
    "ProbedLoss",
    "Recipe",
    "plan_text",
    "split",
    "train",
    "versions",
]
