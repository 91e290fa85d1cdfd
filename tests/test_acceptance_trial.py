"""What is refused before a training is spent on it: scores, proposals and networks that do not go together."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from scoremh import MALA, Point, Proposal, RandomWalk, Recipe, Target, fit_acceptance
from scoremh.networks import AcceptanceMLP
from tests.balance_cases import (
    ALL,
    MIXTURE,
    NORMAL,
    Box,
    Own,
    X,
    fitted,
    own,
    seeded,
)


def test_a_score_without_a_graph_is_refused_where_the_proposal_needs_one() -> None:
    def closed(x: Tensor) -> Tensor:
        with torch.no_grad():
            score: Tensor = MIXTURE.score(x)
        return score

    short: Any = {"recipe": Recipe(steps=1, batch=8, check_every=1)}
    with pytest.raises(ValueError, match=r"a score to differentiate, as MALA\(step_size=0.2\) needs.*create_graph"):
        fit_acceptance(Target(closed), MALA(0.2), X, form="free", **short)
    fit_acceptance(Target(closed), MALA(0.2), X, form="potential", **short)  # its gradient is that of the score alone
    fit_acceptance(Target(closed), RandomWalk(0.2), X, form="free", **short)
    fit_acceptance(Target(torch.ones_like), MALA(0.2), X, form="free", **short)  # it has no gradient to miss
    jumping = Target(lambda x: torch.where(x > 0, -1.0, 1.0).to(x))  # and neither has this one, but log q jumps with it
    with pytest.raises(ValueError, match="and the score it needs, to be smooth and differentiable"):
        fit_acceptance(jumping, MALA(0.2), X, form="free", **short)
    fit_acceptance(jumping, MALA(0.2), X, form="potential", **short)
    fit_acceptance(jumping, RandomWalk(0.2), X, form="free", **short)


@dataclass
class Local(Proposal):
    """A walk whose steps are longer where the density is low."""

    needs: ClassVar[frozenset[Any]] = frozenset({"log_density"})

    def width(self, at: Point) -> Tensor:
        assert at.log_density is not None
        return (0.3 - 0.1 * at.log_density.tanh())[:, None]

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Tensor:
        return at.x + self.width(at) * torch.randn(at.x.shape, generator=generator, dtype=at.x.dtype)

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        width = self.width(given)
        return -((to.x - given.x) / width).square().sum(1) / 2 - 2 * width[:, 0].log()


def test_a_log_density_without_a_graph_is_refused_too() -> None:
    def closed(x: Tensor) -> Tensor:
        log_density: Tensor = MIXTURE.log_density(x).detach()
        return log_density

    short: Any = {"form": "free", "recipe": Recipe(steps=1, batch=8, check_every=1)}
    with pytest.raises(ValueError, match="a log_density to differentiate, as Local"):
        fit_acceptance(Target(MIXTURE.score, closed), Local(), X, **short)
    fit_acceptance(MIXTURE, Local(), X, **short)


def test_a_trial_asks_nothing_of_no_points() -> None:
    """On a thin support no way stays inside."""

    def thin(x: Tensor) -> Tensor:
        return (x.square().sum(1) - 1).abs() < 1e-9

    def score(x: Tensor) -> Tensor:
        assert len(x)
        assert bool(thin(x).all())
        return -x

    x = X / X.norm(dim=1, keepdim=True)
    ring = Target(score, support=thin)
    fit_acceptance(ring, MALA(0.2), x, form="free", recipe=Recipe(steps=1, batch=8, check_every=1))


WITHOUT_GRADIENT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "no graph": lambda to, given: own(to, given).detach(),
    "numpy": lambda to, given: torch.from_numpy(own(to, given).detach().numpy()),
    "half a graph": lambda to, given: own(to, given.detach()),
    "half of a symmetric one": lambda to, given: -(to - given.detach()).square().sum(1) / 2,
}


@pytest.mark.parametrize("how", WITHOUT_GRADIENT)
def test_a_proposal_that_autograd_cannot_see_is_refused(how: str) -> None:
    options: Any = {"recipe": Recipe(steps=1, batch=8, check_every=1)}
    with pytest.raises(
        ValueError, match=r"differentiable by autograd in both points, got gradients that add up to .*potential"
    ):
        fit_acceptance(MIXTURE, Own(WITHOUT_GRADIENT[how]), X, form="antisymmetric", **options)
    fit_acceptance(MIXTURE, Own(WITHOUT_GRADIENT[how]), X, form="potential", **options)
    fit_acceptance(MIXTURE, Own(own), X, form="antisymmetric", **options)


@dataclass
class Shrinking(Box):
    """A bounded walk around x / 2: from far out there is no way back."""

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Tensor:
        return super().sample(at._replace(x=at.x / 2), generator=generator)

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        return super().log_prob(to, given=given._replace(x=given.x / 2))


@dataclass
class Zones(Box):
    """A walk with longer steps on one side: log q jumps where x' is on the other."""

    def scaled(self, at: Point) -> Tensor:
        return torch.where(at.x[:, :1] > 0, 2 * self.width, self.width)

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Tensor:
        return at.x + self.scaled(at) * torch.randn(at.x.shape, generator=generator, dtype=at.x.dtype)

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        width = self.scaled(given)
        return -((to.x - given.x) / width).square().sum(1) / 2 - to.x[0].numel() * width[:, 0].log()


