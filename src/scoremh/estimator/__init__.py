"""The front door: a scikit-learn estimator that learns a distribution from rows, and draws more of them.

`fit` learns a score and an acceptance, tunes the step size, and checks itself on held-out rows. `sample` anneals chains
from noise, runs the learned kernel, and removes the kernel's noise by the probability flow. `evaluate` compares draws
with rows, and `report` writes a page about all of it.
"""

from scoremh.estimator.diagnosis import Diagnosis
from scoremh.estimator.model import ScoreMH

__all__ = ["Diagnosis", "ScoreMH"]
