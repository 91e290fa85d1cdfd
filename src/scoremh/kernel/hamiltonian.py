r"""Hamiltonian Monte Carlo from a score: long moves along leapfrog trajectories.

Each transition draws a momentum p ~ N(0, I) in the coordinates u of x = L u, makes several leapfrog steps of size h to
(x', p'), and accepts with

    log r = D + |p|^2 / 2 - |p'|^2 / 2,    D = log p(x') - log p(x)

With g = L^T s, the step from (x_k, p_k) is a segment v_k:

    m = p_k + (h / 2) g_k,    v_k = h L m,    x_{k+1} = x_k + v_k,    p_{k+1} = m + (h / 2) g_{k+1}

`Exact()` takes D from the log density. `LineIntegral()` integrates the score, and for most decisions its values at the
nodes are enough. With X(t) and S(t) the cubic interpolants of positions and scores through the four nodes nearest to a
segment,

    D = k(x') - k(x) + sum_k F_k,    F_k = int_k^{k+1} S(t) . X'(t) dt

If the target is a product, k is the log density of its known parts, and s the score of the others. The trapezoid rule
T_k = v_k.(s_k + s_{k+1}) / 2 is not offered: the kinetic terms contain it with the opposite sign, so the density would
cancel. With rho the size of the third differences of L^T s over that of the first,

    b = 2 rho^3 sqrt(sum_k (F_k - T_k)^2)

is large where a trajectory is rough and sum_k F_k may be wrong. A chain with log u within b of log r evaluates
Simpson's rule on each segment, at one score call per midpoint, and takes that value clipped to within b of sum_k F_k.
No value within b would change the decision of the other chains. On trajectories of one or two steps, all chains use the
midpoints, and those in doubt two more nodes on each segment, as single moves do. `LineIntegral("gauss")` always uses
its own nodes.

All of these are antisymmetric: the trajectory from x' with momentum -p' has the same nodes, and the same b. A
trajectory is rejected, in both directions, if it leaves the support at a node, and if it diverges: a value is not
finite, or log r is below -MAX_ENERGY_ERROR.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.algebra import inner, line, per_chain, rows_finite, weighted_sum
from scoremh._shared.counting import score_calls
from scoremh.acceptance import Always, Exact, LineIntegral, Rule
from scoremh.acceptance.rules import LOBATTO_BOUND, lobatto_correction
from scoremh.coordinates import Affine
from scoremh.kernel.metropolis import counted, first_point
from scoremh.targets.combinations import Product
from scoremh.types import Balance, Kernel, Move, Need, Point, Target, TargetLike, Trace


class Trajectory(NamedTuple):
    """A trajectory of each chain: its end, its segments, and whether it had to stop early."""

    end: Point
    """The last node, with its scores; for a chain that left the support, x is its first node outside."""
    momentum: Float[Tensor, "chain *event"]
    """The momentum at the end, in coordinates u."""
    nodes: Float[Tensor, "segment chain *event"]
    """The beginnings x_k of the segments."""
    segments: Float[Tensor, "segment chain *event"]
    """The segments v_k."""
    scores: Float[Tensor, "node chain *event"]
    """The score that is integrated, at all nodes."""
    stopped: Float[Tensor, " chain"]
    """0 for a complete trajectory, -inf if a node lay outside the support, NaN if a value was not finite."""


@dataclass(frozen=True, eq=False, repr=False)
class Leapfrog:
    """Leapfrog trajectories, with the parameters of `hamiltonian`."""

    step_size: float
    steps: int
    covariance: Tensor | None = None
    random_length: bool = True

    def __post_init__(self) -> None:
        """Check the parameters."""
        checks.positive(self.step_size, "step_size", ", or use tune()")
        _ = self.coordinates
        checks.count(self.steps, "steps")
        checks.one_of(self.random_length, (True, False), "random_length")

    def __repr__(self) -> str:
        """Show the parameters that differ from their defaults."""
        return checks.brief(self)

    @cached_property
    def coordinates(self) -> Affine | None:
        """The coordinates u in which momenta are standard normal; None if they are the coordinates x."""
        return None if self.covariance is None else Affine.from_covariance(self.covariance)

    def color(self, z: Tensor) -> Tensor:
        """Return L z."""
        return z if self.coordinates is None else self.coordinates.color(z)

    def slope(self, score: Tensor) -> Tensor:
        """Return g = L^T s."""
        return score if self.coordinates is None else self.coordinates.pull_gradient(score, score)

    def lengths(self, n: int, like: Tensor, generator: torch.Generator | None) -> list[int]:
        """Return the number of steps of n trajectories, each the same for all chains, drawn on the device of `like`."""
        if not self.random_length:
            return n * [int(self.steps)]
        shortest = self.steps // 2 + 1
        uniform = rng.uniform((n,), torch.empty((), dtype=torch.float64, device=like.device), generator)
        drawn: list[int] = (shortest + (uniform * (self.steps + 1 - shortest)).long()).tolist()
        return drawn

    def trajectory(self, target: Target, point: Point, momentum: Tensor, steps: int) -> Trajectory:
        """Make leapfrog steps from a point, with one score call for each.

        A chain that would leave the support stops before. Values that are not finite carry on to the end.
        """
        assert point.score is not None
        h, at, p = self.step_size, point, torch.add(momentum, self.slope(point.score), alpha=self.step_size / 2)
        needs: frozenset[Need] = frozenset({"score"} if point.rest_score is None else {"score", "rest_score"})
        stopped, outside = point.x.new_zeros(len(point.x)), point.x
        nodes, segments, scores = [], [], [point.integrated_score]
        for step in range(1, steps + 1):
            v = h * self.color(p)
            x = at.x + v
            if target.support is not None:
                finite = rows_finite(x)
                leaving = (stopped == 0) & ~(finite & target.support(x))
                stopped = torch.where(leaving, torch.where(finite, -math.inf, math.nan).to(x), stopped)
                outside = torch.where(per_chain(leaving, x), x, outside)
                x, v = (torch.where(per_chain(stopped == 0, x), a, b) for a, b in ((x, at.x), (v, 0.0)))
            nodes.append(at.x)
            segments.append(v)
            at = Point.at(x, target, needs)
            assert at.score is not None
            scores.append(at.integrated_score)
            p = torch.add(p, self.slope(at.score), alpha=h if step < steps else h / 2)
        assert at.score is not None
        stopped = torch.where(rows_finite(at.x + at.score) | (stopped != 0), stopped, math.nan)
        if target.support is not None:
            at = at._replace(x=torch.where(per_chain(stopped == -math.inf, outside), outside, at.x))
        return Trajectory(at, p, torch.stack(nodes), torch.stack(segments), torch.stack(scores), stopped)


class Interpolation(NamedTuple):
    """Matrices over the nodes of trajectories with this many segments."""

    scores: Float[Tensor, "place node"]
    """From the scores at the nodes to S(t) at three Gauss nodes t of each segment, and then to their mean on each."""
    segments: Float[Tensor, "place segment"]
    """From the segments to the weight of t times X'(t) at the same places; then to the segments themselves."""
    differences: Float[Tensor, "difference node"]
    """To first differences of the nodes, then to third ones, each divided by the root of their number."""