@pytest.mark.parametrize("form", ["free", "antisymmetric"])
def test_what_a_gradient_does_not_see_is_refused(form: Any) -> None:
    """Where q(x | x') is 0, or jumps, its gradient says nothing of it: a loss of 0 would belong to another law."""
    options: Any = {"recipe": Recipe(steps=1, batch=8, check_every=1)}
    with pytest.raises(ValueError, match=r"reversible steps of .*, got \d+ of 32 candidates .*form=\"potential\""):
        fit_acceptance(MIXTURE, Shrinking(1.5), X, form=form, **options)
    with pytest.raises(ValueError, match="to be smooth and differentiable by autograd in both points, got gradients"):
        fit_acceptance(MIXTURE, Zones(1.0), X, form=form, **options)
    for proposal in (Shrinking(1.5), Zones(1.0)):
        fit_acceptance(MIXTURE, proposal, X, form="potential", **options)
    for good in (*ALL.values(), TwoSteps(0.01), MALA(5.0)):
        fit_acceptance(MIXTURE, good, X, form=form, **options)


@dataclass
class TwoSteps(Box):
    """Long and short steps by turns: smooth, but log q changes within a small part of a long way."""

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Tensor:
        long = torch.rand((len(at.x), 1), generator=generator) < 0.5
        noise = torch.randn(at.x.shape, generator=generator, dtype=at.x.dtype)
        return 0.9 * at.x + torch.where(long, 1.0, self.width) * noise

    def log_prob(self, to: Point, *, given: Point) -> Tensor:
        square = (to.x - 0.9 * given.x).square().sum(1) / 2
        both = torch.stack([-square, -square / self.width**2 - 2 * math.log(self.width)])
        return both.logsumexp(0)


def test_a_trial_does_not_depend_on_the_seed_of_the_samples() -> None:
    """Candidates drawn by the generator of the samples would lie on rays from the middle."""

    class Detached(MALA):
        def log_prob(self, to: Point, *, given: Point) -> Tensor:
            assert given.score is not None
            return super().log_prob(to, given=given._replace(score=given.score.detach()))

    for seed in range(4):
        x = torch.randn(500, 2, generator=seeded(seed), dtype=torch.float64)
        with pytest.raises(ValueError, match="to be smooth and differentiable"):
            fit_acceptance(NORMAL, Detached(0.3), x, form="free", recipe=Recipe(steps=1, batch=8, check_every=1))


def test_a_free_network_answers_log_a() -> None:
    class Unbounded(AcceptanceMLP):
        def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
            return self.logit(proposed, current)

    with pytest.raises(ValueError, match=r"to answer log a, at most 0, got .*logsigmoid"):
        fitted("free", net=Unbounded(2))
    fitted("antisymmetric", net=Unbounded(2))  # any number is half of a log ratio
