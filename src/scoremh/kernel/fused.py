"""Many Langevin steps at once: MALA with a fixed quadrature, and ULA, as tight loops over torch calls.

With MALA the proposal's ratio holds the trapezoid rule with the other sign, and what is left has no cancelling terms:

    log r = v . (sum_i w_i s(x + t_i v) - (1/2 - w_end) (s + s')) - (h / 4) (s' - s) . (s' + s),    v = x' - x

`kernel.step` stays the definition; a test ties this to it. What makes it fast: noise for all steps is drawn in one
call, x' and the inner nodes share one score call while that is small, and no step computes what only the record needs.
"""

import math

import torch
from torch import Tensor

from scoremh._shared import rng
from scoremh._shared.algebra import per_chain, rows_finite
from scoremh.acceptance import Always, LineIntegral
from scoremh.proposals import MALA
from scoremh.types import Acceptance, Point, Proposal, Run, ScoreFn, SupportFn, Target, Trace

# Below this many rows one score call of two parts is cheaper than two calls; above, its buffers fall out of the cache.
SHARED_ROWS = 1024


def fused(target: Target, proposal: Proposal, acceptance: Acceptance) -> Run | None:
    """Return a loop for this kernel where there is one: plain MALA with fixed nodes, or `Always` without a support."""
    plain = type(proposal) is MALA and proposal.covariance is None
    if not plain or target.score is None:
        return None
    assert isinstance(proposal, MALA)
    if type(acceptance) is Always and target.support is None:
        return _unadjusted(target.score, proposal.step_size)
    if type(acceptance) is not LineIntegral or acceptance.bend is not None:
        return None
    if acceptance.quadrature is not None and acceptance.quadrature.nodes:
        return _adjusted(target.score, proposal.step_size, acceptance, target.support)
    return None


def _unadjusted(score: ScoreFn, h: float) -> Run:
    def loop(point: Point, noise: Tensor, *, careful: bool) -> tuple[Point, Trace]:
        x, s = point.x, point.score
        assert s is not None
        xs, accepted = torch.empty_like(noise), torch.ones(noise.shape[:2], dtype=torch.bool, device=x.device)
        for step, (z, out) in enumerate(zip(noise, xs, strict=True)):
            proposed = torch.add(x, s, alpha=h, out=out).add_(z)
            there = score(proposed)
            if careful:
                accepted[step] = rows_finite(proposed) & rows_finite(there)
                take = per_chain(accepted[step], x)
                torch.where(take, proposed, x, out=out)
                there = torch.where(take, there, s)
            x, s = out, there
        log_accept = torch.where(accepted, 0.0, math.nan).to(x.dtype)
        return Point(x, s), Trace(xs, log_accept, accepted, noise.shape[0] * noise.shape[1])

    @torch.inference_mode()
    def run(point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
        noise = rng.normal((steps, *point.x.shape), point.x, generator).mul_(math.sqrt(2 * h))
        # Looking for NaN costs as much as the step: look once at the end, and go again with care if there was one.
        last, trace = loop(point, noise, careful=False)
        assert last.score is not None
        if bool(last.score.isfinite().all()) and bool(last.x.isfinite().all()):
            return last, trace
        last, again = loop(point, noise, careful=True)
        return last, again._replace(score_calls=trace.score_calls + again.score_calls)

    return run


def _adjusted(score: ScoreFn, h: float, rule: LineIntegral, support: SupportFn | None) -> Run:
    assert rule.quadrature is not None
    end, nodes, weights = rule.quadrature
    unit, *more = weights  # log r is computed in units of the first inner weight

    def loop(
        point: Point, noise: Tensor, thresholds: Tensor, outside: Tensor, *, careful: bool
    ) -> tuple[Point, Tensor, Tensor]:
        x, s = point.x, point.score
        assert s is not None
        chains, rows, ones = len(x), (len(nodes) + 1) * len(x), x.new_ones(x[0].numel(), 1)
        xs, log_ratios = torch.empty_like(noise), x.new_empty(len(noise), chains, 1)
        places = x.new_empty(rows, *x.shape[1:])
        proposed, *between = places.chunk(len(nodes) + 1)
        for step, (z, threshold, log_ratio, out) in enumerate(zip(noise, thresholds, log_ratios, xs, strict=True)):
            v = torch.add(z, s, alpha=h)
            if support is not None:  # where the candidate is outside, ask at x instead, and reject
                candidate = x + v
                inside = support(candidate)
                outside[step] = ~inside & rows_finite(candidate)
                v = torch.where(per_chain(inside, v), v, 0.0)
            torch.add(x, v, out=proposed)
            for t, place in zip(nodes, between, strict=True):
                torch.add(x, v, alpha=t, out=place)
            if rows <= SHARED_ROWS:
                there, *inner = score(places).chunk(len(nodes) + 1)
            else:
                there, inner = score(proposed), [*score(places[chains:]).chunk(len(nodes))]
            both = s + there
            slope = torch.sub(inner[0], both, alpha=(0.5 - end) / unit)
            for w, s_inner in zip(more, inner[1:], strict=True):
                slope.add_(s_inner, alpha=w / unit)
            terms = slope.mul_(v).addcmul_(there - s, both, value=-h / (4 * unit))
            torch.mm(terms.flatten(1), ones, out=log_ratio)  # a row sum, several times faster than `sum`
            if support is not None:
                log_ratio.masked_fill_(~inside[:, None], math.nan)
            if careful:
                log_ratio.masked_fill_(log_ratio == math.inf, math.nan)
            take = per_chain(threshold < log_ratio, x)
            x, s = torch.where(take, proposed, x, out=out), torch.where(take, there, s)
        return Point(x, s), xs, log_ratios

    @torch.inference_mode()
    def run(point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
        x = point.x
        noise = rng.normal((steps, *x.shape), x, generator).mul_(math.sqrt(2 * h))
        log_uniform = rng.log_uniform((steps, len(x), 1), x, generator)
        # accept where log r exceeds log u (Metropolis) or logit u (Barker); NaN and -inf never do
        threshold = log_uniform if rule.balance == "metropolis" else log_uniform - (-log_uniform.expm1()).log()
        thresholds = threshold.div_(unit)
        outside = torch.zeros(steps, len(x), dtype=torch.bool, device=x.device)
        last, xs, log_ratios = loop(point, noise, thresholds, outside, careful=False)
        passes = 1
        if bool(log_ratios.isposinf().any()):  # rare, and dear to look for at every step
            last, xs, log_ratios = loop(point, noise, thresholds, outside, careful=True)
            passes = 2
        accepted = (thresholds < log_ratios).squeeze(2)
        log_ratios = log_ratios.squeeze(2).mul_(unit)
        log_accept = rule.log_balanced(log_ratios.masked_fill_(~log_ratios.isfinite(), math.nan))
        if support is not None:
            log_accept = log_accept.masked_fill(outside, -math.inf)
        return last, Trace(xs, log_accept, accepted, passes * accepted.numel() * (len(nodes) + 1))

    return run
