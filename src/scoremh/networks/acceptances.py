"""Networks for acceptance functions: the paper's, of pairs, and one for a log density, of points."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import gelu, logsigmoid

from scoremh._shared import checks
from scoremh.networks.layers import Event, ScalarMLP, event_shape, linear

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
    """The paper's acceptance network: the pair in one vector, residual blocks, GELU, and a sigmoid.

    The paper puts a GELU between the last layer and the sigmoid, which would keep every acceptance above .458; here it
    comes before the last layer. The sigmoid is never taken: `forward` is the logsigmoid of `logit`.

    Args:
        event: Shape of one event, or its dimension.
        hidden: Width of all layers.
        blocks: Number of residual blocks, of two layers each.
        generator: Random number generator of the first weights; the same seed gives the same weights.
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


class PotentialMLP(ScalarMLP):
    """A log density up to a constant, `phi(x) = net(x) - |x|^2 / 2`: a standard normal before it is trained.

    Args:
        event: Shape of one event, or its dimension.
        hidden: Width of the hidden layers.
        layers: Number of hidden layers.
        generator: Random number generator of the first weights; the same seed gives the same weights.
    """

    def forward(self, x: Points) -> PerChain:
        """Return phi(x)."""
        flat = x.flatten(1)
        return self.value(flat).squeeze(1) - flat.square().sum(1) / 2

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
