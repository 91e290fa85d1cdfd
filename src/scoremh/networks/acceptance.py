r"""Networks for acceptance functions, and the three forms in which an acceptance function is learned.

| form | log a(x', x) | D_a = log a(x', x) - log a(x, x') |
|---|---|---|
| `Free` (the paper's) | logsigmoid f(x', x) | any; its scale is free |
| `Antisymmetric` | logsigmoid g, with g = f(x', x) - f(x, x') | g |
| `Potential` | logsigmoid g, with g = phi(x') - phi(x) + log q(x \| x') - log q(x' \| x) | g |

f is a network of pairs, `AcceptanceMLP` by default; phi is a network of points, `PotentialMLP` by default. The first
two forms are valid for one proposal and step size only; a `ProposalProbe` recognises the proposal by its values of
log q. A potential is a log density up to a constant and valid for every proposal. The default loss of each form is in
`balance_matching.MATCHING`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import gelu, logsigmoid, silu

from scoremh._shared import checks
from scoremh._shared.probe import Probe
from scoremh.networks.layers import Event, event_shape, linear
from scoremh.types import LogDensityFn, Point, Proposal, Target

Points = Float[Tensor, "chain *event"]
PerChain = Float[Tensor, " chain"]


class _Residual(nn.Module):
    def __init__(self, hidden: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.first, self.second = linear(hidden, hidden, generator), linear(hidden, hidden, generator)

    def forward(self, y: Tensor) -> Tensor:
        change: Tensor = self.second(gelu(self.first(y)))
        return y + change


class AcceptanceMLP(nn.Module):
    """The paper's acceptance network: both points in one vector, residual blocks, GELU, and a sigmoid.

    In the paper, a GELU between the last layer and the sigmoid keeps every acceptance above 0.458; here it is before
    the last layer. `forward` returns the logsigmoid of `logit`.

    Args:
        event: Shape of one event, or its dimension.
        hidden: Width of all layers.
        blocks: Number of residual blocks, of two layers each.
        generator: Random number generator for the initial weights; the same seed gives the same weights.
    """

    def __init__(
        self, event: Event, hidden: int = 256, blocks: int = 3, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        checks.count(hidden, "hidden")
        checks.count(blocks, "blocks")
        self.event, self.hidden, self.blocks = event_shape(event), hidden, blocks
        self.first = linear(2 * math.prod(self.event), hidden, generator)
        self.body = nn.Sequential(*(_Residual(hidden, generator) for _ in range(blocks)))
        self.last = linear(hidden, 1, generator)

    @property
    def config(self) -> dict[str, object]:
        """The arguments to build such a network."""
        return {"event": list(self.event), "hidden": self.hidden, "blocks": self.blocks}

    def logit(self, proposed: Points, current: Points) -> PerChain:
        """Return log a - log (1 - a)."""
        y = self.first(torch.cat([proposed.flatten(1), current.flatten(1)], 1))
        logit: Tensor = self.last(gelu(self.body(y)))
        return logit.squeeze(1)

    def forward(self, proposed: Points, current: Points) -> PerChain:
        """Return log a(proposed, current)."""
        return logsigmoid(self.logit(proposed, current))


class _SiluAndSlope(torch.autograd.Function):
    """silu(a) and silu'(a) with explicit derivatives, which are faster than those that autograd would build."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> tuple[Tensor, Tensor]:
        s = a.sigmoid()
        y = a * s
        slope = torch.addcmul(s, y, 1 - s)
        ctx.save_for_backward(a, s, slope)
        return y, slope

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, for_y: Tensor, for_slope: Tensor) -> Tensor:
        a, s, slope = ctx.saved_tensors
        curvature: Tensor = (1 - 2 * s).mul_(a).add_(2).mul_(s - s * s)  # silu''
        return curvature.mul_(for_slope).addcmul_(for_y, slope)


