"""A step size and a covariance learned before sampling."""

import math
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from scoremh import (
    MALA,
    Always,
    Exact,
    Kernel,
    LineIntegral,
    RandomWalk,
    Target,
    TuningError,
    diagnostics,
    metropolis_hastings,
    sample,
    targets,
    warmup,
)
from scoremh.sampling.tuning import Moments, geometric_mean, windows

VARIANCES = torch.tensor([0.01, 1.0, 100.0], dtype=torch.float64)
TARGET = Target(score=lambda x: -(x.flatten(1) / VARIANCES).reshape(x.shape))


def mala(step: float, covariance: Tensor) -> Kernel:
    return metropolis_hastings(TARGET, MALA(step, covariance), LineIntegral())


def starts(chains: int = 32, seed: int = 0) -> tuple[Tensor, torch.Generator]:
    g = torch.Generator().manual_seed(seed)
    return 10 * torch.randn(chains, 3, dtype=torch.float64, generator=g), g


@pytest.mark.parametrize("steps", [20, 21, 75, 149, 150, 151, 175, 200, 499, 1000, 1234, 10_000])
def test_the_windows_add_up_to_the_steps(steps: int) -> None:
    lengths = windows(steps)
    assert sum(lengths) == steps
    assert min(lengths) > 0


def test_the_windows_of_a_thousand_steps_are_those_of_stan() -> None:
    assert windows(1000) == (75, 25, 50, 100, 200, 500, 50)


@pytest.mark.parametrize("event", [(3,), (2, 3)])
def test_moments_are_those_of_numpy(event: tuple[int, ...]) -> None:
    g = torch.Generator().manual_seed(0)
    batches = [5 + torch.randn(n, *event, dtype=torch.float64, generator=g) for n in (7, 1, 30)]
    rows = torch.cat(batches).flatten(1).numpy()
    n, d = rows.shape
    sample_covariance = np.cov(rows.T)
    for diagonal in (False, True):
        moments = Moments(diagonal=diagonal)
        for batch in batches:
            moments.add(batch)

        def shrunk(estimate: np.ndarray) -> np.ndarray:
            floor = 5e-3 / (n + 5) * np.sort(np.diag(estimate))[(d - 1) // 2]
            return np.asarray(n / (n + 5) * estimate + floor * np.eye(d))

        covariance, wanted = moments.covariance(), shrunk(sample_covariance)
        assert covariance is not None
        np.testing.assert_allclose(covariance.numpy(), np.diag(wanted) if diagonal else wanted, rtol=1e-9)


@pytest.mark.parametrize("covariance", ["dense", "diagonal"])
@pytest.mark.parametrize("estimate", ["draws", "geometric"])
def test_step_and_shape_are_found(covariance: Any, estimate: Any) -> None:
    x, g = starts()
    learned = warmup(mala, x, steps=400, covariance=covariance, estimate=estimate, generator=g)
    variances = learned.covariance if covariance == "diagonal" else learned.covariance.diagonal()
    # 32 chains x 275 steps, some 1,000 effective draws: 4.5 % a standard error of a variance
    torch.testing.assert_close(variances, VARIANCES, rtol=0.3, atol=0)
    assert learned.acceptance_rate == pytest.approx(0.574, abs=0.1)
    chains = sample(learned.kernel, learned.draws, draws=100, generator=g)
    assert chains.acceptance_rate == pytest.approx(0.574, abs=0.1)


def test_a_window_has_one_covariance_and_all_have_the_shape_asked_for() -> None:
    seen: list[Tensor] = []

    def make(step: float, covariance: Tensor) -> Kernel:
        seen.append(covariance)
        return mala(step, covariance)

    x, g = starts()
    learned = warmup(make, x, steps=200, generator=g)
    assert len(seen) == 1 + 200 + 1  # the first is asked for its rate, the last is frozen
    changes = [i for i in range(1, len(seen)) if seen[i] is not seen[i - 1]]
    first, *doubling, _ = windows(200)
    assert changes == [1 + first + sum(doubling[: k + 1]) for k in range(len(doubling))]
    assert seen[-1] is learned.covariance
    assert torch.equal(seen[0], torch.eye(3, dtype=torch.float64))


def test_sampling_makes_no_kernel() -> None:
    calls = 0

    def make(step: float, covariance: Tensor) -> Kernel:
        nonlocal calls
        calls += 1
        return mala(step, covariance)

    x, g = starts()
    learned = warmup(make, x, steps=50, generator=g)
    before, kept = calls, learned.covariance.clone()
    draws = sample(learned.kernel, learned.draws, draws=20, generator=torch.Generator().manual_seed(1)).draws
    assert calls == before
    assert torch.equal(learned.covariance, kept)
    fixed = mala(learned.step_size, learned.covariance)
    again = sample(fixed, learned.draws, draws=20, generator=torch.Generator().manual_seed(1)).draws
    assert torch.equal(draws, again)


def test_the_same_seed_gives_the_same_result() -> None:
    one, other, third = (warmup(mala, x, steps=60, generator=g) for x, g in (starts(), starts(), starts(seed=1)))
    assert one.step_size == other.step_size
    assert torch.equal(one.covariance, other.covariance)
    assert torch.equal(one.draws, other.draws)
    assert not torch.equal(one.covariance, third.covariance)


def test_events_of_any_shape_in_single_precision() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, 1, generator=g)
    target = Target(score=lambda x: -x)
    learned = warmup(
        lambda h, c: metropolis_hastings(target, MALA(h, c), LineIntegral()),
        x,
        steps=60,
        estimate="geometric",
        generator=g,
    )
    assert learned.draws.shape == x.shape
    assert learned.covariance.shape == (3, 3)
    assert learned.covariance.dtype == torch.float32
    assert repr(learned).startswith(
        f"Warmup(step size {learned.step_size:.4g}, dense covariance (3, 3), 20 chains of ("
    )


