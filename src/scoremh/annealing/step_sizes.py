"""A step size for every noise level, found on a pilot batch of chains before the others are annealed."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh.annealing.schedules import check_levels
from scoremh.sampling.tuning import StepSearch, aimed_rate, transition
from scoremh.types import Kernel


def tune_steps(
    make_kernel: Callable[[float, float], Kernel],
    levels: Sequence[float],
    initial: Tensor,
    *,
    start: float = 0.3,
    target_rate: float | None = None,
    steps_per_level: int = 40,
    generator: torch.Generator | None = None,
) -> dict[float, float]:
    """Return for every noise level the step at which its kernel accepts at its most efficient rate.

    The pilot chains go down with the levels while their steps are tuned, each level from the step of the one before.

    Args:
        make_kernel: Function from a noise level and a step to a kernel, such as
            `lambda level, step: metropolis_hastings(model.at(level), MALA(step * level**2), LineIntegral())`.
        levels: Noise levels from high to low, those of `anneal`.
        initial: Initial points of the pilot chains: noise of the highest level; 50 chains are enough.
        start: First step to try at the highest level.
        target_rate: Acceptance rate to reach; the kernel's own by default.
        steps_per_level: Transitions of the pilot chains at every level, to tune on.
        generator: Random number generator; the same seed gives the same steps.

    Example:
        >>> from scoremh import MALA, LineIntegral, anneal, annealing, metropolis_hastings, targets
        >>> normal, g = targets.Gaussian([0.0, 0.0]), torch.Generator().manual_seed(0)
        >>> def make_kernel(level, step):
        ...     return metropolis_hastings(normal.at(level), MALA(step * level**2), LineIntegral())
        >>> levels, noise = annealing.geometric(5.0, 0.5, 4), 5 * torch.randn(50, 2, generator=g)
        >>> steps = tune_steps(make_kernel, levels, noise, generator=g)
        >>> found = anneal(lambda level: make_kernel(level, steps[level]), levels, noise, generator=g)
    """
    check_levels(levels)
    checks.events(initial, "initial")
    checks.count(steps_per_level, "steps_per_level")
    checks.positive(start, "start")
    generator = rng.resolve(generator, initial.device)
    found, x, step = {}, initial, start
    for level in levels:
        kernel = make_kernel(level, step)
        search, point = StepSearch(step, aimed_rate(kernel, target_rate)), kernel.init(x)
        for _ in range(steps_per_level):
            point, accept = transition(make_kernel(level, search.step), point, generator)
            search.update(accept)
        x, step = point.x.clone(), search.average
        found[level] = step
    return found
