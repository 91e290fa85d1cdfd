r"""The paper's network for acceptances of images, at every noise level and step.

Two convolutional branches that do not share weights see x' / k and x / k with k = sqrt(1 + sigma^2); learned embeddings
of the noise level and of the step are biases of all their layers; a common head sees both. With F its output,

    log a(x', x) = logsigmoid(F / sigma + b)

since log ratios at noise level sigma have gradients of the size 1 / sigma. Read literally, the paper has a GELU between
the last layer and the sigmoid. A GELU is never less than -0.17: such a network accepts at least 0.458 of everything.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, logsigmoid

from scoremh._shared.algebra import per_chain
from scoremh.networks.layers import linear
from scoremh.networks.unet import EMBEDDED, Block, Embedding, Images, PerChain, image_shape, level_and_scale


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
        event: tuple[int, ...] = (1, 28, 28),
        channels: Sequence[int] = (16, 32),
        hidden: int = 128,
        literal: bool = False,
        first_logit: float = 0.0,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
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


class AtLevelAndStep(nn.Module):
    """A network for every noise level and step, read at one: what a form of an acceptance is made of.

    Args:
        net: The network.
        sigma: Noise level, a number or one per chain.
        step: Parameter of the proposal that sets its step, a number or one per chain.
    """

    def __init__(self, net: SiameseAcceptance, sigma: Tensor | float, step: Tensor | float) -> None:
        super().__init__()
        self.net, self.sigma, self.step = net, sigma, step

    def logit(self, *points: Images) -> PerChain:
        """Return the logit."""
        return self.net.logit(*points, *(_for_all(value, points[0]) for value in (self.sigma, self.step)))

    def forward(self, *points: Images) -> PerChain:
        """Return log a."""
        return logsigmoid(self.logit(*points))


def _for_all(value: Tensor | float, x: Images) -> Tensor | float:
    """Return one value per chain, repeated where x holds pairs in both orders, one after the other."""
    many = isinstance(value, Tensor) and value.ndim == 1 and len(value) not in (1, len(x))
    return value.repeat(len(x) // len(value)) if many and isinstance(value, Tensor) else value
