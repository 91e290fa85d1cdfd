"""The algorithm: propose, judge, take or stay.

    x' ~ q(. | x),  u ~ U(0, 1];   x <- x' where log u < log a(x', x), else x

Every chain decides alone. A candidate outside the support, or with a number that is not finite, is a rejection: the
score is not asked outside the support, and the move's `log_accept` (-inf, NaN) tells which it was.
"""

import math

import torch
from torch import Tensor

from scoremh import _fitness, _langevin, _random
from scoremh._algebra import per_chain, rows_finite
from scoremh.acceptance import RatioRule
from scoremh.types import (
    Acceptance,
    DecidingAcceptance,
    Kernel,
    Move,
    Need,
    Point,
    Proposal,
    ScoreFn,
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
        >>> from scoremh import MALA, LineIntegral
        >>> kernel = metropolis_hastings(Target(score=lambda x: -x), MALA(0.5), LineIntegral())
        >>> point = kernel.init(torch.zeros(3, 2))
        >>> point, move = kernel.step(point, generator=torch.Generator().manual_seed(0))
        >>> move.accepted.shape
        torch.Size([3])
    """
    known = Target(target.score, target.log_density, target.support)
    needs = proposal.needs | acceptance.needs
    _fitness.check_needs(known, proposal, acceptance)
    _fitness.warn_if_degenerate(proposal, acceptance)

    @torch.inference_mode()
    def init(x: Tensor) -> Point:
        _fitness.check_start(known, x)
        with _fitness.explained():
            point = Point.at(x.clone(), known, needs)
        _fitness.check_answers(point)
        return point

    @torch.inference_mode()
    def step(point: Point, *, generator: torch.Generator | None = None) -> tuple[Point, Move]:
        generator = _random.resolve(generator, point.x.device)
        x = proposal.sample(point, generator=generator)
        log_uniform = _random.log_uniform((len(x),), x, generator)
        score = None if known.score is None else _Counted(known.score)
        log_accept, proposed = _judge(known._replace(score=score), needs, proposal, acceptance, point, x, log_uniform)
        accepted = log_uniform < log_accept
        move = Move(proposed.x, log_accept, accepted, 0 if score is None else score.calls)
        taken = proposed.map(lambda new, old: torch.where(per_chain(accepted, new), new, old), point)
        return taken, move

    return Kernel(
        init,
        step,
        run=_langevin.fused(known, proposal, acceptance),
        target_rate=_target_rate(proposal, acceptance),
        description=f"{proposal} with {acceptance}",
    )


class _Counted:
    """A score that counts the points at which it was evaluated."""

    def __init__(self, score: ScoreFn) -> None:
        self.score, self.calls = score, 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += len(x)
        return self.score(x)


def _judge(
    target: Target,
    needs: frozenset[Need],
    proposal: Proposal,
    acceptance: Acceptance,
    current: Point,
    x: Tensor,
    log_uniform: Tensor,
) -> tuple[Tensor, Point]:
    """Return log a(x, current) and the candidate as a point; only candidates with p(x) > 0 are evaluated."""
    finite = rows_finite(x)
    possible = finite if target.support is None else finite & target.support(x)
    if not possible.all():
        log_accept = torch.where(finite, -math.inf, math.nan).to(x.dtype)
        candidate = current._replace(x=x)  # what is known of the current point stands in where nothing will be taken
        if possible.any():
            there = current.map(lambda part: part[possible])
            log_accept[possible], inside = _judge(
                target._replace(support=None), needs, proposal, acceptance, there, x[possible], log_uniform[possible]
            )
            candidate = candidate.map(lambda part, values: part.index_put((possible,), values), inside)
        return log_accept, candidate
    candidate = Point.at(x, target, needs)
    if isinstance(acceptance, DecidingAcceptance):
        log_accept = acceptance.log_accept_against(current, candidate, log_uniform, target=target, proposal=proposal)
    else:
        log_accept = acceptance.log_accept(current, candidate, target=target, proposal=proposal)
    if candidate.score is not None:  # a chain must not move to where its next step cannot be computed
        log_accept = torch.where(rows_finite(candidate.score), log_accept, math.nan)
    return log_accept, candidate


def _target_rate(proposal: Proposal, acceptance: Acceptance) -> float | None:
    rates = getattr(proposal, "optimal_rates", None)
    return rates[acceptance.balance] if rates and isinstance(acceptance, RatioRule) else None
