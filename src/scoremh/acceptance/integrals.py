"""Rules that expand log p around the points (Taylor), or integrate its score between them (line integral)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.algebra import (
    Quadrature,
    gauss_legendre,
    inner,
    newton_cotes,
    scores_along,
    weighted_sum,
)
from scoremh._shared.detailed_balance import log_q_ratio
from scoremh.acceptance import exact_decision
from scoremh.acceptance.ratio import RatioRule
from scoremh.acceptance.residual import Residual, Slopes
from scoremh.acceptance.romberg import UNIT, Romberg
from scoremh.coordinates import Sinh
from scoremh.types import Balance, Middle, Need, Point, Proposal, Tally, Target

Rule = Literal["trapezoid", "simpson", "gauss", "adaptive", "exact"]
BEND = "Pass two numbers, or two tuples with one for every coordinate; `fit.middle` for a score with heavy tails."
DEFAULT_NODES: Mapping[Rule, int] = {"trapezoid": 0, "simpson": 1, "gauss": 3, "adaptive": 63, "exact": 1}


def _end_score(point: Point) -> Tensor:
    assert point.score is not None  # the kernel fills what `needs` names
    return point.score


def _finite(change: Tensor) -> Tensor:
    """Return NaN for an infinite integral: only a density, never a score, can tell that p(x') is 0."""
    return change.masked_fill(change.isinf(), math.nan)


def _check_bend(bend: Middle) -> None:
    """Refuse a bend that is not a pair of numbers or tuples, or that has no width."""
    if not isinstance(bend, tuple) or len(bend) != 2:
        raise ValueError(checks.message("bend to be a pair (m, w)", repr(bend), BEND))
    for width in bend[1] if isinstance(bend[1], tuple) else (bend[1],):
        checks.positive(width, "w of bend")


@dataclass(frozen=True, repr=False)
class Taylor(RatioRule):
    """Expand log p around the current point, or (average) around both: the paper's four rules of Appendix A.

    Args:
        order: 1, or 2 with Jacobian-vector products of the score.
        average: Average the expansions around x and x'. `Taylor(1, average=True)` is the trapezoid rule.
        balance: "metropolis" or "barker".
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"score"})
    order: Literal[1, 2] = 1
    average: bool = False
    balance: Balance = "metropolis"

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        checks.one_of(self.order, (1, 2), "order")
        checks.one_of(self.average, (True, False), "average")
        checks.one_of(self.balance, get_args(Balance), "balance")

    def log_density_change(self, current: Point, proposed: Point, *, target: Target) -> Float[Tensor, " chain"]:
        """Return the truncated expansion of log p(proposed) - log p(current)."""
        v, here = proposed.x - current.x, _end_score(current)
        slope = (here + _end_score(proposed)) / 2 if self.average else here
        if self.order == 1:
            return _finite(inner(slope, v))
        assert target.score is not None
        if not self.average:
            curvature = torch.func.jvp(target.score, (current.x,), (v,))[1]
            return _finite(inner(slope + curvature / 2, v))
        ends, both = torch.cat([current.x, proposed.x]), torch.cat([v, v])
        at_current, at_proposed = torch.func.jvp(target.score, (ends,), (both,))[1].chunk(2)
        return _finite(inner(slope + (at_current - at_proposed) / 4, v))


@dataclass(frozen=True, repr=False)
class LineIntegral(RatioRule):
    """Integrate the score along a line from x to x', straight or bent.

    Every path has the same integral, but not the same quadrature: a step far into a heavy tail crosses all that matters
    within a thousandth of its length, and nodes on a straight line miss it. With `bend` they lie evenly in
    asinh((x - m) / w), coordinate by coordinate, and do not.

    `rule="adaptive"` starts with Simpson's rule and its distance to the trapezoid as an error bound, and doubles the
    nodes (Romberg) for chains whose uniform number lies within the bound: for the others no better integral can change
    the decision. A bound may be falsely small where a move crosses narrow structure, so there are at least half as many
    intervals as the move is long in units of the score's own scale, |v| |s| / sqrt(d). Whatever the bounds are worth,
    the rule is a Metropolis rule for an antisymmetric ratio: the last estimate, clipped to the bounds before it. While
    few chains are open, the nodes of two doublings are asked for at once, which saves time and changes no decision.

    `rule="exact"` decides for the true integral: by Simpson's rule where its error cannot matter, else by two nodes
    more and a Poisson product over what they miss (`acceptance.exact_decision`). It draws random numbers of its own.

    Args:
        rule: "trapezoid", "simpson", "gauss", "adaptive" or "exact".
        nodes: Inner nodes: 0 or more for the trapezoid (default 0), an odd number for Simpson (1), 1 or more for gauss
            (3), the most that may be used, 2^k - 1, for adaptive (63).
        tolerance: The error of D at which "adaptive" stops where it is asked for a ratio and not for a decision.
        balance: "metropolis" or "barker".
        bend: m and w, for heavy tails: numbers, or tuples over the flattened event. `ScoreFit.middle` has them for a
            score that was fitted with `heavy_tails`.
    """

    rule: Rule = "simpson"
    nodes: int | None = None
    tolerance: float = 1e-4
    balance: Balance = "metropolis"
    bend: Middle | None = None

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        checks.one_of(self.rule, get_args(Rule), "rule")
        checks.one_of(self.balance, get_args(Balance), "balance")
        checks.positive(self.tolerance, "tolerance")
        checks.count(self.inner_nodes, "nodes", at_least=0 if self.rule == "trapezoid" else 1)
        if self.rule == "simpson" and self.inner_nodes % 2 == 0:
            raise ValueError(checks.message("an odd number of nodes for simpson", self.nodes, "Use 1, 3, 5, ..."))
        if self.rule == "exact" and self.inner_nodes != 1:
            raise ValueError(checks.message("no nodes for exact", self.nodes, "Leave nodes out: it draws its own."))
        if self.rule == "adaptive" and self.inner_nodes & (self.inner_nodes + 1):
            raise ValueError(
                checks.message("nodes of 2^k - 1 for adaptive", self.nodes, "Use 1, 3, 7, 15, 31, 63, ...")
            )
        if self.bend is not None:
            _check_bend(self.bend)

    @property
    def inner_nodes(self) -> int:
        """How many nodes lie strictly between x and x'."""
        return DEFAULT_NODES[self.rule] if self.nodes is None else self.nodes

    @property
    def needs(self) -> frozenset[Need]:
        """The score at both ends; for gauss, between them only."""
        return frozenset({"inner_score"}) if self.rule == "gauss" else frozenset({"score"})

    @cached_property
    def quadrature(self) -> Quadrature | None:
        """Nodes and weights on [0, 1]; None for adaptive, which has none fixed."""
        if self.rule == "adaptive":
            return None
        if self.rule == "gauss":
            return gauss_legendre(self.inner_nodes)
        return newton_cotes(self.inner_nodes, simpson=self.rule in ("simpson", "exact"))

    def log_density_change(self, current: Point, proposed: Point, *, target: Target) -> Float[Tensor, " chain"]:
        """Return the integral of the score from current to proposed."""
        current, proposed, target = self._bent(current, proposed, target)
        if self.quadrature is None:
            return self._romberg(current, proposed, target)
        ends, nodes, weights = self.quadrature
        v = proposed.x - current.x
        total = torch.zeros_like(v)
        if ends:
            total = ends * (_end_score(current) + _end_score(proposed))
        if nodes:
            assert target.score is not None
            total = total + weighted_sum(weights, scores_along(target.score, current.x, v, nodes))
        return _finite(inner(total, v))

    def log_accept(
        self, current: Point, proposed: Point, *, target: Target, proposal: Proposal
    ) -> Float[Tensor, " chain"]:
        """Return log a; the exact rule draws it."""
        if self.rule != "exact":
            return super().log_accept(current, proposed, target=target, proposal=proposal)
        log_uniform = rng.log_uniform((len(current.x),), current.x, None)
        return self.log_accept_against(current, proposed, log_uniform, target=target, proposal=proposal)

    def log_accept_against(
        self,
        current: Point,
        proposed: Point,
        log_uniform: Tensor,
        *,
        target: Target,
        proposal: Proposal,
        generator: torch.Generator | None = None,
        tally: Tally | None = None,
    ) -> Float[Tensor, " chain"]:
        """Return log a, as exactly as the comparison with these uniforms needs it."""
        if self.rule == "exact":
            log_q = log_q_ratio(proposal, current, proposed)
            residual = Residual.between(*self._bent(current, proposed, target), generator)
            log_ratio = _finite(residual.slopes.integral) + log_q
            return exact_decision.log_accept(residual, log_ratio, self.log_balanced, log_uniform, tally)
        if self.quadrature is not None:
            return self.log_accept(current, proposed, target=target, proposal=proposal)
        log_q = log_q_ratio(proposal, current, proposed)
        ends = self._bent(current, proposed, target)
        return self.log_balanced(self._romberg(*ends, self.ratio_threshold(log_uniform) - log_q) + log_q)

    def _bent(self, current: Point, proposed: Point, target: Target) -> tuple[Point, Point, Target]:
        """Return both points and the score in coordinates u, x = m + w sinh(u), where there is a bend."""
        if self.bend is None:
            return current, proposed, target
        score, sinh = target.score, self._sinh(current.x)
        assert score is not None

        def bent(point: Point) -> Point:
            u = sinh.inverse(point.x)
            return Point(u, None if point.score is None else sinh.pull_gradient(point.score, u))

        def bent_score(u: Tensor) -> Tensor:
            return sinh.pull_gradient(score(sinh(u)), u)

        return bent(current), bent(proposed), target._replace(score=bent_score)

    def _sinh(self, x: Tensor) -> Sinh:
        """Return the coordinates of the bend for events of this shape."""
        assert self.bend is not None
        event = x.shape[1:]
        for part in self.bend:
            if isinstance(part, tuple) and len(part) != event.numel():
                got = f"{len(part)} for events of shape {tuple(event)}"
                raise ValueError(checks.message(f"{event.numel()} numbers in m and in w of bend", got, BEND))
        return Sinh(*(x.new_tensor(part).expand(event.numel()).reshape(event) for part in self.bend))

    def _romberg(
        self, current: Point, proposed: Point, target: Target, goal: Tensor | None = None
    ) -> Float[Tensor, " chain"]:
        """Return Simpson's integral, refined where it leaves open whether it exceeds the goal; or to the tolerance."""
        assert target.score is not None
        x, v, here, there = current.x, proposed.x - current.x, _end_score(current), _end_score(proposed)
        slopes = Slopes.along(v, here, scores_along(target.score, x, v, (0.5,))[0], there)
        change, excess = slopes.integral, slopes.middle - (slopes.first + slopes.last) / 2
        gap = torch.full_like(change, self.tolerance) if goal is None else goal - change
        known = torch.stack((excess, gap / UNIT, slopes.length.square()))
        romberg = Romberg(target.score, self.inner_nodes, deciding=goal is not None)
        rows, more = romberg.corrections((x, v, here + there), known)
        return _finite(change.index_add(0, rows, more, alpha=UNIT))
