"""Maps that act on every coordinate alone."""

from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from scoremh._shared import checks
from scoremh.coordinates.composition import Coordinates, Points


class Elementwise(Coordinates):
    """A map that acts on every coordinate alone: a subclass says the slope dx / du, and the slope of its log."""

    @abstractmethod
    def slope(self, u: Points) -> Points:
        """Return dx / du; a map whose slope is negative says its `log_slope` as well."""

    @abstractmethod
    def log_det_gradient(self, u: Points) -> Points:
        """Return d log(dx / du) / du."""

    def pull_gradient(self, gradient: Points, u: Points) -> Points:
        """Return g dx / du."""
        return gradient * self.slope(u)

    def push_gradient(self, gradient: Points, u: Points) -> Points:
        """Return g / (dx / du)."""
        return gradient / self.slope(u)

    def log_slope(self, u: Points) -> Points:
        """Return log |dx / du|."""
        return self.slope(u).log()

    def log_det(self, u: Points) -> Float[Tensor, " chain"]:
        """Return the sum of log |dx / du|."""
        return self.log_slope(u).flatten(1).sum(1)


class Sinh(Elementwise):
    """The map x = m + w sinh(u): a long way into a tail is a short one in u.

    Args:
        mean: m, broadcast to the event's shape.
        scale: w, broadcast to the event's shape, positive.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("scale", scale.detach().clone())

    @classmethod
    def of(cls, samples: Float[Tensor, "sample *event"]) -> "Sinh":
        """Return the map for samples: their median, and their median distance from it."""
        mean = samples.detach().median(0).values
        scale = (samples.detach() - mean).abs().median(0).values
        if not (scale > 0).all():
            got = "samples of which half or more are the same"
            fix = "Leave heavy_tails out: such a distribution has no density."
            raise ValueError(checks.message("samples that differ from each other", got, fix))
        return cls(mean, scale)

    def forward(self, u: Points) -> Points:
        """Return m + w sinh(u)."""
        return self.mean.to(u) + self.scale.to(u) * u.sinh()

    def inverse(self, x: Points) -> Points:
        """Return asinh((x - m) / w)."""
        return ((x - self.mean.to(x)) / self.scale.to(x)).asinh()

    def slope(self, u: Points) -> Points:
        """Return w cosh(u)."""
        return self.scale.to(u) * u.cosh()

    def log_det_gradient(self, u: Points) -> Points:
        """Return tanh(u)."""
        return u.tanh()


class SquareRoot(Elementwise):
    """The map whose inverse is u = v / (1 + v^2)^(1/4), near v at 0 and sqrt(|v|) far out.

    After `Sinh`, a tail like |x|^-a, which is exp(-(a - 1) |v|) in v, is like that of a normal distribution in u.
    """

    def forward(self, u: Points) -> Points:
        """Return v."""
        square = u.square()
        return u * ((square + (square.square() + 4).sqrt()) / 2).sqrt()  # of u^4 (1 + v^2) = v^4

    def inverse(self, x: Points) -> Points:
        """Return x / (1 + x^2)^(1/4)."""
        return x / (1 + x.square()) ** 0.25

    def slope(self, u: Points) -> Points:
        """Return dv / du = (1 + v^2)^(5/4) / (1 + v^2 / 2)."""
        square = self.forward(u).square()
        return (1 + square) ** 1.25 / (1 + square / 2)

    def log_det_gradient(self, u: Points) -> Points:
        """Return d log(dv / du) / du, by the chain rule over v."""
        v = self.forward(u)
        square = v.square()
        return (2.5 * v / (1 + square) - v / (1 + square / 2)) * self.slope(u)


class Log(Elementwise):
    """The map x = b + exp(u), or b - exp(u): numbers above or below a bound b.

    Args:
        bound: b, broadcast to the event's shape.
        sign: 1 where numbers are above the bound, -1 where they are below; broadcast to the event's shape.
    """

    bound: Tensor
    sign: Tensor

    def __init__(self, bound: Tensor, sign: Tensor | None = None) -> None:
        super().__init__()
        sign = torch.ones_like(bound) if sign is None else sign
        if not bool((sign.abs() == 1).all()):
            fix = "Pass 1 for numbers above the bound, -1 for numbers below."
            raise ValueError(checks.message("sign of 1 or -1", sign.tolist(), fix))
        self.register_buffer("bound", bound.detach().clone())
        self.register_buffer("sign", sign.detach().clone())

    def forward(self, u: Points) -> Points:
        """Return b + exp(u), or b - exp(u)."""
        return self.bound.to(u) + self.slope(u)

    def inverse(self, x: Points) -> Points:
        """Return log |x - b|; not a number beyond the bound."""
        return (self.sign.to(x) * (x - self.bound.to(x))).log()

    def slope(self, u: Points) -> Points:
        """Return exp(u), or -exp(u)."""
        return self.sign.to(u) * u.exp()

    def log_slope(self, u: Points) -> Points:
        """Return u."""
        return u

    def log_det_gradient(self, u: Points) -> Points:
        """Return 1."""
        return torch.ones_like(u)


class Logit(Elementwise):
    """The map x = low + (high - low) / (1 + exp(-u)): numbers between two bounds.

    Args:
        low: Lower bound, broadcast to the event's shape.
        high: Upper bound, broadcast to the event's shape.
    """

    low: Tensor
    high: Tensor

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__()
        if not bool((low < high).all()):
            got = f"low={low.tolist()} and high={high.tolist()}"
            raise ValueError(checks.message("low below high", got, "Swap or correct the bounds."))
        self.register_buffer("low", low.detach().clone())
        self.register_buffer("high", high.detach().clone())

    def forward(self, u: Points) -> Points:
        """Return low + (high - low) / (1 + exp(-u)), from the nearer bound: digits next to either are kept."""
        low, high = self.low.to(u), self.high.to(u)
        from_low, from_high = low + (high - low) * u.sigmoid(), high - (high - low) * (-u).sigmoid()
        return torch.where(u < 0, from_low, from_high)

    def inverse(self, x: Points) -> Points:
        """Return log(x - low) - log(high - x); not a number beyond the bounds."""
        return (x - self.low.to(x)).log() - (self.high.to(x) - x).log()

    def slope(self, u: Points) -> Points:
        """Return (high - low) exp(u) / (1 + exp(u))^2."""
        return (self.high.to(u) - self.low.to(u)) * u.sigmoid() * (-u).sigmoid()

    def log_slope(self, u: Points) -> Points:
        """Return log(high - low) + u - 2 log(1 + exp(u)), finite wherever u is."""
        return (self.high.to(u) - self.low.to(u)).log() + logsigmoid(u) + logsigmoid(-u)

    def log_det_gradient(self, u: Points) -> Points:
        """Return 1 - 2 / (1 + exp(-u))."""
        return 1 - 2 * u.sigmoid()
