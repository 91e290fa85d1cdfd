r"""Proposals q(x' | x): random walks, Langevin (MALA), preconditioned Crank-Nicolson and Barker's skewed walk.

All except `StudentWalk` and `Barker` are Gaussian: `x' = mean(x) + std L z` with `z ~ N(0, I)`. The optional covariance
C = L L^T adapts a proposal to the shape of the target. With v = x' - x:

| proposal | mean(x) | std | log q(x \| x') - log q(x' \| x) |
|---|---|---|---|
| `RandomWalk` | x | std | 0 |
| `MALA` | x + h C s(x) | sqrt(2h) | -(s + s').v / 2 - (h / 4) (s' - s).C(s' + s) |
| `ScaledMALA` | x + h(x) C s(x) | sqrt(2h(x)) | -(s + s').v / 2 + (1 / h - 1 / h') v.C^-1 v / 4 - (d / 2) log(h' / h) |
| `PCN` | m + sqrt(1 - beta^2) (x - m) | beta scale | v.C^-1 (x + x' - 2m) / (2 scale^2) |
| `StudentWalk` | x | scale, with Student's t instead of z | 0 |
| `Barker` | skewed by the score | sqrt(2h) | sum_i log sigmoid(-w_i g_i') - log sigmoid(w_i g_i), v = L w, g = L^T s |

A Gaussian proposal defines its mean and standard deviation once, in `moments`; `sample` and `log_prob` use them. A
covariance is a tensor over the flattened event: a diagonal `(d,)` or a matrix `(d, d)`.
"""

import math
from abc import abstractmethod
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
from scoremh.types import Balance, Need, Point, Proposal

__all__ = ["MALA", "PCN", "Barker", "GaussianProposal", "Preconditioned", "RandomWalk", "ScaledMALA", "StudentWalk"]


# The most efficient acceptance rates in high dimension: Roberts, Gelman and Gilks (1997) and Roberts and Rosenthal
# (1998) for Metropolis; Agrawal, Vats, Latuszynski and Roberts (2023) for Barker's balance. Barker's proposal has the
# limit of MALA (Vogrinc, Livingstone and Zanella 2023).
RANDOM_WALK_RATES: Mapping[Balance, float] = {"metropolis": 0.234, "barker": 0.159}
LANGEVIN_RATES: Mapping[Balance, float] = {"metropolis": 0.574, "barker": 0.347}


class Preconditioned(Proposal):
    """A proposal whose noise has a covariance C = L L^T, in coordinates u with x = L u."""

    optimal_rates: ClassVar[Mapping[Balance, float]] = RANDOM_WALK_RATES
    step_name: ClassVar[str | None] = None
    """Name of the parameter for the size of a step; None in a class that checks its own parameters."""
    covariance: Tensor | None

    def __post_init__(self) -> None:
        """Check the size of a step and the covariance."""
        if self.step_name is not None:
            checks.positive(getattr(self, self.step_name), self.step_name, ", or use tune()")
            _ = self.coordinates  # an error for a wrong covariance now, and not at the first step

    def __repr__(self) -> str:
        """Show the parameters that differ from their defaults."""
        return checks.brief(self)

    @cached_property
    def coordinates(self) -> Affine | None:
        """The coordinates u in which the noise is standard normal; None if they are the coordinates x."""
        return None if self.covariance is None else Affine.from_covariance(self.covariance)

    def color(self, z: Tensor) -> Tensor:
        """Return L z."""
        return z if self.coordinates is None else self.coordinates.color(z)

    def slope(self, at: Point) -> Tensor:
        """Return L^T s(x), the score in the coordinates u."""
        assert at.score is not None  # the kernel fills what `needs` names
        return at.score if self.coordinates is None else self.coordinates.pull_gradient(at.score, at.x)

    def precondition(self, score: Tensor) -> Tensor:
        """Return C s."""
        return score if self.coordinates is None else self.coordinates.precondition(score)

    def whiten(self, v: Tensor) -> tuple[Tensor, float]:
        """Return L^-1 v over the flattened event, and the log determinant of L."""
        if self.coordinates is None:
            return v.flatten(1), 0.0
        return self.coordinates.whiten(v).flatten(1), self.coordinates.log_volume(v[0].numel())


