r"""Proposals q(x' | x): random walks, Langevin (MALA) and preconditioned Crank-Nicolson.

All but the last are Gaussian: `x' = mean(x) + std L z` with `z ~ N(0, I)` and `L L^T = C`, an optional covariance that
fits the proposal to the target's shape.

| proposal | mean(x) | std |
|---|---|---|
| `RandomWalk` | x | std |
| `MALA` | x + h C s(x) | sqrt(2h) |
| `PCN` | m + sqrt(1 - beta^2) (x - m) | beta |
| `StudentWalk` | x | scale, with t of a Student law in place of z |

A Gaussian one defines mean and standard deviation once, in `moments`; `sample` and `log_prob` both derive from it. A
covariance is a tensor over the flattened event: `(d,)` is a diagonal, `(d, d)` a matrix.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.algebra import per_chain
from scoremh.types import Balance, Need, Point

# The most efficient acceptance rates in high dimension: Roberts, Gelman and Gilks (1997) and Roberts and Rosenthal
# (1998) for Metropolis; Agrawal, Vats, Latuszynski and Roberts (2023) for Barker.
RANDOM_WALK_RATES: Mapping[Balance, float] = {"metropolis": 0.234, "barker": 0.159}
LANGEVIN_RATES: Mapping[Balance, float] = {"metropolis": 0.574, "barker": 0.347}
TUNE = ", or use tune()"


class Root:
    """A square root L of a covariance C over flattened events."""

    def __init__(self, covariance: Tensor) -> None:
        """Take `(d,)`, the diagonal of C, or `(d, d)`, C itself."""
        fix = "Pass variances of shape (d,), or a symmetric positive definite (d, d) matrix, d the size of one event."
        if not isinstance(covariance, Tensor) or covariance.ndim not in (1, 2) or not covariance.is_floating_point():
            expected = "covariance to be a floating tensor of shape (d,) or (d, d)"
            raise ValueError(checks.message(expected, checks.describe(covariance), fix))
        if covariance.ndim == 1:
            self.root, good = covariance.sqrt(), bool((covariance > 0).all() and covariance.isfinite().all())
        else:
            square = covariance.shape[0] == covariance.shape[1]
            good = square and torch.allclose(covariance, covariance.mT)
            if good:
                self.root, info = torch.linalg.cholesky_ex(covariance)
                good = not bool(info)
        if not good:
            expected = "a symmetric positive definite covariance"
            raise ValueError(checks.message(expected, checks.describe(covariance), fix))

    def _fitting(self, v: Tensor) -> tuple[Tensor, Tensor]:
        flat = v.flatten(1)
        if flat.shape[1] != len(self.root):
            fix = "Its size must be the number of coordinates of one event."
            got = f"covariance over {len(self.root)} and events of shape {tuple(v.shape[1:])}"
            raise ValueError(checks.message("covariance and event of one size", got, fix))
        return flat, self.root.to(v)

    def color(self, z: Tensor) -> Tensor:
        """Return L z."""
        flat, root = self._fitting(z)
        return (flat * root if root.ndim == 1 else flat @ root.mT).reshape(z.shape)

    def whiten(self, v: Tensor) -> Tensor:
        """Return L^-1 v."""
        flat, root = self._fitting(v)
        white = flat / root if root.ndim == 1 else torch.linalg.solve_triangular(root, flat.mT, upper=False).mT
        return white.reshape(v.shape)

    def apply(self, s: Tensor) -> Tensor:
        """Return C s."""
        flat, root = self._fitting(s)
        return (flat * root**2 if root.ndim == 1 else flat @ root @ root.mT).reshape(s.shape)

    @cached_property
    def log_det(self) -> float:
        """Log determinant of L."""
        return float((self.root if self.root.ndim == 1 else self.root.diagonal()).log().sum())


class Shaped:
    """A proposal whose noise has a covariance L L^T."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    optimal_rates: ClassVar[Mapping[Balance, float]] = RANDOM_WALK_RATES
    covariance: Tensor | None

    def __repr__(self) -> str:
        """Show what differs from the defaults."""
        return checks.brief(self)

    @cached_property
    def root(self) -> Root | None:
        """L, or None for the identity."""
        return None if self.covariance is None else Root(self.covariance)

    def color(self, z: Tensor) -> Tensor:
        """Return L z."""
        return z if self.root is None else self.root.color(z)

    def whiten(self, v: Tensor) -> tuple[Tensor, float]:
        """Return L^-1 v over the flattened event, and the log determinant of L."""
        if self.root is None:
            return v.flatten(1), 0.0
        return self.root.whiten(v).flatten(1), self.root.log_det


