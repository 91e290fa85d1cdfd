"""Blocks of chains as jobs: each has a random seed and records of its own, and runs wherever a pool says.

Back from another process come the records of a block, where it does not store them, and its last state.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from scoremh._shared.progress import Tick
from scoremh.sampling.pools import Pool, is_local, pool_for, run_jobs
from scoremh.sampling.records import Records
from scoremh.sampling.store import State

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
