r"""Detailed balance in terms of what a score knows, for what learns an acceptance and for what judges one.

An acceptance a is balanced for p and q where

    D_a(x', x) = log a(x', x) - log a(x, x')  =  log r(x', x) = log p(x') - log p(x) + log q(x | x') - log q(x' | x)

A score knows no side of it, but the gradient of the right one with respect to (x, x'):

    (-s(x), s(x')) + grad [log q(x | x') - log q(x' | x)]

A network for a is called as `net(proposed, current)` and answers log a, or has a `log_ratio` of its own.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks
from scoremh.types import Point, Proposal, Target


def log_accepts(net: Callable[[Tensor, Tensor], Tensor], proposed: Tensor, current: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a network of pairs answers in both orders, log a(x', x) and log a(x, x'), in one forward."""
    forth, back = net(torch.cat([proposed, current]), torch.cat([current, proposed])).chunk(2)
    return forth, back


def leaf(x: Tensor, target: Target, proposal: Proposal) -> Point:
    """Return a point with its score, where what the proposal needs of x can be differentiated."""
    x = x.detach().requires_grad_()
    with torch.set_grad_enabled(bool(proposal.needs)), checks.explained():
        return Point.at(x, target, proposal.needs | {"score"})


def score_gradient(current: Point, proposed: Point) -> Float[Tensor, "chain gradient"]:
    """Return (-s(x), s(x')), flattened: the gradient of log p(x') - log p(x)."""
    assert current.score is not None
    assert proposed.score is not None
    return torch.cat([-current.score.detach().flatten(1), proposed.score.detach().flatten(1)], 1)


def q_gradient(proposal: Proposal, current: Point, proposed: Point) -> Float[Tensor, "chain gradient"]:
    """Return the gradient of log q(x | x') - log q(x' | x) with respect to (x, x'), flattened; both are leaves."""
    ends = current.x, proposed.x
    gradients = tuple(map(torch.zeros_like, ends))
    with torch.enable_grad():
        change = proposal.log_q_ratio(current, proposed).sum()
    if change.requires_grad:
        gradients = torch.autograd.grad(change, ends, materialize_grads=True)
    return torch.cat([gradient.flatten(1) for gradient in gradients], 1)


def wanted_gradient(proposal: Proposal, current: Point, proposed: Point) -> Float[Tensor, "chain gradient"]:
    """Return the gradient of log r with respect to (x, x'), flattened; both points are leaves."""
    return score_gradient(current, proposed) + q_gradient(proposal, current, proposed)


def log_q_between(target: Target, proposal: Proposal, x: Tensor) -> Float[Tensor, " answer"]:
    """Return log q from the first half of some points to the second: it tells proposals apart, by their scores as well.

    All the way and parts of it: a step that is bounded knows nothing of samples that are far from each other.
    """
    with checks.explained():
        every, half = Point.at(x, target, proposal.needs), -(-len(x) // 2)
    given, to = every.map(lambda part: part[:half]), every.map(lambda part: part[half:])
    return torch.cat(
        [proposal.log_prob(to._replace(x=given.x.lerp(to.x, share)), given=given) for share in (1.0, 0.1, 0.01)]
    ).detach()