class GaussianProposal(Shaped, ABC):
    """A proposal `x' = mean + std L z`. A subclass says what mean and std are, once, in `moments`."""

    @abstractmethod
    def moments(self, at: Point) -> tuple[Float[Tensor, "chain *event"], float]:
        """Return the mean of x' given the point, and its standard deviation in the coordinates that L whitens."""

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Float[Tensor, "chain *event"]:
        """Draw one candidate per chain."""
        mean, std = self.moments(at)
        z = rng.normal(tuple(at.x.shape), at.x, generator)
        return torch.add(mean, self.color(z), alpha=std)

    def log_prob(self, to: Point, *, given: Point) -> Float[Tensor, " chain"]:
        """Return log q(to | given)."""
        mean, std = self.moments(given)
        z, log_det = self.whiten((to.x - mean) / std)
        return -0.5 * z.square().sum(1) - z.shape[1] * (math.log(std) + 0.5 * math.log(2 * math.pi)) - log_det


@dataclass(frozen=True, eq=False, repr=False)
class RandomWalk(GaussianProposal):
    """`x' = x + std L z`.

    Args:
        std: The paper's sigma.
        covariance: C = L L^T, `(d,)` or `(d, d)`; the identity when None.
    """

    std: float
    covariance: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        checks.positive(self.std, "std", TUNE)
        _ = self.root

    def moments(self, at: Point) -> tuple[Float[Tensor, "chain *event"], float]:
        """Return x and std."""
        return at.x, self.std


@dataclass(frozen=True, eq=False, repr=False)
class MALA(GaussianProposal):
    """`x' = x + h C s(x) + sqrt(2h) L z`, one Euler step of Langevin dynamics.

    Args:
        step_size: h. The paper's epsilon is sqrt(2h).
        covariance: C = L L^T, `(d,)` or `(d, d)`; the identity when None.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"score"})
    optimal_rates: ClassVar[Mapping[Balance, float]] = LANGEVIN_RATES

    step_size: float
    covariance: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        checks.positive(self.step_size, "step_size", TUNE)
        _ = self.root

    def moments(self, at: Point) -> tuple[Float[Tensor, "chain *event"], float]:
        """Return x + h C s(x) and sqrt(2h)."""
        assert at.score is not None  # the kernel fills what `needs` names
        drift = at.score if self.root is None else self.root.apply(at.score)
        return torch.add(at.x, drift, alpha=self.step_size), math.sqrt(2 * self.step_size)


@dataclass(frozen=True, eq=False, repr=False)
class PCN(GaussianProposal):
    """`x' = m + sqrt(1 - beta^2) (x - m) + beta L z`, reversible for its reference N(m, L L^T).

    The reference has to fit the data: where it is far from them, every candidate is rejected.

    Args:
        beta: In (0, 1]; at 1 the candidates are independent draws of the reference.
        mean: m, a number or a tensor of the event's shape.
        scale: Standard deviation of the reference, a number.
        covariance: Covariance of the reference, `(d,)` or `(d, d)`, in place of a scale.
    """

    beta: float
    mean: float | Tensor = 0.0
    scale: float = 1.0
    covariance: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        checks.positive(self.beta, "beta", TUNE)
        checks.positive(self.scale, "scale")
        if self.beta > 1:
            fix = "beta is the share of fresh noise; 0.2 is a common start."
            raise ValueError(checks.message("beta in (0, 1]", self.beta, fix))
        if self.covariance is not None and self.scale != 1:
            got = f"scale={self.scale} and a covariance"
            raise ValueError(checks.message("scale or covariance", got, "Put the scale into the covariance."))
        _ = self.root

    def moments(self, at: Point) -> tuple[Float[Tensor, "chain *event"], float]:
        """Return m + sqrt(1 - beta^2) (x - m) and beta times the scale."""
        m = self.mean.to(at.x) if isinstance(self.mean, Tensor) else self.mean
        return m + math.sqrt(1 - self.beta**2) * (at.x - m), self.beta * self.scale


@dataclass(frozen=True, eq=False, repr=False)
class StudentWalk(Shaped):
    """`x' = x + scale L t`, t of a Student law: a random walk that now and then makes a large step.

    In a heavy tail a Gaussian walk needs as many steps to come back as the tail is long; here the steps have a tail of
    their own (Jarner and Roberts 2007). Integrals of the score along so long a step want a bend:
    `LineIntegral("adaptive", bend=...)`.

    Args:
        scale: Of a step; its standard deviation is larger by sqrt(nu / (nu - 2)), and infinite up to nu = 2.
        freedom: nu, a whole number; 1 is Cauchy, many are nearly Gaussian.
        covariance: L L^T, `(d,)` or `(d, d)`; the identity when None.
    """

    scale: float
    freedom: int = 2
    covariance: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        checks.positive(self.scale, "scale", TUNE)
        checks.count(self.freedom, "freedom")
        _ = self.root

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
