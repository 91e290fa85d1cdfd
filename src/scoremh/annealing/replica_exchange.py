r"""Replica exchange over noise levels: chains at all levels, with swaps between neighbouring levels.

At a high level the modes of a distribution merge; a walker that moves up and down again may end in another mode. Swaps
leave the distribution at each level unchanged, so the draws at the lowest level have the right weights of the modes,
as far as the scores of all levels together determine them.

Chains x_0, x_1, ... are at levels from high to low, with the joint density p_0(x_0) p_1(x_1) ... A sweep makes some
local moves at every level. It then proposes swaps of neighbours i and j = i + 1, alternately for even and odd i, which
are accepted with probability min(1, r):

    log r = [log p_i - log p_j](x_j) - [log p_i - log p_j](x_i)

The difference of two levels at one point is an integral along the noise axis (`diffusion.log_density_change`). It is a
fixed function of the point, so log r is antisymmetric.

`tune_levels` places the levels so that all pairs swap at equal rates (Syed et al. 2022). The rejection rates of
neighbouring pairs add up approximately to the communication barrier B, which does not depend on the levels in between.
Levels at equal increments of this sum have equal rates: with n levels, 1 - B / (n - 1).
"""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.counting import score_calls
from scoremh._shared.files import fingerprint
from scoremh._shared.probe import Probe
from scoremh._shared.progress import progress_bar
from scoremh.annealing.anneal import check_levels, geometric
from scoremh.diffusion import NODES_BETWEEN_LEVELS, log_density_change, noise_span
from scoremh.sampling.pools import Pool, check_pool, started
from scoremh.sampling.sample import (
    PROBE_CHAINS,
    SAVE_SECONDS,
    Job,
    RateReport,
    Report,
    block_size,
    first_step,
    jobs_of,
    run_blocks,
    stored_run,
)
from scoremh.sampling.store import Layout, Records, State, Store
from scoremh.types import Kernel, Point, ScoreModel

ROUNDING = 1e-6  # relative: schedules of noise levels are rounded


class Sweep(NamedTuple):
    """The result of one sweep; levels are from high to low."""

    x: Float[Tensor, "level chain *event"]
    walkers: Int[Tensor, "chain level"]
    """Number of the walker at each level; walkers move with the swaps."""
    accepted: Int[Tensor, "chain level"]
    """Number of accepted local moves."""
    swap_prob: Float[Tensor, "chain pair"]
    """Probability min(1, r) of a swap; 0 for pairs without a proposed swap, NaN if r was not finite."""
    score_calls: int


