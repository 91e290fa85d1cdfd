"""The sampling loop: many transitions of many chains.

`sample` divides the chains into blocks. Each block has its own random seed and records, so the draws depend neither on
where the blocks run nor on interruptions of the run. A block makes its transitions in segments, each with its random
numbers drawn at once. A pool runs the blocks as jobs: in this process, on threads, in other processes, or on a cluster.
Another process sends back the last state of a block, and its records unless they are stored on disk.
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

Report = Callable[[int, int | None], None]  # numbers of transitions and of accepted ones; None if loaded from disk


class Job(NamedTuple):
    """A block of chains to run."""

    block: int
    """Number of the block."""
    initial: Tensor
    """Initial points; the first axis is the chain."""
    first: int
    """Number of its first chain."""
    seed: int = 0
    kind: str = "chains"
    """Plural noun for the rows, for error messages."""

    def __str__(self) -> str:
        """Return a name for error messages."""
        return f"{self.kind} {self.first} to {self.first + len(self.initial) - 1}"

    def __reduce__(self) -> tuple[type["Job"], tuple[Any, ...]]:
        """Pickle a copy of the initial points: the view would be pickled with the points of all chains."""
        return Job, tuple(self._replace(initial=self.initial.clone()))

    def rows(self, records: Records) -> Records:
        """Return the records of the chains in this block."""
        return {name: record[self.first : self.first + len(self.initial)] for name, record in records.items()}


def jobs_of(starts: Sequence[Tensor], seeds: Sequence[int] | None = None, kind: str = "chains") -> list[Job]:
    """Return one job per block, given the initial points and random seeds of the blocks."""
    each = [0] * len(starts) if seeds is None else seeds
    firsts = [0, *itertools.accumulate(map(len, starts))]
    return [Job(n, start, firsts[n], seed, kind) for n, (start, seed) in enumerate(zip(starts, each, strict=True))]


@runtime_checkable
class BlockPlan(Protocol):
    """The work that is done for each block of chains."""

    def empty_records(self, initial: Tensor) -> Records | None:
        """Return zeros for the records of chains; None if they are not kept in memory."""

    def run(self, job: Job, rows: Records | None, report: Report, stopped: Callable[[], bool]) -> State:
        """Run a block until its end or until `stopped()`, fill in its records `rows`, and return its last state."""


def run_blocks(
    pool: Pool, plan: BlockPlan, jobs: Sequence[Job], records: Records | None, report: Report
) -> list[State]:
    """Run blocks of chains in a pool, fill in their records, and return their last states.

    If a block fails, the others stop too. `report` is called during a block, or at its end if it ran in another
    process.
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
    """Run a block in a worker; return its last state, and its records if they are kept in memory."""
    rows = plan.empty_records(job.initial)
    return plan.run(job, rows, no_report, lambda: False), rows


def no_report(advance: int, accepted: int | None) -> None:
    """Do nothing."""


class RateReport:
    """A progress bar with the acceptance rate of all blocks, called `label`, for `offers` decisions per transition."""

    def __init__(self, tick: Tick, label: str = "acceptance", offers: float = 1.0) -> None:
        self.tick, self.label, self.offers = tick, label, offers
        self.lock, self.counted, self.accepted = threading.Lock(), 0, 0

    def __call__(self, advance: int, accepted: int | None) -> None:
        """Add numbers of transitions and of accepted ones; None if they were loaded from disk."""
        with self.lock:
            if accepted is not None:
                self.counted, self.accepted = self.counted + advance, self.accepted + accepted
            share = self.accepted / (self.counted * self.offers) if self.counted else None
            self.tick(advance, "" if share is None else f"{self.label} {share:.3f}")


SEGMENT_FLOATS = 131_072  # random numbers drawn at once, per block
SAVE_SECONDS = 5.0  # time between two saved states of a stored run


@dataclass(frozen=True)
class Plan:
    """The work that `sample` does for each block, with its arguments."""

    kernel: Kernel
    draws: int
    burn_in: int
    thin: int
    store: Store | None

    @property
    def total(self) -> int:
        """Number of transitions of each chain."""
        return self.burn_in + self.draws * self.thin

    def empty_records(self, initial: Tensor) -> Records | None:
        """Return zeros for the records of chains; None if they go to the store."""
        return None if self.store is not None else empty_records(initial, self.draws)

    def run(self, job: Job, rows: Records | None, report: Report, stopped: Callable[[], bool]) -> State:
        """Run a block until its end or until `stopped()`, and return its state without the points."""
        state = _run(self, job, rows, report, stopped)
        return state._replace(point=Point(job.initial.new_empty(0)))  # the points are a view of the whole last trace


