"""`ScoreMH`: learn a distribution from rows, and draw new rows from it.

`fit` maps rows to points of R^d with a density (`Table`), holds some of them out, and learns the score of the others
at all noise levels. It tunes the step size of the kernel, learns an acceptance if one is asked for, and compares the
last draws of chains with held-out rows (`Diagnosis`). `sample` runs chains from noise and returns the last draw of each
as a row.
"""

import copy
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import FLOAT_DTYPES, check_is_fitted, validate_data
from torch import Tensor

from scoremh import annealing, diffusion
from scoremh._shared import checks, rng
from scoremh._shared.names import AcceptanceName
from scoremh._shared.progress import progress_bar
from scoremh.balance_matching import RECIPE, AcceptanceFit
from scoremh.coordinates import MAX_WHITENED_SIZE
from scoremh.diagnostics import Caution
from scoremh.estimator import frames
from scoremh.estimator.diagnosis import RULES, Diagnosis, diagnose, evaluate_model, find_adjustment, model_contents
from scoremh.estimator.files import RunFolder, lasting_pool, load_model, save_model
from scoremh.estimator.table import CORNER_STD, Condition, Kinds, Table, named_kinds
from scoremh.evaluation import MAX_POINTS, MIN_ROWS, Evaluation, html_verdict
from scoremh.report import write
from scoremh.sampler import ProposalName, Sampler
from scoremh.sampling.chains import Chains
from scoremh.sampling.pools import Pool, check_pool
from scoremh.score_matching import MIN_SAMPLES, MultilevelDenoising, ScoreFit, fit_score, recipe_for
from scoremh.training import Recipe

LARGE = 1e15  # squares of larger numbers approach the largest float32, 3e38
MAX_SIZE = 1e150  # squares of larger numbers approach the largest float64, 2e308
WIDE_RATIO = 1e4  # size over standard deviation above which the 7 digits of float32 are too few
MIN_EIGENVALUE = 1e-6  # of the correlation matrix, below which columns count as dependent
JITTER = 3e-3  # standard deviation of the noise added to dependent columns, over that of the column
DEPENDENT_COLUMNS = Caution(
    "dependent_columns",
    None,
    "Some columns are linear combinations of others, so noise of 0.3 % of its standard deviation was added to every "
    "column. Remove such columns, and compute them from the draws.",
)
MAX_COLUMNS = 4000  # beyond, a training takes minutes, and no distance between rows means much
MAX_HELD_OUT_ROWS = 2000
COMPARED_DRAWS = 1000  # draws, and rows, whose distances to the nearest row are compared
MAX_EXCESS = 0.1  # of the share of copies over 0.5 with which a number of training steps is kept
TUNING_CHAINS, TUNING_STEPS = 200, 100  # chains on which the step size is tuned
MAX_CHECK_CHAINS = 1000  # chains on which a fit is checked, and which a report shows
MAX_CHECK_DRAWS, CHECKED_STEPS = 30, 10  # draws of each chain: one per group of ten moves
Seed = int | np.random.RandomState | None


