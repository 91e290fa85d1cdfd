"""Coordinates and levels: a network learns in standard coordinates, and answers in those of the data.

With `u = W (x - m)` the score of x is `s_x(x) = W^T s_u(u)`. W is one number for all coordinates, or a matrix.

For heavy tails the coordinates are, one by one, with `u = (x - m) / w` and `v = asinh(u)`,

    z = v / (1 + v^2)^(1/4),    s_x(x) = (z'(v) s_z(z) + (log z')'(v) - tanh v) / (w cosh v)

A tail like |x|^-a is exp(-(a - 1) |v|) in v, and like that of a normal law in z, which grows as sqrt(|v|). There its
score is a straight line, as a network's answer is beyond its samples; in x it falls off as 1 / |x|.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from scoremh._shared import checks

WHITENED = 32  # events of up to this many coordinates are whitened; larger ones (images) are scaled by one number


class Standardized(nn.Module):
    """A score network in standard coordinates.

    Noise levels, where the network takes them, are those of the standard coordinates.

    Args:
        net: The network inside.
        mean: m, of the event's shape.
        scale: W over the flattened event: a number `()`, or a matrix `(d, d)`.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, net: nn.Module, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        if scale.ndim not in (0, 2):
            fix = "Use Standardized.of(net, samples), which computes both."
            raise ValueError(checks.message("scale to be a number or a (d, d) matrix", checks.describe(scale), fix))
        self.net = net
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("scale", scale.detach().clone(memory_format=torch.contiguous_format))

    @classmethod
    def of(cls, net: nn.Module, samples: Float[Tensor, "sample *event"]) -> "Standardized":
        """Wrap a network in the coordinates of these samples: whitened, or scaled by one number where d is large."""
        exact = samples.detach().double()
        mean = exact.mean(0)
        flat = (exact - mean).flatten(1)
        scale = 1 / flat.square().mean().sqrt()
        if flat.shape[1] <= WHITENED:
            root, failed = torch.linalg.cholesky_ex(flat.T @ flat / len(flat))
            if failed:
                got = "samples whose covariance is not positive definite"
                fix = "Remove constant or duplicated coordinates, or add a little noise to the samples."
                raise ValueError(checks.message("samples that vary in every direction", got, fix))
            scale = torch.linalg.inv(root)
        return cls(net, mean.to(samples.dtype), scale.to(samples.dtype))

    @property
    def root(self) -> Tensor:
        """L of x = L u + m: the inverse of W."""
        return 1 / self.scale if self.scale.ndim == 0 else torch.linalg.inv(self.scale)

    def standardize(self, x: Float[Tensor, "chain *event"]) -> Float[Tensor, "chain *event"]:
        """Return u."""
        centred = x - self.mean
        if self.scale.ndim == 0:
            return centred * self.scale
        return linear(centred.flatten(1), self.scale).reshape(x.shape)

    def forward(self, x: Float[Tensor, "chain *event"], *level: Tensor | float) -> Float[Tensor, "chain *event"]:
        """Return the score of x in the data's coordinates, at a noise level where the network takes one."""
        return self._pulled_back(self.net(self.standardize(x), *level))

    def _pulled_back(self, gradient: Tensor) -> Tensor:
        """Return W^T times a gradient with respect to u: that with respect to x."""
        if self.scale.ndim == 0:
            return gradient * self.scale
        return (gradient.flatten(1) @ self.scale).reshape(gradient.shape)


class StandardInputs(Standardized):
    """A network of one or more points whose answer is a number per chain: there is nothing to transform back.

    Args:
        net: The network inside.
        mean: As for `Standardized`.
        scale: As for `Standardized`.
    """

    def forward(self, *points: Float[Tensor, "chain *event"]) -> Float[Tensor, " chain"]:  # type: ignore[override]
        """Return the answer of the network inside at the points in standard coordinates."""
        answer: Tensor = self.net(*map(self.standardize, points))
        return answer

    def logit(self, *points: Float[Tensor, "chain *event"]) -> Float[Tensor, " chain"]:
        """Return the network's logit, or its answer where it has none."""
        logit: Tensor = getattr(self.net, "logit", self.net)(*map(self.standardize, points))
        return logit

    @property
    def value_and_gradient(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """The network's answer at a point and its gradient, where the network has a closed form of it."""
        own: Callable[..., tuple[Tensor, Tensor]] = self.net.value_and_gradient  # type: ignore[assignment]

        def answer(x: Tensor) -> tuple[Tensor, Tensor]:
            value, gradient = own(self.standardize(x))
            return value, self._pulled_back(gradient)

        return answer


class HeavyTailed(nn.Module):
    """A score network in coordinates z, in which tails like powers of x are like those of a normal law.

    Noise levels, where the network takes them, are those of z.

    Args:
        net: The network inside, of z.
        centre: m, of the event's shape.
        width: w, of the event's shape.
    """

    centre: Tensor
    width: Tensor

    def __init__(self, net: nn.Module, centre: Tensor, width: Tensor) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("centre", centre.detach().clone())
        self.register_buffer("width", width.detach().clone())

    @classmethod
    def of(cls, net: nn.Module, samples: Float[Tensor, "sample *event"]) -> "HeavyTailed":
        """Wrap a network in the coordinates of these samples: their median, and how far from it half of them are."""
        centre = samples.detach().median(0).values
        width = (samples.detach() - centre).abs().median(0).values
        if not (width > 0).all():
            got, fix = "samples of which half or more are the same", "Leave heavy_tails out: such a law has no density."
            raise ValueError(checks.message("samples that differ from each other", got, fix))
        return cls(net, centre, width)

    def lighten(self, x: Float[Tensor, "chain *event"]) -> Float[Tensor, "chain *event"]:
        """Return z."""
        v = ((x - self.centre) / self.width).asinh()
        return v / (1 + v.square()) ** 0.25

    def weigh_down(self, z: Float[Tensor, "chain *event"]) -> Float[Tensor, "chain *event"]:
        """Return x of z."""
        square = z.square()
        v = z * ((square + (square.square() + 4).sqrt()) / 2).sqrt()  # of z^4 (1 + v^2) = v^4
        return self.centre + self.width * v.sinh()

    def forward(self, x: Float[Tensor, "chain *event"], *level: Tensor | float) -> Float[Tensor, "chain *event"]:
        """Return the score of x, at a noise level where the network takes one."""
        u = (x - self.centre) / self.width
        v, cosh = u.asinh(), (1 + u.square()).sqrt()
        more = 1 + v.square()
        half = 1 + v.square() / 2
        inner: Tensor = self.net(v / more**0.25, *level)
        return (inner * half / more**1.25 + v / half - 2.5 * v / more - u / cosh) / (self.width * cosh)


class AtLevel(nn.Module):
    """A noise-conditional score read at one level: an ordinary score, for a `Target`.

    Args:
        net: Takes x and a level.
        level: Where to read it.
    """

    def __init__(self, net: nn.Module, level: float) -> None:
        super().__init__()
        checks.positive(level, "level")
        self.net, self.level = net, level

    def forward(self, x: Float[Tensor, "chain *event"]) -> Float[Tensor, "chain *event"]:
        """Return the score of x at the level."""
        score: Tensor = self.net(x, self.level)
        return score
