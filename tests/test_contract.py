"""What holds for every part: shapes, dtypes, generators, independence of chains, and what happens to bad numbers."""

import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise, product
from typing import Any

import pytest
import torch
import torch._dynamo  # by the first optimiser otherwise, and its import names the global generator
from torch import Tensor, nn

import scoremh
from scoremh import (
    MALA,
    PCN,
    Always,
    DegenerateRuleWarning,
    Exact,
    Learned,
    LineIntegral,
    Point,
    RandomWalk,
    Recipe,
    Target,
    Taylor,
    acceptance,
    fit_acceptance,
    fit_score,
    metropolis_hastings,
    proposals,
    sample,
    targets,
)
from scoremh._shared import rng
from scoremh.acceptance import Rule
from scoremh.networks import FORMS, AcceptanceMLP, NoiseConditionalMLP, PotentialMLP, ScoreMLP
from scoremh.types import Kernel, Proposal
from tests.cases import EXACT_ON_GAUSSIAN, GAUSSIAN, PROPOSALS, RANDOMIZED, RULES, TARGETS, THROUGH_NOISE, f64, seeded


def public_classes(module: Any) -> set[type]:
    found = inspect.getmembers(module, inspect.isclass)
    return {
        c
        for name, c in found
        if c.__module__.startswith(module.__name__) and not name.startswith("_") and not inspect.isabstract(c)
    }


def test_every_proposal_and_rule_is_in_the_lists() -> None:
    assert public_classes(proposals) - {proposals.Preconditioned} == {type(p) for p in PROPOSALS.values()}
    assert public_classes(acceptance) - {acceptance.Decision} == {type(r) for r in (RULES | THROUGH_NOISE).values()}
    made = {targets.Box, targets.Likelihood, targets.LinearObservation, targets.Posterior, targets.Product}
    assert {type(t) for t in TARGETS.values()} == public_classes(targets) - made


def test_all_names_are_there() -> None:
    assert sorted(scoremh.__all__) == sorted(set(scoremh.__all__))
    for name in scoremh.__all__:
        assert getattr(scoremh, name) is not None


def build(rule: Rule, proposal: Proposal, event: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Kernel:
    """Return a kernel for a standard normal over events of any shape."""
    target = Target(score=lambda x: -x, log_density=lambda x: -x.flatten(1).square().sum(1) / 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateRuleWarning)
        return metropolis_hastings(target, proposal, rule)


PLAIN = {"rw": RandomWalk(0.3), "mala": MALA(0.05), "pcn": PCN(0.3)}


DTYPES = torch.float32, torch.float64, torch.bfloat16
SHAPES = [
    *product(PLAIN, RULES, [(1, 8, 8)], [torch.float32]),
    *product(["mala"], ["simpson", "exact-integral", "exact", "learned-free"], [(2,), (1, 8, 8)], DTYPES),
    *product(["mala"], RULES, [(2,)], [torch.bfloat16]),
]


@pytest.mark.parametrize(("proposal", "rule", "event", "dtype"), dict.fromkeys(SHAPES), ids=str)
def test_shapes_and_dtypes(proposal: str, rule: str, event: tuple[int, ...], dtype: torch.dtype) -> None:
    kernel = build(RULES[rule], PLAIN[proposal], event)
    x = torch.zeros(5, *event, dtype=dtype)
    point, move = kernel.step(kernel.init(x), generator=seeded())
    assert point.x.shape == move.proposed.shape == (5, *event)
    assert point.x.dtype == move.proposed.dtype == move.log_accept.dtype == dtype
    assert move.accepted.shape == move.log_accept.shape == (5,)
    assert bool((move.log_accept <= 0).all())
    chains = sample(kernel, x, draws=3, generator=seeded())
    assert chains.draws.shape == (5, 3, *event)
    assert chains.draws.dtype == dtype


@pytest.mark.parametrize(
    ("proposal", "rule"), [*product(["mala"], RULES), *product(["rw", "pcn"], ["simpson", "exact-integral"])]
)
def test_same_seed_same_bits_and_the_global_generator_is_untouched(proposal: str, rule: str) -> None:
    kernel = build(RULES[rule], PLAIN[proposal], (2,))
    before = torch.random.get_rng_state()
    first, second, other = (
        sample(kernel, torch.zeros(4, 2), draws=20, generator=seeded(seed)).draws for seed in (1, 1, 2)
    )
    sample(kernel, torch.zeros(4, 2), draws=2)
    kernel.step(kernel.init(torch.zeros(4, 2)))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.random.get_rng_state())


