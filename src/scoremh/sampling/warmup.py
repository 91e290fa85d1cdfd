r"""Learn the step size and the shape of the target before sampling, then freeze both: `sample` never adapts.

As Stan does, in windows: a first one for the step alone, while the chains come in from their starts; windows of
doubling length, after each of which the covariance C is estimated anew from that window alone; a last one for the step.
The step is searched as `tune` does, from 1 again after each new C: in the coordinates that C whitens, a good step is
near 1. The chains move at every step, also while a step is doubled or halved.

With the covariance S of the n points x of all chains in a window, the covariance G of their scores s, and
F = mean of s s^T:

| estimate | C |
|---|---|
| "draws" | S |
| "fisher" | inverse of F |
| "geometric" | C with C G C = S: the geometric mean of S and the inverse of G (Seyboldt, Carlson and Carpenter 2026) |

each of S, F and G shrunk as Stan does, in the unit of the target: n / (n + 5) S + 5e-3 / (n + 5) m I, with m the median
of the diagonal. All three are Cov(x) for a Gaussian once the chains have come in. Chains that are still far out along a
wide direction have large scores there, which make "fisher" narrow and keep them there: start it near the target.
"draws" widens there, and they come in. "geometric" is Cov(x) for a Gaussian wherever the chains are: scores
s = -P (x - m) have G = P S P, of which P^-1 is the solution, up to the shrinkage, which matters in the first windows.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.progress import Tick, progress_bar
from scoremh.sampling.moments import Moments, geometric_mean
from scoremh.sampling.tuning import StepSearch, TuningError, aimed_rate, transition
from scoremh.types import Kernel, Point

Shape = Literal["dense", "diagonal"]
Estimate = Literal["draws", "fisher", "geometric"]
MakeKernel = Callable[[float, Tensor], Kernel]

# Stan's first window, last window and shortest window for the shape, and the shares of the first and the last where
# there are too few steps for them (Stan Reference Manual, "Automatic parameter tuning").
FIRST, LAST, SHORTEST = 75, 50, 25
FIRST_SHARE, LAST_SHARE = 0.15, 0.1
LEAST_STEPS = 20
FIX = "Pass lambda h, covariance: metropolis_hastings(target, MALA(h, covariance), LineIntegral()), for example."


@dataclass(frozen=True, eq=False)
class Warmup:
    """What `warmup` returns.

    Args:
        step_size: Step size that was found.
        covariance: Covariance over the flattened event: a diagonal `(d,)` or a matrix `(d, d)`.
        draws: Where the chains are after the last step: the points to start `sample` from.
        acceptance_rate: Mean acceptance probability over the last window.
        kernel: The kernel with this step size and this covariance.
    """

    step_size: float
    covariance: Float[Tensor, " d"] | Float[Tensor, "d d"]
    draws: Float[Tensor, "chain *event"]
    acceptance_rate: float
    kernel: Kernel = field(repr=False)

    def __repr__(self) -> str:
        """Show the step, the covariance and the acceptance rate on a line."""
        size = "diagonal" if self.covariance.ndim == 1 else "dense"
        shape, chains = tuple(self.covariance.shape), len(self.draws)
        return (
            f"Warmup(step size {self.step_size:.4g}, {size} covariance {shape}, {chains} chains of "
            f"{tuple(self.draws.shape[1:])}, acceptance {self.acceptance_rate:.3f})"
        )


def windows(steps: int) -> tuple[int, ...]:
    """Return the lengths of the windows: one for the step, doubling ones for the shape, one for the step.

    Args:
        steps: Transitions in all; the lengths add up to them.
    """
    first, last = FIRST, LAST
    if steps < FIRST + SHORTEST + LAST:
        first, last = int(FIRST_SHARE * steps), int(LAST_SHARE * steps)
    return (first, *_doubling(steps - first - last), last)


def _doubling(steps: int) -> Iterator[int]:
    """Yield lengths that double; one after which the next would not fit takes all that is left."""
    length = SHORTEST
    while steps >= 3 * length:
        yield length
        steps, length = steps - length, 2 * length
    yield steps


def warmup(
    make_kernel: MakeKernel,
    initial: Float[Tensor, "chain *event"],
    *,
    steps: int = 1000,
    covariance: Shape = "dense",
    estimate: Estimate | None = None,
    target_rate: float | None = None,
    start: float = 1.0,
    upper: float = math.inf,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> Warmup:
    """Learn a step size and a covariance, and return them with the points that the chains came to.

    As `tune`, it takes no pool: after every transition, all chains together decide on the next.

    Args:
        make_kernel: From a step size and a covariance to a kernel, for example `lambda h, covariance:
            metropolis_hastings(target, MALA(h, covariance), LineIntegral())`. It is called at every transition.
        initial: Where the chains start; best wider than the target. The more of them, the better the shape is known.
        steps: Transitions in all, at least 20.
        covariance: "dense" for a matrix over the flattened event, "diagonal" for one variance per coordinate.
        estimate: "draws" for the covariance of the points, "fisher" for the inverse second moment of their scores,
            "geometric" for the geometric mean of the points' covariance and their scores' inverse covariance. None is
            "geometric" where points keep their scores, as with MALA or `LineIntegral`, else "draws".
        target_rate: Acceptance rate to reach; by default the kernel's own.
        start: The first step size to try, with the identity as covariance.
        upper: The largest step size allowed.
        generator: Random number generator; the same seed gives the same result.
        progress: Show a progress bar.

    Returns:
        Step size, covariance, points, acceptance rate, and the kernel made of them, which adapts no more.

    Example:
        >>> import torch
        >>> from scoremh import MALA, LineIntegral, Target, metropolis_hastings, sample
        >>> variances = torch.tensor([0.01, 1.0, 100.0])
        >>> target = Target(score=lambda x: -x / variances)
        >>> g = torch.Generator().manual_seed(0)
        >>> x = 10 * torch.randn(50, 3, generator=g)
        >>> make = lambda h, covariance: metropolis_hastings(target, MALA(h, covariance), LineIntegral())
        >>> learned = warmup(make, x, steps=500, covariance="diagonal", generator=g)
        >>> bool((learned.covariance / variances - 1).abs().max() < 0.2)
        True
        >>> chains = sample(learned.kernel, learned.draws, draws=100, generator=g)
    """
    checks.count(steps, "steps", at_least=LEAST_STEPS)
    checks.positive(start, "start")
    checks.events(initial, "initial")
    checks.one_of(covariance, get_args(Shape), "covariance")
    checks.one_of(estimate, (*get_args(Estimate), None), "estimate")
    if not upper > 0:
        raise ValueError(checks.message("upper above 0", upper, "Leave it out for no bound."))
    ones = initial.new_ones(initial[0].numel())
    shape = ones.diag() if covariance == "dense" else ones
    kernel = _first_kernel(make_kernel, min(start, upper), shape)
    rate = aimed_rate(kernel, target_rate)
    point = kernel.init(initial)
    estimate = estimate or ("draws" if point.score is None else "geometric")
    if estimate != "draws" and point.score is None:
        fix = 'Use a proposal or a rule that needs the score, such as MALA or LineIntegral(), or estimate="draws".'
        raise ValueError(checks.message("a kernel whose points keep their scores", kernel.description, fix))
    learning = _Learning(make_kernel, estimate, point, shape, rng.resolve(generator, initial.device))
    first, *doubling, last = windows(steps)
    search = StepSearch(start, rate, upper)
    with progress_bar(steps, "warm-up", unit="steps", show=progress) as tick:
        learning.window(first, search, tick)
        for length in doubling:
            learning.reshape(*learning.window(length, search, tick))
            search = StepSearch(1.0, rate, upper)
        learning.window(last, search, tick)
    kernel = make_kernel(search.average, learning.covariance)
    return Warmup(search.average, learning.covariance, learning.point.x.clone(), learning.rate, kernel)


def _first_kernel(make_kernel: MakeKernel, step: float, covariance: Tensor) -> Kernel:
    """Return the kernel with a step and a covariance; refuse a function that makes none of them."""
    expected = "a function from a step size and a covariance to a kernel"
    if isinstance(make_kernel, Kernel) or not callable(make_kernel):
        raise TypeError(checks.message(expected, checks.describe(make_kernel), FIX))
    try:
        inspect.signature(make_kernel).bind(step, covariance)
    except TypeError as error:
        raise TypeError(checks.message(expected, f"{checks.describe(make_kernel)} ({error})", FIX)) from error
    kernel = make_kernel(step, covariance)
    checks.kind(kernel, Kernel, "make_kernel to return a Kernel", FIX)
    return kernel


@dataclass
class _Learning:
    """Where the chains are, the covariance they move with, and how they were accepted in the last window."""

    make_kernel: MakeKernel
    estimate: Estimate
    point: Point
    covariance: Tensor
    generator: torch.Generator
    rate: float = math.nan

    def window(self, steps: int, search: StepSearch, tick: Tick) -> tuple[Moments, Moments]:
        """Make as many transitions, and return the moments of the points and of their scores, as the estimate needs."""
        diagonal, total = self.covariance.ndim == 1, 0.0
        points, scores = Moments(diagonal=diagonal), Moments(diagonal=diagonal)
        for _ in range(steps):
            kernel = self.make_kernel(search.step, self.covariance)
            self.point, accept = transition(kernel, self.point, self.generator)
            search.update(accept)
            if self.estimate != "fisher":
                points.add(self.point.x)
            if self.estimate != "draws":
                assert self.point.score is not None  # looked for before the first window
                scores.add(self.point.score)
            total += accept
            tick(1, f"step {search.average:.4g}, acceptance {accept:.3f}")
        self.rate = total / steps if steps else math.nan
        return points, scores

    def reshape(self, points: Moments, scores: Moments) -> None:
        """Take the covariance that the moments of a window give."""
        found = self._estimated(points, scores)
        if found is None:
            got = f"points or scores that are constant or not finite, at an acceptance rate of {self.rate:.3f}"
            fix = "Check the score and the initial points, or pass a smaller start."
            raise TuningError(checks.message("chains that move in every coordinate", got, fix), math.nan, self.rate)
        self.covariance = found.to(self.point.x)

    def _estimated(self, points: Moments, scores: Moments) -> Tensor | None:
        if self.estimate == "fisher":
            return scores.inverse_second_moment()
        covariance = points.covariance()
        if self.estimate == "draws" or covariance is None:
            return covariance
        precision = scores.covariance()
        return None if precision is None else geometric_mean(covariance, precision)
