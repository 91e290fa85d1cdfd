"""Blocks of chains in pools: the same bits from every pool, also where a worker is killed; errors say where."""

import multiprocessing
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch

from scoremh import MALA, Chains, LineIntegral, Target, cli, hamiltonian, metropolis_hastings, sample
from scoremh.kernel import grouped
from scoremh.sampling import pools
from scoremh.sampling.pools import begin_worker, check_pool
from tests.cases import PROPOSALS, RULES, seeded
from tests.deadly_scores import Broken, Deadly
from tests.estimator_cases import ended
from tests.pool_cases import CALLERS, KERNEL, LAW, OF_A_SCORE, Answer, assert_same, from_noise, sampled, start


class Reversed:
    """A user's pool with nothing but `map`, which returns results in another order."""

    def map(self, function: Any, jobs: Any) -> Any:
        return [function(job) for job in reversed(list(jobs))]


def answer(name: str, pool: Any, folder: Path) -> Answer:
    """Return what a caller returns with a pool."""
    caller, stored = CALLERS[name]
    return caller(pool, folder if stored else None)


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(2, mp_context=context, initializer=begin_worker) as pool:
        yield pool


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLERS)
def test_every_pool_gives_the_same_bits(name: str, processes: ProcessPoolExecutor, tmp_path: Path) -> None:
    expected = answer(name, None, tmp_path / "here")
    every: dict[str, Any] = {"threads": ThreadPoolExecutor(2), "executor": processes, "map": Reversed()}
    if name == "sample":  # a number starts processes, always in the same way
        every["processes"] = 2
    for kind, pool in every.items():
        assert_same(answer(name, pool, tmp_path / kind), expected)


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """Fail after five minutes: a cluster that has lost its workers for good would let a test wait forever."""

    def stop(*_: object) -> None:
        raise TimeoutError("expected an answer of the pool within five minutes, got none")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": ":0", "memory_limit": 0}
    with distributed.LocalCluster(**options) as local, distributed.Client(local) as found:
        yield found


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with cluster(2) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["sample", "sample, stored", "anneal", "replica_exchange", "ScoreMH.sample", "studies"]
)
def test_a_dask_cluster_gives_the_same_bits(name: str, client: Any, tmp_path: Path) -> None:
    assert_same(answer(name, client, tmp_path / "there"), answer(name, None, tmp_path / "here"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pool", "name", "stored"),
    [*(("processes", name, True) for name in OF_A_SCORE), ("processes", "sample", False), ("cluster", "sample", True)],
)
def test_a_killed_worker_is_replaced(
    pool: str, name: str, stored: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    workers = 2 if pool == "processes" else request.getfixturevalue("client")
    deadly = Deadly(tmp_path / "killed")
    found = OF_A_SCORE[name](workers, tmp_path / "store" if stored else None, deadly)
    assert (tmp_path / "killed").exists(), "no worker was killed"
    assert_same(found, OF_A_SCORE[name](None, None, deadly))


@pytest.mark.slow
def test_a_cluster_may_lose_all_workers_and_names_the_block_that_kills_them(tmp_path: Path) -> None:
    deadly = Deadly(tmp_path / "killed")
    with cluster(1) as client:
        assert_same(sampled(client, None, deadly), sampled(None, None, deadly))
        assert (tmp_path / "killed").exists()
        with pytest.raises(Exception, match="died while running it") as caught:
            sampled(client, None, Deadly(None))
    (note,) = caught.value.__notes__
    assert note in ("It happened in chains 0 to 649.", "It happened in chains 650 to 1299.")


def test_chains_are_saved_while_a_cluster_is_in_use(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    chains = sample(KERNEL, torch.zeros(3, 2), draws=2)
    options = {"n_workers": 0, "protocol": "tcp://", "dashboard_address": ":0"}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster):
        chains.save(tmp_path / "chains.nc")
        assert torch.equal(Chains.load(tmp_path / "chains.nc").draws, chains.draws)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_A_SCORE)
@pytest.mark.parametrize("pool", [None, 2, Reversed()], ids=["here", "processes", "map"])
def test_a_failed_block_names_its_chains(pool: Any, name: str) -> None:
    with pytest.raises(ZeroDivisionError, match="of the user's") as caught:
        OF_A_SCORE[name](pool, None, Broken(float(start()[650, 0])))
    assert caught.value.__notes__ == ["It happened in chains 650 to 1299."]


class Wire:
    """A pool that weighs what is sent to it and what it sends back."""

    def __init__(self) -> None:
        self.there: list[int] = []
        self.back: list[int] = []

    def map(self, function: Any, jobs: Any) -> Any:
        for job in jobs:
            self.there.append(len(raw := pickle.dumps(job)))
            self.back.append(len(back := pickle.dumps(function(pickle.loads(raw)))))
            yield pickle.loads(back)


def test_a_block_takes_its_own_points_alone_over_the_wire(tmp_path: Path) -> None:
    wire = Wire()
    sampled(wire, tmp_path)
    points = 650 * 2 * 4
    assert len(wire.there) == 2
    assert points < max(wire.there) < points + 1000
    assert max(wire.back) < 1000  # the draws are in the store


def test_processes_are_started_once_for_all_levels_and_for_one_block_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = []

    def counted(*given: Any, **options: Any) -> ProcessPoolExecutor:
        begun.append(given)
        return ProcessPoolExecutor(*given, **options)

    monkeypatch.setattr(pools, "ProcessPoolExecutor", counted)
    alone = metropolis_hastings(Target(score=lambda x: -x), MALA(0.4), LineIntegral())
    sample(alone, start(3), draws=1, pool=2)
    assert not begun
    from_noise(2, None)  # three levels, and the kernel
    assert begun == [(2,)]


def test_what_is_no_pool_raises_an_error() -> None:
    with pytest.raises(TypeError, match="expected pool to be a number or to have map, got str 'two'"):
        check_pool("two")
    with pytest.raises(ValueError, match="pool of at least 1, got 0"):
        sample(KERNEL, start(3), draws=1, pool=0)


KERNELS = {
    **{
        f"{name}, simpson": metropolis_hastings(LAW, part, RULES["simpson"])
        for name, part in PROPOSALS.items()
        if "student" not in name
    },
    **{
        f"mala, {name}": metropolis_hastings(LAW, MALA(0.2), RULES[name])
        for name in ("lobatto", "gauss", "always", "exact", "exact-integral")
    },
    "hamiltonian": hamiltonian(LAW, 0.3, 3, LineIntegral()),
    "surrogate": grouped(LAW, MALA(0.2), LineIntegral(), RULES["exact"], group_size=3),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=lambda module: module.__name__)
def test_kernels_pickle(name: str, pickler: Any) -> None:
    kernel, x = KERNELS[name], start(5).double()
    again = pickle.loads(pickler.dumps(kernel))
    g = [seeded(2) for _ in range(2)]
    first, second = (sample(k, x, draws=4, generator=one) for k, one in zip((kernel, again), g, strict=True))
    assert torch.equal(first.draws, second.draws)
    assert again.description == kernel.description


def test_a_kernel_that_cannot_be_sent_raises_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    kernel = metropolis_hastings(Target(score=lambda x: -x), MALA(0.4), LineIntegral())
    with pytest.raises(TypeError, match=r"expected a kernel that can be sent to other processes.*scoremh\[cluster\]"):
        sample(kernel, start(), draws=1, pool=2)


SCRIPT = """
import sys, torch
from scoremh import LineIntegral, MALA, Target, metropolis_hastings, sample
def score(x):
    return -x
if __name__ == "__main__":
    kernel = metropolis_hastings(Target(score=score), MALA(0.3), LineIntegral())
    sample(kernel, torch.zeros(1300, 2), draws=10**6, thin=10, store=sys.argv[1], pool=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=str)
def test_processes_end_with_their_parent(how: signal.Signals, tmp_path: Path) -> None:
    from tests.studies.test_framework import session_ends

    (script := tmp_path / "script.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "store")],
        start_new_session=True,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    while not list((tmp_path / "store").glob("block-*.safetensors")):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(how)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert session_ends(process.pid)


@pytest.mark.slow
def test_the_command_line_takes_a_pool(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["sample", str(run), "--draws", "1100", "--trace", "1", "--quiet"]
    cli.main(call)
    here = Chains.load(run / "chains.nc")
    cli.main([*call, "--pool", "2"])
    assert torch.equal(Chains.load(run / "chains.nc").draws, here.draws)
    code, said = ended([*call, "--pool", "many"], capsys)
    assert code == 2
    assert "expected a number of processes or the address of a scheduler, got 'many'" in said
