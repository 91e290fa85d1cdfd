"""Blocks of chains in pools: the same bits from every pool, also where a worker is killed; errors say where."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch import Tensor

from scoremh import (
    MALA,
    Chains,
    LineIntegral,
    Target,
    annealing,
    cli,
    hamiltonian,
    metropolis_hastings,
    sample,
    targets,
)
from scoremh._shared.workers import begin_worker
from scoremh.kernel import surrogate
from scoremh.sampling.pools import check_pool
from scoremh.types import Kernel
from tests.cases import PROPOSALS, RULES
from tests.cli_cases import data, ended, run, whole

__all__ = ["data", "run", "whole"]  # fixtures
LAW = targets.GaussianMixture([0.4, 0.6], [[-1.0, 0.0], [1.0, 0.5]])
KERNEL = metropolis_hastings(LAW, MALA(0.4), LineIntegral())
RECORDS = ("draws", "acceptance_prob", "accepted", "nonfinite", "outside")


def start(chains: int = 1300) -> Tensor:
    return LAW.sample(chains, generator=torch.Generator().manual_seed(0))


def drawn(pool: Any, store: Path | None = None, kernel: Kernel = KERNEL) -> Chains:
    return sample(kernel, start(), draws=6, thin=2, generator=torch.Generator().manual_seed(1), pool=pool, store=store)


def assert_same(a: Chains, b: Chains) -> None:
    for name in RECORDS:
        assert torch.equal(getattr(a, name), getattr(b, name)), name
    assert (a.score_calls, a.moves, a.factors) == (b.score_calls, b.moves, b.factors)


class Reversed:
    """A pool of one's own, with no more than `map`, that answers in another order."""

    def map(self, function: Any, jobs: Any) -> Any:
        return [function(job) for job in reversed(list(jobs))]


@pytest.mark.slow
@pytest.mark.parametrize("stored", [False, True])
def test_every_pool_gives_the_same_bits(stored: bool, tmp_path: Path) -> None:
    expected = drawn(None)
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(2, mp_context=context, initializer=begin_worker) as processes:
        pools = {"threads": ThreadPoolExecutor(2), "processes": 2, "executor": processes, "map": Reversed()}
        for name, pool in pools.items():
            assert_same(drawn(pool, tmp_path / name if stored else None), expected)


@pytest.mark.slow
@pytest.mark.parametrize("stored", [False, True])
def test_a_dask_cluster_gives_the_same_bits_also_where_a_worker_is_killed(stored: bool, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    flag = tmp_path / "killed"
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "memory_limit": 0}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        assert_same(drawn(client, tmp_path / "store" if stored else None), drawn(None))
        deadly = metropolis_hastings(Target(score=Deadly(flag)), MALA(0.4), LineIntegral())
        found = drawn(client, tmp_path / "deadly" if stored else None, kernel=deadly)
        assert flag.exists(), "no worker was killed"
        assert_same(found, drawn(None, kernel=deadly))


def test_chains_are_saved_while_a_cluster_is_in_use(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    chains = sample(KERNEL, torch.zeros(3, 2), draws=2)
    options = {"n_workers": 0, "protocol": "tcp://", "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster):
        chains.save(tmp_path / "chains.nc")
        assert torch.equal(Chains.load(tmp_path / "chains.nc").draws, chains.draws)


class Deadly:
    """The score of a standard normal, which kills the first worker that has called it some times."""

    def __init__(self, flag: Path) -> None:
        self.flag, self.calls, self.parent = flag, 0, os.getpid()

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 5 and os.getpid() != self.parent and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return -x


@pytest.mark.slow
def test_a_killed_process_is_replaced(tmp_path: Path) -> None:
    deadly = metropolis_hastings(Target(score=Deadly(tmp_path / "killed")), MALA(0.4), LineIntegral())
    found = drawn(2, tmp_path / "store", kernel=deadly)
    assert (tmp_path / "killed").exists()
    assert_same(found, drawn(None, kernel=deadly))


def broken(x: Tensor) -> Tensor:
    if len(x) == 650 and bool(x.isfinite().all()) and float(x[0, 0]) == float(start()[650, 0]):
        raise ZeroDivisionError("of the user's")
    return -x


@pytest.mark.slow
@pytest.mark.parametrize("pool", [None, 2], ids=str)
def test_a_failed_block_names_its_chains_and_the_others_are_kept(pool: Any, tmp_path: Path) -> None:
    kernel = metropolis_hastings(Target(score=broken), MALA(0.4), LineIntegral())
    with pytest.raises(ZeroDivisionError, match="of the user's") as caught:
        sample(kernel, start(), draws=6, generator=torch.Generator().manual_seed(1), pool=pool)
    assert caught.value.__notes__ == ["It happened in chains 650 to 1299."]


def test_what_is_no_pool_is_refused() -> None:
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
        for name in ("adaptive", "gauss", "always", "exact", "two-coin", "exact-integral")
    },
    "hamiltonian": hamiltonian(LAW, 0.3, 3, LineIntegral()),
    "surrogate": surrogate(LAW, MALA(0.2), LineIntegral(), RULES["exact"], moves=3),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=lambda module: module.__name__)
def test_kernels_pickle(name: str, pickler: Any) -> None:
    kernel, x = KERNELS[name], start(5).double()
    again = pickle.loads(pickler.dumps(kernel))
    g = [torch.Generator().manual_seed(2) for _ in range(2)]
    first, second = (sample(k, x, draws=4, generator=one) for k, one in zip((kernel, again), g, strict=True))
    assert torch.equal(first.draws, second.draws)
    assert again.description == kernel.description


def test_a_kernel_that_cannot_be_sent_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    kernel = metropolis_hastings(Target(score=lambda x: -x), MALA(0.4), LineIntegral())
    with pytest.raises(TypeError, match=r"expected a kernel that can be sent to other processes.*scoremh\[cluster\]"):
        sample(kernel, start(3), draws=1, pool=2)


def test_anneal_takes_a_pool() -> None:
    def kernel_at(level: float) -> Kernel:
        return metropolis_hastings(LAW.at(level), MALA(0.3 * level**2), LineIntegral())

    with pytest.warns(annealing.EarlyAnnealingWarning):  # of two steps per level
        runs = [
            annealing.anneal(
                kernel_at, [2.0, 1.0], start(), steps_per_level=2, generator=torch.Generator().manual_seed(3), pool=pool
            )
            for pool in (None, ThreadPoolExecutor(2))
        ]
    assert torch.equal(runs[0].draws, runs[1].draws)
    assert runs[0].rho == runs[1].rho


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
    from tests.studies.test_framework import in_session

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
    deadline = time.monotonic() + 30
    while (left := in_session(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left


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