class PotentialMLP(nn.Module):
    """A log density up to a constant, `phi(x) = net(x) - |x|^2 / 2`; initially a standard normal.

    Args:
        event: Shape of one event, or its dimension.
        hidden: Width of the hidden layers, with silu.
        layers: Number of hidden layers.
        generator: Random number generator for the initial weights; the same seed gives the same weights.
    """

    def __init__(
        self, event: Event, hidden: int = 128, layers: int = 3, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        checks.count(hidden, "hidden")
        checks.count(layers, "layers")
        self.event, self.hidden, self.layers = event_shape(event), hidden, layers
        sizes = [math.prod(self.event), *[hidden] * layers]
        self.body = nn.ModuleList(linear(a, b, generator) for a, b in pairwise(sizes))
        self.last = linear(hidden, 1, generator, bias=False)  # a constant does not change the gradient
        nn.init.zeros_(self.last.weight)

    @property
    def config(self) -> dict[str, object]:
        """The arguments to build such a network."""
        return {"event": list(self.event), "hidden": self.hidden, "layers": self.layers}

    def forward(self, x: Points) -> PerChain:
        """Return phi(x)."""
        flat = y = x.flatten(1)
        for layer in self.body:
            y = silu(layer(y))
        value: Tensor = self.last(y)
        return value.squeeze(1) - flat.square().sum(1) / 2

    def value_and_gradient(self, x: Points) -> tuple[PerChain, Points]:
        """Return phi(x) and its gradient, both differentiable in the weights."""
        flat = y = x.flatten(1)
        slopes = []
        for layer in self.body:
            y, slope = _SiluAndSlope.apply(layer(y))  # type: ignore[no-untyped-call]
            slopes.append(slope)
        phi: Tensor = self.last(y).squeeze(1)
        gradient: Tensor = self.last.weight
        for layer, slope in zip(reversed(self.body), reversed(slopes), strict=True):
            gradient = (gradient * slope) @ layer.weight
        return phi - flat.square().sum(1) / 2, (gradient - flat).reshape(x.shape)


PROBED_SAMPLES = 6  # number of samples for a probe: log q is computed from each of three to one of the others


# Detailed balance in terms of a score. An acceptance a is in balance for p and q if D_a(x', x) = log r(x', x), with
#
#     D_a(x', x) = log a(x', x) - log a(x, x'),    log r = log p(x') - log p(x) + log q(x | x') - log q(x' | x)
#
# A score does not give log r, but its gradient with respect to (x, x'):
#
#     (-s(x), s(x')) + grad [log q(x | x') - log q(x' | x)]


def log_accepts(net: Callable[[Tensor, Tensor], Tensor], proposed: Tensor, current: Tensor) -> tuple[Tensor, Tensor]:
    """Return a network of pairs in both orders, log a(x', x) and log a(x, x'), from one forward pass."""
    forth, back = net(torch.cat([proposed, current]), torch.cat([current, proposed])).chunk(2)
    return forth, back


def leaf(x: Tensor, target: Target, proposal: Proposal) -> Point:
    """Return a point with its score, at a leaf x; values that the proposal needs are differentiable in x."""
    x = x.detach().requires_grad_()
    with torch.set_grad_enabled(bool(proposal.needs)), checks.explained():
        return Point.at(x, target, proposal.needs | {"score"})


def score_gradient(current: Point, proposed: Point) -> Float[Tensor, "chain gradient"]:
    """Return (-s(x), s(x')), flattened: the gradient of log p(x') - log p(x)."""
    assert current.score is not None
    assert proposed.score is not None
    return torch.cat([-current.score.detach().flatten(1), proposed.score.detach().flatten(1)], 1)


def q_gradient(proposal: Proposal, current: Point, proposed: Point) -> Float[Tensor, "chain gradient"]:
    """Return the gradient of log q(x | x') - log q(x' | x) with respect to (x, x'), flattened; both must be leaves."""
    ends = current.x, proposed.x
    gradients = tuple(map(torch.zeros_like, ends))
    with torch.enable_grad():
        change = proposal.log_q_ratio(current, proposed).sum()
    if change.requires_grad:
        gradients = torch.autograd.grad(change, ends, materialize_grads=True)
    return torch.cat([gradient.flatten(1) for gradient in gradients], 1)


def wanted_gradient(proposal: Proposal, current: Point, proposed: Point) -> Float[Tensor, "chain gradient"]:
    """Return the gradient of log r with respect to (x, x'), flattened; both x must be leaves."""
    return score_gradient(current, proposed) + q_gradient(proposal, current, proposed)


def log_q_between(target: Target, proposal: Proposal, x: Tensor) -> Float[Tensor, " value"]:
    """Return log q from the first half of x to the second half, and to nearer points, in case steps are bounded."""
    with checks.explained():
        every, half = Point.at(x, target, proposal.needs), -(-len(x) // 2)
    given, to = every.map(lambda part: part[:half]), every.map(lambda part: part[half:])
    return torch.cat(
        [proposal.log_prob(to._replace(x=given.x.lerp(to.x, share)), given=given) for share in (1.0, 0.1, 0.01)]
    ).detach()


@dataclass(frozen=True)
class ProposalProbe:
    """A proposal, identified by its repr and its values of log q between a few samples."""

    proposal: str
    samples: tuple[float, ...]
    event: tuple[int, ...]
    probe: Probe

    @classmethod
    def of(cls, target: Target, proposal: Proposal, samples: Tensor) -> "ProposalProbe":
        """Return the probe of a proposal at the first few samples."""
        few = samples[:PROBED_SAMPLES].detach().double()
        probe = Probe.of(log_q_between(target, proposal, few.to(samples)))
        return cls(checks.named(proposal), tuple(few.flatten().tolist()), tuple(few.shape[1:]), probe)

    def require(self, target: Target, proposal: Proposal, like: Tensor) -> None:
        """Raise an error if log q has other values, because of another proposal, step size or score."""
        few = torch.tensor(self.samples, dtype=like.dtype, device=like.device).reshape(-1, *self.event)
        name = checks.named(proposal)
        Probe.of(log_q_between(target, proposal, few)).require_same(
            self.probe,
            f"{self.proposal}, for which this acceptance was learned",
            f"{name} with another {'step or score' if name == self.proposal else 'log q'}",
            'Call fit_acceptance again, or use form="potential", which is valid for every proposal and step.',
        )

    def to_json(self) -> dict[str, Any]:
        """Return the probe for a JSON file."""
        lists = {"samples": list(self.samples), "event": list(self.event)}
        return {"proposal": self.proposal, **lists, "probe": self.probe.to_json()}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "ProposalProbe":
        """Return the probe that `to_json` wrote."""
        samples, event = (tuple(fields[name]) for name in ("samples", "event"))
        return cls(fields["proposal"], samples, event, Probe.from_json(fields["probe"]))


# Initial logit of a free form. log a is flat near a = 1, and a form that starts there may never learn. It starts at
# a = 0.007 instead, where log a is nearly the logit itself, and its scale increases during training.
FIRST_LOGIT = -5.0


class Regression(NamedTuple):
    """Both sides of the regression of Score Balance Matching over pairs, and log a in both orders."""

    learned: Float[Tensor, "pair gradient"]
    """Gradient of D_a with respect to (x, x'), flattened, without terms that both sides share."""
    wanted: Float[Tensor, "pair gradient"]
    """Gradient of log r, without the same terms."""
    log_accept: Float[Tensor, " pair"]
    log_accept_back: Float[Tensor, " pair"]


class Form(nn.Module, ABC):
    """An acceptance function in one of several forms.

    Args:
        net: Network to learn.
        made_for: Probe of the proposal that it was learned for; None for a potential, or if unknown.
    """

    one_proposal: ClassVar[bool] = True
    """Whether the acceptance is valid for one proposal and step size only."""
    free_scale: ClassVar[bool] = False
    """Whether a / M is as good as a, so that the terms for entropy and scale apply."""
    from_points: ClassVar[bool] = False
    """Whether it learns from points rather than pairs; then half as many pairs are drawn."""
    call: ClassVar[str] = "net(proposed, current)"
    """The call of its network, for error messages."""

    def __init__(self, net: nn.Module, made_for: ProposalProbe | None = None) -> None:
        super().__init__()
        self.net, self.made_for = net, made_for

    @staticmethod
    def of(net: nn.Module) -> "Form":
        """Return a network as a form: itself if it is one, otherwise the free form with this network."""
        return net if isinstance(net, Form) else Free(net)

    @classmethod
    @abstractmethod
    def network(cls, event: tuple[int, ...], *, generator: torch.Generator | None = None, **sizes: int) -> nn.Module:
        """Return the default network of this form, with other sizes if they are given."""

    @abstractmethod
    def log_accepts(self, current: Point, proposed: Point, *, proposal: Proposal) -> tuple[PerChain, PerChain]:
        """Return log a(x', x) and log a(x, x'), from one forward pass."""

    @property
    def potential(self) -> LogDensityFn | None:
        """The log density up to a constant, if the form is a potential; else None."""
        return None

    def log_ratio(self, current: Point, proposed: Point, *, proposal: Proposal) -> PerChain:
        """Return log r = log a(x', x) - log a(x, x')."""
        forth, back = self.log_accepts(current, proposed, proposal=proposal)
        return forth - back

    def log_density_change(self, current: Point, proposed: Point, *, proposal: Proposal) -> PerChain:
        """Return the form's estimate of log p(x') - log p(x)."""
        ratio = self.log_ratio(current, proposed, proposal=proposal)
        return ratio - proposal.log_q_ratio(current, proposed)

    def regression(self, current: Point, proposed: Point, *, proposal: Proposal) -> Regression:
        """Return both sides of the regression; the x of both points must be leaves."""
        learning = torch.is_grad_enabled()
        with torch.enable_grad():
            forth, back = self.log_accepts(current, proposed, proposal=proposal)
            ends = current.x, proposed.x
            gradients = torch.autograd.grad((forth - back).sum(), ends, create_graph=learning)
            wanted = wanted_gradient(proposal, current, proposed)
        return Regression(torch.cat([gradient.flatten(1) for gradient in gradients], 1), wanted, forth, back)

    def inputs(self, x: Points) -> tuple[Points, ...]:
        """Return inputs to try the network with, made from samples."""
        return x.roll(1, 0), x

    def require_answer(self, output: Tensor) -> None:
        """Raise an error if output values of the network are not valid for this form."""
        return

    def require(self, target: Target, proposal: Proposal) -> None:
        """Raise an error if the acceptance was learned for another proposal."""
        if self.made_for is not None:
            self.made_for.require(target, proposal, next(self.parameters(), torch.zeros(())))


class Free(Form):
    """The paper's form: a network for log a itself, `net(proposed, current)`."""

    free_scale = True

    @classmethod
    def network(
        cls, event: tuple[int, ...], *, generator: torch.Generator | None = None, **sizes: int
    ) -> AcceptanceMLP:
        """Return a network of pairs that starts at `FIRST_LOGIT`."""
        net = Antisymmetric.network(event, generator=generator, **sizes)
        nn.init.constant_(net.last.bias, FIRST_LOGIT)
        return net

    def forward(self, proposed: Points, current: Points) -> PerChain:
        """Return log a(proposed, current)."""
        log_accept: Tensor = self.net(proposed, current)
        return log_accept

    def log_accepts(self, current: Point, proposed: Point, *, proposal: Proposal) -> tuple[PerChain, PerChain]:
        """Return log a(x', x) and log a(x, x'), from one forward pass."""
        return log_accepts(self.net, proposed.x, current.x)

    def require_answer(self, output: Tensor) -> None:
        """Raise an error for an acceptance above 1."""
        if bool((output > 0).any()):
            fix = "End the network with torch.nn.functional.logsigmoid."
            raise ValueError(checks.message(f"{self.call} to return log a, at most 0", float(output.max()), fix))


class Antisymmetric(Form):
    """A network f with log r = f(x', x) - f(x, x')."""

    @classmethod
    def network(
        cls, event: tuple[int, ...], *, generator: torch.Generator | None = None, **sizes: int
    ) -> AcceptanceMLP:
        """Return a network of pairs."""
        return AcceptanceMLP(event, **{"hidden": 128, "blocks": 2} | sizes, generator=generator)

    def forward(self, proposed: Points, current: Points) -> PerChain:
        """Return log a(proposed, current)."""
        return logsigmoid(self._ratio(proposed, current))

    def log_accepts(self, current: Point, proposed: Point, *, proposal: Proposal) -> tuple[PerChain, PerChain]:
        """Return log a(x', x) and log a(x, x'), from one forward pass."""
        ratio = self._ratio(proposed.x, current.x)
        return logsigmoid(ratio), logsigmoid(-ratio)

    def _ratio(self, proposed: Points, current: Points) -> PerChain:
        """Return g(proposed, current) = -g(current, proposed)."""
        half = getattr(self.net, "logit", self.net)
        forth, back = log_accepts(half, proposed, current)
        return forth - back


class Potential(Form):
    """A network for log p up to a constant."""

    one_proposal = False
    from_points = True
    call = "net(x)"

    @classmethod
    def network(cls, event: tuple[int, ...], *, generator: torch.Generator | None = None, **sizes: int) -> PotentialMLP:
        """Return a network of points."""
        return PotentialMLP(event, **sizes, generator=generator)

    def log_density(self, x: Points) -> PerChain:
        """Return phi(x)."""
        phi: Tensor = self.net(x)
        return phi

    forward = log_density

    @property
    def potential(self) -> LogDensityFn:
        """The log density phi, up to a constant."""
        return self.log_density

    def log_accepts(self, current: Point, proposed: Point, *, proposal: Proposal) -> tuple[PerChain, PerChain]:
        """Return log a in both orders by Barker's rule."""
        ratio = self.log_ratio(current, proposed, proposal=proposal)
        return logsigmoid(ratio), logsigmoid(-ratio)

    def log_ratio(self, current: Point, proposed: Point, *, proposal: Proposal) -> PerChain:
        """Return phi(x') - phi(x) + log q(x | x') - log q(x' | x)."""
        change = self.log_density_change(current, proposed, proposal=proposal)
        return change + proposal.log_q_ratio(current, proposed)

    def log_density_change(self, current: Point, proposed: Point, *, proposal: Proposal) -> PerChain:
        """Return phi(x') - phi(x)."""
        return self.log_density(proposed.x) - self.log_density(current.x)

    def value_and_gradient(self, x: Points) -> tuple[PerChain, Points]:
        """Return phi(x) and its gradient, by the network's closed form or by autograd."""
        if own := getattr(self.net, "value_and_gradient", None):
            phi, gradient = own(x)
            return phi, gradient
        learning = torch.is_grad_enabled()
        with torch.enable_grad():
            points = x.detach().requires_grad_()
            phi = self.net(points)
            (gradient,) = torch.autograd.grad(phi.sum(), points, create_graph=learning)
        return phi, gradient

    def regression(self, current: Point, proposed: Point, *, proposal: Proposal) -> Regression:
        """Return the gradients of phi(x') - phi(x) and of log p(x') - log p(x); the terms of log q cancel."""
        phi, gradient = self.value_and_gradient(torch.cat([current.x, proposed.x]).detach())
        before, after = phi.chunk(2)
        with torch.no_grad():  # with bounded steps, both directions may be impossible, and the log ratio NaN
            log_q = proposal.log_q_ratio(current, proposed).nan_to_num()
        at_current, at_proposed = gradient.flatten(1).chunk(2)
        ratio = after - before + log_q
        return Regression(
            torch.cat([-at_current, at_proposed], 1),
            score_gradient(current, proposed),
            logsigmoid(ratio),
            logsigmoid(-ratio),
        )

    def inputs(self, x: Points) -> tuple[Points, ...]:
        """Return the samples themselves."""
        return (x,)


FORMS: Mapping[str, type[Form]] = {"free": Free, "antisymmetric": Antisymmetric, "potential": Potential}
