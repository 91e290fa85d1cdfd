"""`ScoreMH`: a scikit-learn estimator that learns a distribution from rows and draws new rows from it.

`fit` learns a score, tunes the step size, and checks the result on held-out rows. `sample` carries noise to the
kernel's level by the probability flow, runs the kernel, and removes its noise by the flow. `evaluate` compares draws
with rows, and `report` writes an HTML page with the results.
"""

from scoremh.estimator.diagnosis import Diagnosis
from scoremh.estimator.model import ScoreMH

__all__ = ["Diagnosis", "ScoreMH"]
