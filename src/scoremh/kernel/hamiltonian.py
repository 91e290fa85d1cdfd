r"""Hamiltonian Monte Carlo from a score: long moves along leapfrog trajectories.

Each transition draws a momentum p ~ N(0, I) in the coordinates u of x = L u, makes several leapfrog steps of size h to
(x', p'), and accepts with

    log r = D + |p|^2 / 2 - |p'|^2 / 2,    D = log p(x') - log p(x)

With g = L^T s, the step from (x_k, p_k) is a segment v_k:

    m = p_k + (h / 2) g_k,    v_k = h L m,    x_{k+1} = x_k + v_k,    p_{k+1} = m + (h / 2) g_{k+1}

`Exact()` takes D from the log density. `LineIntegral()` integrates the score along each segment by a quadrature with
inner nodes t_i and weights w_i, and weight w at both ends; all segments share one score call. If the target is a
product, k is the log density of its known parts, and s the score of the others:

    D = k(x') - k(x) + sum_j v_j.(sum_i w_i s(x_j + t_i v_j) + w (s_j + s_{j+1}))

Both are antisymmetric: the trajectory from x' with momentum -p' has the same nodes. The trapezoid rule is not offered:
the kinetic terms contain it with the opposite sign, so the density would cancel. A trajectory is rejected, in both
directions, if it leaves the support at a node or at a node of the quadrature, and if it diverges: a value is not
finite, or log r is below -MAX_ENERGY_ERROR.
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
    """A trajectory of each chain: its end, its segments, and whether it had to stop early."""

    end: Float[Tensor, "chain *event"]
    """The last node; for a chain that left the support, its first node outside."""
    scores: Float[Tensor, "chain part *event"]
    """The scores at the end; for a stopped chain, the scores at an earlier node."""
    momentum: Float[Tensor, "chain *event"]
    """The momentum at the end, in coordinates u."""
    nodes: Float[Tensor, "segment chain *event"]
    """The beginnings x_k of the segments."""
    segments: Float[Tensor, "segment chain *event"]
    """The segments v_k."""
    score_sums: Float[Tensor, "segment chain *event"]
    """s_k + s_{k+1}, where s is the score that is integrated."""
    stopped: Float[Tensor, " chain"]
    """0 for a complete trajectory, -inf if a node lay outside the support, NaN if a value was not finite."""


def values_at(
    function: Callable[[Tensor], Tensor], x: Tensor, rows: Bool[Tensor, " chain"], otherwise: Tensor
) -> Tensor:
    """Evaluate a function at some rows of x only; return `otherwise` for the other rows."""
    if bool(rows.all()):
        return function(x)
    return otherwise.index_put((rows,), function(x[rows])) if bool(rows.any()) else otherwise


@dataclass(frozen=True, eq=False, repr=False)
class Leapfrog:
    """Leapfrog trajectories, with the parameters of `hamiltonian`."""

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
        """The coordinates u in which momenta are standard normal; None if they are the coordinates x."""
        return None if self.covariance is None else Affine.from_covariance(self.covariance)

    def color(self, z: Tensor) -> Tensor:
        """Return L z."""
        return z if self.coordinates is None else self.coordinates.color(z)

    def slope(self, score: Tensor) -> Tensor:
        """Return g = L^T s."""
        return score if self.coordinates is None else self.coordinates.pull_gradient(score, score)

    def length(self, like: Tensor, generator: torch.Generator | None) -> int:
        """Return the number of steps of the next trajectory: the same for all chains, drawn on the device of `like`."""
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
        """Make leapfrog steps from x, where the scores are `at_x`.

        The scores, a function of x that returns `(chain, part, *event)`, are evaluated once at every node but the
        first. A chain stops before a node that is not finite or outside the support.
        """
        h, s, stopped, stopped_at = self.step_size, at_x, x.new_zeros(len(x)), x
        nodes, segments, sums, p = [], [], [], torch.add(momentum, self.slope(at_x[:, 0]), alpha=h / 2)
        for step in range(1, steps + 1):
            v = h * self.color(p)
            there = x + v
            moving, before = self._possible(there, support), stopped == 0
            if not bool((moving & before).all()):
                reason = torch.where(rows_finite(there), -math.inf, math.nan).to(stopped)
                stopped_at = torch.where(per_chain(before & ~moving, x), there, stopped_at)
                stopped = torch.where(before & ~moving, reason, stopped)
                there, v = (torch.where(per_chain(stopped == 0, x), a, b) for a, b in ((there, x), (v, 0.0)))
            nodes.append(x)
            segments.append(v)
            at_there = values_at(scores, there, stopped == 0, s)
            sums.append(s[:, -1] + at_there[:, -1])
            x, s = there, at_there
            p = torch.add(p, self.slope(s[:, 0]), alpha=h if step < steps else h / 2)
        stopped = torch.where((stopped == 0) & ~rows_finite(s), math.nan, stopped)
        end = torch.where(per_chain(stopped == -math.inf, x), stopped_at, x)
        return Trajectory(end, s, p, torch.stack(nodes), torch.stack(segments), torch.stack(sums), stopped)

    def kinetic_change(self, momentum: Tensor, path: Trajectory) -> Float[Tensor, " chain"]:
        """Return |p|^2 / 2 - |p'|^2 / 2."""
        return (inner(momentum, momentum) - inner(path.momentum, path.momentum)) / 2

    def _possible(self, x: Tensor, support: SupportFn | None) -> Bool[Tensor, " chain"]:
        """Return which chains have a finite x inside the support."""
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
        target: The target distribution p, with a score: a `Target`, or one of `scoremh.targets`.
        step_size: Step size h of the leapfrog integrator; `tune` finds one for a given number of steps.
        steps: Number of leapfrog steps of a trajectory. A good length `steps * step_size` is near the largest standard
            deviation of p, in the coordinates of the covariance.
        acceptance: Acceptance rule: `LineIntegral()` or `LineIntegral("gauss")`, which integrate the score along each
            segment, `Exact()` for a target with a log density, or `Always()`. The known parts of a product are never
            integrated.
        covariance: C = L L^T, the inverse of the mass matrix, `(d,)` or `(d, d)`; the covariance of p is best. The
            identity if None.
        random_length: Draw the number of steps for every transition, uniformly from 1 to `steps`. This prevents
            trajectories that return to their start again and again.

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
        possible, log_density = path.stopped == 0, point.log_density
        log_ratio = self.leapfrog.kinetic_change(momentum, path)
        if log_density is not None and self.target.log_density is not None:
            at_end = values_at(self.target.log_density, path.end, possible, log_density)
            log_density, log_ratio = at_end, at_end - log_density + log_ratio
        proposed = Point(
            path.end, path.scores[:, 0], log_density, path.scores[:, 1] if point.rest_score is not None else None
        )
        if isinstance(self.rule, Always):
            return path.stopped, proposed
        if isinstance(self.rule, LineIntegral):
            log_ratio = log_ratio + self._integral(self.rule, path)
        diverged = log_ratio.isfinite() & (log_ratio < -MAX_ENERGY_ERROR)
        log_accept = self.rule.log_balanced(log_ratio).masked_fill(diverged, math.nan)
        return torch.where(possible, log_accept, path.stopped), proposed

    def _scores(self, x: Tensor) -> Float[Tensor, "chain part *event"]:
        """Return the score of the target and, for a product with known parts, the score of its other parts."""
        assert self.target.score is not None
        score, known = self.target.score(x), self.target.known_score
        return score.unsqueeze(1) if known is None else torch.stack([score + known(x), score], 1)

    def _integral(self, rule: LineIntegral, path: Trajectory) -> Float[Tensor, " chain"]:
        """Return the integral of the score along all segments; -inf if a node lies outside the support."""
        assert rule.quadrature is not None
        assert self.target.score is not None
        ends, nodes, weights = rule.quadrature
        places = line(path.nodes, path.segments, nodes)
        grid, flat = places.shape[:3], places.flatten(0, 2)  # over nodes, segments and chains
        inside = path.stopped == 0
        if self.target.support is not None:
            inside = inside & self.target.support(flat).reshape(grid).flatten(0, 1).all(0)
        between = values_at(self.target.score, flat, inside.expand(grid).flatten(), torch.zeros_like(flat))
        slopes = weighted_sum(weights, between.reshape(places.shape)) + ends * path.score_sums
        integral = inner(slopes.flatten(0, 1), path.segments.flatten(0, 1)).reshape(grid[1:]).sum(0)
        # -inf means that p is 0; an infinite score does not show this, only the support does
        return integral.masked_fill(integral.isinf(), math.nan).masked_fill(~inside, -math.inf)


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
