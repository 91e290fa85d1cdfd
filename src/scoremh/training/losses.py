"""What a network is trained on."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from scoremh._shared.probe import Probe


@runtime_checkable
class Loss(Protocol):
    """What a network is trained on, or judged by."""

    def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the mean loss over a batch, differentiable in the weights."""
        ...


@runtime_checkable
class DetailedLoss(Loss, Protocol):
    """A loss of several parts, which may change in the course of a training."""

    def terms(
        self, net: nn.Module, x: Tensor, *, progress: float, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Return "loss" and what else to record of a batch, after this share of the training."""
        ...


@runtime_checkable
class ProbedLoss(Loss, Protocol):
    """A loss with parts that its text does not tell apart, such as a user's own score."""

    @property
    def probe(self) -> Probe:
        """Numbers that its parts answer: a checkpoint with other ones belongs to another training."""
        ...