@cache
def interpolation(segments: int, dtype: torch.dtype, device: torch.device) -> Interpolation:
    """Return the matrices for the integrals F_k, for the trapezoid rule, and for rho.

    Three Gauss nodes are exact for S . X', of degree 5. With the Lagrange polynomials l_i, X' = sum_i l_i'(t) x_i =
    sum_j v_j sum_{i > j} l_i'(t), because the l_i' add up to 0: there is no cancellation of large positions.
    """
    nodes, weights = np.polynomial.legendre.leggauss(3)
    lagrange = np.linalg.inv(np.vander(np.arange(4), increasing=True))  # column i: the coefficients of l_i
    between, moved = np.zeros((segments, 3, segments + 1)), np.zeros((segments, 3, segments))
    for k in range(segments):
        first = min(max(k - 1, 0), segments - 3)
        t = k - first + (nodes + 1) / 2
        between[k, :, first : first + 4] = np.vander(t, 4, increasing=True) @ lagrange
        derivatives = np.vander(t, 3, increasing=True) * (1, 2, 3) @ lagrange[1:]
        later = derivatives[:, ::-1].cumsum(1)[:, ::-1]
        moved[k, :, first : first + 3] = weights[:, None] / 2 * later[:, 1:]
    identity = np.eye(segments + 1)
    parts = (
        np.concatenate([between.reshape(3 * segments, -1), (identity[1:] + identity[:-1]) / 2]),
        np.concatenate([moved.reshape(3 * segments, -1), np.eye(segments)]),
        np.concatenate([np.diff(identity, k, axis=0) / math.sqrt(segments + 1 - k) for k in (1, 3)]),
    )
    with torch.inference_mode(False):  # the cache serves callers that differentiate as well
        return Interpolation(*(torch.tensor(part, dtype=dtype, device=device) for part in parts))


