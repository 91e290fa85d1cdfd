"""Anchors: values of log p in the loss of an acceptance."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scoremh import AcceptanceFit, RandomWalk, Recipe, Target, diffusion, fit_acceptance, targets
from scoremh.balance_matching.fit import Anchors, anchor_function, anchor_table
from scoremh.kernel.metropolis import scored_target
from scoremh.networks import Antisymmetric, Form, Free, Potential, PotentialMLP
from tests.balance_cases import ALL, MIXTURE, NETS, SHORT, Kinked, Rule, X, fitted, known, seeded
from tests.cases import GAUSSIAN

FAR = targets.GaussianMixture([0.3, 0.7], [[-6.0], [6.0]])
SAMPLES = MIXTURE.sample(500, generator=seeded())


class Density(nn.Module):
    """log p of the mixture, changed."""

    def __init__(self, change: Any = lambda x, log_p: log_p + 3) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.change(x, MIXTURE.log_density(x))
        return changed


class Half(Rule):
    """Half of the exact log ratio."""

    def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
        return self.ratio(proposed, current) / 2


def exact(form: str, proposal: Any) -> Form:
    if form == "potential":
        return Potential(Density())
    if form == "antisymmetric":
        return Antisymmetric(Half(MIXTURE, proposal, "barker"))
    return Free(Rule(MIXTURE, proposal, "barker", scale=2.0))


def table(form: Form, proposal: Any = None, log_density: Any = MIXTURE.log_density) -> Anchors:
    return anchor_table(log_density, known(MIXTURE), proposal or RandomWalk(1.0), SAMPLES, form)


@pytest.mark.parametrize("name", ["rw", "mala", "pcn", "laplace"])
@pytest.mark.parametrize("form", NETS)
def test_an_exact_acceptance_has_no_error_and_another_has_one(form: str, name: str) -> None:
    right = exact(form, ALL[name])
    anchors = table(right, ALL[name], lambda x: MIXTURE.log_density(x) - 7)  # up to a constant
    assert float(anchors.loss(right, generator=seeded())) < 1e-12
    wrong = table(right, ALL[name], GAUSSIAN.log_density)
    assert float(wrong.loss(right, generator=seeded())) > 0.1


@pytest.mark.parametrize("by", [-0.4, 0.4])
def test_the_gradient_leads_to_the_anchors(by: float) -> None:
    """A potential with too much or too little weight on the right."""
    tilt = torch.tensor(by, requires_grad=True)
    form = Potential(Density(lambda x, log_p: log_p + tilt * x[:, 0].sign()))
    (slope,) = torch.autograd.grad(table(form).loss(form, generator=seeded()), tilt)
    assert float(slope) * by > 0.01


def test_below_the_floor_log_p_is_bounded_and_not_learned() -> None:
    anchors = table(Potential(Density()))
    below = (anchors.log_density < anchors.floor).double().mean()
    assert 0.02 < float(below) < 0.6

    def loss(change: Any) -> float:
        return float(anchors.loss(Potential(Density(change)), generator=seeded()))

    assert loss(lambda x, log_p: torch.where(log_p < anchors.floor, log_p - 50, log_p)) < 1e-12
    assert loss(lambda x, log_p: log_p.clamp(min=anchors.floor)) < 1e-12
    assert loss(lambda x, log_p: log_p.clamp(min=anchors.floor + 3)) > 0.1
    nothing = table(Potential(Density()), None, lambda x: MIXTURE.log_density(x).where(x[:, 0] < 4, -math.inf))
    assert float(nothing.loss(Potential(Density()), generator=seeded())) > 0.1  # mass where there is none
    assert float(nothing.loss(Potential(Density(lambda x, p: p.where(x[:, 0] < 4, -99.0))), generator=seeded())) < 1e-12


def test_anchors_lie_on_between_and_off_the_samples() -> None:
    """And are the same in every process; none is outside of the support."""
    x = FAR.sample(1000, generator=seeded())
    inside = targets.box(-15.0, 15.0)
    target, form = Target(FAR.score, support=inside), Potential(PotentialMLP(1))
    first, second = (anchor_table(FAR.log_density, target, RandomWalk(1.0), x, form) for _ in range(2))
    assert torch.equal(first.points.x, second.points.x)
    points = first.points.x[:, 0]
    assert bool(inside(points[:, None]).all())
    for low, high in ((-15, -10), (-8, -4), (-2, 2), (4, 8), (10, 15)):
        assert ((points > low) & (points < high)).double().mean() > 0.02


def weight_on_the_right(fit: AcceptanceFit) -> float:
    grid = torch.linspace(-12, 12, 4801)[:, None]
    p = (fit.log_density(grid) - fit.log_density(grid).max()).exp()
    return float(p[grid[:, 0] > 0].sum() / p.sum())


def test_anchors_give_far_modes_their_weights_and_gradients_do_not() -> None:
    x, recipe = FAR.sample(2000, generator=seeded()), Recipe(steps=400, batch=64, rate=1e-2)

    def fit(**anchors: Any) -> AcceptanceFit:
        net = PotentialMLP(1, hidden=32, layers=2, generator=seeded(1))
        return fit_acceptance(
            Target(FAR.score), RandomWalk(1.0), x, net=net, recipe=recipe, generator=seeded(2), **anchors
        )

    assert abs(weight_on_the_right(fit()) - 0.7) > 0.1
    assert abs(weight_on_the_right(fit(anchors=FAR.log_density)) - 0.7) < 0.02


@pytest.mark.parametrize("form", NETS)
def test_training_lowers_the_error_at_anchors_and_records_it(form: Any) -> None:
    fit = fitted(form, anchors=GAUSSIAN.log_density)
    errors = fit.history["anchors"]
    assert len(errors) == len(fit.history["step"])
    assert errors[-1] < errors[0]
    assert fit.history["loss"][0] > fit.history["balance"][0] + 50 * errors[0]
    assert "log p at anchors" in repr(fit)
    plain = fitted(form, recipe=Recipe(steps=1, batch=8, check_every=1))
    assert "anchors" not in plain.history
    assert "log p at anchors" not in repr(plain)


@pytest.mark.parametrize("form", NETS)
def test_an_interrupted_training_ends_with_the_same_bits(form: Any, tmp_path: Path) -> None:
    """No generator is given to the second call: the anchors are those of the first all the same."""
    path = tmp_path / "training.safetensors"

    class StopError(Exception):
        pass

    calls = 0

    def score(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == stop:
            raise StopError
        return -x

    def attempt(**options: Any) -> AcceptanceFit:
        return fit_acceptance(
            Target(score), RandomWalk(1.0), X, form=form, recipe=SHORT, anchors=GAUSSIAN.log_density, **options
        )

    stop = 0
    straight = attempt(generator=seeded(3))
    calls, stop = 0, calls * 3 // 4
    saved = pytest.MonkeyPatch()
    saved.setattr("scoremh.training.SAVE_SECONDS", 0.0)
    with pytest.raises(StopError):
        attempt(generator=seeded(3), checkpoint=path)
    saved.undo()
    stop = 0
    resumed = attempt(checkpoint=path)
    assert resumed.history == straight.history
    for a, b in zip(resumed.net.parameters(), straight.net.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_checkpoint_belongs_to_its_anchors(tmp_path: Path) -> None:
    options: Any = {"checkpoint": tmp_path / "file", "recipe": Recipe(steps=2, batch=8, check_every=1)}
    fitted("potential", anchors=GAUSSIAN.log_density, **options)
    for other in (MIXTURE.log_density, False):
        with pytest.raises(ValueError, match="to hold this training"):
            fitted("potential", anchors=other, **options)


def test_a_proposal_with_a_domain() -> None:
    x = 0.2 + torch.rand(300, 2, generator=seeded(), dtype=torch.float64)
    target = Target(lambda x: -x, support=targets.box(0.1, 2.0))
    fit = fit_acceptance(target, Kinked(), x, form="free", recipe=SHORT, anchors=lambda x: -x.square().sum(1) / 2)
    assert all(math.isfinite(value) for value in fit.history["anchors"])


def test_true_is_log_p_through_noise() -> None:
    """At the level of the target, and not at that of the model it belongs to."""
    log_density = anchor_function(True, scored_target(MIXTURE.at(0.5), RandomWalk(1.0)))
    assert log_density is not None
    assert torch.equal(log_density(SAMPLES), diffusion.log_density(MIXTURE.at(0.5), SAMPLES))
    error = {level: (log_density(SAMPLES) - MIXTURE.at(level).log_density(SAMPLES)).abs().max() for level in (0.1, 0.5)}
    assert error[0.5] < 0.1 < error[0.1]


def test_anchored_trainings_clip_gradients() -> None:
    short = Recipe(steps=1, batch=8, check_every=1)
    assert "clip=5.0" in fitted("potential", anchors=GAUSSIAN.log_density, recipe=short).loss  # 2.5 sqrt(2 x 2)
    assert "clip=None" in fitted("potential", recipe=short).loss


@pytest.mark.parametrize("target", [Target(GAUSSIAN.score), GAUSSIAN])
def test_no_values_are_refused_and_not_left_out(target: Any) -> None:
    """A fit without noise levels has None for its log density."""
    with pytest.raises(ValueError, match=r"anchors to be a function of x, True or False, got None\. A score of one"):
        fit_acceptance(target, RandomWalk(1.0), X, anchors=None)


def test_values_through_noise_need_noise_levels() -> None:
    with pytest.raises(ValueError, match="a target that knows the scores of all noise levels, got a score of one"):
        fit_acceptance(Target(GAUSSIAN.score), RandomWalk(1.0), X, anchors=True)


REFUSED: dict[str, tuple[type[Exception], Any, str]] = {
    "another shape": (ValueError, lambda x: x, r"anchors\(x\) to be a float64 tensor of shape \(32,\) on cpu, got a"),
    "another dtype": (TypeError, lambda x: x.sum(1).float(), r"anchors\(x\) to be a float64 tensor"),
    "NaN everywhere": (ValueError, lambda x: x.sum(1) * math.nan, "anchors that are numbers .*, got 0 of"),
    "no density": (
        ValueError,
        lambda x: x.sum(1) * 0 - math.inf,
        "anchors that are numbers .* and finite ones at 0 samples",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    kind, anchors, text = REFUSED[case]
    with pytest.raises(kind, match=text):
        fitted("potential", anchors=anchors)
