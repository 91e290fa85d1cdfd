r"""A test of whether a kernel leaves its target invariant: start from exact draws, and test whether any mean moves.

Many independent chains start at `x_0 ~ p` and make a few steps. If p is stationary, `E[f(x_k) - f(x_0)] = 0` for every
f. The test uses bounded f (sines and cosines of projections, a function of the radius), so that no tail is too heavy,
and Hotelling's statistic of all of them: one p-value, which is uniform if the kernel is right. Pairing x_k with x_0
gives the test its power: a chain that hardly moved adds hardly any noise. A kernel that never moves has a p-value of 1,
so the result contains the share of chains that moved, and a warning is given if it is too small.

The steps are made as in `sample`: by `kernel.run` if the kernel has it, else by `kernel.step`.
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh.types import Kernel

MAX_TRACE_NUMBERS = 2**24  # numbers in the positions that one call of `kernel.run` returns: 128 MB in float64
LEAST_MOVED = 0.01  # share of chains that must move: 200 of 20,000


@runtime_checkable
class ExactSampler(Protocol):
    """A distribution that can be sampled exactly, such as those of `scoremh.targets`."""

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw n independent events."""
        ...


@dataclass(frozen=True)
class Stationarity:
    """Result of the stationarity test of a kernel.

    Args:
        p_value: Probability of a statistic at least this large if the target is stationary.
        worst: Name of the function whose mean moved by the most standard errors.
        z: Number of standard errors by which that mean moved.
        acceptance_rate: Share of candidates that the kernel accepted.
        chains: Number of independent chains.
        steps: Number of transitions of each chain.
        moved: Share of chains that did not end at their start; a kernel that never moves leaves every distribution
            invariant.
    """

    p_value: float
    worst: str
    z: float
    acceptance_rate: float
    chains: int
    steps: int
    moved: float

    def __str__(self) -> str:
        """Return the p-value and the function that moved most in a sentence."""
        return (
            f"p-value {self.p_value:.3g} under stationarity ({self.chains} chains, exact start, {self.steps} steps, "
            f"acceptance {self.acceptance_rate:.3f}, {self.moved:.1%} of the chains moved); "
            f"most moved is the mean of {self.worst}, by {self.z:+.1f} standard errors"
        )


@torch.inference_mode()
def stationarity(
    kernel: Kernel,
    target: ExactSampler,
    *,
    chains: int = 20_000,
    steps: int = 10,
    generator: torch.Generator | None = None,
) -> Stationarity:
    """Test whether a kernel leaves a target invariant.

    Args:
        kernel: Kernel to test, by its `run` if it has one; pass `kernel._replace(run=None)` to test its `step`.
        target: Distribution with an exact sampler.
        chains: Number of independent chains; small biases need 100,000.
        steps: Number of transitions of each chain: 1 finds gross errors; with 10 to 50, small biases add up.
        generator: Random number generator; the same seed gives the same draws.

    Returns:
        A p-value, the function whose mean moved most, and the share of chains that moved, with a warning below 1 %.

    Example:
        >>> from scoremh import MALA, Always, Exact, diagnostics, metropolis_hastings, targets
        >>> normal, g = targets.Gaussian([0.0, 0.0]), torch.Generator().manual_seed(0)
        >>> right = metropolis_hastings(normal, MALA(0.5), Exact())
        >>> diagnostics.stationarity(right, normal, generator=g).p_value > 0.001
        True
        >>> unadjusted = metropolis_hastings(normal, MALA(0.5), Always())
        >>> diagnostics.stationarity(unadjusted, normal, generator=g).p_value < 1e-6
        True
    """
    fix = "Use one of scoremh.targets, or any object with sample(n, generator=...) that draws from it exactly."
    checks.kind(target, ExactSampler, "a target with exact draws", fix)
    checks.count(chains, "chains", at_least=100)
    checks.count(steps, "steps")
    start = target.sample(chains, generator=generator)
    scale_from = target.sample(2000, generator=generator)  # apart from the chains, so that scaling cannot bias the test
    generator = rng.resolve(generator, start.device)
    directions = _directions(scale_from, generator)
    end, acceptance_rate = _positions_after(kernel, start, steps, generator)
    moved = float((end != start).flatten(1).any(1).double().mean())
    if moved < LEAST_MOVED:
        got = f"{moved:.2%} after {steps} steps"
        fix = "Use a smaller step size, or more steps: the p-value of a kernel that hardly moves is meaningless."
        expected = f"at least {LEAST_MOVED:.0%} of the chains to move"
        warnings.warn(checks.message(expected, got, fix), UserWarning, stacklevel=3)  # beyond `inference_mode`
    names, columns = [], []
    for name, before, after in _functions(start, end, scale_from, directions):
        names.append(name)
        columns.append(after - before)
    p_value, z = _hotelling(torch.stack(columns, 1))
    worst = int(z.abs().argmax())
    return Stationarity(p_value, names[worst], float(z[worst]), acceptance_rate, chains, steps, moved)