def test_without_a_generator_runs_differ() -> None:
    kernel = build(Exact(), RandomWalk(0.3), (2,))
    first, second = (sample(kernel, torch.zeros(4, 2), draws=5).draws for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("proposal", "rule"),
    [
        *product(["mala-full"], [name for name in (*EXACT_ON_GAUSSIAN, "always") if name not in RANDOMIZED]),
        *product(["rw-full", "mala", "pcn-scaled"], ["simpson", "lobatto"]),
    ],
)
def test_permuting_chains_permutes_results(proposal: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permuted starts with equally permuted noise give permuted results: no chain sees another."""
    law, g, chains, steps = TARGETS["mixture"], seeded(), 30, 4
    x, order = law.sample(chains, generator=g), torch.randperm(chains, generator=g)
    noise = torch.randn(steps, chains, 2, dtype=torch.float64, generator=g)
    log_uniform = torch.rand(steps, chains, dtype=torch.float64, generator=g).log()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateRuleWarning)
        kernel = metropolis_hastings(law, PROPOSALS[proposal], RULES[rule])
    results = []
    for rows in (torch.arange(chains), order):
        point = kernel.init(x[rows])
        for i in range(steps):
            monkeypatch.setattr(rng, "normal", lambda *_, i=i, rows=rows: noise[i][rows])
            monkeypatch.setattr(rng, "log_uniform", lambda *_, i=i, rows=rows: log_uniform[i][rows])
            point, _ = kernel.step(point)
        results.append(point.x)
    torch.testing.assert_close(results[0][order], results[1], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("rule", [LineIntegral(), Always(), Exact()], ids=repr)
def test_blocks_and_threads_do_not_change_the_draws(rule: Rule) -> None:
    law = TARGETS["mixture"]
    kernel = metropolis_hastings(law, MALA(0.3), rule)
    x = law.sample(2300, generator=seeded())
    torch_threads = torch.get_num_threads()
    runs = [
        sample(kernel, x, draws=7, thin=2, generator=seeded(1), pool=pool)
        for pool in (None, *map(ThreadPoolExecutor, (1, 2, 3)))
    ]
    for run in runs[1:]:
        assert torch.equal(runs[0].draws, run.draws)
        assert torch.equal(runs[0].accepted, run.accepted)
        assert runs[0].score_calls == run.score_calls
    assert torch.get_num_threads() == torch_threads


class Spoiled:
    """A score of N(0, I) that breaks for chains to the right of a line, and records where it was evaluated."""

    def __init__(self, value: float, edge: float = 1.0) -> None:
        self.value, self.edge, self.asked = value, edge, 0

    def __call__(self, x: Tensor) -> Tensor:
        self.asked += len(x)
        return torch.where(x[:, :1] > self.edge, self.value, -x)


SCORED = [rule for rule in RULES if not rule.startswith(("exact", "always", "learned"))]  # whatever the proposal
BROKEN = [
    *product(["mala"], [rule for rule in RULES if not rule.startswith("exact")], [math.nan]),
    *product(["mala"], ["simpson", "lobatto", "always"], [math.inf, -math.inf]),
    *product(["rw"], SCORED, [math.inf]),
    *product(["pcn"], SCORED, [-math.inf]),
]


@pytest.mark.parametrize(("proposal", "rule", "value"), BROKEN)
def test_a_broken_score_leaves_chains_where_they_were(proposal: str, rule: str, value: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateRuleWarning)
        kernel = metropolis_hastings(Target(score=Spoiled(value)), PLAIN[proposal], RULES[rule])
        clean = metropolis_hastings(Target(score=lambda x: -x), PLAIN[proposal], RULES[rule])
    x = torch.linspace(-2, 0.99, 60, dtype=torch.float64)[:, None].repeat(1, 2)
    broken, whole = (sample(k, x, draws=40, generator=seeded()) for k in (kernel, clean))
    assert broken.draws.isfinite().all()
    hurt = broken.nonfinite.any(1)
    assert hurt.any()
    assert not hurt.all()
    assert torch.equal(broken.draws[~hurt], whole.draws[~hurt])  # the others are untouched
    moved = broken.draws.diff(dim=1).flatten(2).any(2)
    assert not moved[broken.nonfinite[:, 1:] > 0].any()  # and these stayed
    assert torch.equal(
        broken.accepted + broken.rejected + broken.nonfinite + broken.outside, torch.ones(60, 40, dtype=torch.int32)
    )


def test_a_ratio_of_plus_infinity_is_not_accepted() -> None:
    """Crossing the strip to the right passes a score of +inf between two good ones; elsewhere the score is NaN."""

    def score(x: Tensor) -> Tensor:
        first = x[:, :1]
        strip = (first > 0.4) & (first < 0.6)
        return torch.where(strip, math.inf, torch.where(first < -1, math.nan, -x))

    x = torch.linspace(-0.9, 0.39, 200, dtype=torch.float64)[:, None]
    kernel = metropolis_hastings(Target(score=score), MALA(0.2), LineIntegral("gauss"))
    chains = sample(kernel, x, draws=20, generator=seeded())
    path = torch.cat([x[:, None], chains.draws], 1)
    assert chains.nonfinite.sum() > 200
    assert not path.diff(dim=1)[chains.nonfinite > 0].any()
    midpoint = path.diff(dim=1) / 2 + path[:, :-1]
    crossed = (path[:, :-1] < 0.4) & (path[:, 1:] > 0.6) & (midpoint > 0.4) & (midpoint < 0.6)
    assert not crossed.any()


@pytest.mark.parametrize("rule", [Always(), LineIntegral(), LineIntegral("exact"), Exact()], ids=repr)
def test_a_chain_that_starts_on_a_broken_score_stays_and_is_counted(rule: Rule) -> None:
    target = Target(score=Spoiled(math.nan), log_density=lambda x: -x.square().sum(1) / 2)
    x = f64([0.0, 0.0], [5.0, 0.0])
    chains = sample(metropolis_hastings(target, MALA(0.01), rule), x, draws=10, generator=seeded())
    assert torch.equal(chains.draws[1], x[1].expand(10, 2))
    assert chains.nonfinite[1].sum() == 10
    assert chains.nonfinite[0].sum() == 0
    assert chains.accepted[0].sum() > 0


@pytest.mark.parametrize("rule", ["simpson", "gauss", "lobatto", "exact", "always", "taylor-2"])
@pytest.mark.parametrize("proposal", PLAIN)
def test_outside_the_support_the_score_is_not_evaluated(proposal: str, rule: str) -> None:
    asked: list[Tensor] = []

    def score(x: Tensor) -> Tensor:
        asked.append(x)
        return -x

    wide = {"rw": RandomWalk(2.0), "mala": MALA(0.8), "pcn": PCN(0.9)}[proposal]
    target = Target(score, lambda x: -x.square().sum(1) / 2, targets.box(-1.0, 1.0))
    kernel = metropolis_hastings(target, wide, RULES[rule])
    chains = sample(kernel, torch.zeros(50, 2, dtype=torch.float64), draws=20, generator=seeded())
    assert chains.outside.sum() > 100
    assert chains.nonfinite.sum() == 0
    assert chains.draws.abs().max() <= 1
    assert all(bool((x.abs() <= 1).all()) for x in asked)  # a box is convex: inner nodes stay inside as well
    # every evaluation is counted, no more and no less
    assert chains.score_calls == sum(len(x) for x in asked)


def test_a_truncated_law_is_sampled_within_its_box(generator: torch.Generator) -> None:
    """N(0, I) on [-1, 1]^2 by rejection, against the kernel's stationarity from those draws."""
    law = targets.truncate(targets.Gaussian(f64(0.0, 0.0)), targets.box(-1.0, 1.0))

    class Truncated:
        def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
            x = targets.Gaussian(f64(0.0, 0.0)).sample(4 * n, generator=generator)
            return x[(x.abs() <= 1).all(1)][:n]

    kernel = metropolis_hastings(law, MALA(0.1), LineIntegral())
    verdict = scoremh.diagnostics.stationarity(kernel, Truncated(), chains=5000, generator=generator)
    assert verdict.p_value > 1e-4, verdict


def counting(law: Any) -> tuple[Target, list[int]]:
    calls: list[int] = []

    def score(x: Tensor) -> Tensor:
        calls.append(len(x))
        answer: Tensor = law.score(x)
        return answer

    return Target(score, law.log_density), calls


@pytest.mark.parametrize(
    ("proposal", "rule", "per_step"),
    [
        (MALA(0.2), Always(), 1),
        (MALA(0.2), Exact(), 1),
        (MALA(0.2), LineIntegral(), 2),
        (MALA(0.2), LineIntegral("gauss"), 4),
        (MALA(0.2, covariance=f64(1.0, 2.0)), LineIntegral(), 2),
        (RandomWalk(0.5), Exact(), 0),
        (RandomWalk(0.5), Taylor(1), 1),
        (RandomWalk(0.5), LineIntegral("trapezoid"), 1),
        (RandomWalk(0.5), LineIntegral(), 2),
        (RandomWalk(0.5), LineIntegral("gauss"), 3),
        (RandomWalk(0.5), Taylor(2), 2),
        (RandomWalk(0.5), Taylor(2, average=True), 3),
    ],
    ids=str,
)
def test_no_score_is_computed_twice_or_for_nothing(proposal: Proposal, rule: Rule, per_step: int) -> None:
    target, calls = counting(GAUSSIAN)
    kernel = metropolis_hastings(target, proposal, rule)
    chains = sample(kernel, torch.zeros(6, 2, dtype=torch.float64), draws=10)
    at_start = 6 if "score" in proposal.needs | rule.needs else 0
    assert sum(calls) == chains.score_calls == at_start + 10 * 6 * per_step


def test_inner_nodes_go_in_one_call() -> None:
    target, calls = counting(GAUSSIAN)
    rule = LineIntegral("gauss", nodes=5)
    kernel = metropolis_hastings(target, RandomWalk(0.5), rule)
    kernel.step(kernel.init(torch.zeros(6, 2, dtype=torch.float64)))
    assert calls == [30]


@pytest.mark.parametrize(("chains", "per_step"), [(7, 1), (2000, 2)])
def test_the_tight_loop_calls_the_score_once_a_step_and_twice_for_many_chains(chains: int, per_step: int) -> None:
    target, calls = counting(GAUSSIAN)
    kernel = metropolis_hastings(target, MALA(0.2), LineIntegral())
    assert kernel.run is not None
    kernel.run(kernel.init(torch.zeros(chains, 2, dtype=torch.float64)), 5, generator=seeded())
    assert len(calls) == 1 + 5 * per_step
    assert sum(calls) == chains * (1 + 5 * 2)


def test_init_keeps_its_own_copy() -> None:
    x = torch.zeros(3, 2)
    kernel = metropolis_hastings(Target(score=lambda x: -x), MALA(0.1), Always())
    point = kernel.init(x)
    x += 1
    assert torch.equal(point.x, torch.zeros(3, 2))


def test_a_kernel_of_ones_own_can_be_sampled(generator: torch.Generator) -> None:
    kernel = metropolis_hastings(Target(score=lambda x: -x), MALA(0.1), LineIntegral())
    chains = sample(Kernel(kernel.init, kernel.step), torch.zeros(3, 2), draws=5, generator=generator)
    assert chains.draws.shape == (3, 5, 2)


def test_draws_are_ordinary_tensors(generator: torch.Generator) -> None:
    """Sampling runs under inference mode; what it returns can go into autograd again."""
    kernel = metropolis_hastings(Target(score=lambda x: -x), MALA(0.1), LineIntegral())
    chains = sample(kernel, torch.zeros(3, 2), draws=5, generator=generator)
    weight = torch.ones(2, requires_grad=True)
    (chains.draws * weight).sum().backward()
    assert weight.grad is not None
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_needs_name_fields_of_a_point() -> None:
    needs = [proposal.needs for proposal in PROPOSALS.values()] + [rule.needs for rule in RULES.values()]
    for part in needs:
        assert part <= {*Point._fields[1:], "inner_score"}


@pytest.mark.parametrize("rule", [LineIntegral(), LineIntegral("gauss"), Always()], ids=repr)
def test_a_score_may_return_any_memory_layout(rule: Any) -> None:
    def score(x: torch.Tensor) -> torch.Tensor:
        return (-x).to(memory_format=torch.channels_last)

    x = torch.randn(5, 3, 4, 4, generator=seeded())
    runs = [
        sample(
            metropolis_hastings(Target(score=f), MALA(0.1), rule),
            x,
            draws=6,
            generator=seeded(1),
        ).draws
        for f in (score, lambda x: -x)
    ]
    torch.testing.assert_close(*runs)


# torch's global generator: not used by our networks, their training and sampling; forked for layers that draw from it.
#
# A state that is the same afterwards may have been forked, and a fork that fails may have been no fork: both are
# tested.


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
    "random walk": kernels(RandomWalk(0.5), LineIntegral("exact")),
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