@torch.inference_mode()
def _run(plan: Plan, job: Job, rows: Records | None, report: Report, stopped: Callable[[], bool]) -> State:
    generator = rng.seeded(job.seed, job.initial.device)
    stored = None if plan.store is None else plan.store.block(job.block)
    state, recorder = _beginning(plan, job, rows, stored, generator)
    report(state.done * len(job.initial), None)
    least = plan.kernel.steps_per_call  # a segment is a multiple of it
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
    """Write the state of a block with the draws since its last chunk; at the end of the run, also the last chunk."""
    if state.done == plan.total and recorder.first < plan.draws:
        recorder.flush()
    started = max(0, -(-(state.done - plan.burn_in) // plan.thin) - recorder.first)
    stored.save(state, generator, {name: rows[:, :started] for name, rows in recorder.rows.items()})


def _beginning(
    plan: Plan, job: Job, rows: Records | None, stored: Block | None, generator: torch.Generator
) -> tuple[State, Recorder]:
    """Return the stored state of a block, or its first state if none is stored, and a recorder for its draws."""
    if stored is None:
        assert rows is not None
        return _first_state(plan.kernel, job.initial), Recorder(rows, plan.burn_in, plan.thin)
    found, capacity = stored.load(generator), stored.store.layout.chunk_draws
    recorder = Recorder(empty_records(job.initial, capacity), plan.burn_in, plan.thin, stored.write_chunk)
    if found is None:
        return _first_state(plan.kernel, job.initial), recorder
    state, tail = found
    recorder.first = len(stored.chunks) * capacity
    for name, part in tail.items():
        recorder.rows[name][:, : part.shape[1]] = part
    return state._replace(point=state.point.map(lambda part: part.to(job.initial.device))), recorder


def _first_state(kernel: Kernel, initial: Tensor) -> State:
    """Return the state of chains at their initial points."""
    with score_calls() as calls:
        point = kernel.init(initial)
    return State(point, score_calls=calls.total)


MAX_UNDIVIDED_CHAINS = 1000  # up to this number there is one block; above it at least two, for two workers
MAX_BLOCK_CHAINS = 2500  # with more chains, the activations of a small network no longer fit into the cache
PROBE_CHAINS = 8


def sample(
    kernel: Kernel,
    initial: Tensor,
    *,
    draws: int,
    burn_in: int = 0,
    thin: int = 1,
    generator: torch.Generator | None = None,
    progress: bool = False,
    store: str | Path | None = None,
    pool: Pool = None,
) -> Chains:
    """Run one chain from every initial point.

    Args:
        kernel: Kernel returned by `metropolis_hastings`, or any other `Kernel`.
        initial: Initial points, one per chain, `(chain, *event)`.
        draws: Number of draws to keep from each chain.
        burn_in: Number of transitions before the first kept one. Nothing adapts during them: tune before sampling.
        thin: Number of transitions per kept draw.
        generator: Random number generator; the same seed gives the same draws.
        progress: Show a progress bar.
        store: Folder to write to during the run. The same call with the same folder resumes an interrupted run, and
            returns the same bits as a run without interruption.
        pool: Workers that run blocks of up to 2,500 chains (up to 1,000 chains are one block): None for this process,
            one block after the other; a number of processes; a `ThreadPoolExecutor`, for a score that is safe to call
            from several threads; any other `Executor`; a `dask.distributed.Client`; or anything with `map`. The draws
            do not depend on the pool. Other processes need a kernel that can be pickled, and access to the store.

    Returns:
        The draws and their records, in memory. With a store, they stay on disk and are read on access.

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
    for name, value, least in (("draws", draws, 1), ("burn_in", burn_in, 0), ("thin", thin, 1)):
        checks.count(value, name, at_least=least)
    check_pool(pool)
    points, size = initial.detach(), block_size(len(initial))
    starts = points.split(size)
    seeds = rng.seeds(len(starts), generator)
    with stored_run(store) as folder:
        run = None
        if folder is not None:
            header = {"kernel": kernel.description, "draws": draws, "burn_in": burn_in, "thin": thin}
            header |= {"initial": fingerprint(initial), "seeds": seeds}
            layout = Layout.of(empty_records(points[:1], 1), len(points), draws, size)
            options: dict[str, Any] = {"any_seeds": generator is None}
            options["attributes"] = attributes(kernel.description, thin)
            run = Store.begin(folder, header, first_step(kernel, points[:PROBE_CHAINS]), layout, **options)
            seeds = run.seeds
        plan = Plan(kernel, draws, burn_in, thin, run)
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
    """Return the number of blocks into which `sample` divides this number of chains."""
    return max(math.ceil(chains / MAX_BLOCK_CHAINS), min(2, math.ceil(chains / MAX_UNDIVIDED_CHAINS)))


def block_size(chains: int) -> int:
    """Return the number of chains in a block; the last block may have fewer."""
    return math.ceil(chains / blocks(chains))


@contextmanager
def stored_run(store: str | Path | None) -> Iterator[Path | None]:
    """Yield the folder of a run while holding its lock; None if there is no store."""
    if store is None:
        yield None
        return
    folder = Path(store)
    folder.mkdir(parents=True, exist_ok=True)
    with sole_writer(folder):
        yield folder


def first_step(kernel: Kernel, initial: Tensor) -> Probe:
    """Return the result of one step of a few chains, which distinguishes kernels with the same description."""
    _, move = kernel.step(kernel.init(initial), generator=rng.seeded(0, initial.device))
    return Probe.of(move.proposed, move.log_accept)
