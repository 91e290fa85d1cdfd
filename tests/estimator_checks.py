"""scikit-learn's own checks of `ScoreMH`; `test_estimator` runs them in a process without run-time checks of types."""

from collections.abc import Callable
from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from scoremh import ScoreMH

SMALL = {"score_steps": 5, "acceptance_steps": 5, "annealing_steps": 1, "chain_steps": 4, "verbose": False}


@parametrize_with_checks([ScoreMH(**SMALL), ScoreMH(**SMALL | {"proposal": "rw", "acceptance": "simpson"})])  # type: ignore[arg-type, untyped-decorator]
def test_scikit_learn_finds_nothing_wrong(estimator: ScoreMH, check: Callable[[ScoreMH], Any]) -> None:
    check(estimator)
