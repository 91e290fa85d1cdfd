"""Scores that fail, kill or are not finite; in a module of their own, which workers load at once."""

import os
import signal
from pathlib import Path

import torch
from torch import Tensor


class Deadly:
    """The score of a standard normal, which kills the first worker that has called it some times; all, without a flag.

    Args:
        flag: File that says that a worker was killed.
    """

    def __init__(self, flag: Path | None) -> None:
        self.flag, self.calls, self.parent = flag, 0, os.getpid()

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 5 and os.getpid() != self.parent and not (self.flag is not None and self.flag.exists()):
            if self.flag is not None:
                self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return -x


class Broken:
    """The score of a standard normal, which fails in the block of chains whose first starts there.

    Args:
        first: First coordinate of that point.
    """

    def __init__(self, first: float) -> None:
        self.first = first

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) == 650 and float(x[0, 0]) == self.first:
            raise ZeroDivisionError("of the user's")
        return -x


class NotFinite:
    """The score of a standard normal, which is another number beyond 0.8.

    Args:
        number: That number.
    """

    def __init__(self, number: float) -> None:
        self.number = number

    def __call__(self, x: Tensor) -> Tensor:
        return torch.where(x[:, :1] > 0.8, torch.full_like(x, self.number), -x)
