"""What the tests of learned acceptances share: exact rules, proposals of one's own, small networks and short fits."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from scoremh import AcceptanceFit, Point, RandomWalk, Recipe, Target, fit_acceptance
from scoremh.networks import AcceptanceMLP, Antisymmetric, Free, Potential, PotentialMLP
from scoremh.types import Proposal
from tests.cases import GAUSSIAN, PROPOSALS, TARGETS, seeded

MIXTURE = TARGETS["mixture"]


NORMAL = Target(lambda x: -x)


def known(law: Any) -> Target:
    return Target(law.score, law.log_density, law.support)


class Rule(nn.Module):
    """The exact Metropolis or Barker acceptance of a law and a proposal, divided by M."""

    def __init__(self, law: Any, proposal: Proposal, balance: str, scale: float = 1.0) -> None:
        super().__init__()
        self.law, self.proposal, self.balance, self.scale = known(law), proposal, balance, scale

    def ratio(self, proposed: Tensor, current: Tensor) -> Tensor:
        x, y = (Point.at(z, self.law, frozenset({"score", "log_density"})) for z in (current, proposed))
        assert x.log_density is not None
        assert y.log_density is not None
        return y.log_density - x.log_density + self.proposal.log_q_ratio(x, y)

    def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
        ratio = self.ratio(proposed, current)
        return (logsigmoid(ratio) if self.balance == "barker" else ratio.clamp(max=0)) - math.log(self.scale)


class Laplace(Proposal):
    """A user's own proposal; nobody wrote its gradient."""

    needs: ClassVar[frozenset[Any]] = frozenset()

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Tensor:
        e = torch.empty(2, *at.x.shape, dtype=at.x.dtype).exponential_(generator=generator)
        return 0.9 * at.x + e[0] - e[1]

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        return -(to.x - 0.9 * given.x).abs().sum(1)


ALL: dict[str, Proposal] = PROPOSALS | {"laplace": Laplace()}


NETS: dict[str, Any] = {
    "free": lambda: Free(AcceptanceMLP(2, hidden=8, blocks=2, generator=seeded())),
    "antisymmetric": lambda: Antisymmetric(AcceptanceMLP(2, hidden=8, blocks=2, generator=seeded())),
    "potential": lambda: Potential(shaken(PotentialMLP(2, hidden=8, layers=2))),
}


def shaken(net: nn.Module) -> nn.Module:
    """Return a network none of whose weights is 0."""
    for i, weight in enumerate(net.parameters()):
        nn.init.normal_(weight, std=0.5, generator=seeded(i))
    return net


def made(form: str) -> Any:
    return NETS[form]().double()


class Counting:
    """A function that counts its calls and the rows it was called with."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls, self.rows = function, 0, 0

    def __call__(self, x: Tensor, *more: Tensor) -> Tensor:
        self.calls, self.rows = self.calls + 1, self.rows + len(x)
        value: Tensor = self.function(x, *more)
        return value


SHORT = Recipe(steps=60, batch=64, rate=4e-3, check_every=20)


X = GAUSSIAN.sample(500, generator=seeded())


def fitted(form: Any = "antisymmetric", proposal: Proposal | None = None, **options: Any) -> AcceptanceFit:
    all_options: Any = {"recipe": SHORT, "generator": seeded(3)} | options
    return fit_acceptance(GAUSSIAN, proposal or RandomWalk(1.0), X, form=form, **all_options)


@dataclass
class Own(Proposal):
    """A user's own proposal, x' = x / 2 + z, whose log density is spoiled."""

    spoil: Callable[[Tensor, Tensor], Tensor]
    needs: ClassVar[frozenset[Any]] = frozenset()

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Tensor:
        return 0.5 * at.x + torch.randn(at.x.shape, generator=generator, dtype=at.x.dtype)

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        return self.spoil(to.x, given.x)


def own(to: Tensor, given: Tensor) -> Tensor:
    return -(to - 0.5 * given).square().sum(1) / 2


@dataclass
class Box(Proposal):
    """A walk with steps in a box."""

    width: float
    needs: ClassVar[frozenset[Any]] = frozenset()

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Tensor:
        return at.x + self.width * (2 * torch.rand(at.x.shape, generator=generator, dtype=at.x.dtype) - 1)

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        inside = ((to.x - given.x).abs() <= self.width).all(1)
        return torch.where(inside, -to.x[0].numel() * math.log(2 * self.width), -math.inf).to(to.x)


class Kinked(Proposal):
    """A proposal whose density has no gradient where x' = x, on positive numbers only."""

    needs: ClassVar[frozenset[Any]] = frozenset()

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Tensor:
        return at.x * (0.5 * torch.randn(at.x.shape, generator=generator, dtype=at.x.dtype)).exp()

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        return -(to.x.log() - given.x.log()).square().sum(1).sqrt() - to.x.log().sum(1)
