"""Acceptances of images: shapes, gradients, the paper's read literally, and balance at every noise level."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scoremh import Learned, Recipe, Target, metropolis_hastings, sample
from scoremh.balance_matching import MATCHING, BalanceMatching
from scoremh.networks import Antisymmetric, build, describe
from scoremh.proposals import MALA, ScaledMALA
from scoremh.training import train
from scoremh.types import Point
from studies.mnist.levels import LevelAcceptanceFit, LevelMatching
from studies.mnist.networks import AtLevelAndStep, SiameseAcceptance
from tests.cases import seeded

EVENT = (1, 8, 8)
SIGMA = torch.tensor([0.05, 0.5, 2.0], dtype=torch.float64)


def network(seed: int = 0, *, literal: bool = False, awake: bool = True) -> SiameseAcceptance:
    """Return a small network, whose last layer is not 0 if it is awake."""
    net = SiameseAcceptance(EVENT, (4, 8), 16, literal, first_logit=-float(literal), generator=seeded(seed))
    if awake:
        nn.init.normal_(net.last.weight, std=0.3, generator=seeded(5))
    return net.double()


def images(n: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(n, *EVENT, generator=seeded(seed), dtype=torch.float64)


def answer(net: SiameseAcceptance, x: Tensor, sigma: Tensor | float = 0.5) -> Tensor:
    return net.logit(x, x.flip(0), sigma, 0.7)


@pytest.mark.parametrize("literal", [False, True])
def test_networks_keep_shape_and_dtype_and_take_weights(literal: bool) -> None:
    net, x = network(literal=literal), images()
    assert (answer(net, x).shape, answer(net, x).dtype) == ((3,), torch.float64)
    again = build(describe(net), network(3, literal=literal)).double()
    again.load_state_dict(net.state_dict())
    assert torch.equal(answer(again, x), answer(net, x))  # type: ignore[arg-type]
    first, same, other = (dict(network(seed).named_parameters()) for seed in (0, 0, 1))
    assert all(torch.equal(a, same[key]) for key, a in first.items())
    assert any(not torch.equal(a, other[key]) for key, a in first.items())


def test_a_level_for_all_is_the_same_level_for_each() -> None:
    net, x = network(), images()
    torch.testing.assert_close(answer(net, x, 0.3), answer(net, x, x.new_full((3,), 0.3)), atol=1e-12, rtol=1e-12)
    apart = torch.cat([answer(net, x, float(s))[i : i + 1] for i, s in enumerate(SIGMA)])
    torch.testing.assert_close(answer(net, x, SIGMA), apart, atol=1e-12, rtol=1e-12)


def test_the_papers_acceptance_read_literally_accepts_at_least_0_458() -> None:
    plain, literal = (SiameseAcceptance(EVENT, (4,), 16, lit, generator=seeded()).double() for lit in (False, True))
    for net in (plain, literal):
        nn.init.normal_(net.last.weight, std=3.0, generator=seeded(3))
        nn.init.constant_(net.constant, -1.0)
    x = images(400)
    free, kept = (AtLevelAndStep(net, 0.5, 0.7)(x, x.flip(0)).exp().min() for net in (plain, literal))
    assert free < 0.4
    assert 0.457 < kept < 0.46


def test_branches_do_not_share_weights_and_see_their_own_image() -> None:
    net, x = network(), images(2).requires_grad_()
    assert net.proposed.last.weight.data_ptr() != net.current.last.weight.data_ptr()
    y = images(2, seed=4).requires_grad_()
    for value in (net.logit(x, y, 0.5, 0.7) - net.logit(y, x, 0.5, 0.7)).abs():
        assert value > 1e-4
    there, here = torch.autograd.grad(net.logit(x, y, 0.5, 0.7).sum(), (x, y))
    assert there.abs().max() > 0
    assert here.abs().max() > 0
    assert (net.logit(x, y, 0.5, 0.7) - net.logit(x, y, 0.5, 0.2)).abs().min() > 0  # the step is seen


def test_the_antisymmetric_form_is_antisymmetric_at_levels_and_steps_of_every_pair() -> None:
    form = Antisymmetric(AtLevelAndStep(network(), SIGMA, torch.tensor([0.2, 0.5, 1.0]).double()))
    x, y = Point(images()), Point(images(seed=7))
    forth, back = (form.log_ratio(a, b, proposal=MALA(0.1)) for a, b in ((x, y), (y, x)))
    torch.testing.assert_close(forth, -back, atol=1e-12, rtol=1e-12)
    assert forth.abs().min() > 1e-6


def normal_score(x: Tensor, sigma: Tensor | float) -> Tensor:
    """Return the score of standard normal pixels, blurred."""
    level = torch.as_tensor(sigma, dtype=x.dtype).reshape(-1, 1, 1, 1)
    return -x / (1 + level**2)


def level_loss(form: Any = "antisymmetric", **changes: Any) -> LevelMatching:
    options: dict[str, Any] = {"noise_range": (0.1, 3.0), "steps": (0.2, 0.8), "score": normal_score}
    return LevelMatching(BalanceMatching(), form=form, **options | changes)


class Right(SiameseAcceptance):
    """The ratio of standard normal pixels, blurred, as the antisymmetric form takes it: log p + log q(back)."""

    share = 1.0

    def logit(self, proposed: Tensor, current: Tensor, sigma: Any, step: Any) -> Tensor:
        to, given = (Point(x, normal_score(x, sigma)) for x in (current, proposed))
        back = ScaledMALA(float(step)).log_prob(to, given=given)
        log_p = (proposed * normal_score(proposed, sigma)).flatten(1).sum(1) / 2
        return self.share * log_p + back


def test_a_right_ratio_has_no_loss_at_any_level_and_a_wrong_one_has() -> None:
    right, wrong = Right(EVENT, (4,), 8).double(), Right(EVENT, (4,), 8).double()
    wrong.share = 0.5
    assert level_loss().loss(right, images(16), generator=seeded()) < 1e-20
    assert level_loss().loss(wrong, images(16), generator=seeded()) > 1e-2


def test_the_gradient_of_the_proposal_takes_one_pass_back_through_the_score() -> None:
    calls = {"forward": 0, "backward": 0}

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            calls["forward"] += 1
            return -x

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            calls["backward"] += 1
            return -gradient

    loss = level_loss("antisymmetric", score=lambda x, sigma: Counted.apply(x))  # type: ignore[no-untyped-call]
    net = SiameseAcceptance(EVENT, (4,), 8).double()
    loss.terms(net, images(8), progress=1.0, generator=seeded())["loss"].backward()
    assert calls == {"forward": 2, "backward": 2}  # at x and at x', each once


@pytest.mark.parametrize("form", ["free", "antisymmetric"])
def test_one_acceptance_is_learned_for_all_levels_and_steps(form: Any, tmp_path: Path) -> None:
    recipe, small = Recipe(20, batch=16, check_every=10), partial(SiameseAcceptance, EVENT, (4,), 8)
    loss = LevelMatching(MATCHING[form], normal_score, form, (0.1, 3.0), (0.2, 0.8))
    found = train(small(generator=seeded()), loss, images(64).float(), recipe=recipe, generator=seeded())
    fit = LevelAcceptanceFit(**vars(found), form=form, loss=repr(loss))
    fit.save(tmp_path / "fit.safetensors")
    again = LevelAcceptanceFit.load(tmp_path / "fit.safetensors", small())
    assert math.isfinite(fit.history["held_out"][-1])
    for level, tau in ((0.2, 0.3), (2.0, 0.7)):
        target = Target(score=partial(normal_score, sigma=level))
        kernels = (metropolis_hastings(target, ScaledMALA(tau), Learned(one.at(level, tau))) for one in (fit, again))
        ends = [sample(kernel, images(8).float(), draws=2, generator=seeded()).draws for kernel in kernels]
        assert torch.equal(*ends)
