"""What a training step costs with every loss, in steps of denoising on the same network: a part of `make bench`."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from benchmarks import timing
from benchmarks.timing import Effort, Ratio
from scoremh import DenoisingScoreMatching, ImplicitScoreMatching, SlicedScoreMatching
from scoremh.networks import ScoreMLP
from scoremh.training import Loss

BATCH = 512
DENOISING = "DenoisingScoreMatching"
IMPLICIT, SLICED = "ImplicitScoreMatching, closed form of `ScoreMLP`", "SlicedScoreMatching"
AT_MOST = {IMPLICIT: 2.0, SLICED: 2.7}


class Size(NamedTuple):
    """A `ScoreMLP` in so many dimensions."""

    dimension: int
    hidden: int

    @property
    def label(self) -> str:
        return f"{self.dimension}-{self.hidden}-{self.hidden}-{self.dimension}"


SIZES = [Size(2, 64), Size(3, 512), Size(10, 128), Size(64, 256)]
SECTION = """
## What a training step costs

{stamp}
CPU time of one training step (loss, gradient, Adam; {batch} samples) over that of a step of denoising on the same
`ScoreMLP`: medians of {rounds} rounds in which all losses took turns. Bold is above the limit.

{table}

- "By autograd" hides the closed form of the trace: d products with the Jacobian, what any other network gets.
"""


def measure(size: Size, effort: Effort) -> dict[str, Ratio]:
    """Return the cost of every loss for one network."""
    x = torch.randn(BATCH, size.dimension, generator=torch.Generator().manual_seed(0))

    def training(loss: Loss, *, hide: bool = False) -> Callable[[int], None]:
        net: nn.Module = ScoreMLP(size.dimension, size.hidden, generator=torch.Generator().manual_seed(0))
        net = nn.Sequential(net) if hide else net
        return timing.optimiser_steps(net, lambda net, generator: loss.loss(net, x, generator=generator))

    losses = {
        DENOISING: training(DenoisingScoreMatching(0.1)),
        IMPLICIT: training(ImplicitScoreMatching()),
        "ImplicitScoreMatching, by autograd": training(ImplicitScoreMatching(), hide=True),
        SLICED: training(SlicedScoreMatching()),
    }
    n = timing.steps_for(losses[DENOISING], effort)
    seconds = timing.interleaved({name: lambda steps=steps: steps(n) for name, steps in losses.items()}, effort)  # type: ignore[misc]
    return {name: timing.ratio(taken, seconds[DENOISING]) for name, taken in seconds.items()}


def section(effort: Effort) -> str:
    """Measure all sizes and return the section of the page."""
    measured = {size.label: measure(size, effort) for size in SIZES}
    table = timing.table("CPU time in steps of denoising", measured, AT_MOST)
    return SECTION.format(stamp=timing.stamp(), batch=BATCH, rounds=effort.rounds, table=table)
