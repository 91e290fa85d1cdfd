"""Acceptances of images: shapes, gradients, the paper's read literally, and balance at every noise level."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scoremh import Learned, Recipe, Target, metropolis_hastings, sample
from scoremh.balance_matching import BalanceMatching
from scoremh.networks import FORMS, Antisymmetric, build, describe
from scoremh.proposals import MALA, ScaledMALA
from scoremh.types import Point
from studies.mnist.levels import LevelAcceptanceFit, LevelMatching, fit_acceptance_at_levels
from studies.mnist.networks import AtLevelAndStep, PotentialUNet, SiameseAcceptance
from tests.cases import seeded

EVENT, CHANNELS = (1, 8, 8), (4, 8, 8)
SIGMA = torch.tensor([0.05, 0.5, 2.0], dtype=torch.float64)
NETWORKS: dict[str, Any] = {
    "potential": lambda g: PotentialUNet(EVENT, CHANNELS, generator=g),
    "siamese": lambda g: SiameseAcceptance(EVENT, (4, 8), 16, generator=g),
    "literal": lambda g: SiameseAcceptance(EVENT, (4, 8), 16, literal=True, first_logit=-1.0, generator=g),
}


def images(n: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(n, *EVENT, generator=seeded(seed), dtype=torch.float64)


def awake(net: Any) -> Any:
    """Return a network whose last layer is not 0."""
    last = net.inside.last if isinstance(net, PotentialUNet) else net.last
    nn.init.normal_(last.weight, std=0.3, generator=seeded(5))
    return net.double()


def answer(net: Any, x: Tensor, sigma: Tensor | float = 0.5) -> Tensor:
    found: Tensor = net(x, x.flip(0), sigma, 0.7) if isinstance(net, SiameseAcceptance) else net(x, sigma)
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_keep_shape_and_dtype_and_take_weights(name: str) -> None:
    net = awake(NETWORKS[name](seeded()))
    x = images()
    shape = (3,) if name in ("siamese", "literal") else x.shape
    assert (answer(net, x).shape, answer(net, x).dtype) == (shape, torch.float64)
    again = build(describe(net), NETWORKS[name](seeded(3))).double()
    again.load_state_dict(net.state_dict())
    assert torch.equal(answer(again, x), answer(net, x))
    same, other = (dict(NETWORKS[name](seeded(seed)).named_parameters()) for seed in (0, 1))
    assert all(torch.equal(a, same[key]) for key, a in NETWORKS[name](seeded()).named_parameters())
    assert any(not torch.equal(a, other[key]) for key, a in same.items())


@pytest.mark.parametrize("name", NETWORKS)
def test_a_level_for_all_is_the_same_level_for_each(name: str) -> None:
    net, x = awake(NETWORKS[name](seeded())), images()
    torch.testing.assert_close(answer(net, x, 0.3), answer(net, x, x.new_full((3,), 0.3)), atol=1e-12, rtol=1e-12)
    apart = torch.cat([answer(net, x, float(s))[i : i + 1] for i, s in enumerate(SIGMA)])
    torch.testing.assert_close(answer(net, x, SIGMA), apart, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("event", [(1, 8, 8), (3, 7, 5), (1, 28, 28)])
def test_a_new_potential_has_the_score_of_blurred_normal_pixels(event: tuple[int, int, int]) -> None:
    x = torch.randn(3, *event, generator=seeded(), dtype=torch.float64)
    wanted = -x / (1 + SIGMA[:, None, None, None] ** 2)
    torch.testing.assert_close(PotentialUNet(event).double()(x, SIGMA), wanted, atol=1e-12, rtol=1e-12)


def test_the_score_of_a_potential_is_its_gradient_and_learns() -> None:
    net, x = awake(PotentialUNet(EVENT, CHANNELS, generator=seeded())), images()
    step, total = 1e-6, torch.zeros(3, dtype=torch.float64)
    v = images(seed=2)
    for sign in (1, -1):
        total += sign * net.potential(x + sign * step * v, SIGMA) / (2 * step)
    torch.testing.assert_close((net(x, SIGMA) * v).flatten(1).sum(1), total, atol=1e-6, rtol=1e-6)
    net(x, SIGMA).square().sum().backward()
    assert all(
        p.grad is not None and p.grad.isfinite().all() for p in net.parameters() if p is not net.inside.last.bias
    )
    with torch.inference_mode():
        torch.testing.assert_close(net(x, SIGMA), net(x.clone(), SIGMA.clone()))
    jacobian = torch.func.jacrev(lambda y: net(y[None], 0.5)[0].flatten())(x[0]).reshape(64, 64)
    torch.testing.assert_close(jacobian, jacobian.mT, atol=1e-9, rtol=1e-9)


def test_the_papers_acceptance_read_literally_accepts_at_least_0_458() -> None:
    plain, literal = (SiameseAcceptance(EVENT, (4,), 16, lit, generator=seeded()).double() for lit in (False, True))
    for net in (plain, literal):
        nn.init.normal_(net.last.weight, std=3.0, generator=seeded(3))
        nn.init.constant_(net.constant, -1.0)
    x = images(400)
    free, kept = (net(x, x.flip(0), 0.5, 0.7).exp().min() for net in (plain, literal))
    assert free < 0.4
    assert 0.457 < kept < 0.46


def test_branches_do_not_share_weights_and_see_their_own_image() -> None:
    net, x = awake(NETWORKS["siamese"](seeded())), images(2).requires_grad_()
    assert net.proposed.last.weight.data_ptr() != net.current.last.weight.data_ptr()
    y = images(2, seed=4).requires_grad_()
    for value in (net(x, y, 0.5, 0.7) - net(y, x, 0.5, 0.7)).abs():
        assert value > 1e-4
    there, here = torch.autograd.grad(net(x, y, 0.5, 0.7).sum(), (x, y))
    assert there.abs().max() > 0
    assert here.abs().max() > 0
    assert (net(x, y, 0.5, 0.7) - net(x, y, 0.5, 0.2)).abs().min() > 0  # the step is seen


def test_the_antisymmetric_form_is_antisymmetric_at_levels_and_steps_of_every_pair() -> None:
    net = awake(NETWORKS["siamese"](seeded()))
    form = Antisymmetric(AtLevelAndStep(net, SIGMA, torch.tensor([0.2, 0.5, 1.0]).double()))
    x, y = Point(images()), Point(images(seed=7))
    forth, back = (form.log_ratio(a, b, proposal=MALA(0.1)) for a, b in ((x, y), (y, x)))
    torch.testing.assert_close(forth, -back, atol=1e-12, rtol=1e-12)
    assert forth.abs().min() > 1e-6


def normal_score(x: Tensor, sigma: Tensor | float) -> Tensor:
    """Return the score of standard normal pixels, blurred."""
    level = torch.as_tensor(sigma, dtype=x.dtype).reshape(-1, 1, 1, 1)
    return -x / (1 + level**2)


def level_loss(form: Any, **changes: Any) -> LevelMatching:
    matching = changes.pop("matching", BalanceMatching())
    options: dict[str, Any] = {"noise_range": (0.1, 3.0), "steps": (0.2, 0.8), "score": normal_score}
    return LevelMatching(matching, form=form, **options | {"proposal_of": ScaledMALA} | changes)


def test_a_right_potential_has_no_loss_at_any_level_and_a_wrong_one_has() -> None:
    """Untrained, it is that of normal pixels: the gradients that the loss compares are then equal."""
    net, x = PotentialUNet(EVENT, CHANNELS).double(), images(16)
    assert level_loss("potential").loss(net, x, generator=seeded()) < 1e-20
    assert level_loss("potential").loss(awake(net), x, generator=seeded()) > 1e-2


def test_the_loss_is_compared_in_units_of_the_noise() -> None:
    """Half of the right potential is wrong by s / 2 at both ends: in units of sigma, (sigma |s|)^2 / 4 each."""

    class Half(PotentialUNet):
        def potential(self, x: Tensor, sigma: Tensor | float) -> Tensor:
            return super().potential(x, sigma) / 2

    low = level_loss("potential", noise_range=(0.1, 0.1), lag=(1.0, 1.0), steps=(1e-3, 1e-3))
    found = float(low.loss(Half(EVENT, CHANNELS).double(), images(4000), generator=seeded()))
    assert found == pytest.approx(2 * 64 * 0.1**2 / (1 + 0.1**2) / 4, rel=0.03)


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


@pytest.mark.parametrize("form", FORMS)
def test_one_acceptance_is_learned_for_all_levels_and_steps(
    form: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def network() -> nn.Module:
        return PotentialUNet(EVENT, CHANNELS) if form == "potential" else SiameseAcceptance(EVENT, (4,), 8)

    options = {"form": form, "noise_range": (0.1, 3.0), "steps": (0.2, 0.8)}
    recipe = Recipe(20, batch=16, check_every=10)
    fit = fit_acceptance_at_levels(
        normal_score, ScaledMALA, images(64).float(), network(), recipe=recipe, generator=seeded(), **options
    )
    fit.save(tmp_path / "fit.safetensors")
    again = LevelAcceptanceFit.load(tmp_path / "fit.safetensors", network())
    assert repr(again) == repr(fit)
    monkeypatch.setattr(LevelAcceptanceFit, "own_fields", ("loss",))  # without its form
    fit.save(tmp_path / "older.safetensors")
    with pytest.raises(
        ValueError, match=r"that LevelAcceptanceFit\.save wrote, got .*older.*cannot be read.* Fit again"
    ):
        LevelAcceptanceFit.load(tmp_path / "older.safetensors", network())
    assert math.isfinite(fit.history["held_out"][-1])
    for level, tau in ((0.2, 0.3), (2.0, 0.7)):
        target = Target(score=partial(normal_score, sigma=level))
        ends = [
            sample(
                metropolis_hastings(target, ScaledMALA(tau), Learned(one.at(level, tau))),
                images(8).float(),
                draws=2,
                generator=seeded(),
            ).draws
            for one in (fit, again)
        ]
        assert torch.equal(*ends)


def test_levels_reject_impossible_values() -> None:
    with pytest.raises(ValueError, match="noise_range from low to high"):
        level_loss("free", noise_range=(3.0, 0.1))
    with pytest.raises(ValueError, match="proposed pairs"):
        level_loss("free", matching=BalanceMatching(pairs="mixed"))
