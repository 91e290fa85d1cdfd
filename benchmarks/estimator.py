"""What a step of `ScoreMH` costs: the kernels that it and the command line build, taken from a fit.

    ratio = CPU time of sample(kernel, u, draws=1, thin=n) / CPU time of n calls of its network on all chains  -  1 / n

n is the number of steps that `ScoreMH` makes; by default, log p through noise decides them in groups. While `ScoreMH`
fits and draws, all transitions are counted by the loop that makes them: the fused one of MALA, the general one (which
groups use, since their points keep a log density), or one step at a time.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

import scoremh
from benchmarks import timing
from benchmarks.timing import BARE, Effort, Ratio
from scoremh import Always, LineIntegral, Sampler, ScoreMH, datasets
from scoremh.kernel import metropolis

CHAINS, ROWS, DRAWS = (100, 1_000, 10_000), 2_000, 2_000
STEPS = ScoreMH().chain_steps
DEFAULT = "`ScoreMH()`"
SECTION = """
## What a step of `ScoreMH` costs

{stamp} The kernels are those of `ScoreMH(...).fit(X)` on {size:,} points of Moons; the command line builds the same.
The unit is a bare forward of their own score network, {unit:.0f} microseconds with 1,000 chains. Medians of {rounds}
rounds in which all kernels took turns.

{table}

- {steps} steps from new points, as `ScoreMH` makes them. By default, log p through noise decides every ten moves; the
  other rows have no such groups. All rows have the same network and step size.
- `ScoreMH().fit(X)` took {fit:.1f} CPU seconds, and `.sample({draws:,})` {sample:.1f}. Their transitions, tuning and
  checks included: {made}.
"""


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


def measured(
    samplers: dict[str, Sampler], chains: int, effort: Effort
) -> tuple[dict[str, Ratio], dict[str, float], float]:
    """Return the cost of a step in bare forwards, its score calls, and the microseconds of a forward."""
    first = samplers[DEFAULT]
    score = first.target.score
    assert isinstance(score, torch.nn.Module)
    generator = torch.Generator().manual_seed(0)
    u = first.start(chains, noise_level=first.noise_level, generator=generator)
    kernels = {name: sampler.kernel for name, sampler in samplers.items()}

    def sampling(name: str) -> Callable[[], scoremh.Chains]:
        return lambda: scoremh.sample(kernels[name], u, draws=1, thin=STEPS, generator=generator)

    alternatives: dict[str, Callable[[], object]] = {BARE: lambda: timing.forwards(score, u, STEPS)}
    seconds = timing.interleaved(alternatives | {name: sampling(name) for name in kernels}, effort)
    ratios = {name: timing.ratio(seconds[name], seconds[BARE], less=1 / STEPS) for name in kernels}
    calls = {name: (sampling(name)().score_calls / chains - 1) / STEPS for name in kernels}
    print(f"{chains:,} chains:", {name: round(r.median, 2) for name, r in ratios.items()}, calls, file=sys.stderr)
    return ratios, calls, timing.microseconds(seconds[BARE], STEPS)


def section(effort: Effort) -> str:
    """Measure all kernels and return the section of the page."""
    x = datasets.moons(ROWS, generator=torch.Generator().manual_seed(0)).numpy()
    with counted_transitions() as made:
        began = time.process_time()
        model = ScoreMH(verbose=False, random_state=0).fit(x)
        fitted = time.process_time()
        model.sample(DRAWS)
        drawn = time.process_time()
    first = model.sampler_
    samplers = {
        DEFAULT: first,
        "the same, decided by Simpson's rule alone": replace(first, group_size=None),
        '`ScoreMH(acceptance="exact")`': replace(first, acceptance=LineIntegral("exact")),
        '`ScoreMH(acceptance="always")`, ULA': replace(first, acceptance=Always()),
    }
    found = {chains: measured(samplers, chains, effort) for chains in CHAINS}
    table = [["CPU time in bare forwards", *(f"{chains:,} chains" for chains in CHAINS), "score calls a step"]]
    for name in samplers:
        ratios = [f"{found[chains][0][name].median:.2f}" for chains in CHAINS]
        table.append([name, *ratios, f"{found[1_000][1][name]:.2f}"])
    return SECTION.format(
        stamp=timing.stamp(),
        size=ROWS,
        unit=found[1_000][2],
        rounds=effort.rounds,
        steps=STEPS,
        table=timing.markdown(table),
        fit=fitted - began,
        draws=DRAWS,
        sample=drawn - fitted,
        made=f"{made.total():,}, " + ", ".join(f"{made[loop] / made.total():.1%} {loop}" for loop in sorted(made)),
    )
