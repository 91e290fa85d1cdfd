"""Many Langevin steps at once: MALA with a fixed quadrature, and ULA, as tight loops over torch calls.

With MALA the proposal's ratio holds the trapezoid rule with the other sign, and what is left has no cancelling terms:

    log r = v . (sum_i w_i s(x + t_i v) - (1/2 - w_end) (s + s')) - (h / 4) (s' - s) . (s' + s),    v = x' - x

`kernel.step` stays the definition; a test ties this to it. What makes it fast: noise for all steps is drawn in one
call, x' and the inner nodes share one score call while that is small, and no step computes what only the record needs.
"""

import math

import torch
from torch import Tensor

from scoremh import _random
from scoremh._algebra import per_chain, rows_finite
from scoremh.acceptance import Always, LineIntegral
from scoremh.proposals import MALA
from scoremh.types import Acceptance, Point, Proposal, Run, ScoreFn, Target, Trace

# Below this many rows one score call of two parts is cheaper than two calls; above, its buffers fall out of the cache.
SHARED_ROWS = 1024


def fused(target: Target, proposal: Proposal, acceptance: Acceptance) -> Run | None:
    """Return a loop for this kernel where there is one: plain MALA on an unbounded support, `Always` or fixed nodes."""
    plain = type(proposal) is MALA and proposal.covariance is None and target.support is None
    if not plain or target.score is None:
        return None
    assert isinstance(proposal, MALA)
    if type(acceptance) is Always:
        return _unadjusted(target.score, proposal.step_size)
    if type(acceptance) is LineIntegral and acceptance.quadrature is not None:
        return _adjusted(target.score, proposal.step_size, acceptance)
    return None


def _unadjusted(score: ScoreFn, h: float) -> Run:
    def loop(point: Point, noise: Tensor, *, careful: bool) -> tuple[Point, Trace]:
        x, s = point.x, point.score
        assert s is not None
        xs, accepted = [], torch.ones(noise.shape[:2], dtype=torch.bool, device=x.device)
        for step, z in enumerate(noise.unbind()):
            proposed = torch.add(x, s, alpha=h).add_(z)
            there = score(proposed)
            if careful:
                accepted[step] = rows_finite(proposed) & rows_finite(there)
                take = per_chain(accepted[step], x)
                proposed, there = torch.where(take, proposed, x), torch.where(take, there, s)
            x, s = proposed, there
            xs.append(x)
        log_accept = torch.where(accepted, 0.0, math.nan).to(x.dtype)
        return Point(x, s), Trace(torch.stack(xs), log_accept, accepted, noise.shape[0] * noise.shape[1])

    @torch.inference_mode()
    def run(point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
        noise = _random.normal((steps, *point.x.shape), point.x, generator).mul_(math.sqrt(2 * h))
        # Looking for NaN costs as much as the step: look once at the end, and go again with care if there was one.
        last, trace = loop(point, noise, careful=False)
        assert last.score is not None
        if bool(last.score.isfinite().all()) and bool(last.x.isfinite().all()):
            return last, trace
        last, again = loop(point, noise, careful=True)
        return last, again._replace(score_calls=trace.score_calls + again.score_calls)

    return run


def _adjusted(score: ScoreFn, h: float, rule: LineIntegral) -> Run:
    assert rule.quadrature is not None
    end, nodes, weights = rule.quadrature

    @torch.inference_mode()
    def run(point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
        x, s = point.x, point.score
        assert s is not None
        chains, rows = len(x), (len(nodes) + 1) * len(x)
        noise = _random.normal((steps, *x.shape), x, generator).mul_(math.sqrt(2 * h))
        log_uniform = _random.log_uniform((steps, chains), x, generator)
        # accept where log r exceeds log u (Metropolis) or logit u (Barker)
        thresholds = log_uniform if rule.balance == "metropolis" else log_uniform - (-log_uniform.expm1()).log()
        log_ratios, xs = x.new_empty(steps, chains), []
        places = x.new_empty(rows, *x.shape[1:])
        proposed, *between = places.chunk(len(nodes) + 1)
        for z, threshold, log_ratio in zip(noise.unbind(), thresholds.unbind(), log_ratios.unbind(), strict=True):
            torch.add(x, s, alpha=h, out=proposed).add_(z)
            for t, place in zip(nodes, between, strict=True):
                torch.lerp(x, proposed, t, out=place)
            if rows <= SHARED_ROWS:
                there, *inner = score(places).chunk(len(nodes) + 1)
            else:
                there, inner = score(proposed), list(score(places[chains:]).chunk(len(nodes))) if nodes else []
            both = s + there
            slope = both.mul(end - 0.5)
            for w, s_inner in zip(weights, inner, strict=True):
                slope.add_(s_inner, alpha=w)
            terms = slope.mul_(proposed - x).addcmul_(there - s, both, value=-h / 4)
            torch.sum(terms.flatten(1), 1, out=log_ratio)
            log_ratio.nan_to_num_(nan=-math.inf, posinf=-math.inf, neginf=-math.inf)  # not finite is not accepted
            take = per_chain(threshold < log_ratio, x)
            x, s = torch.where(take, proposed, x), torch.where(take, there, s)
            xs.append(x)
        accepted = thresholds < log_ratios
        log_ratios = log_ratios.masked_fill_(log_ratios == -math.inf, math.nan)
        trace = Trace(torch.stack(xs), rule.log_balanced(log_ratios), accepted, steps * rows)
        return Point(x, s), trace

    return run
