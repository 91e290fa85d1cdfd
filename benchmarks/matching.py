"""What a step of balance matching costs, against writing the paper's loss down as it stands: a part of `make bench`."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks import timing
from benchmarks.timing import Case, Effort, Ratio
from scoremh import MALA, Learned, LineIntegral, RandomWalk, Target, metropolis_hastings, sample
from scoremh.acceptance import Rule
from scoremh.balance_matching import MATCHING
from scoremh.networks import AcceptanceMLP, Antisymmetric, Form, Free, Potential, PotentialMLP, ScoreMLP
from scoremh.networks.acceptance import wanted_gradient
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
CASES = [case for case in timing.CASES if case.chains == 1_000]
SECTION = """
## What balance matching costs

{stamp} CPU time of one training step ({batch} samples) by the defaults of every form, over that of the first term
of the paper's loss written down as it stands: two forwards for the two orders, and a gradient of each that is
differentiated again. Medians of {rounds} rounds in which all took turns; bold is above the limit.

{table}

A potential learns from points: {batch} samples are {half} pairs. In a chain, one step of MALA costs, in bare
forwards of the score network:

{steps}
"""


def naive(net: nn.Module, target: Target, proposal: Proposal, x: Tensor, generator: torch.Generator) -> Tensor:
    """Return the first term of the paper's loss on proposed pairs."""
    x = x.clone().requires_grad_()
    current = Point.at(x, target, frozenset({"score"}))
    y = proposal.sample(current.map(torch.Tensor.detach), generator=generator).requires_grad_()
    wanted = wanted_gradient(proposal, current, Point.at(y, target, frozenset({"score"})))
    forth = torch.autograd.grad(net(y, x).sum(), (x, y), create_graph=True)
    back = torch.autograd.grad(net(x, y).sum(), (x, y), create_graph=True)
    given = torch.cat([a - b for a, b in zip(forth, back, strict=True)], 1)
    return (given - wanted).square().sum(1).mean()


def measure(size: Size, effort: Effort) -> dict[str, Ratio]:
    """Return the cost of every form for one network."""
    d, hidden, blocks, proposal = size
    x = torch.randn(BATCH, d, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    target = Target(ScoreMLP(d, 128, generator=generator).requires_grad_(False))

    def matched(form: str) -> Callable[[nn.Module, torch.Generator], Tensor]:
        return lambda net, g: MATCHING[form].terms(net, target, proposal, x, generator=g)["loss"]

    forms: dict[str, Form] = {
        "free": Free(AcceptanceMLP(d, hidden, blocks, generator=generator)),
        "antisymmetric": Antisymmetric(AcceptanceMLP(d, hidden, blocks, generator=generator)),
        "potential": Potential(PotentialMLP(d, hidden, 2 * blocks + 1)),
    }
    alternatives = {
        NAIVE: timing.optimiser_steps(
            AcceptanceMLP(d, hidden, blocks, generator=generator), lambda net, g: naive(net, target, proposal, x, g)
        ),
        **{name: timing.optimiser_steps(net, matched(name)) for name, net in forms.items()},
    }
    n = timing.steps_for(alternatives[NAIVE], effort)
    seconds = timing.interleaved({name: lambda steps=steps: steps(n) for name, steps in alternatives.items()}, effort)  # type: ignore[misc]
    return {name: timing.ratio(taken, seconds[NAIVE]) for name, taken in seconds.items()}


def rules(case: Case, effort: Effort) -> dict[str, Ratio]:
    """Return what a step of MALA costs by every rule, in bare forwards of the score network."""
    d, network = case.dimension, timing.score_network(case)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(case.chains, d, generator=generator)
    paper, ours = AcceptanceMLP(d), AcceptanceMLP(d, hidden=128, blocks=2)
    judged: dict[str, Rule] = {
        '`LineIntegral("simpson")`': LineIntegral("simpson"),
        "`Learned`, free, 256 x 3 blocks (the paper's), direct": Learned(Free(paper)),
        "`Learned`, free, 256 x 3 blocks (the paper's), metropolis": Learned(Free(paper), "metropolis"),
        "`Learned`, antisymmetric, 128 x 2 blocks, metropolis": Learned(Antisymmetric(ours), "metropolis"),
        "`Learned`, potential, 128 x 3 layers, metropolis": Learned(Potential(PotentialMLP(d)), "metropolis"),
    }
    target, proposal = Target(network), MALA(timing.STEP_SIZE)

    n = timing.steps_for(lambda steps: timing.forwards(network, [x], steps), effort)
    alternatives: dict[str, Callable[[], object]] = {timing.BARE: lambda: timing.forwards(network, [x], n)}
    for name, rule in judged.items():
        kernel = metropolis_hastings(target, proposal, rule)
        alternatives[name] = lambda kernel=kernel: sample(kernel, x, draws=n, generator=generator)  # type: ignore[misc]
    seconds = timing.interleaved(alternatives, effort)
    return {name: timing.ratio(seconds[name], seconds[timing.BARE], less=1 / n) for name in judged}


def section(effort: Effort) -> str:
    """Measure all sizes and return the section of the page."""
    measured = {size.label: measure(size, effort) for size in SIZES}
    table = timing.table("CPU time in steps written down as they stand", measured, AT_MOST)
    steps = timing.table("CPU time in bare forwards", {case.label: rules(case, effort) for case in CASES}, {})
    sizes = {"batch": BATCH, "half": BATCH // 2, "rounds": effort.rounds}
    return SECTION.format(stamp=timing.stamp(), table=table, steps=steps, **sizes)
