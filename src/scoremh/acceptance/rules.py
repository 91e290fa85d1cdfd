r"""Acceptance rules a(x', x): exact, always, expanded from the score, integrated from it, or learned.

With `v = x' - x`, every rule except `Always` estimates

    log r(x', x) = D + log q(x | x') - log q(x' | x),    D = log p(x') - log p(x) = int_0^1 s(x + t v) . v dt

and accepts with `min(1, r)` (Metropolis) or `r / (1 + r)` (Barker). Metropolis accepts more of the same moves (Peskun).

| rule | D | score calls beside s(x), s(x') | error in the step eps |
|---|---|---|---|
| `Exact()` | log p(x') - log p(x) | 0 | 0 |
| `Taylor(1)` | s(x).v | 0 | eps^2, one-sided |
| `Taylor(2)` | s(x).v + v.J(x)v / 2 | one JVP | eps^3, one-sided |
| `Taylor(1, average=True)` | (s(x) + s(x')).v / 2 | 0 | eps^3 |
| `Taylor(2, average=True)` | the same + v.(J(x) - J(x'))v / 4 | two JVPs | eps^3, twice the constant |
| `LineIntegral("trapezoid")` | as `Taylor(1, average=True)` | 0 | eps^3 |
| `LineIntegral("simpson")` | (s(x) + 4 s(x + v/2) + s(x')).v / 6 | 1 | eps^5 |
| `LineIntegral("gauss", nodes=k)` | Gauss-Legendre | k, in one call | eps^(2k+1) |
| `LineIntegral("adaptive")` | Romberg, refined where the decision could flip | 1 and a few | as far as it matters |
| `LineIntegral("exact")` | Simpson, times a Poisson product over its error (`acceptance.exact`) | 1 and a few | 0 |
| `ThroughNoise()` | log p along the noise axis | scores and divergences at 8 noise levels | that of the scores |
| `Learned(fit)` | a network gives a, or r, or log p (`fit_acceptance`) | 0 | that of its training |

The one-sided rules are not antisymmetric in (x, x'): r(x', x) r(x, x') is not 1, and no pair is balanced.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from scoremh import diffusion
from scoremh._shared import checks, rng
from scoremh._shared.algebra import Quadrature, gauss_legendre, inner, newton_cotes, scores_along, weighted_sum
from scoremh._shared.files import fingerprint
from scoremh.acceptance import exact
from scoremh.acceptance.exact import Residual, Slopes, Tally
from scoremh.coordinates import Sinh
from scoremh.networks import Form
from scoremh.training import Fit
from scoremh.types import Balance, Middle, Need, Point, Proposal, ScoreFn, Target


class Decision(NamedTuple):
    """What a rule says about the candidates of one transition."""

    log_accept: Float[Tensor, " chain"]
    """log a(x', x), as exactly as the comparison with log u needs it."""
    factors: int = 0
    """Number of random factors that were drawn, over all chains."""
    clipped: int = 0
    """Number of factors that were clipped to their bound, which changes the ratio."""


class Rule(ABC):
    """An acceptance rule a(x', x). Most subclasses define `log_density_change`, an estimate of D, and nothing else."""

    balance: Balance | Literal["direct"] | None = "metropolis"
    """How a follows from r: "metropolis" or "barker"; "direct" if a is learned, None if there is no ratio."""
    integrates: ClassVar[bool] = False
    """Whether D is estimated from the score: of a product, the rule then takes the parts without a log density only."""

    def __repr__(self) -> str:
        """Show the parameters that differ from their defaults."""
        return checks.brief(self)

    @property
    @abstractmethod
    def needs(self) -> frozenset[Need]:
        """What has to be known of p at, or between, the points."""

    @property
    def antisymmetric(self) -> bool:
        """Whether `log_ratio` is deterministic and antisymmetric: such moves can be judged in groups."""
        return True

    @property
    def straight(self) -> bool:
        """Whether the score is integrated on a straight line, whose nodes miss what a very long step crosses."""
        return False

    @property
    def trapezoid(self) -> bool:
        """Whether D is the trapezoid rule with one interval, which cancels the terms of MALA's proposal ratio."""
        return False

    def informed(self, target: Target) -> Target:
        """Return the target with what the rule itself knows of p."""
        return target

    def check(self, target: Target, proposal: Proposal) -> None:
        """Raise an error if the rule was not made for this target or proposal."""
        return

    def log_density_change(self, current: Point, proposed: Point, *, target: Target) -> Float[Tensor, " chain"]:
        """Return D, an estimate of log p(proposed) - log p(current)."""
        fix = "Define log_density_change, or log_accept for a rule without a ratio."
        raise NotImplementedError(checks.message("a rule with a ratio", checks.named(self), fix))

    def known_log_ratio(
        self, current: Point, proposed: Point, *, target: Target, proposal: Proposal
    ) -> Float[Tensor, " chain"]:
        """Return the part of log r that is known exactly: the ratio of q, and the known parts of a product."""
        log_ratio = proposal.log_q_ratio(current, proposed)
        if target.known_score is not None:
            assert current.log_density is not None
            assert proposed.log_density is not None
            log_ratio = proposed.log_density - current.log_density + log_ratio
        return log_ratio

    def log_ratio(
        self, current: Point, proposed: Point, *, target: Target, proposal: Proposal
    ) -> Float[Tensor, " chain"]:
        """Return log r(proposed, current)."""
        known = self.known_log_ratio(current, proposed, target=target, proposal=proposal)
        return self.log_density_change(current, proposed, target=target) + known

    def log_accept(
        self, current: Point, proposed: Point, *, target: Target, proposal: Proposal
    ) -> Float[Tensor, " chain"]:
        """Return log a(proposed, current), at most 0."""
        return self.log_balanced(self.log_ratio(current, proposed, target=target, proposal=proposal))

    def decide(
        self,
        current: Point,
        proposed: Point,
        log_uniform: Float[Tensor, " chain"],
        *,
        target: Target,
        proposal: Proposal,
        generator: torch.Generator | None = None,
    ) -> Decision:
        """Return log a(proposed, current) as exactly as a comparison with these uniforms needs it.

        A rule can save work where the uniform number decides; a random rule draws from the generator.
        """
        return Decision(self.log_accept(current, proposed, target=target, proposal=proposal))

    def log_balanced(self, log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return log min(1, r), or log r / (1 + r), from log r."""
        # r = inf would be accepted, but it comes from an overflow and never from p
        log_ratio = log_ratio.masked_fill(log_ratio == math.inf, math.nan)
        return log_ratio.clamp(max=0) if self.balance == "metropolis" else logsigmoid(log_ratio)

    def ratio_threshold(self, log_uniform: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return what log r has to exceed to be accepted: log u by Metropolis, logit u by Barker."""
        return log_uniform if self.balance == "metropolis" else log_uniform - (-log_uniform.expm1()).log()


@dataclass(frozen=True, repr=False)
class Exact(Rule):
    """Use the target's log density: ordinary Metropolis-Hastings."""

    needs: ClassVar[frozenset[Need]] = frozenset({"log_density"})
    balance: Balance = "metropolis"

    def __post_init__(self) -> None:
        """Check the parameters."""
        checks.one_of(self.balance, get_args(Balance), "balance")

    def log_density_change(self, current: Point, proposed: Point, *, target: Target) -> Float[Tensor, " chain"]:
        """Return log p(proposed) - log p(current)."""
        assert current.log_density is not None
        assert proposed.log_density is not None
        return proposed.log_density - current.log_density


@dataclass(frozen=True, repr=False)
class Always(Rule):
    """Accept every candidate: with `MALA` this is the unadjusted Langevin algorithm, biased at any step size."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    balance: None = None
    antisymmetric: ClassVar[bool] = False

    def log_accept(
        self, current: Point, proposed: Point, *, target: Target, proposal: Proposal
    ) -> Float[Tensor, " chain"]:
        """Return 0."""
        return proposed.x.new_zeros(len(proposed.x))


QuadratureName = Literal["trapezoid", "simpson", "gauss", "adaptive", "exact"]
COORDINATES = (
    "Pass two numbers, or two tuples with one for every coordinate; `fit.middle` for a score with heavy tails."
)
DEFAULT_NODES: Mapping[QuadratureName, int] = {"trapezoid": 0, "simpson": 1, "gauss": 3, "adaptive": 63, "exact": 1}


def _finite(change: Tensor) -> Tensor:
    """Return NaN for an infinite integral: only a density, never a score, can tell that p(x') is 0."""
    return change.masked_fill(change.isinf(), math.nan)


def _check_coordinates(coordinates: Middle) -> None:
    """Raise an error unless these are a middle and a width, numbers or tuples."""
    if not isinstance(coordinates, tuple) or len(coordinates) != 2:
        raise ValueError(checks.message("coordinates to be a pair (m, w)", repr(coordinates), COORDINATES))
    for width in coordinates[1] if isinstance(coordinates[1], tuple) else (coordinates[1],):
        checks.positive(width, "w of coordinates")


@dataclass(frozen=True, repr=False)
class Taylor(Rule):
    """Expand log p around the current point, or (average) around both: the paper's four rules of Appendix A.

    Args:
        order: 1, or 2 with Jacobian-vector products of the score.
        average: Average the expansions around x and x'. `Taylor(1, average=True)` is the trapezoid rule.
        balance: "metropolis" or "barker".
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"score"})
    integrates: ClassVar[bool] = True
    straight: ClassVar[bool] = True
    order: Literal[1, 2] = 1
    average: bool = False
    balance: Balance = "metropolis"

    def __post_init__(self) -> None:
        """Check the parameters."""
        checks.one_of(self.order, (1, 2), "order")
        checks.one_of(self.average, (True, False), "average")
        checks.one_of(self.balance, get_args(Balance), "balance")

    @property
    def antisymmetric(self) -> bool:
        """Whether both points are treated alike."""
        return self.average

    @property
    def trapezoid(self) -> bool:
        """Whether this is the trapezoid rule: of first order, averaged."""
        return self.order == 1 and self.average

    def log_density_change(self, current: Point, proposed: Point, *, target: Target) -> Float[Tensor, " chain"]:
        """Return the truncated expansion of log p(proposed) - log p(current)."""
        v, here = proposed.x - current.x, current.integrated_score
        slope = (here + proposed.integrated_score) / 2 if self.average else here
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
class LineIntegral(Rule):
    """Integrate the score along a line from x to x', straight in x or in other coordinates.

    Every path has the same integral, but not the same quadrature: a step far into a heavy tail crosses all that matters
    within a thousandth of its length, and nodes on a straight line miss it. With `coordinates` they lie evenly in
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
        coordinates: m and w, for heavy tails: numbers, or tuples over the flattened event. `ScoreFit.middle` is such a
            pair, for a score that was fitted with `heavy_tails`.
    """

    integrates: ClassVar[bool] = True
    rule: QuadratureName = "simpson"
    nodes: int | None = None
    tolerance: float = 1e-4
    balance: Balance = "metropolis"
    coordinates: Middle | None = None

    def __post_init__(self) -> None:
        """Check the parameters."""
        checks.one_of(self.rule, get_args(QuadratureName), "rule")
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
        if self.coordinates is not None:
            _check_coordinates(self.coordinates)

    @property
    def inner_nodes(self) -> int:
        """How many nodes lie strictly between x and x'."""
        return DEFAULT_NODES[self.rule] if self.nodes is None else self.nodes

    @property
    def needs(self) -> frozenset[Need]:
        """The score at both ends; for gauss, between them only."""
        return frozenset({"inner_score"}) if self.rule == "gauss" else frozenset({"score"})

    @property
    def antisymmetric(self) -> bool:
        """Whether the ratio is deterministic: the exact rule draws random numbers."""
        return self.rule != "exact"

    @property
    def straight(self) -> bool:
        """Whether the line is straight in the coordinates x."""
        return self.coordinates is None

    @property
    def trapezoid(self) -> bool:
        """Whether this is the trapezoid rule without inner nodes."""
        return self.rule == "trapezoid" and self.inner_nodes == 0

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
        current, proposed, target = self._in_coordinates(current, proposed, target)
        if self.quadrature is None:
            return self._romberg(current, proposed, target)
        ends, nodes, weights = self.quadrature
        v = proposed.x - current.x
        total = torch.zeros_like(v)
        if ends:
            total = ends * (current.integrated_score + proposed.integrated_score)
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
        return self.decide(current, proposed, log_uniform, target=target, proposal=proposal).log_accept

    def decide(
        self,
        current: Point,
        proposed: Point,
        log_uniform: Float[Tensor, " chain"],
        *,
        target: Target,
        proposal: Proposal,
        generator: torch.Generator | None = None,
    ) -> Decision:
        """Return log a; the adaptive and the exact rule integrate as far as the comparison with log u needs."""
        if self.rule not in ("adaptive", "exact"):
            return Decision(self.log_accept(current, proposed, target=target, proposal=proposal))
        known = self.known_log_ratio(current, proposed, target=target, proposal=proposal)
        ends = self._in_coordinates(current, proposed, target)
        if self.rule == "adaptive":
            change = self._romberg(*ends, goal=self.ratio_threshold(log_uniform) - known)
            return Decision(self.log_balanced(change + known))
        residual, tally = Residual.between(*ends, generator), Tally()
        log_ratio = _finite(residual.slopes.integral) + known
        log_accept = exact.log_accept(residual, log_ratio, self.log_balanced, log_uniform, tally)
        return Decision(log_accept, tally.factors, tally.clipped)

    def _in_coordinates(self, current: Point, proposed: Point, target: Target) -> tuple[Point, Point, Target]:
        """Return both points and the score in the coordinates u of the line, x = m + w sinh(u), if it has any."""
        if self.coordinates is None:
            return current, proposed, target
        score, sinh = target.score, self._sinh(current.x)
        assert score is not None

        def moved(point: Point) -> Point:
            u = sinh.inverse(point.x)
            return Point(u, sinh.pull_gradient(point.integrated_score, u) if "score" in self.needs else None)

        def score_of(u: Tensor) -> Tensor:
            return sinh.pull_gradient(score(sinh(u)), u)

        return moved(current), moved(proposed), target._replace(score=score_of)

    def _sinh(self, x: Tensor) -> Sinh:
        """Return the coordinates of the line for events of this shape."""
        assert self.coordinates is not None
        event = x.shape[1:]
        for part in self.coordinates:
            if isinstance(part, tuple) and len(part) != event.numel():
                got = f"{len(part)} for events of shape {tuple(event)}"
                raise ValueError(
                    checks.message(f"{event.numel()} numbers in m and in w of coordinates", got, COORDINATES)
                )
        return Sinh(*(x.new_tensor(part).expand(event.numel()).reshape(event) for part in self.coordinates))

    def _romberg(
        self, current: Point, proposed: Point, target: Target, goal: Tensor | None = None
    ) -> Float[Tensor, " chain"]:
        """Return Simpson's integral, refined where it leaves open whether it exceeds the goal; or to the tolerance."""
        assert target.score is not None
        x, v, here, there = current.x, proposed.x - current.x, current.integrated_score, proposed.integrated_score
        slopes = Slopes.along(v, here, scores_along(target.score, x, v, (0.5,))[0], there)
        change, excess = slopes.integral, slopes.middle - (slopes.first + slopes.last) / 2
        gap = torch.full_like(change, self.tolerance) if goal is None else goal - change
        known = torch.stack((excess, gap / UNIT, slopes.length.square()))
        romberg = Romberg(target.score, self.inner_nodes, deciding=goal is not None)
        rows, more = romberg.corrections((x, v, here + there), known)
        return _finite(change.index_add(0, rows, more, alpha=UNIT))


@dataclass(frozen=True, repr=False)
class ThroughNoise(Rule):
    """Use log p as the scores of all noise levels know it: the weights of modes are right however far apart they lie.

    The estimate is a fixed function of x, so that the chain is reversible for its own distribution, as `Exact` is for
    that of a density. It is evaluated once per candidate, at `nodes` noise levels, and kept at the current point.

    For short moves an integral of the score along the line has the smaller error. With `integrate_below` the line is
    taken for moves that are shorter than this, a symmetric choice: the ratio stays antisymmetric, and every pair of
    points is balanced for one of two densities. Where those two disagree no distribution is stationary for both, and
    the chain settles between them.

    Args:
        nodes: Number of noise levels at which the score and its divergence are evaluated.
        path: "radial", or "fixed" at x, which wants half as many nodes again.
        integrate_below: Length of a move, in units of the noise, below which the score is integrated by Simpson's rule.
        balance: "metropolis" or "barker".
    """

    nodes: int = 8
    path: diffusion.Path = "radial"
    integrate_below: float | None = None
    balance: Balance = "metropolis"

    LINE: ClassVar[LineIntegral] = LineIntegral()

    def __post_init__(self) -> None:
        """Check the parameters."""
        checks.count(self.nodes, "nodes")
        checks.one_of(self.path, get_args(diffusion.Path), "path")
        checks.one_of(self.balance, get_args(Balance), "balance")
        if self.integrate_below is not None:
            checks.positive(self.integrate_below, "integrate_below", ", or None to integrate nowhere")

    @property
    def needs(self) -> frozenset[Need]:
        """The log density, and the score where short moves are integrated."""
        return frozenset({"log_density"}) if self.integrate_below is None else self.LINE.needs | {"log_density"}

    def informed(self, target: Target) -> Target:
        """Return the target with log p through noise for its log density, after checking that it has noise levels."""
        if target.levels is None:
            fix = "Use what fit_score returns, a model of scoremh.diffusion or a normal mixture; or LineIntegral()."
            raise ValueError(
                checks.message(
                    "a target that knows the scores of all noise levels", "a score of one level, or a product", fix
                )
            )
        low, high = diffusion.noise_span(target.levels)
        target.levels.at(low), target.levels.at(high)  # an error for levels that were not learned
        return target._replace(log_density=diffusion.LogDensity(target.levels, self.nodes, self.path))

    def log_density_change(self, current: Point, proposed: Point, *, target: Target) -> Float[Tensor, " chain"]:
        """Return log p(proposed) - log p(current)."""
        assert current.log_density is not None
        assert proposed.log_density is not None
        change = proposed.log_density - current.log_density
        if self.integrate_below is None:
            return change
        assert target.levels is not None
        v = target.levels.coordinates.inverse(proposed.x) - target.levels.coordinates.inverse(current.x)
        rows = (inner(v, v) < self.integrate_below**2).nonzero().flatten()
        if len(rows):
            ends = (point.map(lambda part: part[rows]) for point in (current, proposed))
            change = change.index_put((rows,), self.LINE.log_density_change(*ends, target=target))
        return change


LearnedBalance = Literal["direct", "metropolis", "barker"]


@dataclass(frozen=True, repr=False, eq=False)
class Learned(Rule):
    """Accept with the probability of a network that `fit_acceptance` trained.

    A network that was trained for one proposal and step is refused with another; MALA with another score is another
    proposal. A potential serves all of them: it stands for a log density (up to a constant, also where the proposal
    asks for one), is evaluated once per candidate, and its value at the current point is kept.

    Args:
        net: What `fit_acceptance` returned, its network, or any `net(proposed, current)` that answers log a.
        balance: "direct" accepts with a(x', x) as it was trained (the paper). "metropolis" and "barker" take
            a(x', x) / a(x, x') for the ratio r: Metropolis accepts more, and the scale of a does not matter. For an
            antisymmetric form and a potential "direct" is "barker".
    """

    net: nn.Module
    balance: LearnedBalance = "direct"

    def __init__(self, net: nn.Module | Fit, balance: LearnedBalance = "direct") -> None:
        network, fix = net.net if isinstance(net, Fit) else net, "Pass what fit_acceptance returned."
        checks.kind(network, Form if isinstance(net, Fit) else nn.Module, "a network for an acceptance", fix)
        checks.one_of(balance, get_args(LearnedBalance), "balance")
        object.__setattr__(self, "net", network)
        object.__setattr__(self, "balance", balance)

    def __repr__(self) -> str:
        """Show the form, a hash of the weights, and the balance."""
        weights = "".join(fingerprint(tensor) for tensor in self.net.state_dict().values())
        name = f"<{type(self.net).__name__} {hashlib.sha256(weights.encode()).hexdigest()[:8]}>"
        return f"Learned({name})" if self.balance == "direct" else f"Learned({name}, balance={self.balance!r})"

    @property
    def form(self) -> Form:
        """The network as a form: the free one where it is none itself."""
        return Form.of(self.net)

    @property
    def needs(self) -> frozenset[Need]:
        """Nothing of the target; a potential is a log density of its own."""
        return frozenset() if self.form.potential is None else frozenset({"log_density"})

    def informed(self, target: Target) -> Target:
        """Return the target with a potential for its log density."""
        potential = self.form.potential
        return target if potential is None else target._replace(log_density=potential)

    def check(self, target: Target, proposal: Proposal) -> None:
        """Raise an error for a proposal that the network was not learned for."""
        self.form.require(target, proposal)

    def log_ratio(
        self, current: Point, proposed: Point, *, target: Target, proposal: Proposal
    ) -> Float[Tensor, " chain"]:
        """Return log a(x', x) - log a(x, x')."""
        potential = self.form.potential
        kept = potential is not None and target.log_density == potential  # by a kernel, from `known`
        if not kept or current.log_density is None or proposed.log_density is None:
            return self.form.log_ratio(current, proposed, proposal=proposal)
        return proposed.log_density - current.log_density + proposal.log_q_ratio(current, proposed)

    def log_accept(
        self, current: Point, proposed: Point, *, target: Target, proposal: Proposal
    ) -> Float[Tensor, " chain"]:
        """Return log a, as trained or balanced."""
        with checks.explained():
            if self.balance == "direct" and self.form.potential is None:
                log_accept: Tensor = self.net(proposed.x, current.x)
                return log_accept
            return super().log_accept(current, proposed, target=target, proposal=proposal)


# Romberg's integral of a score along a move, refined only where a decision needs it.
#
# With T_k the trapezoid rule with 2^k intervals, R_{k,0} = T_k and R_{k,j} = R_{k,j-1} + (R_{k,j-1} - R_{k-1,j-1}) /
# (4^j - 1); the estimate of level k is R_{k,k}, that of level 1 is Simpson's, and the change from one level to the next
# bounds the error. All of it is linear in the excess g of the slope at the nodes over the mean slope at the ends, so
# that matrix products give the estimates and the bounds of several levels at once:
#
#     R_{k,k} - T_0 = sum_i w_{k,i} g_i,    g_i = (s(x + t_i v) - (s(x) + s(x + v)) / 2) . v
#
# Simpson's estimate is T_0 + 2/3 g(1/2). Integrals and errors are in units of this 2/3 here.
UNIT = 2 / 3  # Simpson's inner weight
INTERVAL_LENGTH = 4.0  # |v| |s| / sqrt(d) of a move per interval, beyond which no bound is believed
SLOWEST = 16.0  # two estimates may agree by chance: the error is not believed to fall faster than Simpson's, as 2^-4
# Score calls for each chain that may be made before it is known that they are needed, a quarter of Simpson's: with a
# cheap score, another round of calls takes longer than another hundred of nodes.
SPARE_CALLS = 0.5


class Refinement(NamedTuple):
    """The nodes of one or two more levels, and the weights of the excesses at all nodes, from coarse to fine."""

    nodes: Float[Tensor, "new_node ..."]
    """New nodes t."""
    changes: Float[Tensor, "new_level node"]
    """Weights in what the estimate of a level differs by from Simpson's."""
    errors: Float[Tensor, "terms node"]
    """Weights in the terms, as many for every new level, of which the largest bounds the error."""
    reach: Float[Tensor, "new_level 1"]
    """Square of the longest move for which the bound is believed."""


def romberg_weights(levels: int) -> tuple[Float[np.ndarray, " node"], Float[np.ndarray, "level node"]]:
    """Return the inner nodes, from coarse to fine, and their weights in the estimates of level 0 and up."""
    nodes = np.array([(i + 0.5) / 2**k for k in range(levels) for i in range(2**k)])
    triangle, estimates = [np.zeros(len(nodes))], [np.zeros(len(nodes))]
    for level in range(1, levels + 1):
        coarse, triangle = triangle, [np.where(nodes * 2**level % 1 == 0, 0.5**level, 0.0)]
        for power, estimate in enumerate(coarse, start=1):
            triangle.append(triangle[-1] + (triangle[-1] - estimate) / (4**power - 1))
        estimates.append(triangle[-1])
    return nodes, np.array(estimates)


@cache
def refinement(level: int, finer: int, dimensions: int, dtype: torch.dtype, device: torch.device) -> Refinement:
    """Return nodes and weights from one level to a finer one, for tensors `(row, *event)` of so many dimensions."""
    nodes, estimates = romberg_weights(finer)
    new, each = np.arange(level + 1, finer + 1)[:, None], np.arange(1, finer + 1)
    believed = np.where(each <= new, SLOWEST ** np.minimum(each - new, 0), 0.0)
    parts = (
        nodes[2**level - 1 :].reshape(-1, *(1,) * dimensions),
        (estimates[level + 1 :] - estimates[1]) / UNIT,
        (believed[..., None] * np.diff(estimates, axis=0)).reshape(-1, len(nodes)) / UNIT,
        (INTERVAL_LENGTH * 2.0 ** (new - 1)) ** 2,
    )
    with torch.inference_mode(False):  # whoever asks first: others may differentiate
        return Refinement(*(torch.tensor(part, dtype=dtype, device=device) for part in parts))


@dataclass(frozen=True)
class Romberg:
    """Corrections of Simpson's rule where it leaves a decision open.

    Every estimate is judged in its turn, also where the nodes of two levels are asked for at once: what is decided does
    not depend on how many score calls there are to spare.

    Args:
        score: Score.
        max_nodes: Number of inner nodes not to be exceeded.
        deciding: Whether goals are what the integral is compared with; else they are errors at which to stop.
    """

    score: ScoreFn
    max_nodes: int
    deciding: bool = True

    def corrections(
        self, lines: tuple[Tensor, Tensor, Tensor], known: Float[Tensor, "3 chain"]
    ) -> tuple[Int[Tensor, " row"], Float[Tensor, " row"]]:
        """Return the chains that Simpson's rule leaves open, and what to add to its integral there.

        Args:
            lines: Where moves begin, the moves, and the sum of the scores at their ends.
            known: The excess half way; the goal, less Simpson's integral where that is compared with it; the square of
                the length of the moves in units of the score's own scale, |v| |s| / sqrt(d).
        """
        excess, goal, square = known.unbind()
        margin = goal.abs() if self.deciding else goal
        rows = (margin < excess.abs()).logical_or_(square > INTERVAL_LENGTH**2).nonzero().view(-1)
        if not rows.shape[0] or self.max_nodes == 1:
            return rows[:0], excess[:0]
        spare, known = SPARE_CALLS * square.shape[0], known.index_select(1, rows)
        return rows, self._refined(torch.stack(lines).index_select(1, rows), known[:1], known[1:], spare)

    def _refined(
        self,
        lines: Float[Tensor, "3 row *event"],
        excesses: Float[Tensor, "node row"],
        known: Float[Tensor, "2 row"],
        spare: float,
    ) -> Float[Tensor, " row"]:
        """Return what to add to Simpson's integrals of open moves, with one or two levels more than so far."""
        level, top = excesses.shape[0].bit_length(), self.max_nodes.bit_length()
        finer = min(level + 2, top)
        if excesses.shape[1] * (2**finer - 2**level) > spare:
            finer = level + 1
        nodes, changes, errors, reach = refinement(level, finer, lines.ndim - 1, lines.dtype, lines.device)
        new, (goal, square) = self._excesses(lines, nodes), known.unbind()
        excesses = torch.cat((excesses, new))
        change, error = changes.mm(excesses), errors.mm(excesses).abs_().view(finer - level, finer, -1).amax(1)
        margin = (change - goal).abs() if self.deciding else goal
        open_ = (margin < error).logical_or_(square > reach)
        found, still = change[-1], open_[-1]
        if finer > level + 1:
            found, still = torch.where(open_[0], found, change[0]), still & open_[0]
        rows = still.nonzero().view(-1)
        if finer < top and rows.shape[0]:
            lines, excesses, known = (part.index_select(1, rows) for part in (lines, excesses, known))
            found = found.index_copy(0, rows, self._refined(lines, excesses, known, spare - new.numel()))
        return found

    def _excesses(
        self, lines: Float[Tensor, "3 row *event"], nodes: Float[Tensor, "node ..."]
    ) -> Float[Tensor, "node row"]:
        """Return the excesses at nodes of all moves, by one call of the score."""
        x, v, ends = lines.unbind()
        places = torch.addcmul(x, v, nodes)
        scores = self.score(places.flatten(0, 1)).view_as(places)
        return torch.sub(scores, ends, alpha=0.5).mul_(v).flatten(2).sum(2)
