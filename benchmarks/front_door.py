"""What a step of the front door costs: the kernels that `ScoreMH`, the command line and Table 1 build, taken from them.

    ratio = CPU time of sample(kernel, u, draws=n) / CPU time of n calls of its score network on all chains  -  1 / n

Every kernel is the one that the front door builds, with the groups of moves that log p through noise decides. While
`ScoreMH` fits and draws, all transitions are counted by the loop that makes them: the fused one of MALA, the general
one (which groups use, since their points keep a log density), or one step at a time.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any
from unittest import mock

import torch

import scoremh
from benchmarks import timing
from benchmarks.timing import Effort, Ratio
from scoremh import Always, LineIntegral, Recipe, Sampler, ScoreMH, datasets
from scoremh.kernel import metropolis
from scoremh.networks import NoiseConditionalMLP

CHAINS = (100, 1_000, 10_000)
BRIEF: dict[str, Any] = {
    "score_steps": 400,
    "acceptance_steps": 300,
    "verbose": False,
    "random_state": 0,
}
# The most a row may cost at 100, 1,000 and 10,000 chains: 1.1 times ULA's and MALA's limits with a bare network.
LIMITS = {"ULA": (1.375, 1.21, 1.21), "MALA": (2.53, 2.42, 2.42)}
SECTION = """
## What a step of the front door costs

{stamp} The kernels are those that `ScoreMH(...).fit(X)` builds on 2,000 points of Moons (the command line builds
the same), with every ten moves decided through noise unless the row says otherwise, and those of Table 1's rows; the
unit is a bare forward of their own score network. The median of {rounds} rounds in which all alternatives took turns,
its quartiles in brackets. Bold is above what was to be reached.

{table}

- A potential is a second network: its row costs a forward of the score and one of the potential.
- Transitions of `ScoreMH(...).fit(X)` and `.sample(1000)`, tuning included: {fused}. Those of the rows of
  Table 1: {rows}.
- Building a kernel takes {build:.0f} microseconds with the default networks, and {wide:.0f} with a score of 4 x 512 and
  a free acceptance of 512 x 4, whose proposal is compared with the one that it was learned for.
"""


@dataclass(frozen=True)
class Door:
    """A kernel of the front door.

    Args:
        name: What it is.
        sampler: Sampler that builds it.
        limit: Key of its limits; None if it has none.
    """

    name: str
    sampler: Sampler
    limit: str | None


def doors() -> list[Door]:
    """Return the samplers of the front door, each from a short fit."""
    x = datasets.moons(2000, generator=torch.Generator().manual_seed(0)).numpy()
    made: list[Door] = []
    rows: dict[str, tuple[dict[str, Any], str | None]] = {
        "ScoreMH(), defaults: MALA, Simpson": ({}, None),
        'ScoreMH(acceptance="always"), ULA, no groups': ({"acceptance": "always"}, "ULA"),
        'ScoreMH(acceptance="potential")': ({"acceptance": "potential"}, None),
        'ScoreMH("rw", "potential"): random walk': ({"proposal": "rw", "acceptance": "potential"}, None),
        'ScoreMH("pcn", "potential"): pCN': ({"proposal": "pcn", "acceptance": "potential"}, None),
        'ScoreMH(acceptance="free"), no groups': ({"acceptance": "free"}, None),
    }
    for name, (parameters, limit) in rows.items():
        sampler = ScoreMH(**BRIEF, **parameters).fit(x).sampler_
        made.append(Door(name, sampler, limit))
        if not parameters:
            made.append(Door("the same without groups", replace(sampler, group_size=None), "MALA"))
    wide = NoiseConditionalMLP(2, residual=True)
    score = scoremh.fit_score(torch.from_numpy(x).float(), net=wide, recipe=Recipe(steps=400))
    table1 = replace(made[0].sampler, group_size=None, score=score, acceptance=LineIntegral("simpson"))
    made.append(Door("Table 1, MALA with Simpson (residual network)", table1, "MALA"))
    made.append(Door("Table 1, ULA (residual network)", replace(table1, acceptance=Always()), "ULA"))
    return made


def measured(door: Door, chains: int, effort: Effort) -> Ratio:
    """Return the cost of a step in bare forwards."""
    kernel, score = door.sampler.kernel, door.sampler.target.score
    assert isinstance(score, torch.nn.Module)
    generator = torch.Generator().manual_seed(0)
    u = door.sampler.start(chains, noise_level=door.sampler.noise_level, generator=generator)
    steps = timing.steps_for(lambda n: timing.forwards(score, [u], n), effort)
    alternatives: dict[str, Callable[[], object]] = {
        "bare": lambda: timing.forwards(score, [u], steps),
        "step": lambda: scoremh.sample(kernel, u, draws=steps, generator=generator),
    }
    seconds = timing.interleaved(alternatives, effort)
    return timing.ratio(seconds["step"], seconds["bare"], less=1 / steps)


@contextmanager
def counted_transitions() -> Iterator[Counter[str]]:
    """Yield a counter of the transitions that kernels make meanwhile, by the loop that makes them."""
    made: Counter[str] = Counter()
    loop, run, step = metropolis.LangevinLoop.__call__, metropolis.Transition.run, metropolis.Transition.step

    def fused(self: Any, point: Any, steps: int, **options: Any) -> Any:
        made["by MALA's fused loop"] += steps * len(point.x)
        return loop(self, point, steps, **options)

    def general(self: Any, point: Any, steps: int, **options: Any) -> Any:
        made["by the general loop"] += steps * len(point.x)
        return run(self, point, steps, **options)

    def stepping(self: Any, point: Any, **options: Any) -> Any:
        made["step by step"] += len(point.x)
        return step(self, point, **options)

    with (
        mock.patch.object(metropolis.LangevinLoop, "__call__", fused),
        mock.patch.object(metropolis.Transition, "run", general),
        mock.patch.object(metropolis.Transition, "step", stepping),
    ):
        yield made


def _share(made: Counter[str]) -> str:
    parts = ", ".join(f"{made[name] / made.total():.1%} {name}" for name in sorted(made))
    return f"{made.total():,}, {parts}"


def front_door_share() -> str:
    """Return the transitions of the README's three lines, by loop."""
    x = datasets.moons(2000, generator=torch.Generator().manual_seed(0)).numpy()
    with counted_transitions() as made:
        ScoreMH(**BRIEF).fit(x).sample(1000)
    return _share(made)


