"""Checks of arguments, with one format for every error: what was expected, what was passed, what to do.

Also conversions: parameters of distributions (tensors, lists, numbers) to tensors of one dtype, and samples (arrays,
data frames) to tensors.
"""

import math
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import reduce
from numbers import Integral
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

INNER = "scoremh", "torch", "contextlib", "jaxtyping", "beartype"  # packages whose lines no warning points at


def message(expected: str, got: object, fix: str) -> str:
    """Return the text of an error: what was expected, what was passed, what to do."""
    return f"expected {expected}, got {got}. {fix}"


def warn(text: str, category: type[Warning]) -> None:
    """Warn at the line of the caller: the first one that is not in this package or in torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in INNER:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def describe(x: object) -> str:
    """Describe a value: shape and dtype of a tensor, the type of anything else."""
    if isinstance(x, Tensor):
        return f"a {str(x.dtype).removeprefix('torch.')} tensor of shape {tuple(x.shape)}"
    if isinstance(x, type):
        return f"the class {x.__name__}"
    if hasattr(x, "shape"):
        return f"{type(x).__name__} of shape {x.shape}"
    return f"{type(x).__name__} {short(x)}"


def short(x: object) -> str:
    """Return a value as text on one line, cut at 100 characters."""
    text = " ".join(repr(x).split())
    return text if len(text) <= 100 else f"{text[:96]} ..."


def named(part: object) -> str:
    """Return the repr of a part, or the name of its class if it defines no repr."""
    return type(part).__name__ if type(part).__repr__ is object.__repr__ else repr(part)


def steady(part: object) -> str:
    """Return the repr of a part without memory addresses, so that it is the same in the next process."""
    return re.sub(" at 0x[0-9A-Fa-f]+", "", named(part))


def brief(part: Any) -> str:
    """Return the repr of a dataclass with only the fields that differ from their defaults."""
    shown = []
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, Tensor):
            shown.append(f"{field.name}=<{describe(value).removeprefix('a ')}>")
        elif value is not field.default and value != field.default:
            shown.append(f"{field.name}={value!r}")
    return f"{type(part).__name__}({', '.join(shown)})"


def positive(value: float, name: str, hint: str = "", *, zero: bool = False) -> None:
    """Raise an error unless a number is finite and above 0 (at least 0 if `zero`); `hint` ends the advice."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        fix = f"Pass {name} as a Python number, for example {name}=0.1."
        raise TypeError(message(f"{name} to be a number", describe(value), fix))
    if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
        least = "at least 0" if zero else "above 0"
        raise ValueError(message(f"{name} to be finite and {least}", value, f"Choose a positive {name}{hint}."))


def count(value: int | Integral, name: str, *, at_least: int = 1) -> None:
    """Raise an error unless a value is a whole number of at least `at_least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(message(f"{name} to be an int", describe(value), f"Pass a whole number as {name}."))
    if int(value) < at_least:
        raise ValueError(message(f"{name} of at least {at_least}", value, "Pass a larger number."))


def kind(part: object, wanted: type, expected: str, fix: str) -> None:
    """Raise an error unless a value is an instance of a class or protocol."""
    if isinstance(part, type) or not isinstance(part, wanted):
        members = dir(wanted) if getattr(wanted, "_is_protocol", False) else []
        missing = [name for name in members if not name.startswith("_") and not hasattr(part, name)]
        without = f", which has no {' and no '.join(missing)}" if missing else ""
        raise TypeError(message(expected, describe(part) + without, fix))


def optional(part: object, wanted: type, name: str) -> None:
    """Raise an error unless an argument is None or an instance of a class."""
    if part is not None:
        kind(part, wanted, f"{name} to be a {wanted.__name__}", f"Leave {name} out for the default.")


def one_of(value: object, options: tuple[object, ...], name: str) -> None:
    """Raise an error unless a value is one of the options."""
    if value not in options:
        expected = f"{name} to be one of {', '.join(map(repr, options))}"
        raise ValueError(message(expected, repr(value), "Choose one of these."))


def events(x: Tensor, name: str = "x", *, finite: bool = True) -> None:
    """Raise an error unless x is a floating tensor `(n, *event)` with n of at least 1, and finite if `finite`."""
    if not isinstance(x, Tensor):
        plain = f"{name}.to_numpy()" if hasattr(x, "to_numpy") else name
        fix = f"Convert it with torch.as_tensor({plain}, dtype=torch.get_default_dtype())."
        raise TypeError(message(f"{name} to be a torch.Tensor", describe(x), fix))
    if not x.is_floating_point():
        raise TypeError(message(f"{name} to be a floating tensor", describe(x), f"Call {name}.float() first."))
    if x.ndim < 2 or x.numel() == 0:
        fix = f"Pass one event per row: {name}[:, None] if events are numbers, {name}[None] if this is a single event."
        raise ValueError(message(f"{name} of shape (n, *event) with n of at least 1", describe(x), fix))
    if finite and not x.isfinite().all():
        bad = (~x.isfinite().flatten(1).all(1)).nonzero().flatten().tolist()
        fix = f"Remove or replace those rows; the first is {name}[{bad[0]}]."
        raise ValueError(message(f"{name} to be finite", f"NaN or inf in {len(bad)} of {len(x)} rows", fix))


def returned(value: object, like: Tensor, shape: torch.Size, name: str) -> None:
    """Raise an error unless a user's function returned this shape, and the dtype and device of `like`."""
    expected = (
        f"{name}(x) to be a {str(like.dtype).removeprefix('torch.')} tensor of shape {tuple(shape)} on {like.device}"
    )
    if not isinstance(value, Tensor):
        raise TypeError(message(expected, describe(value), "Return a torch.Tensor."))
    if value.shape != shape:
        each = "value" if len(shape) == 1 else "row"
        fix = f"x has shape {tuple(like.shape)}: the first axis is the chain, and {name} returns one {each} per chain."
        if value.shape == (*shape, 1):
            fix += " Drop the last axis with squeeze(-1)."
        raise ValueError(message(expected, describe(value), fix))
    if value.dtype != like.dtype or value.device != like.device:
        fix = f"Return the dtype and device of x, for example {name}(x).to(x); net.to(x.dtype) converts a network."
        raise TypeError(message(expected, f"{describe(value)} on {value.device}", fix))


