"""Replica exchange over noise levels: chains at every level, which change places with their neighbours.

At a high level the modes of a distribution merge; a walker that goes up and comes down again may come down in another
mode. Accepted or rejected, swaps leave the distribution of every level as it is, so that the draws of the lowest level
are draws of the distribution, with the weights of its modes that the scores of all levels know together.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.files import fingerprint
from scoremh._shared.probe import Probe
from scoremh._shared.progress import progress_bar
from scoremh.annealing.ladder import Ladder, require_levels, validated_ladder
from scoremh.annealing.replicas import Replicas, round_trips
from scoremh.diffusion import NODES_BETWEEN_LEVELS, log_density_change
from scoremh.sampling.block import SAVE_SECONDS
from scoremh.sampling.jobs import Job, RateReport, Report, jobs_of, run_blocks
from scoremh.sampling.loop import PROBE_CHAINS, block_size, first_step, stored_run
from scoremh.sampling.pools import Pool, check_pool
from scoremh.sampling.records import Records
from scoremh.sampling.store import Layout, State, Store
from scoremh.types import Kernel, Point, ScoreModel


def replica_exchange(
    kernel_at: Callable[[float], Kernel],
    levels: Sequence[float],
    initial: Float[Tensor, "chain *event"] | Sequence[Tensor],
    *,
    model: ScoreModel,
    draws: int,
    warmup: int = 0,
    steps_per_swap: int = 4,
    nodes: int = NODES_BETWEEN_LEVELS,
    generator: torch.Generator | None = None,
    progress: bool = False,
    store: str | Path | None = None,
    pool: Pool = None,
) -> Replicas:
    """Run chains at every noise level, with swaps between neighbouring levels, and return draws of the lowest.

    A sweep makes some local moves at every level, then offers a swap to every second pair of neighbours.

    Args:
        kernel_at: Function from a noise level to the kernel of `model.at(level)`, as for `anneal`. Its target has no
            support: swaps bring points of high levels to low ones, which may not refuse them.
        levels: Noise levels from high to low, such as `tune_levels` finds: from one at which the modes have merged to
            that of the draws.
        initial: Initial points `(chain, *event)` of all levels, such as noise of the highest; or one such tensor per
            level.
        model: Scores at every noise level, such as `fit_score` returns.
        draws: Number of sweeps to keep a draw of, at least 2.
        warmup: Sweeps before the first kept one.
        steps_per_swap: Local moves in a sweep.
        nodes: Number of noise levels between two neighbours at which the score and its divergence are evaluated.
        generator: Random number generator; the same seed gives the same draws.
        progress: Show a progress bar.
        store: Folder to write to during the run. The same call with the same folder resumes from what is there, and
            ends with the same bits as a run that was never interrupted.
        pool: Where blocks of chains, each with all of its levels, are run, as for `sample`.

    Returns:
        The draws of the lowest level, swap rates, acceptance rates, and how often walkers came around.

    Example:
        >>> import torch
        >>> from scoremh import MALA, LineIntegral, annealing, metropolis_hastings, targets
        >>> far_apart = targets.GaussianMixture([0.8, 0.2], [[5.0, 5.0], [-5.0, -5.0]])
        >>> def kernel_at(level):
        ...     return metropolis_hastings(far_apart.at(level), MALA(0.3 * (1 + level**2)), LineIntegral())
        >>> g = torch.Generator().manual_seed(0)
        >>> x, levels = 10 * torch.randn(200, 2, generator=g), annealing.geometric(8.0, 0.5, 5)
        >>> found = replica_exchange(kernel_at, levels, x, model=far_apart, draws=50, warmup=100, generator=g)
        >>> found.draws.shape
        torch.Size([200, 50, 2])
        >>> bool(abs((found.draws.sum(-1) > 0).double().mean() - 0.8) < 0.05)
        True
    """
    checks.count(draws, "draws", at_least=2)  # two sweeps offer a swap to every pair
    checks.count(warmup, "warmup", at_least=0)
    check_pool(pool)
    require_levels(levels, model)
    x = _initial_points(initial, len(levels))
    ladder = validated_ladder(kernel_at, levels, x, model, steps_per_swap, nodes)
    size, total = block_size(x.shape[1]), warmup + draws
    starts, records = x.transpose(0, 1).split(size), _empty_records(x.transpose(0, 1), total)
    seeds, folder = rng.seeds(len(starts), generator), None
    showing = progress_bar(total * x.shape[1], "replica exchange", unit="sweeps", show=progress)
    with stored_run(store) as place, showing as tick:
        if place is not None:
            header = {"levels": list(ladder.levels), "kernels": [kernel.description for kernel in ladder.kernels]}
            header |= {"draws": draws, "warmup": warmup, "steps_per_swap": steps_per_swap, "nodes": nodes}
            header |= {"initial": fingerprint(x), "seeds": seeds}
            layout, probe = Layout.of(records, x.shape[1], total, size), _probe(ladder, x[:, :PROBE_CHAINS])
            folder = Store.begin(place, header, probe, layout, any_seeds=generator is None)
            seeds = folder.seeds
        report = RateReport(tick, "swapped", (len(levels) - 1) / 2)
        ends = run_blocks(pool, _Plan(ladder, total, folder), jobs_of(starts, seeds), records, report)
    return _summary(ladder, records, warmup, ends)


def _initial_points(initial: Tensor | Sequence[Tensor], levels: int) -> Float[Tensor, "level chain *event"]:
    """Return the initial points of every level."""
    each = [initial] * levels if isinstance(initial, Tensor) else list(initial)
    for x in each:
        checks.events(x, "initial")
    if len(each) != levels or len({x.shape for x in each}) != 1:
        got = f"{len(each)} of shapes {sorted({tuple(x.shape) for x in each})}"
        fix = "Pass one tensor for all levels, or as many tensors of one shape as there are levels."
        raise ValueError(checks.message(f"initial points for {levels} levels", got, fix))
    return torch.stack(each).detach()


def _empty_records(x: Float[Tensor, "chain level *event"], total: int) -> Records:
    """Return zeros for all that is recorded of every sweep, `(chain, sweep, ...)`."""
    chains, levels, *event = x.shape
    counts = {name: x.new_zeros(chains, total, levels, dtype=torch.int32) for name in ("walkers", "accepted")}
    return {"draws": x.new_zeros(chains, total, *event), "swap_prob": x.new_zeros(chains, total, levels - 1)} | counts


@torch.inference_mode()
def _probe(ladder: Ladder, x: Float[Tensor, "level chain *event"]) -> Probe:
    """Return what the kernels and the model make of a few chains."""
    steps = [first_step(kernel, at) for kernel, at in zip(ladder.kernels, x, strict=True)]
    change = Probe.of(log_density_change(ladder.model, x[0], ladder.levels[-1], ladder.levels[0], nodes=ladder.nodes))
    return Probe(sum((probe.numbers for probe in steps), change.numbers), change.rounding)


@dataclass(frozen=True)
class _Plan:
    """What every block of chains has to do."""

    ladder: Ladder
    sweeps: int
    store: Store | None

    def empty_records(self, initial: Tensor) -> Records:
        """Return zeros for the records of chains; they are kept in memory, also where they are stored."""
        return _empty_records(initial, self.sweeps)

    @torch.inference_mode()
    def run(self, job: Job, rows: Records | None, report: Report, stopped: Callable[[], bool]) -> State:
        """Run one block of chains to the end, or to where it was stopped, and return its last state."""
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
        """Make a sweep, record it, and return the state after it; its moves are swaps."""
        before = _walkers(rows, state.done)
        x, walkers, accepted, swap_prob, calls = self.ladder.sweep(state.point.x, before, state.done, generator)
        values = {"draws": x[-1], "walkers": walkers, "accepted": accepted, "swap_prob": swap_prob}
        for name, value in values.items():
            rows[name][:, state.done] = value
        swaps = int((walkers != before).sum()) // 2
        return State(Point(x), state.done + 1, state.score_calls + calls, state.moves + swaps)


def _walkers(records: Records, done: int) -> Tensor:
    """Return which walker is at every level after so many sweeps: at first, each at its own."""
    walkers = records["walkers"]
    if done:
        return walkers[:, done - 1].clone()
    return torch.arange(walkers.shape[2], dtype=walkers.dtype, device=walkers.device).repeat(len(walkers), 1)


def _summary(ladder: Ladder, records: Records, warmup: int, ends: list[State]) -> Replicas:
    """Return what is kept of a run: the records after warm-up, and the last points."""
    draws, walkers, accepted, swap_prob = (
        records[name][:, warmup:] for name in ("draws", "walkers", "accepted", "swap_prob")
    )
    x = torch.cat([end.point.x for end in ends], dim=1).clone()  # ordinary tensors again
    return Replicas(
        draws=draws,
        last=tuple(x),
        levels=ladder.levels,
        swap_rates=tuple(_swap_rate(swap_prob[..., pair], warmup + pair) for pair in range(len(ladder.levels) - 1)),
        acceptance_rates=tuple((accepted.double().mean((0, 1)) / ladder.steps_per_swap).tolist()),
        round_trips=round_trips(walkers),
        nonfinite=int(swap_prob.isnan().sum()),
        score_calls=sum(end.score_calls for end in ends),
    )


def _swap_rate(swap_prob: Float[Tensor, "chain draw"], parity: int) -> float:
    """Return the mean acceptance probability of a pair's swaps over the sweeps that were its turn."""
    return float(swap_prob[:, parity % 2 :: 2].nan_to_num(0).double().mean())
