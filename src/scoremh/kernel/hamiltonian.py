r"""Hamiltonian Monte Carlo from a score: long moves along leapfrog trajectories.

Every transition draws a momentum p ~ N(0, I) in coordinates u, x = L u, follows the dynamics for L steps of size h to
(x', p'), and accepts with

    log r = D + |p|^2 / 2 - |p'|^2 / 2,    D = log p(x') - log p(x)

With g = L^T s, one step from (x_k, p_k) makes a segment v_k:

    m = p_k + (h / 2) g_k,    v_k = h L m,    x_{k+1} = x_k + v_k,    p_{k+1} = m + (h / 2) g_{k+1}

`Exact()` takes D from the density. `LineIntegral()` integrates the score along every segment, with a quadrature whose
inner nodes t_i (one for Simpson) share one score call. With w the weight at both ends of a segment, and k the log
density of the known parts of a product, whose score is left out of s here:

    D = k(x') - k(x) + sum_j v_j.(sum_i w_i s(x_j + t_i v_j) + w (s_j + s_{j+1}))

Both are antisymmetric: from x' with momentum -p' the trajectory has the same nodes. The trapezoid rule at the nodes
would leave nothing of the density, because the kinetic terms contain it with the opposite sign. A trajectory that
leaves the support, at a node or where the quadrature evaluates the score, is rejected in both directions; so is one
that diverges: it meets a number that is not finite, or log r falls below -MAX_ENERGY_ERROR.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.algebra import inner, line, per_chain, rows_finite, weighted_sum
from scoremh._shared.counting import score_calls
from scoremh.acceptance import Always, Exact, LineIntegral, Rule
from scoremh.coordinates import Affine
from scoremh.kernel.metropolis import counted, first_point
from scoremh.targets.combinations import Product
from scoremh.types import Balance, Kernel, Move, Need, Point, SupportFn, Target, TargetLike


class Trajectory(NamedTuple):
    """Where a trajectory went: its end, its segments, and why it was given up."""

    end: Float[Tensor, "chain *event"]
    """The last node; where a chain was refused, the place that was refused."""
    scores: Float[Tensor, "chain part *event"]
    """The scores at the end; where a chain was refused, those of some earlier node."""
    momentum: Float[Tensor, "chain *event"]
    """The momentum at the end, in coordinates u."""
    nodes: Float[Tensor, "segment chain *event"]
    """Where the segments begin."""
    segments: Float[Tensor, "segment chain *event"]
    """The segments v_k."""
    score_sums: Float[Tensor, "segment chain *event"]
    """s_k + s_{k+1}, of what is integrated."""
    refused: Float[Tensor, " chain"]
    """0; -inf where a node lay outside the support, NaN where a number was not finite."""


def values_at(
    function: Callable[[Tensor], Tensor], x: Tensor, rows: Bool[Tensor, " chain"], otherwise: Tensor
) -> Tensor:
    """Return the values of a function at these rows of x, where alone it is evaluated, and `otherwise` elsewhere."""
    if bool(rows.all()):
        return function(x)
    return otherwise.index_put((rows,), function(x[rows])) if bool(rows.any()) else otherwise


@dataclass(frozen=True, eq=False, repr=False)
class Leapfrog:
    """Leapfrog trajectories.

    Args:
        step_size: Step size h of the integrator.
        steps: Number of steps of a trajectory.
        covariance: C = L L^T, the inverse of the mass matrix, `(d,)` or `(d, d)`; the identity when None.
        random_length: Draw the number of steps anew for every transition, uniformly from 1 to `steps`.
    """

    step_size: float
    steps: int
    covariance: Tensor | None = None
    random_length: bool = False

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
        """The coordinates u in which momenta are standard normal; None for those of x."""
        return None if self.covariance is None else Affine.from_covariance(self.covariance)

    def color(self, z: Tensor) -> Tensor:
        """Return L z."""
        return z if self.coordinates is None else self.coordinates.color(z)

    def slope(self, score: Tensor) -> Tensor:
        """Return g = L^T s."""
        return score if self.coordinates is None else self.coordinates.pull_gradient(score, score)

    def length(self, like: Tensor, generator: torch.Generator | None) -> int:
        """Return the number of steps of the next trajectory, one for all chains; it does not depend on where they are.

        Args:
            like: Tensor on whose device to draw.
            generator: Random number generator; the same seed gives the same lengths.
        """
        if not self.random_length:
            return int(self.steps)
        uniform = rng.uniform((), torch.empty((), dtype=torch.float64, device=like.device), generator)
        return 1 + int(uniform * self.steps)

    def trajectory(
        self,
        scores: Callable[[Tensor], Tensor],
        support: SupportFn | None,
        x: Tensor,
        at_x: Float[Tensor, "chain part *event"],
        momentum: Tensor,
        steps: int,
    ) -> Trajectory:
        """Follow the dynamics, asking for the scores once at every node but the first, and at none that is refused.

        Args:
            scores: Function of x that returns the scores there, `(chain, part, *event)`.
            support: Where p is positive, or None for everywhere.
            x: First node.
            at_x: Scores there.
            momentum: First momentum, in coordinates u.
            steps: Number of steps.
        """
        h, s, refused, given_up = self.step_size, at_x, x.new_zeros(len(x)), x
        nodes, segments, sums, p = [], [], [], torch.add(momentum, self.slope(at_x[:, 0]), alpha=h / 2)
        for step in range(1, steps + 1):
            v = h * self.color(p)
            there = x + v
            moving, before = self._possible(there, support), refused == 0
            if not bool((moving & before).all()):
                reason = torch.where(rows_finite(there), -math.inf, math.nan).to(refused)
                given_up = torch.where(per_chain(before & ~moving, x), there, given_up)
                refused = torch.where(before & ~moving, reason, refused)
                there, v = (torch.where(per_chain(refused == 0, x), a, b) for a, b in ((there, x), (v, 0.0)))
            nodes.append(x)
            segments.append(v)
            at_there = values_at(scores, there, refused == 0, s)
            sums.append(s[:, -1] + at_there[:, -1])
            x, s = there, at_there
            p = torch.add(p, self.slope(s[:, 0]), alpha=h if step < steps else h / 2)
        refused = torch.where((refused == 0) & ~rows_finite(s), math.nan, refused)
        end = torch.where(per_chain(refused == -math.inf, x), given_up, x)
        return Trajectory(end, s, p, torch.stack(nodes), torch.stack(segments), torch.stack(sums), refused)

    def kinetic_change(self, momentum: Tensor, path: Trajectory) -> Float[Tensor, " chain"]:
        """Return |p|^2 / 2 - |p'|^2 / 2."""
        return (inner(momentum, momentum) - inner(path.momentum, path.momentum)) / 2

    def _possible(self, x: Tensor, support: SupportFn | None) -> Bool[Tensor, " chain"]:
        """Return which chains are at finite places inside the support."""
        finite = rows_finite(x)
        return finite if support is None else finite & support(x)


