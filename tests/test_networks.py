"""Networks: closed forms against autograd, coordinates against the chain rule, images, and forms of an acceptance."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from scoremh import (
    MALA,
    PCN,
    AcceptanceFit,
    BalanceMatching,
    Exact,
    Learned,
    Point,
    RandomWalk,
    Recipe,
    Target,
    diagnostics,
    fit_acceptance,
    fit_score,
    metropolis_hastings,
    networks,
    sample,
    targets,
)
from scoremh.balance_matching import MATCHING
from scoremh.coordinates import Affine, Compose, Sinh, SquareRoot
from scoremh.networks import (
    FORMS,
    AcceptanceMLP,
    Antisymmetric,
    AtNoiseLevel,
    Free,
    InCoordinates,
    InputsInCoordinates,
    NoiseConditionalMLP,
    Potential,
    PotentialMLP,
    ScoreMLP,
    UNet,
    build,
    describe,
)
from scoremh.networks.acceptance import leaf
from scoremh.networks.unet import TUTORIAL_CHANNELS
from scoremh.score_matching import MultilevelDenoising, score_and_divergence
from scoremh.types import Proposal
from tests.balance_cases import MIXTURE, NORMAL, Box, Counting, X, fitted, known, made, shaken
from tests.cases import COVARIANCE, GAUSSIAN, PROPOSALS, seeded


def points(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(1), dtype=torch.float64)


def trace(net: Any, x: Tensor) -> Tensor:
    """Return the divergence from full Jacobians, one chain after another."""
    size = x[0].numel()
    rows = [torch.autograd.functional.jacobian(lambda y: net(y[None])[0], row, create_graph=True) for row in x]
    return torch.stack([row.reshape(size, size).trace() for row in rows])


@pytest.mark.parametrize("event", [(1,), (2,), (7,), (1, 3, 3)])
def test_the_closed_form_of_the_divergence_is_the_trace_of_the_jacobian(event: tuple[int, ...]) -> None:
    net, x = ScoreMLP(event, hidden=16).double(), points(5, *event)
    score, divergence = net.score_and_divergence(x)
    torch.testing.assert_close(score, net(x), atol=0, rtol=0)
    torch.testing.assert_close(divergence, trace(net, x), atol=1e-12, rtol=1e-12)
    weights = list(net.parameters())
    mine, theirs = (torch.autograd.grad(t.sum(), weights, allow_unused=True) for t in (divergence, trace(net, x)))
    for a, b in zip(mine, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("event", [(2,), (1, 3, 3)])
def test_other_networks_get_their_divergence_by_autograd(event: tuple[int, ...]) -> None:
    net, x = AtNoiseLevel(NoiseConditionalMLP(event, hidden=8).double(), 0.5), points(5, *event)
    nn.init.normal_(net.net.last.weight)  # type: ignore[union-attr, arg-type]
    score, divergence = score_and_divergence(net, x)
    torch.testing.assert_close(score, net(x))
    torch.testing.assert_close(divergence, trace(net, x), atol=1e-12, rtol=1e-12)


def test_a_new_noise_conditional_network_is_the_score_of_blurred_normal_samples() -> None:
    net, x, sigma = NoiseConditionalMLP(3).double(), points(4, 3), torch.tensor([0.01, 0.3, 1.0, 8.0]).double()
    torch.testing.assert_close(net(x, sigma), -x / (1 + sigma[:, None] ** 2), atol=1e-14, rtol=1e-12)


@pytest.mark.parametrize("residual", [True, False])
def test_the_preconditioning_matches_that_of_karras_et_al(residual: bool) -> None:
    net, x = NoiseConditionalMLP(3, hidden=8, residual=residual).double(), points(4, 3)
    nn.init.normal_(net.last.weight)
    for sigma in (0.05, 2.0):
        k = (1 + sigma**2) ** 0.5
        y = torch.cat([x / k, torch.full((4, 1), sigma, dtype=torch.float64).log() / 4], 1)
        for number, layer in enumerate(net.body):
            y = nn.functional.silu(layer(y)) + (y if residual and number else 0)
        denoised = x / k**2 + sigma / k * net.last(y)
        torch.testing.assert_close(net(x, sigma), (denoised - x) / sigma**2, atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(
            net(x, sigma), net(x, torch.full((4,), sigma, dtype=torch.float64))
        )  # one level, or one each


def test_standard_coordinates_give_the_score_of_the_data() -> None:
    covariance = torch.tensor([[4.0, 1.8], [1.8, 1.0]]).double()
    law = targets.Gaussian([3.0, -2.0], covariance)
    x = law.sample(200_000, generator=seeded()).double()

    class Standard(nn.Module):
        def forward(self, u: Tensor) -> Tensor:
            return -u

    net = InCoordinates(Standard(), Affine.whitening(x))
    u = net.coordinates.inverse(x)
    torch.testing.assert_close(u.mean(0), torch.zeros(2).double(), atol=1e-8, rtol=0)
    torch.testing.assert_close(u.T.cov(correction=0), torch.eye(2).double(), atol=1e-8, rtol=0)
    error = (net(x) - law.score(x)).square().sum(1).mean() / law.score(x).square().sum(1).mean()
    assert error < 1e-4  # only the moments of the samples differ from those of the law


def test_standard_coordinates_obey_the_chain_rule_for_any_potential() -> None:
    x = points(50, 3) @ points(3, 3)

    class Score(nn.Module):
        def forward(self, u: Tensor) -> Tensor:
            return -u.pow(3)

    net = InCoordinates(Score(), Affine.whitening(x))
    expected = torch.func.grad(lambda y: -net.coordinates.inverse(y).pow(4).sum() / 4)(x)
    torch.testing.assert_close(net(x), expected, atol=1e-10, rtol=1e-10)


def test_large_events_are_scaled_by_one_number() -> None:
    x = 3 + 2 * points(100, 1, 8, 8)
    net = InCoordinates(ScoreMLP((1, 8, 8)).double(), Affine.whitening(x))
    assert net.coordinates.root.shape == ()
    assert abs(float(net.coordinates.inverse(x).square().mean()) - 1) < 1e-10
    assert net(x).shape == x.shape


def test_samples_without_width_raise_errors() -> None:
    line = points(100, 1).repeat(1, 2)
    with pytest.raises(ValueError, match="vary in every direction"):
        Affine.whitening(line)
    with pytest.raises(ValueError, match="a number, a diagonal"):
        Affine(torch.zeros(2), torch.ones(2, 3))


@pytest.mark.parametrize(
    "inside", [ScoreMLP((1, 2, 2), 8), NoiseConditionalMLP(4, 8, 2)], ids=lambda n: type(n).__name__
)
def test_a_network_is_rebuilt_from_its_description(inside: Any) -> None:
    x = points(50, *inside.event).float()
    net = InCoordinates(inside, Affine.whitening(x))
    again = build(describe(net))
    again.load_state_dict(net.state_dict())
    level = [0.3] if isinstance(inside, NoiseConditionalMLP) else []
    assert torch.equal(net(x, *level), again(x, *level))


def test_a_network_of_another_kind_has_to_be_given() -> None:
    with pytest.raises(ValueError, match="Pass the network"):
        build(describe(nn.Linear(2, 2)))
    own = nn.Linear(2, 2)
    assert build(describe(nn.Linear(2, 2)), own) is own


@pytest.mark.parametrize(
    "make", [lambda: ScoreMLP(0), lambda: ScoreMLP(2, hidden=0), lambda: NoiseConditionalMLP(2, layers=0)]
)
def test_bad_sizes_raise_errors(make: Any) -> None:
    with pytest.raises(ValueError, match="of at least 1"):
        make()
    with pytest.raises(ValueError, match="finite and above 0"):
        AtNoiseLevel(ScoreMLP(2), 0.0)


@pytest.mark.parametrize("level", [(), (0.3,)])
def test_a_heavy_tailed_score_matches_that_of_the_transformed_law(level: tuple[float, ...]) -> None:
    """With a standard normal z = v / (1 + v^2)^(1/4), the law of x = m + w sinh v has a density in closed form."""

    class Normal(nn.Module):
        def forward(self, z: Tensor, *sigma: float) -> Tensor:
            return -z / (1 + sum(s**2 for s in sigma))

    centre, width = torch.tensor([1.0, -2.0]).double(), torch.tensor([0.5, 3.0]).double()
    net = InCoordinates(Normal(), Compose(Sinh(centre, width), SquareRoot()))

    def log_density(x: Tensor) -> Tensor:
        u = (x - centre) / width
        v = u.asinh()
        z, slope = v / (1 + v**2) ** 0.25, (1 + v**2 / 2) / (1 + v**2) ** 1.25
        return (-z.square() / 2 / (1 + sum(s**2 for s in level)) + slope.log() - (1 + u.square()).log() / 2).sum(1)

    x = (10 * torch.randn(50, 2, generator=seeded())).double().requires_grad_()
    (expected,) = torch.autograd.grad(log_density(x).sum(), x)
    torch.testing.assert_close(net(x, *level), expected, atol=1e-12, rtol=1e-10)


def test_a_heavy_tailed_score_falls_off_as_one_over_x() -> None:
    class Normal(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return -4.0 * z  # exp(-2 z^2), and z^2 is |v| nearly: a tail of |x|^-3, with terms in 1 / log |x|

    net = InCoordinates(Normal(), Compose(Sinh(torch.zeros(1).double(), torch.ones(1).double()), SquareRoot()))
    x = torch.tensor([[1e100], [-1e140]], dtype=torch.float64)
    torch.testing.assert_close(x * net(x), torch.full((2, 1), -3.0).double(), atol=1e-2, rtol=0)


# The U-Net: shapes, descriptions, what a new one is, and training on images.


EVENT, CHANNELS = (1, 8, 8), (4, 8, 8)
SIGMA = torch.tensor([0.05, 0.5, 2.0], dtype=torch.float64)
NETWORKS: dict[str, Any] = {
    "unet": lambda g: UNet(EVENT, CHANNELS, generator=g),
    "softplus": lambda g: UNet(EVENT, CHANNELS, "softplus", generator=g),
}


def images(n: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(n, *EVENT, generator=seeded(seed), dtype=torch.float64)


def awake(net: Any) -> Any:
    """Return a network whose last layer is not 0."""
    nn.init.normal_(net.last.weight, std=0.3, generator=seeded(5))
    return net.double()


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_keep_shape_and_dtype_and_come_back_from_their_description(name: str) -> None:
    net = awake(NETWORKS[name](seeded()))
    x = images()
    assert (net(x, 0.5).shape, net(x, 0.5).dtype) == (x.shape, torch.float64)
    again = build(describe(net)).double()
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(x, 0.5), net(x, 0.5))
    same, other = (dict(NETWORKS[name](seeded(seed)).named_parameters()) for seed in (0, 1))
    assert all(torch.equal(a, same[key]) for key, a in NETWORKS[name](seeded()).named_parameters())
    assert any(not torch.equal(a, other[key]) for key, a in same.items())


@pytest.mark.parametrize("name", NETWORKS)
def test_a_level_for_all_is_the_same_level_for_each(name: str) -> None:
    net, x = awake(NETWORKS[name](seeded())), images()
    torch.testing.assert_close(net(x, 0.3), net(x, x.new_full((3,), 0.3)), atol=1e-12, rtol=1e-12)
    apart = torch.cat([net(x, float(s))[i : i + 1] for i, s in enumerate(SIGMA)])
    torch.testing.assert_close(net(x, SIGMA), apart, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("event", [(1, 8, 8), (3, 7, 5), (1, 28, 28)])
def test_a_new_network_is_the_score_of_blurred_normal_pixels(event: tuple[int, int, int]) -> None:
    x = torch.randn(3, *event, generator=seeded(), dtype=torch.float64)
    wanted = -x / (1 + SIGMA[:, None, None, None] ** 2)
    torch.testing.assert_close(UNet(event).double()(x, SIGMA), wanted, atol=1e-12, rtol=1e-12)


def test_the_tutorials_network_has_the_size_that_the_tutorial_says() -> None:
    sizes = [sum(p.numel() for p in UNet((1, 28, 28), c).parameters()) for c in ((16, 32, 64, 128), TUTORIAL_CHANNELS)]
    assert sizes[0] < 400_000
    assert 1_000_000 < sizes[1] < 2_000_000


def test_a_unet_is_not_a_gradient_by_construction() -> None:
    net = awake(UNet(EVENT, CHANNELS, generator=seeded()))
    jacobian = torch.func.jacrev(lambda y: net(y[None], 0.5)[0].flatten())(images()[0]).reshape(64, 64)
    assert (jacobian - jacobian.mT).abs().max() > 1e-3


def test_images_of_another_shape_raise_errors() -> None:
    with pytest.raises(ValueError, match=r"\(channel, row, column\)"):
        UNet((64,))


def test_fit_score_trains_a_unet_on_images_and_resumes_to_the_same_weights(tmp_path: Path) -> None:
    x, loss = images(64).float(), MultilevelDenoising(0.05, 10.0)
    recipe = Recipe(4, batch=16, check_every=2, patience=None)

    def fitted(steps: Recipe, **options: Any) -> Any:
        net = UNet(EVENT, CHANNELS, generator=seeded())
        return fit_score(x, loss, net, standardize=False, recipe=steps, generator=seeded(2), **options)

    whole = fitted(recipe)
    assert whole.noise_range == (0.05, 10.0)
    assert whole.at(1.0).score(x[:3]).shape == (3, *EVENT)
    assert whole.level_score(x[:2], 1.0)[1].shape == (2,)
    resumed = fitted(recipe, checkpoint=tmp_path / "checkpoint")
    assert all(torch.equal(a, b) for a, b in zip(whole.net.parameters(), resumed.net.parameters(), strict=True))


# The forms of a learned acceptance, and the rule that they make.


@pytest.mark.parametrize("standardized", [False, True])
def test_the_closed_form_of_a_potentials_gradient_is_its_gradient(*, standardized: bool) -> None:
    """And so is what the weights see of it; a network without one is differentiated."""
    mlp = shaken(PotentialMLP(2, hidden=8, layers=3)).double()
    standard = Affine.whitening(MIXTURE.sample(100, generator=seeded()).double())
    inside = InputsInCoordinates(mlp, standard) if standardized else mlp
    x = MIXTURE.sample(20, generator=seeded(1)).double()
    weight = torch.randn(20, 2, generator=seeded()).double()
    answers = []
    for net in (Potential(inside), Potential(nn.Sequential(inside))):
        mlp.zero_grad()
        phi, gradient = net.value_and_gradient(x)
        ((weight * gradient).sum() + phi.sin().sum()).backward()
        answers.append([phi, gradient, *(p.grad for p in mlp.parameters())])
    for closed, differentiated in zip(*answers, strict=True):
        torch.testing.assert_close(closed, differentiated)


@pytest.mark.parametrize("name", ["rw", "mala-full", "pcn-scaled"])
def test_the_terms_of_the_proposal_cancel_for_a_potential(name: str) -> None:
    """Its loss is that of the acceptance it stands for, computed the long way."""
    net, proposal = made("potential"), PROPOSALS[name]

    class Long(nn.Module):
        def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
            x, y = (Point.at(z, known(MIXTURE), proposal.needs) for z in (current, proposed))
            return logsigmoid(net.log_ratio(x, y, proposal=proposal))

    x, y = (MIXTURE.sample(50, generator=seeded(i)) for i in range(2))
    short, long = (
        BalanceMatching(entropy=1.0).between(n, known(MIXTURE), proposal, leaf(x, known(MIXTURE), proposal), y)
        for n in (net, Long())
    )
    for term in short:
        torch.testing.assert_close(short[term], long[term], atol=1e-9, rtol=1e-9)


def test_forms_are_what_they_say() -> None:
    x, y = (MIXTURE.sample(50, generator=seeded(i)) for i in range(2))
    net, walk = made("antisymmetric"), RandomWalk(1.0)
    ratio = net.log_ratio(Point(x), Point(y), proposal=walk)
    torch.testing.assert_close(ratio, -net.log_ratio(Point(y), Point(x), proposal=walk))
    torch.testing.assert_close(net(y, x), logsigmoid(ratio))
    forth, back = net.log_accepts(Point(x), Point(y), proposal=walk)
    torch.testing.assert_close(forth - back, ratio)
    torch.testing.assert_close(forth.exp() + back.exp(), torch.ones(50, dtype=torch.float64))
    free = made("free")
    torch.testing.assert_close(free.log_accepts(Point(x), Point(y), proposal=walk), (free(y, x), free(x, y)))


@pytest.mark.parametrize("form", ["free", "antisymmetric"])
@pytest.mark.parametrize(
    ("trained", "other"),
    [
        (RandomWalk(1.0), RandomWalk(1.1)),
        (RandomWalk(1.0), MALA(0.5)),
        (MALA(0.2), MALA(0.25)),
        (PCN(0.5), PCN(0.5, mean=0.1)),
        (RandomWalk(0.7, covariance=COVARIANCE), RandomWalk(0.7, covariance=COVARIANCE + torch.eye(2).double())),
    ],
    ids=str,
)
def test_an_acceptance_serves_its_own_proposal_only(form: Any, trained: Proposal, other: Proposal) -> None:
    rule = Learned(fitted(form, trained, recipe=Recipe(steps=1, batch=8, check_every=1)))
    metropolis_hastings(GAUSSIAN, trained, rule)
    text = r"for which this acceptance was learned, got .*use form=\"potential\", which is valid for every"
    with pytest.raises(ValueError, match=text):
        metropolis_hastings(GAUSSIAN, other, rule)
    with pytest.raises(ValueError, match=text):
        diagnostics.disagreement(Exact(), rule, target=GAUSSIAN, proposal=other, x=X)


def test_a_potential_serves_all_and_is_evaluated_once_per_candidate() -> None:
    fit = fitted("potential")
    counted = Counting(fit.net.net.forward)
    fit.net.net.forward = counted
    for proposal in PROPOSALS.values():
        counted.rows = 0
        kernel = metropolis_hastings(Target(GAUSSIAN.score), proposal, Learned(fit, "metropolis"))
        sample(kernel, X[:10], draws=7, generator=seeded())
        assert counted.rows == 10 + 7 * 10


def test_learned_says_what_its_network_says() -> None:
    free, x, y = made("free"), X, X.roll(1, 0)
    points, target, walk = (Point(x), Point(y)), Target(GAUSSIAN.score), RandomWalk(1.0)

    def log_accept(net: nn.Module, balance: Any) -> Tensor:
        return Learned(net, balance).log_accept(*points, target=target, proposal=walk)

    torch.testing.assert_close(log_accept(free, "direct"), free(y, x))
    ratio = free(y, x) - free(x, y)
    torch.testing.assert_close(log_accept(free, "metropolis"), ratio.clamp(max=0))
    torch.testing.assert_close(log_accept(free, "barker"), logsigmoid(ratio))
    for form in ("antisymmetric", "potential"):
        torch.testing.assert_close(log_accept(made(form), "direct"), log_accept(made(form), "barker"))
    potential = made("potential")
    torch.testing.assert_close(log_accept(potential, "metropolis"), (potential(y) - potential(x)).clamp(max=0))
    assert metropolis_hastings(target, walk, Learned(free)).target_rate == 0.159
    assert metropolis_hastings(target, walk, Learned(free, "metropolis")).target_rate == 0.234


def test_a_potential_is_evaluated_where_points_know_another_density() -> None:
    """What a point carries is the target's own log density unless the kernel took it from the rule."""
    phi, walk, exact = made("potential"), RandomWalk(1.0), known(GAUSSIAN)
    points = [Point.at(x, exact, frozenset({"log_density"})) for x in (X, X.roll(1, 0))]
    rule = Learned(phi, "metropolis")
    ratio = rule.log_ratio(points[0], points[1], target=exact, proposal=walk)
    torch.testing.assert_close(ratio, phi(X.roll(1, 0)) - phi(X))
    informed = rule.informed(exact)
    points = [Point.at(x, informed, frozenset({"log_density"})) for x in (X, X.roll(1, 0))]
    counted = Counting(phi.net.forward)
    phi.net.forward = counted
    torch.testing.assert_close(rule.log_ratio(points[0], points[1], target=informed, proposal=walk), ratio)
    assert counted.calls == 0


