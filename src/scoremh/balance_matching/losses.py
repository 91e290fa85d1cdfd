"""The loss of Score Balance Matching, and the pairs it is a mean over; its equations are in the package's docstring."""

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
LEAST_LOG_DISTANCE = 1e-6  # a log a nearer to 0 is taken as this far from it: at 0 the parts of H are not finite


@dataclass(frozen=True)
class BalanceMatching:
    """The loss, and the distribution of its pairs.

    Args:
        entropy: lambda, the weight of H; for the free form.
        clip: C, the largest norm of a gradient, per pair, in the coordinates in which the sides of the regression are
            compared (standard ones, in `fit_acceptance`): both are scaled down to it, by factors that are taken for
            constants in the gradient of the loss. (The paper clips every term of both on its own; an acceptance in
            balance would then have a loss.) None takes them as they are.
        pairs: Distribution of x'. "proposed": q(. | x), where chains ask for a. "independent" (the paper's
            Algorithm 2): `x' = alpha v' + (1 - alpha) y` with another sample y and v' from q(. | y). "mixed": half of
            each.
        alpha: Weight of v' in x', for independent pairs: a number, or values reached one after the other at equal
            times of a training, interpolated linearly between.
        all_pairs: Whether to cross the first half of a batch with the x' of the second (the paper's Algorithm 1),
            rather than to take one x' for every x. For independent pairs.
        scale: Weight of the pull of log a(x', x) + log a(x, x') to Barker's, by a smooth absolute loss; for the free
            form. It rises from 0 to this in the course of a training: the ratio comes first.
        anchor_weight: Weight of the errors of log p at anchors, where `fit_acceptance` is given some.
    """

    entropy: float = 0.0
    clip: float | None = None
    pairs: Pairs = "proposed"
    alpha: float | tuple[float, ...] = (0.0, 1.0)
    all_pairs: bool = False
    scale: float = 0.0
    anchor_weight: float = 100.0

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        for name in ("entropy", "scale", "anchor_weight"):
            checks.positive(getattr(self, name), name, zero=True)
        if self.clip is not None:
            checks.positive(self.clip, "clip")
        checks.one_of(self.pairs, get_args(Pairs), "pairs")
        values = self.alpha if isinstance(self.alpha, tuple) else (self.alpha,)
        if not values or not all(isinstance(value, int | float) and 0 <= value <= 1 for value in values):
            fix = "(0.0, 1.0) goes from samples to proposals, as the paper does."
            raise ValueError(checks.message("alpha in [0, 1], or a tuple of such", self.alpha, fix))
        if self.all_pairs and self.pairs != "independent":
            fix = 'Use pairs="independent": crossed pairs are independent.'
            raise ValueError(checks.message("all_pairs with independent pairs", f"pairs={self.pairs!r}", fix))

    def alpha_at(self, progress: float) -> float:
        """Return alpha after this share of a training."""
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
        """Return pairs: where a chain would be, as leaves to differentiate at, and x'.

        Args:
            target: Target whose score is evaluated at x.
            proposal: q.
            x: Samples, `(sample, *event)`.
            others: Samples that the x' of independent pairs come from; the same ones, moved on by one, if None.
            progress: Share of the training that is done, for alpha.
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
        """Return the number of pairs, the first ones, in which x' comes from x itself."""
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
        """Return the terms of the loss, as `terms` does, over pairs that were drawn; `current` are leaves."""
        inside = None
        if target.support is not None:  # no chain will ask for a there, and the score may be worth nothing
            inside = target.support(proposed)
            proposed = torch.where(per_chain(inside, proposed), proposed, _another(current.x.detach()))
        there = leaf(proposed, target, proposal)
        learned, wanted, forth, back = Form.of(net).regression(current, there, proposal=proposal)
        if inside is not None:  # what the proposal says of such a pair may not be a number
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
        """Return both gradients with norms of at most C, and 1 for every pair where one was longer."""
        if self.clip is None:
            return learned, wanted, learned.new_zeros(len(learned))
        factors = [(self.clip / side.detach().norm(dim=1)).clamp(max=1) for side in (learned, wanted)]
        learned, wanted = (side * factor[:, None] for side, factor in zip((learned, wanted), factors, strict=True))
        return learned, wanted, (torch.minimum(*factors) < 1).to(learned)

    def _negative_entropy(self, log_accept: Tensor) -> Tensor:
        """Return H(a); what has no weight needs no graph."""
        log_a = (log_accept if self.entropy else log_accept.detach()).clamp(max=-LEAST_LOG_DISTANCE)
        rest = -log_a.expm1()
        return log_a * log_a.exp() + rest * rest.log()

    def _distance_from_barker(self, forth: Tensor, back: Tensor) -> Tensor:
        """Return how far log a(x', x) + log a(x, x') is from that of Barker's rule, as a smooth absolute loss."""
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
            net: A form, or any network that answers log a as `net(proposed, current)`. A form that learns from points,
                of which a pair has two, takes half as many pairs, x from the first half of the samples and x' from the
                second.
            target: Target whose score is matched.
            proposal: q, whose `log_prob` is differentiated.
            x: Samples, `(sample, *event)`.
            coordinates: Coordinates in which gradients are compared; those of x itself if None.
            progress: Share of the training that is done, for alpha and scale.
            generator: Random number generator; the same seed gives the same pairs.

        Returns:
            "loss", the weighted sum of "balance", "entropy" and "scale", which can be differentiated; "acceptance", the
            mean of a(x', x); "clipped", the share of pairs with a gradient beyond C. Pairs with x' outside the support
            do not count.
        """
        half = len(x) // 2
        halves = (x[:half], x[half : 2 * half]) if half and (self.all_pairs or Form.of(net).from_points) else (x,)
        current, proposed = self.draw(target, proposal, *halves, progress=progress, generator=generator)
        return self.between(net, target, proposal, current, proposed, coordinates, progress)


def _another(x: Float[Tensor, "sample *event"]) -> Float[Tensor, "sample *event"]:
    """Return another sample for each, to stand in for an x' that does not count: at x' = x a net may have no slope."""
    first = x[:1]
    farthest = x[(x - first).flatten(1).norm(dim=1).argmax()][None]
    return torch.where(per_chain((x == first).flatten(1).all(1), x), farthest, first)


def _pulled(
    gradient: Float[Tensor, "pair both"], coordinates: Coordinates, u: Float[Tensor, "two_pairs *event"]
) -> Float[Tensor, "pair both"]:
    """Return the gradient with respect to u, from that with respect to x, of both points of every pair."""
    at_points = torch.cat(gradient.chunk(2, 1)).reshape(u.shape)
    return torch.cat(coordinates.pull_gradient(at_points, u).flatten(1).chunk(2), 1)