# The most efficient acceptance rates in high dimension: Beskos, Pillai, Roberts, Sanz-Serna and Stuart (2013) for
# Metropolis; for Barker's balance by the same limit, as Agrawal, Vats, Latuszynski and Roberts (2023) did for MALA.
HAMILTONIAN_RATES: Mapping[Balance, float] = {"metropolis": 0.651, "barker": 0.381}
INTEGRATED_RULES = "simpson", "gauss"
MAX_ENERGY_ERROR = 1000.0  # nats, Stan's limit beyond which a trajectory diverges
TrajectoryRule = Exact | LineIntegral | Always


def hamiltonian(
    target: TargetLike,
    step_size: float,
    steps: int,
    acceptance: Rule,
    *,
    covariance: Tensor | None = None,
    random_length: bool = False,
) -> Kernel:
    """Return the kernel of Hamiltonian Monte Carlo, with a fresh momentum for every transition.

    Args:
        target: What is known of p, its score at least: a `Target`, or one of `scoremh.targets`.
        step_size: Step size h of the leapfrog integrator; `tune` finds one for a number of steps.
        steps: Number of leapfrog steps of a trajectory. Good lengths `steps * step_size` are near the largest standard
            deviation of p, in the coordinates of the covariance.
        acceptance: How trajectories are judged: `LineIntegral()` or `LineIntegral("gauss")`, along every segment,
            `Exact()` where there is a density, or `Always()`. The known parts of a product are never integrated.
        covariance: C, the inverse of the mass matrix, `(d,)` or `(d, d)`; that of p is best; the identity when None.
        random_length: Draw the number of steps anew for every transition, uniformly from 1 to `steps`: no trajectory
            length then returns to where it started, transition after transition.

    Returns:
        A kernel to give to `sample`, or to step by hand.

    Example:
        >>> from scoremh import LineIntegral, Target, sample
        >>> kernel = hamiltonian(Target(score=lambda x: -x), 0.3, 5, LineIntegral())
        >>> chains = sample(kernel, torch.zeros(8, 50), draws=20, generator=torch.Generator().manual_seed(0))
        >>> chains.acceptance_rate > 0.9
        True
        >>> chains.score_calls == 8 + 8 * 20 * (5 + 5)  # at the start, and at the nodes and midpoints of trajectories
        True
    """
    known, rule = _known_parts(_validated_target(target, acceptance), _validated_rule(acceptance))
    trajectories = Trajectories(counted(known), Leapfrog(step_size, steps, covariance, random_length), rule)
    return Kernel(
        trajectories.init,
        trajectories.step,
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

    `target.log_density` is of what is differenced, `target.score` of what is integrated; both are of the whole target
    if `target.known_score` is None.
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
        """Make one trajectory, and move the chains that accept its end."""
        generator = rng.resolve(generator, point.x.device)
        momentum = rng.normal(tuple(point.x.shape), point.x, generator)
        log_uniform = rng.log_uniform((len(point.x),), point.x, generator)
        with score_calls() as calls:
            path = self.path(point, momentum, self.leapfrog.length(point.x, generator))
            log_accept, proposed = self.log_accept(point, momentum, path)
        accepted = log_uniform < log_accept
        taken = proposed.map(lambda new, old: torch.where(per_chain(accepted, new), new, old), point)
        return taken, Move(proposed.x, log_accept, accepted, calls.total)

    def path(self, point: Point, momentum: Tensor, steps: int) -> Trajectory:
        """Return the trajectory from a point."""
        assert point.score is not None
        parts = [point.score] if point.rest_score is None else [point.score, point.rest_score]
        return self.leapfrog.trajectory(
            self._scores, self.target.support, point.x, torch.stack(parts, 1), momentum, steps
        )

    def log_accept(self, point: Point, momentum: Tensor, path: Trajectory) -> tuple[Tensor, Point]:
        """Return log a and the end of the trajectory as a point."""
        possible, log_density = path.refused == 0, point.log_density
        log_ratio = self.leapfrog.kinetic_change(momentum, path)
        if log_density is not None and self.target.log_density is not None:
            at_end = values_at(self.target.log_density, path.end, possible, log_density)
            log_density, log_ratio = at_end, at_end - log_density + log_ratio
        proposed = Point(
            path.end, path.scores[:, 0], log_density, path.scores[:, 1] if point.rest_score is not None else None
        )
        if isinstance(self.rule, Always):
            return path.refused, proposed
        if isinstance(self.rule, LineIntegral):
            log_ratio = log_ratio + self._integral(self.rule, path)
        diverged = log_ratio.isfinite() & (log_ratio < -MAX_ENERGY_ERROR)
        log_accept = self.rule.log_balanced(log_ratio).masked_fill(diverged, math.nan)
        return torch.where(possible, log_accept, path.refused), proposed

    def _scores(self, x: Tensor) -> Float[Tensor, "chain part *event"]:
        """Return the score of the whole, and behind it that of what is integrated where that is another."""
        assert self.target.score is not None
        score, known = self.target.score(x), self.target.known_score
        return score.unsqueeze(1) if known is None else torch.stack([score + known(x), score], 1)

    def _integral(self, rule: LineIntegral, path: Trajectory) -> Float[Tensor, " chain"]:
        """Return the score integrated along every segment; -inf where a node of it is outside the support."""
        assert rule.quadrature is not None
        assert self.target.score is not None
        ends, nodes, weights = rule.quadrature
        places = line(path.nodes, path.segments, nodes)
        grid, flat = places.shape[:3], places.flatten(0, 2)  # over nodes, segments and chains
        inside = path.refused == 0
        if self.target.support is not None:
            inside = inside & self.target.support(flat).reshape(grid).flatten(0, 1).all(0)
        between = values_at(self.target.score, flat, inside.expand(grid).flatten(), torch.zeros_like(flat))
        slopes = weighted_sum(weights, between.reshape(places.shape)) + ends * path.score_sums
        integral = inner(slopes.flatten(0, 1), path.segments.flatten(0, 1)).reshape(grid[1:]).sum(0)
        # only a support, never a score, can tell that p is 0
        return integral.masked_fill(integral.isinf(), math.nan).masked_fill(~inside, -math.inf)


def _known_parts(target: TargetLike, rule: TrajectoryRule) -> tuple[Target, TrajectoryRule]:
    """Return what is differenced and what is integrated of a target, and the rule that judges its trajectories."""
    if isinstance(rule, LineIntegral) and isinstance(target, Product):
        if target.rest_score is None:
            return Target(target.score, target.log_density, target.support), Exact(balance=rule.balance)
        return Target(target.rest_score, target.known.log_density, target.support, target.known.score), rule
    return Target(target.score, target.log_density if isinstance(rule, Exact) else None, target.support), rule


def _validated_rule(rule: Rule) -> TrajectoryRule:
    """Return a rule that can judge a trajectory, and refuse any other."""
    if type(rule) in (Exact, Always):
        return rule  # type: ignore[return-value]
    fix = "Use LineIntegral(), LineIntegral('gauss', nodes=k), Exact() or Always()."
    expected = "a rule that can judge a whole trajectory"
    if type(rule) is not LineIntegral:
        checks.kind(rule, Rule, "an acceptance rule", fix)
        raise TypeError(checks.message(expected, checks.named(rule), fix))
    if rule.rule == "trapezoid":
        got = f"{rule}: at the nodes of the leapfrog it cancels the kinetic terms, and nothing of the density is left"
        raise ValueError(checks.message(expected, got, fix))
    if rule.rule not in INTEGRATED_RULES or not rule.straight:
        raise ValueError(checks.message(expected, f"{rule}, which is made for one straight line", fix))
    return rule


def _validated_target(target: TargetLike, rule: Rule) -> TargetLike:
    """Return the target, and refuse one without a score, or without the density that the rule needs."""
    fix = "Wrap a score as Target(score=...), a log density as targets.from_log_density(...)."
    checks.kind(target, TargetLike, "a Target", fix)
    if target.score is None:
        fix = "Use targets.from_log_density(log_density) for a score by autograd."
        raise ValueError(checks.message("a target with a score, which Hamiltonian moves need", "one without", fix))
    if type(rule) is Exact and target.log_density is None:
        fix = "Use LineIntegral(), which integrates the score, or give the target a log_density."
        raise ValueError(checks.message(f"a target with a log_density, which {rule} needs", "a score only", fix))
    return target
