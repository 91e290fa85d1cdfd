"""What a training step costs with every loss, in steps of denoising on the same network: a part of `make bench`."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks import timing
from benchmarks.timing import Effort, Ratio
from scoremh import DenoisingScoreMatching, ImplicitScoreMatching, SlicedScoreMatching
from scoremh.networks import ScoreMLP
from scoremh.training import Loss

BATCH = 512
DENOISING = "DenoisingScoreMatching"
IMPLICIT, AUTOGRAD = "ImplicitScoreMatching, closed form of `ScoreMLP`", "ImplicitScoreMatching, by autograd"
SLICED = "SlicedScoreMatching"
AT_MOST = {IMPLICIT: 2.0, SLICED: 2.7}


class Size(NamedTuple):
    """A `ScoreMLP` in so many dimensions."""

    dimension: int
    hidden: int

    @property
    def label(self) -> str:
        return f"{self.dimension}-{self.hidden}-{self.hidden}-{self.dimension}"


SIZES = [Size(2, 64), Size(3, 512), Size(10, 128)]
SECTION = """
## What a training step costs

{stamp} CPU time of one training step (loss, gradient, Adam; {batch} samples) over that of a step of denoising on the
same `ScoreMLP`: medians of {rounds} rounds in which all losses took turns. Bold is above the limit.

{table}

- "By autograd" hides the closed form of the trace: d products with the Jacobian, what any other network gets.
"""


def optimiser_steps(net: nn.Module, loss: Loss, x: Tensor) -> Callable[[int], None]:
    """Return a function that makes so many steps of Adam."""
    optimiser, generator = torch.optim.Adam(net.parameters(), lr=1e-5), torch.Generator().manual_seed(0)

    def steps(n: int) -> None:
        for _ in range(n):
            value = loss.loss(net, x, generator=generator)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()

    return steps


def measure(size: Size, effort: Effort) -> dict[str, Ratio]:
    """Return the cost of every loss for one network."""
    x = torch.randn(BATCH, size.dimension, generator=torch.Generator().manual_seed(0))

    def training(loss: Loss, *, hide: bool = False) -> Callable[[int], None]:
        net: nn.Module = ScoreMLP(size.dimension, size.hidden, generator=torch.Generator().manual_seed(0))
        net = nn.Sequential(net) if hide else net
        return optimiser_steps(net, loss, x)

    losses = {
        DENOISING: training(DenoisingScoreMatching(0.1)),
        IMPLICIT: training(ImplicitScoreMatching()),
        AUTOGRAD: training(ImplicitScoreMatching(), hide=True),
        SLICED: training(SlicedScoreMatching()),
    }
    n = timing.steps_for(losses[DENOISING], effort)
    seconds = timing.interleaved({name: lambda steps=steps: steps(n) for name, steps in losses.items()}, effort)  # type: ignore[misc]
    return {name: timing.ratio(taken, seconds[DENOISING]) for name, taken in seconds.items()}


def section(effort: Effort) -> str:
    """Measure all sizes and return the section of the page."""
    measured = {size.label: measure(size, effort) for size in SIZES}
    table = [["CPU time in steps of denoising", *measured, "at most"]]
    for name in (DENOISING, IMPLICIT, AUTOGRAD, SLICED):
        limit = AT_MOST.get(name, math.inf)
        medians = [f"{found[name].median:.2f}" for found in measured.values()]
        cells = [f"**{text}**" if float(text) > limit else text for text in medians]
        table.append([name, *cells, f"{limit:g}" if name in AT_MOST else ""])
    return SECTION.format(stamp=timing.stamp(), batch=BATCH, rounds=effort.rounds, table=timing.markdown(table))
