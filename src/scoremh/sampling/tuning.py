r"""Step sizes (`tune`) and covariances (`warmup`), learned before sampling: `sample` itself never adapts.

`tune` uses dual averaging (Nesterov 2009; Hoffman and Gelman 2014, section 3.2) on the log of the step size. It moves
the mean over chains of a(x', x) to the rate at which the kernel is most efficient.

`warmup` works in windows, as Stan does. In the first, chains leave their initial points and only the step size is
tuned. Then follow windows of doubling length; after each, the covariance C is estimated from that window alone, and the
step size search starts again at 1, since a good step is near 1 in coordinates whitened by C. The last window tunes the
step size. The chains also move while a step size is being doubled or halved. With the covariance S of the n points of
all chains in a window, and the covariance G of their scores s, C is

| estimate | C |
|---|---|
| "draws" | S |
| "geometric" | solution of C G C = S: the geometric mean of S and G^-1 (Seyboldt, Carlson and Carpenter 2026) |

S and G are shrunk as in Stan, but in the unit of the target: n / (n + 5) S + 5e-3 / (n + 5) m I, with m the median of
the diagonal. For a Gaussian, both estimates are Cov(x) once the chains have reached it. While chains are still far out
along a wide direction, "draws" becomes wider there, so they move faster. "geometric" is Cov(x) for a Gaussian wherever
the chains are, up to the shrinkage in the first windows: s = -P (x - m) gives G = P S P, which C = P^-1 solves.

If the kernel has a trajectory length L, longer and longer ones from 4 on are tried before the last window, while they
improve. For each a step size is tuned, and then the worth of its transitions is measured on all chains; the step
is shortened while this improves it:

    effective draws per score call = min_f 1 / (tau_f c),    c = score calls per transition

where tau_f is the integrated autocorrelation time of f(x): the positions u_i along the slowest axes, u_i^2, and |u|^2,
in coordinates u in which the covariance is the identity and jumps are uncorrelated, so that the slowest direction is an
axis. ChEES (Hoffman, Radul and Sountsov 2021) follows the squared jumps of |u|^2 alone, without their cost.

A chain that did not move in the last window, far out where the score is huge, has no effect on any of these: it would
make the step small for all others.
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
from scoremh._shared.algebra import inner, rows_finite
from scoremh._shared.progress import Tick, progress_bar
from scoremh.coordinates import Affine
from scoremh.types import Kernel, Point

# Hoffman and Gelman's gamma, t_0 and kappa: shrinkage toward the start, stabilising iterations, decay of the average.
GAMMA, OFFSET, DECAY = 0.05, 10, 0.75
MAX_TRIALS = 60  # a factor of 2^60 either way


class TuningError(RuntimeError):
    """Raised if no step size gives the target acceptance rate; has the last `step` tried and its `rate`."""

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
    """Return a step size at which the kernel has its target acceptance rate.

    All chains share one step size, which changes after every transition with their mean acceptance probability. This is
    why there is no argument `pool`: separate blocks would each find a step size of their own, from fewer chains.

    Args:
        make_kernel: Function from a step size to a kernel, for example `lambda h: metropolis_hastings(target, MALA(h),
            LineIntegral())`.
        initial: Initial points, one per chain. The chains move during tuning; more chains estimate the rate better.
        target_rate: Acceptance rate to reach; by default the kernel's own (0.574 for MALA, 0.234 for a random walk;
            lower with Barker).
        start: First step size to try.
        upper: Largest step size allowed; pass 1 for the beta of `PCN`.
        steps: Number of transitions.
        generator: Random number generator; the same seed gives the same step size.
        progress: Show a progress bar.

    Returns:
        The step size, an average over the later transitions.

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
    """Return the acceptance rate to reach, by default the kernel's own; raise an error if it has none."""
    rate = kernel.target_rate if target_rate is None else target_rate
    if rate is None:
        fix = "Pass target_rate=..., or use a rule that can reject, such as LineIntegral()."
        raise ValueError(checks.message("a kernel with an acceptance rate to aim at", kernel.description, fix))
    if not 0 < rate < 1:
        fix = "0.574 is usual for MALA, 0.234 for a random walk."
        raise ValueError(checks.message("target_rate in (0, 1)", rate, fix))
    return rate


def transition(
    kernel: Kernel, point: Point, generator: torch.Generator, counted: Tensor | None = None
) -> tuple[Point, float]:
    """Return the point after one transition, and the mean acceptance probability of the counted chains, or of all."""
    point, trace = kernel.steps(point, 1, generator=generator)
    accept = trace.log_accept[0].exp().nan_to_num(0)
    return point, float((accept if counted is None else accept[counted]).mean())


