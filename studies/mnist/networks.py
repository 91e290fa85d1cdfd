r"""Networks of images for acceptances at every noise level and step: the paper's, of pairs, and a potential, of points.

`SiameseAcceptance`, the paper's: two convolutional branches that do not share weights see x' / k and x / k with
k = sqrt(1 + sigma^2); learned embeddings of the noise level and of the step are biases of all their layers; a common
head sees both. With F its output,

    log a(x', x) = logsigmoid(F / sigma + b)

since log ratios at noise level sigma have gradients of the size 1 / sigma. Read literally, the paper has a GELU between
the last layer and the sigmoid. A GELU is never less than -0.17: such a network accepts at least 0.458 of everything.

`PotentialUNet` is a log density up to a constant: with u = x / k and F the raw `UNet`,

    phi(x, sigma) = u . F(u, log(sigma) / 4) / sigma - |x|^2 / (2 k^2),    s = grad phi
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, logsigmoid

from scoremh._shared import checks
from scoremh._shared.algebra import inner, per_chain
from scoremh.networks import UNet
from scoremh.networks.layers import linear
from scoremh.networks.unet import (
    CHANNELS,
    EMBEDDED,
    Activation,
    Block,
    Embedding,
    Images,
    PerChain,
    image_shape,
    level_and_scale,
)


class Branch(nn.Module):
    """An image as numbers: convolutions that halve it, each followed by a residual one, and a linear layer.

    Args:
        event: Shape of one image.
        channels: Channels of the halved images.
        hidden: Number of numbers.
        generator: Random number generator of the first weights.
    """

    def __init__(
        self, event: tuple[int, int, int], channels: Sequence[int], hidden: int, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        number, row, column = event
        self.layers = nn.ModuleList()
        for wider in channels:
            self.layers.append(Block(number, wider, generator, "gelu", stride=2))
            self.layers.append(Block(wider, wider, generator, "gelu", residual=True))
            number, row, column = wider, -(-row // 2), -(-column // 2)
        self.last = linear(number * row * column, hidden, generator)

    def forward(self, y: Images, embedded: Tensor) -> Tensor:
        """Return the numbers."""
        for layer in self.layers:
            y = layer(y, embedded)
        numbers: Tensor = self.last(y.flatten(1))
        return numbers


class SiameseAcceptance(nn.Module):
    """An acceptance of pairs of images, for every noise level and step: `net(proposed, current, sigma, step)`.

    Args:
        event: Shape of one image, (channel, row, column).
        channels: Channels of the images in a branch, each half as wide and high as the one before.
        hidden: Width of the head.
        literal: Whether to put a GELU between the last layer and the sigmoid, as the paper's text has it: it then
            accepts at least 0.458 of everything.
        first_logit: The constant b, before it is trained.
        generator: Random number generator of the first weights; the same seed gives the same weights.
    """

    def __init__(
        self,
        event: tuple[int, ...],
        channels: Sequence[int] = (16, 32),
        hidden: int = 128,
        literal: bool = False,
        first_logit: float = 0.0,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        checks.count(hidden, "hidden")
        self.event, self.channels, self.hidden = image_shape(event), tuple(channels), hidden
        self.literal, self.first_logit = literal, first_logit
        self.level, self.step = Embedding(generator), Embedding(generator)
        self.proposed, self.current = (Branch(self.event, self.channels, hidden, generator) for _ in range(2))
        self.common = linear(2 * hidden + EMBEDDED, hidden, generator)
        self.deeper = linear(hidden, hidden, generator)
        self.last = linear(hidden, 1, generator)
        nn.init.constant_(self.last.bias, 0.0)
        self.constant = nn.Parameter(torch.tensor(float(first_logit)))

    @property
    def config(self) -> dict[str, object]:
        """The arguments that make such a network again."""
        sizes = {"event": list(self.event), "channels": list(self.channels), "hidden": self.hidden}
        return sizes | {"literal": self.literal, "first_logit": self.first_logit}

    def logit(self, proposed: Images, current: Images, sigma: Tensor | float, step: Tensor | float) -> PerChain:
        """Return log a - log (1 - a)."""
        level, k = level_and_scale(current, sigma)
        embedded = self.level(level) + self.step(level_and_scale(current, step)[0])
        branches = (self.proposed, proposed), (self.current, current)
        both = [branch(x / per_chain(k, x), embedded) for branch, x in branches]
        y = gelu(self.common(torch.cat([*both, embedded.expand(len(current), -1)], 1)))
        y = y + gelu(self.deeper(y))
        logit: Tensor = self.last(y).squeeze(1) / level + self.constant
        return gelu(logit) if self.literal else logit

    def forward(self, proposed: Images, current: Images, sigma: Tensor | float, step: Tensor | float) -> PerChain:
        """Return log a(proposed, current)."""
        return logsigmoid(self.logit(proposed, current, sigma, step))


class PotentialUNet(nn.Module):
    """A log density of images up to a constant for every noise level; `net(x, sigma)` is its gradient, a score.

    Args:
        event: Shape of one image, (channel, row, column).
        channels: Channels at every size of the image, as for `UNet`.
        activation: "silu", "softplus" or "gelu".
        generator: Random number generator of the first weights; the same seed gives the same weights.
    """

    def __init__(
        self,
        event: tuple[int, ...],
        channels: Sequence[int] = CHANNELS,
        activation: Activation = "silu",
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.inside = UNet(event, channels, activation, generator=generator)

    @property
    def config(self) -> dict[str, object]:
        """The arguments that make such a network again."""
        return self.inside.config

    def potential(self, x: Images, sigma: Tensor | float) -> PerChain:
        """Return phi at noise level sigma, a number or one per chain."""
        level, k = level_and_scale(x, sigma)
        u = x / per_chain(k, x)
        return inner(u, self.inside.raw(u, level)) / level - inner(u, u) / 2

    def forward(self, x: Images, sigma: Tensor | float) -> Images:
        """Return the score, the gradient of phi, differentiable in the weights while they learn."""
        learning = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad():
            points = x.clone() if x.is_inference() else x
            points = points if points.requires_grad else points.detach().requires_grad_()
            phi = self.potential(points, sigma.clone() if isinstance(sigma, Tensor) else sigma)
            (gradient,) = torch.autograd.grad(phi.sum(), points, create_graph=learning)
        return gradient


class AtLevelAndStep(nn.Module):
    """A network for every noise level and step, read at one: what a form of an acceptance is made of.

    Args:
        net: `net(proposed, current, sigma, step)` for log a, or a network with `potential(x, sigma)`.
        sigma: Noise level, a number or one per chain.
        step: Parameter of the proposal that sets its step, a number or one per chain.
    """

    def __init__(self, net: nn.Module, sigma: Tensor | float, step: Tensor | float) -> None:
        super().__init__()
        self.net, self.sigma, self.step = net, sigma, step

    def forward(self, *points: Images) -> PerChain:
        """Return log a of pairs, or the potential of points."""
        answer: Tensor
        if isinstance(self.net, PotentialUNet):
            answer = self.net.potential(points[0], _for_all(self.sigma, points[0]))
        else:
            answer = self.net(*points, _for_all(self.sigma, points[0]), _for_all(self.step, points[0]))
        return answer

    def logit(self, *points: Images) -> PerChain:
        """Return the logit of a network of pairs."""
        levels = (_for_all(value, points[0]) for value in (self.sigma, self.step))
        logit: Tensor = self.net.logit(*points, *levels)  # type: ignore[operator]
        return logit


def _for_all(value: Tensor | float, x: Images) -> Tensor | float:
    """Return one value per chain, repeated where x holds pairs in both orders, one after the other."""
    many = isinstance(value, Tensor) and value.ndim == 1 and len(value) not in (1, len(x))
    return value.repeat(len(x) // len(value)) if many and isinstance(value, Tensor) else value


def acceptance_network(name: str, generator: torch.Generator | None = None) -> nn.Module:
    """Return the network of an acceptance that is kept, with its first weights."""
    if name == "potential":
        return PotentialUNet((1, 28, 28), (8, 16, 32, 64), generator=generator)
    first_logit = -5.0 if name == "free" else 0.0  # where log a is flat a free form may never learn
    return SiameseAcceptance((1, 28, 28), literal=name == "literal", first_logit=first_logit, generator=generator)
