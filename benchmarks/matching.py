"""What a step of balance matching costs, against writing the paper's loss down as it stands: a part of `make bench`."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks import timing
from benchmarks.timing import Effort, Ratio
from scoremh import MALA, BalanceMatching, RandomWalk, Target, _balance
from scoremh.networks import AcceptanceMLP, Antisymmetric, Form, Free, Potential, PotentialMLP, ScoreMLP
from scoremh.types import Point, Proposal

BATCH = 512
NAIVE = "two forwards, two `autograd.grad(create_graph=True)`"
AT_MOST = {"free": 1.02, "antisymmetric": 1.02, "potential": 0.55}


class Size(NamedTuple):
    """An `AcceptanceMLP` for pairs of points, and a proposal."""

    dimension: int
    hidden: int
    blocks: int
    proposal: Proposal

    @property
    def label(self) -> str:
        kind = type(self.proposal).__name__
        return f"{kind}, 2 x {self.dimension} -> {self.hidden}, {self.blocks} blocks"


SIZES = [Size(2, 128, 2, RandomWalk(0.3)), Size(2, 256, 3, RandomWalk(0.3)), Size(2, 256, 3, MALA(0.02))]
SIZES += [Size(3, 512, 4, RandomWalk(0.3))]
SECTION = """
## What a step of balance matching costs

CPU time of one training step (pairs, scores, loss, gradient, Adam; {batch} samples) over that of the paper's loss
written down as it stands, on the same network and pairs: two forwards for the two orders, and a gradient of each that
is differentiated again. The median of {rounds} rounds in which all took turns, its quartiles in brackets. Bold is above
what was to be reached.

{table}

- A potential has a network of the same width, and as many layers as the blocks have in all. It learns from points and
  not from pairs: from {batch} samples it takes {half} pairs, which are {batch} points. Pairs for pairs it would cost twice as much.
- For MALA all of them differentiate through the score network (two layers of 128), but for the potential, whose proposal cancels.
"""  # noqa: E501


def naive(net: nn.Module, target: Target, proposal: Proposal, x: Tensor, generator: torch.Generator) -> Tensor:
    """Return the first term of the paper's loss on proposed pairs."""
    x = x.clone().requires_grad_()
    current = Point.at(x, target, frozenset({"score"}))
    y = proposal.sample(current.map(torch.Tensor.detach), generator=generator).requires_grad_()
    wanted = _balance.wanted_gradient(proposal, current, Point.at(y, target, frozenset({"score"})))
    forth = torch.autograd.grad(net(y, x).sum(), (x, y), create_graph=True)
    back = torch.autograd.grad(net(x, y).sum(), (x, y), create_graph=True)
    given = torch.cat([a - b for a, b in zip(forth, back, strict=True)], 1)
    return (given - wanted).square().sum(1).mean()


def measure(size: Size, effort: Effort) -> dict[str, Ratio]:
    """Return the cost of every form for one network."""
    d, hidden, blocks, proposal = size
    x = torch.randn(BATCH, d, generator=torch.Generator().manual_seed(0))
    target = Target(ScoreMLP(d, 128).requires_grad_(False))

    def training(net: nn.Module, loss: Callable[[nn.Module, torch.Generator], Tensor]) -> Callable[[int], None]:
        optimiser, generator = torch.optim.Adam(net.parameters(), lr=1e-5), torch.Generator().manual_seed(0)

        def steps(n: int) -> None:
            for _ in range(n):
                value = loss(net, generator)
                optimiser.zero_grad()
                value.backward()
                optimiser.step()

        return steps

    def matched(net: nn.Module, generator: torch.Generator) -> Tensor:
        return BalanceMatching().terms(net, target, proposal, x, generator=generator)["loss"]

    forms: dict[str, Form] = {
        "free": Free(AcceptanceMLP(d, hidden, blocks)),
        "antisymmetric": Antisymmetric(AcceptanceMLP(d, hidden, blocks)),
        "potential": Potential(PotentialMLP(d, hidden, 2 * blocks + 1)),
    }
    alternatives = {
        NAIVE: training(AcceptanceMLP(d, hidden, blocks), lambda net, g: naive(net, target, proposal, x, g)),
        **{name: training(net, matched) for name, net in forms.items()},
    }
    n = timing.steps_for(alternatives[NAIVE], effort)
    seconds = timing.interleaved({name: lambda steps=steps: steps(n) for name, steps in alternatives.items()}, effort)  # type: ignore[misc]
    return {name: timing.ratio(taken, seconds[NAIVE]) for name, taken in seconds.items()}


def section(effort: Effort) -> str:
    """Measure all sizes and return the section of the page."""
    torch.manual_seed(0)
    measured = {size.label: measure(size, effort) for size in SIZES}
    table = timing.table("CPU time in steps written down as they stand", measured, AT_MOST)
    return SECTION.format(batch=BATCH, half=BATCH // 2, rounds=effort.rounds, table=table)
