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
MAX_TRIALS = 60  # a factor of 2^60 either way


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

    It takes no pool: all chains move with one step size, which their mean acceptance changes after every transition.
    Blocks of chains on their own would each find another step size, from fewer chains.

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
    checks.events(initial, "initial")
    fix = "Pass lambda h: metropolis_hastings(target, MALA(h), LineIntegral()), for example."
    if isinstance(make_kernel, Kernel) or not callable(make_kernel):
        raise TypeError(checks.message("a function from a step size to a kernel", checks.describe(make_kernel), fix))
    checks.positive(start, "start")
    kernel = make_kernel(min(start, upper))
    checks.kind(kernel, Kernel, "make_kernel to return a Kernel", fix)
    search = StepSearch(start, aimed_rate(kernel, target_rate), upper)
    generator = rng.resolve(generator, initial.device)
    point = kernel.init(initial)
    while not search.bracketed:
        _, accept = transition(make_kernel(search.step), point, generator)
        search.update(accept)
    with progress_bar(steps, "tuning", unit="steps", show=progress) as tick:
        for _ in range(steps):
            point, accept = transition(make_kernel(search.step), point, generator)
            search.update(accept)
            tick(1, f"step {search.average:.4g}, acceptance {accept:.3f}")
    return search.average


def aimed_rate(kernel: Kernel, target_rate: float | None) -> float:
    """Return the acceptance rate to reach, by default the kernel's own; refuse a kernel without one."""
    rate = kernel.target_rate if target_rate is None else target_rate
    if rate is None:
        fix = "Pass target_rate=..., or use a rule that can reject, such as LineIntegral()."
        raise ValueError(checks.message("a kernel with an acceptance rate to aim at", kernel.description, fix))
    if not 0 < rate < 1:
        fix = "0.574 is usual for MALA, 0.234 for a random walk."
        raise ValueError(checks.message("target_rate in (0, 1)", rate, fix))
    return rate


def transition(kernel: Kernel, point: Point, generator: torch.Generator) -> tuple[Point, float]:
    """Return where the chains are after one transition, and the mean acceptance probability."""
    if kernel.run is None:
        point, move = kernel.step(point, generator=generator)
        return point, _mean_acceptance(move.log_accept)
    point, trace = kernel.run(point, 1, generator=generator)
    return point, _mean_acceptance(trace.log_accept)


def _mean_acceptance(log_accept: Tensor) -> float:
    return float(log_accept.exp().nan_to_num(0).mean())


class StepSearch:
    """A search for the step with a wanted acceptance rate: use `step`, and `update` with the rate it had.

    The step is doubled or halved until the rate crosses the one wanted; dual averaging goes on from there.

    Args:
        start: The first step to try.
        rate: Acceptance rate to reach.
        upper: The largest step allowed.
    """

    def __init__(self, start: float, rate: float, upper: float = math.inf) -> None:
        self.rate, self.log_upper = rate, math.log(upper)
        self.log_step = self.centre = self.log_average = math.log(min(start, upper))
        self.bracketed, self.grow, self.trials = False, False, 0
        self.error, self.updates = 0.0, 0

    @property
    def step(self) -> float:
        """The step to try next."""
        return math.exp(self.log_step)

    @property
    def average(self) -> float:
        """The step found, an average over the later updates."""
        return math.exp(self.log_average)

    def update(self, accept: float) -> None:
        """Move the step, having seen the mean acceptance probability at `step`."""
        if self.bracketed:
            self._average(accept)
        else:
            self._bracket(accept)
            self.centre = self.log_average = self.log_step

    def _average(self, accept: float) -> None:
        self.updates += 1
        self.error += (self.rate - accept - self.error) / (self.updates + OFFSET)
        self.log_step = min(self.centre - self.error * math.sqrt(self.updates) / GAMMA, self.log_upper)
        self.log_average += (self.log_step - self.log_average) * self.updates**-DECAY

    def _bracket(self, accept: float) -> None:
        """Double or halve the step until the acceptance rate crosses the one wanted."""
        if self.trials == 0:
            self.grow = accept > self.rate
        if (accept > self.rate) != self.grow or (self.grow and self.log_step >= self.log_upper):
            self.bracketed = True
            return
        self.log_step = min(self.log_step + math.log(2), self.log_upper) if self.grow else self.log_step - math.log(2)
        self.trials += 1
        if self.trials == MAX_TRIALS:
            text = checks.message(
                f"some step to be accepted at a rate of {self.rate}",
                f"{accept:.3f} at every step down or up to {self.step:.3g}",
                "Look at the score there: such a rate points to NaN, a wrong sign, or a rule that never rejects.",
            )
            raise TuningError(text, self.step, accept)
