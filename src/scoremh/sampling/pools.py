"""Pools that run jobs: this process, threads, worker processes, or a cluster.

A job is a block of chains (`sampling.sample`) or a cell of a study. Jobs are independent, so any pool, any number of
workers and any order give the same bits, also if a job is started again elsewhere. Another process receives the
function as bytes, the same for all jobs, and the data of each job; it sends back the result.

A worker process uses one torch thread, leaves Ctrl-C to its parent, and ends when its parent ends.
"""

import multiprocessing
import os
import pickle  # for what is sent to workers; none is read from disk  # nosec B403
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache, partial
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from scoremh._shared import checks
from scoremh._shared.names import extra


def begin_worker() -> None:
    """Set up a worker process; the initializer of a pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    """End this process when its parent has ended; a killed parent cannot stop its workers."""
    parent.join()
    os._exit(1)


MAX_RESTARTS = 3  # of worker processes after one was killed, and of a job on a cluster
J = TypeVar("J")  # a job
R = TypeVar("R")  # its result


@runtime_checkable
class HasMap(Protocol):
    """Anything that maps a function over arguments, as `multiprocessing.Pool` and MPI pools do."""

    def map(self, function: Callable[..., Any], /, *iterables: Any) -> Any:
        """Return the results of a function."""


class Processes:
    """Worker processes that start when first needed, and again after one was killed."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._executor: ProcessPoolExecutor | None = None

    @property
    def executor(self) -> ProcessPoolExecutor:
        """The running processes."""
        if self._executor is None:
            self._executor = ProcessPoolExecutor(self.workers, mp_context=_context(), initializer=begin_worker)
        return self._executor

    def end(self) -> None:
        """End all processes immediately, even during a job."""
        if self._executor is not None:
            for process in list((self._executor._processes or {}).values()):
                process.terminate()
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._executor = None


Pool = int | Processes | Executor | HasMap | None


def check_pool(pool: object) -> None:
    """Raise an error unless `pool` is a supported pool."""
    if isinstance(pool, int):
        checks.count(pool, "pool")
    elif pool is not None and not isinstance(pool, Processes | Executor | HasMap):
        fix = "Pass a number of processes, an Executor, a dask Client, or leave it out."
        raise TypeError(checks.message("pool to be a number or to have map", checks.describe(pool), fix))


def is_local(pool: Pool) -> bool:
    """Return whether jobs run in this process, and can write into its memory."""
    return pool is None or isinstance(pool, ThreadPoolExecutor)


def pool_for(pool: Pool, jobs: Sequence[object]) -> Pool:
    """Return the pool for these jobs; a single job runs in this process rather than in one worker process."""
    return None if len(jobs) == 1 and isinstance(pool, int | Processes) else pool


@contextmanager
def started(pool: Pool) -> Iterator[Pool]:
    """Yield a pool for several calls; a number becomes processes that are kept until the end."""
    check_pool(pool)
    if not isinstance(pool, int):
        yield pool
        return
    processes = Processes(pool)
    try:
        yield processes
    finally:
        processes.end()


@contextmanager
def named_pool(name: str | None) -> Iterator[Pool]:
    """Yield the pool named on a command line: a number of processes, or the address of a dask scheduler."""
    if name is None or name.isdecimal():
        with started(None if name is None else int(name)) as pool:
            yield pool
    elif "://" in name:
        with extra("cluster"):
            from distributed import Client
        with Client(name) as client:
            yield client
    else:
        fix = "Pass --pool 2, or --pool tcp://HOST:8786."
        raise ValueError(checks.message("a number of processes or the address of a scheduler", repr(name), fix))


def run_jobs(pool: Pool, work: Callable[[J], R], jobs: Sequence[J]) -> Iterator[tuple[J, R]]:
    """Call `work` for each job, and yield each job with its result as it ends; errors name the job by its `str`."""
    with started(pool) as workers:
        for number, result in _results(workers, work, list(enumerate(jobs))):
            yield jobs[number], result


Numbered = tuple[int, Any]  # a job or its result, with its number


