r"""Proposals q(x' | x): random walks, Langevin (MALA), preconditioned Crank-Nicolson and Barker's skewed walk.

All but the last two are Gaussian: `x' = mean(x) + std L z` with `z ~ N(0, I)` and `L L^T = C`, an optional covariance
that fits the proposal to the target's shape. With v = x' - x:

| proposal | mean(x) | std | log q(x \| x') - log q(x' \| x) |
|---|---|---|---|
| `RandomWalk` | x | std | 0 |
| `MALA` | x + h C s(x) | sqrt(2h) | -(s + s').v / 2 - (h / 4) (s' - s).C(s' + s) |
| `PCN` | m + sqrt(1 - beta^2) (x - m) | beta scale | v.C^-1 (x + x' - 2m) / (2 scale^2) |
| `StudentWalk` | x | scale, with Student's t in place of z | 0 |
| `Barker` | skewed by the score | sqrt(2h) | sum_i log sigmoid(-w_i g_i') - log sigmoid(w_i g_i), v = L w, g = L^T s |

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
from torch.nn.functional import logsigmoid

from scoremh._shared import checks, rng
from scoremh._shared.algebra import inner, per_chain
from scoremh.coordinates import Affine
from scoremh.types import Balance, Need, Point

# The most efficient acceptance rates in high dimension: Roberts, Gelman and Gilks (1997) and Roberts and Rosenthal
# (1998) for Metropolis; Agrawal, Vats, Latuszynski and Roberts (2023) for Barker's balance. Barker's proposal has the
# limit of MALA (Vogrinc, Livingstone and Zanella 2023).
RANDOM_WALK_RATES: Mapping[Balance, float] = {"metropolis": 0.234, "barker": 0.159}
LANGEVIN_RATES: Mapping[Balance, float] = {"metropolis": 0.574, "barker": 0.347}
TUNE = ", or use tune()"


class Preconditioned:
    """A proposal whose noise has a covariance L L^T."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    optimal_rates: ClassVar[Mapping[Balance, float]] = RANDOM_WALK_RATES
    covariance: Tensor | None

    def __repr__(self) -> str:
        """Show what differs from the defaults."""
        return checks.brief(self)

    @cached_property
    def coordinates(self) -> Affine | None:
        """The coordinates u, x = L u, in which the noise is standard; None for those of x."""
        return None if self.covariance is None else Affine.from_covariance(self.covariance)

    def color(self, z: Tensor) -> Tensor:
        """Return L z."""
        return z if self.coordinates is None else self.coordinates.color(z)

    def whiten(self, v: Tensor) -> tuple[Tensor, float]:
        """Return L^-1 v over the flattened event, and the log determinant of L."""
        if self.coordinates is None:
            return v.flatten(1), 0.0
        return self.coordinates.whiten(v).flatten(1), self.coordinates.log_volume(v[0].numel())