class ScoreMH(DensityMixin, BaseEstimator):  # type: ignore[misc]
    """Learn a distribution from rows, and draw new rows, by score-based Metropolis-Hastings.

    Args:
        proposal: "mala" (Langevin), "rw" (random walk), "pcn" (preconditioned Crank-Nicolson) or "student" (random
            walk with Student t steps, for heavy tails).
        acceptance: Acceptance rule: integrated from the score by "simpson" or "exact"; learned in the form
            "potential", "antisymmetric" or "free" (the paper's), which is a second training; or "always", which is ULA.
        columns: Kinds of columns by name or position: "real", "positive", "heavy-tailed", "ordered", "count",
            "category", "date", or a pair of bounds such as (0, 1). The kinds of other columns are inferred from the
            rows: print the estimator, or see `columns_`.
        missing: "raise" for an error if values are missing (NaN, None, NaT), "model" to learn where they are missing,
            so that draws have missing values too.
        noise_level: Standard deviation of the noise added to the distribution that the kernel targets and the
            acceptance is learned for, in units of the data's standard deviations. Noise connects modes; the probability
            flow removes it from the draws. With up to 32 columns, the log density through noise accepts or rejects
            every group of ten moves.
        score_steps: Number of training steps of the score. By default, 50 times the square root of the number of rows,
            and at most 3,000; half as many, and so on, if draws are then closer to rows than rows are to each other,
            and twice as many if they are farther.
        acceptance_steps: Largest number of training steps of a learned acceptance.
        annealing_steps: Number of steps of every chain at each of 15 noise levels, from pure noise to `noise_level`; 0
            starts chains by the probability flow, which is nearly right.
        chain_steps: Number of steps of the kernel after that: they correct what the start got wrong.
        validation_fraction: Share of the rows that is held out to check the fit; at most 2,000 rows are held out.
        verbose: Show progress bars.
        pool: Pool that runs blocks of chains, as for `scoremh.sample`: a number of processes, an `Executor`, or a
            dask `Client`. The draws do not depend on it. Clones share it; of a pool, files and pickles keep only a
            number of processes.
        random_state: Random seed or generator. With an int, `fit` learns the same model and `sample` returns the same
            rows every time.

    Attributes:
        sampler_: Sampler with the learned score and acceptance and the step size.
        score_: Learned score of the points of `table_`; itself a target: `metropolis_hastings(model.score_, ...)`.
        acceptance_: Learned acceptance for `sampler_.target`, in the coordinates of the score; None if not learned.
        step_size_: Step size of the proposal.
        noise_level_: Noise level of the kernel, in units of the data's standard deviations.
        columns_: Kind of every column, by name.
        table_: Map between rows of numbers and points in R^d with a density, in which the score was learned.
        diagnosis_: Result of `diagnose`.
        fit_seconds_: Seconds that `fit` took for the score, the chains (with step size and acceptance) and the checks.
        held_out_: Held-out rows as numbers; levels of categories as their positions.
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, if the rows had names.

    Example:
        >>> from scoremh import ScoreMH, datasets
        >>> X = datasets.moons(500).numpy()
        >>> brief = {"score_steps": 20, "acceptance_steps": 20, "chain_steps": 20}
        >>> model = ScoreMH(**brief, verbose=False, random_state=0).fit(X)  # without these for a good fit
        >>> model.sample(10).shape
        (10, 2)
    """

    def __init__(
        self,
        proposal: ProposalName = "mala",
        acceptance: AcceptanceName = "simpson",
        *,
        columns: Kinds = None,
        missing: Literal["raise", "model"] = "raise",
        noise_level: float = 1.0,
        score_steps: int | None = None,
        acceptance_steps: int = 4000,
        annealing_steps: int = 0,
        chain_steps: int = 50,
        validation_fraction: float = 0.1,
        verbose: bool = True,
        pool: Pool = None,
        random_state: Seed = None,
    ) -> None:
        self.proposal = proposal
        self.acceptance = acceptance
        self.columns = columns
        self.missing = missing
        self.noise_level = noise_level
        self.score_steps = score_steps
        self.acceptance_steps = acceptance_steps
        self.annealing_steps = annealing_steps
        self.chain_steps = chain_steps
        self.validation_fraction = validation_fraction
        self.verbose = verbose
        self.pool = pool
        self.random_state = random_state

    def check_parameters(self) -> None:
        """Raise an error for invalid parameters; `fit` does so first."""
        checks.one_of(self.proposal, get_args(ProposalName), "proposal")
        checks.one_of(self.acceptance, get_args(AcceptanceName), "acceptance")
        checks.one_of(self.missing, ("raise", "model"), "missing")
        check_pool(self.pool)
        checks.count(self.acceptance_steps, "acceptance_steps")
        checks.count(self.chain_steps, "chain_steps")
        if self.score_steps is not None:
            checks.count(self.score_steps, "score_steps")
        checks.count(self.annealing_steps, "annealing_steps", at_least=0)
        low, high = MultilevelDenoising().low, MultilevelDenoising().high  # the levels at which a score is learned
        if self.noise_level is None or not low <= self.noise_level <= high:
            fix = "Leave it out: 1.0 suits most tables."
            raise ValueError(checks.message(f"noise_level between {low} and {high}", self.noise_level, fix))
        if self.acceptance == "always" and self.proposal != "mala":
            got, fix = f"{self.proposal!r}, which does not use the score", 'Use acceptance="exact" with it.'
            raise ValueError(checks.message('proposal="mala" with acceptance="always", ULA', got, fix))
        if not 0 < self.validation_fraction < 1:
            fix = "Pass 0.1, for example: a fit can only be checked on rows that it has not seen."
            raise ValueError(checks.message("validation_fraction between 0 and 1", self.validation_fraction, fix))

    def fit(self, X: ArrayLike, y: object = None, *, checkpoint: str | Path | None = None) -> "ScoreMH":
        """Learn score and acceptance, tune the step size, check the fit, and return the estimator.

        Args:
            X: Rows, one per sample: an array of numbers, or a data frame, also with text, booleans and categories.
            y: Not used.
            checkpoint: Folder for checkpoints of the training. After an interruption, the same call with the same
                `random_state` resumes from there.
        """
        self.check_parameters()
        times = [time.monotonic()]
        rows = self._numbers(X, reset=True, min_rows=MIN_SAMPLES + 2)
        if rows.shape[1] > MAX_COLUMNS:
            fix = "Reduce them first, for example to the scores of sklearn.decomposition.PCA."
            raise ValueError(checks.message(f"at most {MAX_COLUMNS:,} columns", f"{rows.shape[1]:,}", fix))
        for_split, for_score, for_step, for_acceptance, for_check, for_gate, for_table = _generators(
            self.random_state, 7
        )
        self.table_ = self._found_table(rows)
        points = self.table_.coordinates(rows, for_table).numpy()
        order = torch.randperm(len(rows), generator=for_split).numpy()
        held = min(MAX_HELD_OUT_ROWS, math.ceil(self.validation_fraction * len(rows)))
        self.held_out_ = rows[order[:held]]
        x = training_tensor(points[order[held:]], like=points)
        if len(x) <= x.shape[1] <= MAX_WHITENED_SIZE:
            expected = f"more rows than coordinates, {x.shape[1]} of {len(self.table_.names)} columns"
            fix = "Add rows, remove columns, or merge levels of categories."
            raise ValueError(checks.message(expected, f"{len(x)} to learn from", fix))
        dependent = has_dependent_columns(x)
        if dependent:
            x = jittered(x, for_split)

        score = self._learned_score(x, for_score, checkpoint)
        times.append(time.monotonic())
        sampler = find_adjustment(self._first_sampler(score), x, generator=for_gate)
        sampler = sampler.tune(
            TUNING_CHAINS,
            steps=TUNING_STEPS,
            annealing_steps=int(self.annealing_steps),
            generator=for_step,
            progress=self.verbose,
        )
        self.sampler_ = self._with_acceptance(sampler, x, for_acceptance, checkpoint)

        chains = self._run(min(max(TUNING_CHAINS, len(rows)), MAX_CHECK_CHAINS), self._check_draws, for_check)
        times.append(time.monotonic())
        with progress_bar(1, "checks", unit="fits", show=self.verbose) as tick:
            found = diagnose(
                self.sampler_,
                chains,
                torch.from_numpy(points[order[:held]]).to(x),
                self.table_.names,
                seen=x,
                numbers=self.table_.numbers,
                generator=for_check,
            )
            tick(1)
        times.append(time.monotonic())
        self.fit_seconds_ = dict(zip(("score", "chains", "checks"), np.diff(times).tolist(), strict=True))
        self.diagnosis_ = replace(found, warnings=(*[DEPENDENT_COLUMNS] * dependent, *found.warnings))
        return self

    def _found_table(self, rows: NDArray[Any]) -> Table:
        """Return the table with the kinds of the columns, given or inferred."""
        unnamed = [f"x{i}" for i in range(self.n_features_in_)]
        names = [str(name) for name in getattr(self, "feature_names_in_", unnamed)]
        layout = dict(zip(names, self.layout_ or (), strict=False))
        categories = {name: column.ordered for name, column in layout.items() if column.levels is not None}
        dates = [name for name, column in layout.items() if column.date is not None]
        return Table.find(rows, names, self.columns, categories, dates)

    def _learned_score(self, x: Tensor, generator: torch.Generator, checkpoint: str | Path | None) -> ScoreFit:
        """Return the score of points, learned at all noise levels.

        The number of steps is halved while draws are closer to rows than rows are to each other, and doubled while they
        are farther. A held-out loss cannot choose it: with few rows it is smallest long before draws are right.
        """

        def learned(recipe: Recipe, *, progress: bool = False) -> ScoreFit:
            file = checkpoint and Path(checkpoint) / f"score-{recipe.steps}.checkpoint"
            return fit_score(x, recipe=recipe, generator=generator, checkpoint=file, progress=progress)

        if self.score_steps is not None:
            return learned(Recipe(int(self.score_steps)), progress=self.verbose)
        recipe = replace(recipe_for(len(x)), patience=None)
        score = learned(recipe, progress=self.verbose)
        excess = share_of_copies(score, x, generator) - 0.5
        while abs(excess) > MAX_EXCESS:
            steps = max(recipe.steps // 2, 1) if excess > 0 else min(2 * recipe.steps, Recipe.steps)
            if steps == recipe.steps:
                break
            recipe, before = replace(recipe, steps=steps), excess
            other = learned(recipe)
            excess = share_of_copies(other, x, generator) - 0.5
            if abs(excess) >= abs(before):
                break
            score = other
            if (excess > 0) != (before > 0):  # the next number would be the one before
                break
        return score

    def _first_sampler(self, score: ScoreFit) -> Sampler:
        """Return the sampler, its step size still to be tuned."""
        return Sampler(score, float(self.noise_level), self.proposal, RULES.get(self.acceptance))

    def _with_acceptance(
        self, sampler: Sampler, x: Tensor, generator: torch.Generator, checkpoint: str | Path | None
    ) -> Sampler:
        """Return the sampler with a learned acceptance, or unchanged if the acceptance is a rule."""
        if self.acceptance in RULES:
            return sampler
        return sampler.learn_acceptance(
            x,
            self.acceptance,  # type: ignore[arg-type]
            generator=generator,
            recipe=replace(RECIPE, steps=int(self.acceptance_steps)),
            checkpoint=checkpoint and Path(checkpoint) / "acceptance.checkpoint",
            progress=self.verbose,
        )

    def sample(self, n_samples: int = 1, *, given: Mapping[Any, Any] | None = None, random_state: Seed = None) -> Any:
        """Draw independent rows; each is the last draw of its own chain, started from noise.

        Args:
            n_samples: Number of rows.
            given: Conditions on columns, by name or position: a value, a list of values, or a tuple of the ends of a
                range; None for a missing value. Rows are drawn until enough fulfil them; if fewer than 5 % do, chains
                run among rows that do (`Sampler.sample_where`).
            random_state: Random seed; by default the estimator's.

        Returns:
            An array, or a data frame if the estimator was fitted on one or `set_output` chose it.
        """
        check_is_fitted(self)
        checks.count(n_samples, "n_samples")
        if not given:
            return self.to_rows(self.sample_chains(n_samples, draws=1, random_state=random_state).last)
        conditions = self._conditions(given)
        sampler, table = self.sampler_, self.table_
        scale = sampler.score.coordinates(torch.eye(table.width).to(self.score_.event)) - sampler.score.coordinates(
            torch.zeros(1, table.width).to(self.score_.event)
        )
        (generator,) = _generators(self.random_state if random_state is None else random_state, 1)
        found = sampler.sample_where(
            n_samples,
            lambda x: torch.stack([one.holds(table.numbers(x)) for one in conditions]).all(0),
            log_likelihood=lambda u, level: table.log_likelihood(
                sampler.score.coordinates(u), conditions, (level**2 + CORNER_STD**2) * scale.square().sum(0)
            ),
            annealing_steps=int(self.annealing_steps),
            chain_steps=int(self.chain_steps),
            generator=generator,
            progress=self.verbose,
            pool=self.pool,
        )
        return self.to_rows(table.numbers(found))

    def _conditions(self, given: Mapping[Any, Any]) -> list[Condition]:
        """Return the conditions that a user gave, with values as numbers."""
        found = []
        for name, wanted in named_kinds(given, self.table_.names).items():
            place = self.table_.names.index(name)
            layout = frames.ColumnLayout("float64") if self.layout_ is None else self.layout_[place]
            values = list(wanted) if isinstance(wanted, tuple | list) else [wanted]
            if not values or (isinstance(wanted, tuple) and len(values) != 2):
                fix = "Pass a value, a list of values, or a tuple of the ends of a range."
                raise ValueError(checks.message(f"a condition on column {name!r}", repr(wanted), fix))
            numbers = [layout.number(value, name) for value in values]
            found.append(self.table_.condition(name, numbers, is_range=isinstance(wanted, tuple)))
        return found

    def sample_chains(
        self,
        n_chains: int,
        *,
        draws: int | None = None,
        random_state: Seed = None,
        store: str | Path | None = None,
    ) -> Chains:
        """Run chains from noise, and return their draws at the kernel's level, for traces and diagnostics.

        Args:
            n_chains: Number of chains.
            draws: Number of draws to keep of each chain, including the last; one per step if None.
            random_state: Random seed; by default the estimator's.
            store: Folder for checkpoints. After an interruption, the same call with the same seed resumes from there.
        """
        check_is_fitted(self)
        draws = self.chain_steps if draws is None else draws
        checks.count(n_chains, "n_chains")
        checks.count(draws, "draws")
        if draws > self.chain_steps:
            expected = f"draws of at most chain_steps={self.chain_steps}"
            raise ValueError(checks.message(expected, draws, "Keep fewer draws, or increase chain_steps."))
        (generator,) = _generators(self.random_state if random_state is None else random_state, 1)
        chains = self._run(int(n_chains), int(draws), generator, store)
        return replace(chains, draws=self.table_.numbers(chains.draws), columns=self.table_.names)

    def _run(self, n: int, draws: int, generator: torch.Generator, store: str | Path | None = None) -> Chains:
        """Run chains from noise to points of the table."""
        return self.sampler_.sample(
            n,
            annealing_steps=int(self.annealing_steps),
            chain_steps=int(self.chain_steps),
            draws=draws,
            generator=generator,
            progress=self.verbose,
            store=store,
            pool=self.pool,
        )

    @property
    def _check_draws(self) -> int:
        """The number of draws per chain in checks and reports."""
        return max(1, min(MAX_CHECK_DRAWS, int(self.chain_steps) // CHECKED_STEPS))

    def to_rows(self, x: Tensor) -> Any:
        """Return draws of `sample_chains` as an array or a data frame like the rows of the fit.

        Args:
            x: Draws `(draw, column)`, such as `chains.last`: numbers, with levels of categories as their positions.
        """
        rows = self.table_.within_bounds(x.numpy(), self.held_out_.dtype)
        like_rows = "pandas" if hasattr(self, "feature_names_in_") else get_config()["transform_output"]
        wanted = getattr(self, "_sklearn_output_config", {}).get("transform", like_rows)
        if wanted != "pandas" and self.layout_ is None:
            return rows
        frame = frames.frame_of(rows, self.layout_, self.table_.names)
        return frame if wanted == "pandas" else frame.to_numpy()

    def set_output(self, *, transform: Literal["default", "pandas"] | None = None) -> "ScoreMH":
        """Set the output format of `sample`, and return the estimator.

        Args:
            transform: "default" for an array, "pandas" for a data frame, None for no change.
        """
        if transform is not None:
            checks.one_of(transform, ("default", "pandas"), "transform")
            self._sklearn_output_config = {"transform": transform}  # scikit-learn's name, so that clones keep it
        return self

    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the normalised log density of rows, at the lowest noise level of `score_`.

        It is computed from the score at all noise levels and does not depend on the acceptance rule. For the values of
        discrete columns (ordered, count, rounded, category, and values at a bound) it is a log probability: the density
        at the centre of the points that represent a value, times their volume. It is minus infinity for an impossible
        value: a category that was not among the rows, or a number beyond a bound. Limits at which draws are reflected
        ("from 0" or "up to 1" in `columns_`) are not bounds: the density keeps the little mass that it has beyond them.

        Args:
            X: Rows to evaluate the log density at.
        """
        check_is_fitted(self)
        return self.log_densities(self._numbers(X))

    def log_densities(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Return the log density of rows of numbers, with levels as positions, such as `held_out_`."""
        x, log_volume = self.table_.centre(rows)
        possible = self.table_.possible(rows)
        # in float64, so that the value of a row does not depend on the other rows
        score = replace(self.score_, net=copy.deepcopy(self.score_.net).double())
        found = np.full(len(rows), -np.inf)
        if possible.any():
            with torch.inference_mode():
                found[possible] = (diffusion.log_density(score, x[possible]) + log_volume[possible]).numpy()
        return found

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Return the mean log density of rows; higher is better, between models with the same columns.

        Args:
            X: Rows to evaluate.
            y: Not used.
        """
        return float(self.score_samples(X).mean())

    def evaluate(self, X: ArrayLike, *, n_samples: int | None = None, random_state: Seed = None) -> Evaluation:
        """Compare new draws with rows: distances, floors, checks and a verdict; needs the extra `metrics`.

        The checks are those of `fit`; the verdict names the rows, and counts more than that of the fit.

        Args:
            X: Rows that the fit has not seen, for example `held_out_`.
            n_samples: Number of rows to draw and compare; by default half the number of rows of X, at most 1,000.
            random_state: Random seed of the draws; by default the estimator's.
        """
        check_is_fitted(self)
        rows = torch.from_numpy(np.array(self._numbers(X)))
        n = max(1, min(MAX_POINTS, len(rows) // 2)) if n_samples is None else n_samples
        checks.count(n, "n_samples")
        draws = self.sample_chains(n, draws=1, random_state=random_state).last
        return evaluate_model(self, draws, rows, "given rows", points=n, progress=self.verbose)

    def report(self, path: str | Path, X: ArrayLike | None = None, *, random_state: Seed = None) -> None:
        """Write an HTML page with draws beside rows, chains, training, metrics and warnings; needs the extra `report`.

        Args:
            path: HTML file to write; it opens offline.
            X: Rows to show beside the draws; by default the held-out rows.
            random_state: Random seed of the draws; by default the estimator's.
        """
        check_is_fitted(self)
        rows = torch.from_numpy(np.array(self.held_out_ if X is None else self._numbers(X)))
        name = "held-out rows" if X is None else "given rows"
        chains = self.sample_chains(MAX_CHECK_CHAINS, draws=self._check_draws, random_state=random_state)
        evaluation = None
        if find_spec("ot") is not None and len(rows) >= MIN_ROWS:
            evaluation = evaluate_model(self, chains.last, rows, name, points=MAX_POINTS)
            if X is None:  # the verdict of the fit is on training rows too
                found = self.diagnosis_
                evaluation = replace(evaluation, verdict=found.verdict, checks=found.checks)
        write(model_contents(self, chains, rows, name, evaluation), path)

    def diagnose(self) -> Diagnosis:
        """Return the results of the checks that `fit` made on held-out rows."""
        check_is_fitted(self)
        return self.diagnosis_

    def save(self, path: str | Path) -> None:
        """Write the estimator to a folder: `config.json`, and weights and held-out rows as safetensors; no pickle.

        Args:
            path: New folder.
        """
        check_is_fitted(self)
        save_model(self, RunFolder.create(Path(path), {"finished": False}))

    @classmethod
    def load(cls, path: str | Path) -> "ScoreMH":
        """Return the estimator that `save` or `scoremh fit` wrote; no code in the files is executed.

        Args:
            path: Folder of the estimator.
        """
        return load_model(cls, RunFolder.open(Path(path)))

    @property
    def score_(self) -> ScoreFit:
        """The learned score."""
        assert isinstance(self.sampler_.score, ScoreFit)  # `fit` has learned it
        return self.sampler_.score

    @property
    def acceptance_(self) -> AcceptanceFit | None:
        """The learned acceptance."""
        acceptance = self.sampler_.acceptance
        return acceptance if isinstance(acceptance, AcceptanceFit) else None

    @property
    def step_size_(self) -> float:
        """The step size of the proposal."""
        assert self.sampler_.step_size is not None  # `fit` has tuned it
        return self.sampler_.step_size

    @property
    def noise_level_(self) -> float:
        """The noise level of the kernel."""
        return self.sampler_.noise_level

    @property
    def columns_(self) -> dict[str, str]:
        """The kind of every column, by name."""
        return dict(zip(self.table_.names, map(str, self.table_.columns), strict=True))

    def _numbers(self, X: Any, *, reset: bool = False, min_rows: int = 1) -> NDArray[Any]:
        """Check rows and return them as an array of numbers: levels as positions, dates as seconds, NaN if missing."""
        if reset:
            names = list(map(str, getattr(X, "columns", ()))) or [
                f"x{j}" for j in range(np.ndim(X) > 1 and np.shape(X)[1])
            ]
            self.layout_ = frames.layout_of(X, named_kinds(self.columns, names))
        elif frames.is_frame(X):
            validate_data(self, X, reset=False, skip_check_array=True)  # checks the column names
        missing = self.missing == "model"
        numbers = frames.as_numbers(X, self.layout_, missing=missing)
        finite = "allow-nan" if missing else True
        rows: NDArray[Any] = validate_data(self, numbers, dtype=FLOAT_DTYPES, reset=reset, ensure_all_finite=finite)
        if len(rows) < min_rows:
            got, fix = f"{len(rows)} sample{'s' * (len(rows) > 1)}", "A reliable fit needs hundreds of rows."
            raise ValueError(checks.message(f"at least {min_rows} rows", got, fix))
        return rows

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: missing values are allowed if they are learned."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "model"
        return tags

    def __str__(self) -> str:
        """Return the parameters, and for a fitted estimator the kinds of columns, noise level and step size."""
        if not hasattr(self, "sampler_"):
            return repr(self)
        kinds = "\n".join(f"  {line}" for line in str(self.table_).splitlines())
        return f"{self!r}\ncolumns:\n{kinds}\nnoise level {self.noise_level_:g}, step size {self.step_size_:.3g}"

    def _repr_html_inner(self) -> str:
        """Return the verdict followed by scikit-learn's HTML, for a notebook."""
        verdict = html_verdict(self.diagnosis_.verdict) if hasattr(self, "diagnosis_") else ""
        return verdict + str(super()._repr_html_inner())

    def __sklearn_clone__(self) -> "ScoreMH":
        """Return an unfitted copy with the same pool, since most pools cannot be copied."""
        bare = copy.copy(self)
        bare.pool = None
        found: ScoreMH = super(ScoreMH, bare).__sklearn_clone__()
        found.pool = self.pool
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle."""
        return {**super().__getstate__(), "pool": lasting_pool(self.pool)}


def _generators(random_state: Seed, n: int) -> list[torch.Generator]:
    """Return n independent generators, so that an interruption of one stage does not change the others."""
    seed = int(check_random_state(random_state).randint(2**31))
    return [torch.Generator().manual_seed(one) for one in rng.seeds(n, torch.Generator().manual_seed(seed))]


def training_tensor(rows: NDArray[Any], like: NDArray[Any]) -> Tensor:
    """Return rows as a tensor, in float64 if float32 has too few digits or too small a range."""
    size = np.abs(like).max(0)
    if float(size.max()) > MAX_SIZE:
        row, column = divmod(int(np.abs(like).argmax()), like.shape[1])
        got = f"{like[row, column]:.3g} in row {row}, column {column}"
        raise ValueError(checks.message(f"values below {MAX_SIZE:.0e} in size", got, "Remove that row, or rescale."))
    spread = like.std(0)
    wide = (size > WIDE_RATIO * spread).any() or size.max() > LARGE or spread.min() < 1 / LARGE
    return torch.from_numpy(rows.astype(np.float64 if wide else np.float32))


def share_of_copies(score: ScoreFit, x: Tensor, generator: torch.Generator) -> float:
    """Return the probability that a draw is closer to a row than a row is to a different one; 0.5 for new rows.

    Args:
        score: Learned score.
        x: Rows that it was learned from.
        generator: Random number generator.
    """
    sampler, mean, scale = Sampler(score), x.mean(0), x.std(0)
    scale = scale.where(scale > 0, 1.0)
    with torch.inference_mode():
        start = sampler.start(COMPARED_DRAWS, generator=generator)
        draws = (sampler.carry_down(start, annealing.flow_levels(*sampler.noise_range[::-1])) - mean) / scale
    rows, some = (x - mean) / scale, torch.randperm(len(x), generator=generator)[:COMPARED_DRAWS]
    of_draws = torch.cdist(draws, rows).amin(1)
    number = rows.unique(dim=0, return_inverse=True)[1]  # the same for repeated rows
    of_rows = torch.cdist(rows[some], rows).masked_fill_(number[some, None] == number, math.inf).amin(1)
    return float((of_draws[:, None] < of_rows).double().mean())


def has_dependent_columns(x: Tensor) -> bool:
    """Return whether the rows lie in a plane, so that their distribution has no density and no score."""
    if x.shape[1] > MAX_WHITENED_SIZE:  # images are not whitened, so that dependent pixels are allowed
        return False
    correlation = torch.corrcoef(x.double().mT).reshape(x.shape[1], x.shape[1])
    return bool(torch.linalg.eigvalsh(correlation.nan_to_num())[0] < MIN_EIGENVALUE)


def jittered(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return rows with a little noise added to every column."""
    return x + JITTER * x.std(0) * rng.normal(tuple(x.shape), x, generator)