def _results(pool: Pool, work: Callable[[Any], Any], jobs: list[Numbered]) -> Iterator[Numbered]:
    if pool is None:
        yield from (_run_job(work, job) for job in jobs)
    elif isinstance(pool, ThreadPoolExecutor):
        with one_thread():
            yield from _submitted(pool, partial(_run_on_thread, work), jobs)
    elif isinstance(pool, Processes):
        yield from _in_processes(pool, partial(run_remotely, dumped(work)), jobs)
    elif hasattr(pool, "scatter"):
        yield from _on_cluster(pool, dumped(work), jobs)
    elif isinstance(pool, Executor):
        yield from _submitted(pool, partial(run_remotely, dumped(work)), jobs)
    else:
        assert isinstance(pool, HasMap)
        yield from pool.map(partial(run_remotely, dumped(work)), jobs)


@contextmanager
def _naming(job: Numbered) -> Iterator[None]:
    """Add the name of the job to an error."""
    try:
        yield
    except Exception as error:
        note = f"It happened in {job[1]}."
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def _run_job(work: Callable[[Any], Any], job: Numbered) -> Numbered:
    with _naming(job):
        return job[0], work(job[1])


def _run_on_thread(work: Callable[[Any], Any], job: Numbered) -> Numbered:
    torch.set_num_threads(1)  # the setting is per thread
    return _run_job(work, job)


def run_remotely(payload: bytes, job: Numbered) -> Numbered:
    """Run one job in a worker, and return its result."""
    with one_thread():
        return _run_job(_loaded(payload), job)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread inside the block: workers already share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@lru_cache(maxsize=2)
def _loaded(payload: bytes) -> Callable[[Any], Any]:
    """Return the function that was sent; unpickled once per worker."""
    work: Callable[[Any], Any] = pickle.loads(payload)  # pickled by our own parent process  # nosec B301
    return work


def dumped(work: Callable[[Any], Any]) -> bytes:
    """Return a function as bytes; functions that are not importable from a module need cloudpickle."""
    try:
        import cloudpickle
    except ImportError:
        cloudpickle = pickle
    try:
        return bytes(cloudpickle.dumps(work))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        fix = "Install cloudpickle (pip install 'scoremh[cluster]'), use functions of a module, or leave pool out."
        raise TypeError(checks.message("a kernel that can be sent to other processes", error, fix)) from error


def _submitted(pool: Executor, run: Callable[[Numbered], Numbered], jobs: list[Numbered]) -> Iterator[Numbered]:
    """Yield results as an executor finishes them; if a job fails, jobs that have not started are cancelled."""
    futures = [pool.submit(run, job) for job in jobs]
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


def _in_processes(pool: Processes, run: Callable[[Numbered], Numbered], jobs: list[Numbered]) -> Iterator[Numbered]:
    """Yield results as processes finish them; if a process is killed, new ones run the remaining jobs."""
    left = dict(jobs)
    for restart in range(MAX_RESTARTS + 1):
        try:
            for number, result in _submitted(pool.executor, run, list(left.items())):
                del left[number]
                yield number, result
            return
        except BrokenProcessPool as error:
            pool.end()
            if restart == MAX_RESTARTS:
                fix = "Check for a lack of memory; a script that starts processes needs `if __name__ == '__main__':`."
                got = f"a process that was killed, {MAX_RESTARTS + 1} times in a row"
                raise RuntimeError(checks.message("worker processes that run to their end", got, fix)) from error


def _context() -> multiprocessing.context.BaseContext:
    """Return the start method of processes: not a fork of this process, because its threads would be missing."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scoremh.sampling"])  # once for all workers
    return context


def _on_cluster(client: Any, payload: bytes, jobs: list[Numbered]) -> Iterator[Numbered]:
    """Yield results as a dask cluster finishes them; a lost job is started again.

    The work is the result of a task: workers copy it from each other, and compute it again if all workers that had it
    are lost. Scattered data would be lost with them.
    """
    from distributed import as_completed as ended

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph")  # it is sent only once
        work = client.submit(bytes, payload, pure=False)
        options = {"pure": False, "retries": MAX_RESTARTS}
        futures = {client.submit(run_remotely, work, job, **options): job for job in jobs}
    try:
        for future in ended(list(futures)):
            with _naming(futures[future]):  # a job that killed its worker could not add its name there
                result = future.result()
            yield result
            future.release()
    finally:
        client.cancel(list(futures))