class GaussianProposal(Preconditioned):
    """A proposal `x' = mean + std L z`. A subclass defines mean and std in `moments`."""

    @abstractmethod
    def moments(self, at: Point) -> tuple[Float[Tensor, "chain *event"], float | Float[Tensor, " chain"]]:
        """Return the mean of x' given the point, and std: a number, or one number per chain."""

    def noise(self, steps: int, like: Tensor, generator: torch.Generator | None) -> Float[Tensor, "step chain *event"]:
        """Draw L z for several steps of all chains."""
        z = rng.normal((steps, *like.shape), like, generator)
        return z if self.coordinates is None else self.color(z.flatten(0, 1)).reshape(z.shape)

    def candidates(self, at: Point, noise: Float[Tensor, "chain *event"]) -> Float[Tensor, "chain *event"]:
        """Return mean + std L z from the noise L z."""
        mean, std = self.moments(at)
        if isinstance(std, Tensor):
            return torch.addcmul(mean, noise, per_chain(std, noise))
        return torch.add(mean, noise, alpha=std)

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Float[Tensor, "chain *event"]:
        """Draw one candidate per chain."""
        return self.candidates(at, self.color(rng.normal(tuple(at.x.shape), at.x, generator)))

    def log_prob(self, to: Point, *, given: Point) -> Float[Tensor, " chain"]:
        """Return log q(to | given)."""
        mean, std = self.moments(given)
        scale, log_std = (per_chain(std, mean), std.log()) if isinstance(std, Tensor) else (std, math.log(std))
        z, log_det = self.whiten((to.x - mean) / scale)
        return -0.5 * z.square().sum(1) - z.shape[1] * (log_std + 0.5 * math.log(2 * math.pi)) - log_det


@dataclass(frozen=True, eq=False, repr=False)
class RandomWalk(GaussianProposal):
    """`x' = x + std L z`.

    Args:
        std: Standard deviation of a step; the paper's sigma.
        covariance: C = L L^T, `(d,)` or `(d, d)`; the identity if None.
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

    The reference must be close to the target, otherwise nearly all candidates are rejected.

    Args:
        beta: Weight of fresh noise, in (0, 1]; at 1 the candidates are independent draws from the reference.
        mean: Mean m of the reference, a number or a tensor of the event's shape.
        scale: Standard deviation of the reference, a number.
        covariance: Covariance of the reference, `(d,)` or `(d, d)`, instead of `scale`.
    """

    step_name: ClassVar[str] = "beta"

    beta: float
    mean: float | Tensor = 0.0
    scale: float = 1.0
    covariance: Tensor | None = None

    def __post_init__(self) -> None:
        """Check the parameters."""
        super().__post_init__()
        checks.positive(self.scale, "scale")
        if not isinstance(self.mean, Tensor | float | int):
            fix = "Pass torch.as_tensor(mean), of the shape of one event."
            raise TypeError(checks.message("mean to be a number or a tensor", checks.describe(self.mean), fix))
        if self.beta > 1:
            fix = "beta is the weight of fresh noise; 0.2 is a common first choice."
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
        """Return log q(current | proposed) - log q(proposed | current), which is log N(x; m, C) - log N(x'; m, C)."""
        step, _ = self.whiten((proposed.x - current.x) / self.scale)
        centred, _ = self.whiten((proposed.x + current.x - 2 * self._mean(current.x)) / self.scale)
        return inner(step, centred) / 2


@dataclass(frozen=True, eq=False, repr=False)
class StudentWalk(Preconditioned):
    """`x' = x + scale L t`, with t from Student's distribution: a random walk that occasionally makes a large step.

    A Gaussian walk needs very many steps to return from a heavy tail; here the steps are heavy-tailed themselves
    (Jarner and Roberts 2007). Integrate the score along such steps in other coordinates:
    `LineIntegral("exact", coordinates=...)`.

    Args:
        scale: Scale of a step. The standard deviation is larger by sqrt(nu / (nu - 2)), and infinite for nu <= 2.
        freedom: Degrees of freedom nu, a whole number; 1 is Cauchy, a large number is nearly Gaussian.
        covariance: L L^T, `(d,)` or `(d, d)`; the identity if None.
    """

    step_name: ClassVar[str] = "scale"

    scale: float
    freedom: int = 2
    covariance: Tensor | None = None

    def __post_init__(self) -> None:
        """Check the parameters."""
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
        """Return 0: a random walk is symmetric."""
        return current.x.new_zeros(len(current.x))


