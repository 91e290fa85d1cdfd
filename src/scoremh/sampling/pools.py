"""Worker processes: one thread of torch's in each, Ctrl-C left to their parent, and no life after it.

Where jobs are run: here, on threads, in processes, or on a cluster.

A job is a block of chains (`sampling.jobs`), or a cell of a study. It depends on no other, so that the same bits come
from any pool, any number of workers, any order, and from a job that was begun again elsewhere. Over the wire goes what
there is to do, in the same bytes for all jobs, and for every job what it needs of its own; back comes its answer.
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
    """Set up a worker process: the initializer of a pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    """End this process when its parent has: killed, it could not tell its workers."""
    parent.join()
    os._exit(1)


MAX_RESTARTS = 3  # of processes one of which was killed, and of a job on a cluster
J = TypeVar("J")  # a job
A = TypeVar("A")  # its answer


@runtime_checkable
class HasMap(Protocol):
    """Anything that maps a function over arguments, as `multiprocessing.Pool` and MPI pools do."""

    def map(self, function: Callable[..., Any], /, *iterables: Any) -> Any:
        """Return the answers of a function."""


class Processes:
    """A number of worker processes, started when they are first needed, and again where one was killed."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._executor: ProcessPoolExecutor | None = None

    @property
    def executor(self) -> ProcessPoolExecutor:
        """The processes, which run."""
        if self._executor is None:
            self._executor = ProcessPoolExecutor(self.workers, mp_context=_context(), initializer=begin_worker)
        return self._executor

    def end(self) -> None:
        """End all processes at once, also in the middle of a job."""
        if self._executor is not None:
            for process in list((self._executor._processes or {}).values()):
                process.terminate()
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._executor = None


Pool = int | Processes | Executor | HasMap | None


def check_pool(pool: object) -> None:
    """Refuse what is no pool."""
    if isinstance(pool, int):
        checks.count(pool, "pool")
    elif pool is not None and not isinstance(pool, Processes | Executor | HasMap):
        fix = "Pass a number of processes, an Executor, a dask Client, or leave it out."
        raise TypeError(checks.message("pool to be a number or to have map", checks.describe(pool), fix))


def is_local(pool: Pool) -> bool:
    """Return whether jobs are run in this process, where they can fill in its records."""
    return pool is None or isinstance(pool, ThreadPoolExecutor)


def pool_for(pool: Pool, jobs: Sequence[object]) -> Pool:
    """Return where to run jobs: here, where one job would have a process of its own."""
    return None if len(jobs) == 1 and isinstance(pool, int | Processes) else pool


@contextmanager
def started(pool: Pool) -> Iterator[Pool]:
    """Yield a pool for several calls: for a number, processes that stay until the end of the last."""
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
    """Yield the pool that is named on a command line: a number of processes, or the address of a dask scheduler."""
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


def run_jobs(pool: Pool, work: Callable[[J], A], jobs: Sequence[J]) -> Iterator[tuple[J, A]]:
    """Run jobs, and yield each with its answer as it ends; an error names the job it happened in.

    Args:
        pool: Where they are run.
        work: What to do with a job; it is sent to other processes unless the pool is local.
        jobs: Jobs; `str` is their name.
    """
    with started(pool) as workers:
        for number, answer in _answers(workers, work, list(enumerate(jobs))):
            yield jobs[number], answer


Numbered = tuple[int, Any]  # a job, or its answer, with its number


def _answers(pool: Pool, work: Callable[[Any], Any], jobs: list[Numbered]) -> Iterator[Numbered]:
    if pool is None:
        yield from (_answer(work, job) for job in jobs)
    elif isinstance(pool, ThreadPoolExecutor):
        with one_thread():
            yield from _submitted(pool, partial(_answer_on_thread, work), jobs)
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
    """Say of an error within in which job it happened."""
    try:
        yield
    except Exception as error:
        note = f"It happened in {job[1]}."
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def _answer(work: Callable[[Any], Any], job: Numbered) -> Numbered:
    with _naming(job):
        return job[0], work(job[1])


def _answer_on_thread(work: Callable[[Any], Any], job: Numbered) -> Numbered:
    torch.set_num_threads(1)  # of this thread
    return _answer(work, job)


def run_remotely(payload: bytes, job: Numbered) -> Numbered:
    """Run one job in a worker; return its answer."""
    with one_thread():
        return _answer(_loaded(payload), job)


@contextmanager
def one_thread() -> Iterator[None]:
    """Turn torch's own threads off within: workers share the cores already."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@lru_cache(maxsize=2)
def _loaded(payload: bytes) -> Callable[[Any], Any]:
    """Return what there is to do, as it was sent; once per worker."""
    work: Callable[[Any], Any] = pickle.loads(payload)  # of our own making, in this call  # nosec B301
    return work


def dumped(work: Callable[[Any], Any]) -> bytes:
    """Return what there is to do as bytes; functions that were not imported from a module need cloudpickle."""
    try:
        import cloudpickle
    except ImportError:
        cloudpickle = pickle
    try:
        return bytes(cloudpickle.dumps(work))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        fix = "Install cloudpickle (pip install 'scoremh[cluster]'), or use functions of a module; or leave pool out."
        raise TypeError(checks.message("a kernel that can be sent to other processes", error, fix)) from error


def _submitted(pool: Executor, run: Callable[[Numbered], Numbered], jobs: list[Numbered]) -> Iterator[Numbered]:
    """Yield answers as an executor has them; where a job fails, those that have not begun are not."""
    futures = [pool.submit(run, job) for job in jobs]
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


def _in_processes(pool: Processes, run: Callable[[Numbered], Numbered], jobs: list[Numbered]) -> Iterator[Numbered]:
    """Yield answers as processes have them; where a process is killed, new ones take the jobs over that are left."""
    left = dict(jobs)
    for restart in range(MAX_RESTARTS + 1):
        try:
            for number, answer in _submitted(pool.executor, run, list(left.items())):
                del left[number]
                yield number, answer
            return
        except BrokenProcessPool as error:
            pool.end()
            if restart == MAX_RESTARTS:
                fix = "Look for a full memory; a script that starts processes needs `if __name__ == '__main__':`."
                got = f"one that was killed, {MAX_RESTARTS + 1} times in a row"
                raise RuntimeError(checks.message("worker processes that run to their end", got, fix)) from error


def _context() -> multiprocessing.context.BaseContext:
    """Return how processes are started: not by a fork of this one, whose threads would not come along."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scoremh.sampling"])  # once for all workers
    return context


def _on_cluster(client: Any, payload: bytes, jobs: list[Numbered]) -> Iterator[Numbered]:
    """Yield answers as a dask cluster has them; a lost job is begun again.

    The work is the answer of a task, which workers have from each other, and make again where all that had it are lost.
    Scattered data would be gone with them.
    """
    from distributed import as_completed as ended

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph")  # it goes over the wire once
        work = client.submit(bytes, payload, pure=False)
        options = {"pure": False, "retries": MAX_RESTARTS}
        futures = {client.submit(run_remotely, work, job, **options): job for job in jobs}
    try:
        for future in ended(list(futures)):
            with _naming(futures[future]):  # one that killed its workers could not say so
                answer = future.result()
            yield answer
            future.release()
    finally:
        client.cancel(list(futures))
