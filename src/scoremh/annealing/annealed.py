r"""Noise levels, from high to low: at each, some steps of a kernel whose target is the law blurred by that much noise.

At a high level the modes of a law merge and chains reach all of them; going down, every chain is led to where the law
is. A score that takes a level (`fit_score`, a diffusion model) serves all of them.

- `anneal` makes steps of a kernel at every level.
- `flow` carries draws from one level to another, with nothing random: dx / d sigma^2 = -C s(x, sigma) / 2 has the law
  blurred by noise of level sigma at every sigma (Song et al. 2021). Chains may so run at a level where a learned score
  is right about the weights of modes, and their draws be those of the law itself.

| schedule | level i of 0 to n - 1 |
|---|---|
| `geometric` | high (low / high)^(i / (n - 1)) |
| `karras` | (high^(1/rho) + i / (n - 1) (low^(1/rho) - high^(1/rho)))^rho (Karras et al. 2022) |
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.progress import progress_bar
from scoremh.coordinates import Affine
from scoremh.sampling import sample
from scoremh.types import Kernel, TargetLike


def geometric(high: float, low: float, n: int) -> list[float]:
    """Return n levels from high to low, each the same share of the one before.

    >>> geometric(8.0, 1.0, 4)
    [8.0, 4.0, 2.0, 1.0]
    """
    _check_range(high, low, n)
    return [_written(high * (low / high) ** share) for share in _shares(n)]


def karras(high: float, low: float, n: int, rho: float = 7.0) -> list[float]:
    """Return n levels from high to low whose rho-th roots are equally spaced."""
    _check_range(high, low, n)
    checks.positive(rho, "rho")
    a, b = high ** (1 / rho), low ** (1 / rho)
    return [_written((a + share * (b - a)) ** rho) for share in _shares(n)]


def _written(level: float) -> float:
    """Return the level with the digits that a person would write: 4.0, not 3.9999999999999996."""
    return float(f"{level:.12g}")


def _shares(n: int) -> list[float]:
    return [i / (n - 1) if n > 1 else 1.0 for i in range(n)]


def _check_range(high: float, low: float, n: int) -> None:
    checks.positive(high, "high")
    checks.positive(low, "low")
    checks.count(n, "n")
    if low > high:
        got = f"high={high} and low={low}"
        raise ValueError(checks.message("low of at most high", got, "Swap them: noise goes down."))


def _check_levels(levels: Sequence[float]) -> None:
    falling = all(later <= earlier for earlier, later in itertools.pairwise(levels))
    if not levels or not falling or not levels[-1] > 0:
        fix = "Use annealing.geometric(high, low, n), for example."
        raise ValueError(checks.message("levels from high to low", list(levels), fix))


@dataclass(frozen=True, eq=False)
class Annealed:
    """What `anneal` returns.

    Args:
        draws: Where the chains ended.
        levels: Of the noise, one per stage; the last one twice where there were final steps.
        steps: Transitions made at each.
        acceptance_rates: Share of them that were accepted.
        score_calls: Points at which the score was evaluated, over all chains and levels.
    """

    draws: Float[Tensor, "chain *event"]
    levels: tuple[float, ...]
    steps: tuple[int, ...]
    acceptance_rates: tuple[float, ...]
    score_calls: int

    def __repr__(self) -> str:
        """Say it in a line."""
        levels, rates = self.levels, self.acceptance_rates
        return (
            f"Annealed({len(self.draws)} chains, {len(levels)} stages from noise {levels[0]:.3g} to {levels[-1]:.3g}; "
            f"acceptance {rates[0]:.3f} at first, {rates[-1]:.3f} at last, {min(rates):.3f} at least; "
            f"{self.score_calls:,} score calls)"
        )


def anneal(
    kernel_at: Callable[[float], Kernel],
    levels: Sequence[float],
    initial: Tensor,
    *,
    steps_per_level: int = 20,
    final_steps: int = 0,
    generator: torch.Generator | None = None,
    progress: bool = False,
    store: str | Path | None = None,
    threads: int | None = None,
) -> Annealed:
    """Lead chains from high noise to low: some steps at every level, each from where the level before ended.

    Args:
        kernel_at: From a level to the kernel for it. A step size of a fixed multiple of the squared level suits all.
        levels: From high to low, such as `geometric(5.0, 0.05, 20)`.
        initial: Where the chains start, `(chain, *event)`: noise of the highest level around the mean of the law.
        steps_per_level: Transitions at every level.
        final_steps: More of them at the last level.
        generator: Source of randomness; the same seed gives the same bits.
        progress: Show a progress bar.
        store: A folder to write to. The same call with the same folder goes on from what is there.
        threads: As for `sample`.

    Returns:
        Where the chains ended, and how many candidates were accepted at every level.

    Example:
        >>> import torch
        >>> from scoremh import MALA, LineIntegral, Target, metropolis_hastings
        >>> def kernel_at(level):  # N(0, 1) blurred by noise of this level
        ...     target = Target(score=lambda x: -x / (1 + level**2))
        ...     return metropolis_hastings(target, MALA(0.5 * level**2), LineIntegral())
        >>> found = anneal(kernel_at, geometric(4.0, 0.5, 4), 4 * torch.randn(10, 2), steps_per_level=5)
        >>> found.draws.shape
        torch.Size([10, 2])
    """
    checks.events(initial, "initial")
    checks.count(steps_per_level, "steps_per_level")
    checks.count(final_steps, "final_steps", at_least=0)
    _check_levels(levels)
    stages = [(level, steps_per_level) for level in levels] + [(levels[-1], final_steps)] * (final_steps > 0)
    x, rates, score_calls = initial, [], 0
    with progress_bar(sum(steps for _, steps in stages), "annealing", unit="steps", show=progress) as tick:
        for number, (level, steps) in enumerate(stages):
            folder = None if store is None else Path(store) / f"stage-{number:04}"
            chains = sample(
                kernel_at(level), x, draws=1, thin=steps, generator=generator, store=folder, threads=threads
            )
            x = chains.draws[:, 0]
            rates.append(chains.acceptance_rate)
            score_calls += chains.score_calls
            tick(steps, f"noise {level:.3g}, accepted {rates[-1]:.3f}")
    return Annealed(
        x, tuple(level for level, _ in stages), tuple(steps for _, steps in stages), tuple(rates), score_calls
    )


def flow(
    target_at: Callable[[float], TargetLike],
    levels: Sequence[float],
    x: Float[Tensor, "chain *event"],
    *,
    covariance: Tensor | None = None,
) -> Float[Tensor, "chain *event"]:
    """Carry draws of the law blurred by the first level to the law blurred by the last, along the probability flow.

    Heun's method in the variance of the noise. A last level of 0 takes away the noise of the one before.

    Args:
        target_at: From a level to a target with the score of the law blurred by so much noise, such as `fit.at`.
        levels: From high to low, such as `geometric(0.3, 0.02, 8)`; the last may be 0.
        x: Draws of the law blurred by the first.
        covariance: C of the noise sigma^2 C, as for a proposal; `fit.covariance`. The identity if None.

    Returns:
        As many draws, each at the end of its path.

    Example:
        >>> import torch
        >>> from scoremh import Target
        >>> def target_at(level):  # N(0, 1) blurred by noise of this level
        ...     return Target(score=lambda x: -x / (1 + level**2))
        >>> x = torch.full((1, 1), 2.0)  # one standard deviation, with noise of variance 3
        >>> end = flow(target_at, [*geometric(3**0.5, 0.1, 20), 0.0], x)
        >>> round(float(end), 2)
        1.0
    """
    checks.events(x, "x")
    _check_levels(levels[:-1] if levels and levels[-1] == 0 else levels)
    coordinates = None if covariance is None else Affine.from_covariance(covariance)

    def drift(x: Tensor, level: float) -> Tensor:
        score = target_at(level).score
        if score is None:
            fix = "Return a target whose score is that of the law blurred by this level."
            raise ValueError(checks.message("target_at to give a target with a score", "one without", fix))
        s = score(x)
        return s / -2 if coordinates is None else coordinates.precondition(s) / -2

    with torch.inference_mode(), checks.explained():
        for high, low in itertools.pairwise(levels):
            width, slope = low**2 - high**2, drift(x, high)
            end = x + width * slope
            x = end if low == 0 else torch.add(x, slope + drift(end, low), alpha=width / 2)
    return x.clone()  # an ordinary tensor again
