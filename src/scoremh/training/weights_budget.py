"""A bound on what the header of a saved fit may build: no more numbers than the file has weights for.

A header is text that anybody can edit. One that asks for a network of 10^12 weights, or of 10^9 layers, is refused
before memory is taken for it.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Numbers that a network makes beside its weights: frequencies, and those of an initialisation.
SPARE_NUMBERS, EXPANSION = 100_000, 10


class _Budget(TorchDispatchMode):
    """Count the numbers that torch makes, and refuse to make too many; a size is looked at before it is made."""

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most, self.made = most, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten" and not any(isinstance(arg, Tensor) for arg in args):
            sizes = args[0] if args and isinstance(args[0], list | tuple) else [n for n in args if isinstance(n, int)]
            self.made += math.prod(sizes)
            if self.made > self.most:
                raise ValueError(f"a network of more than {self.most:,} numbers")
        return func(*args, **(kwargs or {}))


@contextmanager
def within_budget(description: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Refuse to build a network that is far larger than its weights, within.

    Args:
        description: The network as JSON describes it.
        weights: Its weights.
    """
    size = sum(weight.numel() for weight in weights.values())
    most = EXPANSION * size + SPARE_NUMBERS
    if (largest := max(_whole_numbers(description), default=0)) > most:
        raise ValueError(f"the number {largest:,} in the description of a network of {size:,} weights")
    with _Budget(most):
        yield


def _whole_numbers(part: Any) -> Iterator[int]:
    """Yield all whole numbers in a JSON value."""
    if isinstance(part, Mapping | list):
        for inner in part.values() if isinstance(part, Mapping) else part:
            yield from _whole_numbers(inner)
    elif isinstance(part, int):
        yield part
