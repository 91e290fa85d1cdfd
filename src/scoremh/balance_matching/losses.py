"""The loss of Score Balance Matching and the distribution of its pairs; the package's docstring has the equations."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, smooth_l1_loss

from scoremh._shared import checks
from scoremh._shared.algebra import per_chain
from scoremh.coordinates import Coordinates
from scoremh.networks import Form
from scoremh.networks.acceptance import leaf
from scoremh.types import Point, Proposal, Target

Pairs = Literal["independent", "proposed", "mixed"]
LEAST_LOG_DISTANCE = 1e-6  # log a is clamped to at most minus this, because the terms of H are not finite at 0


@dataclass(frozen=True)
class BalanceMatching:
    """The loss, and the distribution of its pairs.

    Args:
        entropy: lambda, the weight of H; for the free form.
        clip: C, the largest norm of the gradients per pair, in the coordinates in which both sides of the regression
            are compared (in `fit_acceptance`, standard coordinates). Longer gradients are scaled down, by factors that
            count as constants in the gradient of the loss. None for no clipping. (The paper clips every term of both
            sides separately; then an acceptance in balance would have a positive loss.)
        pairs: Distribution of x'. "proposed": q(. | x), as in a chain. "independent" (the paper's Algorithm 2):
            `x' = alpha v' + (1 - alpha) y` with another sample y and v' from q(. | y). "mixed": half of each.
        alpha: Weight of v' in x' for independent pairs: a number, or several values at equally spaced times of the
            training, interpolated linearly.
        all_pairs: Combine every x in the first half of a batch with every x' of the second half (the paper's
            Algorithm 1), instead of one x' per x. For independent pairs.
        scale: Weight of a smooth absolute loss that pulls log a(x', x) + log a(x, x') to its value under Barker's rule;
            for the free form. It increases from 0 during the training, so that the ratio is learned first.
        anchor_weight: Weight of the errors of log p at anchors, if `fit_acceptance` has anchors.
    """

    entropy: float = 0.0
    clip: float | None = None
    pairs: Pairs = "proposed"
    alpha: float | tuple[float, ...] = (0.0, 1.0)
    all_pairs: bool = False
    scale: float = 0.0
    anchor_weight: float = 100.0

    def __post_init__(self) -> None:
        """Check the parameters."""
        for name in ("entropy", "scale", "anchor_weight"):
            checks.positive(getattr(self, name), name, zero=True)
        if self.clip is not None:
            checks.positive(self.clip, "clip")
        checks.one_of(self.pairs, get_args(Pairs), "pairs")
        values = self.alpha if isinstance(self.alpha, tuple) else (self.alpha,)
        if not values or not all(isinstance(value, int | float) and 0 <= value <= 1 for value in values):
            fix = "(0.0, 1.0) goes from samples to proposals, as the paper does."
            raise ValueError(checks.message("alpha in [0, 1], or a tuple of such numbers", self.alpha, fix))
        if self.all_pairs and self.pairs != "independent":
            fix = 'Use pairs="independent": crossed pairs are independent.'
            raise ValueError(checks.message("all_pairs with independent pairs", f"pairs={self.pairs!r}", fix))

    def alpha_at(self, progress: float) -> float:
        """Return alpha at this fraction of the training."""
        values = self.alpha if isinstance(self.alpha, tuple) else (self.alpha,)
        return float(np.interp(progress, np.linspace(0, 1, len(values)), values))

    def draw(
        self,
        target: Target,
        proposal: Proposal,
        x: Float[Tensor, "sample *event"],
        others: Float[Tensor, "other *event"] | None = None,
        *,
        progress: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> tuple[Point, Tensor]:
        """Draw pairs (x, x'); return x as a point whose x is a leaf, and x'.

        Args:
            target: Target whose score is evaluated at x.
            proposal: q.
            x: Samples, `(sample, *event)`.
            others: Samples y of independent pairs; x shifted by one row if None.
            progress: Fraction of the training that is done, for alpha.
            generator: Random number generator; the same seed gives the same pairs.
        """
        if others is None:
            current = leaf(x, target, proposal)
            own = self._proposed_pairs(len(x))
            origin = current.map(lambda part: torch.cat([part[:own], part[own:].roll(1, 0)]).detach())
            return current, self._candidates(origin, proposal, progress, generator)
        proposed = self._candidates(Point.at(others, target, proposal.needs), proposal, progress, generator)
        if self.all_pairs:
            x, proposed = x.repeat_interleave(len(others), 0), proposed.repeat(len(x), *(1,) * (x.ndim - 1))
        return leaf(x, target, proposal), proposed

    def _proposed_pairs(self, pairs: int) -> int:
        """Return the number of pairs, the first ones, with x' proposed from x itself."""
        return {"independent": 0, "mixed": pairs // 2, "proposed": pairs}[self.pairs]

    def _candidates(
        self, origin: Point, proposal: Proposal, progress: float, generator: torch.Generator | None
    ) -> Tensor:
        """Return an x' for every origin."""
        moved, own = proposal.sample(origin, generator=generator), self._proposed_pairs(len(origin.x))
        return torch.cat([moved[:own], torch.lerp(origin.x[own:], moved[own:], self.alpha_at(progress))])

    def between(
        self,
        net: nn.Module,
        target: Target,
        proposal: Proposal,
        current: Point,
        proposed: Tensor,
        coordinates: Coordinates | None = None,
        progress: float = 1.0,
    ) -> dict[str, Float[Tensor, ""]]:
        """Return the terms of the loss, like `terms`, over given pairs; the x of `current` must be a leaf."""
        inside = None
        if target.support is not None:  # chains do not use a outside, and the score may be meaningless there
            inside = target.support(proposed)
            proposed = torch.where(per_chain(inside, proposed), proposed, _another(current.x.detach()))
        there = leaf(proposed, target, proposal)
        learned, wanted, forth, back = Form.of(net).regression(current, there, proposal=proposal)
        if inside is not None:  # log q of a replaced pair may not be finite
            wanted = torch.where(inside[:, None], wanted, learned.detach())
        if coordinates is not None:
            u = coordinates.inverse(torch.cat([current.x, there.x]).detach())
            learned, wanted = (_pulled(side, coordinates, u) for side in (learned, wanted))
        learned, wanted, clipped = self._clipped(learned, wanted)
        each = {
            "balance": (learned - wanted).square().sum(1),
            "entropy": self._negative_entropy(forth),
            "scale": self._distance_from_barker(forth, back),
            "acceptance": forth.detach().exp(),
            "clipped": clipped,
        }
        weight = torch.ones_like(forth) if inside is None else inside.to(forth)
        total = weight.sum().clamp_min(1)
        terms = {name: (weight * value).sum() / total for name, value in each.items()}
        loss = terms["balance"]
        for name, factor in (("entropy", self.entropy), ("scale", progress * self.scale)):
            loss = loss + factor * terms[name] if factor else loss
        return {"loss": loss} | {name: value.detach() for name, value in terms.items()}

    def _clipped(self, learned: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return both gradients with norms of at most C, and per pair 1 if one of them was longer, else 0."""
        if self.clip is None:
            return learned, wanted, learned.new_zeros(len(learned))
        factors = [(self.clip / side.detach().norm(dim=1)).clamp(max=1) for side in (learned, wanted)]
        learned, wanted = (side * factor[:, None] for side, factor in zip((learned, wanted), factors, strict=True))
        return learned, wanted, (torch.minimum(*factors) < 1).to(learned)

    def _negative_entropy(self, log_accept: Tensor) -> Tensor:
        """Return H(a); without a weight it is computed without a graph."""
        log_a = (log_accept if self.entropy else log_accept.detach()).clamp(max=-LEAST_LOG_DISTANCE)
        rest = -log_a.expm1()
        return log_a * log_a.exp() + rest * rest.log()

    def _distance_from_barker(self, forth: Tensor, back: Tensor) -> Tensor:
        """Return a smooth absolute loss of log a(x', x) + log a(x, x') against its value under Barker's rule."""
        ratio = (forth - back).detach()
        barker = logsigmoid(ratio) + logsigmoid(-ratio)
        product = forth + back if self.scale else (forth + back).detach()
        return smooth_l1_loss(product, barker, reduction="none")

    def terms(
        self,
        net: nn.Module,
        target: Target,
        proposal: Proposal,
        x: Float[Tensor, "sample *event"],
        *,
        coordinates: Coordinates | None = None,
        progress: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> dict[str, Float[Tensor, ""]]:
        """Draw pairs and return the terms of their loss.

        Args:
            net: A form, or any network with `net(proposed, current)` = log a. A form that learns from points uses half
                as many pairs, with x from the first half of the samples and x' from the second.
            target: Target whose score is matched.
            proposal: q, whose `log_prob` is differentiated.
            x: Samples, `(sample, *event)`.
            coordinates: Coordinates in which gradients are compared; the coordinates x if None.
            progress: Fraction of the training that is done, for alpha and scale.
            generator: Random number generator; the same seed gives the same pairs.

        Returns:
            "loss", the differentiable weighted sum of "balance", "entropy" and "scale"; "acceptance", the mean of
            a(x', x); "clipped", the fraction of pairs with a clipped gradient. Pairs with x' outside the support do not
            count.
        """
        half = len(x) // 2
        halves = (x[:half], x[half : 2 * half]) if half and (self.all_pairs or Form.of(net).from_points) else (x,)
        current, proposed = self.draw(target, proposal, *halves, progress=progress, generator=generator)
        return self.between(net, target, proposal, current, proposed, coordinates, progress)


def _another(x: Float[Tensor, "sample *event"]) -> Float[Tensor, "sample *event"]:
    """Return another sample for each x, to replace an x' that does not count; at x' = x, a gradient may not exist."""
    first = x[:1]
    farthest = x[(x - first).flatten(1).norm(dim=1).argmax()][None]
    return torch.where(per_chain((x == first).flatten(1).all(1), x), farthest, first)


def _pulled(
    gradient: Float[Tensor, "pair both"], coordinates: Coordinates, u: Float[Tensor, "two_pairs *event"]
) -> Float[Tensor, "pair both"]:
    """Return the gradient with respect to u from the gradient with respect to x, for both points of each pair."""
    at_points = torch.cat(gradient.chunk(2, 1)).reshape(u.shape)
    return torch.cat(coordinates.pull_gradient(at_points, u).flatten(1).chunk(2), 1)