def inside(value: object, x: Tensor) -> Tensor:
    """Return the value of a support after checking that it is one bool per chain."""
    if not isinstance(value, Tensor) or value.dtype != torch.bool or value.shape != x.shape[:1]:
        expected = f"support(x) to be a bool tensor of shape ({len(x)},)"
        raise ValueError(message(expected, describe(value), "Return one bool per chain."))
    return value


def to_learn_from(samples: Tensor) -> Tensor:
    """Return samples that autograd can differentiate through; raise an error in inference mode."""
    if torch.is_inference_mode_enabled():
        fix = "Train outside of torch.inference_mode; sampling enters it by itself."
        raise RuntimeError(message("training with autograd", "torch.inference_mode", fix))
    return samples.clone() if samples.is_inference() else samples.detach()


@contextmanager
def explained() -> Iterator[None]:
    """Explain errors in a user's network or score: a wrong dtype, or autograd in inference mode."""
    try:
        yield
    except RuntimeError as error:
        if "same dtype" in str(error):
            fix = "Convert the points, for example with x.float(), or the network, with net.to(x.dtype)."
            raise TypeError(
                message("points of the dtype of the network", f"a different dtype ({error})", fix)
            ) from error
        if "grad" not in str(error) and "inference" not in str(error).lower():
            raise
        fix = (
            "Sampling runs under torch.inference_mode. Build the target with targets.from_log_density(log_density), "
            "or open `with torch.inference_mode(False), torch.enable_grad():` inside the score and clone x there."
        )
        got = f"{type(error).__name__}: {error}"
        raise RuntimeError(message("a score that needs no autograd graph", got, fix)) from error


Values = Tensor | Sequence[Any] | float | int  # a run-time type checker does not accept an int as a float
ROUNDING = 1e-3  # tolerance for a sum of 1, so that a weight of 1/3 can be written as 0.333


def shared_dtype(*values: Values | None) -> Tensor:
    """Return an empty tensor with the common dtype and the device of the parameters."""
    given = [torch.as_tensor(value) for value in values if hasattr(value, "dtype")]
    floating = [tensor.dtype for tensor in given if tensor.is_floating_point()]
    dtype = reduce(torch.promote_types, floating) if floating else torch.get_default_dtype()
    return torch.empty(0, dtype=dtype, device=given[0].device if given else None)


def parameter(value: Values, like: Tensor, name: str, *shape: Any, positive: bool = False) -> Tensor:
    """Return a parameter as a new tensor, after checking it. Letters in `shape` mean any size, `...` any shape."""
    tensor = torch.as_tensor(value, dtype=like.dtype, device=like.device).detach().clone()
    wanted = tuple(have if isinstance(want, str) else want for have, want in zip(tensor.shape, shape, strict=False))
    if tensor.numel() == 0 or (shape != (...,) and (len(shape) != tensor.ndim or wanted != tensor.shape)):
        expected, fix = f"{name} of shape {written(*shape)}", f"Pass {name} as a tensor or list of that shape."
        raise ValueError(message(expected, describe(tensor), fix))
    bad = tensor[~tensor.isfinite() | (tensor <= 0)] if positive else tensor[~tensor.isfinite()]
    if len(bad):
        expected = f"{name} to be finite{' and above 0' if positive else ''}"
        raise ValueError(message(expected, float(bad[0]), f"Correct that value of {name}."))
    return tensor


def matrices(value: Values | None, location: Tensor, name: str) -> Tensor:
    """Return one matrix per location; the identity if `value` is None."""
    *batch, d = location.shape
    value = torch.eye(d) if value is None else value
    shared = torch.as_tensor(value).ndim == 2
    return parameter(value, location, name, *([] if shared else batch), d, d).expand(*batch, d, d)


def written(*shape: int | str) -> str:
    """Return a shape as text for a message."""
    return str(shape).replace("'", "")


@runtime_checkable
class Frame(Protocol):
    """A table with a method `to_numpy`, such as a data frame of pandas or polars."""

    def to_numpy(self) -> NDArray[Any]:
        """Return the numbers, one row per sample."""
        ...


Samples = Tensor | NDArray[Any] | Frame
"""One sample per row, `(sample, *event)`: a tensor, an array or a data frame of numbers."""


def as_tensor(samples: Samples, name: str = "x", dtype: torch.dtype | None = None) -> Tensor:
    """Return samples as a floating tensor; a tensor is returned unchanged.

    Args:
        samples: Tensor, array or data frame, one sample per row.
        name: Name of the argument, for an error.
        dtype: Type for the numbers of an array or a data frame; by default their own floating type, or float64.
    """
    if isinstance(samples, Tensor) or not isinstance(samples, np.ndarray | Frame):
        return samples  # the caller's `events` raises the error for other types
    rows = samples if isinstance(samples, np.ndarray) else samples.to_numpy()
    try:
        numbers = np.asarray(rows, dtype=rows.dtype if rows.dtype.kind == "f" else np.float64)
    except (TypeError, ValueError) as error:
        fix = "Encode texts and categories as numbers, or leave those columns out."
        raise TypeError(message(f"{name} to hold numbers", f"{type(samples).__name__} ({error})", fix)) from error
    return torch.tensor(numbers, dtype=dtype)
