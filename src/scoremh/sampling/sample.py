"""Blocks of chains as jobs: each has a random seed and records of its own, and runs wherever a pool says.

Back from another process come the records of a block, where it does not store them, and its last state.

One block of chains, run to its end in segments of steps whose noise is drawn at once.

The loop: many chains, many transitions.

Chains run in blocks, each with a generator of its own, so that the draws depend neither on who runs the blocks nor on
when a run was interrupted.
"""

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.counting import score_calls
from scoremh._shared.files import fingerprint, sole_writer
from scoremh._shared.probe import Probe
from scoremh._shared.progress import Tick, progress_bar
from scoremh.sampling.chains import Chains, StoredChains, attributes
from scoremh.sampling.pools import Pool, check_pool, is_local, pool_for, run_jobs
from scoremh.sampling.store import COUNTS, Block, Layout, Recorder, Records, State, Store, empty_records, finished
from scoremh.types import Kernel, Point

Report = Callable[[int, int | None], None]  # transitions made, and how many were accepted; None where they were loaded


class Job(NamedTuple):
    """A block of chains to run.

    Args:
        block: Its number.
        initial: Where its chains start; the first axis is the chain.
        first: The number of its first chain.
        seed: Its random seed.
        kind: What its rows are called.
    """

    block: int
    initial: Tensor
    first: int
    seed: int = 0
    kind: str = "chains"

    def __str__(self) -> str:
        """Name the chains."""
        return f"{self.kind} {self.first} to {self.first + len(self.initial) - 1}"

    def __reduce__(self) -> tuple[type["Job"], tuple[Any, ...]]:
        """Pickle its own points alone: as a view, they would bring those of all chains along."""
        return Job, tuple(self._replace(initial=self.initial.clone()))

    def rows(self, records: Records) -> Records:
        """Return the rows of its chains."""
        return {name: record[self.first : self.first + len(self.initial)] for name, record in records.items()}


def jobs_of(starts: Sequence[Tensor], seeds: Sequence[int] | None = None, kind: str = "chains") -> list[Job]:
    """Return the jobs of blocks of chains that start there, with these random seeds."""
    each = [0] * len(starts) if seeds is None else seeds
    firsts = [0, *itertools.accumulate(map(len, starts))]
    return [Job(n, start, firsts[n], seed, kind) for n, (start, seed) in enumerate(zip(starts, each, strict=True))]


@runtime_checkable
class BlockPlan(Protocol):
    """What every block has to do."""

    def empty_records(self, initial: Tensor) -> Records | None:
        """Return zeros for the records of chains; None where they are not kept in memory."""

    def run(self, job: Job, rows: Records | None, report: Report, stopped: Callable[[], bool]) -> State:
        """Run one block of chains to the end, or to where it was stopped, and return its last state.

        Args:
            job: The block.
            rows: Records of its chains, to be filled in; None where they are not kept in memory.
            report: Called as transitions are made.
            stopped: Whether to end soon.
        """


def run_blocks(
    pool: Pool, plan: BlockPlan, jobs: Sequence[Job], records: Records | None, report: Report
) -> list[State]:
    """Run blocks of chains, fill in their records, and return their last states; where one fails, the others end too.

    Args:
        pool: Where they are run.
        plan: What to do; it is sent to other processes.
        jobs: The blocks.
        records: Records of all chains; None where they are not kept in memory.
        report: Called as transitions are made; as blocks end, where that is elsewhere.
    """
    pool = pool_for(pool, jobs)
    stop, ends = threading.Event(), {}

    def run_here(job: Job) -> tuple[State, None]:
        rows = None if records is None else job.rows(records)
        return plan.run(job, rows, report, stop.is_set), None

    try:
        for job, (state, rows) in run_jobs(pool, run_here if is_local(pool) else partial(run_alone, plan), jobs):
            ends[job.block] = state
            if rows is not None and records is not None:
                for name, own in job.rows(records).items():
                    own.copy_(rows[name])
            if not is_local(pool):
                report(state.done * len(job.initial), state.moves)
    except BaseException:
        stop.set()
        raise
    return [ends[job.block] for job in jobs]


def run_alone(plan: BlockPlan, job: Job) -> tuple[State, Records | None]:
    """Run a block in a worker; return its last state, and its records where they are kept in memory."""
    rows = plan.empty_records(job.initial)
    return plan.run(job, rows, no_report, lambda: False), rows


def no_report(advance: int, accepted: int | None) -> None:
    """Report nothing."""


