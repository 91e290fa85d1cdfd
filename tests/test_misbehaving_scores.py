"""Scores that misbehave, in every kernel: chains stay finite, counts are right, the summary says it, errors name it."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from scoremh import (
    MALA,
    Always,
    LineIntegral,
    RandomWalk,
    Target,
    diagnostics,
    hamiltonian,
    metropolis_hastings,
    networks,
    sample,
)
from scoremh.types import Kernel
from tests.cases import PROPOSALS, RULES
from tests.deadly_scores import NotFinite
from tests.pool_cases import OF_A_SCORE, RECORDS, assert_same

CHAINS, DRAWS = 6, 4
WRONG_NUMBERS = {"nan": math.nan, "inf": math.inf, "minus inf": -math.inf, "1e300": 1e300}
SCORED = ("simpson", "simpson-barker", "gauss", "adaptive", "exact-integral", "taylor-1", "taylor-2")
pytestmark = pytest.mark.filterwarnings("ignore::scoremh.kernel.metropolis.DegenerateRuleWarning")

MAKERS: dict[str, Callable[[Any], Kernel]] = {
    f"{proposal}, {rule}": lambda score, p=PROPOSALS[proposal], r=RULES[rule]: metropolis_hastings(Target(score), p, r)
    for proposal in ("rw", "mala", "mala-full", "pcn", "student", "barker")
    for rule in [*SCORED, *["always"] * (proposal in ("mala", "mala-full", "barker"))]
} | {
    f"hamiltonian, {rule}": lambda score, r=rule: hamiltonian(Target(score), 0.3, 3, r)  # type: ignore[misc]
    for rule in (LineIntegral(), Always())
}


class Misbehaving:
    """A standard normal's score that answers rightly once, and then wrongly.

    Args:
        wrong: From a right answer to a wrong one.
        where: Of which points: some chains, a region, or all.
    """

    def __init__(self, wrong: Callable[[Tensor], Any], where: str = "all") -> None:
        self.wrong, self.where, self.calls = wrong, where, 0

    def __call__(self, x: Tensor) -> Any:
        self.calls += 1
        right = -x
        if self.calls == 1:
            return right
        if self.where == "all":
            return self.wrong(right)
        rows = torch.arange(len(x)) % CHAINS < 2 if self.where == "some" else x[:, 0] > 0.5
        return torch.where(rows[:, None], self.wrong(right), right)


def run(kernel: Kernel, **options: Any) -> Any:
    g = torch.Generator().manual_seed(1)
    return sample(kernel, torch.zeros(CHAINS, 2, dtype=torch.float64), draws=DRAWS, generator=g, **options)


@pytest.mark.parametrize("kernel", MAKERS)
def test_numbers_that_are_not_finite_are_counted_and_never_reached(kernel: str) -> None:
    met = 0
    for number in WRONG_NUMBERS.values():
        for where in ("all", "some", "region"):
            made = MAKERS[kernel](Misbehaving(partial(torch.full_like, fill_value=number), where))
            chains = run(made, thin=2)
            assert chains.draws.isfinite().all()
            assert (chains.rejected >= 0).all()
            assert (chains.draws.diff(dim=1).any(2) <= (chains.accepted[:, 1:] > 0)).all()
            if chains.nonfinite.any():
                met += 1
                assert f"{int(chains.nonfinite.sum())} diverging" in repr(chains)
    assert met >= 3, "the summary never named what happened"


@pytest.mark.slow
@pytest.mark.parametrize("number", [math.nan, 1e30], ids=str)
@pytest.mark.parametrize("name", OF_A_SCORE)
@pytest.mark.parametrize("pool", [ThreadPoolExecutor(2), 2], ids=["threads", "processes"])
def test_numbers_that_are_not_finite_are_the_same_in_every_pool(pool: Any, name: str, number: float) -> None:
    found = OF_A_SCORE[name](pool, None, NotFinite(number))
    assert found[0].isfinite().all()  # type: ignore[union-attr]
    assert name != "sample" or found[RECORDS.index("nonfinite")].any()  # type: ignore[union-attr]
    assert_same(found, OF_A_SCORE[name](None, None, NotFinite(number)))


@pytest.mark.parametrize("kernel", MAKERS)
def test_answers_of_another_kind_are_refused_at_any_call(kernel: str) -> None:
    for wrong in (lambda s: s.float(), lambda s: s[:, :1], lambda s: s[:1], lambda s: s.numpy(), lambda s: None):
        with pytest.raises((TypeError, ValueError), match=r"expected score\(x\) to be a float64 tensor of shape"):
            run(MAKERS[kernel](Misbehaving(wrong)))


@pytest.mark.parametrize("kernel", MAKERS)
def test_an_exception_of_the_score_comes_through(kernel: str) -> None:
    def wrong(right: Tensor) -> Tensor:
        raise ZeroDivisionError("of the user's")

    with pytest.raises(ZeroDivisionError, match="of the user's"):
        run(MAKERS[kernel](Misbehaving(wrong)))


def test_the_summary_says_what_was_not_finite() -> None:
    kernel = MAKERS["mala, simpson"](Misbehaving(lambda right: torch.full_like(right, math.nan), "region"))
    chains = run(kernel)
    assert diagnostics.summary(chains).diverging == int(chains.nonfinite.sum()) > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", [LineIntegral(), LineIntegral("adaptive"), LineIntegral("exact"), Always()], ids=repr)
def test_networks_of_low_precision(dtype: torch.dtype, rule: Any) -> None:
    net = networks.ScoreMLP(2, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_(False)
    kernel = metropolis_hastings(Target(lambda x: net(x) - x), MALA(0.2), rule)
    chains = sample(kernel, torch.zeros(5, 2, dtype=dtype), draws=30, generator=torch.Generator().manual_seed(0))
    assert chains.draws.dtype == dtype
    assert chains.draws.isfinite().all()
    assert chains.acceptance_rate > 0.3
    diagnostics.summary(chains)


@pytest.mark.parametrize("proposal", [RandomWalk(0.5), MALA(0.3)], ids=repr)
@pytest.mark.parametrize(("chains", "draws", "dimension"), [(1, 1, 1), (1, 5, 1), (3, 1, 2), (1, 1, 3)])
def test_one_chain_one_draw_one_dimension(proposal: Any, chains: int, draws: int, dimension: int) -> None:
    kernel = metropolis_hastings(Target(lambda x: -x), proposal, LineIntegral())
    found = sample(kernel, torch.zeros(chains, dimension), draws=draws)
    assert found.draws.shape == (chains, draws, dimension)
    assert 0 <= found.acceptance_rate <= 1
    assert f"{chains} chains x {draws} draws of ({dimension},)" in repr(found)
