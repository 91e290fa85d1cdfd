r"""Many steps at once, as tight loops over torch calls: the same Markov chain as `kernel.step`, not the same bits.

| loop | for |
|---|---|
| `unadjusted` | MALA with `Always()`: the unadjusted Langevin algorithm |
| `langevin` | MALA with a fixed quadrature of the score, or the adaptive one |
| `gaussian` | every other rule with MALA, and every rule with a random walk, `ScaledMALA` or pCN |

With MALA the proposal's ratio holds the trapezoid rule with the other sign, and what is left has no cancelling terms:

    log r = v.(sum_i w_i s(x + t_i v) - (1/2 - w_end) (s + s')) - (h / 4) (s' - s).C(s' + s),    v = x' - x

`kernel.step` stays the definition; a test ties these to it. What makes them fast: noise for all steps is drawn and
coloured in one call, x' and the inner nodes share one score call while that is small, and no step computes what only
the record needs, or looks for numbers that are not finite: a segment that met one is made again, with care. Where a
candidate lies outside the support the score is asked at the current point instead, and counted.
"""

from collections.abc import Callable
from typing import Any

import torch

from scoremh.acceptance import Always, LineIntegral
from scoremh.kernel.gaussian import gaussian
from scoremh.kernel.langevin import langevin, unadjusted
from scoremh.proposals import MALA, PCN, RandomWalk, ScaledMALA
from scoremh.types import Acceptance, Point, Proposal, Run, Target, Trace


class Loop:
    """A loop with the parts that it is made of: it is pickled as these, and made again from them.

    Args:
        make: Makes the loop.
        parts: What of.
    """

    def __init__(self, make: Callable[..., Run], *parts: object) -> None:
        self.make, self.parts = make, parts
        self.run = make(*parts)

    def __call__(self, point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
        """Make several transitions."""
        return self.run(point, steps, generator=generator)

    def __reduce__(self) -> tuple[Any, ...]:
        return Loop, (self.make, *self.parts)


def fused(target: Target, proposal: Proposal, acceptance: Acceptance) -> Run | None:
    """Return the loop for a kernel of these parts, or None where `kernel.step` has to be called step by step."""
    if type(proposal) is MALA and target.score is not None:
        if type(acceptance) is Always:
            return Loop(unadjusted, target.score, target.support, proposal)
        if type(acceptance) is LineIntegral and _is_fused(acceptance):
            return Loop(langevin, target.score, target.support, proposal, acceptance)
    if type(proposal) in (RandomWalk, MALA, ScaledMALA, PCN):
        return Loop(gaussian, target, proposal, acceptance)
    return None


def _is_fused(rule: LineIntegral) -> bool:
    """Return whether a line integral has a loop of its own: a straight one with inner nodes that are not random."""
    return rule.bend is None and rule.inner_nodes > 0 and rule.rule != "exact"
