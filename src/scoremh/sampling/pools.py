"""Where blocks of chains are run: here, on threads, in processes, or on a cluster.

A block is the unit of work. It has a random seed of its own and depends on no other, so that the same bits come from
any pool, any number of workers, any order, and from a block that was begun again elsewhere. Over the wire goes the
kernel, in the same bytes for all blocks, and for every block its initial points; back come its draws, or, where they
are stored, a few counts.
"""

import multiprocessing
import pickle  # for what is sent to workers; none is read from disk  # nosec B403
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Protocol, runtime_checkable

import torch

from scoremh._shared import checks
from scoremh._shared.workers import begin_worker
from scoremh.sampling.block import Job, Plan, run_block
from scoremh.sampling.records import Records, empty_records
from scoremh.sampling.store import State

MAX_RESTARTS = 3  # of a pool whose worker was killed, and of a block on a cluster
Result = tuple[Job, State, Records | None]


@runtime_checkable
class HasMap(Protocol):
    """Anything that maps a function over arguments, as `multiprocessing.Pool` and MPI pools do."""

    def map(self, function: Callable[..., Any], /, *iterables: Any) -> Any:
        """Return the answers of a function."""


Pool = int | Executor | HasMap | None


@contextmanager
def one_thread() -> Iterator[None]:
    """Turn torch's own threads off within: workers share the cores already."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_pool(pool: object) -> None:
    """Refuse what is no pool."""
    if isinstance(pool, int):
        checks.count(pool, "pool")
    elif pool is not None and not isinstance(pool, Executor | HasMap):
        fix = "Pass a number of processes, an Executor, a dask Client, or leave it out."
        raise TypeError(checks.message("pool to be a number or to have map", checks.describe(pool), fix))


def is_local(pool: Pool) -> bool:
    """Return whether blocks are run in this process, where they can fill in its records."""
    return pool is None or isinstance(pool, ThreadPoolExecutor)


def run_elsewhere(pool: Pool, plan: Plan, jobs: Sequence[Job]) -> Iterator[Result]:
    """Run blocks in other processes, and yield them as they end."""
    payload = _dumped(plan)
    if isinstance(pool, int):
        yield from _in_processes(pool, payload, jobs)
    elif hasattr(pool, "scatter"):
        yield from _on_cluster(pool, payload, jobs)
    elif isinstance(pool, Executor):
        yield from _submitted(pool, payload, jobs)
    else:
        assert isinstance(pool, HasMap)
        yield from _in_order(jobs, pool.map(partial(run_remotely, payload), jobs))


def run_remotely(payload: bytes, job: Job) -> tuple[int, State, Records | None]:
    """Run one block in a worker; return its number, its counts, and its records where they are not stored."""
    plan = _loaded(payload)
    rows = empty_records(job.initial, plan.draws) if plan.store is None else None
    with one_thread():
        state = run_block(plan, job, rows)
    return job.block, state, rows


@lru_cache(maxsize=2)
def _loaded(payload: bytes) -> Plan:
    """Return the plan that was sent; once per worker."""
    plan: Plan = pickle.loads(payload)  # of our own making, in this call of `sample`  # nosec B301
    return plan


def _dumped(plan: Plan) -> bytes:
    """Return a plan as bytes; functions that were not imported from a module need cloudpickle."""
    try:
        import cloudpickle
    except ImportError:
        cloudpickle = pickle
    try:
        return bytes(cloudpickle.dumps(plan))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        fix = "Install cloudpickle (pip install 'scoremh[cluster]'), or use functions of a module; or leave pool out."
        raise TypeError(checks.message("a kernel that can be sent to other processes", error, fix)) from error


def _in_order(jobs: Sequence[Job], answers: Any) -> Iterator[Result]:
    by_block = {job.block: job for job in jobs}
    for block, state, rows in answers:
        yield by_block[block], state, rows


def _submitted(pool: Executor, payload: bytes, jobs: Sequence[Job]) -> Iterator[Result]:
    """Yield blocks as an executor ends them; where one fails, those that have not begun are not."""
    futures: dict[Future[Any], Job] = {pool.submit(run_remotely, payload, job): job for job in jobs}
    try:
        for future in as_completed(futures):
            _, state, rows = future.result()
            yield futures[future], state, rows
    finally:
        for future in futures:
            future.cancel()


def _in_processes(workers: int, payload: bytes, jobs: Sequence[Job]) -> Iterator[Result]:
    """Yield blocks as processes end them; where a process is killed, others take its blocks over."""
    left = {job.block: job for job in jobs}
    for restart in range(MAX_RESTARTS + 1):
        pool = ProcessPoolExecutor(workers, mp_context=_context(), initializer=begin_worker)
        try:
            for job, state, rows in _submitted(pool, payload, list(left.values())):
                del left[job.block]
                yield job, state, rows
            return
        except BrokenProcessPool as error:
            if restart == MAX_RESTARTS:
                fix = "Look for a full memory; a script that starts processes needs `if __name__ == '__main__':`."
                got = f"one that was killed, {MAX_RESTARTS + 1} times in a row"
                raise RuntimeError(checks.message("worker processes that run to their end", got, fix)) from error
        finally:
            for process in list((pool._processes or {}).values()):  # at once, also in the middle of a block
                process.terminate()
            pool.shutdown(wait=True, cancel_futures=True)


def _context() -> multiprocessing.context.BaseContext:
    """Return how processes are started: not by a fork of this one, whose threads would not come along."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scoremh.sampling"])  # once for all workers
    return context


def _on_cluster(client: Any, payload: bytes, jobs: Sequence[Job]) -> Iterator[Result]:
    """Yield blocks as a dask cluster ends them; the kernel is sent once per worker, a lost block is begun again."""
    from distributed import as_completed as ended

    (kernel,) = client.scatter([payload], broadcast=True)
    futures = {client.submit(run_remotely, kernel, job, pure=False, retries=MAX_RESTARTS): job for job in jobs}
    try:
        for future in ended(list(futures)):
            _, state, rows = future.result()
            yield futures[future], state, rows
            future.release()
    finally:
        client.cancel(list(futures))
