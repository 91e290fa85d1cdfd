r"""Acceptance rules a(x', x): from the density, expanded or integrated from the score, or learned.

With `v = x' - x`, every rule except `Always` estimates

    log r(x', x) = D + log q(x | x') - log q(x' | x),    D = log p(x') - log p(x) = int_0^1 s(x + t v) . v dt

and accepts with probability `min(1, r)` (Metropolis) or `r / (1 + r)` (Barker). Metropolis accepts more (Peskun 1973).

| rule | D | score calls besides s(x), s(x') | error for a move of length eps |
|---|---|---|---|
| `Exact()` | log p(x') - log p(x) | 0 | 0 |
| `Taylor(1)` | s(x).v | 0 | eps^2, one-sided |
| `Taylor(2)` | s(x).v + v.J(x)v / 2 | one JVP | eps^3, one-sided |
| `Taylor(1, average=True)` | (s(x) + s(x')).v / 2 | 0 | eps^3 |
| `Taylor(2, average=True)` | the previous + v.(J(x) - J(x'))v / 4 | two JVPs | eps^3, twice the constant |
| `LineIntegral("trapezoid")` | the same as `Taylor(1, average=True)` | 0 | eps^3 |
| `LineIntegral("lobatto")` | Simpson; two nodes more if the decision is open | 1 and a few | eps^9 if it matters |
| `LineIntegral("simpson")` | (s(x) + 4 s(x + v/2) + s(x')).v / 6 | 1 | eps^5 |
| `LineIntegral("gauss", nodes=k)` | Gauss-Legendre | k, in one call | eps^(2k+1) |
| `LineIntegral("exact")` | Simpson, corrected by random factors (`acceptance.exact`) | 1 or more | 0 |
| `ThroughNoise()` | log p from the scores of all noise levels | 8 scores and divergences | from the model |
| `Learned(fit)` | a network for a, r or log p (`fit_acceptance`) | 0 | from training |

One-sided rules are not antisymmetric: r(x', x) r(x, x') is not 1, so detailed balance fails.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from scoremh import diffusion
from scoremh._shared import checks, rng
from scoremh._shared.algebra import Quadrature, gauss_legendre, inner, line, newton_cotes, scores_along, weighted_sum
from scoremh._shared.files import fingerprint
from scoremh.acceptance import exact
from scoremh.acceptance.exact import Residual, Tally
from scoremh.coordinates import Sinh
from scoremh.networks import Form
from scoremh.training import Fit
from scoremh.types import Balance, Middle, Need, Point, Proposal, ScoreFn, Target


class Decision(NamedTuple):
    """The decision of a rule about the candidates of one transition."""

    log_accept: Float[Tensor, " chain"]
    """log a(x', x), exact enough to be compared with log u."""
    factors: int = 0
    """Number of random factors that were drawn, over all chains."""
    clipped: int = 0
    """Number of factors that were clipped to their bound, which changes the ratio."""


class Rule(ABC):
    """An acceptance rule a(x', x). Most subclasses define `needs` and `log_density_change`, an estimate of D."""

    balance: Balance | Literal["direct"] | None = "metropolis"
    """How a follows from r: "metropolis" or "barker"; "direct" if a network gives a, None if there is no ratio."""
    integrates: ClassVar[bool] = False
    """Whether D is estimated from the score. For a product, D then covers only the parts without a log density."""

    def __repr__(self) -> str:
        """Show the parameters that differ from their defaults."""
        return checks.brief(self)

    @property
    @abstractmethod
    def needs(self) -> frozenset[Need]:
        """The functions of p that the rule uses, at the points or between them."""

    @property
    def antisymmetric(self) -> bool:
        """Whether `log_ratio` is deterministic and antisymmetric, as `grouped` requires."""
        return True

    @property
    def straight(self) -> bool:
        """Whether the score is used on a straight line only; its nodes may miss structure that a long step crosses."""
        return False

    @property
    def trapezoid(self) -> bool:
        """Whether D is the trapezoid rule with one interval, which cancels the terms of MALA's proposal ratio."""
        return False

    def informed(self, target: Target) -> Target:
        """Return the target, with a log density of the rule's own if it has one."""
        return target

    def check(self, target: Target, proposal: Proposal) -> None:
        """Raise an error if the rule is not valid for this target or proposal."""
        return

    def log_density_change(self, current: Point, proposed: Point, *, target: Target) -> Float[Tensor, " chain"]:
        """Return D, an estimate of log p(proposed) - log p(current)."""
        fix = "Define log_density_change, or log_accept for a rule without a ratio."
        raise NotImplementedError(checks.message("a rule with a ratio", checks.named(self), fix))

    def known_log_ratio(
        self, current: Point, proposed: Point, *, target: Target, proposal: Proposal
    ) -> Float[Tensor, " chain"]:
        """Return the exact part of log r: the ratio of q, and for a product the change of its known parts."""
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
        """Return log a(proposed, current), exact enough to be compared with `log_uniform`.

        A subclass can save work if the uniform number alone decides. A random rule draws from `generator`.
        """
        return Decision(self.log_accept(current, proposed, target=target, proposal=proposal))

    def log_balanced(self, log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return log min(1, r) or log(r / (1 + r)) from log r."""
        # r = inf would be accepted, but it comes from an overflow, never from p
        log_ratio = log_ratio.masked_fill(log_ratio == math.inf, math.nan)
        return log_ratio.clamp(max=0) if self.balance == "metropolis" else logsigmoid(log_ratio)

    def ratio_threshold(self, log_uniform: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return t such that a candidate is accepted if log r >= t: log u for Metropolis, logit u for Barker."""
        return log_uniform if self.balance == "metropolis" else log_uniform - (-log_uniform.expm1()).log()


@dataclass(frozen=True, repr=False)
class Exact(Rule):
    """Use the target's log density: ordinary Metropolis-Hastings.

    Args:
        balance: "metropolis" or "barker".
    """

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


QuadratureName = Literal["lobatto", "trapezoid", "simpson", "gauss", "exact"]
COORDINATES = "Pass two numbers, or two tuples with one number per coordinate; fit.middle for a score with heavy tails."
DEFAULT_NODES: Mapping[QuadratureName, int] = {
    "lobatto": 3,
    "trapezoid": 0,
    "simpson": 1,
    "gauss": 3,
    "exact": 1,
}


def _finite(change: Tensor) -> Tensor:
    """Replace an infinite integral by NaN: -inf means that p(x') is 0, which an infinite score does not show."""
    return change.masked_fill(change.isinf(), math.nan)


def _check_coordinates(coordinates: Middle) -> None:
    """Raise an error unless `coordinates` is a pair of a middle and a positive width, numbers or tuples."""
    if not isinstance(coordinates, tuple) or len(coordinates) != 2:
        raise ValueError(checks.message("coordinates to be a pair (m, w)", repr(coordinates), COORDINATES))
    for width in coordinates[1] if isinstance(coordinates[1], tuple) else (coordinates[1],):
        checks.positive(width, "w of coordinates")


@dataclass(frozen=True, repr=False)
class Taylor(Rule):
    """Expand log p around the current point, or around both points: the four rules of the paper's Appendix A.

    Args:
        order: Order of the expansion, 1 or 2; 2 takes Jacobian-vector products of the score.
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
        """Whether this is the trapezoid rule: first order, averaged."""
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


# Lobatto's rule with five nodes: the ends, the middle, and these two. With m the mean of f at the ends, it adds
# w (f(a) + f(1 - a) - 2 m) - 14/45 (f(1/2) - m) to Simpson's.
LOBATTO_NODES, LOBATTO_WEIGHT = ((1 - math.sqrt(3 / 7)) / 2, (1 + math.sqrt(3 / 7)) / 2), 49 / 180
# b in units of |f(1/2) - m|, half the second difference. Chosen on mixtures, twisted normals, logistic and Student's
# distributions in 2 to 20 dimensions: with MALA at the step of `tune` the bias is that of five nodes for all chains.
LOBATTO_BOUND = 0.4


def lobatto_correction(
    score: ScoreFn, x: Tensor, v: Tensor, ends: Tensor, excess: Float[Tensor, " chain"], rows: Int[Tensor, " row"]
) -> Float[Tensor, " row"]:
    """Return what five nodes add to Simpson's integral for some chains, clipped to the bound.

    Args:
        score: Score.
        x: Where the moves begin.
        v: The moves.
        ends: The sum of the scores at their ends.
        excess: f(1/2) - m.
        rows: The chains.
    """
    x, v, ends, excess = (part.index_select(0, rows) for part in (x, v, ends, excess))
    places = line(x, v, LOBATTO_NODES)
    slopes = torch.sub(score(places.flatten(0, 1)).view_as(places), ends, alpha=0.5).mul_(v)
    bound = LOBATTO_BOUND * excess.abs()
    correction = LOBATTO_WEIGHT * slopes.sum(0).flatten(1).sum(1) - 14 / 45 * excess
    return correction.clamp(-bound, bound)


@dataclass(frozen=True, repr=False)
class LineIntegral(Rule):
    """Integrate the score along a line from x to x', straight in x or in other coordinates.

    The integral is the same along every path, but the error of a quadrature is not: a long step out of a heavy tail
    spends a small part of its length near the mode, and nodes on a straight line miss it. With `coordinates`
    the nodes are evenly spaced in asinh((x - m) / w), for each coordinate of x, which avoids this.

    `rule="lobatto"` starts with Simpson's rule, which is Lobatto's with three nodes. With f(t) = s(x + t v).v, chains
    whose uniform number lies within b = .2 |f(0) - 2 f(1/2) + f(1)| of the decision evaluate two more nodes, and take
    Lobatto's rule with five, clipped to within b of Simpson's. For the others no value within b changes the decision:
    all chains decide by one antisymmetric ratio.

    `rule="exact"` decides as if the integral were exact: by Simpson's rule if its error cannot matter, otherwise by
    random factors that correct the error (`acceptance.exact`).

    Args:
        rule: "lobatto", "simpson", "trapezoid", "gauss" or "exact".
        nodes: Number of inner nodes: 0 or more for "trapezoid" (default 0), odd for "simpson" (1), 1 or more for
            "gauss" (3).
        balance: "metropolis" or "barker".
        coordinates: Middle m and width w, for heavy tails: numbers, or tuples over the flattened event.
            `ScoreFit.middle` is such a pair if the score was fitted with `heavy_tails`.
    """

    integrates: ClassVar[bool] = True
    rule: QuadratureName = "lobatto"
    nodes: int | None = None
    balance: Balance = "metropolis"
    coordinates: Middle | None = None

    def __post_init__(self) -> None:
        """Check the parameters."""
        checks.one_of(self.rule, get_args(QuadratureName), "rule")
        checks.one_of(self.balance, get_args(Balance), "balance")
        checks.count(self.inner_nodes, "nodes", at_least=0 if self.rule == "trapezoid" else 1)
        if self.rule == "simpson" and self.inner_nodes % 2 == 0:
            raise ValueError(checks.message("an odd number of nodes for simpson", self.nodes, "Use 1, 3, 5, ..."))
        if self.rule == "lobatto" and self.inner_nodes != DEFAULT_NODES["lobatto"]:
            raise ValueError(checks.message("no nodes for lobatto", self.nodes, "Leave nodes out: they are fixed."))
        if self.rule == "exact" and self.inner_nodes != 1:
            fix = "Leave nodes out: the exact rule chooses its own."
            raise ValueError(checks.message("no nodes for exact", self.nodes, fix))
        if self.coordinates is not None:
            _check_coordinates(self.coordinates)

    @property
    def inner_nodes(self) -> int:
        """Number of nodes strictly between x and x'."""
        return DEFAULT_NODES[self.rule] if self.nodes is None else self.nodes

    @property
    def needs(self) -> frozenset[Need]:
        """The score at both ends; for "gauss" only between them."""
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
    def quadrature(self) -> Quadrature:
        """Nodes and weights on [0, 1]."""
        if self.rule == "gauss":
            return gauss_legendre(self.inner_nodes)
        if self.rule in ("lobatto", "exact"):  # the rule that they start with
            return newton_cotes(1, simpson=True)
        return newton_cotes(self.inner_nodes, simpson=self.rule == "simpson")

    def log_density_change(self, current: Point, proposed: Point, *, target: Target) -> Float[Tensor, " chain"]:
        """Return the integral of the score from current to proposed."""
        current, proposed, target = self._in_coordinates(current, proposed, target)
        if self.rule == "lobatto":
            return self._lobatto(current, proposed, target)
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
        """Return log a; a random draw for the exact rule."""
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
        """Return log a; some rules integrate only as accurately as the comparison with log u needs."""
        if self.rule not in ("lobatto", "exact"):
            return Decision(self.log_accept(current, proposed, target=target, proposal=proposal))
        known = self.known_log_ratio(current, proposed, target=target, proposal=proposal)
        ends = self._in_coordinates(current, proposed, target)
        if self.rule == "lobatto":
            change = self._lobatto(*ends, goal=self.ratio_threshold(log_uniform) - known)
            return Decision(self.log_balanced(change + known))
        residual, tally = Residual.between(*ends, generator), Tally()
        log_ratio = _finite(residual.slopes.integral) + known
        log_accept = exact.log_accept(residual, log_ratio, self.log_balanced(log_ratio), log_uniform, tally)
        return Decision(log_accept, tally.factors, tally.clipped)

    def _in_coordinates(self, current: Point, proposed: Point, target: Target) -> tuple[Point, Point, Target]:
        """Return both points and the target in the coordinates u of x = m + w sinh(u), if `coordinates` is given."""
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
        """Return the map x = m + w sinh(u) for events of the shape of x."""
        assert self.coordinates is not None
        event = x.shape[1:]
        for part in self.coordinates:
            if isinstance(part, tuple) and len(part) != event.numel():
                got = f"{len(part)} for events of shape {tuple(event)}"
                raise ValueError(
                    checks.message(f"{event.numel()} numbers in m and in w of coordinates", got, COORDINATES)
                )
        return Sinh(*(x.new_tensor(part).expand(event.numel()).reshape(event) for part in self.coordinates))

    def _lobatto(
        self, current: Point, proposed: Point, target: Target, goal: Tensor | None = None
    ) -> Float[Tensor, " chain"]:
        """Return Simpson's integral, corrected by two more nodes if it leaves open whether it exceeds the goal."""
        assert target.score is not None
        x, v, ends = current.x, proposed.x - current.x, current.integrated_score + proposed.integrated_score
        middle = scores_along(target.score, x, v, (0.5,))[0]
        excess = inner(torch.sub(middle, ends, alpha=0.5), v)
        change = inner(ends, v) / 2 + excess * 2 / 3
        open_ = excess != 0 if goal is None else (goal - change).abs() <= LOBATTO_BOUND * excess.abs()
        rows = open_.nonzero().flatten()
        if len(rows):
            change = change.index_add(0, rows, lobatto_correction(target.score, x, v, ends, excess, rows))
        return _finite(change)


@dataclass(frozen=True, repr=False)
class ThroughNoise(Rule):
    """Use an estimate of log p from the scores of all noise levels, which gets the weights of distant modes right.

    The estimate is a fixed function of x, so the chain is exactly reversible for the distribution with this log
    density. It is evaluated once per candidate, at `nodes` noise levels, and kept at the current point.

    For short moves, an integral of the score along the line has a smaller error. With `integrate_below`, moves shorter
    than this use the line. The choice is symmetric, so the ratio stays antisymmetric, and each pair of points is in
    balance for one of two densities. If the two disagree, neither is stationary, and the chain settles in between.

    Args:
        nodes: Number of noise levels at which the score and its divergence are evaluated.
        path: "radial", or "fixed" at x, which needs 1.5 times as many nodes.
        integrate_below: Length of a move, in the coordinates of the noise, below which the score is integrated by
            Simpson's rule; None to use the log density for all moves.
        balance: "metropolis" or "barker".
    """

    nodes: int = 8
    path: diffusion.Path = "radial"
    integrate_below: float | None = None
    balance: Balance = "metropolis"

    LINE: ClassVar[LineIntegral] = LineIntegral("simpson")

    def __post_init__(self) -> None:
        """Check the parameters."""
        checks.count(self.nodes, "nodes")
        checks.one_of(self.path, get_args(diffusion.Path), "path")
        checks.one_of(self.balance, get_args(Balance), "balance")
        if self.integrate_below is not None:
            checks.positive(self.integrate_below, "integrate_below", ", or None to integrate no moves")

    @property
    def needs(self) -> frozenset[Need]:
        """The log density, and the score if short moves are integrated."""
        return frozenset({"log_density"}) if self.integrate_below is None else self.LINE.needs | {"log_density"}

    def informed(self, target: Target) -> Target:
        """Return the target with log p through noise as its log density, after checking that it has noise levels."""
        if target.levels is None:
            fix = "Use a fit of fit_score, a model of scoremh.diffusion or a normal mixture; or LineIntegral()."
            expected, got = "a target with scores of all noise levels", "a score of one level, or a product"
            raise ValueError(checks.message(expected, got, fix))
        low, high = diffusion.noise_span(target.levels)
        target.levels.at(low), target.levels.at(high)  # raises an error for levels that were not learned
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
    """Accept with the probability of a network that was trained by `fit_acceptance`.

    A network that was trained for one proposal and step size raises an error with another one; MALA with another score
    counts as another proposal. A potential is valid with all proposals. It is a log density up to a constant, and also
    serves proposals that need one. It is evaluated once per candidate, and kept at the current point.

    Args:
        net: Fit returned by `fit_acceptance`, its network, or any `net(proposed, current)` that returns log a.
        balance: "direct" accepts with the a(x', x) that was trained (the paper). "metropolis" and "barker" use
            r = a(x', x) / a(x, x'); Metropolis accepts more, and the scale of a has no effect. For an antisymmetric
            form and a potential, "direct" is the same as "barker".
    """

    net: nn.Module
    balance: LearnedBalance = "direct"

    def __init__(self, net: nn.Module | Fit, balance: LearnedBalance = "direct") -> None:
        network, fix = net.net if isinstance(net, Fit) else net, "Pass the fit returned by fit_acceptance."
        checks.kind(network, Form if isinstance(net, Fit) else nn.Module, "an acceptance network", fix)
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
        """The network as a `Form`; any other network is wrapped as a free form."""
        return Form.of(self.net)

    @property
    def needs(self) -> frozenset[Need]:
        """Nothing of the target, or the log density, which is then the potential."""
        return frozenset() if self.form.potential is None else frozenset({"log_density"})

    def informed(self, target: Target) -> Target:
        """Return the target, with the potential as its log density if the network is one."""
        potential = self.form.potential
        return target if potential is None else target._replace(log_density=potential)

    def check(self, target: Target, proposal: Proposal) -> None:
        """Raise an error unless the network was trained for this proposal."""
        self.form.require(target, proposal)

    def log_ratio(
        self, current: Point, proposed: Point, *, target: Target, proposal: Proposal
    ) -> Float[Tensor, " chain"]:
        """Return log a(x', x) - log a(x, x')."""
        potential = self.form.potential
        kept = potential is not None and target.log_density == potential  # a kernel called `informed`
        if not kept or current.log_density is None or proposed.log_density is None:
            return self.form.log_ratio(current, proposed, proposal=proposal)
        return proposed.log_density - current.log_density + proposal.log_q_ratio(current, proposed)

    def log_accept(
        self, current: Point, proposed: Point, *, target: Target, proposal: Proposal
    ) -> Float[Tensor, " chain"]:
        """Return log a: the output of the network if "direct", else from log r."""
        with checks.explained():
            if self.balance == "direct" and self.form.potential is None:
                log_accept: Tensor = self.net(proposed.x, current.x)
                return log_accept
            return super().log_accept(current, proposed, target=target, proposal=proposal)
