"""What all coordinates have, and two of them after each other."""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

Points = Float[Tensor, "chain *event"]


class Coordinates(nn.Module, ABC):
    """An invertible map x = f(u)."""

    @abstractmethod
    def forward(self, u: Points) -> Points:
        """Return x = f(u)."""

    @abstractmethod
    def inverse(self, x: Points) -> Points:
        """Return u."""

    @abstractmethod
    def pull_gradient(self, gradient: Points, u: Points) -> Points:
        """Return J^T g: the gradient with respect to u, of one with respect to x."""

    @abstractmethod
    def push_gradient(self, gradient: Points, u: Points) -> Points:
        """Return J^-T g: the gradient with respect to x, of one with respect to u."""

    @abstractmethod
    def log_det(self, u: Points) -> Float[Tensor, " chain"]:
        """Return log |det J(u)|."""

    @abstractmethod
    def log_det_gradient(self, u: Points) -> Tensor | float:
        """Return the gradient of log |det J| with respect to u; 0.0 where the map is affine."""

    def pull_score(self, score: Points, u: Points) -> Points:
        """Return the score of the distribution of u, of the score of x."""
        return self.pull_gradient(score, u) + self.log_det_gradient(u)

    def push_score(self, score: Points, u: Points) -> Points:
        """Return the score of the distribution of x, of the score of u."""
        return self.push_gradient(score - self.log_det_gradient(u), u)


class Compose(Coordinates):
    """The map x = outer(inner(u)).

    Args:
        outer: Applied last on the way to x.
        inner: Applied first.
    """

    def __init__(self, outer: Coordinates, inner: Coordinates) -> None:
        super().__init__()
        self.outer, self.inner = outer, inner

    def forward(self, u: Points) -> Points:
        """Return outer(inner(u))."""
        x: Tensor = self.outer(self.inner(u))
        return x

    def inverse(self, x: Points) -> Points:
        """Return u."""
        return self.inner.inverse(self.outer.inverse(x))

    def pull_gradient(self, gradient: Points, u: Points) -> Points:
        """Return the gradient pulled through outer, then inner."""
        return self.inner.pull_gradient(self.outer.pull_gradient(gradient, self.inner(u)), u)

    def push_gradient(self, gradient: Points, u: Points) -> Points:
        """Return the gradient pushed through inner, then outer."""
        return self.outer.push_gradient(self.inner.push_gradient(gradient, u), self.inner(u))

    def log_det(self, u: Points) -> Float[Tensor, " chain"]:
        """Return the sum of both."""
        return self.outer.log_det(self.inner(u)) + self.inner.log_det(u)

    def log_det_gradient(self, u: Points) -> Tensor | float:
        """Return the gradient of the sum of both."""
        middle = self.inner(u)
        outer = self.outer.log_det_gradient(middle)
        pulled = self.inner.pull_gradient(outer, u) if isinstance(outer, Tensor) else outer
        return pulled + self.inner.log_det_gradient(u)
