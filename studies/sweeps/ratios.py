"""How far the log ratios of acceptance rules are from the true ones, on the distribution of Moons itself."""

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from scoremh import MALA, DegenerateRuleWarning, Exact, RandomWalk, targets
from scoremh.acceptance import BalancedRule
from scoremh.types import Need, Point, Proposal, Target
from studies.framework import Cell, Record, Records, grid
from studies.framework.tables import mean, table
from studies.sweeps.cells import LABELS, RULES, Sweep
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


@dataclass(frozen=True)
class Ratio(Cell):
    """A rule's log ratio and the true one, with the true score, on candidates from exact draws.

    The noise of both proposals has the variance 2 h.
    """

    kind: ClassVar[str] = "ratio"
    rule: str
    kind_: str
    step: float
    seed: int

    @torch.inference_mode()
    def measure(self, config: Sweep, folder: Path) -> Record:
        """Return their correlation, and the mean error of the acceptance probability."""
        exact, rule = moons(), RULES[self.rule].rule
        proposal: Proposal = MALA(self.step) if self.kind_ == "mala" else RandomWalk(math.sqrt(2 * self.step))
        known = Target(exact.score, exact.log_density)
        current = Point.at(exact.sample(POINTS, generator=seeded(2, self.seed)), known, NEEDS)
        proposed = Point.at(proposal.sample(current, generator=seeded(4, self.seed)), known, NEEDS)
        assert isinstance(rule, BalancedRule)
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


def numbers(records: Records) -> dict[str, Any]:
    """Return what the template needs: the table, and the least and the largest number over step sizes."""

    def over_seeds(key: str, rule: str, kind: str, step: float) -> float:
        return mean(records.values("ratio", key, rule=rule, kind_=kind, step=step))

    rows = []
    for rule in records.settings["rules"]:
        places = {f"{name}, h = {h:g}": (rule, kind, h) for kind, name in PROPOSALS.items() for h in STEP_SIZES}
        texts = {
            head: f"{over_seeds('correlation', *place):.3f}, {over_seeds('error', *place):.3f}"
            for head, place in places.items()
        }
        rows.append({"rule": LABELS[rule], **texts})

    def span(key: str, rule: str, kind: str) -> str:
        values = [over_seeds(key, rule, kind, step) for step in STEP_SIZES]
        return f"{min(values):.2g} to {max(values):.2g}"

    return {"ratios": table(rows), "points": POINTS, "span": span}