class RateReport:
    """Show on a progress bar how far all blocks are, and the share that was accepted so far.

    Args:
        tick: Advances the bar.
        label: What the share is called.
        offers: How often there was something to accept in a transition of a chain.
    """

    def __init__(self, tick: Tick, label: str = "acceptance", offers: float = 1.0) -> None:
        self.tick, self.label, self.offers = tick, label, offers
        self.lock, self.judged, self.accepted = threading.Lock(), 0, 0

    def __call__(self, advance: int, accepted: int | None) -> None:
        """Add transitions, and how many of them were accepted; None where they were loaded."""
        with self.lock:
            if accepted is not None:
                self.judged, self.accepted = self.judged + advance, self.accepted + accepted
            share = self.accepted / (self.judged * self.offers) if self.judged else None
            self.tick(advance, "" if share is None else f"{self.label} {share:.3f}")


SEGMENT_FLOATS = 131_072  # noise drawn at once, per block
SAVE_SECONDS = 5.0  # between two states of a stored run


@dataclass(frozen=True)
class Plan:
    """What every block has to do.

    Args:
        kernel: Kernel to make steps of.
        draws: Number of draws to keep.
        warmup: Transitions before the first kept one.
        thin: Transitions per kept draw.
        store: Run on disk, or None.
    """

    kernel: Kernel
    draws: int
    warmup: int
    thin: int
    store: Store | None

    @property
    def total(self) -> int:
        """Transitions of every chain."""
        return self.warmup + self.draws * self.thin

    def empty_records(self, initial: Tensor) -> Records | None:
        """Return zeros for the records of chains; None where they go to the store."""
        return None if self.store is not None else empty_records(initial, self.draws)

    def run(self, job: Job, rows: Records | None, report: Report, stopped: Callable[[], bool]) -> State:
        """Run one block of chains to the end, or to where it was stopped, and return its state without the points."""
        state = _run(self, job, rows, report, stopped)
        return state._replace(point=Point(job.initial.new_empty(0)))  # the last are a view of all that were traced