def always(step: float, covariance: Tensor) -> Kernel:
    return metropolis_hastings(TARGET, MALA(step, covariance), Always())


def test_a_kernel_without_a_rate_is_refused_as_by_tune() -> None:
    with pytest.raises(ValueError, match=r"acceptance rate to aim at, got MALA\(.*Always\(\).*target_rate"):
        warmup(always, torch.zeros(5, 3, dtype=torch.float64))


def test_the_geometric_mean_needs_scores_at_the_points() -> None:
    target = targets.Gaussian(torch.zeros(3))
    with pytest.raises(ValueError, match=r"whose points keep their scores, got RandomWalk.*estimate=\"draws\""):
        warmup(
            lambda h, c: metropolis_hastings(target, RandomWalk(h, c), Exact()), torch.zeros(5, 3), estimate="geometric"
        )


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"steps": 19}, ValueError, "steps of at least 20, got 19"),
        ({"start": 0.0}, ValueError, "start to be finite and above 0"),
        ({"upper": -1.0}, ValueError, "upper above 0, got -1.0"),
        ({"target_rate": 1.5}, ValueError, r"target_rate in \(0, 1\)"),
        ({"initial": torch.zeros(3)}, ValueError, "initial of shape"),
        ({"initial": torch.full((4, 3), math.nan)}, ValueError, "initial to be finite"),
        ({"make_kernel": lambda h, c: h}, TypeError, "make_kernel to return a Kernel, got float"),
    ],
)
def test_bad_arguments_are_refused(change: dict[str, Any], error: type[Exception], text: str) -> None:
    arguments: dict[str, Any] = {"make_kernel": mala, "initial": torch.zeros(4, 3, dtype=torch.float64), "steps": 20}
    with pytest.raises(error, match=text):
        warmup(**(arguments | change))


UNCHECKED = {  # refused by the shape checks of the tests as well, which a user does not run
    "steps=100.0": "steps to be an int, got float 100.0",
    "covariance='full'": "covariance to be one of 'dense', 'diagonal', got 'full'",
    "estimate='scores'": "estimate to be one of 'draws', 'geometric', None, got 'scores'",
    "generator=0": "a torch.Generator, got int 0",
    "make_kernel=3": "a function from a step size and a covariance to a kernel, got int 3",
    "make_kernel=make(1.0, torch.ones(2))": "a function from a step size and a covariance to a kernel, got Kernel",
    "make_kernel=lambda h: make(h, None)": "a function from a step size and a covariance to a kernel, got function",
}