class GaussianProposal(Preconditioned, ABC):
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
        std: Standard deviation of a step; the paper's sigma.
        covariance: C = L L^T, `(d,)` or `(d, d)`; the identity when None.
    """

    std: float
    covariance: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        checks.positive(self.std, "std", TUNE)
        _ = self.coordinates

    def moments(self, at: Point) -> tuple[Float[Tensor, "chain *event"], float]:
        """Return x and std."""
        return at.x, self.std

    def log_q_ratio(self, current: Point, proposed: Point) -> Float[Tensor, " chain"]:
        """Return 0: a random walk is symmetric."""
        return current.x.new_zeros(len(current.x))


@dataclass(frozen=True, eq=False, repr=False)
class MALA(GaussianProposal):
    """`x' = x + h C s(x) + sqrt(2h) L z`, one Euler step of Langevin dynamics.

    Args:
        step_size: Step size h; the paper's epsilon is sqrt(2h).
        covariance: C = L L^T, `(d,)` or `(d, d)`; the identity when None.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"score"})
    optimal_rates: ClassVar[Mapping[Balance, float]] = LANGEVIN_RATES

    step_size: float
    covariance: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        checks.positive(self.step_size, "step_size", TUNE)
        _ = self.coordinates

    def precondition(self, score: Tensor) -> Tensor:
        """Return C s."""
        return score if self.coordinates is None else self.coordinates.precondition(score)

    def moments(self, at: Point) -> tuple[Float[Tensor, "chain *event"], float]:
        """Return x + h C s(x) and sqrt(2h)."""
        assert at.score is not None  # the kernel fills what `needs` names
        return torch.add(at.x, self.precondition(at.score), alpha=self.step_size), math.sqrt(2 * self.step_size)

    def log_q_ratio(self, current: Point, proposed: Point) -> Float[Tensor, " chain"]:
        """Return log q(current | proposed) - log q(proposed | current), without terms that cancel."""
        s, there = current.score, proposed.score
        assert s is not None
        assert there is not None
        change = self.precondition(there - s)
        return -inner(s + there, torch.add(proposed.x - current.x, change, alpha=self.step_size / 2)) / 2


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

    beta: float
    mean: float | Tensor = 0.0
    scale: float = 1.0
    covariance: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        checks.positive(self.beta, "beta", TUNE)
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
        _ = self.coordinates

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

    scale: float
    freedom: int = 2
    covariance: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        checks.positive(self.scale, "scale", TUNE)
        checks.count(self.freedom, "freedom")
        _ = self.coordinates

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


@dataclass(frozen=True, eq=False, repr=False)
class Barker(Preconditioned):
    """`x' = x + L w`: Gaussian steps w, each coordinate of which is turned about unless the score favours its sign.

    Livingstone and Zanella (2022). With z ~ N(0, 2h) and g = L^T s(x), w_i is z_i with probability sigmoid(z_i g_i),
    else -z_i. Small steps are those of `MALA(h)`; a step is never longer than its noise, however large the score.

    Args:
        step_size: Step size h; the noise has the standard deviation sqrt(2h), as that of MALA.
        covariance: C = L L^T, `(d,)` or `(d, d)`; the identity when None.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"score"})
    optimal_rates: ClassVar[Mapping[Balance, float]] = LANGEVIN_RATES

    step_size: float
    covariance: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        checks.positive(self.step_size, "step_size", TUNE)
        _ = self.coordinates

    def _slope(self, at: Point) -> Tensor:
        """Return g = L^T s(x)."""
        assert at.score is not None  # the kernel fills what `needs` names
        return at.score if self.coordinates is None else self.coordinates.pull_gradient(at.score, at.x)

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Float[Tensor, "chain *event"]:
        """Draw one candidate per chain."""
        z = math.sqrt(2 * self.step_size) * rng.normal(tuple(at.x.shape), at.x, generator)
        keep = rng.uniform(tuple(at.x.shape), at.x, generator) < (z * self._slope(at)).sigmoid()
        return at.x + self.color(torch.where(keep, z, -z))

    def log_prob(self, to: Point, *, given: Point) -> Float[Tensor, " chain"]:
        """Return log q(to | given)."""
        (w, log_det), h = self.whiten(to.x - given.x), self.step_size
        log_skew = logsigmoid(w * self._slope(given).flatten(1)).sum(1)
        return log_skew - w.square().sum(1) / (4 * h) - w.shape[1] * 0.5 * math.log(math.pi * h) - log_det

    def log_q_ratio(self, current: Point, proposed: Point) -> Float[Tensor, " chain"]:
        """Return log q(current | proposed) - log q(proposed | current): the Gaussian factors cancel."""
        w, _ = self.whiten(proposed.x - current.x)
        there, here = (self._slope(point).flatten(1) for point in (proposed, current))
        return (logsigmoid(-w * there) - logsigmoid(w * here)).sum(1)