@dataclass(frozen=True)
class Ladder:
    """Kernels of the local moves at all noise levels, and the model whose scores decide about swaps."""

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
        """Make local moves at every level, then propose swaps for every second pair: i even if `turn` is even."""
        with score_calls() as calls:
            moved = [self._local_moves(kernel, at, generator) for kernel, at in zip(self.kernels, x, strict=True)]
            x, accepted = torch.stack([at for at, _ in moved]), torch.stack([count for _, count in moved], 1)
            swap_prob, walkers = x.new_zeros(x.shape[1], len(self.levels) - 1), walkers.clone()
            upper = torch.arange(turn % 2, len(self.levels) - 1, 2, device=x.device)
            if len(upper):
                log_ratio = self.log_swap_ratio(x, upper)
                swap_prob[:, upper] = log_ratio.clamp(max=0).exp().T
                taken = rng.log_uniform(tuple(log_ratio.shape), x, generator) < log_ratio  # False for NaN
                x = _swapped(x, upper, taken)
                walkers = _swapped(walkers.T, upper, taken).T
        return Sweep(x, walkers, accepted, swap_prob, calls.total)

    def log_swap_ratio(
        self, x: Float[Tensor, "level chain *event"], upper: Int[Tensor, " pair"]
    ) -> Float[Tensor, "pair chain"]:
        """Return log r of swaps between the levels with the numbers `upper` and the next lower ones; NaN for inf."""
        levels, chains = x.new_tensor(self.levels), x.shape[1]
        both = torch.cat([x[upper], x[upper + 1]]).flatten(0, 1)
        high, low = (levels[pair].repeat_interleave(chains).repeat(2) for pair in (upper, upper + 1))
        with checks.explained():
            change = log_density_change(self.model, both, low, high, nodes=self.nodes)  # log p_i - log p_j
        at_high, at_low = change.reshape(2, len(upper), chains)
        log_ratio: Tensor = at_low - at_high
        return log_ratio.where(log_ratio.isfinite(), torch.nan)

    def _local_moves(self, kernel: Kernel, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the points of a level after local moves, and the number of accepted moves of each chain.

        The kernel is initialised every time, because swaps have exchanged the positions of the levels.
        """
        point = kernel.init(x)
        point, trace = kernel.steps(point, self.steps_per_swap, generator=generator)
        return point.x, trace.accepted.sum(0, dtype=torch.int32)


def _swapped(x: Tensor, upper: Tensor, taken: Tensor) -> Tensor:
    """Return x with the rows `upper` and `upper + 1` exchanged in chains that accept; `taken` is `(pair, chain)`."""
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
    """Return the kernels at all levels, after checking that they accept events of the shape of x."""
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
            expected = f"a kernel for events of shape {tuple(at.shape[1:])} at level {level:g}"
            fix = "Use targets whose events have the shape of those in `initial`."
            raise ValueError(checks.message(expected, f"a kernel for shape {tuple(found)}", fix))
    return Ladder(model, tuple(levels), kernels, steps_per_swap, nodes)


def require_levels(levels: Sequence[float], model: ScoreModel) -> None:
    """Raise an error unless the levels decrease and lie within the noise range of the model."""
    _, most = known_span(model)
    check_levels(levels)
    if len(levels) < 2 or any(low >= high for high, low in itertools.pairwise(levels)):
        fix = "Use annealing.geometric(high, low, n), or annealing.tune_levels."
        raise ValueError(checks.message("at least two levels, each below the one before", list(levels), fix))
    assert model.noise_range is not None  # checked by known_span
    least = model.noise_range[0]
    if not (least * (1 - ROUNDING) <= levels[-1] and levels[0] <= most * (1 + ROUNDING)):
        got, fix = f"{levels[-1]:g} to {levels[0]:g}", "Choose levels in this range."
        raise ValueError(checks.message(f"levels in the noise range of the model, {least:g} to {most:g}", got, fix))


def known_span(model: ScoreModel) -> tuple[float, float]:
    """Return the noise level of a model and its highest level, after checking that it has noise levels."""
    fix = "Pass a fit of fit_score, or a normal mixture of scoremh.targets."
    checks.kind(model, ScoreModel, "model to have scores at all noise levels", fix)
    return noise_span(model)


GOOD_SWAP_RATES = 0.2, 0.6  # below, walkers rarely pass; above, levels are wasted (Syed et al. 2022: 0.5 is best)


@dataclass(frozen=True, eq=False)
class Replicas:
    """The result of `replica_exchange`. Levels are from high to low.

    Args:
        draws: Draws at the lowest level.
        last: Last points at each level; continue the run with `initial=found.last`.
        levels: Noise levels.
        swap_rates: Mean acceptance probability of swaps, per pair of neighbouring levels.
        acceptance_rates: Fraction of accepted local moves, per level.
        round_trips: Number of times that a walker went from the lowest level to the highest and back, per chain.
        nonfinite: Number of swaps that were rejected because their ratio was not finite.
        score_calls: Number of points at which the score was evaluated, over all chains, levels and sweeps, including
            warm-up. A score with its divergence counts as one plus the number of coordinates.
    """

    draws: Float[Tensor, "chain draw *event"]
    last: tuple[Float[Tensor, "chain *event"], ...]
    levels: tuple[float, ...]
    swap_rates: tuple[float, ...]
    acceptance_rates: tuple[float, ...]
    round_trips: Int[Tensor, " chain"]
    nonfinite: int
    score_calls: int

    @property
    def hints(self) -> list[str]:
        """Advice if swap rates are outside the good range, if there are no round trips, or if ratios are not finite."""
        found, (least, most) = [], GOOD_SWAP_RATES
        rarest, most_frequent = min(self.swap_rates), max(self.swap_rates)
        if rarest < least or most_frequent > most:
            advice = "add levels" if rarest < least else "fewer levels are enough"
            span = f"swap rates of {rarest:.2f} to {most_frequent:.2f} lie outside {least} to {most}"
            found.append(f"{span}: {advice}, or choose them with annealing.tune_levels")
        if not self.round_trips.any():
            found.append("no walker went from the lowest level to the highest and back: draw more, or add levels")
        if self.nonfinite:
            found.append(f"{self.nonfinite} swaps had a ratio that is not finite: check the score of the model")
        return found

    def __repr__(self) -> str:
        """Show the shape, the levels, the swap rates, the round trips and the cost, then the hints."""
        chains, draws, *event = self.draws.shape
        swaps, moves = " ".join(f"{rate:.2f}" for rate in self.swap_rates), self.acceptance_rates
        text = (
            f"Replicas({chains} chains x {draws} draws of {tuple(event)}, {len(self.levels)} levels from noise "
            f"{self.levels[0]:.3g} to {self.levels[-1]:.3g}; swap rates {swaps}; "
            f"{float(self.round_trips.double().mean()):.3g} round trips per chain; "
            f"acceptance {min(moves):.3f} to {max(moves):.3f}; {self.score_calls:,} score calls)"
        )
        return "\n".join([text, *(f"hint: {hint}" for hint in self.hints)])


def round_trips(walkers: Int[Tensor, "chain draw level"]) -> Int[Tensor, " chain"]:
    """Return the number of round trips of walkers from the lowest level to the highest and back, per chain.

    `walkers` holds the number of the walker at each level after each sweep; the first level is the highest.
    """
    chains, _, levels = walkers.shape
    trips = torch.zeros(chains, dtype=torch.int64, device=walkers.device)
    rising, falling = (torch.zeros(chains, levels, dtype=torch.bool, device=walkers.device) for _ in range(2))
    row = torch.arange(chains, device=walkers.device)
    for now in walkers.unbind(1):
        top, bottom = now[:, 0].long(), now[:, -1].long()
        falling[row, top] |= rising[row, top]  # rising: it has been at the lowest level before
        trips += falling[row, bottom]
        falling[row, bottom], rising[row, bottom] = False, True
    return trips


def replica_exchange(
    kernel_at: Callable[[float], Kernel],
    levels: Sequence[float],
    initial: Float[Tensor, "chain *event"] | Sequence[Tensor],
    *,
    model: ScoreModel,
    draws: int,
    burn_in: int = 0,
    steps_per_swap: int = 4,
    nodes: int = NODES_BETWEEN_LEVELS,
    generator: torch.Generator | None = None,
    progress: bool = False,
    store: str | Path | None = None,
    pool: Pool = None,
) -> Replicas:
    """Run chains at all noise levels, with swaps between neighbouring levels, and return draws at the lowest level.

    A sweep makes some local moves at every level, then proposes a swap for every second pair of neighbours.

    Args:
        kernel_at: Function from a noise level to the kernel of `model.at(level)`, as for `anneal`. Its target must not
            have a support, because swaps move points from high levels to low ones.
        levels: Noise levels from high to low, such as the result of `tune_levels`: from a level at which the modes have
            merged to the level of the draws.
        initial: Initial points `(chain, *event)` for all levels, such as noise of the highest; or one such tensor per
            level.
        model: Model with scores at all noise levels, such as the fit of `fit_score`.
        draws: Number of sweeps to keep, at least 2; each gives one draw per chain.
        burn_in: Number of sweeps before the first kept one.
        steps_per_swap: Number of local moves in a sweep.
        nodes: Number of noise levels between two neighbours at which the score and its divergence are evaluated.
        generator: Random number generator; the same seed gives the same draws.
        progress: Show a progress bar.
        store: Folder to write to during the run. The same call with the same folder resumes an interrupted run, and
            returns the same bits as a run without interruption.
        pool: Workers that run blocks of chains, each with all of its levels, as for `sample`.

    Returns:
        The draws at the lowest level, swap rates, acceptance rates, and numbers of round trips.

    Example:
        >>> import torch
        >>> from scoremh import MALA, LineIntegral, annealing, metropolis_hastings, targets
        >>> far_apart = targets.GaussianMixture([0.8, 0.2], [[5.0, 5.0], [-5.0, -5.0]])
        >>> def kernel_at(level):
        ...     return metropolis_hastings(far_apart.at(level), MALA(0.3 * (1 + level**2)), LineIntegral())
        >>> g = torch.Generator().manual_seed(0)
        >>> x, levels = 10 * torch.randn(200, 2, generator=g), annealing.geometric(8.0, 0.5, 5)
        >>> found = replica_exchange(kernel_at, levels, x, model=far_apart, draws=50, burn_in=100, generator=g)
        >>> found.draws.shape
        torch.Size([200, 50, 2])
        >>> bool(abs((found.draws.sum(-1) > 0).double().mean() - 0.8) < 0.05)
        True
    """
    checks.count(draws, "draws", at_least=2)  # two sweeps propose a swap for every pair
    checks.count(burn_in, "burn_in", at_least=0)
    check_pool(pool)
    require_levels(levels, model)
    x = _initial_points(initial, len(levels))
    ladder = validated_ladder(kernel_at, levels, x, model, steps_per_swap, nodes)
    size, total = block_size(x.shape[1]), burn_in + draws
    starts, records = x.transpose(0, 1).split(size), _empty_records(x.transpose(0, 1), total)
    seeds, folder = rng.seeds(len(starts), generator), None
    showing = progress_bar(total * x.shape[1], "replica exchange", unit="sweeps", show=progress)
    with stored_run(store) as place, showing as tick:
        if place is not None:
            header = {"levels": list(ladder.levels), "kernels": [kernel.description for kernel in ladder.kernels]}
            header |= {"draws": draws, "burn_in": burn_in, "steps_per_swap": steps_per_swap, "nodes": nodes}
            header |= {"initial": fingerprint(x), "seeds": seeds}
            layout, probe = Layout.of(records, x.shape[1], total, size), _probe(ladder, x[:, :PROBE_CHAINS])
            folder = Store.begin(place, header, probe, layout, any_seeds=generator is None)
            seeds = folder.seeds
        report = RateReport(tick, "swapped", (len(levels) - 1) / 2)
        ends = run_blocks(pool, _Plan(ladder, total, folder), jobs_of(starts, seeds), records, report)
    return _summary(ladder, records, burn_in, ends)


def _initial_points(initial: Tensor | Sequence[Tensor], levels: int) -> Float[Tensor, "level chain *event"]:
    """Return the initial points of all levels in one tensor."""
    each = [initial] * levels if isinstance(initial, Tensor) else list(initial)
    for x in each:
        checks.events(x, "initial")
    if len(each) != levels or len({x.shape for x in each}) != 1:
        got = f"{len(each)} of shapes {sorted({tuple(x.shape) for x in each})}"
        fix = "Pass one tensor for all levels, or one tensor per level, all of the same shape."
        raise ValueError(checks.message(f"initial points for {levels} levels", got, fix))
    return torch.stack(each).detach()


def _empty_records(x: Float[Tensor, "chain level *event"], total: int) -> Records:
    """Return zeros for the records of all sweeps, `(chain, sweep, ...)`."""
    chains, levels, *event = x.shape
    counts = {name: x.new_zeros(chains, total, levels, dtype=torch.int32) for name in ("walkers", "accepted")}
    return {"draws": x.new_zeros(chains, total, *event), "swap_prob": x.new_zeros(chains, total, levels - 1)} | counts


@torch.inference_mode()
def _probe(ladder: Ladder, x: Float[Tensor, "level chain *event"]) -> Probe:
    """Return the results of the kernels and the model for a few chains, which identify the run."""
    steps = [first_step(kernel, at) for kernel, at in zip(ladder.kernels, x, strict=True)]
    change = Probe.of(log_density_change(ladder.model, x[0], ladder.levels[-1], ladder.levels[0], nodes=ladder.nodes))
    return Probe(sum((probe.numbers for probe in steps), change.numbers), change.rounding)


@dataclass(frozen=True)
class _Plan:
    """The work that `replica_exchange` does for each block of chains."""

    ladder: Ladder
    sweeps: int
    store: Store | None

    def empty_records(self, initial: Tensor) -> Records:
        """Return zeros for the records of chains, which are in memory even if they are also stored."""
        return _empty_records(initial, self.sweeps)

    @torch.inference_mode()
    def run(self, job: Job, rows: Records | None, report: Report, stopped: Callable[[], bool]) -> State:
        """Run a block until its end or until `stopped()`, and return its last state."""
        assert rows is not None
        generator = rng.seeded(job.seed, job.initial.device)
        stored = None if self.store is None else self.store.block(job.block)
        state = None if stored is None else stored.load_into(rows, generator)
        state = State(Point(job.initial.transpose(0, 1).contiguous())) if state is None else state
        report(state.done * len(job.initial), None)
        written = time.monotonic()
        while state.done < self.sweeps and not stopped():
            after = self._sweep(state, rows, generator)
            report(len(job.initial), after.moves - state.moves)
            state = after
            if stored is not None and (state.done == self.sweeps or time.monotonic() - written > SAVE_SECONDS):
                stored.save_from(rows, state, generator)
                written = time.monotonic()
        return state

    def _sweep(self, state: State, rows: Records, generator: torch.Generator) -> State:
        """Make a sweep, record it, and return the state after it; `moves` counts swaps."""
        before = _walkers(rows, state.done)
        x, walkers, accepted, swap_prob, calls = self.ladder.sweep(state.point.x, before, state.done, generator)
        values = {"draws": x[-1], "walkers": walkers, "accepted": accepted, "swap_prob": swap_prob}
        for name, value in values.items():
            rows[name][:, state.done] = value
        swaps = int((walkers != before).sum()) // 2
        return State(Point(x), state.done + 1, state.score_calls + calls, state.moves + swaps)


def _walkers(records: Records, done: int) -> Tensor:
    """Return the number of the walker at each level after `done` sweeps; at the start, walker i is at level i."""
    walkers = records["walkers"]
    if done:
        return walkers[:, done - 1].clone()
    return torch.arange(walkers.shape[2], dtype=walkers.dtype, device=walkers.device).repeat(len(walkers), 1)


def _summary(ladder: Ladder, records: Records, burn_in: int, ends: list[State]) -> Replicas:
    """Return the result of a run: its records after warm-up, and the last points."""
    draws, walkers, accepted, swap_prob = (
        records[name][:, burn_in:] for name in ("draws", "walkers", "accepted", "swap_prob")
    )
    x = torch.cat([end.point.x for end in ends], dim=1).clone()  # no longer inference tensors
    return Replicas(
        draws=draws,
        last=tuple(x),
        levels=ladder.levels,
        swap_rates=tuple(_swap_rate(swap_prob[..., pair], burn_in + pair) for pair in range(len(ladder.levels) - 1)),
        acceptance_rates=tuple((accepted.double().mean((0, 1)) / ladder.steps_per_swap).tolist()),
        round_trips=round_trips(walkers),
        nonfinite=int(swap_prob.isnan().sum()),
        score_calls=sum(end.score_calls for end in ends),
    )


def _swap_rate(swap_prob: Float[Tensor, "chain draw"], parity: int) -> float:
    """Return the mean acceptance probability of a pair's swaps over the sweeps that proposed one."""
    return float(swap_prob[:, parity % 2 :: 2].nan_to_num(0).double().mean())


FIRST_LEVELS = 12  # number of levels in the first round if `n` is not given
ROUNDS = 4


def tune_levels(
    kernel_at: Callable[[float], Kernel],
    initial: Float[Tensor, "chain *event"],
    *,
    model: ScoreModel,
    high: float | None = None,
    low: float | None = None,
    n: int | None = None,
    swap_rate: float = 0.4,
    sweeps: int = 40,
    steps_per_swap: int = 4,
    generator: torch.Generator | None = None,
    progress: bool = False,
    pool: Pool = None,
) -> list[float]:
    """Return noise levels, from high to low, whose neighbours swap at equal rates, for `replica_exchange`.

    Args:
        kernel_at: Function from a noise level to the kernel of `model.at(level)`.
        initial: Initial points `(chain, *event)`, such as noise of the highest level.
        model: Model with scores at all noise levels, such as the fit of `fit_score`.
        high: Highest level; by default the highest of the model.
        low: Lowest level; by default the `noise_level` of the model.
        n: Number of levels; by default as many as `swap_rate` needs.
        swap_rate: Smallest swap rate to reach if n is None.
        sweeps: Number of sweeps in each of four rounds. The first half is warm-up; after each round the levels are
            placed again.
        steps_per_swap: Number of local moves in a sweep.
        generator: Random number generator; the same seed gives the same levels.
        progress: Show a progress bar.
        pool: Workers that run blocks of chains, as for `sample`.

    Example:
        >>> import torch
        >>> from scoremh import MALA, LineIntegral, metropolis_hastings, targets
        >>> normal = targets.Gaussian([0.0, 0.0, 0.0])
        >>> def kernel_at(level):
        ...     return metropolis_hastings(normal.at(level), MALA(0.3 * (1 + level**2)), LineIntegral())
        >>> g = torch.Generator().manual_seed(0)
        >>> x = 4 * torch.randn(100, 3, generator=g)
        >>> levels = tune_levels(kernel_at, x, model=normal, high=4.0, low=0.1, n=3, generator=g)
        >>> 1 < levels[1] < 3  # half way in log(1 + level^2), not in log level
        True
    """
    lowest, highest = known_span(model)
    checks.count(sweeps, "sweeps", at_least=4)
    if not 0 < swap_rate < 1:
        raise ValueError(checks.message("swap_rate in (0, 1)", swap_rate, "0.2 to 0.6 is usual."))
    if n is not None:
        checks.count(n, "n", at_least=2)
    levels = geometric(highest if high is None else high, lowest if low is None else low, n or FIRST_LEVELS)
    x: Tensor | Sequence[Tensor] = initial
    options: dict[str, Any] = {"model": model, "steps_per_swap": steps_per_swap, "generator": generator}
    half = sweeps // 2
    with started(pool) as options["pool"], progress_bar(ROUNDS, "placing levels", unit="rounds", show=progress) as tick:
        for _ in range(ROUNDS):
            found = replica_exchange(kernel_at, levels, x, draws=sweeps - half, burn_in=half, **options)
            levels = levels_of_equal_rates(levels, found.swap_rates, n, swap_rate)
            # each new level continues from the points of the nearest old level
            x = [found.last[_nearest(level, found.levels)] for level in levels]
            tick(1, f"{len(levels)} levels")
    return levels


def levels_of_equal_rates(
    levels: Sequence[float], swap_rates: Sequence[float], n: int | None, swap_rate: float
) -> list[float]:
    """Return n levels at equal increments of the sum of rejection rates, with the same ends.

    If n is None, there are as many levels as a rate of at least `swap_rate` needs.
    """
    barrier = np.concatenate([[0.0], np.cumsum(np.clip(1 - np.asarray(swap_rates), 1e-3, 1))])  # rises strictly
    pairs = max(1, math.ceil(barrier[-1] / (1 - swap_rate))) if n is None else n - 1
    inner = np.interp(np.linspace(0, barrier[-1], pairs + 1)[1:-1], barrier, np.log(levels))
    return [levels[0], *np.exp(inner).tolist(), levels[-1]]


def _nearest(level: float, levels: Sequence[float]) -> int:
    return min(range(len(levels)), key=lambda i: abs(math.log(levels[i] / level)))
