"""`ScoreMH`: a scikit-learn estimator that learns a distribution from rows and draws new rows from it.

`fit` learns a score and an acceptance, tunes the step size, and checks the result on held-out rows. `sample` anneals
chains from noise, runs the learned kernel, and removes the kernel's noise by the probability flow. `evaluate` compares
draws with rows, and `report` writes an HTML page with the results.
"""

from scoremh.estimator.diagnosis import Diagnosis
from scoremh.estimator.model import ScoreMH

__all__ = ["Diagnosis", "ScoreMH"]
