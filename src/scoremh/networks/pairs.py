r"""Networks for acceptance functions: the paper's, and the three forms in which one can be learned.

A form answers `log a(x', x)` as `form(proposed, current)`:

| form | log a(x', x) | D_a = log a(x', x) - log a(x, x') |
|---|---|---|
| `Free` (the paper's) | logsigmoid f(x', x) | any; its scale is free |
| `Antisymmetric` | logsigmoid g, with g = f(x', x) - f(x, x') | g |
| `Potential` | logsigmoid g, with g = phi(x') - phi(x) + log q(x \| x') - log q(x' \| x) | g |

The first two belong to one proposal and its step. A potential is a log density up to a constant: it serves all.
"""

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import gelu, logsigmoid, silu

from scoremh._shared import checks, detailed_balance
from scoremh.networks.mlp import Event, shape_of
from scoremh.types import Proposal, Target

Points = Float[Tensor, "chain *event"]
PerChain = Float[Tensor, " chain"]


class _Residual(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)

    def forward(self, y: Tensor) -> Tensor:
        change: Tensor = self.second(gelu(self.first(y)))
        return y + change


class AcceptanceMLP(nn.Module):
    """The paper's acceptance network: the pair in one vector, residual blocks, GELU, and a sigmoid.

    The paper puts a GELU between the last layer and the sigmoid, which would keep every acceptance above .458; here it
    comes before the last layer. The sigmoid is never taken: `forward` is the logsigmoid of `logit`.

    Args:
        event: Shape of one event, or its dimension.
        hidden: Width of all layers.
        blocks: Residual blocks, of two layers each.
    """

    def __init__(self, event: Event, hidden: int = 256, blocks: int = 3) -> None:
        super().__init__()
        checks.count(hidden, "hidden")
        checks.count(blocks, "blocks")
        self.event, self.hidden, self.blocks = shape_of(event), hidden, blocks
        self.first = nn.Linear(2 * math.prod(self.event), hidden)
        self.body = nn.Sequential(*(_Residual(hidden) for _ in range(blocks)))
        self.last = nn.Linear(hidden, 1)

    @property
    def config(self) -> dict[str, object]:
        """The arguments that make such a network again."""
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
    """silu(a) and silu'(a), with their derivatives written down: torch would make many small products of them."""

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
        bend: Tensor = (1 - 2 * s).mul_(a).add_(2).mul_(s - s * s)  # silu''
        return bend.mul_(for_slope).addcmul_(for_y, slope)


class PotentialMLP(nn.Module):
    """A log density up to a constant, `phi(x) = net(x) - |x|^2 / 2`: a standard normal before it is trained.

    Args:
        event: Shape of one event, or its dimension.
        hidden: Width of the hidden layers.
        layers: Number of hidden layers.
    """

    def __init__(self, event: Event, hidden: int = 128, layers: int = 3) -> None:
        super().__init__()
        checks.count(hidden, "hidden")
        checks.count(layers, "layers")
        self.event, self.hidden, self.layers = shape_of(event), hidden, layers
        sizes = [math.prod(self.event), *[hidden] * layers]
        self.body = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.last = nn.Linear(hidden, 1, bias=False)  # a constant changes nothing
        nn.init.zeros_(self.last.weight)

    @property
    def config(self) -> dict[str, object]:
        """The arguments that make such a network again."""
        return {"event": list(self.event), "hidden": self.hidden, "layers": self.layers}

    def forward(self, x: Points) -> PerChain:
        """Return phi(x)."""
        flat = y = x.flatten(1)
        for layer in self.body:
            y = silu(layer(y))
        phi: Tensor = self.last(y).squeeze(1)
        return phi - flat.square().sum(1) / 2

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


