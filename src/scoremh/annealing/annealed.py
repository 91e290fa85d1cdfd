"""Chains annealed from high noise to low.

At a high level the modes of a distribution merge and chains reach all of them; on the way down, every chain is led to
where the distribution is. A score that takes a noise level (`fit_score`, a diffusion model) serves all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.progress import progress_bar
from scoremh.annealing.schedules import check_levels
from scoremh.sampling import sample
from scoremh.types import Kernel


@dataclass(frozen=True, eq=False)
class Annealed:
    """What `anneal` returns.

    Args:
        draws: Last points of the chains.
        levels: Noise levels, one per stage; the last one twice where there were final steps.
        steps: Transitions per stage.
        acceptance_rates: Share of the candidates that were accepted, per stage.
        score_calls: Points at which the score was evaluated, over all chains and levels.
        adjust_above: Noise level below which every candidate was accepted; 0 where none was.
    """

    draws: Float[Tensor, "chain *event"]
    levels: tuple[float, ...]
    steps: tuple[int, ...]
    acceptance_rates: tuple[float, ...]
    score_calls: int
    adjust_above: float = 0.0

    def __repr__(self) -> str:
        """Show the levels, the acceptance rates and the cost."""
        levels, rates = self.levels, self.acceptance_rates
        gate = f"; no accept step below noise {self.adjust_above:.3g}" if levels[-1] < self.adjust_above else ""
        return (
            f"Annealed({len(self.draws)} chains, {len(levels)} stages from noise {levels[0]:.3g} to {levels[-1]:.3g}; "
            f"acceptance {rates[0]:.3f} at first, {rates[-1]:.3f} at last, {min(rates):.3f} at least{gate}; "
            f"{self.score_calls:,} score calls)"
        )


def anneal(
    kernel_at: Callable[[float], Kernel],
    levels: Sequence[float],
    initial: Tensor,
    *,
    steps_per_level: int = 20,
    final_steps: int = 0,
    adjust_above: float = 0.0,
    generator: torch.Generator | None = None,
    progress: bool = False,
    store: str | Path | None = None,
    threads: int | None = None,
) -> Annealed:
    """Lead chains from high noise to low: some steps at every level, each from where the level before ended.

    Args:
        kernel_at: Function from a noise level to the kernel for it. A step size of a fixed multiple of the squared
            level suits all.
        levels: Noise levels from high to low, such as `geometric(5.0, 0.05, 20)`.
        initial: Initial points, one per chain, `(chain, *event)`: noise of the highest level around the data's mean.
        steps_per_level: Transitions at every level.
        final_steps: Transitions at the last level after that.
        adjust_above: Noise level below which every candidate is accepted: where the integral of a learned score depends
            on its way, an accept step means little (`diagnostics.lowest_conservative_level`). 0 adjusts everywhere.
        generator: Random number generator; the same seed gives the same draws.
        progress: Show a progress bar.
        store: Folder to write to. The same call with the same folder resumes from what is there.
        threads: Number of threads that run blocks of chains, as for `sample`.

    Returns:
        Where the chains ended, and how many candidates were accepted at every level.

    Example:
        >>> import torch
        >>> from scoremh import MALA, LineIntegral, Target, annealing, metropolis_hastings
        >>> def kernel_at(level):  # N(0, 1) blurred by noise of this level
        ...     target = Target(score=lambda x: -x / (1 + level**2))
        ...     return metropolis_hastings(target, MALA(0.5 * level**2), LineIntegral())
        >>> found = anneal(kernel_at, annealing.geometric(4.0, 0.5, 4), 4 * torch.randn(10, 2), steps_per_level=5)
        >>> found.draws.shape
        torch.Size([10, 2])
    """
    checks.events(initial, "initial")
    checks.count(steps_per_level, "steps_per_level")
    checks.count(final_steps, "final_steps", at_least=0)
    check_levels(levels)
    if not adjust_above >= 0:
        raise ValueError(
            checks.message("adjust_above of at least 0", adjust_above, "Leave it out to adjust everywhere.")
        )
    stages = [(level, steps_per_level) for level in levels] + [(levels[-1], final_steps)] * (final_steps > 0)
    x, rates, score_calls = initial, [], 0
    with progress_bar(sum(steps for _, steps in stages), "annealing", unit="steps", show=progress) as tick:
        for number, (level, steps) in enumerate(stages):
            folder = None if store is None else Path(store) / f"stage-{number:04}"
            kernel = kernel_at(level) if level >= adjust_above else _unadjusted(kernel_at(level))
            chains = sample(kernel, x, draws=1, thin=steps, generator=generator, store=folder, threads=threads)
            x = chains.draws[:, 0]
            rates.append(chains.acceptance_rate)
            score_calls += chains.score_calls
            tick(steps, f"noise {level:.3g}, accepted {rates[-1]:.3f}")
    used, made = zip(*stages, strict=True)
    return Annealed(x, used, made, tuple(rates), score_calls, adjust_above)


def _unadjusted(kernel: Kernel) -> Kernel:
    """Return the kernel without its accept step, and refuse one whose moves do not follow the score."""
    if kernel.unadjusted is None:
        fix = "Use MALA or hamiltonian, or leave adjust_above out."
        got = f"{kernel.description}, which goes nowhere without an accept step"
        raise ValueError(checks.message("kernels whose moves follow the score below adjust_above", got, fix))
    return kernel.unadjusted()
