"""The loss of Score Balance Matching, and the pairs it is a mean over."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, smooth_l1_loss

from scoremh._shared import checks, detailed_balance
from scoremh._shared.algebra import per_chain
from scoremh.coordinates import Coordinates
from scoremh.networks import Potential
from scoremh.types import Point, Proposal, Target

Pairs = Literal["independent", "proposed", "mixed"]
SURE = 1e-6  # log a above -SURE is taken as this far from 0, where H is 0 and its parts are not finite


@dataclass(frozen=True)
class BalanceMatching:
    """The loss, and how its pairs are drawn.

    Args:
        entropy: lambda, the weight of H; for the free form.
        clip: C, the largest norm of a gradient, per pair, in the coordinates in which the sides of the regression are
            compared (standard ones, in `fit_acceptance`): both are scaled down to it, by factors that are taken for
            constants in the gradient of the loss. (The paper clips every term of both on its own; an acceptance in
            balance would then have a loss.) None takes them as they are.
        pairs: How x' is drawn. "proposed": from q(. | x), where a chain will ask. "independent" (the paper's
            Algorithm 2): `x' = alpha v' + (1 - alpha) y` with another sample y and v' from q(. | y). "mixed": half of
            each.
        alpha: Of independent pairs: a number, or values reached one after the other at equal times of a training,
            with straight lines between.
        all_pairs: Cross the first half of a batch with the x' drawn from the second (the paper's Algorithm 1), rather
            than one x' for every x. For independent pairs.
        scale: Weight of the pull of log a(x', x) + log a(x, x') to Barker's, by a smooth absolute loss; for the free
            form. It rises from 0 to this in the course of a training: the ratio comes first.
    """

    entropy: float = 0.0
    clip: float | None = None
    pairs: Pairs = "proposed"
    alpha: float | tuple[float, ...] = (0.0, 1.0)
    all_pairs: bool = False
    scale: float = 0.0

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        for name in ("entropy", "scale"):
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
            target: Its score is evaluated at x.
            proposal: q.
            x: Samples.
            others: Where the x' of independent pairs come from; the samples themselves, moved on by one, if None.
            progress: Share of the training that is done, for alpha.
            generator: Source of randomness.
        """
        if others is None:
            current = detailed_balance.leaf(x, target, proposal)
            own = self._own(len(x))
            origin = current.map(lambda part: torch.cat([part[:own], part[own:].roll(1, 0)]).detach())
            return current, self._moved(origin, proposal, progress, generator)
        proposed = self._moved(Point.at(others, target, proposal.needs), proposal, progress, generator)
        if self.all_pairs:
            x, proposed = x.repeat_interleave(len(others), 0), proposed.repeat(len(x), *(1,) * (x.ndim - 1))
        return detailed_balance.leaf(x, target, proposal), proposed

    def _own(self, pairs: int) -> int:
        """Return for how many pairs, the first ones, x' comes from x itself."""
        return {"independent": 0, "mixed": pairs // 2, "proposed": pairs}[self.pairs]

    def _moved(self, origin: Point, proposal: Proposal, progress: float, generator: torch.Generator | None) -> Tensor:
        moved, own = proposal.sample(origin, generator=generator), self._own(len(origin.x))
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
        there = detailed_balance.leaf(proposed, target, proposal)
        if isinstance(net, Potential):
            given, forth, back = _potential(net, proposal, current, there)
            wanted = detailed_balance.score_gradient(current, there)
        else:
            learning = torch.is_grad_enabled()
            with torch.enable_grad():
                given, forth, back = _learned(net, current, there, learning=learning)
                wanted = detailed_balance.wanted_gradient(proposal, current, there)
        if inside is not None:  # what the proposal says of such a pair may not be a number
            wanted = torch.where(inside[:, None], wanted, given.detach())
        if coordinates is not None:
            u = coordinates.inverse(torch.cat([current.x, there.x]).detach())
            given, wanted = (_pulled(side, coordinates, u) for side in (given, wanted))
        clipped = torch.zeros_like(forth)
        if self.clip is not None:
            factors = [(self.clip / side.detach().norm(dim=1)).clamp(max=1) for side in (given, wanted)]
            given, wanted = (side * factor[:, None] for side, factor in zip((given, wanted), factors, strict=True))
            clipped = (torch.minimum(*factors) < 1).to(forth)
        sure = (forth if self.entropy else forth.detach()).clamp(max=-SURE)  # what has no weight needs no graph
        rest = -sure.expm1()
        ratio = (forth - back).detach()
        barker = logsigmoid(ratio) + logsigmoid(-ratio)
        product = forth + back if self.scale else (forth + back).detach()
        each = {
            "balance": (given - wanted).square().sum(1),
            "entropy": sure * sure.exp() + rest * rest.log(),
            "scale": smooth_l1_loss(product, barker, reduction="none"),
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
            net: Answers log a as `net(proposed, current)`, or is a `Potential`. A potential learns from points, and a
                pair has two: it takes half as many pairs, x from the one half of the samples and x' from the other.
            target: Its score is what is matched.
            proposal: q, whose `log_prob` is differentiated.
            x: Samples.
            coordinates: Coordinates in which gradients are compared; those of x itself if None.
            progress: Share of the training that is done, for alpha and scale.
            generator: Source of randomness.

        Returns:
            "loss", the weighted sum of "balance", "entropy" and "scale", which can be differentiated; "acceptance", the
            mean of a(x', x); "clipped", the share of pairs with a gradient beyond C. Pairs with x' outside the support
            do not count.
        """
        half = len(x) // 2
        halves = (x[:half], x[half : 2 * half]) if half and (self.all_pairs or isinstance(net, Potential)) else (x,)
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


def _learned(net: nn.Module, current: Point, proposed: Point, *, learning: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return grad D_a, and log a in both orders."""
    forth, back = detailed_balance.log_accepts(net, proposed.x, current.x)
    gradients = torch.autograd.grad((forth - back).sum(), (current.x, proposed.x), create_graph=learning)
    return torch.cat([gradient.flatten(1) for gradient in gradients], 1), forth, back


def _potential(net: Potential, proposal: Proposal, current: Point, proposed: Point) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of phi(x') - phi(x), and log a in both orders by Barker's rule."""
    phi, gradient = net.value_and_gradient(torch.cat([current.x, proposed.x]).detach())
    before, after = phi.chunk(2)
    with torch.no_grad():
        change = detailed_balance.log_q_ratio(
            proposal, current, proposed
        ).nan_to_num()  # a bounded step may allow neither way
    at_current, at_proposed = gradient.flatten(1).chunk(2)
    ratio = after - before + change
    return torch.cat([-at_current, at_proposed], 1), logsigmoid(ratio), logsigmoid(-ratio)
