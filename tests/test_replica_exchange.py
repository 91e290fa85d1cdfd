"""Replica exchange over noise levels: its stationary distribution, its swaps, the weights it finds, and its store."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from scoremh import (
    MALA,
    Exact,
    LineIntegral,
    RandomWalk,
    annealing,
    metropolis_hastings,
    replica_exchange,
    sample,
    targets,
)
from scoremh.annealing.replica_exchange import Ladder, Replicas, levels_of_equal_rates, round_trips, validated_ladder
from scoremh.diagnostics.stationarity import _directions, _functions, _hotelling
from scoremh.types import Kernel, Point, Trace

MODULE = importlib.import_module("scoremh.annealing.replica_exchange")
WEIGHTS = torch.tensor([0.5, 0.3, 0.2]).double()
MEANS = torch.tensor([[-4.0, 0.0], [4.0, 0.0], [0.0, 6.0]]).double()
COVARIANCES = torch.tensor([[[1.0, 0.3], [0.3, 1.0]], [[0.5, 0.0], [0.0, 2.0]], [[2.0, 0.0], [0.0, 0.5]]]).double()
MIXTURE = targets.GaussianMixture(WEIGHTS, MEANS, COVARIANCES)
LEVELS = annealing.geometric(8.0, 0.5, 5)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def kernel_at(level: float) -> Kernel:
    return metropolis_hastings(MIXTURE.at(level), MALA(0.3 * (1 + level**2)), LineIntegral("gauss", nodes=8))


def walk_at(level: float) -> Kernel:
    """Return a kernel without a fused loop, and with a cached log density in place of a score."""
    return metropolis_hastings(MIXTURE.at(level), RandomWalk(1.0 + level), Exact())._replace(run=None)


def exact_draws(chains: int, generator: torch.Generator) -> list[Tensor]:
    return [MIXTURE.at(level).sample(chains, generator=generator) for level in LEVELS]


def p_value_of_the_ladder(make_kernel: Callable[[float], Kernel], chains: int = 4000) -> float:
    """Return the probability of means that moved so far, over all levels at once, from exact draws of every level."""
    g = seeded(11)
    start = exact_draws(chains, g)
    scales, directions = exact_draws(2000, g), _directions(start[0], g)
    found = replica_exchange(make_kernel, LEVELS, start, model=MIXTURE, draws=6, steps_per_swap=1, nodes=8, generator=g)
    columns = [
        after - before
        for at_start, at_end, scale in zip(start, found.last, scales, strict=True)
        for _, before, after in _functions(at_start, at_end, scale, directions)
    ]
    return _hotelling(torch.stack(columns, 1))[0]


@pytest.mark.parametrize("make_kernel", [kernel_at, walk_at])
def test_the_whole_ladder_is_stationary(make_kernel: Callable[[float], Kernel]) -> None:
    assert p_value_of_the_ladder(make_kernel) > 1e-4


RIGHT_RATIO = Ladder.log_swap_ratio
WRONG_RATIOS: dict[str, Callable[..., Tensor]] = {
    "the wrong sign": lambda *args: -RIGHT_RATIO(*args),
    "always": lambda *args: torch.zeros_like(RIGHT_RATIO(*args)),
    "half of the ratio": lambda *args: RIGHT_RATIO(*args) / 2,
}


@pytest.mark.parametrize("ratio", WRONG_RATIOS.values(), ids=WRONG_RATIOS)
def test_the_same_test_refuses_wrong_swaps(ratio: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ladder, "log_swap_ratio", ratio)
    assert p_value_of_the_ladder(kernel_at) < 1e-6


def test_the_same_test_refuses_kernels_of_another_level() -> None:
    assert p_value_of_the_ladder(lambda level: kernel_at(1.2 * level)) < 1e-6


def test_swaps_are_decided_as_by_the_exact_log_densities() -> None:
    x = torch.stack(exact_draws(300, seeded()))
    upper = torch.tensor([0, 1, 2, 3])
    errors = []
    for nodes in (3, 8):
        found = validated_ladder(kernel_at, LEVELS, x, MIXTURE, 1, nodes).log_swap_ratio(x, upper)
        for i, row in enumerate(found):
            high, low = MIXTURE.at(LEVELS[i]).log_density, MIXTURE.at(LEVELS[i + 1]).log_density
            exact = (high(x[i + 1]) + low(x[i])) - (high(x[i]) + low(x[i + 1]))
            errors.append((nodes, float((row - exact).abs().max())))
    assert max(error for nodes, error in errors if nodes == 3) < 0.1
    assert max(error for nodes, error in errors if nodes == 8) < 1e-4


def test_a_swap_moves_points_and_walkers_together_and_every_pair_has_its_turn() -> None:
    def stay(level: float) -> Kernel:  # nothing moves but by swaps
        def run(point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
            none = torch.zeros(steps, len(point.x))
            return point, Trace(point.x.expand(steps, *point.x.shape), none, none.bool())

        return kernel_at(level)._replace(run=run)

    x = torch.stack(exact_draws(100, seeded()))
    ladder = validated_ladder(stay, LEVELS, x, MIXTURE, 1, 3)
    at, walkers = x, torch.arange(5).repeat(100, 1)
    for turn in range(4):
        at, walkers, accepted, swap_prob, _ = ladder.sweep(at, walkers, turn, seeded(turn))
        for level in range(5):
            torch.testing.assert_close(at[level], x[walkers[:, level], torch.arange(100)], rtol=0, atol=0)
        offered = (swap_prob > 0).any(0).tolist()
        assert offered == [turn % 2 == 0, turn % 2 == 1, turn % 2 == 0, turn % 2 == 1]
        assert not accepted.any()
    assert (walkers != torch.arange(5)).any(0).all()


def test_local_moves_begin_with_the_score_of_their_own_level() -> None:
    seen = []

    def watched(level: float) -> Kernel:
        kernel, target = kernel_at(level), MIXTURE.at(level)

        def run(point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
            torch.testing.assert_close(point.score, target.score(point.x))
            seen.append(level)
            assert kernel.run is not None
            return kernel.run(point, steps, generator=generator)

        return kernel._replace(run=run)

    found = replica_exchange(watched, LEVELS, exact_draws(50, seeded()), model=MIXTURE, draws=5, generator=seeded(1))
    assert len(seen) == 25
    assert min(found.swap_rates) > 0.1


def test_the_weights_of_modes_are_right_where_local_moves_alone_stay() -> None:
    start = MEANS[:1] + 0.1 * torch.randn(500, 2, generator=seeded()).double()

    def shares(x: Tensor) -> Tensor:
        return torch.cdist(x, MEANS).argmin(1).bincount(minlength=3).double() / len(x)

    alone = sample(kernel_at(0.5), start, draws=1, thin=320, generator=seeded(1)).last
    assert float(shares(alone)[0]) > 0.9
    found = replica_exchange(kernel_at, LEVELS, start, model=MIXTURE, draws=60, warmup=20, generator=seeded(1))
    each = torch.stack([shares(found.draws[:, i]) for i in (-30, -1)]).mean(0)
    assert float((each - WEIGHTS).abs().max()) < 0.06  # 4 standard errors of 500 chains
    assert float(found.round_trips.double().mean()) > 1
    assert found.draws.shape == (500, 60, 2)
    assert len(found.acceptance_rates) == 5
    assert all(0.3 < rate < 1 for rate in found.acceptance_rates)


def test_score_calls_are_counted() -> None:
    x = exact_draws(10, seeded())
    options: Any = {"model": MIXTURE, "draws": 2, "warmup": 2, "generator": seeded()}
    found = replica_exchange(walk_at, LEVELS, x, steps_per_swap=1, **options)  # asks for no score but in swaps
    assert found.score_calls == 4 * 10 * 2 * 2 * 3 * (1 + 2)  # sweeps, chains, pairs, ends, nodes, score and divergence


def test_round_trips_are_from_the_lowest_level_up_and_down_again() -> None:
    # level 0 is the highest. Walker 1 begins at the lowest, goes up, and comes back twice; walker 0 once less
    walkers = torch.tensor([[[0, 1], [1, 0], [0, 1], [0, 1], [1, 0], [0, 1]], [[0, 1]] * 6])
    assert round_trips(walkers).tolist() == [3, 0]


def replicas(swap_rates: tuple[float, ...], trips: int) -> Replicas:
    x = torch.zeros(2, 3, 1)
    return Replicas(x, (x[:, 0],) * 2, (1.0, 0.1), swap_rates, (0.5, 0.6), torch.tensor([trips, 0]), 0, 10)


def test_the_summary_says_what_to_change() -> None:
    assert replicas((0.2, 0.6), 1).hints == []
    text = repr(replicas((0.35, 0.7), 0))
    assert "swap rates 0.35 0.70; 0 round trips per chain" in text
    assert "swap rates of 0.35 to 0.70 lie outside 0.2 to 0.6: fewer levels would do" in text
    assert "0.19 to 0.70 lie outside 0.2 to 0.6: add levels" in repr(replicas((0.19, 0.7), 1))
    assert "no walker went" in text
    assert "0.5 round trips per chain" in repr(replicas((0.3,), 1))


def test_levels_are_placed_at_equal_increments_of_the_rejections() -> None:
    levels = [8.0, 4.0, 2.0, 1.0]
    assert levels_of_equal_rates(levels, [0.5, 0.5, 0.5], 4, 0.4) == pytest.approx(levels)
    assert levels_of_equal_rates(levels, [0.8, 0.4, 0.0], 3, 0.4) == pytest.approx(
        [8.0, 2**0.9, 1.0]
    )  # a half of 1.8 is 0.2 + 0.6 + 0.1
    assert len(levels_of_equal_rates(levels, [0.5, 0.3, 0.2], None, 0.5)) == 5  # a barrier of 2 in 4 pairs


@pytest.mark.slow
def test_tuned_levels_swap_at_equal_rates() -> None:
    x = 8 * torch.randn(500, 2, generator=seeded()).double()
    levels = annealing.tune_levels(kernel_at, x, model=MIXTURE, high=16.0, low=0.1, generator=seeded(1))
    assert (levels[0], levels[-1]) == (16.0, 0.1)
    options: Any = {"model": MIXTURE, "draws": 60, "warmup": 30, "generator": seeded(2)}
    tuned = replica_exchange(kernel_at, levels, x, **options)
    plain = replica_exchange(kernel_at, annealing.geometric(16.0, 0.1, len(levels)), x, **options)
    spreads = [max(found.swap_rates) - min(found.swap_rates) for found in (tuned, plain)]
    assert spreads[0] < 0.1 < spreads[1]
    assert 0.35 < min(tuned.swap_rates) < 0.6
    assert tuned.hints == []


def test_a_killed_run_goes_on_and_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(MODULE, "block_size", lambda chains: 20)
    start = 8 * torch.randn(40, 2, generator=seeded()).double()

    class StopError(Exception):
        pass

    def until(limit: int) -> Callable[[float], Kernel]:
        asked = 0

        def stopping(level: float) -> Kernel:
            kernel = kernel_at(level)

            def run(point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
                nonlocal asked
                asked += 1
                if asked > limit:
                    raise StopError
                assert kernel.run is not None
                return kernel.run(point, steps, generator=generator)

            return kernel._replace(run=run)

        return stopping

    options: Any = {"model": MIXTURE, "draws": 5, "warmup": 3}
    whole = replica_exchange(kernel_at, LEVELS, start, generator=seeded(1), **options)
    for limit in (17, 40):  # in the warm-up of the first block, then in the second block
        with pytest.raises(StopError):
            replica_exchange(until(limit), LEVELS, start, generator=seeded(1), store=tmp_path, **options)
    again = replica_exchange(kernel_at, LEVELS, start, generator=seeded(1), store=tmp_path, **options)
    assert torch.equal(whole.draws, again.draws)
    assert all(torch.equal(a, b) for a, b in zip(whole.last, again.last, strict=True))
    assert torch.equal(whole.round_trips, again.round_trips)
    assert (whole.swap_rates, whole.score_calls) == (again.swap_rates, again.score_calls)
    done = replica_exchange(until(0), LEVELS, start, store=tmp_path, **options)  # nothing is left to do
    assert torch.equal(whole.draws, done.draws)
    other = annealing.geometric(9.0, 0.5, 5)
    with pytest.raises(ValueError, match=r"to hold this run, with levels"):
        replica_exchange(kernel_at, other, start, generator=seeded(1), store=tmp_path, **options)
    options["model"] = targets.GaussianMixture(WEIGHTS.flip(0), MEANS, COVARIANCES)
    with pytest.raises(ValueError, match="first step differs"):
        replica_exchange(kernel_at, LEVELS, start, generator=seeded(1), store=tmp_path, **options)


def test_the_same_seed_gives_the_same_draws_in_the_dtype_of_the_start() -> None:
    x = 5 * torch.randn(20, 2, generator=seeded())
    runs = [replica_exchange(kernel_at, LEVELS, x, model=MIXTURE, draws=3, generator=seeded(s)) for s in (1, 1, 2)]
    assert torch.equal(runs[0].draws, runs[1].draws)
    assert not torch.equal(runs[0].draws, runs[2].draws)
    assert runs[0].draws.dtype == torch.float32
    assert not runs[0].last[0].is_inference()


def test_a_ratio_that_is_not_finite_is_a_rejection_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ladder = importlib.import_module("scoremh.annealing.replica_exchange")
    monkeypatch.setattr(ladder, "log_density_change", lambda model, x, *args, **options: x[:, 0] * torch.inf)
    x = exact_draws(10, seeded())
    found = replica_exchange(kernel_at, LEVELS, x, model=MIXTURE, draws=4, generator=seeded())
    assert found.nonfinite == 4 * 10 * 2
    assert found.swap_rates == (0.0,) * 4
    assert "80 swaps had a ratio that is not finite" in repr(found)


class OneLevel(targets.Gaussian):
    """A distribution that knows no noise levels."""

    noise_level = noise_range = None  # type: ignore[assignment]


ZEROS = torch.zeros(3, 2).double()
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a model of one level": ({"model": OneLevel([0.0, 0.0])}, "a score that knows noise levels, got one of one level"),
    "levels that are not known": ({"levels": [1e6, 1.0]}, "levels that the model knows, .* got 1 to 1e"),
    "one level": ({"levels": [1.0]}, r"at least two levels, each below the one before, got \[1.0\]"),
    "the same level twice": ({"levels": [1.0, 1.0]}, "each below the one before"),
    "levels that rise": ({"levels": [0.5, 1.0]}, "levels from high to low"),
    "kernels of other events": ({"initial": torch.zeros(3, 4).double()}, r"2\b.*got"),
    "too few starts": ({"initial": [ZEROS]}, r"initial points for 5 levels, got 1 of shapes \[\(3, 2\)\]"),
    "no kernel": ({"kernel_at": lambda level: None}, "kernel_at to return a Kernel"),
    "one draw": ({"draws": 1}, "draws of at least 2"),
    "no local moves": ({"steps_per_swap": 0}, "steps_per_swap of at least 1"),
    "no nodes": ({"nodes": 0}, "nodes of at least 1"),
}


@pytest.mark.parametrize(("arguments", "text"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_right_is_refused(arguments: dict[str, Any], text: str) -> None:
    right: dict[str, Any] = {"kernel_at": kernel_at, "levels": LEVELS, "initial": ZEROS, "model": MIXTURE, "draws": 4}
    with pytest.raises((ValueError, TypeError), match=text):
        replica_exchange(**right | arguments)


def test_levels_are_not_tuned_to_an_impossible_rate() -> None:
    with pytest.raises(ValueError, match=r"swap_rate in \(0, 1\), got 1"):
        annealing.tune_levels(kernel_at, ZEROS, model=MIXTURE, swap_rate=1.0)
