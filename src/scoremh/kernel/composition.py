"""The algorithm: propose, judge, take or stay.

    x' ~ q(. | x),  u ~ U(0, 1];   x <- x' where log u < log a(x', x), else x

Every chain decides alone. A candidate outside the support, or with a number that is not finite, is a rejection: the
score is not asked outside the support, and the move's `log_accept` (-inf, NaN) tells which it was.
"""

from functools import partial

import torch

from scoremh._shared import rng
from scoremh._shared.algebra import per_chain
from scoremh._shared.known_parts import rule_for
from scoremh._shared.transition import judge, validated_target
from scoremh.acceptance import Always, BalancedRule, Exact
from scoremh.kernel import compatibility
from scoremh.kernel.counted_score import CountedScore, checked, density_calls
from scoremh.kernel.fused import fused
from scoremh.types import (
    Acceptance,
    Kernel,
    Move,
    Need,
    Point,
    Proposal,
    Tally,
    Target,
    TargetLike,
)


def metropolis_hastings(target: TargetLike, proposal: Proposal, acceptance: Acceptance) -> Kernel:
    """Compose a target, a proposal and an acceptance rule into a kernel.

    Args:
        target: What is known of p: a `Target`, or one of `scoremh.targets`.
        proposal: How candidates are drawn, for example `MALA(0.1)`.
        acceptance: How they are judged, for example `LineIntegral()`.

    Returns:
        A kernel to give to `sample`, or to step by hand.

    Example:
        >>> from scoremh import MALA, LineIntegral, Target
        >>> kernel = metropolis_hastings(Target(score=lambda x: -x), MALA(0.5), LineIntegral())
        >>> point = kernel.init(torch.zeros(3, 2))
        >>> point, move = kernel.step(point, generator=torch.Generator().manual_seed(0))
        >>> move.accepted.shape
        torch.Size([3])
    """
    rule = rule_for(target, acceptance)
    known = validated_target(target, proposal, rule)
    asked, needs = checked(known), proposal.needs | rule.needs
    compatibility.warn_if_degenerate(proposal, acceptance)
    return Kernel(  # of functions at the top of a module, which can be pickled
        partial(compatibility.first_point, known, needs),
        partial(_step, asked, needs, proposal, rule),
        run=fused(asked, proposal, rule),
        target_rate=_target_rate(proposal, acceptance),
        parts=(proposal, _named_density(target, acceptance)),
        unadjusted=partial(metropolis_hastings, target, proposal, Always()) if "score" in proposal.needs else None,
        target=known if needs - {"log_density"} else known._replace(score=None),
    )


@torch.inference_mode()
def _step(
    target: Target,
    needs: frozenset[Need],
    proposal: Proposal,
    rule: Acceptance,
    point: Point,
    *,
    generator: torch.Generator | None = None,
) -> tuple[Point, Move]:
    """Make one transition."""
    generator = rng.resolve(generator, point.x.device)
    x = proposal.sample(point, generator=generator)
    log_uniform = rng.log_uniform((len(x),), x, generator)
    score, tally = None if target.score is None else CountedScore(target.score), Tally()
    log_accept, proposed = judge(
        target._replace(score=score), needs, proposal, rule, point, x, log_uniform, generator, tally
    )
    accepted = log_uniform < log_accept
    calls = 0 if score is None else score.calls
    if "log_density" in needs:
        calls += density_calls(target.log_density, x)
    move = Move(proposed.x, log_accept, accepted, calls, tally.factors, tally.clipped)
    taken = proposed.map(lambda new, old: torch.where(per_chain(accepted, new), new, old), point)
    return taken, move


def _named_density(target: TargetLike, acceptance: Acceptance) -> object:
    """Return the rule, with the density that it uses where that is an estimate."""
    estimated = isinstance(acceptance, Exact) and getattr(target, "density_is_estimated", False)
    return f"{acceptance} for the log density through noise" if estimated else acceptance


def _target_rate(proposal: Proposal, acceptance: Acceptance) -> float | None:
    rates = getattr(proposal, "optimal_rates", None)
    if not rates or not isinstance(acceptance, BalancedRule):
        return None
    rate: float = rates["barker" if acceptance.balance == "direct" else acceptance.balance]
    return rate
