"""What a kernel decides about a candidate, for kernels and for what compares them."""

import math
from typing import get_args

import torch
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.algebra import rows_finite
from scoremh.types import (
    Acceptance,
    DecidingAcceptance,
    InformedAcceptance,
    Need,
    Point,
    Proposal,
    ScoreModel,
    Tally,
    Target,
    TargetLike,
)


def validated_target(target: TargetLike, proposal: Proposal, rule: Acceptance | None = None) -> Target:
    """Return what proposal and rule know of p, having refused parts that are none, or that lack what they need."""
    fix = "Wrap a score as Target(score=...), a log density as targets.from_log_density(...)."
    checks.kind(target, TargetLike, "a Target", fix)
    checks.kind(proposal, Proposal, "a Proposal", "Pass MALA(0.1), for example.")
    if rule is not None:
        checks.kind(rule, Acceptance, "an Acceptance", "Pass LineIntegral(), for example.")
    if target.score is None and target.log_density is None:
        fix = "Pass Target(score=...) or Target(log_density=...), or one of scoremh.targets."
        raise ValueError(checks.message("a target with a score or a log density", "a target with neither", fix))
    levels = target if isinstance(target, ScoreModel) else getattr(target, "levels", None)
    known = Target(target.score, target.log_density, target.support, levels=levels)
    if isinstance(rule, InformedAcceptance):
        known = rule.known(known)
    _require_needs(proposal, known)
    if rule is not None:
        _require_needs(rule, known)
    if isinstance(rule, InformedAcceptance):
        rule.require(known, proposal)
    return known


def _require_needs(part: Proposal | Acceptance, known: Target) -> None:
    """Refuse a part that needs what is not known of p."""
    if unknown := set(part.needs) - set(get_args(Need)):
        expected = f"needs to be of {', '.join(map(repr, get_args(Need)))}"
        raise ValueError(checks.message(expected, f"{unknown} of {checks.named(part)}", "Leave the others out."))
    if known.log_density is None and "log_density" in part.needs:
        fix = "Use LineIntegral(), which integrates the score, or give the target a log_density."
        raise ValueError(checks.message(f"a target with a log_density, which {part} needs", "a score only", fix))
    if known.score is None and part.needs & {"score", "inner_score"}:
        fix = "Use RandomWalk(std) with Exact(), or targets.from_log_density(log_density) for a score by autograd."
        raise ValueError(checks.message(f"a target with a score, which {part} needs", "a log density only", fix))


def scored_target(target: TargetLike, proposal: Proposal) -> Target:
    """Return what is known of p, having refused a target without a score."""
    known = validated_target(target, proposal)
    if known.score is None:
        fix = "Use targets.from_log_density(log_density), or Exact() where there is a density."
        raise ValueError(checks.message("a target with a score", "a log density only", fix))
    return known


def judge(
    target: Target,
    needs: frozenset[Need],
    proposal: Proposal,
    acceptance: Acceptance,
    current: Point,
    x: Tensor,
    log_uniform: Tensor,
    generator: torch.Generator | None = None,
    tally: Tally | None = None,
) -> tuple[Tensor, Point]:
    """Return log a(x, current) and the candidate as a point; only candidates with p(x) > 0 are evaluated."""
    finite = rows_finite(x)
    possible = finite if target.support is None else finite & target.support(x)
    if not possible.all():
        log_accept = torch.where(finite, -math.inf, math.nan).to(x.dtype)
        candidate = current._replace(x=x)  # what is known of the current point stands in where nothing will be taken
        if possible.any():
            there = current.map(lambda part: part[possible])
            log_accept[possible], inside = judge(
                target._replace(support=None),
                needs,
                proposal,
                acceptance,
                there,
                x[possible],
                log_uniform[possible],
                generator,
                tally,
            )
            candidate = candidate.map(lambda part, values: part.index_put((possible,), values), inside)
        return log_accept, candidate
    candidate = Point.at(x, target, needs)
    if isinstance(acceptance, DecidingAcceptance):
        parts = {"target": target, "proposal": proposal, "generator": generator, "tally": tally}
        log_accept = acceptance.log_accept_against(current, candidate, log_uniform, **parts)  # type: ignore[arg-type]
    else:
        log_accept = acceptance.log_accept(current, candidate, target=target, proposal=proposal)
    if candidate.score is not None:  # a chain must not move to where its next step cannot be computed
        log_accept = torch.where(rows_finite(candidate.score), log_accept, math.nan)
    return log_accept, candidate
