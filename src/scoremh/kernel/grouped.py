r"""Cheap moves, and one exact decision for a group of them: the surrogate transition method (Liu 2001).

A rule that integrates a score is cheap and, for short moves, accurate; a log density through noise is expensive, and
right about what lies far apart. From x_0, make n moves with the cheap rule, to x_n. Every accepted move balances
its own estimate D_i of log p(x_i) - log p(x_{i-1}), so the path is as likely as its reverse but for exp(sum D_i), and

    a(x_n, x_0) = min(1, exp(log p(x_n) - log p(x_0) - sum_i D_i))

makes the chain reversible for p, whatever the cheap rule gets wrong: weights of modes that no score connects, and wells
that a learned score has where there were no samples. Where it gets nothing wrong, every group is accepted.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.algebra import per_chain, rows_finite
from scoremh._shared.detailed_balance import log_q_ratio
from scoremh.acceptance import BalancedRule, LineIntegral, RatioRule, Taylor
from scoremh.kernel import metropolis
from scoremh.kernel.metropolis import CountedScore, density_calls, metropolis_hastings, validated_target
from scoremh.types import (
    Acceptance,
    Kernel,
    LogDensityFn,
    Move,
    Need,
    PartlyKnown,
    Point,
    Proposal,
    Run,
    Target,
    TargetLike,
    Trace,
)

GROUPS_PER_CALL = 5  # that `run` should be asked for at once: each call evaluates the log density once more


def surrogate(
    target: TargetLike, proposal: Proposal, acceptance: Acceptance, final: Acceptance, *, moves: int = 10
) -> Kernel:
    """Return a kernel of cheap moves that are judged in groups by a log density.

    Steps are the cheap moves. Where a group is rejected its chain is back where the group began; draws within a group
    are not judged yet, so keep draws at the ends of groups.

    Args:
        target: What is known of p.
        proposal: How candidates are drawn.
        acceptance: Rule that judges every move, such as `LineIntegral()`.
        final: Rule with a log density that judges every group, `ThroughNoise()` or `Exact()`.
        moves: Number of moves in a group; the more, the cheaper, and the more groups are rejected.

    Example:
        >>> from scoremh import MALA, LineIntegral, ThroughNoise, sample, targets
        >>> mixture = targets.GaussianMixture([0.8, 0.2], [[-3.0, 0.0], [3.0, 0.0]])
        >>> kernel = surrogate(mixture, MALA(0.3), LineIntegral(), ThroughNoise(), moves=5)
        >>> sample(kernel, torch.zeros(8, 2), draws=4, thin=5).draws.shape
        torch.Size([8, 4, 2])
    """
    checks.count(moves, "moves")
    if isinstance(target, PartlyKnown):
        fix = "Use metropolis_hastings, which differences its known parts."
        raise ValueError(checks.message("a target that is no product with known parts", checks.named(target), fix))
    rule, cheap = _balanced_rule(acceptance), metropolis_hastings(target, proposal, acceptance)
    known = validated_target(target, proposal, acceptance)
    log_density = validated_target(target, proposal, final).log_density
    if log_density is None or not isinstance(final, RatioRule) or final.needs != {"log_density"}:
        fix = "Use ThroughNoise() where the scores of all noise levels are known, Exact() where there is a density."
        raise ValueError(checks.message("a final rule by a log density", checks.named(final), fix))
    # a rule that keeps a log density at every point has balanced its change over the group, by the fused loop as well
    fused = cheap.run if rule.needs == {"log_density"} else None  # type: ignore[attr-defined]
    walk = _Walk(known, proposal, rule, log_density, final, fused)

    parts = (*cheap.parts, f"{moves} moves judged by {checks.named(final)}")
    run, least = partial(_run, walk, moves), GROUPS_PER_CALL * moves
    return cheap._replace(step=partial(_step, walk), run=run, least_steps=least, parts=parts)


def names_its_ratio(rule: Acceptance) -> bool:
    """Return whether a rule balances an estimate of its own that it can name: not one-sided, and not random."""
    random = isinstance(rule, LineIntegral) and rule.rule == "exact"
    one_sided = isinstance(rule, Taylor) and not rule.average
    return isinstance(rule, BalancedRule) and not random and not one_sided


def _balanced_rule(rule: Acceptance) -> BalancedRule:
    """Return the rule, and refuse one that does not balance an estimate of its own."""
    if not names_its_ratio(rule):
        fix = 'Use LineIntegral(), LineIntegral("adaptive") or Learned(fit).'
        raise ValueError(checks.message("a rule with a ratio that it can name", checks.named(rule), fix))
    assert isinstance(rule, BalancedRule)
    return rule


@torch.inference_mode()
def _step(walk: "_Walk", point: Point, *, generator: torch.Generator | None = None) -> tuple[Point, Move]:
    """Make one move, which is a group of its own."""
    generator = rng.resolve(generator, point.x.device)
    counted, score = walk.counting()
    log_density = walk.log_density(point.x)
    metropolis.check_answers(Point(point.x, log_density=log_density))
    there, proposed, log_accept, taken, change = counted.move(point, generator)
    kept, calls = walk.judged(there, walk.log_density(there.x) - log_density - change, generator)
    last = there.map(lambda new, old: torch.where(per_chain(kept, new), new, old), point)
    calls += walk.cost(point.x) + (0 if score is None else score.calls)
    return last, Move(proposed, log_accept, taken & kept, calls)


@torch.inference_mode()
def _run(walk: "_Walk", moves: int, point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
    """Make steps in groups of moves, the last of which may be shorter."""
    log_density, calls = walk.log_density(point.x), walk.cost(point.x)
    metropolis.check_answers(Point(point.x, log_density=log_density))  # of the start: no other is ever accepted
    traces = []
    for done in range(0, steps, moves):
        end, trace, change = walk.group(point, min(moves, steps - done), generator)
        there = walk.log_density(end.x)
        taken, cost = walk.judged(end, there - log_density - change, generator)
        calls += cost + trace.score_calls
        traces.append(trace if taken.all() else _taken_back(trace, point.x, taken))
        point = end.map(lambda new, old, by=taken: torch.where(per_chain(by, new), new, old), point)
        log_density = torch.where(taken, there, log_density)
    x, log_accepts, accepted = (torch.cat(parts) for parts in zip(*(trace[:3] for trace in traces), strict=True))
    return point, Trace(x, log_accepts, accepted, calls)


def _taken_back(trace: Trace, x: Tensor, taken: Tensor) -> Trace:
    """Return a trace in which the chains whose group was rejected have stayed at x."""
    return trace._replace(x=torch.where(per_chain(taken, x), trace.x, x), accepted=trace.accepted & taken)


@dataclass(frozen=True)
class _Walk:
    """The cheap moves, with what they add up to.

    Args:
        target: What the cheap rule knows of p.
        proposal: How candidates are drawn.
        rule: How every move is judged.
        log_density: Log density by which every group is judged.
        final: Rule that judges by it.
        fused: Loop of the cheap kernel, where its points keep the log density that it balances.
    """

    target: Target
    proposal: Proposal
    rule: BalancedRule
    log_density: LogDensityFn
    final: RatioRule
    fused: Run | None

    def counting(self) -> "tuple[_Walk, CountedScore | None]":
        """Return the walk with a score that counts its calls, and that score."""
        score = None if self.target.score is None else CountedScore(self.target.score)
        return replace(self, target=self.target._replace(score=score)), score

    def judged(self, end: Point, log_ratio: Tensor, generator: torch.Generator) -> tuple[Tensor, int]:
        """Return which groups are accepted, and what their log density cost."""
        log_uniform = rng.log_uniform((len(end.x),), end.x, generator)
        return log_uniform < self.final.log_balanced(log_ratio), self.cost(end.x)

    def cost(self, x: Tensor) -> int:
        """Return the score calls that the log density of these points takes."""
        return density_calls(self.log_density, x)

    def group(self, point: Point, moves: int, generator: torch.Generator) -> tuple[Point, Trace, Tensor]:
        """Return where some moves end, what happened, and the sum of the changes of log p that were accepted."""
        if self.fused is None:
            counted, score = self.counting()
            last, trace, change = counted._moves(point, moves, generator)
            return last, trace._replace(score_calls=0 if score is None else score.calls), change
        last, trace = self.fused(point, moves, generator=generator)
        assert last.log_density is not None
        assert point.log_density is not None
        return last, trace, last.log_density - point.log_density

    def _moves(self, point: Point, moves: int, generator: torch.Generator) -> tuple[Point, Trace, Tensor]:
        """Make moves one by one."""
        xs, log_accepts, takens = [], [], []
        total = torch.zeros_like(point.x.flatten(1)[:, 0])
        for _ in range(moves):
            point, _, log_accept, taken, change = self.move(point, generator)
            total = total + change
            xs.append(point.x)
            log_accepts.append(log_accept)
            takens.append(taken)
        return point, Trace(torch.stack(xs), torch.stack(log_accepts), torch.stack(takens)), total

    def move(self, point: Point, generator: torch.Generator) -> tuple[Point, Tensor, Tensor, Tensor, Tensor]:
        """Return where a move ends, the candidate, log a, whether it was taken, and the change of log p if it was."""
        needs: frozenset[Need] = self.proposal.needs | self.rule.needs  # type: ignore[attr-defined]
        x = self.proposal.sample(point, generator=generator)
        finite = rows_finite(x)
        possible = finite if self.target.support is None else finite & self.target.support(x)
        candidate = Point.at(torch.where(per_chain(possible, x), x, point.x), self.target, needs)
        log_accept, change = self._judged(point, candidate)
        log_accept = torch.where(possible, log_accept, torch.where(finite, -math.inf, math.nan).to(log_accept))
        if candidate.score is not None:
            log_accept = log_accept.masked_fill(~rows_finite(candidate.score), math.nan)
        taken = rng.log_uniform((len(x),), x, generator) < log_accept
        there = candidate.map(lambda new, old: torch.where(per_chain(taken, new), new, old), point)
        return there, x, log_accept, taken, torch.where(taken, change, 0.0)

    def _judged(self, current: Point, proposed: Point) -> tuple[Tensor, Tensor]:
        """Return log a of a move, and the change of log p that it balances."""
        rule, parts = self.rule, {"target": self.target, "proposal": self.proposal}
        log_q = log_q_ratio(self.proposal, current, proposed)
        if isinstance(rule, RatioRule):
            change = rule.log_density_change(current, proposed, target=self.target)
            return rule.log_balanced(change + log_q), change
        log_ratio = rule.log_ratio(current, proposed, **parts)  # type: ignore[arg-type]
        if rule.balance == "direct":
            return rule.log_accept(current, proposed, **parts), log_ratio - log_q  # type: ignore[arg-type]
        return rule.log_balanced(log_ratio), log_ratio - log_q
