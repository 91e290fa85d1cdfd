"""One list of all proposals, rules and targets. A class that is missing from it fails `test_contract.py`."""

import zlib
from typing import Any

import torch
from torch import Tensor, nn

from scoremh import (
    MALA,
    PCN,
    Always,
    Barker,
    Exact,
    Learned,
    LineIntegral,
    RandomWalk,
    ScaledMALA,
    StudentWalk,
    Taylor,
    ThroughNoise,
    networks,
    targets,
)
from scoremh.acceptance import Rule
from scoremh.types import Point, Proposal, Target, TargetLike


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def seeded_by(*case: object) -> torch.Generator:
    """Return a generator with a seed made of the name of a case."""
    return torch.Generator().manual_seed(zlib.crc32(repr(case).encode()))


def f64(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


COVARIANCE = f64([1.0, 0.6], [0.6, 2.0])

# Fitted to the targets in two dimensions below; `one(...)` gives the same for one dimension.
PROPOSALS: dict[str, Proposal] = {
    "rw": RandomWalk(0.9),
    "rw-diagonal": RandomWalk(0.8, covariance=f64(1.0, 2.0)),
    "rw-full": RandomWalk(0.7, covariance=COVARIANCE),
    "mala": MALA(0.2),
    "mala-diagonal": MALA(0.15, covariance=f64(1.0, 2.0)),
    "mala-full": MALA(0.15, covariance=COVARIANCE),
    "scaled-mala": ScaledMALA(0.3),
    "scaled-mala-diagonal": ScaledMALA(0.25, covariance=f64(1.0, 2.0)),
    "scaled-mala-full": ScaledMALA(0.25, covariance=COVARIANCE),
    "pcn": PCN(0.5),
    "pcn-scaled": PCN(0.4, mean=f64(0.3, -0.2), scale=1.5),
    "pcn-full": PCN(0.6, covariance=COVARIANCE),
    "pcn-independent": PCN(1.0),
    "student": StudentWalk(0.7),
    "student-full": StudentWalk(0.6, 3, covariance=COVARIANCE),
    "barker": Barker(0.25),
    "barker-diagonal": Barker(0.2, covariance=f64(1.0, 2.0)),
    "barker-full": Barker(0.2, covariance=COVARIANCE),
}
ONE_DIMENSION: dict[str, Proposal] = {
    "rw": RandomWalk(0.9),
    "mala": MALA(0.1),
    "pcn": PCN(0.5, mean=f64(0.4)),
    "student": StudentWalk(0.7, 1),
    "barker": Barker(0.15),
}

# Rules whose D is exact on a Gaussian: the score is linear along a line.
EXACT_ON_GAUSSIAN: dict[str, Rule] = {
    "exact": Exact(),
    "exact-barker": Exact(balance="barker"),
    "trapezoid": LineIntegral("trapezoid"),
    "trapezoid-3": LineIntegral("trapezoid", nodes=3),
    "simpson": LineIntegral("simpson"),
    "simpson-barker": LineIntegral("simpson", balance="barker"),
    "simpson-3": LineIntegral("simpson", nodes=3),
    "lobatto": LineIntegral(),
    "lobatto-barker": LineIntegral(balance="barker"),
    "gauss": LineIntegral("gauss"),
    "gauss-1": LineIntegral("gauss", nodes=1),
    "exact-integral": LineIntegral("exact"),
    "exact-integral-barker": LineIntegral("exact", balance="barker"),
    "taylor-1-averaged": Taylor(1, average=True),
    "taylor-2": Taylor(2),
    "taylor-2-averaged": Taylor(2, average=True),
}


class TowardsZero(nn.Module):
    """Half of the log ratio of a standard normal under a symmetric proposal, for events of any shape and dtype."""

    def logit(self, proposed: Tensor, current: Tensor) -> Tensor:
        return (current.flatten(1).square().sum(1) - proposed.flatten(1).square().sum(1)) / 4

    def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
        return nn.functional.logsigmoid(2 * self.logit(proposed, current))


class Normal(nn.Module):
    """The log density of a standard normal."""

    def forward(self, x: Tensor) -> Tensor:
        return -x.flatten(1).square().sum(1) / 2


LEARNED: dict[str, Rule] = {
    "learned-free": Learned(networks.Free(TowardsZero())),
    "learned-free-metropolis": Learned(networks.Free(TowardsZero()), "metropolis"),
    "learned-antisymmetric": Learned(networks.Antisymmetric(TowardsZero())),
    "learned-potential": Learned(networks.Potential(Normal()), "metropolis"),
}
RANDOMIZED = {
    "exact-integral",
    "exact-integral-barker",
}  # they draw random numbers of their own, chain after chain
THROUGH_NOISE: dict[str, Rule] = {"through-noise": ThroughNoise()}  # for targets that know noise levels alone
ONE_SIDED: dict[str, Rule] = {"taylor-1": Taylor(1)}
RULES: dict[str, Rule] = EXACT_ON_GAUSSIAN | ONE_SIDED | LEARNED | {"always": Always()}
SYMMETRIC = [name for name in EXACT_ON_GAUSSIAN if name != "taylor-2"]

GAUSSIAN = targets.Gaussian(f64(0.5, -0.3), f64([1.0, 0.5], [0.5, 1.5]))
TARGETS: dict[str, Any] = {
    "gaussian": GAUSSIAN,
    "mixture": targets.GaussianMixture(
        f64(0.6, 0.4), f64([1.2, 1.0], [-1.0, -1.4]), torch.stack([torch.eye(2).double(), COVARIANCE])
    ),
    "student": targets.StudentT(4.0, f64(0.2, 0.0)),
    "banana": targets.Banana(torch.tensor(0.5, dtype=torch.float64)),
    "funnel": targets.Funnel(2, torch.tensor(1.0, dtype=torch.float64)),
    "gev-frechet": targets.GeneralizedExtremeValue(f64(0.3)),
    "gev-gumbel": targets.GeneralizedExtremeValue(f64(0.0)),
    "gev-weibull": targets.GeneralizedExtremeValue(f64(-0.3)),
}


COVERING = ("rw", "mala", "pcn")  # a walk, a drift and a contraction: proposals with which every rule is tried


def pair(proposal: Proposal, target: TargetLike, rule: Rule, x: Tensor, seed: int = 1) -> tuple[Point, Point, Target]:
    """Return current points, candidates of the proposal, and the target, with all that both need."""
    known = Target(target.score, target.log_density, target.support)
    needs = proposal.needs | rule.needs
    current = Point.at(x, known, needs)
    candidates = proposal.sample(current, generator=torch.Generator().manual_seed(seed))
    return current, Point.at(candidates, known, needs), known