@dataclass(frozen=True, eq=False, repr=False)
class MALA(GaussianProposal):
    """`x' = x + h C s(x) + sqrt(2h) L z`, one Euler step of Langevin dynamics.

    Args:
        step_size: Step size h; the paper's epsilon is sqrt(2h).
        covariance: C = L L^T, `(d,)` or `(d, d)`; the identity if None.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"score"})
    optimal_rates: ClassVar[Mapping[Balance, float]] = LANGEVIN_RATES
    step_name: ClassVar[str] = "step_size"

    step_size: float
    covariance: Tensor | None = None

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
class ScaledMALA(GaussianProposal):
    """`x' = x + h s(x) + sqrt(2h) z` with a step size for each chain, `h(x) = 2 snr^2 d / |s(x)|^2`.

    This is the corrector of score-based diffusion models (Song et al. 2021): if a chain has more noise than its level,
    the score is large and the step small. The reverse density uses the step size at x', so a rule with a ratio leaves
    the target invariant. The drift h |s| is snr times the expected norm of the noise; for N(0, sigma^2 I) in many
    dimensions, h is about 2 snr^2 sigma^2. A chain at a point with score 0 stays there.

    Args:
        snr: Signal-to-noise ratio of a step, as in score_sde; the paper's tau.
        covariance: C = L L^T, `(d,)` or `(d, d)`. The drift is then h C s, the noise L z, and h uses L^T s instead of
            s. The identity if None.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"score"})
    optimal_rates: ClassVar[Mapping[Balance, float]] = LANGEVIN_RATES
    step_name: ClassVar[str] = "snr"

    snr: float
    covariance: Tensor | None = None

    def step_size(self, at: Point) -> Float[Tensor, " chain"]:
        """Return h(x), one step size per chain."""
        return 2 * self.snr**2 / self._slope_square(at)

    def _slope_square(self, at: Point) -> Float[Tensor, " chain"]:
        """Return |L^T s|^2 / d."""
        return self.slope(at).flatten(1).square().mean(1)

    def moments(self, at: Point) -> tuple[Float[Tensor, "chain *event"], Float[Tensor, " chain"]]:
        """Return x + h(x) C s(x) and sqrt(2 h(x))."""
        assert at.score is not None
        drift = self.precondition(at.score)
        h = self.step_size(at)
        return torch.addcmul(at.x, drift, per_chain(h, drift)), (2 * h).sqrt()

    def log_q_ratio(self, current: Point, proposed: Point) -> Float[Tensor, " chain"]:
        """Return log q(current | proposed) - log q(proposed | current); h |L^T s|^2 is constant and cancels."""
        here, there = self._slope_square(current), self._slope_square(proposed)
        assert current.score is not None
        assert proposed.score is not None
        v = proposed.x - current.x
        w, _ = self.whiten(v)
        narrower = w.square().sum(1) * (here - there) / (8 * self.snr**2)
        return narrower - inner(current.score + proposed.score, v) / 2 + w.shape[1] / 2 * (there / here).log()


@dataclass(frozen=True, eq=False, repr=False)
class Barker(Preconditioned):
    """`x' = x + L w`: Gaussian steps w, with signs that the score makes more or less probable.

    With z ~ N(0, 2h) and g = L^T s(x), w_i is z_i with probability sigmoid(z_i g_i), otherwise -z_i (Livingstone and
    Zanella 2022). Small steps are like those of `MALA(h)`, but a step is never longer than its noise, however large the
    score.

    Args:
        step_size: Step size h; the noise has the standard deviation sqrt(2h), as in MALA.
        covariance: C = L L^T, `(d,)` or `(d, d)`; the identity if None.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"score"})
    optimal_rates: ClassVar[Mapping[Balance, float]] = LANGEVIN_RATES
    step_name: ClassVar[str] = "step_size"

    step_size: float
    covariance: Tensor | None = None

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Float[Tensor, "chain *event"]:
        """Draw one candidate per chain."""
        z = math.sqrt(2 * self.step_size) * rng.normal(tuple(at.x.shape), at.x, generator)
        keep = rng.uniform(tuple(at.x.shape), at.x, generator) < (z * self.slope(at)).sigmoid()
        return at.x + self.color(torch.where(keep, z, -z))

    def log_prob(self, to: Point, *, given: Point) -> Float[Tensor, " chain"]:
        """Return log q(to | given)."""
        (w, log_det), h = self.whiten(to.x - given.x), self.step_size
        log_skew = logsigmoid(w * self.slope(given).flatten(1)).sum(1)
        return log_skew - w.square().sum(1) / (4 * h) - w.shape[1] * 0.5 * math.log(math.pi * h) - log_det

    def log_q_ratio(self, current: Point, proposed: Point) -> Float[Tensor, " chain"]:
        """Return log q(current | proposed) - log q(proposed | current); the Gaussian factors cancel."""
        w, _ = self.whiten(proposed.x - current.x)
        there, here = (self.slope(point).flatten(1) for point in (proposed, current))
        return (logsigmoid(-w * there) - logsigmoid(w * here)).sum(1)
