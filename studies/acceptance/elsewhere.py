"""The exact rule on distributions that none of its numbers were chosen on, at the tuned step and beyond."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from scoremh import MALA, Exact, LineIntegral, diagnostics, sample, targets, tune
from scoremh.acceptance import Rule
from studies.acceptance.exactness import kernel_of
from studies.acceptance.narrow import Sampled
from studies.framework import Cell, Record, grid
from studies.learning import seeded

if TYPE_CHECKING:
    from studies.acceptance.cells import Config

MULTIPLES = (1, 4)  # of the step size that is tuned for Exact()
RULES: dict[str, Rule] = {
    "Exact()": Exact(),
    "LineIntegral()": LineIntegral(),
    'LineIntegral("simpson")': LineIntegral("simpson"),
    'LineIntegral("exact")': LineIntegral("exact"),
}


def _mixture(means: torch.Tensor, std: float) -> targets.GaussianMixture:
    modes, dimension = means.shape
    weights = torch.arange(1, modes + 1).double() / (modes * (modes + 1) / 2)
    return targets.GaussianMixture(weights, means, std**2 * torch.eye(dimension).double().expand(modes, -1, -1))


_PLACES = torch.linspace(-2, 2, 5).double()
ELSEWHERE: dict[str, Sampled] = {
    "25 modes": _mixture(torch.cartesian_prod(_PLACES, _PLACES), 0.3),
    "funnel": targets.Funnel(2, 1.0),
    "Student t, 3-d": targets.StudentT(5.0, [0.0, 0.0, 0.0]),
    "three modes, 10-d": _mixture(1.2 * torch.randn(3, 10, generator=seeded(10)).double(), 0.7),
}


class Elsewhere(Cell, kind="elsewhere"):
    """Whether the test of stationarity rejects a rule at a multiple of the tuned step, and its cost."""

    distribution: str
    rule: str
    multiple: int

    def measure(self, config: "Config", folder: Path) -> Record:
        law = ELSEWHERE[self.distribution]
        start = law.sample(config.tuned_chains, generator=seeded(2))
        tuned = tune(lambda h: kernel_of(law, MALA(h), Exact()), start, generator=seeded(3))
        kernel = kernel_of(law, MALA(self.multiple * tuned), RULES[self.rule])
        options = {"chains": config.elsewhere_chains, "steps": config.test_steps}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of chains that hardly move: the acceptance is in the record
            found = diagnostics.stationarity(kernel, law, **options, generator=seeded(5))
        n, steps = config.test_chains, config.test_steps
        chains = sample(kernel, law.sample(n, generator=seeded(2)), draws=steps, generator=seeded(4))
        counts = {"factors": chains.factors, "clipped": chains.clipped, "calls": (chains.score_calls - n) / (n * steps)}
        return counts | {
            "step_size": self.multiple * tuned,
            "p_value": found.p_value,
            "acceptance": chains.acceptance_rate,
        }


KINDS = (Elsewhere,)


def cells() -> list[Cell]:
    """Return the cells."""
    return grid(Elsewhere, distribution=ELSEWHERE, rule=RULES, multiple=MULTIPLES)