class StepSearch:
    """A search for the step size with a given acceptance rate: use `step`, then `update` with its acceptance.

    The step size is doubled or halved until its acceptance crosses `rate`; dual averaging follows.
    """

    def __init__(self, start: float, rate: float, upper: float = math.inf) -> None:
        self.rate, self.log_upper = rate, math.log(upper)
        self.log_step = self.centre = self.log_average = math.log(min(start, upper))
        self.bracketed, self.grow, self.trials = False, False, 0
        self.error, self.updates = 0.0, 0

    @property
    def step(self) -> float:
        """The step size to try next."""
        return math.exp(self.log_step)

    @property
    def average(self) -> float:
        """The resulting step size, an average over the later updates."""
        return math.exp(self.log_average)

    def update(self, accept: float) -> None:
        """Change the step size, given the mean acceptance probability at `step`."""
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
        """Double or halve the step size until the acceptance crosses `rate`."""
        if self.trials == 0:
            self.grow = accept > self.rate
        if (accept > self.rate) != self.grow or (self.grow and self.log_step >= self.log_upper):
            self.bracketed = True
            return
        self.log_step = min(self.log_step + math.log(2), self.log_upper) if self.grow else self.log_step - math.log(2)
        self.trials += 1
        if self.trials == MAX_TRIALS:
            text = checks.message(
                f"a step size with an acceptance rate of {self.rate}",
                f"{accept:.3f} at all step sizes down or up to {self.step:.3g}",
                "Check the score: such a rate suggests NaN, a wrong sign, or a rule that never rejects.",
            )
            raise TuningError(text, self.step, accept)


# Stan's shrinkage of an estimate from n draws: n / (n + 5) of it, plus 5 / (n + 5) times 1e-3 of the identity. Here the
# identity is scaled by the median variance, so that the result does not depend on the units of the data.
PRIOR_DRAWS, PRIOR_SCALE = 5, 1e-3


class Moments:
    """Running mean and covariance `(d, d)` of flattened events, in float64; only variances `(d,)` if `diagonal`."""

    def __init__(self, *, diagonal: bool) -> None:
        self.diagonal = diagonal
        self.count = 0
        self.mean = torch.zeros(())
        self.scatter = torch.zeros(())

    def add(self, events: Tensor) -> None:
        """Add a batch of events `(n, *event)`."""
        rows = events.detach().flatten(1).double()
        n, mean = len(rows), rows.mean(0)
        # Chan, Golub and LeVeque (1979): the scatter within both parts, plus the scatter between their means.
        shift, total = mean - self.mean, self.count + n
        self.scatter = self.scatter + self._square(rows - mean) + self._square(shift[None]) * (self.count * n / total)
        self.mean = self.mean + shift * (n / total)
        self.count = total

    def _square(self, rows: Tensor) -> Tensor:
        return rows.square().sum(0) if self.diagonal else rows.T @ rows

    def covariance(self) -> Tensor | None:
        """Return the shrunk covariance; None if it is not finite or the events are constant."""
        return self._shrunk(self.scatter / max(1, self.count - 1))

    def _shrunk(self, estimate: Tensor) -> Tensor | None:
        diagonal = estimate if self.diagonal else estimate.diagonal()
        unit = diagonal.median()
        if not bool(estimate.isfinite().all() and unit > 0):
            return None
        floor = (PRIOR_DRAWS / (self.count + PRIOR_DRAWS) * PRIOR_SCALE * unit).expand(len(diagonal))
        weight = self.count / (self.count + PRIOR_DRAWS)
        return weight * estimate + (floor if self.diagonal else floor.diag())


def geometric_mean(covariance: Tensor, precision: Tensor) -> Tensor | None:
    """Return C with C P C = S for S = covariance and P = precision, diagonals or matrices; None if it is not finite."""
    if covariance.ndim == 1:
        found = (covariance / precision).sqrt()
    else:
        # S = L L^T: C = L (L^T P L)^(-1/2) L^T
        root, failed = torch.linalg.cholesky_ex(covariance)
        values, vectors = torch.linalg.eigh(root.mT @ precision @ root)
        if bool(failed) or not bool(values[0] > 0):
            return None
        half = root @ vectors / values**0.25
        found = half @ half.mT
    return found if bool(found.isfinite().all()) else None


