"""Whether target, proposal and network go together: tried at a few samples, before a training is spent on them."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scoremh._shared import checks, detailed_balance, rng
from scoremh._shared.algebra import gauss_legendre, inner, line, per_chain, rows_finite, weighted_sum, whole_way
from scoremh.networks import Form
from scoremh.types import LogDensityFn, Point, Proposal, Target

# Two rules each: their difference says how far to trust the finer one.
ROUGH = gauss_legendre(16), gauss_legendre(8)
FINE = gauss_legendre(256), gauss_legendre(128)
CANDIDATE_SEED = 0x5C0AE  # unlikely to be that of the samples
MAX_WRONG_SHARE = 1 / 20  # of the candidates, whose gradients may not add up before a proposal is refused


def try_proposal(target: Target, proposal: Proposal, x: Tensor, *, differentiate: bool) -> None:
    """Refuse a score or a proposal with answers of a wrong shape or type, or with gradients that are not its own.

    Args:
        target: Target with a score, which is not asked outside of its support.
        proposal: q.
        x: A few samples inside the support.
        differentiate: Whether the training needs gradients of log q.
    """
    with checks.explained():
        at = Point.at(x, target, proposal.needs | {"score"})
    checks.answer(at.score, x, x.shape, "score")
    assert at.score is not None
    if not (finite := rows_finite(at.score)).all():
        got = f"NaN or inf at {int((~finite).sum())} of {len(x)}, the first at {checks.short(x[~finite][0].tolist())}"
        fix = "Correct the score, or give the target a support that leaves such points out."
        raise ValueError(checks.message("a score that is finite at the samples", got, fix))
    candidates = proposal.sample(at, generator=rng.seeded(CANDIDATE_SEED, x.device))
    checks.answer(candidates, x, x.shape, "proposal.sample")
    checks.answer(proposal.log_prob(at, given=at), x, x.shape[:1], "proposal.log_prob")
    if differentiate:
        _require_graph(target, proposal, x)
        _compare_gradients(target, proposal, at.map(Tensor.detach), candidates.detach())


@torch.no_grad()
def try_network(form: Form, kind: type[nn.Module], x: Tensor) -> None:
    """Refuse a network that does not answer with a number per pair, or per point.

    Args:
        form: The acceptance function.
        kind: Class of the network in it.
        x: A few samples.
    """
    _require_own_gradient(kind)
    try:
        with rng.for_layers_of(form, 0):
            answer = form(*form.inputs(x))
    except (RuntimeError, ValueError, TypeError) as error:
        fix = "net(proposed, current) answers for pairs, net(x) for a potential; check its input size and its dtype."
        expected = f"{form.call} to take {checks.describe(x)}"
        raise ValueError(checks.message(expected, f"an error: {error}", fix)) from error
    checks.answer(answer, x, x.shape[:1], "net")
    form.require_answer(answer)


@torch.no_grad()
def try_anchors(anchors: LogDensityFn, x: Tensor) -> None:
    """Refuse anchors that do not answer with a number per point.

    Args:
        anchors: x -> log p(x).
        x: A few samples.
    """
    if not callable(anchors):
        fix = "Pass fit.log_density, or another function that answers log p, up to a constant."
        raise TypeError(checks.message("anchors to be a function of x", checks.describe(anchors), fix))
    with checks.explained():
        checks.answer(anchors(x), x, x.shape[:1], "anchors")


def _require_own_gradient(kind: type) -> None:
    """Refuse a potential with a forward of its own and the closed form of another's gradient."""
    forward, gradient = (
        next((cls for cls in kind.__mro__ if name in vars(cls)), object) for name in ("forward", "value_and_gradient")
    )
    if gradient is not object and forward is not gradient and issubclass(forward, gradient):
        got, fix = f"that of {gradient.__name__}", "Write it too, or derive the class from torch.nn.Module."
        raise ValueError(checks.message(f"a value_and_gradient for the forward of {forward.__name__}", got, fix))


def _require_graph(target: Target, proposal: Proposal, x: Tensor) -> None:
    """Refuse a score that autograd cannot see through, where the proposal's gradient has to go through it."""
    near = x.lerp(x.roll(1, 0), 1e-3)
    if target.support is not None:
        near = near.where(per_chain(target.support(near), x), x)
    here, beside = detailed_balance.leaf(x, target, proposal), Point.at(near, target, proposal.needs)
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
            expected = f"a {name} to differentiate, as {checks.named(proposal)} needs"
            raise ValueError(checks.message(expected, got, fix))


def _compare_gradients(target: Target, proposal: Proposal, at: Point, candidates: Tensor) -> None:
    """Refuse a log q whose gradient by autograd does not add up to its values: detached, without torch, or with jumps.

    log q(x | x') - log q(x' | x) is 0 where x' = x: elsewhere it is the integral of its gradient along the way there.
    """
    v = candidates - at.x
    if target.support is not None:
        rows = whole_way(target.support, at.x, v, tuple(node for rule in (*ROUGH, *FINE) for node in rule.nodes))
        at, v = at.map(lambda part: part[rows]), v[rows]
        if not len(v):
            return
    tried, name = len(v), checks.named(proposal)
    values = _along(target, proposal, at, v, (1.0,))[0][0]
    if lost := int((values == -math.inf).sum()):
        got = f"{lost} of {tried} candidates x' with q(x | x') = 0, where its gradient says nothing"
        fix = 'Use form="potential", which does not need it.'
        raise ValueError(checks.message(f"reversible steps of {name}", got, fix))
    for rules in (ROUGH, FINE):  # what looks wrong is looked at more closely
        total, other = (weighted_sum(one.weights, _along(target, proposal, at, v, one.nodes)[1]) for one in rules)
        wrong = (total - values).abs() > 0.1 + 0.05 * values.abs() + 2 * (total - other).abs()  # NaN is not
        at, v, values, total = at.map(lambda part, rows=wrong: part[rows]), v[wrong], values[wrong], total[wrong]
        if len(v) <= MAX_WRONG_SHARE * tried:
            return
    worst = (total - values).abs().argmax()
    score = ", and the score it needs," if "score" in proposal.needs else ""
    expected = f"log_prob of {name}{score} to be smooth and differentiable by autograd in both points"
    got = f"gradients that add up to {float(total[worst]):.3g} where log q changes by {float(values[worst]):.3g}"
    fix = (
        "Compute it with torch alone, without detach, torch.no_grad and jumps, from x and from what the proposal needs "
        'at both points; or use form="potential", which needs no gradient of it.'
    )
    raise ValueError(checks.message(expected, got, fix))


def _along(
    target: Target, proposal: Proposal, at: Point, v: Tensor, nodes: tuple[float, ...]
) -> tuple[Float[Tensor, "node chain"], Float[Tensor, "node chain"]]:
    """Return log q(x | x') - log q(x' | x) at x' = x + t v, and its slope in t by autograd, for all nodes t."""

    def repeated(part: Tensor) -> Tensor:
        return part.detach().repeat(len(nodes), *(1,) * (part.ndim - 1))

    here = at.map(repeated)
    with torch.enable_grad():
        there = Point.at(line(at.x, v, nodes).flatten(0, 1).requires_grad_(), target, proposal.needs)
        change = detailed_balance.log_q_ratio(proposal, here, there)
        gradient = torch.zeros_like(there.x)
        if change.requires_grad:
            (gradient,) = torch.autograd.grad(change.sum(), there.x, materialize_grads=True)
    slopes = inner(gradient, repeated(v))
    return change.detach().reshape(len(nodes), len(v)), slopes.reshape(len(nodes), len(v))
