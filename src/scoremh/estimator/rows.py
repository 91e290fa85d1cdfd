"""Rows to learn from: the precision that they need, and columns that depend on each other."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh.coordinates import MAX_WHITENED_SIZE
from scoremh.diagnostics import Caution

LARGE = 1e15  # squares of larger numbers come near the end of float32, 3e38
MAX_SIZE = 1e150  # squares of larger numbers come near the end of float64, 2e308
WIDE_RATIO = 1e4  # distance from 0 over standard deviation, above which the 7 digits of float32 are too few
MIN_EIGENVALUE = 1e-6  # of the correlations; below, columns are taken as dependent
JITTER = 3e-3  # noise that is added to dependent columns, over their standard deviation
DEPENDENT_COLUMNS = Caution(
    "dependent_columns",
    None,
    "Some columns follow from the others: noise of 0.3 % of its standard deviation was added to each. Leave such "
    "columns out, and compute them from the draws.",
)


def training_tensor(rows: NDArray[Any], like: NDArray[Any]) -> Tensor:
    """Return rows as a tensor, in float64 where float32 has too few digits or too small a range.

    Args:
        rows: Rows to learn from.
        like: All rows, which decide the precision.
    """
    size = np.abs(like).max(0)
    if float(size.max()) > MAX_SIZE:
        row, column = divmod(int(np.abs(like).argmax()), like.shape[1])
        got = f"{like[row, column]:.3g} in row {row}, column {column}"
        raise ValueError(checks.message(f"values below {MAX_SIZE:.0e} in size", got, "Remove that row, or rescale."))
    spread = like.std(0)
    wide = (size > WIDE_RATIO * spread).any() or size.max() > LARGE or spread.min() < 1 / LARGE
    return torch.from_numpy(rows.astype(np.float64 if wide else np.float32))


def has_dependent_columns(x: Tensor) -> bool:
    """Return whether the rows lie in a plane, where a distribution has no density and no score.

    Args:
        x: Rows `(row, column)`.
    """
    if x.shape[1] > MAX_WHITENED_SIZE:  # images: scaled by one number, and their dark corners are given some width
        return False
    correlation = torch.corrcoef(x.double().mT).reshape(x.shape[1], x.shape[1])
    return bool(torch.linalg.eigvalsh(correlation.nan_to_num())[0] < MIN_EIGENVALUE)


def jittered(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return rows with a little noise added to every column.

    Args:
        x: Rows `(row, column)`.
        generator: Random number generator; the same seed gives the same noise.
    """
    return x + JITTER * x.std(0) * rng.normal(tuple(x.shape), x, generator)