def test_two_networks_have_two_names() -> None:
    first, second = (Learned(Free(AcceptanceMLP(2, 8, 1, generator=seeded(i))), "metropolis") for i in range(2))
    assert repr(first) != repr(second)
    assert repr(first).startswith("Learned(<Free ")
    assert "balance='metropolis'" in repr(first)


def test_standard_inputs_change_coordinates_only() -> None:
    inside = AcceptanceMLP(2, 8, 1).double()
    net = InputsInCoordinates(inside, Affine.whitening(3 + 5 * X))
    u = net.coordinates.inverse(3 + 5 * X)
    torch.testing.assert_close(u.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(net(3 + 5 * X, 3 + 5 * X), inside(u, u))
    torch.testing.assert_close(net.logit(3 + 5 * X, 3 + 5 * X), inside.logit(u, u))
    spec = networks.describe(Antisymmetric(net))
    assert networks.describe(networks.build(spec)) == spec


@pytest.mark.parametrize("unit", [1.0, 1e-5])
def test_an_acceptance_rejects_what_differs_by_its_step_or_by_its_drift_alone(unit: float) -> None:
    x, law = unit * X, Target(lambda x: -x / unit**2)
    short: Any = {"form": "free", "recipe": Recipe(steps=1, batch=8, check_every=1)}
    h = 0.1 * unit**2
    pairs: list[tuple[Proposal, Proposal]] = [(Box(0.3 * unit), Box(0.6 * unit)), (MALA(h), RandomWalk((2 * h) ** 0.5))]
    for made_for, another in pairs:
        rule = Learned(fit_acceptance(law, made_for, x, **short))
        metropolis_hastings(law, made_for, rule)
        with pytest.raises(ValueError, match="for which this acceptance was learned"):
            metropolis_hastings(law, another, rule)


@pytest.mark.parametrize("form", ["free", "antisymmetric"])
def test_with_another_score_mala_is_another_proposal(form: Any) -> None:
    short = Recipe(steps=1, batch=8, check_every=1)
    another = Target(lambda x: 1.01 * GAUSSIAN.score(x))
    rule = Learned(fit_acceptance(GAUSSIAN, MALA(0.2), X, form=form, recipe=short))
    metropolis_hastings(Target(GAUSSIAN.score), MALA(0.2), rule)
    text = r"expected MALA\(step_size=0.2\), for which .* learned, got MALA\(step_size=0.2\) with another step or sc"
    with pytest.raises(ValueError, match=text):
        metropolis_hastings(another, MALA(0.2), rule)
    with pytest.raises(ValueError, match=text):
        diagnostics.balance_residual(rule.net, another, MALA(0.2), X)
    with pytest.raises(ValueError, match="expected a target with a score, which MALA"):
        metropolis_hastings(Target(log_density=GAUSSIAN.log_density), MALA(0.2), rule)
    walk = Learned(fit_acceptance(GAUSSIAN, RandomWalk(0.5), X, form=form, recipe=short))
    metropolis_hastings(another, RandomWalk(0.5), walk)  # needs no score


def test_learned_takes_acceptances_only() -> None:
    score = fit_score(X, recipe=Recipe(steps=1, check_every=1))
    with pytest.raises(TypeError, match="an acceptance network"):
        Learned(score)
    with pytest.raises(TypeError, match="a network for an acceptance"):
        diagnostics.balance_residual(score, GAUSSIAN, RandomWalk(1.0), X)
    assert repr(Learned(made("free").bfloat16())).startswith("Learned(<Free ")


def test_an_acceptance_in_low_precision_knows_its_proposal() -> None:
    fit = fitted("free")
    fit.net.bfloat16()
    metropolis_hastings(NORMAL, RandomWalk(1.0), Learned(fit))
    with pytest.raises(ValueError, match="for which this acceptance was learned"):
        metropolis_hastings(NORMAL, RandomWalk(1.3), Learned(fit))


class Halved(Antisymmetric):
    """A fourth form, half as willing as Barker's rule: its ratio is that of an antisymmetric network."""

    def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
        return super().forward(proposed, current) - math.log(2)

    def log_accepts(self, current: Point, proposed: Point, *, proposal: Proposal) -> tuple[Tensor, Tensor]:
        forth, back = super().log_accepts(current, proposed, proposal=proposal)
        return forth - math.log(2), back - math.log(2)


@pytest.mark.slow
def test_a_fourth_form_is_a_class_and_a_default_loss(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No other code changes: planning, training, files, rules and diagnostics use the class.

    It takes the name of another, since names are checked as types under pytest.
    """
    direct = fitted("antisymmetric")
    monkeypatch.setitem(networks.FORMS, "antisymmetric", Halved)
    fit = fitted("antisymmetric", checkpoint=tmp_path / "checkpoint")
    assert repr(fit).startswith("halved acceptance by BalanceMatching(")
    fit.save(tmp_path / "fit")
    rule = Learned(AcceptanceFit.load(tmp_path / "fit"))
    chains = sample(metropolis_hastings(GAUSSIAN, RandomWalk(1.0), rule), X, draws=5, generator=seeded())
    assert 0 < chains.acceptance_rate < 0.5
    with pytest.raises(ValueError, match="for which this acceptance was learned"):
        metropolis_hastings(GAUSSIAN, RandomWalk(2.0), rule)
    found = diagnostics.balance_residual(fit, GAUSSIAN, RandomWalk(1.0), X, generator=seeded())
    expected = diagnostics.balance_residual(direct, GAUSSIAN, RandomWalk(1.0), X, generator=seeded())
    assert found.integral.rms == pytest.approx(expected.integral.rms, rel=0.2)  # the scale of a does not matter
    with pytest.raises(ValueError, match='entropy and scale with form="free" only'):
        fitted("antisymmetric", matching=BalanceMatching(scale=1.0))


def test_a_form_is_complete() -> None:
    """What a new form has to say: the class says all but its name and default loss, which are in one table each."""
    assert set(FORMS) == set(MATCHING)
    x = torch.randn(12, 2, generator=seeded())
    for form in FORMS.values():
        made = form(form.network((2,), generator=seeded()))
        answer = made(*made.inputs(x))
        made.require_answer(answer)
        assert answer.shape == (12,)
        assert (made.potential is None) == form.one_proposal
        assert made.call in ("net(x)", "net(proposed, current)")
