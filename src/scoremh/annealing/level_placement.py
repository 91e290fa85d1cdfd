r"""Noise levels between which swaps are accepted at equal rates.

Syed et al. (2022): the rejection rates of neighbouring pairs add up, nearly, to a number that does not depend on where
the levels between are, the communication barrier B. Levels at equal increments of the sum have equal rates, and n of
them a rate of 1 - B / (n - 1).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.progress import progress_bar
from scoremh.annealing.ladder import known_span
from scoremh.annealing.replica_exchange import replica_exchange
from scoremh.annealing.schedules import geometric
from scoremh.sampling.pools import Pool, started
from scoremh.types import Kernel, ScoreModel

FIRST_LEVELS = 12  # of the first round, where their number is to be found
ROUNDS = 4


def tune_levels(
    kernel_at: Callable[[float], Kernel],
    initial: Float[Tensor, "chain *event"],
    *,
    model: ScoreModel,
    high: float | None = None,
    low: float | None = None,
    n: int | None = None,
    swap_rate: float = 0.4,
    sweeps: int = 40,
    steps_per_swap: int = 4,
    generator: torch.Generator | None = None,
    progress: bool = False,
    pool: Pool = None,
) -> list[float]:
    """Return noise levels, from high to low, whose neighbours swap at equal rates, for `replica_exchange`.

    Args:
        kernel_at: Function from a noise level to the kernel of `model.at(level)`.
        initial: Initial points `(chain, *event)`, such as noise of the highest level.
        model: Scores at every noise level, such as `fit_score` returns.
        high: Highest level; the model's own when None.
        low: Lowest level; that at which the model is read when None.
        n: Number of levels; as many as `swap_rate` needs when None.
        swap_rate: Swap rate to reach at least, where n is None.
        sweeps: Sweeps in each of four rounds, after each of which the levels are placed anew; the first half of them
            is warm-up.
        steps_per_swap: Local moves in a sweep.
        generator: Random number generator; the same seed gives the same levels.
        progress: Show a progress bar.
        pool: Where blocks of chains are run, as for `sample`.

    Example:
        >>> import torch
        >>> from scoremh import MALA, LineIntegral, metropolis_hastings, targets
        >>> normal = targets.Gaussian([0.0, 0.0, 0.0])
        >>> def kernel_at(level):
        ...     return metropolis_hastings(normal.at(level), MALA(0.3 * (1 + level**2)), LineIntegral())
        >>> g = torch.Generator().manual_seed(0)
        >>> x = 4 * torch.randn(100, 3, generator=g)
        >>> levels = tune_levels(kernel_at, x, model=normal, high=4.0, low=0.1, n=3, generator=g)
        >>> 1 < levels[1] < 3  # half of the way in log(1 + level^2), and not in log level
        True
    """
    lowest, highest = known_span(model)
    checks.count(sweeps, "sweeps", at_least=4)
    if not 0 < swap_rate < 1:
        raise ValueError(checks.message("swap_rate in (0, 1)", swap_rate, "0.2 to 0.6 is usual."))
    if n is not None:
        checks.count(n, "n", at_least=2)
    levels = geometric(highest if high is None else high, lowest if low is None else low, n or FIRST_LEVELS)
    x: Tensor | Sequence[Tensor] = initial
    options: dict[str, Any] = {"model": model, "steps_per_swap": steps_per_swap, "generator": generator}
    half = sweeps // 2
    with started(pool) as options["pool"], progress_bar(ROUNDS, "placing levels", unit="rounds", show=progress) as tick:
        for _ in range(ROUNDS):
            found = replica_exchange(kernel_at, levels, x, draws=sweeps - half, warmup=half, **options)
            levels = levels_of_equal_rates(levels, found.swap_rates, n, swap_rate)
            # each of the new levels goes on from the points of the nearest old one
            x = [found.last[_nearest(level, found.levels)] for level in levels]
            tick(1, f"{len(levels)} levels")
    return levels


def levels_of_equal_rates(
    levels: Sequence[float], swap_rates: Sequence[float], n: int | None, swap_rate: float
) -> list[float]:
    """Return levels at equal increments of the sum of rejection rates, with the same ends.

    Args:
        levels: Noise levels of a run, from high to low.
        swap_rates: Swap rates between them.
        n: Number of levels to return; as many as `swap_rate` needs when None.
        swap_rate: Swap rate to reach at least, where n is None.
    """
    barrier = np.concatenate([[0.0], np.cumsum(np.clip(1 - np.asarray(swap_rates), 1e-3, 1))])  # rises strictly
    pairs = max(1, math.ceil(barrier[-1] / (1 - swap_rate))) if n is None else n - 1
    inner = np.interp(np.linspace(0, barrier[-1], pairs + 1)[1:-1], barrier, np.log(levels))
    return [levels[0], *np.exp(inner).tolist(), levels[-1]]


def _nearest(level: float, levels: Sequence[float]) -> int:
    return min(range(len(levels)), key=lambda i: abs(math.log(levels[i] / level)))
