r"""The Metropolis-Hastings algorithm: propose a candidate x', decide, then move or stay.

    x' ~ q(. | x),   u ~ U(0, 1];   x <- x' if log u <= log a(x', x), else x

Each chain decides independently. A candidate outside the support (log a = -inf) is rejected; so is one that is not
finite, or whose score or log a is not finite (NaN).

`Transition` is the algorithm: `step` makes one transition, `run` makes several and draws their random numbers at once.
`LangevinLoop` is a faster `run` for MALA with a quadrature of the score, or without an accept step.

If the target is a product, log p = k + l, where k has a log density and l only a score, then

    log r = [l(x') - l(x)] + [k(x') - k(x) + log q(x | x') - log q(x' | x)]

The acceptance rule integrates the score of l for the first bracket; the second is exact.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.algebra import Quadrature, newton_cotes, per_chain, rows_finite
from scoremh._shared.counting import CheckedScore, CountedScore, score_calls
from scoremh.acceptance import Always, Exact, LineIntegral, Rule
from scoremh.acceptance.rules import LOBATTO_BOUND, Decision, lobatto_correction
from scoremh.proposals import MALA, PCN, GaussianProposal, RandomWalk, ScaledMALA, StudentWalk
from scoremh.targets.combinations import Product, WeightedSum, share_outward
from scoremh.types import Kernel, Move, Need, Point, Proposal, Run, ScoreModel, Target, TargetLike, Trace


def metropolis_hastings(target: TargetLike, proposal: Proposal, acceptance: Rule) -> Kernel:
    """Compose a target, a proposal and an acceptance rule into a kernel.

    Args:
        target: The target distribution p: a `Target`, or one of `scoremh.targets`.
        proposal: Proposal distribution of the candidates, for example `MALA(0.1)`.
        acceptance: Acceptance rule, for example `LineIntegral()`.

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
    transition = transition_of(target, proposal, acceptance)
    rule = transition.rule  # the exact one if all parts of a product have a log density
    warn_if_degenerate(proposal, rule)
    estimated = isinstance(rule, Exact) and getattr(target, "density_is_estimated", False)
    return Kernel(
        transition.init,
        transition.step,
        run=transition.fastest_run(),
        target_rate=_target_rate(proposal, rule),
        parts=(proposal, f"{rule} for the log density through noise" if estimated else rule),
        unadjusted=partial(metropolis_hastings, target, proposal, Always()) if "score" in proposal.needs else None,
        target=transition.target if transition.needs - {"log_density"} else transition.target._replace(score=None),
    )