class MadeFor(NamedTuple):
    """The proposal that an acceptance was learned for: what it is called, and what it answers at a few samples.

    Args:
        proposal: Its name and parameters.
        samples: Some of the training, flattened, one after the other.
        event: Shape of one of them.
        probe: log q between them: two proposals with the same answers are the same.
    """

    proposal: str
    samples: list[float]
    event: list[int]
    probe: list[float]

    @classmethod
    def of(cls, target: Target, proposal: Proposal, samples: Tensor) -> "MadeFor":
        """Probe a proposal at the first samples."""
        few = samples[:6].detach().double()
        probe = detailed_balance.probe(target, proposal, few.to(samples))
        return cls(checks.named(proposal), few.flatten().tolist(), list(few.shape[1:]), probe)

    def require(self, target: Target, proposal: Proposal, like: Tensor) -> None:
        """Refuse a proposal with other answers: its own, or because the target's score is another."""
        few = torch.tensor(self.samples, dtype=like.dtype, device=like.device).reshape(-1, *self.event)
        probe = detailed_balance.probe(target, proposal, few)
        alike = len(probe) == len(self.probe)  # else it was saved by another version
        rtol = max(1e-4, 10 * torch.finfo(few.dtype).eps)
        if not alike or not np.allclose(probe, self.probe, rtol=rtol, atol=1e-6, equal_nan=True):
            name = checks.named(proposal)
            got = f"{name} with another {'step or score' if name == self.proposal else 'log q'}"
            fix = 'Call fit_acceptance again, or use form="potential", which serves every proposal and step.'
            expected = f"{self.proposal}, for which this acceptance was learned"
            raise ValueError(checks.message(expected, got, fix))


class Form(nn.Module):
    """An acceptance function in one of three forms.

    Args:
        net: What is learned.
        made_for: The proposal, where the acceptance belongs to one.
    """

    def __init__(self, net: nn.Module, made_for: MadeFor | None = None) -> None:
        super().__init__()
        self.net, self.made_for = net, made_for

    def require(self, target: Target, proposal: Proposal) -> None:
        """Refuse a proposal that the acceptance was not learned for; it has what it needs of the target."""
        if self.made_for is not None:
            self.made_for.require(target, proposal, next(self.parameters(), torch.zeros(())))


class Free(Form):
    """The paper's form: a network for log a itself, `net(proposed, current)`."""

    def forward(self, proposed: Points, current: Points) -> PerChain:
        """Return log a(proposed, current)."""
        log_accept: Tensor = self.net(proposed, current)
        return log_accept


class Antisymmetric(Form):
    """A network for half of the log ratio: the other half is itself, with the points exchanged."""

    def log_ratio(self, proposed: Points, current: Points) -> PerChain:
        """Return g(proposed, current) = -g(current, proposed)."""
        half = getattr(self.net, "logit", self.net)
        forth, back = half(torch.cat([proposed, current]), torch.cat([current, proposed])).chunk(2)
        ratio: Tensor = forth - back
        return ratio

    def both(self, proposed: Points, current: Points) -> tuple[PerChain, PerChain]:
        """Return log a in both orders."""
        ratio = self.log_ratio(proposed, current)
        return logsigmoid(ratio), logsigmoid(-ratio)

    def forward(self, proposed: Points, current: Points) -> PerChain:
        """Return log a(proposed, current)."""
        return logsigmoid(self.log_ratio(proposed, current))


class Potential(Form):
    """A network for log p up to a constant."""

    def log_density(self, x: Points) -> PerChain:
        """Return phi(x)."""
        phi: Tensor = self.net(x)
        return phi

    def value_and_gradient(self, x: Points) -> tuple[PerChain, Points]:
        """Return phi(x) and its gradient: the network's own closed form, or by differentiation."""
        if own := getattr(self.net, "value_and_gradient", None):
            phi, gradient = own(x)
            return phi, gradient
        learning = torch.is_grad_enabled()
        with torch.enable_grad():
            points = x.detach().requires_grad_()
            phi = self.net(points)
            (gradient,) = torch.autograd.grad(phi.sum(), points, create_graph=learning)
        return phi, gradient

    forward = log_density
