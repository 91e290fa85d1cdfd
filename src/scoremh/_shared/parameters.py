"""Reading the parameters of a distribution: tensors, lists or numbers in, checked tensors of one dtype out."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from scoremh._shared import checks

Values = Tensor | Sequence[Any] | float | int  # to a run-time checker an int is no float
ROUNDING = 1e-3  # a sum of 1 may be off by this much: a weight of 1/3 written as 0.333


def shared_dtype(*values: Values | None) -> Tensor:
    """Return an empty tensor with the dtype and device that the parameters ask for together."""
    given = [torch.as_tensor(value) for value in values if hasattr(value, "dtype")]
    floating = [tensor.dtype for tensor in given if tensor.is_floating_point()]
    dtype = reduce(torch.promote_types, floating) if floating else torch.get_default_dtype()
    return torch.empty(0, dtype=dtype, device=given[0].device if given else None)


def parameter(value: Values, like: Tensor, name: str, *shape: Any, positive: bool = False) -> Tensor:
    """Return a parameter as a tensor of its own. Letters in `shape` stand for any size, `...` for any shape."""
    tensor = torch.as_tensor(value, dtype=like.dtype, device=like.device).detach().clone()
    wanted = tuple(have if isinstance(want, str) else want for have, want in zip(tensor.shape, shape, strict=False))
    if tensor.numel() == 0 or (shape != (...,) and (len(shape) != tensor.ndim or wanted != tensor.shape)):
        expected, fix = f"{name} of shape {written(*shape)}", f"Pass {name} as a tensor or list of that shape."
        raise ValueError(checks.message(expected, checks.describe(tensor), fix))
    bad = tensor[~tensor.isfinite() | (tensor <= 0)] if positive else tensor[~tensor.isfinite()]
    if len(bad):
        expected = f"{name} to be finite{' and above 0' if positive else ''}"
        raise ValueError(checks.message(expected, float(bad[0]), f"Correct that value of {name}."))
    return tensor


def matrices(value: Values | None, location: Tensor, name: str) -> Tensor:
    """Return one matrix per location, the identity where none is given."""
    *batch, d = location.shape
    value = torch.eye(d) if value is None else value
    shared = torch.as_tensor(value).ndim == 2
    return parameter(value, location, name, *([] if shared else batch), d, d).expand(*batch, d, d)


def written(*shape: int | str) -> str:
    """Return a shape as it is written in a message."""
    return str(shape).replace("'", "")
