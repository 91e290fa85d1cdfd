"""What proposals have in common: noise with a covariance, and a Gaussian around a mean."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.algebra import per_chain
from scoremh.coordinates import Affine
from scoremh.types import Balance, Need, Point

# The most efficient acceptance rates in high dimension: Roberts, Gelman and Gilks (1997) and Roberts and Rosenthal
# (1998) for Metropolis; Agrawal, Vats, Latuszynski and Roberts (2023) for Barker's balance. Barker's proposal has the
# limit of MALA (Vogrinc, Livingstone and Zanella 2023).
RANDOM_WALK_RATES: Mapping[Balance, float] = {"metropolis": 0.234, "barker": 0.159}
LANGEVIN_RATES: Mapping[Balance, float] = {"metropolis": 0.574, "barker": 0.347}
TUNE = ", or use tune()"


class Colored:
    """Moves with noise of a covariance L L^T: that of a proposal, or the momenta of trajectories."""

    step_name: ClassVar[str | None] = None
    """Name of the parameter that says how long a step is; None for a class that checks its parameters itself."""
    covariance: Tensor | None

    def __post_init__(self) -> None:
        """Refuse a step that is not positive, and what is no covariance."""
        if self.step_name is not None:
            checks.positive(getattr(self, self.step_name), self.step_name, TUNE)
            _ = self.coordinates

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


class Preconditioned(Colored):
    """A proposal whose noise has a covariance L L^T."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    optimal_rates: ClassVar[Mapping[Balance, float]] = RANDOM_WALK_RATES

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


class ScoreGuided(Preconditioned):
    """A proposal whose steps follow the score."""

    needs: ClassVar[frozenset[Need]] = frozenset({"score"})
    optimal_rates: ClassVar[Mapping[Balance, float]] = LANGEVIN_RATES


class GaussianProposal(Preconditioned, ABC):
    """A proposal `x' = mean + std L z`. A subclass says what mean and std are, once, in `moments`."""

    @abstractmethod
    def moments(self, at: Point) -> tuple[Float[Tensor, "chain *event"], float | Float[Tensor, " chain"]]:
        """Return the mean of x' given the point, and its standard deviation in the coordinates that L whitens.

        The standard deviation is a number, or one per chain.
        """

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
