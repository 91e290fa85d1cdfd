"""Samples as they come: tensors, arrays, data frames."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scoremh._shared import checks


@runtime_checkable
class Frame(Protocol):
    """A table that gives its numbers as an array; data frames of pandas and polars do."""

    def to_numpy(self) -> NDArray[Any]:
        """Return the numbers, one row per sample."""
        ...


Samples = Tensor | NDArray[Any] | Frame
"""One sample per row, `(sample, *event)`: a tensor, an array or a data frame of numbers."""


def as_tensor(samples: Samples, name: str = "x", dtype: torch.dtype | None = None) -> Tensor:
    """Return samples as a floating tensor; a tensor is returned as it is, numbers of an array keep their digits.

    Args:
        samples: Tensor, array or data frame, one sample per row.
        name: Name of the argument, for an error.
        dtype: Type of the numbers of an array or a data frame, such as that of a network; their own if None.
    """
    if isinstance(samples, Tensor) or not isinstance(samples, np.ndarray | Frame):
        return samples  # what is neither is refused by the caller's `checks.events`
    rows = samples if isinstance(samples, np.ndarray) else samples.to_numpy()
    try:
        numbers = np.asarray(rows, dtype=rows.dtype if rows.dtype.kind == "f" else np.float64)
    except (TypeError, ValueError) as error:
        fix = "Encode texts and categories as numbers, or leave those columns out."
        raise TypeError(
            checks.message(f"{name} to hold numbers", f"{type(samples).__name__} ({error})", fix)
        ) from error
    return torch.tensor(numbers, dtype=dtype)
