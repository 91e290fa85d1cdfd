r"""Groups of cheap moves, each group with one decision by a log density: the surrogate transition method (Liu 2001).

A rule that integrates the score is cheap, and accurate for short moves. A log density through noise is expensive, but
it also gets the weights of distant modes right. The chain makes n moves with the cheap rule, from x_0 to x_n. Each
accepted move is in balance for its own estimate D_i of log p(x_i) - log p(x_{i-1}), so the path is as likely as its
reverse up to the factor exp(sum_i D_i). The whole group is then accepted with

    a(x_n, x_0) = min(1, exp(log p(x_n) - log p(x_0) - sum_i D_i))

This makes the chain reversible for p and corrects the errors of the cheap rule: wrong weights of modes between which
the score is unknown, and modes that a learned score invents far from its training samples. If the estimates D_i are
exact, every group is accepted.

`Point.log_density` holds the running sum of the D_i, so any loop can make the cheap moves.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.algebra import per_chain
from scoremh._shared.counting import score_calls
from scoremh.acceptance import Rule
from scoremh.acceptance.rules import Decision
from scoremh.kernel.metropolis import Transition, check_values, metropolis_hastings, transition_of, validated_target
from scoremh.targets.combinations import Product
from scoremh.types import Kernel, LogDensityFn, Move, Point, Proposal, TargetLike, Trace

GROUPS_PER_CALL = 5  # groups per call of `run`: each call evaluates the log density once more, at its start


def grouped(target: TargetLike, proposal: Proposal, acceptance: Rule, final: Rule, *, group_size: int = 10) -> Kernel:
    """Return a kernel whose moves are decided one by one by a cheap rule, and in groups by a log density.

    A step of the kernel is one cheap move. If a group is rejected, the chain returns to where the group began. A
    position inside a group is provisional, so keep only the ends of groups: make `thin` a multiple of `group_size`.

    Args:
        target: The target distribution p: a `Target`, or one of `scoremh.targets`.
        proposal: Proposal distribution of the candidates.
        acceptance: Rule that decides each move, such as `LineIntegral("simpson")`. `LineIntegral()` evaluates all its
            nodes here, because groups need the ratio itself.
        final: Rule that decides each group by a log density: `ThroughNoise()` or `Exact()`.
        group_size: Number of moves in a group. Larger groups cost less per move and are rejected more often.

    Example:
        >>> from scoremh import MALA, LineIntegral, ThroughNoise, sample, targets
        >>> mixture = targets.GaussianMixture([0.8, 0.2], [[-3.0, 0.0], [3.0, 0.0]])
        >>> kernel = grouped(mixture, MALA(0.3), LineIntegral(), ThroughNoise(), group_size=5)
        >>> sample(kernel, torch.zeros(8, 2), draws=4, thin=5).draws.shape
        torch.Size([8, 4, 2])
    """
    checks.count(group_size, "group_size")
    if isinstance(target, Product):
        fix = "Use metropolis_hastings, which takes the known parts into account exactly."
        raise ValueError(checks.message("a target without known parts", checks.named(target), fix))
    cheap = metropolis_hastings(target, proposal, acceptance)
    if not acceptance.antisymmetric or acceptance.needs > {"log_density"}:
        fix = "Use LineIntegral() or Learned(fit)."
        raise ValueError(checks.message("a rule with a deterministic log ratio", checks.named(acceptance), fix))
    log_density = validated_target(target, proposal, final).log_density
    if log_density is None or final.needs != {"log_density"}:
        fix = "Use ThroughNoise() if the scores of all noise levels are known, Exact() if there is a density."
        raise ValueError(checks.message("a final rule that uses a log density", checks.named(final), fix))
    if acceptance.needs != {"log_density"}:  # otherwise points already hold the log density that the rule balances
        known = transition_of(target, proposal, acceptance)
        transition = Accumulating(known.target, known.proposal, known.rule)
        run = None if cheap.run is None else transition.run
        cheap = cheap._replace(init=transition.init, step=transition.step, run=run)
    groups = Groups(cheap, final, log_density, group_size)
    parts = (*cheap.parts, f"groups of {group_size} moves decided by {checks.named(final)}")
    return cheap._replace(step=groups.step, run=groups.run, steps_per_call=GROUPS_PER_CALL * group_size, parts=parts)


@dataclass(frozen=True, eq=False)
class Accumulating(Transition):
    """Transitions that keep in `Point.log_density` the sum of the rule's estimates D of the accepted moves."""

    def init(self, x: Tensor) -> Point:
        """Return the point that chains start from, with the sum 0."""
        return super().init(x)._replace(log_density=x.new_zeros(len(x)))

    def judge(
        self, point: Point, proposed: Point, log_uniform: Tensor, generator: torch.Generator
    ) -> tuple[Point, Decision]:
        """Return the decision about a move, by the ratio itself, and the proposed point with the sum after it."""
        rule, target, proposal = self.rule, self.target, self.proposal
        log_ratio = rule.log_ratio(point, proposed, target=target, proposal=proposal)
        change = log_ratio - proposal.log_q_ratio(point, proposed)
        if rule.balance == "direct":  # a network that gives log a itself, not as a function of log r
            log_accept = rule.log_accept(point, proposed, target=target, proposal=proposal)
        else:
            log_accept = rule.log_balanced(log_ratio)
        assert point.log_density is not None
        return proposed._replace(log_density=point.log_density + change), Decision(log_accept)


