"""Which rules decide for the true ratio: by stationarity across narrow structure, by a variance, and what it costs."""

import math
import statistics
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremh import MALA, DegenerateRuleWarning, RandomWalk, diagnostics, metropolis_hastings, sample, tune
from scoremh.types import Kernel, Proposal
from studies.acceptance.laws import ELSEWHERE, NARROW, SMOOTH, STDS, Sampled
from studies.acceptance.rules import COMPARED, RULES, SIMPSON
from studies.framework import Cell, Record, Records, grid
from studies.learning import seeded

if TYPE_CHECKING:
    from studies.acceptance.cells import Config

REFUSED = 1e-4  # p-value below which the test rejects a rule
LOGISTIC_VARIANCE = math.pi**2 / 12
MULTIPLES = (1, 4)  # of the step size that is tuned for Exact()


def kernel_of(target: Sampled, proposal: Proposal, rule: str) -> Kernel:
    """Return a kernel, also of a rule and a proposal that do not go together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateRuleWarning)
        return metropolis_hastings(target, proposal, RULES[rule])


def p_value(kernel: Kernel, law: Sampled, chains: int, steps: int) -> float:
    """Return the p-value of a test of stationarity; few accepted moves are no reason to warn here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return diagnostics.stationarity(kernel, law, chains=chains, steps=steps, generator=seeded(5)).p_value


class Steps(Cell, kind="steps"):
    """Whether the test of stationarity rejects a random walk across narrow structure, with the true score."""

    distribution: str
    rule: str
    std: float

    def measure(self, config: "Config", folder: Path) -> Record:
        law = NARROW[self.distribution]
        kernel = kernel_of(law, RandomWalk(self.std), self.rule)
        return {"p_value": p_value(kernel, law, config.test_chains, config.test_steps)}


class Variance(Cell, kind="variance"):
    """The variance of the logistic distribution after many steps of MALA from exact draws."""

    rule: str
    step_size: float

    def measure(self, config: "Config", folder: Path) -> Record:
        law, n, steps = SMOOTH["logistic"], config.variance_chains, config.variance_steps
        kernel = kernel_of(law, MALA(self.step_size), self.rule)
        chains = sample(kernel, law.sample(n, generator=seeded(2)), draws=1, thin=steps, generator=seeded(4))
        squares = chains.last.square()
        return {"variance": float(squares.mean()), "error": float(squares.std()) / math.sqrt(n)}


class Efficiency(Cell, kind="efficiency"):
    """Effective draws per score call of MALA at the step that `tune` chooses for a rule."""

    distribution: str
    rule: str

    def measure(self, config: "Config", folder: Path) -> Record:
        law, n = SMOOTH[self.distribution], config.tuned_chains
        first = law.sample(n, generator=seeded(2))
        tuned = tune(lambda h: kernel_of(law, MALA(h), self.rule), first, generator=seeded(3))
        kernel, runs = kernel_of(law, MALA(tuned), self.rule), []
        for seed in range(1, config.tuned_runs + 1):
            start = law.sample(n, generator=seeded(2, seed))
            runs.append(sample(kernel, start, draws=config.tuned_draws, generator=seeded(4, seed)))
        steps = len(runs) * n * config.tuned_draws
        return {
            "effective_per_call": statistics.mean(diagnostics.summary(run).ess_per_score_call for run in runs),
            "calls": sum(run.score_calls - n for run in runs) / steps,
        }


class Elsewhere(Cell, kind="elsewhere"):
    """Whether the test rejects a rule at a multiple of the step tuned for `Exact()`, on other distributions."""

    distribution: str
    rule: str
    multiple: int

    def measure(self, config: "Config", folder: Path) -> Record:
        law, steps = ELSEWHERE[self.distribution], config.test_steps
        start = law.sample(config.tuned_chains, generator=seeded(2))
        tuned = tune(lambda h: kernel_of(law, MALA(h), "Exact()"), start, generator=seeded(3))
        kernel, n = kernel_of(law, MALA(self.multiple * tuned), self.rule), config.test_chains
        found: dict[str, Any] = {"p_value": p_value(kernel, law, config.elsewhere_chains, steps)}
        chains = sample(kernel, law.sample(n, generator=seeded(2)), draws=steps, generator=seeded(4))
        counts = {"factors": chains.factors, "clipped": chains.clipped}
        return found | counts | {"calls": (chains.score_calls - n) / (n * steps)}


def cells() -> list[Cell]:
    """Return the cells of all four measurements."""
    steps = [cell for name, stds in STDS.items() for cell in grid(Steps, distribution=[name], rule=RULES, std=stds)]
    return [
        *steps,
        *grid(Variance, rule=COMPARED, step_size=[1.0]),
        *grid(Efficiency, distribution=SMOOTH, rule=COMPARED),
        *grid(Elsewhere, distribution=ELSEWHERE, rule=COMPARED[:4], multiple=MULTIPLES),
    ]


def refused_at(records: Records, rule: str, distribution: str) -> list[float]:
    """Return the steps at which the test rejected a rule."""
    there = records.where("steps", rule=rule, distribution=distribution)
    return [one["std"] for one in there if one["p_value"] < REFUSED]


def refusals(records: Records, rule: str) -> str:
    """Return the table's entry for a rule: the steps at which it was rejected, for every distribution."""
    found: list[Sequence[float]] = [refused_at(records, rule, name) for name in STDS]
    return " | ".join(", ".join(map(str, stds)) or "nowhere" for stds in found)


def relative_efficiency(records: Records, rule: str, distribution: str) -> str:
    """Return effective draws per score call in units of Simpson's, and score calls per step."""
    (one,), (simpson,) = (records.where("efficiency", rule=name, distribution=distribution) for name in (rule, SIMPSON))
    return f"{one['effective_per_call'] / simpson['effective_per_call']:.2f} ({one['calls']:.2f})"
