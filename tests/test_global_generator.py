"""torch's global generator: not used by our networks, their training and sampling; forked for layers that draw from it.

A state that is the same afterwards may have been forked, and a fork that fails may have been no fork: both are tested.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch._dynamo  # by the first optimiser otherwise, and its import names the global generator
from torch import Tensor, nn

from scoremh import (
    MALA,
    PCN,
    Always,
    Learned,
    LineIntegral,
    RandomWalk,
    Recipe,
    fit_acceptance,
    fit_score,
    metropolis_hastings,
    sample,
    targets,
)
from scoremh._shared import rng
from scoremh.networks import FORMS, AcceptanceMLP, NoiseConditionalMLP, PotentialMLP, ScoreMLP
from tests.balance_cases import seeded

SHORT = Recipe(steps=4, batch=16, check_every=2)
NORMAL = targets.Gaussian([0.0, 0.0])
X = NORMAL.sample(100, generator=seeded())


@contextmanager
def without_global_generator() -> Iterator[None]:
    """Fail where the global generator is forked or named, and where its state is another afterwards."""

    class Forbidden:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"the global generator was used: {name}")

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("the global generator was forked or seeded")

    before = torch.get_rng_state()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "default_generator", Forbidden())
        for name in ("fork_rng", "manual_seed", "seed", "set_rng_state"):
            patch.setattr(torch.random, name, forbidden)
        yield
    assert torch.equal(torch.get_rng_state(), before)


def kernels(proposal: Any, rule: Any) -> Callable[[], Any]:
    kernel = metropolis_hastings(targets.Gaussian([0.0, 0.0]), proposal, rule)
    return lambda: sample(kernel, X, draws=3, generator=seeded())


USES: dict[str, Callable[[], Any]] = {
    "score": lambda: fit_score(X, recipe=SHORT, generator=seeded()),
    "score without a seed": lambda: fit_score(X, recipe=SHORT),
    "heavy tails": lambda: fit_score(X, heavy_tails=True, recipe=SHORT, generator=seeded()),
    "own score network": lambda: fit_score(X, net=ScoreMLP(2), recipe=SHORT),
    **{
        form: lambda form=form: fit_acceptance(NORMAL, MALA(0.1), X, form=form, recipe=SHORT)  # type: ignore[misc]
        for form in FORMS
    },
    "MALA": kernels(MALA(0.1), LineIntegral()),
    "ULA": kernels(MALA(0.1), Always()),
    "random walk": kernels(RandomWalk(0.5), LineIntegral("adaptive")),
    "PCN": kernels(PCN(0.5), LineIntegral()),
    "learned": lambda: kernels(RandomWalk(1.0), Learned(FORMS["potential"](PotentialMLP(2))))(),
}


@pytest.mark.parametrize("use", USES)
def test_the_global_generator_is_not_used(use: str) -> None:
    with without_global_generator():
        USES[use]()


def test_the_test_finds_what_uses_it() -> None:
    with pytest.raises(AssertionError), without_global_generator():
        torch.rand(1)
    with pytest.raises(AssertionError, match="forked"), without_global_generator(), rng.global_fork(0):
        pass


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.drop = ScoreMLP(2, 8, generator=seeded()), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        score: Tensor = self.net(self.drop(x))
        return score


def test_layers_that_draw_from_it_are_trained_in_a_fork_with_a_seed_of_ours() -> None:
    scores = []
    for state in range(2):
        torch.manual_seed(state)
        before = torch.get_rng_state()
        scores.append(fit_score(X, net=Dropping(), recipe=SHORT, generator=seeded()).score(X))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(*scores)
    with pytest.raises(AssertionError, match="forked"), without_global_generator():
        fit_score(X, net=Dropping(), recipe=SHORT, generator=seeded())
    assert rng.draws_globally(Dropping())
    assert not rng.draws_globally(ScoreMLP(2))


def chain(*sizes: int, last_bias: bool = True) -> list[nn.Linear]:
    """Return torch's own layers, made one after the other."""
    pairs = list(pairwise(sizes))
    return [nn.Linear(a, b, bias=last_bias or number < len(pairs) - 1) for number, (a, b) in enumerate(pairs)]


NETWORKS: dict[str, tuple[Callable[[torch.Generator], nn.Module], Callable[[], list[nn.Linear]]]] = {
    "ScoreMLP": (lambda g: ScoreMLP((1, 2), 16, generator=g), lambda: chain(2, 16, 16, 2)),
    "AcceptanceMLP": (lambda g: AcceptanceMLP(3, 8, 2, generator=g), lambda: chain(6, 8, 8, 8, 8, 8, 1)),
    "NoiseConditionalMLP": (lambda g: NoiseConditionalMLP(2, 8, 3, generator=g), lambda: chain(3, 8, 8, 8, 2)),
    "PotentialMLP": (lambda g: PotentialMLP(2, 8, 3, generator=g), lambda: chain(2, 8, 8, 8, 1, last_bias=False)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_first_weights_are_those_that_torch_gives_with_the_same_seed(name: str) -> None:
    make, reference = NETWORKS[name]
    with without_global_generator():
        net = make(seeded(3))
    with torch.random.fork_rng():
        torch.manual_seed(3)
        theirs = [weight for layer in reference() for weight in layer.parameters()]
    ours = list(net.parameters())
    assert len(ours) == len(theirs)
    zeroed = {"NoiseConditionalMLP": 2, "PotentialMLP": 1}.get(name, 0)  # the last layer's, which begin at 0
    for a, b in zip(ours[: len(ours) - zeroed], theirs, strict=False):
        assert torch.equal(a, b)
    assert all(not bool(weight.any()) for weight in ours[len(ours) - zeroed :])


def test_networks_without_a_generator_differ() -> None:
    first, second = (ScoreMLP(2).first.weight for _ in range(2))
    assert not torch.equal(first, second)
