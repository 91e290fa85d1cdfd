"""Loops for MALA: unadjusted, and adjusted by a quadrature of the score, fixed or refined where a decision needs it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from scoremh._shared import rng
from scoremh._shared.algebra import Quadrature, newton_cotes, per_chain, rows_finite
from scoremh.acceptance import LineIntegral
from scoremh.acceptance.romberg import Romberg
from scoremh.coordinates import times
from scoremh.kernel.counted_score import CountedScore
from scoremh.kernel.noise import colored_noise
from scoremh.proposals import MALA
from scoremh.types import Point, Run, ScoreFn, SupportFn, Trace

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
