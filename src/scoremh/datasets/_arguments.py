"""Checks of arguments that several datasets take."""

import math

import torch

from scoremh._shared import checks


def floating_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype, torch's default where it is None; refuse one that is not floating."""
    if dtype is None:
        return torch.get_default_dtype()
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(checks.message("dtype to be a floating torch.dtype", dtype, "Use torch.float32, for example."))
    return dtype


def require_finite(value: float, name: str) -> None:
    """Refuse a value that is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        fix = f"Pass {name} as a Python number."
        raise TypeError(checks.message(f"{name} to be a number", checks.describe(value), fix))
    if not math.isfinite(value):
        raise ValueError(checks.message(f"{name} to be finite", value, f"Correct {name}."))


def require_std(std: float, name: str) -> None:
    """Refuse a value that is not a standard deviation; it may be 0."""
    require_finite(std, name)
    if std < 0:
        raise ValueError(checks.message(f"{name} of at least 0", std, "Pass 0 for no noise."))
