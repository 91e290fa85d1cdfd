"""Maps that act on every coordinate alone."""

from abc import abstractmethod

from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks
from scoremh.coordinates.composition import Coordinates, Points


class Elementwise(Coordinates):
    """A map that acts on every coordinate alone: a subclass says the slope dx / du, and the slope of its log."""

    @abstractmethod
    def slope(self, u: Points) -> Points:
        """Return dx / du, positive."""

    @abstractmethod
    def log_det_gradient(self, u: Points) -> Points:
        """Return d log(dx / du) / du."""

    def pull_gradient(self, gradient: Points, u: Points) -> Points:
        """Return g dx / du."""
        return gradient * self.slope(u)

    def push_gradient(self, gradient: Points, u: Points) -> Points:
        """Return g / (dx / du)."""
        return gradient / self.slope(u)

    def log_det(self, u: Points) -> Float[Tensor, " chain"]:
        """Return the sum of log(dx / du)."""
        return self.slope(u).log().flatten(1).sum(1)


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
