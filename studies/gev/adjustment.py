"""The paper's heavy tails, first figure: does an accept step matter more as the tail of GEV(0, 1, xi) becomes heavier?

ULA and MALA with the true score and density, and a random walk with Student's steps, which the paper does not have.
Chains start from N(0, 1), which tests how they mix, or from the distribution itself, which tests what they leave
unchanged: an unadjusted chain drifts away from it, an adjusted one can not.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from scoremh import MALA, Always, Exact, StudentWalk, metropolis_hastings, sample
from scoremh.targets import GeneralizedExtremeValue
from studies import plots
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.gev import common
from studies.gev.common import METRICS, seeded

STARTS = {"normal": "N(0, 1)", "exact": "the distribution"}
STEPPED = ("plain ULA", "ULA", "MALA")  # samplers with a step size
WALK = "Student walk"
FAR = 1 - 1e-6  # a chain beyond this quantile has run away: a millionth of the distribution is there
CLEAR_TREND = 0.5  # a rank correlation above is called a trend


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...]  # random seeds of the chains
    xis: tuple[float, ...] = (-0.5, -0.3, -0.1, 0.0, 0.1, 0.3, 0.5, 0.7, 0.9)  # shapes of the distribution
    # step sizes h of ULA and MALA. The paper writes "step .1", which is h or, as epsilon, an h of .005
    step_sizes: tuple[float, ...] = (0.1, 0.005)
    chains: int = 5000  # chains from each start; the last draw of each is compared
    # numbers of steps after which they are looked at, the first one dividing the others
    looks: tuple[int, ...] = (100, 600)
    scale: float = 2.0  # scale of a Student walk's steps
    freedom: int = 1  # degrees of freedom of its steps


PRESETS = {
    "quick": Config(seeds=(11,), xis=(-0.5, 0.0, 0.5, 0.9), chains=2000, looks=(100, 300)),
    "paper": Config(seeds=(1, 2, 3)),
}


class Floor(Cell, kind="floor"):
    """Exact draws."""

    xi: float
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        return common.errors(common.exact_draws(config.chains, self.xi, seeded(self.seed, self.xi, 1)), self.xi)


class Chains(Cell, kind="chains"):
    """The chains of a sampler from a start."""

    sampler: str
    start: str
    xi: float
    step: float | Literal["none"]
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        begin = {"normal": common.normal_starts, "exact": common.exact_draws}[self.start]
        initial = begin(config.chains, self.xi, seeded(self.seed, self.xi, 2))
        generator, steps = seeded(self.seed, self.xi, 3), config.looks[-1]
        if self.sampler == "plain ULA":
            return plain_ula(initial, self.xi, float(self.step), steps, generator)
        proposal = StudentWalk(config.scale, config.freedom) if self.step == "none" else MALA(self.step)
        rule = Always() if self.sampler == "ULA" else Exact()
        kernel = metropolis_hastings(GeneralizedExtremeValue(self.xi), proposal, rule)
        thin = config.looks[0]
        chains = sample(kernel, initial, draws=steps // thin, thin=thin, generator=generator)
        found: Record = {}
        for look in config.looks[:-1]:
            there = common.errors(chains.draws[:, look // thin - 1], self.xi)
            found |= {f"{key} at {look}": value for key, value in there.items()}
        left = chains.outside + chains.nonfinite
        return found | {
            **common.errors(chains.last, self.xi),
            "acceptance": chains.acceptance_rate,
            "outside": float(left.sum()) / (len(initial) * steps),
            "met the end": float((left.sum(1) > 0).double().mean()),
            "far": share_far(chains.last, self.xi),
        }


def share_far(draws: Tensor, xi: float) -> float:
    """Return the share of chains that ran away, to where a millionth of the distribution is on either side."""
    low, high = (float(common.quantile(share, xi)) for share in (1 - FAR, FAR))
    return float(((draws < low) | (draws > high)).double().mean())


def plain_ula(initial: Tensor, xi: float, h: float, steps: int, generator: torch.Generator) -> Record:
    """Run ULA as it is written, `x <- x + h s(x) + sqrt(2h) z`, whatever the support.

    Outside the support the score is not a number, nor is the chain from there on.

    Args:
        initial: Starts of the chains.
        xi: Shape of the distribution.
        h: Step size.
        steps: Number of steps of a chain.
        generator: Random number generator.

    Returns:
        The share of chains that were lost so, and the errors of the others.
    """
    target, x = GeneralizedExtremeValue(xi), initial
    for _ in range(steps):
        x = x + h * target.score(x) + math.sqrt(2 * h) * torch.randn(x.shape, generator=generator)
    left = x[x.isfinite()[:, 0] & target.support(x.nan_to_num(nan=0.0))]
    return common.errors(left, xi) | {"lost": 1 - len(left) / len(x), "far": share_far(left, xi) if len(left) else 0.0}


def stages(config: Config) -> list[list[Cell]]:
    """Return chains by sampler, start, xi, step and seed, and the floor of exact draws."""
    found: list[Cell] = []
    for xi, seed in product(config.xis, config.seeds):
        found.append(Floor(xi, seed))
        for start in STARTS:
            found.append(Chains(WALK, start, xi, "none", seed))
            found += grid(Chains, sampler=STEPPED, start=[start], xi=[xi], step=config.step_sizes, seed=[seed])
    return [found]


def rows(records: Records, start: str) -> dict[str, list[Record]]:
    """Return the records of every line by its name."""
    lines = {"exact draws": list(records.kinds["floor"])}
    for h, sampler in product(records.settings["step_sizes"], STEPPED):
        lines[f"{sampler}, h = {h:g}"] = records.where("chains", sampler=sampler, start=start, step=h)
    return lines | {WALK: records.where("chains", sampler=WALK, start=start)}


def samplers_with_steps(step_sizes: Sequence[float]) -> list[tuple[str, float | Literal["none"]]]:
    """Return the samplers with an accept step or the support respected, each with its step sizes."""
    return [*product(("ULA", "MALA"), step_sizes), (WALK, "none")]


def excess(records: Records, start: str, h: float, key: str) -> list[tuple[float, float]]:
    """Return by how much ULA's error exceeds MALA's, for every xi: the mean over seeds and its standard error."""
    pairs = []
    for xi in records.settings["xis"]:
        place = {"start": start, "xi": xi, "step": h}
        ula, mala = (map(abs, records.values("chains", key, sampler=s, **place)) for s in ("ULA", "MALA"))
        gaps = [a - b for a, b in zip(ula, mala, strict=True)]
        error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
        pairs.append((statistics.mean(gaps), error))
    return pairs


def comparisons(records: Records) -> list[Record]:
    """Return for every start, step and metric whether what ULA loses against MALA grows with xi."""
    found = []
    for start, h, key in product(STARTS, records.settings["step_sizes"], METRICS):
        gaps = excess(records, start, h, key)
        slope, (gap, error) = common.trend(records.settings["xis"], [gap for gap, _ in gaps]), gaps[-1]
        more = slope > CLEAR_TREND and gap > 2 * error
        found.append({"start": start, "h": h, "metric": key, "trend": slope, "gap": gap, "error": error, "more": more})
    return found


def matters_more(records: Records) -> dict[str, bool]:
    """Return for every start, step and metric whether the accept step matters more with a heavier tail."""
    return {f"{one['metric']}, {one['start']}, h = {one['h']:g}": one["more"] for one in comparisons(records)}


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw the errors over xi, a panel for every metric and start."""
    panels: dict[str, dict[str, plots.Curve]] = {}
    for start, key in product(STARTS, [key for key in METRICS if key != "q99"]):
        lines = common.curves(rows(records, start), records.settings["xis"], key)
        panels[f"{METRICS[key]}, from {STARTS[start]}"] = lines
    title = "GEV(0, 1, xi): with and without an accept step, beside exact draws"
    families = {
        name: (name.partition(", h")[0], name.partition(", h")[2]) for lines in panels.values() for name in lines
    }
    common.draw(panels, docs / "gev-adjustment.png", columns=3, title=title, families=families)


STUDY = Study(
    "gev-adjustment",
    "heavy tails, first figure: does an accept step matter more as the tail of GEV(0, 1, xi) becomes heavier?",
    PRESETS,
    stages,
    (Chains, Floor),
    picture,
    vars(common) | globals(),
    {"matters_more": Claim("the accept step matters more as the tail becomes heavier", matters_more)},
)
