"""How far the log ratios of acceptance rules are from the true ones, on the distribution of Moons itself."""

import math
import warnings
from pathlib import Path

import torch

from scoremh import MALA, DegenerateRuleWarning, Exact, RandomWalk, targets
from scoremh.acceptance import Rule
from scoremh.types import Need, Point, Proposal, Target
from studies.framework import Cell, Record, Records, grid
from studies.framework.tables import mean
from studies.sweeps.cells import RULES, Sweep
from studies.table1.problem import seeded

COMPONENTS, STD = 200, 0.1  # normals along each moon, and their standard deviation
STEP_SIZES = (0.0025, 0.01, 0.04)  # of MALA on Moons themselves; a random walk with the same noise
POINTS = 10_000
NEEDS: frozenset[Need] = frozenset({"score", "log_density"})
PROPOSALS = {"mala": "MALA", "rw": "random walk"}


def moons() -> targets.GaussianMixture:
    """Return the distribution of scikit-learn's Moons with its density: normals close together on two half circles."""
    angle = (torch.arange(COMPONENTS) + 0.5) * math.pi / COMPONENTS
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], 1)
    covariances = (STD**2 * torch.eye(2)).expand(2 * COMPONENTS, 2, 2)
    weights = torch.full((2 * COMPONENTS,), 0.5 / COMPONENTS)
    return targets.GaussianMixture(weights, torch.cat([upper, lower]), covariances)


class Ratio(Cell, kind="ratio"):
    """A rule's log ratio and the true one, with the true score, on candidates from exact draws.

    The noise of both proposals has the variance 2 h.
    """

    rule: str
    kind_: str
    step: float
    seed: int

    @torch.inference_mode()
    def measure(self, config: Sweep, folder: Path) -> Record:
        exact, rule = moons(), RULES[self.rule].rule
        proposal: Proposal = MALA(self.step) if self.kind_ == "mala" else RandomWalk(math.sqrt(2 * self.step))
        known = Target(exact.score, exact.log_density)
        current = Point.at(exact.sample(POINTS, generator=seeded(2, self.seed)), known, NEEDS)
        proposed = Point.at(proposal.sample(current, generator=seeded(4, self.seed)), known, NEEDS)
        assert isinstance(rule, Rule)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegenerateRuleWarning)
            found, true = (
                one.log_ratio(current, proposed, target=known, proposal=proposal).double() for one in (rule, Exact())
            )
        accepted = [one.clamp(max=0).exp() for one in (found, true)]
        return {
            "correlation": float(torch.corrcoef(torch.stack([found, true]))[0, 1]),
            "error": float((accepted[0] - accepted[1]).abs().mean()),
            "acceptance": float(accepted[1].mean()),
        }


def cells(config: Sweep) -> list[Cell]:
    """Return the comparisons of all rules of a sweep."""
    return grid(Ratio, seed=config.seeds, rule=config.rules, kind_=PROPOSALS, step=STEP_SIZES)


def ratio(records: Records, key: str, rule: str, proposal: str, step: float) -> float:
    """Return the correlation or the error of a rule, a mean over seeds."""
    return mean(records.values("ratio", key, rule=rule, kind_=proposal, step=step))


def span(records: Records, key: str, rule: str, proposal: str) -> str:
    """Return the least and the largest of it over step sizes."""
    values = [ratio(records, key, rule, proposal, step) for step in STEP_SIZES]
    return f"{min(values):.2g} to {max(values):.2g}"
