"""Whether a target and a proposal can be learned from: tried at a few samples, before a training is spent on them."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh import _balance, _checks, _random
from scoremh._algebra import gauss_legendre, inner, line, per_chain, rows_finite, weighted_sum
from scoremh.types import Point, Proposal, Target

SURE = 20.0  # log ratios beyond this decide alike
FINE, COARSE = gauss_legendre(16), gauss_legendre(8)  # their difference says how far to trust the finer one


def try_out(target: Target, proposal: Proposal, x: Tensor, *, differentiate: bool) -> None:
    """Refuse a score or a proposal with answers of a wrong shape or type, or with gradients that are not its own.

    Args:
        target: Has the score, and the support outside of which it is not asked.
        proposal: q.
        x: A few samples inside the support.
        differentiate: Whether the training needs gradients of log q.
    """
    with _checks.explained():
        at = Point.at(x, target, proposal.needs | {"score"})
    _checks.answer(at.score, x, x.shape, "score")
    if at.score is not None and not (finite := rows_finite(at.score)).all():
        got = f"NaN or inf at {int((~finite).sum())} of {len(x)}, the first at {_checks.short(x[~finite][0].tolist())}"
        fix = "Mend the score, or give the target a support that leaves such points out."
        raise ValueError(_checks.message("a score that is finite at the samples", got, fix))
    candidates = proposal.sample(at, generator=_random.seeded(0, x.device))
    _checks.answer(candidates, x, x.shape, "proposal.sample")
    _checks.answer(proposal.log_prob(at, given=at), x, x.shape[:1], "proposal.log_prob")
    if differentiate:
        _require_graph(target, proposal, x)
        _compare_gradients(target, proposal, x, candidates.detach())


def _require_graph(target: Target, proposal: Proposal, x: Tensor) -> None:
    """Refuse a score that autograd cannot see through, where the proposal's gradient has to go through it."""
    near = x.lerp(x.roll(1, 0), 1e-3)
    if target.support is not None:
        near = near.where(per_chain(target.support(near), x), x)
    here, beside = _balance.leaf(x, target, proposal), Point.at(near, target, proposal.needs)
    for name in ("score", "log_density"):
        answer, moved = getattr(here, name), getattr(beside, name)
        if name not in proposal.needs or answer.requires_grad:
            continue
        if (answer != moved).reshape(len(x), -1).any(1).float().mean() > 0.5:  # one that is flat has no gradient
            got = "one that autograd does not see: its answer requires no gradient though x does"
            fix = (
                f"Use targets.from_log_density, or compute the {name} with create_graph=True and without torch.no_grad;"
                ' or use form="potential", which needs no gradient of it.'
            )
            expected = f"a {name} to differentiate, as {_checks.named(proposal)} needs"
            raise ValueError(_checks.message(expected, got, fix))


def _compare_gradients(target: Target, proposal: Proposal, x: Tensor, candidates: Tensor) -> None:
    """Refuse a log q whose gradient by autograd does not add up to its values: detached, without torch, or with jumps.

    log q(x | x') - log q(x' | x) is 0 where x' = x: elsewhere it is the integral of its gradient along the way there.
    """
    v = candidates - x
    if target.support is not None:
        places = line(x, v, (*FINE.nodes, *COARSE.nodes, 1.0))
        rows = target.support(places.flatten(0, 1)).reshape(len(places), len(x)).all(0)
        x, v = x[rows], v[rows]
        if not len(x):
            return
    fine, coarse = (
        weighted_sum(rule.weights, _along(target, proposal, x, v, rule.nodes)[1]) for rule in (FINE, COARSE)
    )
    values = _along(target, proposal, x, v, (1.0,))[0][0]
    name = _checks.named(proposal)
    if lost := int((values == -math.inf).sum()):
        got = f"{lost} of {len(x)} candidates x' with q(x | x') = 0, where its gradient says nothing"
        fix = 'Use form="potential", which does not need it.'
        raise ValueError(_checks.message(f"steps of {name} that can be taken back", got, fix))
    error = (fine.clamp(-SURE, SURE) - values.clamp(-SURE, SURE)).abs()
    wrong = error > 0.1 + 0.05 * values.abs() + 2 * (fine - coarse).abs()  # NaN is not
    if wrong.double().mean() > 1 / 20:
        worst = torch.where(wrong, error, 0).argmax()
        score = ", and the score it needs," if "score" in proposal.needs else ""
        expected = f"log_prob of {name}{score} to be smooth and differentiable by autograd in both points"
        got = f"gradients that add up to {float(fine[worst]):.3g} where log q changes by {float(values[worst]):.3g}"
        fix = (
            "Compute it with torch alone, without detach, torch.no_grad and jumps, from x and from what the proposal "
            'needs at both points; or use form="potential", which needs no gradient of it.'
        )
        raise ValueError(_checks.message(expected, got, fix))


def _along(
    target: Target, proposal: Proposal, x: Tensor, v: Tensor, nodes: tuple[float, ...]
) -> tuple[Float[Tensor, "node chain"], Float[Tensor, "node chain"]]:
    """Return log q(x | x') - log q(x' | x) at x' = x + t v, and its slope in t by autograd, for all nodes t."""

    def repeated(part: Tensor) -> Tensor:
        return part.detach().repeat(len(nodes), *(1,) * (part.ndim - 1))

    here = Point.at(x, target, proposal.needs).map(repeated)
    with torch.enable_grad():
        there = Point.at(line(x, v, nodes).flatten(0, 1).requires_grad_(), target, proposal.needs)
        change = _balance.log_q_ratio(proposal, here, there)
        gradient = torch.zeros_like(there.x)
        if change.requires_grad:
            (gradient,) = torch.autograd.grad(change.sum(), there.x, materialize_grads=True)
    slopes = inner(gradient, repeated(v))
    return change.detach().reshape(len(nodes), len(x)), slopes.reshape(len(nodes), len(x))
