"""Proposals that follow the score: Langevin steps and Barker's skewed walk."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from scoremh._shared import rng
from scoremh._shared.algebra import inner, per_chain
from scoremh.proposals.noise import GaussianProposal, ScoreGuided
from scoremh.types import Point


@dataclass(frozen=True, eq=False, repr=False)
class MALA(ScoreGuided, GaussianProposal):
    """`x' = x + h C s(x) + sqrt(2h) L z`, one Euler step of Langevin dynamics.

    Args:
        step_size: Step size h; the paper's epsilon is sqrt(2h).
        covariance: C = L L^T, `(d,)` or `(d, d)`; the identity when None.
    """

    step_name: ClassVar[str] = "step_size"

    step_size: float
    covariance: Tensor | None = None

    def moments(self, at: Point) -> tuple[Float[Tensor, "chain *event"], float]:
        """Return x + h C s(x) and sqrt(2h)."""
        assert at.score is not None  # the kernel fills what `needs` names
        return torch.add(at.x, self.precondition(at.score), alpha=self.step_size), math.sqrt(2 * self.step_size)

    def log_q_ratio(self, current: Point, proposed: Point) -> Float[Tensor, " chain"]:
        """Return log q(current | proposed) - log q(proposed | current), without terms that cancel."""
        s, there = current.score, proposed.score
        assert s is not None
        assert there is not None
        change = self.precondition(there - s)
        return -inner(s + there, torch.add(proposed.x - current.x, change, alpha=self.step_size / 2)) / 2


@dataclass(frozen=True, eq=False, repr=False)
class ScaledMALA(ScoreGuided, GaussianProposal):
    """`x' = x + h s(x) + sqrt(2h) z` with a step of every chain's own, `h(x) = 2 snr^2 d / |s(x)|^2`.

    The corrector of score-based diffusion models (Song et al. 2021): where a chain carries more noise than its level
    has, the score is large and the step small. Its density in the reverse direction is that of the step at x', so a
    rule with a ratio leaves the target as it is. The drift h |s| is snr times the expected norm of the noise; on
    N(0, sigma^2 I) in many dimensions h is near 2 snr^2 sigma^2. A chain at a point where the score is 0 stays there.

    Args:
        snr: Ratio of signal to noise in one step, as in score_sde; the paper's tau.
        covariance: C = L L^T, `(d,)` or `(d, d)`; then the drift is h C s, the noise L z, and L^T s takes the place of
            s in h. The identity when None.
    """

    step_name: ClassVar[str] = "snr"

    snr: float
    covariance: Tensor | None = None

    def step_size(self, at: Point) -> Float[Tensor, " chain"]:
        """Return h(x), one step size per chain."""
        return 2 * self.snr**2 / self._slope_square(at)

    def _slope_square(self, at: Point) -> Float[Tensor, " chain"]:
        """Return |L^T s|^2 / d."""
        return self.slope(at).flatten(1).square().mean(1)

    def moments(self, at: Point) -> tuple[Float[Tensor, "chain *event"], Float[Tensor, " chain"]]:
        """Return x + h(x) C s(x) and sqrt(2 h(x))."""
        assert at.score is not None
        drift = self.precondition(at.score)
        h = self.step_size(at)
        return torch.addcmul(at.x, drift, per_chain(h, drift)), (2 * h).sqrt()

    def log_q_ratio(self, current: Point, proposed: Point) -> Float[Tensor, " chain"]:
        """Return log q(current | proposed) - log q(proposed | current): h |L^T s|^2 is a constant, and cancels."""
        here, there = self._slope_square(current), self._slope_square(proposed)
        assert current.score is not None
        assert proposed.score is not None
        v = proposed.x - current.x
        w, _ = self.whiten(v)
        narrower = w.square().sum(1) * (here - there) / (8 * self.snr**2)
        return narrower - inner(current.score + proposed.score, v) / 2 + w.shape[1] / 2 * (there / here).log()


@dataclass(frozen=True, eq=False, repr=False)
class Barker(ScoreGuided):
    """`x' = x + L w`: Gaussian steps w, each coordinate of which is turned about unless the score favours its sign.

    Livingstone and Zanella (2022). With z ~ N(0, 2h) and g = L^T s(x), w_i is z_i with probability sigmoid(z_i g_i),
    else -z_i. Small steps are those of `MALA(h)`; a step is never longer than its noise, however large the score.

    Args:
        step_size: Step size h; the noise has the standard deviation sqrt(2h), as that of MALA.
        covariance: C = L L^T, `(d,)` or `(d, d)`; the identity when None.
    """

    step_name: ClassVar[str] = "step_size"

    step_size: float
    covariance: Tensor | None = None

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Float[Tensor, "chain *event"]:
        """Draw one candidate per chain."""
        z = math.sqrt(2 * self.step_size) * rng.normal(tuple(at.x.shape), at.x, generator)
        keep = rng.uniform(tuple(at.x.shape), at.x, generator) < (z * self.slope(at)).sigmoid()
        return at.x + self.color(torch.where(keep, z, -z))

    def log_prob(self, to: Point, *, given: Point) -> Float[Tensor, " chain"]:
        """Return log q(to | given)."""
        (w, log_det), h = self.whiten(to.x - given.x), self.step_size
        log_skew = logsigmoid(w * self.slope(given).flatten(1)).sum(1)
        return log_skew - w.square().sum(1) / (4 * h) - w.shape[1] * 0.5 * math.log(math.pi * h) - log_det

    def log_q_ratio(self, current: Point, proposed: Point) -> Float[Tensor, " chain"]:
        """Return log q(current | proposed) - log q(proposed | current): the Gaussian factors cancel."""
        w, _ = self.whiten(proposed.x - current.x)
        there, here = (self.slope(point).flatten(1) for point in (proposed, current))
        return (logsigmoid(-w * there) - logsigmoid(w * here)).sum(1)
