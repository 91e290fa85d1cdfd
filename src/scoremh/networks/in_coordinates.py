"""Networks that learn in coordinates u, and are asked in x = f(u).

The score of x is `s_x(x) = J^-T (s_u(u) - grad log |det J(u)|)`, J the Jacobian of f. Noise levels, where a network
takes them, are those of u.

For heavy tails, f is `Compose(Sinh.of(samples), SquareRoot())`: a tail like |x|^-a is like that of a normal
distribution in u. There its score is a straight line, as a network's answer is beyond its samples; in x it falls off
as 1 / |x|.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from scoremh.coordinates import Coordinates


class InCoordinates(nn.Module):
    """A score network in coordinates u, called with x and answering with the score of x.

    Args:
        net: Network for the score of u, `net(u)` or `net(u, sigma)`.
        coordinates: The map x = f(u).
    """

    def __init__(self, net: nn.Module, coordinates: Coordinates) -> None:
        super().__init__()
        self.net, self.coordinates = net, coordinates

    def forward(self, x: Float[Tensor, "chain *event"], *sigma: Tensor | float) -> Float[Tensor, "chain *event"]:
        """Return the score of x, at noise level sigma where the network takes one."""
        u = self.coordinates.inverse(x)
        return self.coordinates.push_score(self.net(u, *sigma), u)


class InputsInCoordinates(nn.Module):
    """A network of one or more points u, called with points x; its answer, a number per chain, is left as it is.

    Args:
        net: Network of points u.
        coordinates: The map x = f(u).
    """

    def __init__(self, net: nn.Module, coordinates: Coordinates) -> None:
        super().__init__()
        self.net, self.coordinates = net, coordinates

    def forward(self, *points: Float[Tensor, "chain *event"]) -> Float[Tensor, " chain"]:
        """Return the answer of the network inside."""
        answer: Tensor = self.net(*map(self.coordinates.inverse, points))
        return answer

    def logit(self, *points: Float[Tensor, "chain *event"]) -> Float[Tensor, " chain"]:
        """Return the network's logit, or its answer where it has none."""
        logit: Tensor = getattr(self.net, "logit", self.net)(*map(self.coordinates.inverse, points))
        return logit

    @property
    def value_and_gradient(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """The network's answer at a point and its gradient, where the network has a closed form of it."""
        own: Callable[..., tuple[Tensor, Tensor]] = self.net.value_and_gradient  # type: ignore[assignment]

        def answer(x: Tensor) -> tuple[Tensor, Tensor]:
            u = self.coordinates.inverse(x)
            value, gradient = own(u)
            return value, self.coordinates.push_gradient(gradient, u)

        return answer