@torch.inference_mode()
def _run(plan: Plan, job: Job, rows: Records | None, report: Report, stopped: Callable[[], bool]) -> State:
    generator = rng.seeded(job.seed, job.initial.device)
    stored = None if plan.store is None else plan.store.block(job.block)
    state, recorder = _beginning(plan, job, rows, stored, generator)
    report(state.done * len(job.initial), None)
    least = plan.kernel.least_steps  # a segment is a multiple of it
    segment = max(1, SEGMENT_FLOATS // (job.initial.numel() * least)) * least
    written = time.monotonic()
    while state.done < plan.total and not stopped():
        point, trace = plan.kernel.steps(state.point, min(segment, plan.total - state.done), generator=generator)
        recorder.add(trace, state.done)
        moves = int(trace.accepted.sum())
        state = state.after(point, trace, moves)
        report(trace.accepted.numel(), moves)
        if stored is not None and (state.done == plan.total or time.monotonic() - written > SAVE_SECONDS):
            _save(plan, stored, state, generator, recorder)
            written = time.monotonic()
    return state


def _save(plan: Plan, stored: Block, state: State, generator: torch.Generator, recorder: Recorder) -> None:
    """Write the state of a block, with the draws since its last chunk; at the end, the last chunk."""
    if state.done == plan.total and recorder.first < plan.draws:
        recorder.flush()
    started = max(0, -(-(state.done - plan.warmup) // plan.thin) - recorder.first)
    stored.save(state, generator, {name: rows[:, :started] for name, rows in recorder.rows.items()})


def _beginning(
    plan: Plan, job: Job, rows: Records | None, stored: Block | None, generator: torch.Generator
) -> tuple[State, Recorder]:
    """Return the state that the store has of a block, or that at its beginning, and where its draws go."""
    if stored is None:
        assert rows is not None
        return _first_state(plan.kernel, job.initial), Recorder(rows, plan.warmup, plan.thin)
    found, capacity = stored.load(generator), stored.store.layout.chunk_draws
    recorder = Recorder(empty_records(job.initial, capacity), plan.warmup, plan.thin, stored.write_chunk)
    if found is None:
        return _first_state(plan.kernel, job.initial), recorder
    state, tail = found
    recorder.first = len(stored.chunks) * capacity
    for name, part in tail.items():
        recorder.rows[name][:, : part.shape[1]] = part
    return state._replace(point=state.point.map(lambda part: part.to(job.initial.device))), recorder


def _first_state(kernel: Kernel, initial: Tensor) -> State:
    """Return the state at the beginning."""
    with score_calls() as calls:
        point = kernel.init(initial)
    return State(point, score_calls=calls.total)


MAX_UNDIVIDED_CHAINS = 1000  # up to which there is one block; beyond, there are at least two, for two workers to share
MAX_BLOCK_CHAINS = 2500  # of more chains, the activations of a small network fall out of the cache
PROBE_CHAINS = 8


def sample(
    kernel: Kernel,
    initial: Tensor,
    *,
    draws: int,
    warmup: int = 0,
    thin: int = 1,
    generator: torch.Generator | None = None,
    progress: bool = False,
    store: str | Path | None = None,
    pool: Pool = None,
) -> Chains:
    """Run one chain from every initial point.

    Args:
        kernel: What `metropolis_hastings` returned, or any `Kernel`.
        initial: Initial points, one per chain, `(chain, *event)`.
        draws: Number of draws to keep of every chain.
        warmup: Transitions before the first kept one. Nothing adapts meanwhile: tune before sampling.
        thin: Transitions per kept draw.
        generator: Random number generator; the same seed gives the same draws.
        progress: Show a progress bar.
        store: Folder to write to during the run. The same call with the same folder resumes from what is there, and
            ends with the same bits as a run that was never interrupted.
        pool: Where blocks of up to 2,500 chains are run (up to 1,000 chains are one block): None for here, one after
            the other; a number of processes; a `ThreadPoolExecutor`, for a score that is safe to call from several
            threads; any other `Executor`; a `dask.distributed.Client`; or anything with `map`. The draws do not depend
            on it. Other processes need a kernel that can be pickled, and a store that they can reach.

    Returns:
        The draws and their records, in memory; with a store, they stay on disk, and are read when they are asked for.

    Example:
        >>> import torch
        >>> from scoremh import MALA, LineIntegral, Target, metropolis_hastings, sample
        >>> kernel = metropolis_hastings(Target(score=lambda x: -x), MALA(0.5), LineIntegral())
        >>> chains = sample(kernel, torch.zeros(8, 2), draws=100, generator=torch.Generator().manual_seed(0))
        >>> chains.draws.shape
        torch.Size([8, 100, 2])
    """
    checks.kind(kernel, Kernel, "a Kernel", "Build one with metropolis_hastings(target, proposal, acceptance).")
    checks.events(initial, "initial")
    for name, value, least in (("draws", draws, 1), ("warmup", warmup, 0), ("thin", thin, 1)):
        checks.count(value, name, at_least=least)
    check_pool(pool)
    points, size = initial.detach(), block_size(len(initial))
    starts = points.split(size)
    seeds = rng.seeds(len(starts), generator)
    with stored_run(store) as folder:
        run = None
        if folder is not None:
            header = {"kernel": kernel.description, "draws": draws, "warmup": warmup, "thin": thin}
            header |= {"initial": fingerprint(initial), "seeds": seeds}
            layout = Layout.of(empty_records(points[:1], 1), len(points), draws, size)
            options: dict[str, Any] = {"any_seeds": generator is None}
            options["attributes"] = attributes(kernel.description, thin)
            run = Store.begin(folder, header, first_step(kernel, points[:PROBE_CHAINS]), layout, **options)
            seeds = run.seeds
        plan = Plan(kernel, draws, warmup, thin, run)
        records = plan.empty_records(points)
        with progress_bar(plan.total * len(points), "sampling", unit="steps", show=progress) as tick:
            ends = run_blocks(pool, plan, jobs_of(starts, seeds), records, RateReport(tick))
        counts = {name: sum(getattr(end, name) for end in ends) for name in COUNTS[1:]}
        if run is not None:
            return StoredChains(run, counts)
    assert records is not None
    made: dict[str, Any] = {**finished(records, thin), **counts}
    return Chains(**made, thin=thin, description=kernel.description)


def blocks(chains: int) -> int:
    """Return into how many blocks `sample` divides its chains."""
    return max(math.ceil(chains / MAX_BLOCK_CHAINS), min(2, math.ceil(chains / MAX_UNDIVIDED_CHAINS)))


def block_size(chains: int) -> int:
    """Return how many chains are in a block; the last may have fewer."""
    return math.ceil(chains / blocks(chains))


@contextmanager
def stored_run(store: str | Path | None) -> Iterator[Path | None]:
    """Yield the folder of a run, with its lock held."""
    if store is None:
        yield None
        return
    folder = Path(store)
    folder.mkdir(parents=True, exist_ok=True)
    with sole_writer(folder):
        yield folder


def first_step(kernel: Kernel, initial: Tensor) -> Probe:
    """Return what one step makes of a few chains: it tells kernels apart whose descriptions are the same."""
    _, move = kernel.step(kernel.init(initial), generator=rng.seeded(0, initial.device))
    return Probe.of(move.proposed, move.log_accept)