def autocorrelation_time(values: Float[Tensor, "draw chain number"]) -> Float[Tensor, " number"]:
    """Return the integrated autocorrelation time of numbers of mean 0, by Geyer's initial positive sequence."""
    draws = len(values)
    spectrum = torch.fft.rfft(values, 2 * draws, dim=0).abs().square().mean(1)
    covariance = torch.fft.irfft(spectrum, dim=0)[:draws] / torch.arange(draws, 0, -1)[:, None].to(values)
    pairs = (covariance / covariance[0])[: draws // 2 * 2].unflatten(0, (-1, 2)).sum(1)
    times: Tensor = 2 * (pairs * (pairs > 0).cumprod(0)).sum(0) - 1
    return times


Shape = Literal["dense", "diagonal"]
Estimate = Literal["draws", "geometric"]
MakeKernel = Callable[[float, Tensor], Kernel] | Callable[[float, Tensor, int], Kernel]

# Stan's lengths of the first window, the last window and the shortest window for the covariance; and the shares of the
# first and the last window if there are too few steps (Stan Reference Manual, "Automatic parameter tuning").
FIRST, LAST, SHORTEST = 75, 50, 25
FIRST_SHARE, LAST_SHARE = 0.15, 0.1
LEAST_STEPS = 20
FIX = "Pass lambda h, covariance: metropolis_hastings(target, MALA(h, covariance), LineIntegral()), for example."

LENGTHS = (4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128)  # up to 3 steps cost as many score calls as 4
LENGTH_STEPS = 12  # transitions in which the step size for a length is tuned
LEAST_MEASURED, MEASURED_MOVES = 20, 8000  # transitions in which a length is measured, and moves of all chains
# The acceptance rate to tune trajectories of several steps to. Chosen with `LineIntegral()` on a Gaussian, a twisted
# Gaussian, a logistic and a Student's distribution in 10 to 50 dimensions: .65 was worth about half as much.
LENGTH_RATE = 0.9
AXES = 64  # number of slowest axes along which the worth is measured
SHORTER, MAX_RATE = 0.8, 0.99  # the factor by which the step is shortened, and the highest acceptance rate to tune to


@dataclass(frozen=True, eq=False)
class Warmup:
    """The result of `warmup`.

    Args:
        step_size: Step size.
        covariance: Covariance over the flattened event: a diagonal `(d,)` or a matrix `(d, d)`.
        draws: Points of the chains after the last step; start `sample` from them.
        acceptance_rate: Mean acceptance probability over the last window, of the chains that move.
        kernel: The kernel with this step size, this covariance and this length.
        length: Trajectory length, a number of leapfrog steps; None for a kernel without one.
    """

    step_size: float
    covariance: Float[Tensor, " d"] | Float[Tensor, "d d"]
    draws: Float[Tensor, "chain *event"]
    acceptance_rate: float
    kernel: Kernel = field(repr=False)
    length: int | None = None

    def __repr__(self) -> str:
        """Show the step size, the shape of the covariance and the acceptance rate on one line."""
        size = "diagonal" if self.covariance.ndim == 1 else "dense"
        shape, chains = tuple(self.covariance.shape), len(self.draws)
        steps = "" if self.length is None else f"length {self.length}, "
        return (
            f"Warmup(step size {self.step_size:.4g}, {steps}{size} covariance {shape}, {chains} chains of "
            f"{tuple(self.draws.shape[1:])}, acceptance {self.acceptance_rate:.3f})"
        )


def windows(steps: int) -> tuple[int, ...]:
    """Return the lengths of the first window, the doubling windows and the last window; their sum is `steps`."""
    first, last = FIRST, LAST
    if steps < FIRST + SHORTEST + LAST:
        first, last = int(FIRST_SHARE * steps), int(LAST_SHARE * steps)
    return (first, *_doubling(steps - first - last), last)


def _doubling(steps: int) -> Iterator[int]:
    """Yield lengths that double; if the next length would not fit, the current one takes all remaining steps."""
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
    """Learn a step size, a covariance and a trajectory length, and return them with the final points of the chains.

    Like `tune`, it has no argument `pool`, because all chains together adapt the kernel after every transition.

    Args:
        make_kernel: Function from a step size and a covariance to a kernel, for example
            `lambda h, c: metropolis_hastings(target, MALA(h, c), LineIntegral())`; or of a length as well,
            `lambda h, c, L: hamiltonian(target, h, L, LineIntegral(), covariance=c)`. It is called for every
            transition.
        initial: Initial points, one per chain, preferably more spread out than the target. More chains give a better
            estimate of the covariance.
        steps: Total number of transitions, at least 20. A length takes several hundred more with 100
            chains, and tens of thousands with one chain.
        covariance: "dense" for a matrix over the flattened event, "diagonal" for one variance per coordinate.
        estimate: "draws" for the covariance of the points, "geometric" for the geometric mean of this covariance and
            the inverse covariance of the scores. None means "geometric" if the kernel computes scores at the points, as
            with MALA or `LineIntegral`, otherwise "draws".
        target_rate: Acceptance rate to reach; by default the kernel's own, or 0.9 if a length is learned.
        start: First step size to try, with the identity as covariance.
        upper: Largest step size allowed.
        generator: Random number generator; the same seed gives the same result.
        progress: Show a progress bar.

    Returns:
        Step size, covariance, points, acceptance rate, and the resulting kernel, which no longer adapts.

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
    kernel, length = _first_kernel(make_kernel, min(start, upper), shape)
    rate = aimed_rate(kernel, target_rate)
    if length is not None and target_rate is None and rate > 0.5:  # Barker's balance accepts half at most
        rate = LENGTH_RATE
    learning = _Learning(make_kernel, shape, length, rate, upper, rng.resolve(generator, initial.device))
    point = kernel.init(initial)
    estimate = estimate or ("draws" if point.score is None else "geometric")
    if estimate != "draws" and point.score is None:
        fix = 'Use a proposal or a rule that needs the score, such as MALA or LineIntegral(), or estimate="draws".'
        raise ValueError(checks.message("a kernel whose points keep their scores", kernel.description, fix))
    learning.point, learning.estimate = point, estimate
    learning.moving = rows_finite(point.x if point.score is None else point.score)
    first, *doubling, last = windows(steps)
    search = learning.search(start)
    with progress_bar(steps, "warm-up", unit="steps", show=progress) as tick:
        learning.window(first, search, tick)
        for window in doubling:
            learning.reshape(*learning.window(window, search, tick))
            search = learning.search(1.0)
        if length is not None:
            search = learning.search(learning.find_length(shorten=target_rate is None))
        learning.window(last, search, tick)
    step, kernel = search.average, learning.kernel(search.average)
    return Warmup(step, learning.covariance, learning.point.x.clone(), learning.rate, kernel, learning.length)


def _first_kernel(make_kernel: MakeKernel, step: float, covariance: Tensor) -> tuple[Kernel, int | None]:
    """Return the first kernel, after checking `make_kernel`, and its length if `make_kernel` takes one."""
    expected = "a function from a step size and a covariance to a kernel"
    if isinstance(make_kernel, Kernel) or not callable(make_kernel):
        raise TypeError(checks.message(expected, checks.describe(make_kernel), FIX))
    signature, arguments = inspect.signature(make_kernel), (step, covariance)
    try:
        signature.bind(*arguments)
    except TypeError as error:
        arguments += (LENGTHS[0],)  # type: ignore[assignment]
        try:
            signature.bind(*arguments)
        except TypeError:
            raise TypeError(checks.message(expected, f"{checks.describe(make_kernel)} ({error})", FIX)) from error
    kernel = make_kernel(*arguments)  # type: ignore[call-arg]
    checks.kind(kernel, Kernel, "make_kernel to return a Kernel", FIX)
    return kernel, LENGTHS[0] if len(arguments) == 3 else None


@dataclass
class _Learning:
    """State of `warmup`: the points, covariance and length so far, and the acceptance rate of the last window."""

    make_kernel: MakeKernel
    covariance: Tensor
    length: int | None
    rate_to_reach: float
    upper: float
    generator: torch.Generator
    point: Point = field(init=False)
    estimate: Estimate = field(init=False)
    moving: Tensor = field(init=False)
    """Which chains moved in the last window; at first, those with a finite score. Others would spoil all estimates."""
    rate: float = math.nan

    def kernel(self, step: float) -> Kernel:
        """Return the kernel with a step size, and the covariance and length so far."""
        if self.length is None:
            return self.make_kernel(step, self.covariance)  # type: ignore[call-arg]
        return self.make_kernel(step, self.covariance, self.length)  # type: ignore[call-arg]

    def search(self, start: float) -> StepSearch:
        """Return a search for the step size."""
        return StepSearch(start, self.rate_to_reach, self.upper)

    def find_length(self, *, shorten: bool) -> float:
        """Set the length of the largest worth, and return its step size; each is shortened while this improves it."""
        best, step, worse = (-math.inf, self.length, 1.0, self.rate_to_reach), 1.0, 0
        for length in LENGTHS:
            self.length = length
            search = self.search(step)
            while search.updates < LENGTH_STEPS:
                self.transition(search)
            step = search.average
            found = (self._worth(self.kernel(step))[0], length, step, self.rate_to_reach)
            while shorten:
                worth, rate = self._worth(self.kernel(SHORTER * found[2]))
                if worth <= found[0]:
                    break
                found = worth, length, SHORTER * found[2], min(rate, MAX_RATE)
            worse = worse + 1 if found[0] <= best[0] else 0
            best = max(best, found, key=lambda one: one[0])
            if worse == 2:  # one may be worse by chance, or by resonance
                break
        _, self.length, step, self.rate_to_reach = best
        return step

    def transition(self, search: StepSearch) -> float:
        """Make a transition, update the step size, and return the acceptance rate of the chains that move."""
        self.point, accept = transition(self.kernel(search.step), self.point, self.generator, self.moving)
        search.update(accept)
        return accept

    def _worth(self, kernel: Kernel) -> tuple[float, float]:
        """Return a kernel's effective draws per score call, as the module's docstring defines them, and its rate."""
        n, chains = max(LEAST_MEASURED, MEASURED_MOVES // len(self.point.x)), int(self.moving.sum())
        positions, calls, rate = [self.point.x[self.moving]], 0, 0.0
        for _ in range(n):
            self.point, trace = kernel.steps(self.point, 1, generator=self.generator)
            positions.append(self.point.x[self.moving])
            calls += trace.score_calls
            rate += float(trace.log_accept[0, self.moving].exp().nan_to_num(0).mean()) / n
        u = Affine.from_covariance(self.covariance).whiten(torch.cat(positions)).flatten(1).double()
        if len(u) <= u.shape[1]:  # too few points for a covariance, and perhaps too many coordinates for a matrix
            return 0.0, rate
        u = u - u.mean(0)
        jumps = u.view(n + 1, chains, -1).diff(dim=0).flatten(0, 1)
        root, failed = torch.linalg.cholesky_ex(u.T @ u)
        if bool(failed) or not bool(u.isfinite().all()):  # chains that stay in a subspace
            return 0.0, rate
        axes = torch.linalg.eigh(torch.linalg.solve(root, torch.linalg.solve(root, jumps.T @ jumps).T))[1]
        along = torch.linalg.solve(root, u.T).T @ axes[:, :AXES]
        values = torch.cat([along, along.square(), inner(u, u)[:, None]], 1)
        times = autocorrelation_time((values - values.mean(0)).view(n + 1, chains, -1))
        return float((1 / times).min().nan_to_num(0.0)) * n * len(self.point.x) / max(1, calls), rate

    def window(self, steps: int, search: StepSearch, tick: Tick) -> tuple[Moments, Moments]:
        """Make `steps` transitions, and return the moments of the points and, if needed, of their scores."""
        diagonal, total = self.covariance.ndim == 1, 0.0
        points, scores = Moments(diagonal=diagonal), Moments(diagonal=diagonal)
        moved = torch.zeros(len(self.point.x), dtype=torch.bool, device=self.point.x.device)
        for _ in range(steps):
            before = self.point.x
            accept = self.transition(search)
            moved |= (self.point.x != before).flatten(1).any(1)
            rows = self.moving | moved
            points.add(self.point.x[rows])
            if self.estimate == "geometric":
                assert self.point.score is not None  # checked before the first window
                scores.add(self.point.score[rows])
            total += accept
            tick(1, f"step {search.average:.4g}, acceptance {accept:.3f}")
        self.rate = total / steps if steps else math.nan
        self.moving = moved if bool(moved.any()) else torch.ones_like(moved)
        return points, scores

    def reshape(self, points: Moments, scores: Moments) -> None:
        """Set the covariance from the moments of a window."""
        found = self._estimated(points, scores)
        if found is None:
            got = f"points or scores that are constant or not finite, at an acceptance rate of {self.rate:.3f}"
            fix = "Check the score and the initial points, or pass a smaller start."
            raise TuningError(checks.message("chains that move in every coordinate", got, fix), math.nan, self.rate)
        self.covariance = found.to(self.point.x)

    def _estimated(self, points: Moments, scores: Moments) -> Tensor | None:
        covariance = points.covariance()
        if self.estimate == "draws" or covariance is None:
            return covariance
        precision = scores.covariance()
        return None if precision is None else geometric_mean(covariance, precision)
