"""Rules with a ratio r, what they make of it, and the two that need no score."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from scoremh._shared import checks
from scoremh._shared.detailed_balance import log_q_ratio
from scoremh.types import Balance, Need, Point, Proposal, Target


class BalancedRule(ABC):
    """A rule that estimates the ratio r, in `log_ratio`."""

    balance: Balance | Literal["direct"]

    def __repr__(self) -> str:
        """Show what differs from the defaults."""
        return checks.brief(self)

    @abstractmethod
    def log_ratio(
        self, current: Point, proposed: Point, *, target: Target, proposal: Proposal
    ) -> Float[Tensor, " chain"]:
        """Return log r(proposed, current)."""

    def log_accept(
        self, current: Point, proposed: Point, *, target: Target, proposal: Proposal
    ) -> Float[Tensor, " chain"]:
        """Return log min(1, r), or log r / (1 + r) under Barker's balance."""
        return self.log_balanced(self.log_ratio(current, proposed, target=target, proposal=proposal))

    def log_balanced(self, log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return log min(1, r), or log r / (1 + r), from log r."""
        # r = inf would be accepted, but is never a fact about p: it is an overflow somewhere, so it says NaN
        log_ratio = log_ratio.masked_fill(log_ratio == math.inf, math.nan)
        return log_ratio.clamp(max=0) if self.balance == "metropolis" else logsigmoid(log_ratio)

    def ratio_threshold(self, log_uniform: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return what log r has to exceed to be accepted: log u by Metropolis, logit u by Barker."""
        return log_uniform if self.balance == "metropolis" else log_uniform - (-log_uniform.expm1()).log()


class RatioRule(BalancedRule):
    """A rule that estimates D alone: a subclass says how, in `log_density_change`."""

    @abstractmethod
    def log_density_change(self, current: Point, proposed: Point, *, target: Target) -> Float[Tensor, " chain"]:
        """Return D, an estimate of log p(proposed) - log p(current)."""

    def log_ratio(
        self, current: Point, proposed: Point, *, target: Target, proposal: Proposal
    ) -> Float[Tensor, " chain"]:
        """Return log r(proposed, current)."""
        return self.log_density_change(current, proposed, target=target) + log_q_ratio(proposal, current, proposed)


@dataclass(frozen=True, repr=False)
class Exact(RatioRule):
    """Use the target's log density: ordinary Metropolis-Hastings."""

    needs: ClassVar[frozenset[Need]] = frozenset({"log_density"})
    balance: Balance = "metropolis"

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        checks.one_of(self.balance, get_args(Balance), "balance")

    def log_density_change(self, current: Point, proposed: Point, *, target: Target) -> Float[Tensor, " chain"]:
        """Return log p(proposed) - log p(current)."""
        assert current.log_density is not None
        assert proposed.log_density is not None
        return proposed.log_density - current.log_density


@dataclass(frozen=True)
class Always:
    """Accept every candidate: with `MALA` this is the unadjusted Langevin algorithm, biased at any step size."""

    needs: ClassVar[frozenset[Need]] = frozenset()

    def log_accept(
        self, current: Point, proposed: Point, *, target: Target, proposal: Proposal
    ) -> Float[Tensor, " chain"]:
        """Return 0."""
        return proposed.x.new_zeros(len(proposed.x))
