r"""What a kernel decides about a candidate, for kernels and for what compares them.

Decide about a product of parts: what has a log density is differenced, what has a score only is integrated.

With log p = k + l, where k is known and l has a score only,

    log r = [l(x') - l(x)] + [k(x') - k(x) + log q(x | x') - log q(x' | x)]

The second bracket is exact. To a rule it looks like the ratio of a proposal, and the first like all of log p: any rule
that estimates log p(x') - log p(x) and adds the proposal's ratio serves as it is.

Whether a target, a proposal and a rule fit together: refused where the kernel is built, or where it is first run.

Scores as kernels call them: checked, and counted; and the calls of a log density made of scores.

The algorithm: propose, judge, take or stay.

    x' ~ q(. | x),  u ~ U(0, 1];   x <- x' where log u < log a(x', x), else x

Every chain decides alone. A candidate outside the support, or with a number that is not finite, is a rejection: the
score is not asked outside the support, and the move's `log_accept` (-inf, NaN) tells which it was.

The random numbers of many steps, drawn at once.

The loop for random walks, Langevin steps and pCN with any acceptance rule.

Loops for MALA: unadjusted, and adjusted by a quadrature of the score, fixed or refined where a decision needs it.

Many steps at once, as tight loops over torch calls: the same Markov chain as `kernel.step`, not the same bits.

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

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.algebra import Quadrature, newton_cotes, per_chain, rows_finite
from scoremh._shared.detailed_balance import log_q_ratio
from scoremh.acceptance import Always, BalancedRule, Exact, LineIntegral, Taylor
from scoremh.acceptance.rules import Romberg
from scoremh.coordinates import times
from scoremh.proposals import MALA, PCN, GaussianProposal, Preconditioned, RandomWalk, ScaledMALA, StudentWalk
from scoremh.targets.combinations import WeightedSum, share_outward
from scoremh.types import (
    Acceptance,
    DecidingAcceptance,
    InformedAcceptance,
    Kernel,
    LogDensityFn,
    Move,
    Need,
    PartlyKnown,
    Point,
    Proposal,
    Run,
    ScoreFn,
    ScoreModel,
    SupportFn,
    Tally,
    Target,
    TargetLike,
    Trace,
)


def validated_target(target: TargetLike, proposal: Proposal, rule: Acceptance | None = None) -> Target:
    """Return what proposal and rule know of p, having refused parts that are none, or that lack what they need."""
    fix = "Wrap a score as Target(score=...), a log density as targets.from_log_density(...)."
    checks.kind(target, TargetLike, "a Target", fix)
    checks.kind(proposal, Proposal, "a Proposal", "Pass MALA(0.1), for example.")
    if rule is not None:
        checks.kind(rule, Acceptance, "an Acceptance", "Pass LineIntegral(), for example.")
    if target.score is None and target.log_density is None:
        fix = "Pass Target(score=...) or Target(log_density=...), or one of scoremh.targets."
        raise ValueError(checks.message("a target with a score or a log density", "a target with neither", fix))
    levels = target if isinstance(target, ScoreModel) else getattr(target, "levels", None)
    known = Target(target.score, target.log_density, target.support, levels=levels)
    if isinstance(rule, InformedAcceptance):
        known = rule.known(known)
    _require_needs(proposal, known)
    if rule is not None:
        _require_needs(rule, known)
    if isinstance(rule, InformedAcceptance):
        rule.require(known, proposal)
    return known


def _require_needs(part: Proposal | Acceptance, known: Target) -> None:
    """Refuse a part that needs what is not known of p."""
    if unknown := set(part.needs) - set(get_args(Need)):
        expected = f"needs to be of {', '.join(map(repr, get_args(Need)))}"
        raise ValueError(checks.message(expected, f"{unknown} of {checks.named(part)}", "Leave the others out."))
    if known.log_density is None and "log_density" in part.needs:
        fix = "Use LineIntegral(), which integrates the score, or give the target a log_density."
        raise ValueError(checks.message(f"a target with a log_density, which {part} needs", "a score only", fix))
    if known.score is None and part.needs & {"score", "inner_score"}:
        fix = "Use RandomWalk(std) with Exact(), or targets.from_log_density(log_density) for a score by autograd."
        raise ValueError(checks.message(f"a target with a score, which {part} needs", "a log density only", fix))


def scored_target(target: TargetLike, proposal: Proposal) -> Target:
    """Return what is known of p, having refused a target without a score."""
    known = validated_target(target, proposal)
    if known.score is None:
        fix = "Use targets.from_log_density(log_density), or Exact() where there is a density."
        raise ValueError(checks.message("a target with a score", "a log density only", fix))
    return known


def judge(
    target: Target,
    needs: frozenset[Need],
    proposal: Proposal,
    acceptance: Acceptance,
    current: Point,
    x: Tensor,
    log_uniform: Tensor,
    generator: torch.Generator | None = None,
    tally: Tally | None = None,
) -> tuple[Tensor, Point]:
    """Return log a(x, current) and the candidate as a point; only candidates with p(x) > 0 are evaluated."""
    finite = rows_finite(x)
    possible = finite if target.support is None else finite & target.support(x)
    if not possible.all():
        log_accept = torch.where(finite, -math.inf, math.nan).to(x.dtype)
        candidate = current._replace(x=x)  # what is known of the current point stands in where nothing will be taken
        if possible.any():
            there = current.map(lambda part: part[possible])
            log_accept[possible], inside = judge(
                target._replace(support=None),
                needs,
                proposal,
                acceptance,
                there,
                x[possible],
                log_uniform[possible],
                generator,
                tally,
            )
            candidate = candidate.map(lambda part, values: part.index_put((possible,), values), inside)
        return log_accept, candidate
    candidate = Point.at(x, target, needs)
    if isinstance(acceptance, DecidingAcceptance):
        parts = {"target": target, "proposal": proposal, "generator": generator, "tally": tally}
        log_accept = acceptance.log_accept_against(current, candidate, log_uniform, **parts)  # type: ignore[arg-type]
    else:
        log_accept = acceptance.log_accept(current, candidate, target=target, proposal=proposal)
    if candidate.score is not None:  # a chain must not move to where its next step cannot be computed
        log_accept = torch.where(rows_finite(candidate.score), log_accept, math.nan)
    return log_accept, candidate


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


MAX_LONG_FREEDOM = 4  # degrees of freedom up to which steps are now and then very long


class DegenerateRuleWarning(UserWarning):
    """A proposal and a rule that do not go together: the density enters the decision no longer, or only by luck."""


class ImproperTargetWarning(UserWarning):
    """A product with negative weights that grows in its tails: it cannot be normalised, and its chains run away."""


def warn_if_degenerate(proposal: Proposal, acceptance: Acceptance) -> None:
    """Warn where the trapezoid meets MALA, whose q ratio holds the same terms, and a straight line very long steps."""
    if isinstance(proposal, MALA | ScaledMALA) and _is_trapezoid(acceptance):
        plain = isinstance(proposal, MALA)
        ratio = "(h / 4) (|s(x)|^2 - |s(x')|^2)" if plain else "a function of h(x), h(x') and |x' - x|"
        text = (
            f"{acceptance} with {type(proposal).__name__} is degenerate: log r = {ratio} exactly, so the density "
            'cancels and the rule only prefers small scores. Use LineIntegral("simpson"), one score call more.'
        )
        warnings.warn(text, DegenerateRuleWarning, stacklevel=3)
    if isinstance(proposal, StudentWalk) and proposal.freedom <= MAX_LONG_FREEDOM and _is_straight(acceptance):
        text = (
            f"{acceptance} with StudentWalk is wrong where tails are heavy: on a straight line, its nodes miss the "
            'middle of the distribution that a long step crosses. Use LineIntegral("adaptive", bend=fit.middle), or '
            "bend=(m, w) with a middle and a width of your own; or RandomWalk where tails are light."
        )
        warnings.warn(text, DegenerateRuleWarning, stacklevel=3)


def _is_trapezoid(acceptance: Acceptance) -> bool:
    if isinstance(acceptance, Taylor):
        return acceptance.order == 1 and acceptance.average
    return isinstance(acceptance, LineIntegral) and acceptance.rule == "trapezoid" and acceptance.inner_nodes == 0


def _is_straight(acceptance: Acceptance) -> bool:
    return isinstance(acceptance, Taylor) or (isinstance(acceptance, LineIntegral) and acceptance.bend is None)


@torch.inference_mode()
def first_point(target: Target, needs: frozenset[Need], x: Tensor) -> Point:
    """Return the point that chains start from, having refused a bad start and wrong answers of the target."""
    check_start(target, x)
    with checks.explained():
        point = Point.at(x.clone(), target, needs)
    check_answers(point)
    warn_if_improper(target, x)
    return point


def warn_if_improper(target: Target, x: Tensor) -> None:
    """Warn where a product with negative weights does not fall far out from the initial points x."""
    scores = [score for score in (target.score, target.known_score) if score is not None]
    if target.support is not None or not any(isinstance(score, WeightedSum) and score.divides for score in scores):
        return
    outward = share_outward(lambda x: torch.stack([score(x) for score in scores]).sum(0), x)
    if outward > 0:
        text = (
            f"A product with negative weights does not fall fast enough to be normalised in {outward:.0%} of the "
            "directions far out from the initial points: its chains may run away. Give less weight to what is divided "
            "by, or truncate it to a support."
        )
        warnings.warn(text, ImproperTargetWarning, stacklevel=4)


def check_start(target: Target, x: Tensor) -> None:
    """Refuse initial points that are no chains, not finite, or outside the support."""
    checks.events(x, "initial")
    if target.support is None:
        return
    inside = checks.inside(target.support(x), x)
    if not inside.all():
        outside = (~inside).nonzero().flatten()
        fix = f"Start where p(x) > 0; the first outside is initial[{int(outside[0])}]."
        got = f"{len(outside)} of {len(x)} outside"
        raise ValueError(checks.message("initial points inside the target's support", got, fix))


def check_answers(point: Point) -> None:
    """Refuse a score or log density of a wrong shape, dtype or device, and a start where p is 0."""
    x = point.x
    if point.score is not None:
        checks.answer(point.score, x, x.shape, "score")
    if point.log_density is not None:
        checks.answer(point.log_density, x, x.shape[:1], "log_density")
        bad = (~point.log_density.isfinite()).nonzero().flatten()
        if len(bad):
            got = f"{len(bad)} of {len(x)} with a log density that is not finite"
            fix = f"Start where p(x) > 0; the first such is initial[{int(bad[0])}]."
            raise ValueError(checks.message("initial points of positive density", got, fix))


class CheckedScore:
    """A score whose every answer has the shape and the dtype of x: another one would be broadcast, and be another step.

    Args:
        score: The score.
    """

    def __init__(self, score: ScoreFn) -> None:
        self.score = score

    def __call__(self, x: Tensor) -> Tensor:
        """Return the score at x."""
        value = self.score(x)
        if type(value) is not Tensor or value.shape != x.shape or value.dtype != x.dtype:
            checks.answer(value, x, x.shape, "score")
        return value


def checked(target: Target) -> Target:
    """Return a target whose scores are checked at every call."""
    score, known = (part and CheckedScore(part) for part in (target.score, target.known_score))
    return target._replace(score=score, known_score=known)


class CountedScore:
    """A score that counts the points at which it was evaluated.

    Args:
        score: The score.
    """

    def __init__(self, score: ScoreFn) -> None:
        self.score, self.calls = score, 0

    def __call__(self, x: Tensor) -> Tensor:
        """Return the score at x."""
        self.calls += len(x)
        return self.score(x)


def density_calls(log_density: LogDensityFn | None, x: Tensor) -> int:
    """Return the score calls that the log density of these points takes; 0 where it is none made of scores."""
    calls: Callable[[Tensor], int] | None = getattr(log_density, "score_calls", None)
    return 0 if calls is None else calls(x)


def metropolis_hastings(target: TargetLike, proposal: Proposal, acceptance: Acceptance) -> Kernel:
    """Compose a target, a proposal and an acceptance rule into a kernel.

    Args:
        target: What is known of p: a `Target`, or one of `scoremh.targets`.
        proposal: How candidates are drawn, for example `MALA(0.1)`.
        acceptance: How they are judged, for example `LineIntegral()`.

    Returns:
        A kernel to give to `sample`, or to step by hand.

    Example:
        >>> from scoremh import MALA, LineIntegral, Target
        >>> kernel = metropolis_hastings(Target(score=lambda x: -x), MALA(0.5), LineIntegral())
        >>> point = kernel.init(torch.zeros(3, 2))
        >>> point, move = kernel.step(point, generator=torch.Generator().manual_seed(0))
        >>> move.accepted.shape
        torch.Size([3])
    """
    rule = rule_for(target, acceptance)
    known = validated_target(target, proposal, rule)
    asked, needs = checked(known), proposal.needs | rule.needs
    warn_if_degenerate(proposal, acceptance)
    return Kernel(  # of functions at the top of a module, which can be pickled
        partial(first_point, known, needs),
        partial(_step, asked, needs, proposal, rule),
        run=fused(asked, proposal, rule),
        target_rate=_target_rate(proposal, acceptance),
        parts=(proposal, _named_density(target, acceptance)),
        unadjusted=partial(metropolis_hastings, target, proposal, Always()) if "score" in proposal.needs else None,
        target=known if needs - {"log_density"} else known._replace(score=None),
    )


@torch.inference_mode()
def _step(
    target: Target,
    needs: frozenset[Need],
    proposal: Proposal,
    rule: Acceptance,
    point: Point,
    *,
    generator: torch.Generator | None = None,
) -> tuple[Point, Move]:
    """Make one transition."""
    generator = rng.resolve(generator, point.x.device)
    x = proposal.sample(point, generator=generator)
    log_uniform = rng.log_uniform((len(x),), x, generator)
    score, tally = None if target.score is None else CountedScore(target.score), Tally()
    log_accept, proposed = judge(
        target._replace(score=score), needs, proposal, rule, point, x, log_uniform, generator, tally
    )
    accepted = log_uniform < log_accept
    calls = 0 if score is None else score.calls
    if "log_density" in needs:
        calls += density_calls(target.log_density, x)
    move = Move(proposed.x, log_accept, accepted, calls, tally.factors, tally.clipped)
    taken = proposed.map(lambda new, old: torch.where(per_chain(accepted, new), new, old), point)
    return taken, move


def _named_density(target: TargetLike, acceptance: Acceptance) -> object:
    """Return the rule, with the density that it uses where that is an estimate."""
    estimated = isinstance(acceptance, Exact) and getattr(target, "density_is_estimated", False)
    return f"{acceptance} for the log density through noise" if estimated else acceptance


def _target_rate(proposal: Proposal, acceptance: Acceptance) -> float | None:
    rates = getattr(proposal, "optimal_rates", None)
    if not rates or not isinstance(acceptance, BalancedRule):
        return None
    rate: float = rates["barker" if acceptance.balance == "direct" else acceptance.balance]
    return rate


def colored_noise(proposal: Preconditioned, steps: int, x: Tensor, generator: torch.Generator) -> Tensor:
    """Return L z for every step and chain, `(step, chain, *event)`."""
    z = rng.normal((steps, *x.shape), x, generator)
    return z if proposal.coordinates is None else proposal.color(z.flatten(0, 1)).reshape(z.shape)


def gaussian(target: Target, proposal: GaussianProposal, acceptance: Acceptance) -> Run:
    """Return the loop of a Gaussian proposal with a rule."""
    deciding = isinstance(acceptance, DecidingAcceptance)

    @torch.inference_mode()
    def run(point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
        noise = colored_noise(proposal, steps, point.x, generator)
        log_uniform = rng.log_uniform((steps, len(point.x)), point.x, generator)
        score = None if target.score is None else CountedScore(target.score)
        tally = Tally()
        loop = _Loop(target._replace(score=score), proposal, acceptance, deciding, generator, tally)
        # a rule that draws random numbers must not be asked twice
        careful = score is not None and (target.support is not None or deciding)
        last, trace = loop.steps(point, noise, log_uniform, careful=careful)
        if not careful and _met_nonfinite_score(last, trace):  # expensive to look for at every step
            last, trace = loop.steps(point, noise, log_uniform, careful=True)
        calls = 0 if score is None else score.calls
        if last.log_density is not None:
            calls += steps * density_calls(target.log_density, point.x)
        return last, trace._replace(score_calls=calls, factors=tally.factors, clipped=tally.clipped)

    return run


def _met_nonfinite_score(last: Point, trace: Trace) -> bool:
    """Return whether a score may have been infinite or NaN: a chain stays there forever, or the rule refused it."""
    if last.score is None:
        return False
    return not bool(last.score.isfinite().all()) or bool((trace.log_accept == -math.inf).any())


@dataclass(frozen=True)
class _Loop:
    target: Target
    proposal: GaussianProposal
    acceptance: Acceptance
    deciding: bool
    generator: torch.Generator
    tally: Tally

    def steps(self, point: Point, noise: Tensor, log_uniform: Tensor, *, careful: bool) -> tuple[Point, Trace]:
        """Make as many steps as there is noise for."""
        needs = self.proposal.needs | self.acceptance.needs
        xs, log_accepts = torch.empty_like(noise), torch.empty_like(log_uniform)
        for z, log_u, x_out, log_accept in zip(noise, log_uniform, xs, log_accepts, strict=True):
            x, refused = self._confined(point.x, self.proposal.candidates(point, z))
            candidate = Point.at(x, self.target, needs)
            log_accept.copy_(self._log_accept(point, candidate, log_u))
            if refused is not None:
                torch.where(refused == 0, log_accept, refused, out=log_accept)
            if careful and candidate.score is not None:
                log_accept.masked_fill_(~rows_finite(candidate.score), math.nan)
            accepted = log_u < log_accept
            candidate = candidate.map(lambda new, old, by=accepted: torch.where(per_chain(by, new), new, old), point)
            x_out.copy_(candidate.x)
            point = candidate
        return point, Trace(xs, log_accepts, log_uniform < log_accepts)

    def _log_accept(self, current: Point, proposed: Point, log_uniform: Tensor) -> Tensor:
        rule = self.acceptance
        parts: dict[str, Any] = {"target": self.target, "proposal": self.proposal}
        if self.deciding:
            parts |= {"generator": self.generator, "tally": self.tally}
            return rule.log_accept_against(current, proposed, log_uniform, **parts)  # type: ignore[attr-defined, no-any-return]
        return rule.log_accept(current, proposed, **parts)

    def _confined(self, x: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return candidates, x in place of those outside the support, and 0 inside, log a = -inf or NaN outside."""
        if self.target.support is None:
            return candidate, None
        inside = self.target.support(candidate)
        refused = torch.where(rows_finite(candidate), -math.inf, math.nan).to(x.dtype).masked_fill(inside, 0.0)
        return torch.where(per_chain(inside, x), candidate, x), refused


