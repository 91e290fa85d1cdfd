"""How an estimator is judged: its own diagnosis, an evaluation on other rows, and a report."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from scoremh._shared import checks
from scoremh.estimator.diagnosis import Diagnosis
from scoremh.evaluation import MAX_POINTS, Evaluation, evaluate
from scoremh.evaluation.verdicts import html_verdict

if TYPE_CHECKING:
    from scoremh.estimator.model import ScoreMH
    from scoremh.sampling import Chains

MAX_CHECK_CHAINS = 1000  # chains that a fit is checked on, and that a report shows
MAX_CHECK_DRAWS = 30  # draws of each of them: one for every ten of the default steps, which are judged together
Seed = int | np.random.RandomState | None


class JudgingMixin:
    """Diagnosis, evaluation and report of an estimator that draws chains."""

    chain_steps: int
    verbose: bool
    diagnosis_: Diagnosis
    held_out_: NDArray[Any]

    if TYPE_CHECKING:

        def sample_chains(self, n_chains: int, *, draws: int | None = None, random_state: Seed = None) -> Chains:
            """Run chains from noise."""

        @property
        def _names(self) -> list[str]:
            """The names of the columns."""

        def _numbers(self, X: Any, *, reset: bool = False, min_rows: int = 1) -> NDArray[Any]:
            """Return rows as numbers."""

    def _repr_html_inner(self) -> str:
        """Return the verdict on the fit above scikit-learn's own form, for a notebook."""
        verdict = html_verdict(self.diagnosis_.verdict) if hasattr(self, "diagnosis_") else ""
        return verdict + str(super()._repr_html_inner())  # type: ignore[misc]  # of scikit-learn's BaseEstimator

    def diagnose(self) -> Diagnosis:
        """Return what `fit` found when it checked itself on held-out rows."""
        check_is_fitted(self)
        return self.diagnosis_

    def evaluate(self, X: ArrayLike, *, n_samples: int | None = None, random_state: Seed = None) -> Evaluation:
        """Compare new draws with rows, and return distances, their floors and a p-value; needs the extra `metrics`.

        Args:
            X: Rows that the fit has not seen, for example `held_out_`.
            n_samples: Number of rows to draw and compare; half as many as X has, and at most 1,000, if None.
            random_state: Random seed of the draws; the estimator's own if None.
        """
        check_is_fitted(self)
        rows = torch.from_numpy(np.array(self._numbers(X)))
        n = max(1, min(MAX_POINTS, len(rows) // 2)) if n_samples is None else n_samples
        checks.count(n, "n_samples")
        draws = self.sample_chains(n, draws=1, random_state=random_state).last
        return evaluate(draws, rows, points=n, columns=self._names, progress=self.verbose)

    def report(self, path: str | Path, X: ArrayLike | None = None, *, random_state: Seed = None) -> None:
        """Write a page with new draws beside rows, chains, training, metrics and warnings; needs the extra `report`.

        Args:
            path: HTML file to write; it opens offline.
            X: Rows to show beside the draws; the held-out rows if None.
            random_state: Random seed of the draws; the estimator's own if None.
        """
        from scoremh.estimator.model_report import write_report

        check_is_fitted(self)
        given = None if X is None else self._numbers(X)
        rows = torch.from_numpy(np.array(self.held_out_ if given is None else given))
        chains = self.sample_chains(
            MAX_CHECK_CHAINS, draws=min(MAX_CHECK_DRAWS, int(self.chain_steps)), random_state=random_state
        )
        write_report(cast("ScoreMH", self), path, chains, rows, "held-out rows" if given is None else "given rows")
