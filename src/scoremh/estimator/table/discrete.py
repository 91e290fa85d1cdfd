"""Columns of which some or all values have a probability: noise gives them a density."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from scoremh._shared import rng
from scoremh.estimator.table.columns import Column, Smooth

CORNER_STD = (
    0.25  # of the noise around a corner, over half the distance of two: one in 30,000 would lie nearer to another
)
MAX_CORNER_NOISE = 0.95  # over half the distance: none does
MASS_GAP = 0.75  # from the outermost value to the edge of a mass, and on to its middle, in standard deviations


@dataclass(frozen=True)
class Steps(Column):
    """A column on a grid, or with ordered levels: noise within a step gives it a density.

    Args:
        levels: Levels in order, where no other is possible; empty where all multiples of the step are.
        step: Step of the grid; that between ranks, 1, where there are levels.
        ends: Lowest and highest position on the grid: multiples of the step, or ranks of levels.
        peaked: Whether the noise has its most likely value in the middle of a step and none at its edges (triangular)
            rather than uniform: steps that differ much in probability would else lose some of it at their edges.
        inside: Column that the position with noise is.
    """

    levels: tuple[float, ...]
    step: float
    ends: tuple[float, float]
    peaked: bool
    inside: Smooth

    @property
    def kind(self) -> str:
        """Name of the kind."""
        return "ordered" if self.levels else "count" if self.step == 1 else "rounded"

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends of the grid."""
        return (
            (self.levels[0], self.levels[-1]) if self.levels else (self.ends[0] * self.step, self.ends[1] * self.step)
        )

    def _positions(self, values: Tensor) -> Tensor:
        if not self.levels:
            return (values / self.step).round()
        return torch.searchsorted(values.new_tensor(self.levels), values.contiguous()).to(values)

    def coordinates(self, values: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the position with noise, through its own map."""
        noise = rng.uniform((2, len(values)), values, generator)
        shift = noise.sum(0) / 2 if self.peaked else noise[0]
        shift = shift.clamp(1e-12, 1 - 1e-12)  # never at an edge, which may be a bound
        return self.inside.coordinates(self._positions(values) + shift - 0.5, generator)

    def centre(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the middle of the step, and the log of du over the density of the noise there."""
        u, log_volume = self.inside.centre(self._positions(values))
        return u, log_volume - (math.log(2) if self.peaked else 0.0)

    def values(self, u: Tensor) -> Tensor:
        """Return the nearest step, the first or the last one beyond the ends."""
        position = self.inside.values(u).round().clamp(*self.ends) + 0.0  # no -0.0
        if self.levels:
            return u.new_tensor(self.levels)[position.long()]
        decimals = max(0, -math.floor(math.log10(self.step) + 1e-9))
        return position if self.step == 1 else (position * self.step).round(decimals=decimals)

    def possible(self, values: Tensor) -> Tensor:
        """Return which values are on the grid and between its ends."""
        if self.levels:
            return torch.isin(values, values.new_tensor(self.levels))
        position = values / self.step
        low, high = self.ends
        return ((position - position.round()).abs() < 1e-3) & (position.round() >= low) & (position.round() <= high)

    def __str__(self) -> str:
        """Return the kind in words."""
        if self.levels:
            return f"ordered, {len(self.levels)} levels"
        return f"rounded to {self.step:g}" if self.kind == "rounded" else self.kind


@dataclass(frozen=True)
class Category(Column):
    """A column of levels without order: corners of a simplex, with normal noise around them.

    Args:
        levels: Levels, as numbers.
    """

    levels: tuple[float, ...]

    @property
    def kind(self) -> str:
        """Name of the kind."""
        return "category"

    @property
    def width(self) -> int:
        """One coordinate less than levels."""
        return len(self.levels) - 1

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and largest level."""
        return min(self.levels), max(self.levels)

    @property
    def corners(self) -> Tensor:
        """Corners `(level, width)` of a regular simplex around 0, at a distance of 2 from each other."""
        k = len(self.levels)
        centred = torch.eye(k, dtype=torch.float64) - 1 / k
        basis = torch.linalg.qr(centred.mT[:, :-1])[0]  # of the plane that the corners lie in
        corners: Tensor = math.sqrt(2) * centred @ basis
        return corners

    def _ranks(self, values: Tensor) -> Tensor:
        return (values[:, None] == values.new_tensor(self.levels)).double().argmax(1)

    def coordinates(self, values: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return corners with noise."""
        corners = self.corners[self._ranks(values)]
        noise = CORNER_STD * rng.normal(tuple(corners.shape), corners, generator)
        limited: Tensor = noise * (MAX_CORNER_NOISE / noise.norm(dim=1, keepdim=True)).clamp(max=1)
        return corners + limited

    def centre(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return corners, and minus the log density of the noise there."""
        log_volume = self.width * math.log(CORNER_STD * math.sqrt(2 * math.pi))
        return self.corners[self._ranks(values)], torch.full_like(values, log_volume)

    def values(self, u: Tensor) -> Tensor:
        """Return the levels of the nearest corners."""
        return u.new_tensor(self.levels)[(u @ self.corners.to(u).mT).argmax(1)]

    def possible(self, values: Tensor) -> Tensor:
        """Return which values are levels."""
        return torch.isin(values, values.new_tensor(self.levels))

    def __str__(self) -> str:
        """Return the kind in words."""
        return f"category, {len(self.levels)} levels"


@dataclass(frozen=True)
class PointMasses(Column):
    """A column with a density between bounds, and a probability at one or both: zeros of a positive column.

    In the coordinate of the other values, the values at a bound lie beyond the outermost of them, normal around a
    point at a distance.

    Args:
        inside: Column that the other values are.
        at: Whether there is a probability at the lower and at the upper bound.
        ends: Least and largest coordinate of the other values.
        std: Their standard deviation.
    """

    inside: Smooth
    at: tuple[bool, bool]
    ends: tuple[float, float]
    std: float

    @property
    def kind(self) -> str:
        """The kind of the other values."""
        return self.inside.kind

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of the others, which have a probability."""
        return self.inside.bounds

    @property
    def _masses(self) -> list[tuple[float, float, float]]:
        """Value, middle and edge of the coordinates of each probability."""
        signed = zip(self.at, self.bounds, self.ends, (-1, 1), strict=True)
        return [
            (bound, end + 2 * sign * MASS_GAP * self.std, end + sign * MASS_GAP * self.std)
            for there, bound, end, sign in signed
            if there
        ]

    def coordinates(self, values: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return u of the others, and points beyond them for values at the bounds."""
        limit = MASS_GAP * self.std
        noise = (limit * CORNER_STD * rng.normal((len(values), 1), values, generator)).clamp(
            -0.95 * limit, 0.95 * limit
        )
        u = self.inside.coordinates(values, generator)
        for bound, middle, _ in self._masses:
            u = torch.where((values == bound)[:, None], middle + noise, u)
        return u

    def centre(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the middle, and the log volume of a value or of a probability."""
        u, log_volume = self.inside.centre(values)
        of_mass = math.log(MASS_GAP * self.std * CORNER_STD * math.sqrt(2 * math.pi))
        for bound, middle, _ in self._masses:
            u = torch.where((values == bound)[:, None], u.new_full((), middle), u)
            log_volume = torch.where(values == bound, log_volume.new_full((), of_mass), log_volume)
        return u, log_volume

    def values(self, u: Tensor) -> Tensor:
        """Return the bound beyond an edge, and the value elsewhere."""
        x = self.inside.values(u)
        for bound, middle, edge in self._masses:
            beyond = u[:, 0] < edge if middle < edge else u[:, 0] > edge
            x = torch.where(beyond, x.new_full((), bound), x)
        return x

    def possible(self, values: Tensor) -> Tensor:
        """Return which values are at a bound with a probability, or between the bounds."""
        found = self.inside.possible(values)
        for bound, _, _ in self._masses:
            found = found | (values == bound)
        return found

    def __str__(self) -> str:
        """Return the kind in words."""
        return f"{self.inside}, and exactly {' or '.join(f'{bound:g}' for bound, _, _ in self._masses)}"
