r"""Decide about a product of parts: what has a log density is differenced, what has a score only is integrated.

With log p = k + l, where k is known and l has a score only,

    log r = [l(x') - l(x)] + [k(x') - k(x) + log q(x | x') - log q(x' | x)]

The second bracket is exact. To a rule it looks like the ratio of a proposal, and the first like all of log p: any rule
that estimates log p(x') - log p(x) and adds the proposal's ratio serves as it is.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.detailed_balance import log_q_ratio
from scoremh.types import Acceptance, DecidingAcceptance, Need, PartlyKnown, Point, Proposal, Tally, Target, TargetLike


@runtime_checkable
class RatioAcceptance(Acceptance, Protocol):
    """A rule that estimates log p(x') - log p(x) and adds the proposal's ratio to it."""

    def log_density_change(self, current: Point, proposed: Point, *, target: Target) -> Tensor:
        """Return an estimate of log p(proposed) - log p(current)."""
        ...

    def log_balanced(self, log_ratio: Tensor) -> Tensor:
        """Return log a from log r."""
        ...


def rule_for(target: TargetLike, rule: Acceptance) -> Acceptance:
    """Return the rule that a kernel applies: for a product with known parts, one that differences them exactly."""
    integrates = isinstance(rule, RatioAcceptance) and bool(rule.needs & {"score", "inner_score"})
    if not integrates or not isinstance(target, PartlyKnown):
        return rule
    assert isinstance(rule, RatioAcceptance)
    if target.rest_score is None:
        return Known(target, rule)
    return (DecidingPartly if isinstance(rule, DecidingAcceptance) else Partly)(target, rule)


@dataclass(frozen=True)
class Known:
    """A rule for a product of which every part has a log density: it decides as `Exact` does.

    Args:
        product: Target of which every part has a log density.
        rule: Acceptance rule, of which the balance is used.
    """

    product: PartlyKnown
    rule: RatioAcceptance

    @property
    def needs(self) -> frozenset[Need]:
        """The log density at both points."""
        return frozenset({"log_density"})

    def log_accept(self, current: Point, proposed: Point, *, target: Target, proposal: Proposal) -> Tensor:
        """Return log a from the log densities."""
        assert current.log_density is not None
        assert proposed.log_density is not None
        change = proposed.log_density - current.log_density
        return self.rule.log_balanced(change + log_q_ratio(proposal, current, proposed))


@dataclass(frozen=True)
class Partly:
    """A rule for a product of parts with a log density and parts with a score only.

    Args:
        product: Target of which some parts have a log density and some a score only.
        rule: Acceptance rule that integrates the score of the latter.
    """

    product: PartlyKnown
    rule: RatioAcceptance

    @property
    def needs(self) -> frozenset[Need]:
        """The log density of the known parts, and what the rule needs of the score of the others."""
        asked: set[Need] = {"log_density"}
        asked |= self.rule.needs - {"score"}
        return frozenset(asked | {"rest_score"} if "score" in self.rule.needs else asked)

    def known(self, target: Target) -> Target:
        """Return the target with the parts apart: `log_density` is of the known ones, `score` of the others."""
        known = self.product.known
        return target._replace(score=self.product.rest_score, log_density=known.log_density, known_score=known.score)

    def require(self, target: Target, proposal: Proposal) -> None:
        """Refuse a proposal that needs the log density of the whole."""
        if "log_density" in proposal.needs:
            fix = "Give every part a log density, or use another proposal."
            got = "a product with parts that have a score only"
            raise ValueError(checks.message(f"a target with a log_density, which {proposal} needs", got, fix))

    def log_accept(self, current: Point, proposed: Point, *, target: Target, proposal: Proposal) -> Tensor:
        """Return log a from the difference of the known parts and the rule's integral of the others."""
        return self.rule.log_accept(
            _exchanged(current), _exchanged(proposed), target=target, proposal=_WithKnownParts(proposal)
        )


@dataclass(frozen=True)
class DecidingPartly(Partly):
    """The same for a rule that saves work where the uniform number already decides."""

    def log_accept_against(
        self,
        current: Point,
        proposed: Point,
        log_uniform: Tensor,
        *,
        target: Target,
        proposal: Proposal,
        generator: torch.Generator | None = None,
        tally: Tally | None = None,
    ) -> Tensor:
        """Return log a, as exactly as the comparison with `log_uniform` needs it."""
        rule = self.rule
        parts = {"target": target, "proposal": _WithKnownParts(proposal), "generator": generator, "tally": tally}
        return rule.log_accept_against(_exchanged(current), _exchanged(proposed), log_uniform, **parts)  # type: ignore[attr-defined, no-any-return]


def _exchanged(point: Point) -> Point:
    """Return a point whose score is that of the rest, or, of such a point, the one with the score of the whole."""
    return point._replace(score=point.rest_score, rest_score=point.score)


@dataclass(frozen=True)
class _WithKnownParts:
    """A proposal to whose ratio the change of the known log density is added; its points are exchanged ones."""

    proposal: Proposal

    @property
    def needs(self) -> frozenset[Need]:
        """What the proposal needs."""
        return self.proposal.needs

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw a candidate."""
        return self.proposal.sample(_exchanged(at), generator=generator)

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        """Return log q(to | given) + k(given): the difference of both directions is `log_q_ratio`."""
        assert given.log_density is not None
        return self.proposal.log_prob(_exchanged(to), given=_exchanged(given)) + given.log_density

    def log_q_ratio(self, current: Point, proposed: Point) -> Tensor:
        """Return k(proposed) - k(current) + log q(current | proposed) - log q(proposed | current)."""
        assert current.log_density is not None
        assert proposed.log_density is not None
        change = proposed.log_density - current.log_density
        return change + log_q_ratio(self.proposal, _exchanged(current), _exchanged(proposed))