def table1_share() -> str:
    """Return the transitions of all rows of Table 1 that have chains, on short chains, by loop."""
    x = datasets.moons(2000, generator=torch.Generator().manual_seed(0)).numpy()
    first = replace(ScoreMH(**BRIEF).fit(x).sampler_, group_size=None)
    with counted_transitions() as made:
        for proposal in ("mala", "rw", "pcn"):
            tuned = replace(first, proposal=proposal).tune(100, steps=50)
            for form in ("free", "antisymmetric", "potential"):
                learned = tuned.learn_acceptance(torch.from_numpy(x), form, recipe=Recipe(steps=50))
                learned.run(learned.start(100), 50)
            for rule in (LineIntegral("simpson"), LineIntegral("exact")):
                replace(tuned, acceptance=rule).run(tuned.start(100), 50)
    return _share(made)


def building_microseconds(sampler: Sampler) -> float:
    """Return the median time that it takes to build a kernel."""
    taken = []
    for _ in range(50):
        start = time.perf_counter()
        _ = sampler.kernel
        taken.append(time.perf_counter() - start)
    return 1e6 * median(taken)


def wide_sampler() -> Sampler:
    """Return a sampler with wide networks, barely trained."""
    x = datasets.moons(200, generator=torch.Generator().manual_seed(0))
    brief, net = Recipe(steps=1, check_every=1), NoiseConditionalMLP(2, hidden=512, layers=4)
    sampler = Sampler(scoremh.fit_score(x, net=net, recipe=brief), step_size=0.1)
    return sampler.learn_acceptance(x, "free", net=scoremh.networks.AcceptanceMLP(2, 512, 4), recipe=brief)


def _cell(ratio: Ratio, limit: float) -> str:
    number = f"**{ratio.median:.2f}**" if round(ratio.median, 2) > limit else f"{ratio.median:.2f}"
    return f"{number} ({ratio.low:.2f} to {ratio.high:.2f})"


def section(effort: Effort) -> str:
    """Measure all kernels and return the section of the page."""
    head = ["CPU time in bare forwards", *(f"{chains:,} chains" for chains in CHAINS), "at most"]
    body, front = [], doors()
    for door in front:
        limits = LIMITS[door.limit] if door.limit else (float("inf"),) * len(CHAINS)
        ratios = [measured(door, chains, effort) for chains in CHAINS]
        cells = [_cell(ratio, limit) for ratio, limit in zip(ratios, limits, strict=True)]
        body.append([door.name, *cells, " / ".join(f"{limit:g}" for limit in limits) if door.limit else ""])
        print(door.name, [round(r.median, 2) for r in ratios], file=sys.stderr)
    rows = [head, ["---"] * len(head), *body]
    return SECTION.format(
        stamp=timing.stamp(),
        rounds=effort.rounds,
        table="\n".join("| " + " | ".join(cells) + " |" for cells in rows),
        fused=front_door_share(),
        rows=table1_share(),
        build=building_microseconds(front[0].sampler),
        wide=building_microseconds(wide_sampler()),
    )
