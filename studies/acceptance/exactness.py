"""Which rules decide for the true ratio: by stationarity across narrow structure, by a variance, and what it costs."""

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from scoremh import (
    MALA,
    Chains,
    DegenerateRuleWarning,
    Exact,
    LineIntegral,
    RandomWalk,
    diagnostics,
    metropolis_hastings,
    sample,
    targets,
    tune,
)
from scoremh.acceptance import Rule
from scoremh.types import Kernel
from studies.acceptance.narrow import NARROW, STDS, Sampled
from studies.acceptance.rules import OVERLAPPING, STEPPED
from studies.acceptance.two_coin import TwoCoin
from studies.framework import Cell, Record, Records, grid
from studies.learning import seeded

if TYPE_CHECKING:
    from studies.acceptance.cells import Config

REFUSED = 1e-4  # p-value below which the test rejects a rule
LOGISTIC_VARIANCE = math.pi**2 / 12
LOGISTIC_STEP_SIZES = (0.5, 1.0)
SAMPLES_OF_MEAN = 100_000


class Logistic:
    """The distribution on the line with the score -2 tanh x."""

    support = None

    def log_density(self, x: Tensor) -> Tensor:
        """Return log p."""
        return -2 * torch.nn.functional.softplus(2 * x).sum(1) + 2 * x.sum(1)

    def score(self, x: Tensor) -> Tensor:
        """Return the gradient of log p."""
        return -2 * x.tanh()

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw n independent events."""
        u = torch.rand(n, 1, generator=generator, dtype=torch.float64)
        return u.logit() / 2


COMPARED: dict[str, Rule] = {
    "Exact()": Exact(),
    "LineIntegral()": LineIntegral(),
    'LineIntegral("simpson")': LineIntegral("simpson"),
    'LineIntegral("exact")': LineIntegral("exact"),
    "TwoCoin()": TwoCoin(),
}
SMOOTH: dict[str, Sampled] = {"logistic": Logistic(), "banana": targets.Banana(), "mixture": OVERLAPPING}


def kernel_of(target: Sampled, proposal: RandomWalk | MALA, rule: Rule) -> Kernel:
    """Return a kernel, also of a rule and a proposal that do not go together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateRuleWarning)
        return metropolis_hastings(target, proposal, rule)


class Steps(Cell, kind="steps"):
    """Whether the test of stationarity rejects a random walk across narrow structure, with the true score."""

    distribution: str
    rule: str
    std: float

    def measure(self, config: "Config", folder: Path) -> Record:
        law = NARROW[self.distribution]
        kernel = kernel_of(law, RandomWalk(self.std), STEPPED[self.rule])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the share of chains that moved is in the record
            found = diagnostics.stationarity(
                kernel, law, chains=config.test_chains, steps=config.test_steps, generator=seeded(5)
            )
        return {"p_value": found.p_value, "z": found.z, "acceptance": found.acceptance_rate, "moved": found.moved}


class Variance(Cell, kind="variance"):
    """The variance of the logistic distribution after many steps of MALA from exact draws."""

    rule: str
    step_size: float

    def measure(self, config: "Config", folder: Path) -> Record:
        law, n, steps = SMOOTH["logistic"], config.variance_chains, config.variance_steps
        kernel = kernel_of(law, MALA(self.step_size), COMPARED[self.rule])
        chains = sample(kernel, law.sample(n, generator=seeded(2)), draws=1, thin=steps, generator=seeded(4))
        squares = chains.last.square()
        return {
            "variance": float(squares.mean()),
            "error": float(squares.std()) / math.sqrt(n),
            "acceptance": chains.acceptance_rate,
            "calls": (chains.score_calls - n) / (n * steps),
            "factors": chains.factors,
            "clipped": chains.clipped,
        }


class Efficiency(Cell, kind="efficiency"):
    """Effective draws per score call of MALA at the step that `tune` chooses for a rule."""

    distribution: str
    rule: str

    def measure(self, config: "Config", folder: Path) -> Record:
        law, rule, n = SMOOTH[self.distribution], COMPARED[self.rule], config.tuned_chains
        tuned = tune(lambda h: kernel_of(law, MALA(h), rule), law.sample(n, generator=seeded(2)), generator=seeded(3))
        kernel, runs = kernel_of(law, MALA(tuned), rule), []
        for seed in range(1, config.tuned_runs + 1):
            start = law.sample(n, generator=seeded(2, seed))
            runs.append(sample(kernel, start, draws=config.tuned_draws, generator=seeded(4, seed)))
        steps = len(runs) * n * config.tuned_draws
        effective = [diagnostics.summary(run).ess_per_score_call for run in runs]
        squares = [diagnostics.summary(squared(run, law)).ess_per_score_call for run in runs]
        return {
            "step_size": tuned,
            "effective_per_call": statistics.mean(effective),
            "effective_per_call_error": standard_error(effective),
            "effective_squares_per_call": statistics.mean(squares),
            "effective_squares_per_call_error": standard_error(squares),
            "acceptance": statistics.mean(run.acceptance_rate for run in runs),
            "calls": sum(run.score_calls - n for run in runs) / steps,
            "factors": sum(run.factors for run in runs),
            "clipped": sum(run.clipped for run in runs),
        }


def squared(chains: Chains, law: Sampled) -> Chains:
    """Return chains of the squared distances to the mean: a walk that jumps to and fro knows the mean too well."""
    mean = law.sample(SAMPLES_OF_MEAN, generator=seeded(6)).mean(0)
    return replace(chains, draws=(chains.draws - mean).square())


KINDS = (Steps, Variance, Efficiency)


def cells() -> list[Cell]:
    """Return the cells of all three measurements."""
    steps = [cell for name, stds in STDS.items() for cell in grid(Steps, distribution=[name], rule=STEPPED, std=stds)]
    variances = grid(Variance, rule=COMPARED, step_size=LOGISTIC_STEP_SIZES)
    return [*steps, *variances, *grid(Efficiency, distribution=SMOOTH, rule=COMPARED)]


def refused_at(records: Records, rule: str, distribution: str) -> list[float]:
    """Return the steps at which the test rejected a rule."""
    there = records.where("steps", rule=rule, distribution=distribution)
    return [one["std"] for one in there if one["p_value"] < REFUSED]


def never_refused(records: Records) -> list[str]:
    """Return the rules that the test never rejected."""
    return [rule for rule in STEPPED if not any(refused_at(records, rule, name) for name in STDS)]


def refusals(records: Records, rule: str) -> str:
    """Return the table's entry for a rule: the steps at which it was rejected, for every distribution."""
    found = (refused_at(records, rule, name) for name in STDS)
    return " | ".join(", ".join(map(str, stds)) or "nowhere" for stds in found)


def clipped_share(record: Mapping[str, float]) -> str:
    """Return the share of factors that were clipped; nothing where there were none."""
    return f"{record['clipped'] / record['factors']:.1%}" if record["factors"] else ""


def relative_efficiency(records: Records, rule: str, distribution: str, of: str = "effective_per_call") -> str:
    """Return effective draws per score call, of coordinates or of squares, in units of Simpson's, and the error."""
    one, simpson = (
        records.where("efficiency", rule=name, distribution=distribution)[0]
        for name in (rule, 'LineIntegral("simpson")')
    )
    ratio, errors = one[of] / simpson[of], [record[f"{of}_error"] / record[of] for record in (one, simpson)]
    return f"{ratio:.2f}" if one is simpson else f"{ratio:.2f} +- {ratio * math.hypot(*errors):.2f}"


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean."""
    return statistics.stdev(values) / math.sqrt(len(values))
