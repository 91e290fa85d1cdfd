"""The loop for random walks, Langevin steps and pCN with any acceptance rule."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scoremh._shared import rng
from scoremh._shared.algebra import per_chain, rows_finite
from scoremh.kernel.counted_score import CountedScore, density_calls
from scoremh.kernel.noise import colored_noise
from scoremh.proposals import GaussianProposal
from scoremh.types import Acceptance, DecidingAcceptance, Point, Run, Tally, Target, Trace


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
