r"""One sweep of replica exchange: local moves at every noise level, then swaps between neighbours.

Chains x_0, x_1, ... are at levels from high to low, and the ladder of all of them has the density
`p_0(x_0) p_1(x_1) ...`. A swap of neighbours i and j = i + 1 is accepted with probability min(1, r),

    log r = [log p_i - log p_j](x_j) - [log p_i - log p_j](x_i)

The difference of two levels at one point is an integral along the noise axis (`diffusion.log_density_change`), a fixed
function of the point, so that log r changes its sign with the direction of the swap. Pairs that begin at an even
level and those that begin at an odd one take turns.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh.annealing.schedules import check_levels
from scoremh.diffusion import log_density_change, noise_span
from scoremh.sampling.block import step_by_step
from scoremh.types import Kernel, ScoreModel

ROUNDING = 1e-6  # relative: schedules of noise levels are rounded


class Sweep(NamedTuple):
    """What one sweep did; all levels are from high to low."""

    x: Float[Tensor, "level chain *event"]
    walkers: Int[Tensor, "chain level"]
    """Number of the walker that is at a level: walkers move with the swaps."""
    accepted: Int[Tensor, "chain level"]
    """How many local moves were accepted."""
    swap_prob: Float[Tensor, "chain pair"]
    """Probability min(1, r) of a swap; 0 for pairs whose turn it was not, NaN where r was not finite."""
    score_calls: int


@dataclass(frozen=True)
class Ladder:
    """Kernels at all noise levels, and the model whose scores decide on swaps.

    Args:
        model: Scores at every noise level.
        levels: Noise levels from high to low.
        kernels: Kernels of the local moves, one per level.
        steps_per_swap: Local moves before every turn of swaps.
        nodes: Number of noise levels between two neighbours at which the score and its divergence are evaluated.
    """

    model: ScoreModel
    levels: tuple[float, ...]
    kernels: tuple[Kernel, ...]
    steps_per_swap: int
    nodes: int

    def sweep(
        self,
        x: Float[Tensor, "level chain *event"],
        walkers: Int[Tensor, "chain level"],
        turn: int,
        generator: torch.Generator,
    ) -> Sweep:
        """Make local moves at every level, then offer swaps to half of the pairs.

        Args:
            x: Where the chains are.
            walkers: Number of the walker at every level.
            turn: Number of the sweep; pairs that begin at an even level are offered a swap when it is even.
            generator: Random number generator.
        """
        moved = [self._local_moves(kernel, at, generator) for kernel, at in zip(self.kernels, x, strict=True)]
        x, accepted = torch.stack([at for at, _, _ in moved]), torch.stack([count for _, count, _ in moved], 1)
        calls = sum(number for _, _, number in moved)
        swap_prob, walkers = x.new_zeros(x.shape[1], len(self.levels) - 1), walkers.clone()
        upper = torch.arange(turn % 2, len(self.levels) - 1, 2, device=x.device)
        if len(upper):
            log_ratio = self.log_swap_ratio(x, upper)
            swap_prob[:, upper] = log_ratio.clamp(max=0).exp().T
            taken = rng.log_uniform(tuple(log_ratio.shape), x, generator) < log_ratio  # False where it is NaN
            x = _swapped(x, upper, taken)
            walkers = _swapped(walkers.T, upper, taken).T
            calls += 2 * taken.numel() * self.nodes * (1 + x[0, 0].numel())
        return Sweep(x, walkers, accepted, swap_prob, calls)

    def log_swap_ratio(
        self, x: Float[Tensor, "level chain *event"], upper: Int[Tensor, " pair"]
    ) -> Float[Tensor, "pair chain"]:
        """Return log r of swaps between these levels and the next lower ones, NaN where it is not finite.

        Args:
            x: Where the chains are.
            upper: Numbers of the higher level of every pair.
        """
        levels, chains = x.new_tensor(self.levels), x.shape[1]
        both = torch.cat([x[upper], x[upper + 1]]).flatten(0, 1)
        high, low = (levels[pair].repeat_interleave(chains).repeat(2) for pair in (upper, upper + 1))
        with checks.explained():
            change = log_density_change(self.model, both, low, high, nodes=self.nodes)  # log p_i - log p_j
        at_high, at_low = change.reshape(2, len(upper), chains)
        log_ratio: Tensor = at_low - at_high
        return log_ratio.where(log_ratio.isfinite(), torch.nan)

    def _local_moves(self, kernel: Kernel, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, int]:
        """Return where the chains of a level are then, how many moves each accepted, and the score calls.

        The point is made anew: what it held before the last swaps belongs to other levels.
        """
        point = kernel.init(x)
        run = kernel.run or partial(step_by_step, kernel)
        calls = 0 if point.score is None else len(x)
        point, trace = run(point, self.steps_per_swap, generator=generator)
        return point.x, trace.accepted.sum(0, dtype=torch.int32), calls + trace.score_calls


def _swapped(x: Tensor, upper: Tensor, taken: Tensor) -> Tensor:
    """Return rows in which those of a pair have changed places where the swap was taken, `(pair, chain)`."""
    above, below, out = x[upper], x[upper + 1], x.clone()
    mask = taken.reshape(*taken.shape, *(1,) * (x.ndim - 2))
    out[upper], out[upper + 1] = torch.where(mask, below, above), torch.where(mask, above, below)
    return out


def validated_ladder(
    kernel_at: Callable[[float], Kernel],
    levels: Sequence[float],
    x: Float[Tensor, "level chain *event"],
    model: ScoreModel,
    steps_per_swap: int,
    nodes: int,
) -> Ladder:
    """Return the kernels at all levels, having refused kernels of other events.

    Args:
        kernel_at: Function from a noise level to the kernel for it.
        levels: Noise levels from high to low.
        x: Where the chains start.
        model: Scores at every noise level.
        steps_per_swap: Local moves before every turn of swaps.
        nodes: Number of noise levels between two neighbours at which the score and its divergence are evaluated.
    """
    checks.count(steps_per_swap, "steps_per_swap")
    checks.count(nodes, "nodes")
    fix = "Pass lambda level: metropolis_hastings(model.at(level), MALA(0.5 * level**2), LineIntegral()), for example."
    if isinstance(kernel_at, Kernel) or not callable(kernel_at):
        raise TypeError(checks.message("a function from a noise level to a kernel", checks.describe(kernel_at), fix))
    kernels = tuple(kernel_at(level) for level in levels)
    for level, kernel, at in zip(levels, kernels, x, strict=True):
        checks.kind(kernel, Kernel, "kernel_at to return a Kernel", fix)
        found = kernel.init(at[:1]).x.shape[1:]
        if found != at.shape[1:]:
            expected, got = f"a kernel of events {tuple(at.shape[1:])} at level {level:g}", f"one of {tuple(found)}"
            raise ValueError(checks.message(expected, got, "Let all levels have the events of `initial`."))
    return Ladder(model, tuple(levels), kernels, steps_per_swap, nodes)


def require_levels(levels: Sequence[float], model: ScoreModel) -> None:
    """Refuse levels that do not fall, or that the model does not know."""
    _, most = known_span(model)
    check_levels(levels)
    if len(levels) < 2 or any(low >= high for high, low in itertools.pairwise(levels)):
        fix = "Use annealing.geometric(high, low, n), or annealing.tune_levels."
        raise ValueError(checks.message("at least two levels, each below the one before", list(levels), fix))
    assert model.noise_range is not None  # known_span has looked
    least = model.noise_range[0]
    if not (least * (1 - ROUNDING) <= levels[-1] and levels[0] <= most * (1 + ROUNDING)):
        got, fix = f"{levels[-1]:g} to {levels[0]:g}", "Choose levels in this range."
        raise ValueError(checks.message(f"levels that the model knows, {least:g} to {most:g}", got, fix))


def known_span(model: ScoreModel) -> tuple[float, float]:
    """Return the level at which a model is read and the highest that it knows, having refused one without levels."""
    fix = "Pass what fit_score returns, or a normal mixture of scoremh.targets."
    checks.kind(model, ScoreModel, "model to know the scores of all noise levels", fix)
    return noise_span(model)
