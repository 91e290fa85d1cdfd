"""Is this the same run? Numbers that it gives at a few points, compared up to rounding.

The name of a user's own score, proposal or support does not tell it from another; its answers do. A run that gives the
same numbers at the same points is taken for the same, and may be resumed or used with what was learned from it.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scoremh._shared import checks

# Two answers are the same within this share of their size, or within ten roundings where the dtype is coarser than
# that (bfloat16): far above the differences between processors and numbers of threads, far below those of a step size.
RELATIVE_TOLERANCE = 1e-3
ABSOLUTE_TOLERANCE = 1e-6  # for answers that are 0 but for rounding
ROUNDINGS = 10
MAX_NUMBERS = 64  # of one tensor, evenly spaced


@dataclass(frozen=True)
class Probe:
    """Numbers that tell one run from another.

    Args:
        numbers: The answers; infinite and NaN ones count.
        rounding: Relative rounding error of the coarsest dtype among them.
    """

    numbers: tuple[float, ...] = ()
    rounding: float = 0.0

    @classmethod
    def of(cls, *answers: Tensor) -> "Probe":
        """Return the probe of some tensors, at most 64 numbers of each."""
        parts = [answer.detach().flatten() for answer in answers]
        thinned = [part[:: max(1, -(-len(part) // MAX_NUMBERS))] for part in parts]
        rounding = max((torch.finfo(part.dtype).eps for part in parts if part.is_floating_point()), default=0.0)
        return cls(tuple(number for part in thinned for number in part.double().tolist()), rounding)

    def joined(self, other: "Probe") -> "Probe":
        """Return the probe with the numbers of both."""
        return Probe(self.numbers + other.numbers, max(self.rounding, other.rounding))

    def same(self, other: "Probe") -> bool:
        """Return whether two probes are of the same run."""
        if len(self.numbers) != len(other.numbers):
            return False
        relative = max(RELATIVE_TOLERANCE, ROUNDINGS * self.rounding, ROUNDINGS * other.rounding)
        return np.allclose(self.numbers, other.numbers, rtol=relative, atol=ABSOLUTE_TOLERANCE, equal_nan=True)

    def require_same(self, other: "Probe", expected: str, got: str, fix: str) -> None:
        """Refuse the probe of another run.

        Args:
            other: Probe to compare with.
            expected: What the run should be, for the error.
            got: What it is instead.
            fix: What to do.
        """
        if not self.same(other):
            raise ValueError(checks.message(expected, got, fix))

    def to_json(self) -> dict[str, Any]:
        """Return what a JSON file holds of it."""
        plain = [number if math.isfinite(number) else str(number) for number in self.numbers]  # JSON has no NaN
        return {"numbers": plain, "rounding": self.rounding}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Probe":
        """Return the probe that a JSON file holds."""
        return cls(tuple(map(float, fields["numbers"])), float(fields["rounding"]))
