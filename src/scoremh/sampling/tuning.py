"""Find a step size before sampling: a kernel that is being sampled never adapts.

Dual averaging (Nesterov 2009; Hoffman and Gelman 2014, section 3.2) on the log of the step, driven by the mean over
chains of the acceptance probability `a(x', x)`, to the rate at which the kernel is most efficient.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.progress import progress_bar
from scoremh.types import Kernel, Point

# Hoffman and Gelman's constants: shrinkage toward the start, iterations before it is trusted, decay of the average.
GAMMA, OFFSET, DECAY = 0.05, 10, 0.75


class TuningError(RuntimeError):
    """No step gives the wanted acceptance rate. Carries the last `step` tried and its `rate`."""

    def __init__(self, text: str, step: float, rate: float) -> None:
        """Keep the numbers beside the text."""
        super().__init__(text)
        self.step, self.rate = step, rate


def tune(
    make_kernel: Callable[[float], Kernel],
    initial: Tensor,
    *,
    target_rate: float | None = None,
    start: float = 1.0,
    upper: float = math.inf,
    steps: int = 300,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> float:
    """Return a step for which the kernel accepts at its target rate.

    Args:
        make_kernel: From a step to a kernel, for example `lambda h: metropolis_hastings(target, MALA(h),
            LineIntegral())`.
        initial: Where the chains start. They move while the step is tuned; the more of them, the better the rate is
            known.
        target_rate: The rate to reach; by default the kernel's own (0.574 for MALA, 0.234 for a random walk; lower
            with Barker).
        start: The first step to try.
        upper: The largest step allowed: 1 for the beta of `PCN`.
        steps: Transitions to tune on.
        generator: Random number generator; the same seed gives the same step size.
        progress: Show a progress bar.

    Returns:
        The step, an average over the later transitions.

    Example:
        >>> import torch
        >>> from scoremh import MALA, LineIntegral, Target, metropolis_hastings
        >>> target = Target(score=lambda x: -x)
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.randn(100, 10, generator=g)
        >>> h = tune(lambda h: metropolis_hastings(target, MALA(h), LineIntegral()), x, generator=g)
        >>> 0.5 < h < 0.9
        True
    """
    checks.count(steps, "steps")
    checks.positive(start, "start")
    checks.events(initial, "initial")
    fix = "Pass lambda h: metropolis_hastings(target, MALA(h), LineIntegral()), for example."
    if isinstance(make_kernel, Kernel) or not callable(make_kernel):
        raise TypeError(checks.message("a function from a step size to a kernel", checks.describe(make_kernel), fix))
    kernel = make_kernel(min(start, upper))
    checks.kind(kernel, Kernel, "make_kernel to return a Kernel", fix)
    rate = kernel.target_rate if target_rate is None else target_rate
    if rate is None:
        fix = "Pass target_rate=..., or use a rule that can reject, such as LineIntegral()."
        raise ValueError(checks.message("a kernel with an acceptance rate to aim at", kernel.description, fix))
    if not 0 < rate < 1:
        raise ValueError(
            checks.message("target_rate in (0, 1)", rate, "0.574 is usual for MALA, 0.234 for a random walk.")
        )
    generator = rng.resolve(generator, initial.device)
    point = kernel.init(initial)
    log_upper = math.log(upper)
    log_step = _bracket(make_kernel, point, rate, math.log(min(start, upper)), log_upper, generator)
    centre, error, average = log_step, 0.0, log_step
    with progress_bar(steps, "tuning", unit="steps", show=progress) as tick:
        for k in range(1, steps + 1):
            point, accept = _step(make_kernel(math.exp(log_step)), point, generator)
            error += (rate - accept - error) / (k + OFFSET)
            log_step = min(centre - error * math.sqrt(k) / GAMMA, log_upper)
            average += (log_step - average) * k**-DECAY
            tick(1, f"step {math.exp(average):.4g}, acceptance {accept:.3f}")
    return math.exp(average)


def _step(kernel: Kernel, point: Point, generator: torch.Generator) -> tuple[Point, float]:
    """Return where the chains are after one transition, and the mean acceptance probability."""
    if kernel.run is None:
        point, move = kernel.step(point, generator=generator)
        return point, _mean_acceptance(move.log_accept)
    point, trace = kernel.run(point, 1, generator=generator)
    return point, _mean_acceptance(trace.log_accept)


def _mean_acceptance(log_accept: Tensor) -> float:
    return float(log_accept.exp().nan_to_num(0).mean())


def _bracket(
    make_kernel: Callable[[float], Kernel],
    point: Point,
    rate: float,
    log_step: float,
    log_upper: float,
    generator: torch.Generator,
) -> float:
    """Double or halve the step until the acceptance rate crosses the one wanted."""
    grow = None
    for _ in range(60):  # a factor of 2^60 either way
        _, accept = _step(make_kernel(math.exp(log_step)), point, generator)
        if grow is None:
            grow = accept > rate
        if (accept > rate) != grow or (grow and log_step >= log_upper):
            return log_step
        log_step = min(log_step + math.log(2), log_upper) if grow else log_step - math.log(2)
    text = checks.message(
        f"some step to be accepted at a rate of {rate}",
        f"{accept:.3f} at every step down or up to {math.exp(log_step):.3g}",
        "Look at the score there: such a rate points to NaN, a wrong sign, or a rule that never rejects.",
    )
    raise TuningError(text, math.exp(log_step), accept)
