r"""Cheap moves, and one exact decision for a group of them: the surrogate transition method (Liu 2001).

A rule that integrates a score is cheap and, for short moves, accurate; a log density through noise is expensive, and
right about modes that lie far apart. From x_0, make n moves with the cheap rule, to x_n. Every accepted move balances
its own estimate D_i of log p(x_i) - log p(x_{i-1}), so the path is as likely as its reverse up to exp(sum D_i), and

    a(x_n, x_0) = min(1, exp(log p(x_n) - log p(x_0) - sum_i D_i))

makes the chain reversible for p, whatever the cheap rule gets wrong: weights of modes that no score connects, and modes
that a learned score has where there were no samples. If it gets nothing wrong, every group is accepted.

`Point.log_density` holds the sum of the D_i along the way, so any loop can make the moves.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.algebra import per_chain
from scoremh._shared.counting import score_calls
from scoremh.acceptance import Rule
from scoremh.kernel.metropolis import check_values, metropolis_hastings, transition_of, validated_target
from scoremh.targets.combinations import Product
from scoremh.types import Kernel, LogDensityFn, Move, Point, Proposal, TargetLike, Trace

GROUPS_PER_CALL = 5  # that `run` should be called for at once: each call evaluates the log density once more


def grouped(target: TargetLike, proposal: Proposal, acceptance: Rule, final: Rule, *, group_size: int = 10) -> Kernel:
    """Return a kernel of cheap moves that are judged in groups by a log density.

    The steps of the kernel are the cheap moves. If a group is rejected, its chain is back where the group began; draws
    within a group are not judged yet, so keep draws at the ends of groups.

    Args:
        target: What is known of p.
        proposal: Proposal distribution of the candidates.
        acceptance: Rule that decides every move, such as `LineIntegral()`.
        final: Rule with a log density that decides every group, `ThroughNoise()` or `Exact()`.
        group_size: Number of moves in a group; the more, the cheaper, and the more groups are rejected.

    Example:
        >>> from scoremh import MALA, LineIntegral, ThroughNoise, sample, targets
        >>> mixture = targets.GaussianMixture([0.8, 0.2], [[-3.0, 0.0], [3.0, 0.0]])
        >>> kernel = grouped(mixture, MALA(0.3), LineIntegral(), ThroughNoise(), group_size=5)
        >>> sample(kernel, torch.zeros(8, 2), draws=4, thin=5).draws.shape
        torch.Size([8, 4, 2])
    """
    checks.count(group_size, "group_size")
    if isinstance(target, Product):
        fix = "Use metropolis_hastings, which differences its known parts."
        raise ValueError(checks.message("a target without known parts", checks.named(target), fix))
    cheap = metropolis_hastings(target, proposal, acceptance)
    if not acceptance.antisymmetric or acceptance.needs > {"log_density"}:
        fix = 'Use LineIntegral(), LineIntegral("adaptive") or Learned(fit).'
        raise ValueError(checks.message("a rule with a deterministic log ratio", checks.named(acceptance), fix))
    log_density = validated_target(target, proposal, final).log_density
    if log_density is None or final.needs != {"log_density"}:
        fix = "Use ThroughNoise() if the scores of all noise levels are known, Exact() if there is a density."
        raise ValueError(checks.message("a final rule by a log density", checks.named(final), fix))
    if acceptance.needs != {"log_density"}:  # else points hold it, and it is what the rule balances
        transition = transition_of(target, proposal, acceptance, accumulates=True)
        run = None if cheap.run is None else transition.run
        cheap = cheap._replace(init=transition.init, step=transition.step, run=run)
    groups = Groups(cheap, final, log_density, group_size)
    parts = (*cheap.parts, f"{group_size} moves judged by {checks.named(final)}")
    return cheap._replace(step=groups.step, run=groups.run, least_steps=GROUPS_PER_CALL * group_size, parts=parts)


@dataclass(frozen=True, eq=False)
class Groups:
    """Cheap moves and the decisions about groups of them.

    Args:
        cheap: Kernel of the moves; its points hold the log density that its rule balances.
        final: Rule that decides a group.
        log_density: Log density that it decides by.
        size: Number of moves in a group.
    """

    cheap: Kernel
    final: Rule
    log_density: LogDensityFn
    size: int

    @torch.inference_mode()
    def step(self, point: Point, *, generator: torch.Generator | None = None) -> tuple[Point, Move]:
        """Make one move, which is a group of its own."""
        generator = rng.resolve(generator, point.x.device)
        with score_calls() as calls:
            before = self._first_log_density(point)
            end, move = self.cheap.step(point, generator=generator)
            point, _, taken = self._judged(point, before, end, generator)
        return point, move._replace(accepted=move.accepted & taken, score_calls=calls.total)

    @torch.inference_mode()
    def run(self, point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
        """Make steps in groups of moves, the last of which may be shorter."""
        traces = []
        with score_calls() as calls:
            before = self._first_log_density(point)
            for done in range(0, steps, self.size):
                start, (end, trace) = point, self.cheap.steps(point, min(self.size, steps - done), generator=generator)
                point, before, taken = self._judged(start, before, end, generator)
                x = torch.where(per_chain(taken, start.x), trace.x, start.x)
                traces.append((x, trace.log_accept, trace.accepted & taken))
        x, log_accept, accepted = (torch.cat(parts) for parts in zip(*traces, strict=True))
        return point, Trace(x, log_accept, accepted, calls.total)

    def _first_log_density(self, point: Point) -> Tensor:
        """Return the log density of the start; later points have been accepted by it."""
        log_density = self.log_density(point.x)
        check_values(Point(point.x, log_density=log_density))
        return log_density

    def _judged(
        self, start: Point, before: Tensor, end: Point, generator: torch.Generator
    ) -> tuple[Point, Tensor, Tensor]:
        """Return where the chains are after a group, their log density, and which groups were accepted."""
        assert start.log_density is not None
        assert end.log_density is not None
        after = self.log_density(end.x)
        log_ratio = after - before - (end.log_density - start.log_density)
        log_uniform = rng.log_uniform((len(end.x),), end.x, generator)
        taken = log_uniform < self.final.log_balanced(log_ratio)
        point = end.map(lambda new, old: torch.where(per_chain(taken, new), new, old), start)
        return point, torch.where(taken, after, before), taken