# Below this many rows one score call of two parts is cheaper than two calls; above, its buffers fall out of the cache.
SHARED_ROWS = 1024
# Up to this many coordinates a decision is repeated for each of them: `where` is slow over short rows.
REPEATED_SIZE = 8
SIMPSON = newton_cotes(1, simpson=True)


@dataclass(frozen=True)
class Langevin:
    """What both loops have in common.

    Args:
        score: The score.
        support: Where p is positive, or None for everywhere.
        step_size: h.
        precondition: s -> C s, or None for the identity.
    """

    score: ScoreFn
    support: SupportFn | None
    step_size: float
    precondition: Callable[[Tensor], Tensor] | None

    def drift(self, score: Tensor) -> Tensor:
        """Return C s."""
        return score if self.precondition is None else self.precondition(score)

    def confined(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return a move that stays where it would leave the support, which moves stay inside, and which leave it."""
        assert self.support is not None
        candidate = x + v
        inside = self.support(candidate)
        return torch.where(per_chain(inside, v), v, 0.0), inside, ~inside & rows_finite(candidate)


def _langevin(score: ScoreFn, support: SupportFn | None, proposal: MALA) -> Langevin:
    if proposal.coordinates is None:
        return Langevin(score, support, proposal.step_size, None)
    covariance = proposal.coordinates.covariance
    return Langevin(score, support, proposal.step_size, lambda s: times(covariance, s))


def unadjusted(score: ScoreFn, support: SupportFn | None, proposal: MALA) -> Run:
    """Return the loop of the unadjusted Langevin algorithm."""
    langevin = _langevin(score, support, proposal)

    @torch.inference_mode()
    def run(point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
        noise = colored_noise(proposal, steps, point.x, generator).mul_(math.sqrt(2 * langevin.step_size))
        # Looking for NaN costs as much as the step: look once at the end, and repeat with care if there was one.
        last, trace = _unadjusted_steps(langevin, point, noise, careful=False)
        assert last.score is not None
        if bool(last.score.isfinite().all()) and bool(last.x.isfinite().all()):
            return last, trace
        last, again = _unadjusted_steps(langevin, point, noise, careful=True)
        return last, again._replace(score_calls=trace.score_calls + again.score_calls)

    return run


def _unadjusted_steps(langevin: Langevin, point: Point, noise: Tensor, *, careful: bool) -> tuple[Point, Trace]:
    x, s = point.x, point.score
    assert s is not None
    xs, log_accept = torch.empty_like(noise), x.new_zeros(noise.shape[:2])
    for step, (z, out) in enumerate(zip(noise, xs, strict=True)):
        v = torch.add(z, langevin.drift(s), alpha=langevin.step_size)
        if langevin.support is not None:
            v, _, outside = langevin.confined(x, v)
            log_accept[step].masked_fill_(outside, -math.inf)
        proposed = torch.add(x, v, out=out)
        there = langevin.score(proposed)
        if careful:
            log_accept[step].masked_fill_(~(rows_finite(proposed) & rows_finite(there)), math.nan)
            take = per_chain(log_accept[step] == 0, x)
            torch.where(take, proposed, x, out=out)
            there = torch.where(take, there, s)
        x, s = out, there
    return Point(x, s), Trace(xs, log_accept, log_accept == 0, log_accept.numel())


def langevin(score: ScoreFn, support: SupportFn | None, proposal: MALA, rule: LineIntegral) -> Run:
    """Return the loop of MALA with a fixed quadrature, or with Simpson's rule refined where a decision needs it."""
    parts = _langevin(score, support, proposal)
    if rule.quadrature is None:
        return _integrated(_Refined(parts, SIMPSON, rule.inner_nodes), proposal, rule)
    return _integrated(_Integrated(parts, rule.quadrature), proposal, rule)


def _integrated(loop: "_Integrated", proposal: MALA, rule: LineIntegral) -> Run:
    @torch.inference_mode()
    def run(point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
        x = point.x
        noise = colored_noise(proposal, steps, x, generator).mul_(math.sqrt(2 * proposal.step_size))
        log_uniform = rng.log_uniform((steps, len(x), 1), x, generator)
        threshold = rule.ratio_threshold(log_uniform) / loop.unit
        made = loop.steps(point, noise, threshold, careful=False)
        calls = made.score_calls
        if bool(made.log_ratios.isposinf().any()):  # rare, and expensive to look for at every step
            made = loop.steps(point, noise, threshold, careful=True)
            calls += made.score_calls
        accepted = (threshold < made.log_ratios).squeeze(2)
        log_ratios = made.log_ratios.squeeze(2).mul_(loop.unit)
        if not bool(log_ratios.isfinite().all()):
            log_ratios.masked_fill_(~log_ratios.isfinite(), math.nan)
        log_accept = rule.log_balanced(log_ratios)
        if loop.langevin.support is not None:
            log_accept = log_accept.masked_fill(made.outside, -math.inf)
        return made.last, Trace(made.xs, log_accept, accepted, calls)

    return run


class _Steps(NamedTuple):
    """What a loop made, and log r in units of the first inner weight."""

    last: Point
    xs: Tensor
    log_ratios: Tensor
    outside: Tensor
    score_calls: int


class _Ends(NamedTuple):
    """Both ends of the moves of one step."""

    x: Tensor
    v: Tensor
    here: Tensor
    """s(x)."""
    there: Tensor
    """s(x + v)."""
    drift_change: Tensor
    """C (s(x + v) - s(x))."""


@dataclass(frozen=True)
class _Integrated:
    """The loop of MALA with a fixed quadrature."""

    langevin: Langevin
    quadrature: Quadrature

    @property
    def unit(self) -> float:
        """The first inner weight, in units of which log r is computed."""
        return self.quadrature.weights[0]

    def steps(self, point: Point, noise: Tensor, thresholds: Tensor, *, careful: bool) -> _Steps:
        """Make as many steps as there is noise for."""
        x, s, langevin, h = point.x, point.score, self.langevin, self.langevin.step_size
        assert s is not None
        size, repeated = x[0].numel(), x[0].numel() <= REPEATED_SIZE
        decision_shape = x.shape if repeated else (len(x), *(1,) * (x.ndim - 1))
        summing = x.new_ones(size, 1)  # a row sum, several times faster than `sum`
        limits = thresholds.expand(*thresholds.shape[:2], size if repeated else 1).contiguous()
        xs, log_ratios = torch.empty_like(noise), torch.empty_like(thresholds)
        outside = torch.zeros(noise.shape[:2], dtype=torch.bool, device=x.device)
        places, shares = self._places(x)
        proposed, scores, drift, inside = places[0], self._scores_at(places), langevin.drift(s), None
        calls = noise.shape[0] * len(shares) * len(x)
        per_step = zip(noise, thresholds, limits, log_ratios, xs, strict=True)
        for step, (z, threshold, limit, log_ratio, out) in enumerate(per_step):
            v = torch.add(z, drift, alpha=h)
            if langevin.support is not None:
                v, inside, outside[step] = langevin.confined(x, v)
            torch.addcmul(x, v, shares, out=places)
            there, *inner = scores()
            drift_there = there if langevin.precondition is None else langevin.precondition(there)
            ends = _Ends(x, v, s, there, drift_there - drift)
            calls += self._compare(ends, inner, threshold, summing, log_ratio)
            if inside is not None:
                log_ratio.masked_fill_(~inside[:, None], math.nan)
            if careful:
                log_ratio.masked_fill_(log_ratio == math.inf, math.nan)
            take = (limit < log_ratio).view(decision_shape)
            x, s = torch.where(take, proposed, x, out=out), torch.where(take, there, s)
            drift = s if langevin.precondition is None else torch.where(take, drift_there, drift)
        return _Steps(Point(x, s), xs, log_ratios, outside, calls)

    def _places(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return room for the candidates and the inner nodes, and how far along the move each of them lies."""
        shares = x.new_tensor((1.0, *self.quadrature.nodes))
        return x.new_empty(len(shares), *x.shape), shares.reshape(-1, *(1,) * x.ndim)

    def _scores_at(self, places: Tensor) -> Callable[[], tuple[Tensor, ...]]:
        """Return a function that asks the score at the candidates, and at every inner node."""
        score, parts, every = self.langevin.score, len(places), places.flatten(0, 1)
        proposed, between = places[0], places[1:].flatten(0, 1)
        if len(every) <= SHARED_ROWS:
            return lambda: score(every).chunk(parts)
        if parts == 2:
            return lambda: (score(proposed), score(between))
        return lambda: (score(proposed), *score(between).chunk(parts - 1))

    def _compare(self, ends: _Ends, inner: list[Tensor], threshold: Tensor, summing: Tensor, log_ratio: Tensor) -> int:
        """Write log r in units of the first inner weight, and return how often the score was asked for more."""
        unit, *more = self.quadrature.weights
        both = ends.here + ends.there
        slope = torch.sub(inner[0], both, alpha=(0.5 - self.quadrature.ends) / unit)
        for weight, score in zip(more, inner[1:], strict=True):
            slope.add_(score, alpha=weight / unit)
        terms = slope.mul_(ends.v).addcmul_(ends.drift_change, both, value=-self.langevin.step_size / (4 * unit))
        torch.mm(terms.reshape(-1, len(summing)), summing, out=log_ratio)
        return 0


@dataclass(frozen=True)
class _Refined(_Integrated):
    """The loop of MALA with Simpson's rule, refined by Romberg's where the threshold lies within its error.

    In log r the trapezoid cancels, so that in units of Simpson's inner weight `log r = g - (h / (4 w)) (s' - s).C(s' +
    s)` with `g = v.(s(x + v/2) - (s + s') / 2)`, which is also Simpson's distance to the trapezoid, its error bound.
    """

    max_nodes: int

    def _compare(self, ends: _Ends, inner: list[Tensor], threshold: Tensor, summing: Tensor, log_ratio: Tensor) -> int:
        """Write log r in units of the inner weight, and return how often the score was asked for more."""
        x, v, here, there, drift_change = ends
        both, (middle,), size = here + there, inner, len(summing)
        terms = (
            torch.sub(middle, both, alpha=0.5).mul_(v),
            torch.mul(drift_change, both),
            torch.mul(here, here).addcmul_(there, there).addcmul_(middle, middle),
            torch.mul(v, v),
        )
        known = torch.cat(terms).reshape(-1, size).mm(summing).view(len(terms), -1)
        excess, change, square, moved = known.unbind()
        ratio = torch.add(excess, change, alpha=-self.langevin.step_size / (4 * self.unit), out=log_ratio.view(-1))
        torch.sub(threshold.view(-1), ratio, out=change)  # the goal
        square.mul_(moved).div_(3 * size)  # |v|^2 |s|^2 / d
        score = CountedScore(self.langevin.score)
        rows, more = Romberg(score, self.max_nodes).corrections((x, v, both), known[:3])
        ratio.index_add_(0, rows, more)
        return score.calls


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