def _positions_after(kernel: Kernel, start: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, float]:
    """Return the positions after these steps, made by the loop of `sample`, and the acceptance rate."""
    point, x, accepted, done = kernel.init(start), start, 0, 0
    # About as many calls as steps in a call, to find errors within a call and errors in the point between two calls.
    segment = max(1, min(math.ceil(math.sqrt(steps)), MAX_TRACE_NUMBERS // start.numel()))
    while done < steps:
        length = min(segment, steps - done)
        point, trace = kernel.steps(point, length, generator=generator)
        x, done, accepted = trace.x[-1], done + length, accepted + int(trace.accepted.sum())
    return x, accepted / (steps * len(start))


def _directions(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return up to four coordinates and, beyond one dimension, two random directions, one per row."""
    size = x[0].numel()
    axes = torch.eye(size, dtype=torch.float64, device=x.device)[:4]
    if size == 1:
        return axes
    random = rng.normal((2, size), axes, generator)
    return torch.cat([axes, random / random.norm(dim=1, keepdim=True)])


def _functions(
    before: Tensor, after: Tensor, scale_from: Tensor, directions: Tensor
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield names of bounded functions of an event, with their values before and after."""
    flat = [x.flatten(1).double() for x in (before, after, scale_from)]
    size = flat[0].shape[1]
    centre = flat[2].median(0).values
    spread = (flat[2].quantile(0.75, dim=0) - flat[2].quantile(0.25, dim=0)) / 1.349  # 1 for a standard normal
    standard = [(x - centre) / spread for x in flat]
    for i, direction in enumerate(directions):
        along = f"x[{i}]" if i < min(4, size) else f"direction {i - min(4, size)}"
        a, b = (x @ direction for x in standard[:2])
        for frequency in (0.7, 1.5):
            yield f"sin({frequency} {along})", (frequency * a).sin(), (frequency * b).sin()
            yield f"cos({frequency} {along})", (frequency * a).cos(), (frequency * b).cos()
    radii = [x.square().sum(1).sqrt() / math.sqrt(size) for x in standard[:2]]
    yield "radius / (1 + radius)", radii[0] / (1 + radii[0]), radii[1] / (1 + radii[1])


def _hotelling(changes: Tensor) -> tuple[float, Tensor]:
    """Return the p-value of the hypothesis of zero means, and every column's mean in standard errors."""
    from scipy import stats  # here, so that `import scoremh` stays light

    chains = len(changes)
    mean, errors = changes.mean(0), changes.std(0) / math.sqrt(chains)
    z = torch.where(errors > 0, mean / errors, 0.0)
    moving = errors > 0
    if not moving.any():
        return 1.0, z
    values, vectors = torch.linalg.eigh(torch.corrcoef(changes[:, moving].T).reshape(int(moving.sum()), -1))
    kept = values > 1e-8 * values.max()  # functions that are linear combinations of others count once
    along = (z[moving] @ vectors[:, kept]) / values[kept].sqrt()
    rank, statistic = int(kept.sum()), float(along.square().sum())
    return float(stats.f.sf(statistic * (chains - rank) / (rank * (chains - 1)), rank, chains - rank)), z