@dataclass(frozen=True, eq=False)
class Transition:
    """Metropolis-Hastings transitions. Instances and their methods can be pickled.

    Calls of `target.score` are checked and counted.
    """

    target: Target
    proposal: Proposal
    rule: Rule

    @property
    def needs(self) -> frozenset[Need]:
        """The values that a point has to hold."""
        if self.target.known_score is None:
            return self.proposal.needs | self.rule.needs
        integrated: set[Need] = {"rest_score" if need == "score" else need for need in self.rule.needs}
        return self.proposal.needs | integrated | {"log_density"}

    @torch.inference_mode()
    def init(self, x: Tensor) -> Point:
        """Return the point that chains start from, after checking the start and the values of the target there."""
        return first_point(self.target, self.needs, x)

    @torch.inference_mode()
    def step(self, point: Point, *, generator: torch.Generator | None = None) -> tuple[Point, Move]:
        """Make one transition."""
        generator = rng.resolve(generator, point.x.device)
        with score_calls() as calls:
            candidate = self.proposal.sample(point, generator=generator)
            log_uniform = rng.log_uniform((len(candidate),), candidate, generator)
            point, move = self.move(point, candidate, log_uniform, generator)
        return point, move._replace(score_calls=calls.total)

    @torch.inference_mode()
    def run(self, point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
        """Make several transitions with a Gaussian proposal; the random numbers of all steps are drawn first."""
        assert isinstance(self.proposal, GaussianProposal)
        noise = self.proposal.noise(steps, point.x, generator)
        log_uniform = rng.log_uniform((steps, len(point.x)), point.x, generator)
        positions, moves = [], []
        with score_calls() as calls:
            for z, log_u in zip(noise, log_uniform, strict=True):
                point, move = self.move(point, self.proposal.candidates(point, z), log_u, generator)
                positions.append(point.x)
                moves.append(move)
        return point, Trace.of(positions, moves)._replace(score_calls=calls.total)

    def move(
        self, point: Point, candidate: Tensor, log_uniform: Tensor, generator: torch.Generator
    ) -> tuple[Point, Move]:
        """Move the chains that accept their candidate x'; the others stay."""
        proposed, move = self.decide(point, candidate, log_uniform, generator)
        return proposed.where(move.accepted, point), move

    def decide(
        self, point: Point, candidate: Tensor, log_uniform: Tensor, generator: torch.Generator
    ) -> tuple[Point, Move]:
        """Return the candidates as points, and which of them are accepted.

        If a candidate is not finite or outside the support, its point holds the values at the current position instead.
        """
        target = self.target
        finite = rows_finite(candidate)
        possible = finite if target.support is None else finite & target.support(candidate)
        all_possible = bool(possible.all())
        x = candidate if all_possible else torch.where(per_chain(possible, candidate), candidate, point.x)
        proposed, decision = self.judge(point, Point.at(x, target, self.needs), log_uniform, generator)
        log_accept = decision.log_accept
        if proposed.score is not None:  # a chain must not move to a point from which no step can be computed
            log_accept = log_accept.masked_fill(~rows_finite(proposed.score), math.nan)
        if not all_possible:
            rejected = torch.where(finite, -math.inf, math.nan).to(log_accept)  # outside the support, or not finite
            log_accept = torch.where(possible, log_accept, rejected)
        accepted = log_uniform <= log_accept  # False for NaN
        return proposed, Move(candidate, log_accept, accepted, factors=decision.factors, clipped=decision.clipped)

    def judge(
        self, point: Point, proposed: Point, log_uniform: Tensor, generator: torch.Generator
    ) -> tuple[Point, Decision]:
        """Return the rule's decision about a move, and the proposed point with what is known after it."""
        target, proposal = self.target, self.proposal
        return proposed, self.rule.decide(
            point, proposed, log_uniform, target=target, proposal=proposal, generator=generator
        )

    def fastest_run(self) -> Run | None:
        """Return the fastest loop for this proposal and rule; None if there is only `step`."""
        proposal, rule = self.proposal, self.rule
        straight = type(rule) is LineIntegral and rule.antisymmetric and rule.straight and rule.inner_nodes > 0
        whole = self.target.score is not None and self.target.known_score is None
        if type(proposal) is MALA and whole and (straight or type(rule) is Always):
            return LangevinLoop(self.target, proposal, rule)
        # not isinstance: a subclass may have another `sample`
        return self.run if type(proposal) in (RandomWalk, MALA, ScaledMALA, PCN) else None


# Up to this many rows, one score call for candidates and inner nodes is cheaper than two; above, its buffers no longer
# fit into the cache.
SHARED_ROWS = 1024
# Up to this many coordinates, a decision is repeated for each of them: `torch.where` is slow over short rows.
REPEATED_SIZE = 8
SIMPSON = newton_cotes(1, simpson=True)


class _Segment(NamedTuple):
    """Several steps of the fused loop. `log_ratios` is log r over the first inner weight."""

    last: Point
    xs: Tensor
    log_ratios: Tensor
    outside: Tensor  # candidates outside the support


@dataclass(frozen=True, eq=False)
class LangevinLoop:
    """A fast loop for MALA with `LineIntegral` (inner nodes on a straight line) or with `Always`.

    The proposal's ratio contains the trapezoid rule with the opposite sign. Without the terms that cancel,

        log r = v.(sum_i w_i s(x + t_i v) - (1/2 - w_end) (s + s')) - (h / 4) (s' - s).C(s' + s),    v = x' - x

    log r is divided by the first inner weight, which saves a multiplication at every step. The noise of all steps is
    drawn and multiplied by L at once, and x' and the inner nodes share one score call if the batch is small. The loop
    does not check for values that are not finite; if there was one, the steps are repeated with `careful=True`.
    """

    target: Target
    proposal: MALA
    rule: Rule

    @torch.inference_mode()
    def __call__(self, point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
        """Make several transitions."""
        x, rule = point.x, self.rule
        noise = self.proposal.noise(steps, x, generator).mul_(math.sqrt(2 * self.proposal.step_size))
        if not isinstance(rule, LineIntegral):
            return self._unadjusted(point, noise)
        quadrature = rule.quadrature
        unit = quadrature.weights[0]
        log_uniform = rng.log_uniform((steps, len(x), 1), x, generator)
        thresholds = rule.ratio_threshold(log_uniform) / unit
        with score_calls() as calls:
            segment = self._adjusted(point, noise, thresholds, quadrature, careful=False)
            if bool(segment.log_ratios.isposinf().any()):  # rare, and expensive to check at every step
                segment = self._adjusted(point, noise, thresholds, quadrature, careful=True)
        accepted = (thresholds <= segment.log_ratios).squeeze(2)
        log_ratios = segment.log_ratios.squeeze(2).mul_(unit)
        if not bool(log_ratios.isfinite().all()):
            log_ratios.masked_fill_(~log_ratios.isfinite(), math.nan)
        log_accept = rule.log_balanced(log_ratios)
        if self.target.support is not None:
            log_accept = log_accept.masked_fill(segment.outside, -math.inf)
        return segment.last, Trace(segment.xs, log_accept, accepted, calls.total)

    def _confined(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return v, set to 0 if x + v is outside the support; which x + v are inside; which are finite but outside."""
        assert self.target.support is not None
        candidate = x + v
        inside = self.target.support(candidate)
        return torch.where(per_chain(inside, v), v, 0.0), inside, ~inside & rows_finite(candidate)

    def _unadjusted(self, point: Point, noise: Tensor) -> tuple[Point, Trace]:
        """Make steps of the unadjusted Langevin algorithm."""
        with score_calls() as calls:
            last, xs, log_accept = self._unadjusted_steps(point, noise, careful=False)
            assert last.score is not None
            if not (bool(last.score.isfinite().all()) and bool(last.x.isfinite().all())):
                last, xs, log_accept = self._unadjusted_steps(point, noise, careful=True)
        return last, Trace(xs, log_accept, log_accept == 0, calls.total)

    def _unadjusted_steps(self, point: Point, noise: Tensor, *, careful: bool) -> tuple[Point, Tensor, Tensor]:
        """Return the last point, all positions, and log a: 0, -inf outside the support, NaN if not finite."""
        x, s, score, h = point.x, point.score, self.target.score, self.proposal.step_size
        assert s is not None
        assert score is not None
        xs, log_accept = torch.empty_like(noise), x.new_zeros(noise.shape[:2])
        for step, (z, out) in enumerate(zip(noise, xs, strict=True)):
            v = torch.add(z, self.proposal.precondition(s), alpha=h)
            if self.target.support is not None:
                v, _, outside = self._confined(x, v)
                log_accept[step].masked_fill_(outside, -math.inf)
            proposed = torch.add(x, v, out=out)
            there = score(proposed)
            if careful:
                log_accept[step].masked_fill_(~(rows_finite(proposed) & rows_finite(there)), math.nan)
                take = per_chain(log_accept[step] == 0, x)
                torch.where(take, proposed, x, out=out)
                there = torch.where(take, there, s)
            x, s = out, there
        return Point(x, s), xs, log_accept

    def _adjusted(
        self, point: Point, noise: Tensor, thresholds: Tensor, quadrature: Quadrature, *, careful: bool
    ) -> _Segment:
        """Make one Metropolis-Hastings step for each entry of `noise`."""
        x, s, proposal, rule, h = point.x, point.score, self.proposal, self.rule, self.proposal.step_size
        assert s is not None
        assert isinstance(rule, LineIntegral)
        size = x[0].numel()
        repeated = size <= REPEATED_SIZE
        decision_shape = x.shape if repeated else (len(x), *(1,) * (x.ndim - 1))
        limits = thresholds.expand(*thresholds.shape[:2], size if repeated else 1).contiguous()
        summing = x.new_ones(size, 1)  # a row sum, several times faster than `sum`
        xs, log_ratios = torch.empty_like(noise), torch.empty_like(thresholds)
        outside = torch.zeros(noise.shape[:2], dtype=torch.bool, device=x.device)
        shares = x.new_tensor((1.0, *quadrature.nodes)).reshape(-1, *(1,) * x.ndim)  # t = 1 for x', then the nodes
        places = x.new_empty(len(shares), *x.shape)  # x + t v, overwritten at every step
        proposed, scores_at_places = places[0], self._scores_at(places)
        drift, inside = proposal.precondition(s), None
        per_step = zip(noise, thresholds, limits, log_ratios, xs, strict=True)
        for step, (z, threshold, limit, log_ratio, out) in enumerate(per_step):
            v = torch.add(z, drift, alpha=h)
            if self.target.support is not None:
                v, inside, outside[step] = self._confined(x, v)
            torch.addcmul(x, v, shares, out=places)
            there, *inner = scores_at_places()
            drift_there = proposal.precondition(there)
            if rule.rule == "lobatto":
                self._lobatto_ratio(x, v, s, there, inner[0], drift_there - drift, threshold, summing, log_ratio)
            else:
                self._ratio(v, s, there, inner, drift_there - drift, quadrature, summing, log_ratio)
            if inside is not None:
                log_ratio.masked_fill_(~inside[:, None], math.nan)
            if careful:
                log_ratio.masked_fill_(log_ratio == math.inf, math.nan)
            take = (limit <= log_ratio).view(decision_shape)
            x, s = torch.where(take, proposed, x, out=out), torch.where(take, there, s)
            drift = s if proposal.coordinates is None else torch.where(take, drift_there, drift)
        return _Segment(Point(x, s), xs, log_ratios, outside)

    def _scores_at(self, places: Tensor) -> Callable[[], tuple[Tensor, ...]]:
        """Return a function that evaluates the score at the candidates and the inner nodes, which `places` holds."""
        score, parts, every = self.target.score, len(places), places.flatten(0, 1)
        assert score is not None
        proposed, between = places[0], places[1:].flatten(0, 1)
        if len(every) <= SHARED_ROWS:
            return lambda: score(every).chunk(parts)
        if parts == 2:
            return lambda: (score(proposed), score(between))
        return lambda: (score(proposed), *score(between).chunk(parts - 1))

    def _ratio(
        self,
        v: Tensor,
        here: Tensor,
        there: Tensor,
        inner: list[Tensor],
        drift_change: Tensor,
        quadrature: Quadrature,
        summing: Tensor,
        log_ratio: Tensor,
    ) -> None:
        """Write log r by a fixed quadrature into `log_ratio`; `drift_change` is C (s' - s)."""
        unit, *more = quadrature.weights
        both = here + there
        slope = torch.sub(inner[0], both, alpha=(0.5 - quadrature.ends) / unit)
        for weight, score in zip(more, inner[1:], strict=True):
            slope.add_(score, alpha=weight / unit)
        terms = slope.mul_(v).addcmul_(drift_change, both, value=-self.proposal.step_size / (4 * unit))
        torch.mm(terms.reshape(-1, len(summing)), summing, out=log_ratio)

    def _lobatto_ratio(
        self,
        x: Tensor,
        v: Tensor,
        here: Tensor,
        there: Tensor,
        middle: Tensor,
        drift_change: Tensor,
        threshold: Tensor,
        summing: Tensor,
        log_ratio: Tensor,
    ) -> None:
        """Write log r by Simpson's rule into `log_ratio`, by five nodes of Lobatto's if the decision is open.

        In units of Simpson's inner weight w, `log r = g - (h / (4 w)) (s' - s).C(s' + s)` with the excess `g =
        v.(s(x + v/2) - (s + s') / 2)`.
        """
        assert self.target.score is not None
        both, unit = here + there, SIMPSON.weights[0]
        terms = torch.stack((torch.sub(middle, both, alpha=0.5).mul_(v), drift_change.mul(both)))
        excess, change = terms.reshape(-1, len(summing)).mm(summing).view(2, -1)
        ratio = torch.add(excess, change, alpha=-self.proposal.step_size / (4 * unit), out=log_ratio.view(-1))
        gap = torch.sub(threshold.view(-1), ratio).abs_()
        rows = (gap <= excess.abs().mul_(LOBATTO_BOUND / unit)).nonzero().view(-1)
        if len(rows):
            more = lobatto_correction(self.target.score, x, v, both, excess, rows)
            ratio.index_add_(0, rows, more, alpha=1 / unit)


def transition_of(target: TargetLike, proposal: Proposal, acceptance: Rule) -> Transition:
    """Return the transition of these parts, after checking that they are valid and compatible."""
    checks.kind(acceptance, Rule, "an acceptance rule", "Pass LineIntegral(), for example.")
    product = target if isinstance(target, Product) and acceptance.integrates else None
    if product is not None and product.rest_score is None:  # every part has a log density: nothing to integrate
        acceptance = Exact(balance="barker" if acceptance.balance == "barker" else "metropolis")
    partly = product is not None and product.rest_score is not None
    if partly and isinstance(proposal, Proposal) and "log_density" in proposal.needs:
        fix = "Give every part a log density, or use another proposal."
        got = "a product with parts that have a score only"
        raise ValueError(checks.message(f"a target with a log_density, which {proposal} needs", got, fix))
    known = validated_target(target, proposal, acceptance)
    if product is not None and partly:
        known = known._replace(
            score=product.rest_score, log_density=product.known.log_density, known_score=product.known.score
        )
    return Transition(counted(known), proposal, acceptance)


def counted(target: Target) -> Target:
    """Return a target whose scores are checked at every call, and counted except for the known parts of a product."""
    score = None if target.score is None else CountedScore(target.score)
    known = None if target.known_score is None else CheckedScore(target.known_score)
    return target._replace(score=score, known_score=known)


def validated_target(target: TargetLike, proposal: Proposal, rule: Rule | None = None) -> Target:
    """Return the target as the proposal and the rule see it, after checking that the parts are valid and compatible."""
    fix = "Wrap a score as Target(score=...), a log density as targets.from_log_density(...)."
    checks.kind(target, TargetLike, "a Target", fix)
    checks.kind(proposal, Proposal, "a Proposal", "Pass MALA(0.1), for example; your own derive from Proposal.")
    if target.score is None and target.log_density is None:
        fix = "Pass Target(score=...) or Target(log_density=...), or one of scoremh.targets."
        raise ValueError(checks.message("a target with a score or a log density", "a target with neither", fix))
    levels = target if isinstance(target, ScoreModel) else getattr(target, "levels", None)
    known = Target(target.score, target.log_density, target.support, levels=levels)
    if rule is not None:
        known = rule.informed(known)
    for part in (proposal,) if rule is None else (proposal, rule):
        _require_needs(part, known)
    if rule is not None:
        rule.check(known, proposal)
    return known


def _require_needs(part: Proposal | Rule, known: Target) -> None:
    """Raise an error if the target lacks a function that a proposal or rule needs."""
    if unknown := set(part.needs) - set(get_args(Need)):
        expected = f"needs to be among {', '.join(map(repr, get_args(Need)))}"
        raise ValueError(checks.message(expected, f"{unknown} of {checks.named(part)}", "Remove the others."))
    if known.log_density is None and "log_density" in part.needs:
        fix = "Use LineIntegral(), which integrates the score, or give the target a log_density."
        raise ValueError(checks.message(f"a target with a log_density, which {part} needs", "a score only", fix))
    if known.score is None and part.needs & {"score", "inner_score"}:
        fix = "Use RandomWalk(std) with Exact(), or targets.from_log_density(log_density) for a score by autograd."
        raise ValueError(checks.message(f"a target with a score, which {part} needs", "a log density only", fix))


def scored_target(target: TargetLike, proposal: Proposal) -> Target:
    """Return the target after checking that it is compatible with the proposal and has a score."""
    known = validated_target(target, proposal)
    if known.score is None:
        fix = "Use targets.from_log_density(log_density), or Exact() if there is a density."
        raise ValueError(checks.message("a target with a score", "a log density only", fix))
    return known


def _target_rate(proposal: Proposal, acceptance: Rule) -> float | None:
    """Return the most efficient acceptance rate; None if it is unknown or the rule has no ratio."""
    balance = "barker" if acceptance.balance == "direct" else acceptance.balance
    return None if balance is None else proposal.optimal_rates.get(balance)


@torch.inference_mode()
def first_point(target: Target, needs: frozenset[Need], x: Tensor) -> Point:
    """Return the point that chains start from, after checking x and the values of the target there."""
    checks.events(x, "initial")
    here = x.clone()
    check_support(target, here)
    with checks.explained():
        point = Point.at(here, target, needs)
    if not torch.equal(here, x):
        fix = "Compute with new tensors, for example x - m in place of x -= m."
        raise ValueError(checks.message("a target that leaves x as it is", "one that changes x in place", fix))
    check_values(point)
    warn_if_improper(target, x)
    return point


def check_support(target: Target, x: Tensor) -> None:
    """Raise an error unless the support contains x."""
    if target.support is None:
        return
    inside = checks.inside(target.support(x), x)
    if not inside.all():
        outside = (~inside).nonzero().flatten()
        fix = f"Start where p(x) > 0; the first point outside is initial[{int(outside[0])}]."
        got = f"{len(outside)} of {len(x)} outside"
        raise ValueError(checks.message("initial points inside the target's support", got, fix))


def check_values(point: Point) -> None:
    """Raise an error if the score or log density has a wrong shape, dtype or device, or lets no chain begin."""
    x = point.x
    if point.score is not None:
        checks.returned(point.score, x, x.shape, "score")
        if not rows_finite(point.score).any():  # where some are, the other chains stay where they are, and are counted
            got = f"{len(x)} of {len(x)} with a score that is NaN or infinite"
            fix = "Correct the score there, or start elsewhere; the first such point is initial[0]."
            raise ValueError(checks.message("initial points from which chains can move", got, fix))
    if point.log_density is not None:
        checks.returned(point.log_density, x, x.shape[:1], "log_density")
        bad = (~point.log_density.isfinite()).nonzero().flatten()
        if len(bad):
            got = f"{len(bad)} of {len(x)} with a log density that is not finite"
            fix = f"Start where p(x) > 0; the first such point is initial[{int(bad[0])}]."
            raise ValueError(checks.message("initial points of positive density", got, fix))


MAX_LONG_FREEDOM = 4  # degrees of freedom up to which a Student walk makes some very long steps


class DegenerateRuleWarning(UserWarning):
    """Warns of a proposal and a rule that are invalid together: the density cancels, or nodes miss most of it."""


class ImproperTargetWarning(UserWarning):
    """Warns of a product with negative weights that grows in its tails: it cannot be normalised, and chains diverge."""


def warn_if_degenerate(proposal: Proposal, rule: Rule) -> None:
    """Warn of the trapezoid rule with MALA, whose q ratio has the same terms, and of straight lines with long steps."""
    if isinstance(proposal, MALA | ScaledMALA) and rule.trapezoid:
        ratio = (
            "(h / 4) (|s(x)|^2 - |s(x')|^2)" if isinstance(proposal, MALA) else "a function of h(x), h(x') and |x' - x|"
        )
        text = (
            f"{rule} with {type(proposal).__name__} is degenerate: log r = {ratio} exactly, so the density "
            'cancels and the rule only prefers small scores. Use LineIntegral("simpson"), one score call more.'
        )
        warnings.warn(text, DegenerateRuleWarning, stacklevel=3)
    if isinstance(proposal, StudentWalk) and proposal.freedom <= MAX_LONG_FREEDOM and rule.straight:
        text = (
            f"{rule} with StudentWalk is wrong for heavy tails: when a long step crosses the middle of the "
            'distribution, nodes on a straight line miss it. Use LineIntegral("exact", coordinates=fit.middle), or '
            "coordinates=(m, w) with your own middle and width; or RandomWalk if the tails are light."
        )
        warnings.warn(text, DegenerateRuleWarning, stacklevel=3)


def warn_if_improper(target: Target, x: Tensor) -> None:
    """Warn if a product with negative weights does not decrease far out from the initial points x."""
    scores = [part.score for part in (target.score, target.known_score) if isinstance(part, CheckedScore)]
    if target.support is not None or not any(isinstance(score, WeightedSum) and score.divides for score in scores):
        return
    outward = share_outward(lambda x: torch.stack([score(x) for score in scores]).sum(0), x)
    if outward > 0:
        text = (
            f"A product with negative weights does not decrease fast enough to be normalised in {outward:.0%} of the "
            "directions far out from the initial points: its chains may diverge. Make the negative weights smaller, "
            "or restrict the product to a support."
        )
        warnings.warn(text, ImproperTargetWarning, stacklevel=4)
