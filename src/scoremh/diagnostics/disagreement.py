"""Disagreement of two acceptance rules on the same candidates and the same uniform numbers.

For candidates x' ~ q(. | x) and one u ~ U(0, 1] for each, rule i accepts if log u < log a_i(x', x). The expected share
of decisions that differ is E|a_1 - a_2|.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.checks import Samples, as_tensor
from scoremh.acceptance import Rule
from scoremh.kernel.metropolis import Transition, transition_of
from scoremh.types import Point, Proposal, TargetLike


@dataclass(frozen=True)
class Disagreement:
    """How two rules differ on the same moves.

    Args:
        rate: Share of moves on which one rule accepts and the other does not.
        mean_difference: Mean of |a_1 - a_2|, the two acceptance probabilities; the expected rate.
        acceptance_rates: Share of moves that each rule accepts.
        moves: Number of moves.
    """

    rate: float
    mean_difference: float
    acceptance_rates: tuple[float, float]
    moves: int

    def __str__(self) -> str:
        """Return both rates and their difference in a sentence."""
        first, second = self.acceptance_rates
        return (
            f"{self.rate:.2%} of {self.moves} decisions differ (acceptance {first:.3f} and {second:.3f}, "
            f"mean difference of the probabilities {self.mean_difference:.4f})"
        )


@torch.inference_mode()
def disagreement(
    rule_a: Rule,
    rule_b: Rule,
    *,
    target: TargetLike,
    proposal: Proposal,
    x: Samples,
    generator: torch.Generator | None = None,
) -> Disagreement:
    """Compare the decisions of two rules on one candidate and one uniform per row of x.

    Args:
        rule_a: First acceptance rule.
        rule_b: Second acceptance rule, compared with the first.
        target: Target with the functions that both rules need.
        proposal: Proposal that draws the candidates.
        x: Current positions, `(chain, *event)`; draws of the target are a good choice.
        generator: Random number generator; the same seed gives the same draws.

    Returns:
        The share of decisions that differ, and both acceptance rates; both rules decide as in a kernel.
    """
    x = as_tensor(x, "x", torch.get_default_dtype())
    checks.events(x)
    transitions = [transition_of(target, proposal, rule) for rule in (rule_a, rule_b)]
    generator = rng.resolve(generator, x.device)
    with checks.explained():
        here = Point.at(x, transitions[0].target, proposal.needs)
    candidates = proposal.sample(here, generator=generator)
    log_uniform = rng.log_uniform((len(x),), x, generator)

    def log_accept(transition: Transition) -> Tensor:
        with checks.explained():
            current = Point.at(x, transition.target, transition.needs)
        _, move = transition.decide(current, candidates, log_uniform, generator)
        return move.log_accept.nan_to_num(-torch.inf)

    first, second = map(log_accept, transitions)
    takes = [(log_uniform < log_a).double() for log_a in (first, second)]
    return Disagreement(
        rate=float((takes[0] != takes[1]).sum()) / len(x),
        mean_difference=float((first.exp() - second.exp()).abs().sum()) / len(x),
        acceptance_rates=(float(takes[0].sum()) / len(x), float(takes[1].sum()) / len(x)),
        moves=len(x),
    )