def test_arguments_of_another_type_are_refused() -> None:
    script = f"""
        import torch
        from scoremh import MALA, LineIntegral, Target, metropolis_hastings, warmup
        make = lambda h, c: metropolis_hastings(Target(score=lambda x: -x), MALA(h, c), LineIntegral())
        for change in {list(UNCHECKED)}:
            try:
                warmup(**(dict(make_kernel=make, initial=torch.zeros(4, 2), steps=20) | eval(f"dict({{change}})")))
            except (TypeError, ValueError) as error:
                print(error)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    for line, text in zip(ran.stdout.splitlines(), UNCHECKED.values(), strict=True):
        assert line.startswith(f"expected {text}"), line


def test_a_broken_score_ends_with_its_numbers() -> None:
    broken = Target(score=lambda x: torch.full_like(x, math.nan))
    with pytest.raises(TuningError) as caught:
        warmup(lambda h, c: metropolis_hastings(broken, MALA(h, c), LineIntegral()), torch.zeros(5, 2), steps=200)
    assert caught.value.rate == 0.0


def test_chains_that_stay_at_one_place_have_no_shape() -> None:
    stuck = Target(score=lambda x: torch.zeros_like(x), support=lambda x: (x == 0).flatten(1).all(1))
    with pytest.raises(TuningError, match="chains that move in every coordinate"):
        warmup(lambda h, c: metropolis_hastings(stuck, MALA(h, c), LineIntegral()), torch.zeros(5, 2), steps=40)


def gaussian(seed: int, *, rotated: bool) -> targets.Gaussian:
    """Return a 50-dimensional Gaussian of condition number 1e4."""
    g = torch.Generator().manual_seed(seed)
    variances = torch.logspace(0, 4, 50, dtype=torch.float64)
    if not rotated:
        return targets.Gaussian(variances.new_zeros(50), variances[torch.randperm(50, generator=g)].diag())
    axes, _ = torch.linalg.qr(torch.randn(50, 50, dtype=torch.float64, generator=g))
    covariance = axes @ variances.diag() @ axes.T
    return targets.Gaussian(variances.new_zeros(50), (covariance + covariance.T) / 2)


@pytest.mark.parametrize("diagonal", [True, False])
def test_the_geometric_mean_solves_its_equation(diagonal: bool) -> None:
    g = torch.Generator().manual_seed(0)
    s, p = (
        torch.randn(5, 9, dtype=torch.float64, generator=g) @ torch.randn(9, 5, dtype=torch.float64, generator=g)
        for _ in range(2)
    )
    s, p = s @ s.T, p @ p.T
    if diagonal:
        s, p = s.diagonal(), p.diagonal()
    c = geometric_mean(s, p)
    assert c is not None
    torch.testing.assert_close(c * p * c if diagonal else c @ p @ c, s, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(c, c.T if not diagonal else c)
    assert geometric_mean(s, torch.zeros_like(p)) is None


@pytest.mark.parametrize("estimate", ["geometric", "draws"])
def test_the_geometric_mean_knows_a_gaussian_from_far_out(estimate: Any) -> None:
    """Chains far out and all on one side: S and G are those of the way in, and C is still the covariance.

    Not after one window, in which the shrinkage hides the widest directions, but after three.
    """
    g = torch.Generator().manual_seed(0)
    law = gaussian(3, rotated=True)
    x = 1e5 + 1e3 * torch.randn(64, 50, dtype=torch.float64, generator=g)
    make = lambda h, c: metropolis_hastings(Target(law.score), MALA(h, c), LineIntegral())  # noqa: E731
    learned = warmup(make, x, steps=300, estimate=estimate, generator=g)
    error = (learned.covariance - law.covariance).norm() / law.covariance.norm()
    assert (float(error) < 0.05) == (estimate == "geometric")


def test_the_estimate_is_chosen_by_what_points_keep() -> None:
    x, _ = starts()
    given = warmup(mala, x, steps=60, estimate="geometric", generator=torch.Generator().manual_seed(1))
    chosen = warmup(mala, x, steps=60, generator=torch.Generator().manual_seed(1))
    assert torch.equal(chosen.covariance, given.covariance)
    law = targets.Gaussian(torch.zeros(3, dtype=torch.float64))
    walks = [
        warmup(
            lambda h, c: metropolis_hastings(law, RandomWalk(h, c), Exact()),
            x,
            steps=60,
            estimate=estimate,
            generator=torch.Generator().manual_seed(1),
        )
        for estimate in (None, "draws")
    ]
    assert torch.equal(walks[0].covariance, walks[1].covariance)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("estimate", "wide"), [("draws", 100.0), ("geometric", 100.0), ("geometric", 1e4)])
@pytest.mark.parametrize("covariance", ["dense", "diagonal"])
def test_a_badly_scaled_gaussian_converges_within_2000_steps(
    seed: int, estimate: Any, wide: float, covariance: Any
) -> None:
    """From starts 100 times as wide as the least standard deviation, or 10,000; 500 steps of warm-up, 1,500 draws."""
    truth = gaussian(seed, rotated=covariance == "dense")
    target = Target(score=truth.score)
    g = torch.Generator().manual_seed(seed)
    x = wide * torch.randn(64, 50, dtype=torch.float64, generator=g)
    learned = warmup(
        lambda h, c: metropolis_hastings(target, MALA(h, c), LineIntegral()),
        x,
        steps=500,
        covariance=covariance,
        estimate=estimate,
        generator=g,
    )
    chains = sample(learned.kernel, learned.draws, draws=1500, generator=g)
    assert diagnostics.summary(chains).table["r_hat"].max() < 1.01