# The most efficient acceptance rates in high dimension: Beskos, Pillai, Roberts, Sanz-Serna and Stuart (2013) for
# Metropolis; for Barker's balance by the same limit, as Agrawal, Vats, Latuszynski and Roberts (2023) did for MALA.
HAMILTONIAN_RATES: Mapping[Balance, float] = {"metropolis": 0.651, "barker": 0.381}
INTEGRATED_RULES = "lobatto", "simpson", "gauss"
MAX_ENERGY_ERROR = 1000.0  # nats, Stan's limit beyond which a trajectory diverges
LEAST_SEGMENTS = 3  # of two segments, an interpolant through all nodes leaves nothing of the density
# b over rho^3 sqrt(sum_k (F_k - T_k)^2). Chosen on mixtures, twisted normals, logistic and Student's distributions in 3
# to 100 dimensions: the bias is within .02 standard deviations of that with midpoints, usually within .005.
BOUND = 2.0
TrajectoryRule = Exact | LineIntegral | Always


def hamiltonian(
    target: TargetLike,
    step_size: float,
    steps: int,
    acceptance: Rule,
    *,
    covariance: Tensor | None = None,
    random_length: bool = True,
) -> Kernel:
    """Return the kernel of Hamiltonian Monte Carlo, with a fresh momentum for every transition.

    Args:
        target: The target distribution p, with a score: a `Target`, or one of `scoremh.targets`.
        step_size: Step size h of the leapfrog integrator; `tune` finds one for a given number of steps.
        steps: Number of leapfrog steps of a trajectory. A good length `steps * step_size` is near the largest standard
            deviation of p, in the coordinates of the covariance.
        acceptance: Acceptance rule: `LineIntegral()`, which integrates the score between the nodes of the trajectory,
            `LineIntegral("gauss")`, which evaluates it inside each segment as well, `Exact()` for a target with a log
            density, or `Always()`. The known parts of a product are never integrated.
        covariance: C = L L^T, the inverse of the mass matrix, `(d,)` or `(d, d)`; the covariance of p is best. The
            identity if None.
        random_length: Draw the number of steps for every transition, uniformly, above half of `steps` and up to
            `steps`. This prevents trajectories that return to their start again and again.

    Returns:
        A kernel to give to `sample`, or to step by hand.

    Example:
        >>> from scoremh import LineIntegral, Target, sample
        >>> kernel = hamiltonian(Target(score=lambda x: -x), 0.3, 5, LineIntegral())
        >>> chains = sample(kernel, torch.zeros(8, 50), draws=20, generator=torch.Generator().manual_seed(0))
        >>> chains.acceptance_rate > 0.9
        True
        >>> 480 <= chains.score_calls - 8 < 1000  # 3 to 5 for a trajectory, and a few midpoints
        True
    """
    known, rule = _known_parts(_validated_target(target, acceptance), _validated_rule(acceptance))
    trajectories = Trajectories(counted(known), Leapfrog(step_size, steps, covariance, random_length), rule)
    return Kernel(
        trajectories.init,
        trajectories.step,
        trajectories.run,
        target_rate=None if rule.balance is None else HAMILTONIAN_RATES[rule.balance],
        parts=(trajectories.leapfrog, acceptance),
        unadjusted=partial(
            hamiltonian, target, step_size, steps, Always(), covariance=covariance, random_length=random_length
        ),
        target=trajectories.target,
    )


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Transitions of Hamiltonian Monte Carlo.

    If the target is a product with known parts, `target.log_density` and `target.known_score` are those parts', and
    `target.score` is the score of the other parts, which the rule integrates.
    """

    target: Target
    leapfrog: Leapfrog
    rule: TrajectoryRule

    def init(self, x: Tensor) -> Point:
        """Return the point that chains start from, after checking the start and the values of the target there."""
        needs: set[Need] = {"score"}
        needs |= set() if self.target.log_density is None else {"log_density"}
        needs |= set() if self.target.known_score is None else {"rest_score"}
        return first_point(self.target, frozenset(needs), x)

    @torch.inference_mode()
    def step(self, point: Point, *, generator: torch.Generator | None = None) -> tuple[Point, Move]:
        """Make one trajectory, and move the chains that accept its end; the others stay."""
        generator = rng.resolve(generator, point.x.device)
        momentum = rng.normal(tuple(point.x.shape), point.x, generator)
        log_uniform = rng.log_uniform((len(point.x),), point.x, generator)
        (steps,) = self.leapfrog.lengths(1, point.x, generator)
        with score_calls() as calls:
            point, move = self.move(point, momentum, log_uniform, steps)
        return point, move._replace(score_calls=calls.total)

    @torch.inference_mode()
    def run(self, point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
        """Make several transitions; the random numbers of all of them are drawn first."""
        momenta = rng.normal((steps, *point.x.shape), point.x, generator)
        log_uniforms = rng.log_uniform((steps, len(point.x)), point.x, generator)
        lengths = self.leapfrog.lengths(steps, point.x, generator)
        positions, moves = [], []
        with score_calls() as calls:
            for momentum, log_uniform, length in zip(momenta, log_uniforms, lengths, strict=True):
                point, move = self.move(point, momentum, log_uniform, length)
                positions.append(point.x)
                moves.append(move)
        return point, Trace.of(positions, moves)._replace(score_calls=calls.total)

    def move(self, point: Point, momentum: Tensor, log_uniform: Tensor, steps: int) -> tuple[Point, Move]:
        """Make one trajectory, and move the chains that accept its end."""
        path = self.leapfrog.trajectory(self.target, point, momentum, steps)
        log_accept, proposed = self.log_accept(point, momentum, path, log_uniform)
        accepted = log_uniform <= log_accept
        return proposed.where(accepted, point), Move(proposed.x, log_accept, accepted)

    def log_accept(
        self, point: Point, momentum: Tensor, path: Trajectory, log_uniform: Tensor
    ) -> tuple[Float[Tensor, " chain"], Point]:
        """Return log a, as exactly as the comparison with log u needs it, and the end of the trajectory as a point."""
        rule, end, possible = self.rule, path.end, path.stopped == 0
        if isinstance(rule, Always):
            return path.stopped, end
        log_ratio = (inner(momentum, momentum) - inner(path.momentum, path.momentum)) / 2
        if point.log_density is not None and self.target.log_density is not None:
            x = torch.where(per_chain(possible, end.x), end.x, point.x)
            log_density = self.target.log_density(x)
            end, log_ratio = end._replace(log_density=log_density), log_density - point.log_density + log_ratio
        if isinstance(rule, LineIntegral):
            log_ratio = log_ratio + self._integral(rule, path, rule.ratio_threshold(log_uniform) - log_ratio)
        diverged = log_ratio.isfinite() & (log_ratio < -MAX_ENERGY_ERROR)
        log_accept = rule.log_balanced(log_ratio).masked_fill(diverged, math.nan)
        return torch.where(possible, log_accept, path.stopped), end

    def _integral(self, rule: LineIntegral, path: Trajectory, goal: Tensor) -> Float[Tensor, " chain"]:
        """Return the integral of the score along the trajectories, as exactly as a comparison with the goal needs."""
        if len(path.segments) < LEAST_SEGMENTS or rule.rule == "gauss":
            segments = self._quadrature(rule, path)
            return segments.sum(0) if rule.rule != "lobatto" else self._corrected(path, segments, goal)
        integral, bound = self.interpolated(path)
        rows = ((goal - integral).abs() <= bound).nonzero().flatten()
        if len(rows):
            middle, reach = integral[rows], bound[rows]
            better = self._quadrature(rule, path, rows).sum(0)
            better = torch.where(better == -math.inf, middle, better)  # a midpoint lies outside the support
            integral = integral.index_copy(0, rows, better.clamp(middle - reach, middle + reach))
        return integral.masked_fill(integral.isinf(), math.nan)

    def interpolated(self, path: Trajectory) -> tuple[Float[Tensor, " chain"], Float[Tensor, " chain"]]:
        """Return the integral of the score along the trajectories from their nodes alone, and the bound b."""
        n, chains = path.segments.shape[:2]
        matrices = interpolation(n, path.scores.dtype, path.scores.device)
        summing = path.scores.new_ones(path.scores[0, 0].numel())  # a row sum, several times faster than `sum`
        products = (matrices.scores @ path.scores.flatten(1)).mul_(matrices.segments @ path.segments.flatten(1))
        sums = products.view(-1, len(summing)).mv(summing).view(-1, chains)
        integrals, trapezoids = sums[: 3 * n].view(n, 3, chains).sum(1), sums[3 * n :]
        slopes = self.leapfrog.slope(path.scores.flatten(0, 1)).reshape(n + 1, -1)
        squares = (matrices.differences @ slopes).square_().view(-1, len(summing)).mv(summing).view(-1, chains)
        rho_squared = squares[n:].sum(0) / squares[:n].sum(0)
        rho_cubed = rho_squared * rho_squared.sqrt()  # `** 1.5` takes as long as two small matrix products
        return integrals.sum(0), BOUND * rho_cubed * (integrals - trapezoids).square_().sum(0).sqrt_()

    def _corrected(
        self, path: Trajectory, simpson: Float[Tensor, "segment chain"], goal: Tensor
    ) -> Float[Tensor, " chain"]:
        """Return Simpson's integral, corrected as by `LineIntegral()` if the comparison with the goal is open."""
        assert self.target.score is not None
        x, v, ends = (part.flatten(0, 1) for part in (path.nodes, path.segments, path.scores[1:] + path.scores[:-1]))
        excess = 1.5 * (simpson.flatten() - inner(ends, v) / 2)
        integral, bound = simpson.sum(0), LOBATTO_BOUND * excess.abs().view_as(simpson).sum(0)
        rows = (((goal - integral).abs() <= bound) & integral.isfinite()).nonzero().flatten()
        if len(rows):
            places = (rows + simpson.shape[1] * torch.arange(len(simpson), device=rows.device)[:, None]).flatten()
            correction = lobatto_correction(self.target.score, x, v, ends, excess, places)
            integral = integral.index_add(0, rows, correction.view(len(simpson), -1).sum(0))
        return integral

    def _quadrature(
        self, rule: LineIntegral, path: Trajectory, rows: Int[Tensor, " row"] | None = None
    ) -> Float[Tensor, "segment row"]:
        """Return the integral of the score on each segment by the rule's quadrature, for some chains.

        It is -inf if the quadrature evaluates the score outside the support.
        """
        assert self.target.score is not None
        ends, nodes, weights = rule.quadrature
        begins, segments, scores = (
            part if rows is None else part.index_select(1, rows) for part in (path.nodes, path.segments, path.scores)
        )
        places = line(begins, segments, nodes)
        inside = None
        if self.target.support is not None:  # the score is evaluated where a chain begins in place of those outside
            inside = self.target.support(places.flatten(0, 2)).view(places.shape[:3]).flatten(0, 1).all(0)
            places = torch.where(per_chain(inside, begins[0]), places, begins[0])
        between = self.target.score(places.flatten(0, 2)).view_as(places)
        slopes = weighted_sum(weights, between) + ends * (scores[1:] + scores[:-1])
        integral = inner(slopes.flatten(0, 1), segments.flatten(0, 1)).view(slopes.shape[:2])
        # -inf means that p is 0; an infinite score does not show this, only the support does
        integral = integral.masked_fill(integral.isinf(), math.nan)
        return integral if inside is None else integral.masked_fill(~inside, -math.inf)


