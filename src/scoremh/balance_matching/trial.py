"""Whether a target and a proposal can be learned from: tried at a few samples, before a training is spent on them."""

import torch
from torch import Tensor

from scoremh import _balance, _checks, _random
from scoremh._algebra import per_chain
from scoremh.types import Point, Proposal, Target

SLOPES = (0.01, 0.03)  # of differences, in units of the step from x to x'; two of them say how far to trust them


def try_out(target: Target, proposal: Proposal, x: Tensor, *, differentiate: bool) -> None:
    """Refuse a score or a proposal with answers of a wrong shape or type, or with gradients that are not its own.

    Args:
        target: Has the score, and the support outside of which it is not asked.
        proposal: q.
        x: A few samples inside the support.
        differentiate: Whether the training needs gradients of log q.
    """
    at = Point.at(x, target, proposal.needs | {"score"})
    _checks.answer(at.score, x, x.shape, "score")
    candidates = proposal.sample(at, generator=_random.seeded(0, x.device))
    _checks.answer(candidates, x, x.shape, "proposal.sample")
    _checks.answer(proposal.log_prob(at, given=at), x, x.shape[:1], "proposal.log_prob")
    if differentiate:
        _require_graph(target, proposal, x)
        _compare_gradients(target, proposal, x, candidates.detach())


def _require_graph(target: Target, proposal: Proposal, x: Tensor) -> None:
    """Refuse a score that autograd cannot see through, where the proposal's gradient has to go through it."""
    here = _balance.leaf(x, target, proposal)
    beside = Point.at(x.lerp(x.roll(1, 0), 1e-3), target, proposal.needs)
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
    """Refuse a log q whose gradient by autograd is not that of its values: detached, or computed without torch."""
    generator = _random.seeded(1, x.device)
    size = per_chain((candidates - x).flatten(1).square().mean(1).sqrt(), x)
    v, w = (size * _random.normal(tuple(x.shape), x, generator) for _ in range(2))
    places = {t: (x + t * v, candidates + t * w) for slope in SLOPES for t in (-slope, slope)} | {0.0: (x, candidates)}
    if target.support is not None:
        asked = [place for pair in places.values() for place in pair]
        rows = torch.stack([target.support(place) for place in asked]).all(0)
        places = {t: (before[rows], after[rows]) for t, (before, after) in places.items()}
        v, w = v[rows], w[rows]
        if not len(v):
            return

    def change(t: float) -> Tensor:
        points = (Point.at(place, target, proposal.needs) for place in places[t])
        return _balance.log_q_ratio(proposal, *points).detach()

    fine, coarse = ((change(slope) - change(-slope)) / (2 * slope) for slope in SLOPES)
    gradient = _balance.q_gradient(proposal, *(_balance.leaf(place, target, proposal) for place in places[0.0]))
    exact = (gradient * torch.cat([v.flatten(1), w.flatten(1)], 1)).sum(1)
    error = (exact - fine).abs()
    wrong = error > 0.05 + 0.2 * fine.abs() + 4 * (fine - coarse).abs()  # NaN is not
    if wrong.sum() > len(wrong) / 2:
        worst = torch.where(wrong, error, 0).argmax()
        expected = f"log_prob of {_checks.named(proposal)} to be differentiable by autograd in both points"
        got = f"a slope of {float(exact[worst]):.3g} where its values have one of {float(fine[worst]):.3g}"
        fix = (
            "Compute it with torch alone, without detach and torch.no_grad, from x and from what the proposal needs at "
            'both points; or use form="potential", which needs no gradient of it.'
        )
        raise ValueError(_checks.message(expected, got, fix))
