"""Probes: numbers that identify a run by the values of its functions at a few points.

The name of a user's own score, proposal or support does not identify it, but its values do. Runs with the same numbers
at the same points, up to rounding, count as the same: a run can then be resumed, or a learned network be used.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scoremh._shared import checks

# Relative tolerance, or ten rounding errors if the dtype is coarser (bfloat16): far above differences between machines
# and numbers of threads, far below differences between step sizes.
RELATIVE_TOLERANCE = 1e-3
ABSOLUTE_TOLERANCE = 1e-6  # for values that are 0 up to rounding
ROUNDINGS = 10
MAX_NUMBERS = 64  # largest number of values taken from one tensor, evenly spaced


@dataclass(frozen=True)
class Probe:
    """Numbers that identify a run."""

    numbers: tuple[float, ...] = ()
    """Values of functions, infinite and NaN ones included."""
    rounding: float = 0.0
    """Relative rounding error of the coarsest dtype among them."""

    @classmethod
    def of(cls, *values: Tensor) -> "Probe":
        """Return the probe of some tensors, with at most 64 numbers of each."""
        parts = [value.detach().flatten() for value in values]
        thinned = [part[:: max(1, -(-len(part) // MAX_NUMBERS))] for part in parts]
        rounding = max((torch.finfo(part.dtype).eps for part in parts if part.is_floating_point()), default=0.0)
        return cls(tuple(number for part in thinned for number in part.double().tolist()), rounding)

    def joined(self, other: "Probe") -> "Probe":
        """Return the probe with the numbers of both."""
        return Probe(self.numbers + other.numbers, max(self.rounding, other.rounding))

    def same(self, other: "Probe") -> bool:
        """Return whether two probes are equal up to rounding."""
        if len(self.numbers) != len(other.numbers):
            return False
        relative = max(RELATIVE_TOLERANCE, ROUNDINGS * self.rounding, ROUNDINGS * other.rounding)
        return np.allclose(self.numbers, other.numbers, rtol=relative, atol=ABSOLUTE_TOLERANCE, equal_nan=True)

    def require_same(self, other: "Probe", expected: str, got: str, fix: str) -> None:
        """Raise an error with these three texts unless the other probe is the same."""
        if not self.same(other):
            raise ValueError(checks.message(expected, got, fix))

    def to_json(self) -> dict[str, Any]:
        """Return the probe for a JSON file."""
        plain = [number if math.isfinite(number) else str(number) for number in self.numbers]  # JSON has no NaN
        return {"numbers": plain, "rounding": self.rounding}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Probe":
        """Return the probe that `to_json` wrote."""
        return cls(tuple(map(float, fields["numbers"])), float(fields["rounding"]))
