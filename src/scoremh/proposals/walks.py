"""Proposals that ask for no score: the random walk, Student's, and preconditioned Crank-Nicolson."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.algebra import inner, per_chain
from scoremh.proposals.noise import GaussianProposal, Preconditioned
from scoremh.types import Point


@dataclass(frozen=True, eq=False, repr=False)
class RandomWalk(GaussianProposal):
    """`x' = x + std L z`.

    Args:
        std: Standard deviation of a step; the paper's sigma.
        covariance: C = L L^T, `(d,)` or `(d, d)`; the identity when None.
    """

    step_name: ClassVar[str] = "std"

    std: float
    covariance: Tensor | None = None

    def moments(self, at: Point) -> tuple[Float[Tensor, "chain *event"], float]:
        """Return x and std."""
        return at.x, self.std

    def log_q_ratio(self, current: Point, proposed: Point) -> Float[Tensor, " chain"]:
        """Return 0: a random walk is symmetric."""
        return current.x.new_zeros(len(current.x))


@dataclass(frozen=True, eq=False, repr=False)
class PCN(GaussianProposal):
    """`x' = m + sqrt(1 - beta^2) (x - m) + beta L z`, reversible for its reference N(m, L L^T).

    The reference has to fit the data: where it is far from them, every candidate is rejected.

    Args:
        beta: Share of fresh noise, in (0, 1]; at 1 the candidates are independent draws of the reference.
        mean: Mean m of the reference, a number or a tensor of the event's shape.
        scale: Standard deviation of the reference, a number.
        covariance: Covariance of the reference, `(d,)` or `(d, d)`, in place of a scale.
    """

    step_name: ClassVar[str] = "beta"

    beta: float
    mean: float | Tensor = 0.0
    scale: float = 1.0
    covariance: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        super().__post_init__()
        checks.positive(self.scale, "scale")
        if not isinstance(self.mean, Tensor | float | int):
            fix = "Pass torch.as_tensor(mean), of the shape of one event."
            raise TypeError(checks.message("mean to be a number or a tensor", checks.describe(self.mean), fix))
        if self.beta > 1:
            fix = "beta is the share of fresh noise; 0.2 is a common start."
            raise ValueError(checks.message("beta in (0, 1]", self.beta, fix))
        if self.covariance is not None and self.scale != 1:
            got = f"scale={self.scale} and a covariance"
            raise ValueError(checks.message("scale or covariance", got, "Put the scale into the covariance."))

    def _mean(self, like: Tensor) -> float | Tensor:
        return self.mean.to(like) if isinstance(self.mean, Tensor) else self.mean

    def moments(self, at: Point) -> tuple[Float[Tensor, "chain *event"], float]:
        """Return m + sqrt(1 - beta^2) (x - m) and beta times the scale."""
        m = self._mean(at.x)
        return m + math.sqrt(1 - self.beta**2) * (at.x - m), self.beta * self.scale

    def log_q_ratio(self, current: Point, proposed: Point) -> Float[Tensor, " chain"]:
        """Return log q(current | proposed) - log q(proposed | current): minus the change of the reference."""
        step, _ = self.whiten((proposed.x - current.x) / self.scale)
        centred, _ = self.whiten((proposed.x + current.x - 2 * self._mean(current.x)) / self.scale)
        return inner(step, centred) / 2


@dataclass(frozen=True, eq=False, repr=False)
class StudentWalk(Preconditioned):
    """`x' = x + scale L t`, t of Student's distribution: a random walk that now and then makes a large step.

    In a heavy tail a Gaussian walk needs as many steps to come back as the tail is long; here the steps have a tail of
    their own (Jarner and Roberts 2007). Integrals of the score along so long a step want a bend:
    `LineIntegral("adaptive", bend=...)`.

    Args:
        scale: Scale of a step; its standard deviation is larger by sqrt(nu / (nu - 2)), and infinite up to nu = 2.
        freedom: Degrees of freedom nu, a whole number; 1 is Cauchy, many are nearly Gaussian.
        covariance: L L^T, `(d,)` or `(d, d)`; the identity when None.
    """

    step_name: ClassVar[str] = "scale"

    scale: float
    freedom: int = 2
    covariance: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        super().__post_init__()
        checks.count(self.freedom, "freedom")

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Float[Tensor, "chain *event"]:
        """Draw one candidate per chain."""
        z = rng.normal(tuple(at.x.shape), at.x, generator)
        chi = rng.normal((len(at.x), self.freedom), at.x, generator).square().mean(1).sqrt()
        t = z / per_chain(chi, z)
        return torch.add(at.x, self.color(t), alpha=self.scale)

    def log_prob(self, to: Point, *, given: Point) -> Float[Tensor, " chain"]:
        """Return log q(to | given)."""
        t, log_det = self.whiten((to.x - given.x) / self.scale)
        nu, d = self.freedom, t.shape[1]
        constant = math.lgamma((nu + d) / 2) - math.lgamma(nu / 2) - d / 2 * math.log(nu * math.pi)
        tail = (nu + d) / 2 * (t.square().sum(1) / nu).log1p()
        return constant - d * math.log(self.scale) - log_det - tail

    def log_q_ratio(self, current: Point, proposed: Point) -> Float[Tensor, " chain"]:
        """Return 0: a walk is symmetric."""
        return current.x.new_zeros(len(current.x))
