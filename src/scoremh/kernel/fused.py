r"""Many steps at once, as tight loops over torch calls: the same Markov chain as `kernel.step`, not the same bits.

| loop | for |
|---|---|
| `unadjusted` | MALA with `Always()`: the unadjusted Langevin algorithm |
| `langevin` | MALA with a fixed quadrature of the score, or the adaptive one |
| `gaussian` | every other rule with a random walk, MALA or pCN |

With MALA the proposal's ratio holds the trapezoid rule with the other sign, and what is left has no cancelling terms:

    log r = v.(sum_i w_i s(x + t_i v) - (1/2 - w_end) (s + s')) - (h / 4) (s' - s).C(s' + s),    v = x' - x

`kernel.step` stays the definition; a test ties these to it. What makes them fast: noise for all steps is drawn and
coloured in one call, x' and the inner nodes share one score call while that is small, and no step computes what only
the record needs, or looks for numbers that are not finite: a segment that met one is made again, with care. Where a
candidate lies outside the support the score is asked at the current point instead, and counted.
"""

from scoremh.acceptance import Always, LineIntegral
from scoremh.kernel.gaussian import gaussian
from scoremh.kernel.langevin import langevin, unadjusted
from scoremh.proposals import MALA, PCN, RandomWalk
from scoremh.types import Acceptance, Proposal, Run, Target


def fused(target: Target, proposal: Proposal, acceptance: Acceptance) -> Run | None:
    """Return the loop for a kernel of these parts, or None where `kernel.step` has to be called step by step."""
    if type(proposal) is MALA and target.score is not None:
        if type(acceptance) is Always:
            return unadjusted(target.score, target.support, proposal)
        if type(acceptance) is LineIntegral and _is_fused(acceptance):
            return langevin(target.score, target.support, proposal, acceptance)
    if type(proposal) in (RandomWalk, MALA, PCN):
        return gaussian(target, proposal, acceptance)  # type: ignore[arg-type]
    return None


def _is_fused(rule: LineIntegral) -> bool:
    """Return whether a line integral has a loop of its own: a straight one with inner nodes that are not random."""
    return rule.bend is None and rule.inner_nodes > 0 and rule.rule != "exact"