@dataclass(frozen=True, eq=False)
class Groups:
    """Cheap moves, and a decision for each group of `size` moves.

    The points of `cheap` hold the log density for which its moves are in balance; `final` decides by `log_density`.
    """

    cheap: Kernel
    final: Rule
    log_density: LogDensityFn
    size: int

    @torch.inference_mode()
    def step(self, point: Point, *, generator: torch.Generator | None = None) -> tuple[Point, Move]:
        """Make a group of one move."""
        generator = rng.resolve(generator, point.x.device)
        with score_calls() as calls:
            before = self._first_log_density(point)
            end, move = self.cheap.step(point, generator=generator)
            point, _, taken, finite = self._decide_group(point, before, end, generator)
        log_accept = move.log_accept.masked_fill(~finite, math.nan)
        return point, move._replace(log_accept=log_accept, accepted=move.accepted & taken, score_calls=calls.total)

    @torch.inference_mode()
    def run(self, point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
        """Make several moves in groups; the last group may be shorter."""
        traces, groups = [], []
        with score_calls() as calls:
            before = self._first_log_density(point)
            for done in range(0, steps, self.size):
                start, (end, trace) = point, self.cheap.steps(point, min(self.size, steps - done), generator=generator)
                point, before, taken, finite = self._decide_group(start, before, end, generator)
                trace.log_accept[-1].masked_fill_(~finite, math.nan)  # counted once for each group
                x = torch.where(per_chain(taken, start.x), trace.x, start.x)
                traces.append((x, trace.log_accept, trace.accepted & taken))
                groups.append(taken)
        x, log_accept, accepted = (torch.cat(parts) for parts in zip(*traces, strict=True))
        decided = torch.stack(groups)
        rejected = decided.numel() - int(decided.sum())
        return point, Trace(x, log_accept, accepted, calls.total, groups=decided.numel(), rejected_groups=rejected)

    def _first_log_density(self, point: Point) -> Tensor:
        """Return the log density at the start, checked; later points have a finite one, or were rejected."""
        log_density = self.log_density(point.x)
        check_values(Point(point.x, log_density=log_density))
        return log_density

    def _decide_group(
        self, start: Point, before: Tensor, end: Point, generator: torch.Generator
    ) -> tuple[Point, Tensor, Tensor, Tensor]:
        """Return the points after a group, their log density, and which groups were accepted and had a finite ratio."""
        assert start.log_density is not None
        assert end.log_density is not None
        after = self.log_density(end.x)
        log_ratio = after - before - (end.log_density - start.log_density)
        log_uniform = rng.log_uniform((len(end.x),), end.x, generator)
        taken = log_uniform <= self.final.log_balanced(log_ratio)
        return end.where(taken, start), torch.where(taken, after, before), taken, log_ratio.isfinite()
