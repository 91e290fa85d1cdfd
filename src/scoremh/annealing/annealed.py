"""Chains annealed from high noise to low.

At a high level the modes of a distribution merge and chains reach all of them; on the way down, every chain is led to
where the distribution is. A score that takes a noise level (`fit_score`, a diffusion model) serves all of them.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.progress import progress_bar
from scoremh.annealing.arrival import (
    FALSE_ALARM_RATE,
    RHO_LIMIT,
    EarlyAnnealingWarning,
    NoiseRatio,
    affordable_chains,
    enough_chains,
    is_measurable,
    noise_ratio,
)
from scoremh.annealing.schedules import check_levels
from scoremh.sampling import sample
from scoremh.sampling.pools import Pool, started
from scoremh.types import Kernel

MAX_ROUNDS = 4  # how often the steps of a level are made again at most


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
        rho: Actual over expected noise of the chains at the end of every stage, 1 at equilibrium; NaN for stages that
            were not measured, None where none was. `scoremh.annealing.arrival` defines it.
    """

    draws: Float[Tensor, "chain *event"]
    levels: tuple[float, ...]
    steps: tuple[int, ...]
    acceptance_rates: tuple[float, ...]
    score_calls: int
    adjust_above: float = 0.0
    rho: tuple[float, ...] | None = None

    def __repr__(self) -> str:
        """Show the levels, the acceptance rates and the cost."""
        levels, rates = self.levels, self.acceptance_rates
        gate = f"; no accept step below noise {self.adjust_above:.3g}" if levels[-1] < self.adjust_above else ""
        noise = (
            ""
            if self.rho is None or math.isnan(self.rho[-1])
            else f"; actual over expected noise at last {self.rho[-1]:.3f}"
        )
        return (
            f"Annealed({len(self.draws)} chains, {len(levels)} stages from noise {levels[0]:.3g} to {levels[-1]:.3g}; "
            f"acceptance {rates[0]:.3f} at first, {rates[-1]:.3f} at last, {min(rates):.3f} at least{gate}{noise}; "
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
    watch: bool | None = None,
    adaptive: bool = False,
    predict: bool = False,
    denoise: bool = False,
    generator: torch.Generator | None = None,
    progress: bool = False,
    store: str | Path | None = None,
    pool: Pool = None,
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
        watch: Measure at the ends of levels how much noise the chains carry, over what they should (`rho` of the
            result), and warn where it is more than 1.05 times; chains that have arrived are warned of in at most 1 % of
            runs. By default so many chains and levels are measured as 3 % more score calls allow, and none where the
            kernels use no score, do not say what they know of p, or p has a support, or in half precision. True
            measures every level, to half a per cent where there are chains enough, at two score calls for each of up to
            40,000 / d of them; False none. The draws are the same.
        adaptive: Watch as with True, and make as many steps again on such a level, up to four times.
        predict: Go from one level to the next by a step of the probability flow, so that the steps there only correct:
            one score call more for a level. It leads the wide directions down, for which steps of the size of the
            noise are too short. The noise has to be sigma z in the coordinates of the kernels.
        denoise: Return x + sigma^2 s(x) of the last level sigma, the expected data without its noise, where the noise
            is sigma z in the coordinates of the kernels. These draws are less spread than the data.
        generator: Random number generator; the same seed gives the same draws.
        progress: Show a progress bar.
        store: Folder to write to. The same call with the same folder resumes from what is there.
        pool: Where blocks of chains are run, as for `sample`.

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
    measured = _measured_chains(initial, [steps for _, steps in stages], True if adaptive else watch)
    how: dict[str, Any] = {"asked": bool(watch or adaptive), "rounds": MAX_ROUNDS * adaptive, "predict": predict}
    bar = progress_bar(sum(steps for _, steps in stages), "annealing", unit="steps", show=progress)
    with started(pool) as workers, bar as tick:
        descent = _Descent(initial, adjust_above, {"generator": generator, "pool": workers}, store)
        for number, (level, steps) in enumerate(stages):
            descent.walk(kernel_at, number, level, steps, measured=measured[number], **how)
            tick(steps, f"noise {level:.3g}, accepted {descent.rates[-1]:.3f}")
    _warn_if_early([level for level, _ in stages], descent.ratios)
    return descent.finished(kernel_at, stages, denoise=denoise)


def _measured_chains(initial: Tensor, steps: Sequence[int], watch: bool | None) -> list[int]:
    """Return how many chains are measured at the end of every stage."""
    if watch is None:
        return affordable_chains(initial, steps)
    return [enough_chains(initial) if watch else 0] * len(steps)


@dataclass
class _Descent:
    """Chains on their way down, and what was recorded of it."""

    x: Tensor
    adjust_above: float
    options: dict[str, Any]
    store: str | Path | None
    steps: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    ratios: list[NoiseRatio | None] = field(default_factory=list)
    score_calls: int = 0
    before: tuple[Kernel, float] | None = None

    def walk(
        self,
        kernel_at: Callable[[float], Kernel],
        number: int,
        level: float,
        steps: int,
        *,
        measured: int,
        asked: bool,
        rounds: int,
        predict: bool,
    ) -> None:
        """Make the steps of a stage, and as many again while the chains have not arrived, for a number of rounds."""
        kernel = kernel_at(level) if level >= self.adjust_above else _unadjusted(kernel_at(level))
        if predict and self.before is not None:
            kernel_before, level_before = self.before
            self.x = self.moved(kernel_before, level_before * (level_before - level))  # in sigma, as `flow`
        self.before, accepted = (kernel, level), []
        for again in range(rounds + 1):
            chains = sample(kernel, self.x, draws=1, thin=steps, store=self.folder(number, again), **self.options)
            self.x = chains.draws[:, 0]
            accepted.append(chains.acceptance_rate)
            self.score_calls += chains.score_calls
            ratio = self.noise_ratio(kernel, level, measured, asked=asked) if measured else None
            if ratio is None or not ratio.early:
                break
        self.steps.append(steps * len(accepted))
        self.rates.append(sum(accepted) / len(accepted))
        self.ratios.append(ratio)

    def noise_ratio(self, kernel: Kernel, level: float, chains: int, *, asked: bool) -> NoiseRatio | None:
        """Return the actual over the expected noise of the first chains, and count its score calls.

        Nobody may have asked for it: then it is None where it means nothing, or where the score refuses so few chains.
        """
        ratio = None
        if asked:
            ratio = noise_ratio(kernel, self.x, level, chains=chains)
            if not ratio.score_calls:
                raise _no_score(kernel, "watch and adaptive")
        elif is_measurable(kernel, self.x):
            with suppress(Exception):  # such as one that knows a condition for every chain
                ratio = noise_ratio(kernel, self.x, level, chains=chains)
        self.score_calls += 0 if ratio is None else ratio.score_calls
        return ratio

    def folder(self, number: int, again: int) -> Path | None:
        """Return where a round of a stage is stored; None where nothing is."""
        name = f"stage-{number:04}" + f"-{again}" * (again > 0)
        return None if self.store is None else Path(self.store) / name

    def moved(self, kernel: Kernel, distance: float) -> Tensor:
        """Return the points moved along the score of a kernel, and count its calls."""
        score = kernel.init(self.x).score
        if score is None:
            raise _no_score(kernel, "predict and denoise")
        self.score_calls += len(self.x)
        return torch.add(self.x, score, alpha=distance).clone()

    def finished(
        self, kernel_at: Callable[[float], Kernel], stages: list[tuple[float, int]], *, denoise: bool
    ) -> Annealed:
        """Return the record, with the noise of the last level removed from the draws where that is asked for."""
        x = self.moved(kernel_at(stages[-1][0]), stages[-1][0] ** 2) if denoise else self.x
        levels = tuple(level for level, _ in stages)
        rho = tuple(math.nan if ratio is None else ratio.rho for ratio in self.ratios) if any(self.ratios) else None
        return Annealed(x, levels, tuple(self.steps), tuple(self.rates), self.score_calls, self.adjust_above, rho)


def _warn_if_early(levels: Sequence[float], ratios: Sequence[NoiseRatio | None]) -> None:
    """Warn of noise levels that the chains left with more noise than they have; `levels` has one for every ratio."""
    at_end = dict(zip(levels, ratios, strict=True))  # of a level with several stages, the last: chains left it then
    measured = {level: ratio for level, ratio in at_end.items() if ratio is not None}
    early = {level: ratio.rho for level, ratio in measured.items() if ratio.p_value < FALSE_ALARM_RATE / len(measured)}
    if early:
        worst, last = max(early, key=early.__getitem__), min(measured)
        places = dict.fromkeys((worst, last))  # one where they are the same
        amounts = " and ".join(f"{measured[level].rho:.3g} times at level {level:.3g}" for level in places)
        text = (
            f"Chains left {len(early)} of {len(measured)} noise levels with more than {RHO_LIMIT} times their noise: "
            f"{amounts}, the last that was measured. They are too wide there. Make more steps per level or "
            "final_steps, pass adaptive=True or predict=True, or tune the step of every level (annealing.tune_steps); "
            "without an accept step, make smaller steps."
        )
        warnings.warn(text, EarlyAnnealingWarning, stacklevel=3)


def _no_score(kernel: Kernel, options: str) -> ValueError:
    """Return the error for a kernel that knows no score."""
    fix = f"Use MALA, or leave {options} out."
    return ValueError(checks.message("kernels that know the score", kernel.description, fix))


def _unadjusted(kernel: Kernel) -> Kernel:
    """Return the kernel without its accept step, and refuse one whose moves do not follow the score."""
    if kernel.unadjusted is None:
        fix = "Use MALA or hamiltonian, or leave adjust_above out."
        got = f"{kernel.description}, which goes nowhere without an accept step"
        raise ValueError(checks.message("kernels whose moves follow the score below adjust_above", got, fix))
    return kernel.unadjusted()