def _known_parts(target: TargetLike, rule: TrajectoryRule) -> tuple[Target, TrajectoryRule]:
    """Return the target split into the parts to difference and the score to integrate, and the rule to use."""
    if isinstance(rule, LineIntegral) and isinstance(target, Product):
        if target.rest_score is None:
            return Target(target.score, target.log_density, target.support), Exact(balance=rule.balance)
        return Target(target.rest_score, target.known.log_density, target.support, target.known.score), rule
    return Target(target.score, target.log_density if isinstance(rule, Exact) else None, target.support), rule


def _validated_rule(rule: Rule) -> TrajectoryRule:
    """Return the rule; raise an error if it cannot decide about a trajectory."""
    if type(rule) in (Exact, Always):
        return rule  # type: ignore[return-value]
    fix = "Use LineIntegral(), LineIntegral('gauss', nodes=k), Exact() or Always()."
    expected = "a rule for whole trajectories"
    if type(rule) is not LineIntegral:
        checks.kind(rule, Rule, "an acceptance rule", fix)
        raise TypeError(checks.message(expected, checks.named(rule), fix))
    if rule.rule == "trapezoid":
        got = f"{rule}: its terms cancel against the kinetic energy, so the density has no effect"
        raise ValueError(checks.message(expected, got, fix))
    if rule.rule not in INTEGRATED_RULES or not rule.straight:
        raise ValueError(checks.message(expected, f"{rule}, which works on a single move only", fix))
    return rule


def _validated_target(target: TargetLike, rule: Rule) -> TargetLike:
    """Return the target; raise an error if it lacks a score, or the log density that the rule needs."""
    fix = "Wrap a score as Target(score=...), a log density as targets.from_log_density(...)."
    checks.kind(target, TargetLike, "a Target", fix)
    if target.score is None:
        fix = "Use targets.from_log_density(log_density) for a score by autograd."
        expected, got = "a target with a score, which Hamiltonian moves need", "a target without a score"
        raise ValueError(checks.message(expected, got, fix))
    if type(rule) is Exact and target.log_density is None:
        fix = "Use LineIntegral(), which integrates the score, or give the target a log_density."
        raise ValueError(checks.message(f"a target with a log_density, which {rule} needs", "a score only", fix))
    return target
