r"""A noise-conditional score that is a gradient by construction.

With noise of standard deviation sigma, `k = sqrt(1 + sigma^2)`, and a network f with one output,

    phi(x, sigma) = f(x / k, log(sigma) / 4) / sigma - |x|^2 / (2 k^2)
    s(x, sigma) = grad phi = grad f / (sigma k) - x / k^2

is preconditioned as `NoiseConditionalMLP` is, with grad f for its network F. The gradient is a backward pass written
down. With a_l the pre-activations, W_l the weights and g_l = df / d silu(a_l), the Hessian along v is

    v . H v = sum_l  g_l silu''(a_l) . (D_v a_l)^2

so that the divergence costs one tangent per coordinate, as it does for a network with d outputs.
"""

from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh.networks.layers import ScalarMLP, preconditioned

Points = Float[Tensor, "chain *event"]
PerChain = Float[Tensor, " chain"]


class _Layer(NamedTuple):
    """What a hidden layer does at every chain."""

    weight: Tensor  # of its linear part
    before: Tensor  # its pre-activations
    gate: Tensor  # their sigmoid
    slope: Tensor  # silu' there

    @property
    def bend(self) -> Tensor:
        """Second derivative of silu at its pre-activations."""
        return (2 + self.before * (1 - 2 * self.gate)) * self.gate * (1 - self.gate)


class NoiseConditionalPotential(ScalarMLP):
    """A log density up to a constant for every noise level, called as a score: `net(x, sigma)` is its gradient in x.

    The constant is another one at every noise level, and nearly so in every mode: gradients do not tell the weights of
    modes that they do not connect.

    Args:
        event: Shape of one event, or its dimension.
        hidden: Width of the hidden layers.
        layers: Number of hidden layers.
        generator: Random number generator of the first weights; the same seed gives the same weights.
    """

    conditions: ClassVar[int] = 1  # log(sigma) / 4

    def potential(self, x: Points, sigma: Tensor | float) -> PerChain:
        """Return phi at noise level sigma, a number or one per chain."""
        flat = x.flatten(1)
        level, scale, y = preconditioned(flat, sigma)
        return (self.value(y) / level - (flat / scale).square().sum(1, keepdim=True) / 2).squeeze(1)

    def forward(self, x: Points, sigma: Tensor | float) -> Points:
        """Return the score at noise level sigma, a number or one per chain."""
        flat = x.flatten(1)
        level, scale, y = preconditioned(flat, sigma)
        gradient, _ = self._backward(self._forward(y))
        return (gradient / (level * scale) - flat / scale.square()).reshape(x.shape)

    def level_score(
        self, x: Points, sigma: Tensor | float, directions: Tensor | None = None
    ) -> tuple[Points, PerChain]:
        """Return the score at noise level sigma and sum_i v_i . J v_i: its divergence, by forward tangents.

        Args:
            x: Points.
            sigma: Noise level, a number or one per chain.
            directions: Vectors v_i over the flattened event, `(direction, d)`; the unit vectors when None.
        """
        flat = x.flatten(1)
        v = torch.eye(flat.shape[1], dtype=x.dtype, device=x.device) if directions is None else directions
        level, scale, y = preconditioned(flat, sigma)
        layers = self._forward(y)
        gradient, above = self._backward(layers)
        score = gradient / (level * scale) - flat / scale.square()
        tangent = (v @ layers[0].weight[:, :-1].mT) / scale[:, :, None]  # of the pre-activations
        curvature = torch.zeros_like(flat[:, 0])
        for number, (layer, down) in enumerate(zip(layers, above, strict=True)):
            if number:
                tangent = tangent @ layer.weight.mT
            curvature = curvature + (down * layer.bend * tangent.square().sum(1)).sum(1)
            tangent = tangent * layer.slope[:, None]
        return score.reshape(x.shape), curvature / level[:, 0] - v.square().sum() / scale[:, 0].square()

    def _forward(self, y: Tensor) -> list[_Layer]:
        """Return all hidden layers at the inputs of the first."""
        found = []
        for layer in self.body:
            before: Tensor = layer(y)
            gate = before.sigmoid()
            y = before * gate
            found.append(_Layer(layer.weight, before, gate, gate + y * (1 - gate)))  # type: ignore[arg-type]
        return found

    def _backward(self, layers: list[_Layer]) -> tuple[Tensor, list[Tensor]]:
        """Return the gradient of f in x / k, and in the outputs of all hidden layers."""
        above = [self.last.weight]
        for layer in reversed(layers[1:]):
            above.append((above[-1] * layer.slope) @ layer.weight)
        gradient = (above[-1] * layers[0].slope) @ layers[0].weight[:, :-1]  # not in log(sigma) / 4
        return gradient, above[::-1]
