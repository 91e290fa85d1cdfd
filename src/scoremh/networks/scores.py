r"""Fully connected score networks, and networks in coordinates.

`ScoreMLP` is the paper's network, `s(x) = W3 f(W2 f(W1 x + b1) + b2) + b3` with f the softplus. Its divergence has a
closed form, so the exact trace costs little more than the score itself in any dimension:

    tr J(x) = f'(a2) . M f'(a1),    M = W2 o (W1 W3)^T,    a1, a2 the two pre-activations

`NoiseConditionalMLP` is a denoiser preconditioned as in Karras et al. (2022), for data of unit variance. With noise of
standard deviation sigma, k = sqrt(1 + sigma^2), and a network F whose inputs and targets have unit variance at every
level,

    D(x, sigma) = x / k^2 + sigma / k F(x / k, log(sigma) / 4),    s = (D - x) / sigma^2

`InCoordinates` has a network in coordinates u and takes x = f(u): `s_x(x) = J^-T (s_u(u) - grad log |det J(u)|)`, with
the Jacobian J of f. Noise levels refer to u. For heavy tails f is `Compose(Sinh.of(samples), SquareRoot())`: a tail
|x|^-a is Gaussian in u, where the score is a straight line, as networks are outside their samples. In x, the score then
decreases as 1 / |x|.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

from scoremh._shared import checks
from scoremh.coordinates import Coordinates
from scoremh.networks.layers import Event, event_shape, linear, preconditioned


class ScoreMLP(nn.Module):
    """The paper's score network: two hidden layers, softplus.

    Args:
        event: Shape of one event, or its dimension.
        hidden: Width of both hidden layers.
        generator: Random number generator for the initial weights; the same seed gives the same weights.
    """

    def __init__(self, event: Event, hidden: int = 64, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        checks.count(hidden, "hidden")
        self.event, self.hidden = event_shape(event), hidden
        size = math.prod(self.event)
        self.first = linear(size, hidden, generator)
        self.second = linear(hidden, hidden, generator)
        self.last = linear(hidden, size, generator)

    @property
    def config(self) -> dict[str, object]:
        """The arguments to build such a network."""
        return {"event": list(self.event), "hidden": self.hidden}

    def forward(self, x: Float[Tensor, "chain *event"]) -> Float[Tensor, "chain *event"]:
        """Return the score."""
        score: Tensor = self.last(softplus(self.second(softplus(self.first(x.flatten(1))))))
        return score.reshape(x.shape)

    def score_and_divergence(
        self, x: Float[Tensor, "chain *event"]
    ) -> tuple[Float[Tensor, "chain *event"], Float[Tensor, " chain"]]:
        """Return the score and the trace of its Jacobian, both differentiable in the weights."""
        below: Tensor = self.first(x.flatten(1))
        above: Tensor = self.second(softplus(below))
        score: Tensor = self.last(softplus(above))
        mixed = self.second.weight * (self.first.weight @ self.last.weight).mT
        divergence = (above.sigmoid() * (below.sigmoid() @ mixed.mT)).sum(1)  # softplus' is the sigmoid
        return score.reshape(x.shape), divergence


class NoiseConditionalMLP(nn.Module):
    """A score at all noise levels: `net(x, sigma)` is the score of the data blurred by noise of level sigma.

    Args:
        event: Shape of one event, or its dimension.
        hidden: Width of the hidden layers.
        layers: Number of hidden layers.
        residual: Add every hidden layer to the previous one. Without it, a coordinate that is independent of the others
            may be lost: on Swiss roll, the ends of the flat direction are not learned. With it, scores of a few hundred
            samples and of smooth distributions are slightly noisier.
        generator: Random number generator for the initial weights; the same seed gives the same weights.
    """

    def __init__(
        self,
        event: Event,
        hidden: int = 128,
        layers: int = 3,
        residual: bool = True,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        checks.count(hidden, "hidden")
        checks.count(layers, "layers")
        self.event, self.hidden, self.layers, self.residual = event_shape(event), hidden, layers, residual
        size = math.prod(self.event)
        sizes = [size + 1, *[hidden] * layers]
        self.body = nn.ModuleList(linear(a, b, generator) for a, b in pairwise(sizes))
        self.last = linear(hidden, size, generator)
        nn.init.zeros_(self.last.weight)  # the initial D is the best linear denoiser, for a standard normal
        nn.init.zeros_(self.last.bias)

    @property
    def config(self) -> dict[str, object]:
        """The arguments to build such a network."""
        return {
            "event": list(self.event),
            "hidden": self.hidden,
            "layers": self.layers,
            "residual": self.residual,
        }

    def forward(self, x: Float[Tensor, "chain *event"], sigma: Tensor | float) -> Float[Tensor, "chain *event"]:
        """Return the score at noise level sigma, a number or one per chain."""
        flat = x.flatten(1)
        level, scale, y = preconditioned(flat, sigma)
        for number, layer in enumerate(self.body):
            new = silu(layer(y))
            y = y + new if self.residual and number else new
        # (D - x) / sigma^2 without the cancellation of x against D
        score: Tensor = self.last(y) / (level * scale) - flat / scale.square()
        return score.reshape(x.shape)

    def level_score(
        self, x: Float[Tensor, "chain *event"], sigma: Tensor | float, directions: Tensor | None = None
    ) -> tuple[Float[Tensor, "chain *event"], Float[Tensor, " chain"]]:
        """Return the score at noise level sigma, and sum_i v_i . J v_i by forward tangents.

        Args:
            x: Points.
            sigma: Noise level, a number or one per chain.
            directions: Vectors v_i over the flattened event, `(direction, d)`; by default the unit vectors, for which
                the sum is the divergence.
        """
        flat = x.flatten(1)
        v = torch.eye(flat.shape[1], dtype=x.dtype, device=x.device) if directions is None else directions
        level, scale, y = preconditioned(flat, sigma)
        weight: Tensor = self.body[0].weight  # type: ignore[assignment]
        tangent = (v @ weight[:, :-1].mT) / scale[:, :, None]  # of the first layer, before its activation
        for number, layer in enumerate(self.body):
            before = layer(y)
            above = tangent @ layer.weight.mT if number else tangent  # type: ignore[operator]
            gate = before.sigmoid()
            new = before * gate
            above = above * (gate + new * (1 - gate))[:, None]  # silu'
            y, tangent = (y + new, tangent + above) if self.residual and number else (new, above)
        score: Tensor = self.last(y) / (level * scale) - flat / scale.square()
        along = (tangent * (v @ self.last.weight)).flatten(1).sum(1) / (level * scale)[:, 0]
        return score.reshape(x.shape), along - v.square().sum() / scale[:, 0].square()


class AtNoiseLevel(nn.Module):
    """A noise-conditional score at one noise level, which can be used as the score of a `Target`.

    Args:
        net: Network `net(x, sigma)`.
        noise_level: Noise level sigma.
    """

    def __init__(self, net: nn.Module, noise_level: float) -> None:
        super().__init__()
        checks.positive(noise_level, "noise_level")
        self.net, self.noise_level = net, noise_level

    def forward(self, x: Float[Tensor, "chain *event"]) -> Float[Tensor, "chain *event"]:
        """Return the score of x at the noise level."""
        score: Tensor = self.net(x, self.noise_level)
        return score


class InCoordinates(nn.Module):
    """A score network in coordinates u, which takes x and returns the score of x.

    Args:
        net: Network for the score of u, `net(u)` or `net(u, sigma)`.
        coordinates: The map x = f(u).
    """

    def __init__(self, net: nn.Module, coordinates: Coordinates) -> None:
        super().__init__()
        self.net, self.coordinates = net, coordinates

    def forward(self, x: Float[Tensor, "chain *event"], *sigma: Tensor | float) -> Float[Tensor, "chain *event"]:
        """Return the score of x, at noise level sigma if the network takes one."""
        u = self.coordinates.inverse(x)
        return self.coordinates.push_score(self.net(u, *sigma), u)


class InputsInCoordinates(nn.Module):
    """A network of one or more points u, which takes points x and returns the same number per chain.

    Args:
        net: Network of points u.
        coordinates: The map x = f(u).
    """

    def __init__(self, net: nn.Module, coordinates: Coordinates) -> None:
        super().__init__()
        self.net, self.coordinates = net, coordinates

    def forward(self, *points: Float[Tensor, "chain *event"]) -> Float[Tensor, " chain"]:
        """Return the output of the network."""
        output: Tensor = self.net(*map(self.coordinates.inverse, points))
        return output

    def logit(self, *points: Float[Tensor, "chain *event"]) -> Float[Tensor, " chain"]:
        """Return the logit of the network, or its output if it has no logit."""
        logit: Tensor = getattr(self.net, "logit", self.net)(*map(self.coordinates.inverse, points))
        return logit

    @property
    def value_and_gradient(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """The function x -> (output, gradient), if the network has a closed form of it."""
        own: Callable[..., tuple[Tensor, Tensor]] = self.net.value_and_gradient  # type: ignore[assignment]

        def pulled_back(x: Tensor) -> tuple[Tensor, Tensor]:
            u = self.coordinates.inverse(x)
            value, gradient = own(u)
            return value, self.coordinates.push_gradient(gradient, u)

        return pulled_back
