"""`ScoreMH`, by scikit-learn's conventions."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import FLOAT_DTYPES, check_is_fitted, validate_data
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh.balance_matching import RECIPE, AcceptanceFit, FormName, fit_acceptance
from scoremh.coordinates import MAX_WHITENED_SIZE
from scoremh.estimator import files
from scoremh.estimator.diagnosis import Diagnosis, diagnose
from scoremh.estimator.folder import Folder
from scoremh.estimator.sampler import AcceptanceName, ProposalName, Sampler
from scoremh.sampling.chains import Chains
from scoremh.score_matching import MIN_SAMPLES, MultilevelDenoising, ScoreFit, fit_score, implicit_losses
from scoremh.training import Recipe

HELD = 2000  # rows held out at most
TUNED = 200  # chains that a step is tuned on
CHECKED = 1000  # chains that a fit checks itself on, at most
KEPT = 50  # draws of a chain that a fit checks itself on
HUGE = 1e15  # float32 ends at 3e38
WIDE = 1e4  # float32 has 7 digits: rows further from 0 than this many of their spreads are learned from in float64
FLAT, JITTER = 1e-6, 3e-3  # variance of a direction taken for none; noise that is added then; both of the spread
DEPENDENT = (
    "Some columns follow from the others: noise of 0.3 % of its spread was added to each. Leave such columns out, and "
    "compute them from the draws."
)
Seed = int | np.random.RandomState | None


def _has_potential(model: "ScoreMH") -> bool:
    acceptance = model.sampler_.acceptance if hasattr(model, "sampler_") else model.acceptance
    if acceptance != "potential":
        expected = 'acceptance="potential", which learns a log density'
        raise AttributeError(checks.message(expected, repr(acceptance), "Fit with that one."))
    return True


class ScoreMH(DensityMixin, BaseEstimator):  # type: ignore[misc]
    """Learn the law of rows, and draw more of them, by score-based Metropolis-Hastings.

    Args:
        proposal: "mala" (Langevin), "rw" (a random walk) or "pcn" (preconditioned Crank-Nicolson).
        acceptance: The rule that decides: learned as a "potential", "antisymmetric" or "free" (the paper's);
            integrated from the score by "simpson" or "adaptive"; or "always", which is ULA.
        noise: Blurs the law that the kernel runs on and the acceptance is learned for, in units of the rows' spread.
            It connects modes; the flow takes it away from the draws, and not from `score_samples`.
        score_steps: Of the score's training, at most.
        acceptance_steps: Of the acceptance's training, at most.
        annealing_steps: Of every chain at each of 15 noise levels, on its way down from noise.
        chain_steps: Of the last kernel, after that.
        validation_fraction: Share of the rows that is held out to check the fit, 2,000 rows at most.
        verbose: Show progress bars.
        random_state: Seed of everything. With a number, `sample` gives the same rows every time, unless it is given a
            seed of its own.

    Attributes:
        sampler_: What the fit draws with: all of the following, and how they go together.
        score_: The learned score, a target of its own: `metropolis_hastings(model.score_, ...)`.
        acceptance_: The learned acceptance; None where the rule is not learned.
        step_size_: Of the proposal.
        diagnosis_: What `diagnose` returns.
        held_out_: Rows that nothing was learned from.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, where the rows came with some.

    Example:
        >>> from scoremh import ScoreMH, datasets
        >>> X = datasets.moons(500).numpy()
        >>> brief = {"score_steps": 20, "acceptance_steps": 20, "annealing_steps": 1, "chain_steps": 20}
        >>> model = ScoreMH(**brief, verbose=False, random_state=0).fit(X)  # without these for a good fit
        >>> model.sample(10).shape
        (10, 2)
    """

    def __init__(
        self,
        proposal: ProposalName = "mala",
        acceptance: AcceptanceName = "potential",
        *,
        noise: float = 0.3,
        score_steps: int = 8000,
        acceptance_steps: int = 4000,
        annealing_steps: int = 20,
        chain_steps: int = 300,
        validation_fraction: float = 0.1,
        verbose: bool = True,
        random_state: Seed = None,
    ) -> None:
        self.proposal = proposal
        self.acceptance = acceptance
        self.noise = noise
        self.score_steps = score_steps
        self.acceptance_steps = acceptance_steps
        self.annealing_steps = annealing_steps
        self.chain_steps = chain_steps
        self.validation_fraction = validation_fraction
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: object = None, *, checkpoint: str | Path | None = None) -> "ScoreMH":
        """Learn score and acceptance, find the step, and check the fit.

        Args:
            X: A row per sample, numbers only.
            y: Not used.
            checkpoint: A folder to write to as the training goes on. The same call with the same folder and
                `random_state` goes on from there.
        """
        self.check_parameters()
        rows: NDArray[Any] = validate_data(self, X, dtype=FLOAT_DTYPES, ensure_min_samples=MIN_SAMPLES + 2)
        places = {name: checkpoint and Path(checkpoint) / f"{name}.checkpoint" for name in ("score", "acceptance")}
        for_split, for_score, for_start, for_step, for_acceptance, for_check = _generators(self.random_state, 6)
        order = torch.randperm(len(rows), generator=for_split).numpy()
        held = min(HELD, math.ceil(self.validation_fraction * len(rows)))
        self.held_out_ = rows[order[:held]]
        x = torch.from_numpy(rows[order[held:]].astype(np.float64 if _wide(rows) else np.float32))
        dependent = _dependent(x)
        if dependent:
            x = x + JITTER * x.std(0) * rng.normal(tuple(x.shape), x, for_split)
        score = fit_score(
            x,
            recipe=Recipe(int(self.score_steps)),
            generator=for_score,
            progress=self.verbose,
            checkpoint=places["score"],
        )
        sampler = Sampler(score, float(self.noise), self.proposal, self.acceptance)
        begun = sampler.annealed(TUNED, int(self.annealing_steps), generator=for_start, progress=self.verbose)
        sampler = sampler.tuned(begun.draws, int(self.chain_steps), generator=for_step, progress=self.verbose)
        if self.acceptance in get_args(FormName):
            learned = fit_acceptance(
                sampler.target,
                sampler.proposed(sampler.step),
                sampler.blurred(x, for_acceptance),
                form=self.acceptance,  # type: ignore[arg-type]
                recipe=replace(RECIPE, steps=int(self.acceptance_steps)),
                generator=for_acceptance,
                progress=self.verbose,
                checkpoint=places["acceptance"],
            )
            sampler = replace(sampler, learned=learned)
        self.sampler_ = sampler
        chains = self._run(min(max(TUNED, held), CHECKED), min(KEPT, int(self.chain_steps)), for_check)
        found = diagnose(sampler, chains, self._tensor(self.held_out_), self._names, generator=for_check)
        self.diagnosis_ = replace(found, warnings=(*[DEPENDENT] * dependent, *found.warnings))
        return self

    @property
    def score_(self) -> ScoreFit:
        """The learned score."""
        return self.sampler_.score

    @property
    def acceptance_(self) -> AcceptanceFit | None:
        """The learned acceptance."""
        return self.sampler_.learned

    @property
    def step_size_(self) -> float:
        """The step of the proposal."""
        return self.sampler_.step

    def check_parameters(self) -> None:
        """Refuse parameters that make no sense; `fit` does so first."""
        checks.one_of(self.proposal, get_args(ProposalName), "proposal")
        checks.one_of(self.acceptance, get_args(AcceptanceName), "acceptance")
        for name in ("score_steps", "acceptance_steps", "annealing_steps", "chain_steps"):
            checks.count(getattr(self, name), name)
        low, high = MultilevelDenoising().low, MultilevelDenoising().high  # what the score learns
        if not low <= self.noise <= high:
            fix = "0.3 is good where modes are some spreads apart."
            raise ValueError(checks.message(f"noise between {low} and {high}", self.noise, fix))
        if self.acceptance == "always" and self.proposal != "mala":
            got, fix = f"{self.proposal!r}, which would walk away", 'Use "simpson" with it.'
            raise ValueError(checks.message('proposal="mala" with acceptance="always", ULA', got, fix))
        if not 0 < self.validation_fraction < 1:
            fix = "A fit cannot be judged on what it has seen: 0.1 is a good share."
            raise ValueError(checks.message("validation_fraction between 0 and 1", self.validation_fraction, fix))

    def sample(self, n_samples: int = 1, *, random_state: Seed = None) -> Any:
        """Draw rows, each the end of a chain of its own that began as noise.

        Args:
            n_samples: How many.
            random_state: Seed; the estimator's own if None.

        Returns:
            An array; a data frame where the estimator was fitted on one, or where `set_output` says so.
        """
        check_is_fitted(self)
        checks.count(n_samples, "n_samples")
        return self._framed(self.sample_chains(n_samples, draws=1, random_state=random_state).last)

    def sample_chains(
        self,
        n_chains: int,
        *,
        draws: int | None = None,
        random_state: Seed = None,
        store: str | Path | None = None,
    ) -> Chains:
        """Run chains from noise, and return the steps of the last kernel too, for traces and diagnostics.

        Args:
            n_chains: How many.
            draws: To keep of each, the last among them; one per step if None.
            random_state: Seed; the estimator's own if None.
            store: A folder to write to. The same call with the same folder and seed goes on from there.
        """
        check_is_fitted(self)
        draws = self.chain_steps if draws is None else draws
        checks.count(n_chains, "n_chains")
        checks.count(draws, "draws")
        if draws > self.chain_steps:
            expected = f"draws of at most chain_steps, {self.chain_steps}"
            raise ValueError(checks.message(expected, draws, "Keep fewer, or raise chain_steps."))
        (generator,) = _generators(self.random_state if random_state is None else random_state, 1)
        return self._run(int(n_chains), int(draws), generator, None if store is None else Path(store))

    @available_if(_has_potential)  # type: ignore[untyped-decorator]
    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the learned log density of rows up to a constant: the potential, of the law with noise.

        Other acceptances have none.

        Args:
            X: The rows.
        """
        check_is_fitted(self)
        assert self.acceptance_ is not None
        x = torch.from_numpy(np.array(validate_data(self, X, dtype=np.float64, reset=False)))
        net = copy.deepcopy(self.acceptance_.net).double()  # so that an answer does not depend on the other rows
        with torch.inference_mode():
            return net(x).numpy()  # type: ignore[no-any-return]

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Return minus the implicit score-matching loss on rows: comparable between models, the higher the better.

        It judges the learned score, and depends neither on the noise nor on the rule.

        Args:
            X: Rows to judge the learned score by.
            y: Not used.
        """
        check_is_fitted(self)
        rows: NDArray[Any] = validate_data(self, X, dtype=FLOAT_DTYPES, reset=False)
        return -float(implicit_losses(self.score_, self._tensor(rows)).mean())

    def diagnose(self) -> Diagnosis:
        """Return what `fit` found out about itself."""
        check_is_fitted(self)
        return self.diagnosis_

    def save(self, path: str | Path) -> None:
        """Write a folder: `config.json`, and weights and held-out rows as safetensors; no pickle.

        Args:
            path: A new folder.
        """
        check_is_fitted(self)
        files.write(self, Folder.create(Path(path), {"finished": False}))

    @classmethod
    def load(cls, path: str | Path) -> "ScoreMH":
        """Read what `save`, or `scoremh fit`, wrote; no code in the files is run.

        Args:
            path: The folder.
        """
        return files.read(cls, Folder.open(Path(path)))

    def set_output(self, *, transform: Literal["default", "pandas"] | None = None) -> "ScoreMH":
        """Choose what `sample` returns: "default" an array, "pandas" a data frame; None changes nothing.

        Args:
            transform: One of these.
        """
        if transform is not None:
            checks.one_of(transform, ("default", "pandas"), "transform")
            self._sklearn_output_config = {"transform": transform}  # scikit-learn's name for it: clones keep it
        return self

    def _run(self, n: int, draws: int, generator: torch.Generator, store: Path | None = None) -> Chains:
        sampler, show = self.sampler_, self.verbose
        stores = (None, None) if store is None else (store / "annealing", store / "chains")
        steps, length = int(self.annealing_steps), int(self.chain_steps)
        begun = sampler.annealed(n, steps, generator=generator, progress=show, store=stores[0])
        return sampler.run(begun, length, draws, generator=generator, progress=show, store=stores[1])

    def _tensor(self, rows: NDArray[Any]) -> Tensor:
        """Return rows as a tensor of the dtype that was learned in."""
        return torch.from_numpy(np.array(rows)).to(next(self.score_.net.parameters()).dtype)

    @property
    def _names(self) -> list[str]:
        """The names of the columns; x0, x1, ... where they have none."""
        unnamed = [f"x{i}" for i in range(self.n_features_in_)]
        return [str(name) for name in getattr(self, "feature_names_in_", unnamed)]

    def _framed(self, x: Tensor) -> Any:
        rows = x.numpy().astype(self.held_out_.dtype)
        like_rows = "pandas" if hasattr(self, "feature_names_in_") else get_config()["transform_output"]
        if getattr(self, "_sklearn_output_config", {}).get("transform", like_rows) != "pandas":
            return rows
        import pandas as pd

        return pd.DataFrame(rows, columns=self._names)


def _generators(random_state: Seed, n: int) -> list[torch.Generator]:
    """Return a generator per part of the work: what one draws does not depend on where another was interrupted."""
    seed = int(check_random_state(random_state).randint(2**31))
    return [torch.Generator().manual_seed(one) for one in rng.seeds(n, torch.Generator().manual_seed(seed))]


def _wide(rows: NDArray[Any]) -> bool:
    """Say whether float32 could not tell such rows apart, or their squares would leave its range."""
    size, spread = np.abs(rows).max(0), rows.std(0)
    return bool((size > WIDE * spread).any() or size.max() > HUGE or spread.min() < 1 / HUGE)


def _dependent(x: Tensor) -> bool:
    """Say whether rows lie in a plane, where a law has no density and no score."""
    if x.shape[1] > MAX_WHITENED_SIZE:  # images: scaled by one number, and their dark corners are given some width
        return False
    correlation = torch.corrcoef(x.double().mT).reshape(x.shape[1], x.shape[1])
    return bool(torch.linalg.eigvalsh(correlation.nan_to_num())[0] < FLAT)
