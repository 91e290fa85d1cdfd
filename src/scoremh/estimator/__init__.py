"""The front door: a scikit-learn estimator that learns from rows, and draws more of them.

`fit` learns a score and an acceptance, finds the step, and checks itself on rows it has not seen. `sample` leads chains
down from noise, makes steps of the learned kernel, and carries the draws to the rows by the probability flow.
"""

from scoremh.estimator.diagnosis import Diagnosis
from scoremh.estimator.model import ScoreMH

__all__ = ["Diagnosis", "ScoreMH"]
