"""The loop and its records: thinning, warm-up, storage, resuming, files; step sizes found before sampling."""

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import arviz_base
import numpy as np
import pytest
import torch
import xarray
from torch import Tensor

from scoremh import (
    MALA,
    PCN,
    Always,
    Chains,
    Exact,
    LineIntegral,
    RandomWalk,
    Target,
    TuningError,
    diagnostics,
    hamiltonian,
    metropolis_hastings,
    sample,
    targets,
    tune,
    warmup,
)
from scoremh._shared.probe import MAX_NUMBERS, Probe
from scoremh.sampling import store as stores
from scoremh.sampling.tuning import Moments, autocorrelation_time, geometric_mean, windows
from scoremh.types import Kernel, Proposal
from tests.cases import TARGETS, f64, seeded

loop = import_module("scoremh.sampling.sample")  # the package has a function of that name

MIXTURE = TARGETS["mixture"]
KERNELS = {
    "fused": metropolis_hastings(MIXTURE, MALA(0.6), LineIntegral()),
    "stepwise": metropolis_hastings(MIXTURE, MALA(0.6), Exact())._replace(run=None),
    "walk": metropolis_hastings(MIXTURE, RandomWalk(0.9), Exact()),
}


def start(chains: int = 12) -> torch.Tensor:
    x: torch.Tensor = MIXTURE.sample(chains, generator=seeded())
    return x


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("segment", [1, 50, 100_000])
def test_thinning_and_burn_in_select_from_the_same_chain(
    kernel: str, segment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SEGMENT_FLOATS", segment)
    steps = 3 + 4 * 5
    whole = sample(KERNELS[kernel], start(), draws=steps, generator=seeded(1))
    some = sample(KERNELS[kernel], start(), draws=5, burn_in=3, thin=4, generator=seeded(1))
    assert torch.equal(some.draws, whole.draws[:, 6::4])
    for name in ("accepted", "nonfinite", "outside"):
        of_steps = getattr(whole, name)[:, 3:].reshape(12, 5, 4)
        assert torch.equal(getattr(some, name), of_steps.sum(2).int())
    torch.testing.assert_close(some.acceptance_prob, whole.acceptance_prob[:, 3:].reshape(12, 5, 4).mean(2))
    assert some.score_calls == whole.score_calls
    assert some.acceptance_rate == pytest.approx(float(whole.accepted[:, 3:].double().mean()))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_draw_changes_exactly_where_a_move_was_accepted(kernel: str) -> None:
    chains = sample(KERNELS[kernel], start(), draws=200, generator=seeded(1))
    moved = chains.draws.diff(dim=1).any(2)
    assert torch.equal(moved, chains.accepted[:, 1:].bool())
    assert torch.equal(chains.rejected, 1 - chains.accepted)
    assert 0.2 < chains.acceptance_rate < 0.95
    assert float(chains.acceptance_prob.mean()) == pytest.approx(chains.acceptance_rate, abs=0.05)


@pytest.mark.slow
def test_memory_is_what_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the warm-up and the thinning, a trace never holds more than a segment."""
    kernel, longest = KERNELS["fused"], 0
    assert kernel.run is not None
    inner_run = kernel.run

    def run(point, steps, *, generator):  # type: ignore[no-untyped-def]
        nonlocal longest
        longest = max(longest, steps * point.x.numel())
        return inner_run(point, steps, generator=generator)

    chains = sample(kernel._replace(run=run), start(), draws=2, burn_in=9000, thin=1000, generator=seeded(1))
    assert longest <= loop.SEGMENT_FLOATS
    assert chains.draws.untyped_storage().nbytes() == 12 * 2 * 2 * 8


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_stored_run_that_stopped_ends_with_the_same_bits(
    kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SEGMENT_FLOATS", 100)
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(loop, "MAX_BLOCK_CHAINS", 5)
    monkeypatch.setattr(stores, "CHUNK_NUMBERS", 60)
    whole = sample(KERNELS[kernel], start(), draws=40, burn_in=7, thin=3, generator=seeded(1))
    steps = 0

    def failing(point, **options):  # type: ignore[no-untyped-def]
        nonlocal steps
        steps += 1
        if steps == 180:
            raise KeyboardInterrupt
        return KERNELS[kernel].step(point, **options)

    def failing_run(point, count, **options):  # type: ignore[no-untyped-def]
        nonlocal steps
        steps += count
        if steps > 180:
            raise KeyboardInterrupt
        run = KERNELS[kernel].run
        assert run is not None
        return run(point, count, **options)

    fragile = KERNELS[kernel]._replace(step=failing, run=failing_run if KERNELS[kernel].run else None)  # type: ignore[arg-type]
    options = {"draws": 40, "burn_in": 7, "thin": 3, "store": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        sample(fragile, start(), generator=seeded(1), **options)  # type: ignore[arg-type]
    assert len(list((tmp_path / "run").glob("block-*.safetensors"))) > 1
    assert len(list((tmp_path / "run" / "chains.zarr" / "posterior" / "x" / "c").glob("*/*/0"))) > 3
    resumed = sample(KERNELS[kernel], start(), generator=seeded(1), **options)  # type: ignore[arg-type]
    for name in ("draws", "accepted", "nonfinite", "outside", "acceptance_prob"):
        assert torch.equal(getattr(resumed, name), getattr(whole, name)), name
    assert resumed.score_calls == whole.score_calls
    again = sample(KERNELS[kernel], start(), **options)  # type: ignore[arg-type]  # finished: read, not run
    assert torch.equal(again.draws, whole.draws)


SCRIPT = """
import sys, torch
from concurrent.futures import ThreadPoolExecutor
from scoremh import LineIntegral, MALA, Target, metropolis_hastings, sample
from importlib import import_module
import_module("scoremh.sampling.sample").SAVE_SECONDS = 0.05
kernel = metropolis_hastings(Target(score=lambda x: -x - 0.1 * x ** 3), MALA(0.3), LineIntegral())
g = torch.Generator().manual_seed(3)
store = sys.argv[1] or None
chains = sample(kernel, torch.zeros(1500, 2), draws=400, thin=5, generator=g, store=store, pool=ThreadPoolExecutor(2))
torch.save(chains.draws, sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    def start_run(store: str, out: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", SCRIPT, store, str(tmp_path / out)])

    assert start_run("", "whole.pt").wait() == 0
    store = tmp_path / "run"
    killed = start_run(str(store), "killed.pt")
    deadline = time.monotonic() + 120
    while (
        not (list(store.glob("block-*.safetensors")) and list(store.glob("chains.zarr/*/x/c/*/*/0")))
        and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    assert start_run(str(store), "resumed.pt").wait() == 0
    assert torch.equal(torch.load(tmp_path / "whole.pt"), torch.load(tmp_path / "resumed.pt"))


@pytest.mark.parametrize("proposal", [MALA(0.3), RandomWalk(0.5)], ids=repr)
@pytest.mark.parametrize("rule", [LineIntegral(), LineIntegral("gauss"), Always()], ids=repr)
def test_a_store_tells_targets_apart(proposal: Any, rule: Any, tmp_path: Path) -> None:
    """Two kernels with the same description; but what a random walk that always accepts does not ask cannot differ."""
    if isinstance(proposal, RandomWalk) and isinstance(rule, Always):
        pytest.skip("asks no score")
    near, far = (metropolis_hastings(Target(score=lambda x, c=c: c - x), proposal, rule) for c in (0.0, 5.0))  # type: ignore[misc]
    first = sample(near, start(), draws=5, generator=seeded(1), store=tmp_path)
    assert torch.equal(first.draws, sample(near, start(), draws=5, generator=seeded(1), store=tmp_path).draws)
    with pytest.raises(ValueError, match="first step differs"):
        sample(far, start(), draws=5, generator=seeded(1), store=tmp_path)


def test_a_store_tells_covariances_apart(tmp_path: Path) -> None:
    narrow, wide = (
        metropolis_hastings(MIXTURE, MALA(0.1, covariance=torch.tensor([c, c], dtype=torch.float64)), Exact())
        for c in (1.0, 25.0)
    )
    sample(narrow, start(), draws=5, generator=seeded(1), store=tmp_path)
    with pytest.raises(ValueError, match="first step differs"):
        sample(wide, start(), draws=5, generator=seeded(1), store=tmp_path)


def test_a_run_with_ones_own_proposal_can_be_resumed(tmp_path: Path) -> None:
    class Own(Proposal):
        def sample(self, at: Any, *, generator: torch.Generator | None = None) -> Any:
            return at.x + torch.randn(at.x.shape, generator=generator, dtype=at.x.dtype)

        def log_prob(self, to: Any, *, given: Any) -> Any:
            return -(to.x - given.x).square().sum(1) / 2

    runs = [
        sample(metropolis_hastings(MIXTURE, Own(), Exact()), start(), draws=5, generator=seeded(1), store=tmp_path)
        for _ in range(2)
    ]
    assert torch.equal(runs[0].draws, runs[1].draws)


def test_the_cost_of_a_move_does_not_depend_on_the_warm_up() -> None:
    kernel = KERNELS["fused"]
    cold, warm = (sample(kernel, start(), draws=100, burn_in=w, generator=seeded(1)) for w in (0, 2000))
    assert warm.moves > 10 * cold.moves
    assert warm.score_calls / warm.moves == pytest.approx(cold.score_calls / cold.moves, rel=0.2)


def test_a_store_rejects_another_run(tmp_path: Path) -> None:
    sample(KERNELS["fused"], start(), draws=3, generator=seeded(1), store=tmp_path)
    with pytest.raises(
        ValueError, match=r"expected .*run.json to hold this run, with draws = 4, got draws = 3.*another folder"
    ):
        sample(KERNELS["fused"], start(), draws=4, generator=seeded(1), store=tmp_path)
    with pytest.raises(ValueError, match="with initial = "):
        sample(KERNELS["fused"], start() + 1, draws=3, generator=seeded(1), store=tmp_path)
    with pytest.raises(ValueError, match="with kernel = "):
        sample(KERNELS["walk"], start(), draws=3, generator=seeded(1), store=tmp_path)
    with pytest.raises(ValueError, match="with seeds = "):
        sample(KERNELS["fused"], start(), draws=3, generator=seeded(2), store=tmp_path)


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    sample(KERNELS["fused"], start(), draws=3, generator=seeded(1), store=tmp_path)
    (part,) = tmp_path.glob("*.safetensors")
    part.write_bytes(part.read_bytes()[:50])
    with pytest.raises(ValueError, match=f"{part.name}, which cannot be read .*Delete it: its 12 chains start again"):
        sample(KERNELS["fused"], start(), draws=3, generator=seeded(1), store=tmp_path)


def test_a_failure_in_one_thread_stops_the_others() -> None:
    def score(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] < 1000 and bool(x.any()):
            raise ZeroDivisionError("a score of the user's that fails")
        return -x

    kernel = metropolis_hastings(Target(score=score), MALA(0.1), Always())
    with pytest.raises(ZeroDivisionError, match="of the user's"):
        sample(kernel, torch.zeros(1500, 2), draws=1, thin=10**6, generator=seeded(1), pool=ThreadPoolExecutor(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("event", [(2,), (1, 4, 4)], ids=str)
def test_save_and_load_give_back_the_same(dtype: torch.dtype, event: tuple[int, ...], tmp_path: Path) -> None:
    kernel = metropolis_hastings(Target(score=lambda x: -x), MALA(0.4), LineIntegral())
    chains = sample(kernel, torch.zeros(4, *event, dtype=dtype), draws=6, thin=2, generator=seeded(1))
    chains.save(tmp_path / "chains.nc")
    loaded = Chains.load(tmp_path / "chains.nc")
    for name in ("draws", "accepted", "nonfinite", "outside", "acceptance_prob", "rejected"):
        assert torch.equal(getattr(loaded, name), getattr(chains, name)), name
        assert getattr(loaded, name).dtype == getattr(chains, name).dtype
    assert (loaded.thin, loaded.score_calls, loaded.description) == (2, chains.score_calls, chains.description)
    assert repr(loaded) == repr(chains)
    assert [path.name for path in tmp_path.iterdir()] == ["chains.nc"]


def test_arviz_reads_what_we_write(tmp_path: Path) -> None:
    chains = sample(KERNELS["fused"], start(), draws=10, generator=seeded(1))
    tree = chains.to_arviz()
    assert tree["posterior"]["x"].dims == ("chain", "draw", "x_dim_0")
    assert {"acceptance_rate", "diverging"} <= set(tree["sample_stats"].data_vars)
    assert tree["sample_stats"]["diverging"].dtype == bool
    chains.save(tmp_path / "chains.nc")
    found = xarray.open_datatree(tmp_path / "chains.nc", engine="h5netcdf")
    assert json.dumps(sorted(found.children)) == '["posterior", "sample_stats"]'
    xarray.testing.assert_equal(found["posterior"].to_dataset(), tree["posterior"].to_dataset())


def test_load_rejects_a_file_of_another_library(tmp_path: Path) -> None:
    arviz_base.from_dict({"posterior": {"x": torch.ones(1, 2).numpy()}}).to_netcdf(
        tmp_path / "other.nc", engine="h5netcdf"
    )
    with pytest.raises(ValueError, match=r"expected a file written by Chains.save, got .*other.nc"):
        Chains.load(tmp_path / "other.nc")
    with pytest.raises(FileNotFoundError, match=r"a folder to write to.*Create"):
        sample(KERNELS["fused"], start(), draws=2).save(tmp_path / "missing" / "chains.nc")


@pytest.mark.slow
def test_progress_shows_rate_and_acceptance(capsys: pytest.CaptureFixture[str]) -> None:
    sample(KERNELS["fused"], start(), draws=30_000, generator=seeded(1), progress=True)
    shown = capsys.readouterr().err
    assert "sampling" in shown
    assert "100%" in shown
    assert "acceptance 0." in shown
    assert "steps/s" in shown


def test_silence_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    sample(KERNELS["fused"], start(), draws=10, generator=seeded(1))
    assert capsys.readouterr() == ("", "")


def test_the_text_of_chains_says_what_matters() -> None:
    text = repr(sample(KERNELS["fused"], start(), draws=10, generator=seeded(1)))
    assert text.startswith(
        "Chains(12 chains x 10 draws of (2,), MALA(step_size=0.6) with LineIntegral(): acceptance 0."
    )
    assert "score calls per accepted move" in text


def test_a_user_kernel_needs_only_init_and_step() -> None:
    kernel = Kernel(KERNELS["walk"].init, KERNELS["walk"].step)
    expected = sample(KERNELS["walk"]._replace(run=None), start(), draws=5, generator=seeded(1))
    assert torch.equal(sample(kernel, start(), draws=5, generator=seeded(1)).draws, expected.draws)


def test_a_store_opens_lazily_and_as_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "CHUNK_NUMBERS", 60)
    monkeypatch.setattr(loop, "SEGMENT_FLOATS", 48)
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    whole, seen = sample(KERNELS["fused"], start(), draws=20, thin=3, generator=seeded(1)), list[Any]()
    inner_run = KERNELS["fused"].run
    assert inner_run is not None

    def run(point, steps, *, generator):  # type: ignore[no-untyped-def]
        if (tmp_path / "block-00000.safetensors").exists():
            seen.append(Chains.load(tmp_path).draws if len(seen) > 2 else None)
        return inner_run(point, steps, generator=generator)

    found = sample(KERNELS["fused"]._replace(run=run), start(), draws=20, thin=3, generator=seeded(1), store=tmp_path)
    assert len([x for x in seen if x is not None]) > 5
    assert all(torch.equal(x, whole.draws[:, : x.shape[1]]) for x in seen if x is not None)
    assert repr(found) == repr(whole) == repr(Chains.load(tmp_path))
    assert torch.equal(found.between(4, 11).draws, whole.draws[:, 4:11])
    assert torch.equal(found.between(-3, 20).accepted, whole.accepted[:, -3:])
    assert torch.equal(found.last, whole.last)
    tree = xarray.open_datatree(tmp_path / "chains.zarr", engine="zarr")
    assert (tree["posterior"]["x"].to_numpy() == whole.draws.numpy()).all()
    assert (tree["sample_stats"]["acceptance_rate"].to_numpy() == whole.acceptance_prob.numpy()).all()
    assert tree["posterior"].attrs["description"] == whole.description
    found.save(tmp_path / "chains.nc")
    assert torch.equal(Chains.load(tmp_path / "chains.nc").draws, whole.draws)


def test_a_store_has_one_writer(tmp_path: Path) -> None:
    script = "import sys, time; from pathlib import Path; from scoremh._shared.files import sole_writer\n"
    script += "with sole_writer(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(BlockingIOError, match=rf"got process {other.pid} on host \S+, since .* writing to it. Wait"):
        sample(KERNELS["fused"], start(), draws=2, generator=seeded(1), store=tmp_path)
    other.kill()
    other.communicate()
    assert (tmp_path / "writer.lock").exists()  # a stale one
    sample(KERNELS["fused"], start(), draws=2, generator=seeded(1), store=tmp_path)
    assert not (tmp_path / "writer.lock").exists()
    (tmp_path / "writer.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="got a symbolic link to"):
        sample(KERNELS["fused"], start(), draws=2, generator=seeded(1), store=tmp_path)
    assert not (tmp_path / "elsewhere").exists()


# The probe that tells runs apart: equal up to rounding, different by a step size.


def test_rounding_is_no_difference_and_a_step_size_is_one() -> None:
    x = torch.randn(50, generator=seeded(), dtype=torch.float64)
    probe = Probe.of(x)
    assert probe.same(Probe.of(x.float()))
    assert probe.same(Probe.of(x * (1 + 5e-4)))
    assert not probe.same(Probe.of(x * 1.01))
    assert not probe.same(Probe.of(x[:49]))
    assert not probe.same(Probe.of(x.roll(1)))


def test_a_coarse_dtype_has_a_coarse_tolerance() -> None:
    x = 1 + torch.rand(50, generator=seeded(), dtype=torch.float64)
    assert Probe.of(x).same(Probe.of(x.bfloat16()))
    assert Probe.of(x.bfloat16()).same(Probe.of(x))
    assert not Probe.of(x.bfloat16()).same(Probe.of(1.2 * x))


def test_what_is_not_finite_counts() -> None:
    x = torch.tensor([1.0, math.nan, math.inf])
    assert Probe.of(x).same(Probe.of(x.clone()))
    assert not Probe.of(x).same(Probe.of(torch.tensor([1.0, 2.0, math.inf])))
    assert not Probe.of(x).same(Probe.of(torch.tensor([1.0, math.nan, -math.inf])))


def test_it_goes_through_json_and_stays_small() -> None:
    probe = Probe.of(torch.rand(10_000), torch.arange(3), torch.tensor([math.nan]))
    assert len(probe.numbers) <= MAX_NUMBERS + 4
    assert Probe.from_json(json.loads(json.dumps(probe.to_json()))).same(probe)


def test_another_run_raises_an_error_in_the_words_of_its_owner() -> None:
    one, other = Probe.of(torch.ones(3)), Probe.of(torch.zeros(3))
    one.require_same(one, "this run", "another", "Delete it.")
    with pytest.raises(ValueError, match=r"^expected this run, got another\. Delete it\.$"):
        one.require_same(other, "this run", "another", "Delete it.")


# A step size found before sampling.


NORMAL = targets.Gaussian(torch.zeros(10))


def kernel_at(name: str, balance: str, step: float) -> Kernel:
    proposal = {"rw": RandomWalk, "mala": MALA, "pcn": PCN}[name](step)
    return metropolis_hastings(NORMAL, proposal, Exact(balance=balance))  # type: ignore[arg-type]


@pytest.mark.parametrize("balance", ["metropolis", "barker"])
@pytest.mark.parametrize("name", ["rw", "mala"])
@pytest.mark.parametrize("start", [1e-3, 30.0])
def test_the_kernel_accepts_at_its_own_rate_after_tuning(name: str, balance: str, start: float) -> None:
    g = seeded()
    x = NORMAL.sample(200, generator=g)
    step = tune(lambda h: kernel_at(name, balance, h), x, start=start, generator=g)
    kernel = kernel_at(name, balance, step)
    wanted = {
        ("rw", "metropolis"): 0.234,
        ("rw", "barker"): 0.159,
        ("mala", "metropolis"): 0.574,
        ("mala", "barker"): 0.347,
    }
    assert kernel.target_rate == wanted[name, balance]
    assert sample(kernel, x, draws=100, generator=g).acceptance_rate == pytest.approx(kernel.target_rate, abs=0.03)


@pytest.mark.slow
def test_a_rate_of_ones_own_and_the_same_seed_the_same_step() -> None:
    def run() -> float:
        g = seeded()
        x = NORMAL.sample(200, generator=g)
        return tune(lambda h: kernel_at("mala", "metropolis", h), x, target_rate=0.9, generator=g)

    step = run()
    assert step == run()
    x = NORMAL.sample(200, generator=seeded(1))
    assert sample(kernel_at("mala", "metropolis", step), x, draws=100).acceptance_rate == pytest.approx(0.9, abs=0.03)


def test_beta_stays_within_its_bound() -> None:
    """On its own reference pCN accepts everything: the largest beta is right."""
    x = NORMAL.sample(50, generator=seeded())
    assert tune(lambda beta: kernel_at("pcn", "metropolis", beta), x, start=0.1, upper=1.0) == 1.0


def test_always_has_no_rate_to_aim_at() -> None:
    with pytest.raises(
        ValueError, match=r"acceptance rate to aim at, got MALA\(step_size=1.0\) with Always\(\).*target_rate"
    ):
        tune(lambda h: metropolis_hastings(NORMAL, MALA(h), Always()), torch.zeros(5, 10))


def test_an_impossible_rate_ends_with_its_numbers() -> None:
    with pytest.raises(
        TuningError, match=r"expected a step size with an acceptance rate of 0.5, got 1.000 at all step sizes"
    ) as caught:
        tune(lambda h: metropolis_hastings(NORMAL, MALA(h), Always()), torch.zeros(5, 10), target_rate=0.5)
    assert caught.value.rate == 1.0
    assert caught.value.step > 1e15


def test_a_broken_score_ends_with_its_numbers() -> None:
    broken = Target(score=lambda x: torch.where(x == 0, 0.0, math.nan))
    with pytest.raises(TuningError, match=r"got 0.000 at all step sizes.*NaN"):
        tune(lambda h: metropolis_hastings(broken, MALA(h), LineIntegral()), torch.zeros(5, 2))


@pytest.mark.parametrize("rate", [0.0, 1.0, 1.5])
def test_rates_outside_the_open_interval_raise_errors(rate: float) -> None:
    with pytest.raises(ValueError, match=r"target_rate in \(0, 1\)"):
        tune(lambda h: kernel_at("mala", "metropolis", h), torch.zeros(5, 10), target_rate=rate)


# A step size and a covariance learned before sampling.


VARIANCES = torch.tensor([0.01, 1.0, 100.0], dtype=torch.float64)
TARGET = Target(score=lambda x: -(x.flatten(1) / VARIANCES).reshape(x.shape))


def mala(step: float, covariance: Tensor) -> Kernel:
    return metropolis_hastings(TARGET, MALA(step, covariance), LineIntegral())


def starts(chains: int = 32, seed: int = 0) -> tuple[Tensor, torch.Generator]:
    g = seeded(seed)
    return 10 * torch.randn(chains, 3, dtype=torch.float64, generator=g), g


@pytest.mark.parametrize("steps", [20, 21, 75, 149, 150, 151, 175, 200, 499, 1000, 1234, 10_000])
def test_the_windows_add_up_to_the_steps(steps: int) -> None:
    lengths = windows(steps)
    assert sum(lengths) == steps
    assert min(lengths) > 0


def test_the_windows_of_a_thousand_steps_match_those_of_stan() -> None:
    assert windows(1000) == (75, 25, 50, 100, 200, 500, 50)


@pytest.mark.parametrize("event", [(3,), (2, 3)])
def test_moments_match_those_of_numpy(event: tuple[int, ...]) -> None:
    g = seeded()
    batches = [5 + torch.randn(n, *event, dtype=torch.float64, generator=g) for n in (7, 1, 30)]
    rows = torch.cat(batches).flatten(1).numpy()
    n, d = rows.shape
    sample_covariance = np.cov(rows.T)
    for diagonal in (False, True):
        moments = Moments(diagonal=diagonal)
        for batch in batches:
            moments.add(batch)

        def shrunk(estimate: np.ndarray) -> np.ndarray:
            floor = 5e-3 / (n + 5) * np.sort(np.diag(estimate))[(d - 1) // 2]
            return np.asarray(n / (n + 5) * estimate + floor * np.eye(d))

        covariance, wanted = moments.covariance(), shrunk(sample_covariance)
        assert covariance is not None
        np.testing.assert_allclose(covariance.numpy(), np.diag(wanted) if diagonal else wanted, rtol=1e-9)


@pytest.mark.parametrize("covariance", ["dense", "diagonal"])
@pytest.mark.parametrize("estimate", ["draws", "geometric"])
def test_step_and_shape_are_found(covariance: Any, estimate: Any) -> None:
    x, g = starts()
    learned = warmup(mala, x, steps=400, covariance=covariance, estimate=estimate, generator=g)
    variances = learned.covariance if covariance == "diagonal" else learned.covariance.diagonal()
    # 32 chains x 275 steps, some 1,000 effective draws: 4.5 % a standard error of a variance
    torch.testing.assert_close(variances, VARIANCES, rtol=0.3, atol=0)
    assert learned.acceptance_rate == pytest.approx(0.574, abs=0.1)
    chains = sample(learned.kernel, learned.draws, draws=100, generator=g)
    assert chains.acceptance_rate == pytest.approx(0.574, abs=0.1)


def test_a_window_has_one_covariance_and_all_have_the_requested_shape() -> None:
    seen: list[Tensor] = []

    def make(step: float, covariance: Tensor) -> Kernel:
        seen.append(covariance)
        return mala(step, covariance)

    x, g = starts()
    learned = warmup(make, x, steps=200, generator=g)
    assert len(seen) == 1 + 200 + 1  # the first measures its rate, the last is frozen
    changes = [i for i in range(1, len(seen)) if seen[i] is not seen[i - 1]]
    first, *doubling, _ = windows(200)
    assert changes == [1 + first + sum(doubling[: k + 1]) for k in range(len(doubling))]
    assert seen[-1] is learned.covariance
    assert torch.equal(seen[0], torch.eye(3, dtype=torch.float64))


def test_sampling_makes_no_kernel() -> None:
    calls = 0

    def make(step: float, covariance: Tensor) -> Kernel:
        nonlocal calls
        calls += 1
        return mala(step, covariance)

    x, g = starts()
    learned = warmup(make, x, steps=50, generator=g)
    before, kept = calls, learned.covariance.clone()
    draws = sample(learned.kernel, learned.draws, draws=20, generator=seeded(1)).draws
    assert calls == before
    assert torch.equal(learned.covariance, kept)
    fixed = mala(learned.step_size, learned.covariance)
    again = sample(fixed, learned.draws, draws=20, generator=seeded(1)).draws
    assert torch.equal(draws, again)


def test_the_same_seed_gives_the_same_result() -> None:
    one, other, third = (warmup(mala, x, steps=60, generator=g) for x, g in (starts(), starts(), starts(seed=1)))
    assert one.step_size == other.step_size
    assert torch.equal(one.covariance, other.covariance)
    assert torch.equal(one.draws, other.draws)
    assert not torch.equal(one.covariance, third.covariance)


def test_events_of_any_shape_in_single_precision() -> None:
    g = seeded()
    x = torch.randn(20, 3, 1, generator=g)
    target = Target(score=lambda x: -x)
    learned = warmup(
        lambda h, c: metropolis_hastings(target, MALA(h, c), LineIntegral()),
        x,
        steps=60,
        estimate="geometric",
        generator=g,
    )
    assert learned.draws.shape == x.shape
    assert learned.covariance.shape == (3, 3)
    assert learned.covariance.dtype == torch.float32
    assert repr(learned).startswith(
        f"Warmup(step size {learned.step_size:.4g}, dense covariance (3, 3), 20 chains of ("
    )


def always(step: float, covariance: Tensor) -> Kernel:
    return metropolis_hastings(TARGET, MALA(step, covariance), Always())


def test_a_kernel_without_a_rate_raises_an_error_as_by_tune() -> None:
    with pytest.raises(ValueError, match=r"acceptance rate to aim at, got MALA\(.*Always\(\).*target_rate"):
        warmup(always, torch.zeros(5, 3, dtype=torch.float64))


def test_the_geometric_mean_needs_scores_at_the_points() -> None:
    target = targets.Gaussian(torch.zeros(3))
    with pytest.raises(ValueError, match=r"whose points keep their scores, got RandomWalk.*estimate=\"draws\""):
        warmup(
            lambda h, c: metropolis_hastings(target, RandomWalk(h, c), Exact()), torch.zeros(5, 3), estimate="geometric"
        )


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"steps": 19}, ValueError, "steps of at least 20, got 19"),
        ({"start": 0.0}, ValueError, "start to be finite and above 0"),
        ({"upper": -1.0}, ValueError, "upper above 0, got -1.0"),
        ({"target_rate": 1.5}, ValueError, r"target_rate in \(0, 1\)"),
        ({"initial": torch.zeros(3)}, ValueError, "initial of shape"),
        ({"initial": torch.full((4, 3), math.nan)}, ValueError, "initial to be finite"),
        ({"make_kernel": lambda h, c: h}, TypeError, "make_kernel to return a Kernel, got float"),
    ],
)
def test_bad_arguments_raise_errors(change: dict[str, Any], error: type[Exception], text: str) -> None:
    arguments: dict[str, Any] = {"make_kernel": mala, "initial": torch.zeros(4, 3, dtype=torch.float64), "steps": 20}
    with pytest.raises(error, match=text):
        warmup(**(arguments | change))


UNCHECKED = {  # the shape checks of the tests raise errors as well, but a user does not run them
    "steps=100.0": "steps to be an int, got float 100.0",
    "covariance='full'": "covariance to be one of 'dense', 'diagonal', got 'full'",
    "estimate='scores'": "estimate to be one of 'draws', 'geometric', None, got 'scores'",
    "generator=0": "a torch.Generator, got int 0",
    "make_kernel=3": "a function from a step size and a covariance to a kernel, got int 3",
    "make_kernel=make(1.0, torch.ones(2))": "a function from a step size and a covariance to a kernel, got Kernel",
    "make_kernel=lambda h: make(h, None)": "a function from a step size and a covariance to a kernel, got function",
}


def test_arguments_of_another_type_raise_errors() -> None:
    script = f"""
        import torch
        from scoremh import MALA, LineIntegral, Target, metropolis_hastings, warmup
        make = lambda h, c: metropolis_hastings(Target(score=lambda x: -x), MALA(h, c), LineIntegral())
        for change in {list(UNCHECKED)}:
            try:
                warmup(**(dict(make_kernel=make, initial=torch.zeros(4, 2), steps=20) | eval(f"dict({{change}})")))
            except (TypeError, ValueError) as error:
                print(error)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    for line, text in zip(ran.stdout.splitlines(), UNCHECKED.values(), strict=True):
        assert line.startswith(f"expected {text}"), line


def by_trajectories(law: Any, **options: Any) -> Any:
    """Return a function from a step size, a covariance and a length to a kernel."""
    return lambda h, c, length: hamiltonian(law, h, length, LineIntegral(), covariance=c, **options)


def test_a_length_whose_worth_cannot_be_measured_stays_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two chains of twenty moves lie in a subspace of 300 dimensions."""
    monkeypatch.setattr("scoremh.sampling.tuning.MEASURED_MOVES", 0)
    x = torch.randn(2, 300, generator=seeded(1))
    make = by_trajectories(Target(lambda x: -x))
    assert warmup(make, x, steps=20, covariance="diagonal", generator=seeded(2)).length == 4


@pytest.mark.slow
def test_warmup_learns_a_length_if_the_kernel_takes_one() -> None:
    law = targets.Gaussian(torch.zeros(8), torch.logspace(0, 2, 8).diag())
    x = 2 * law.sample(60, generator=seeded(1))
    one, other = (warmup(by_trajectories(Target(law.score)), x, steps=150, generator=seeded(2)) for _ in range(2))
    assert one.length == other.length
    assert one.step_size == other.step_size
    assert 2 <= one.length <= 12  # type: ignore[operator]
    assert f"length {one.length}, dense" in repr(one)
    assert one.kernel.parts[0].steps == one.length  # type: ignore[attr-defined]
    assert one.acceptance_rate == pytest.approx(0.9, abs=0.05)
    fixed = warmup(lambda h, c: by_trajectories(Target(law.score))(h, c, 3), x, steps=60, generator=seeded(2))
    assert fixed.length is None
    assert fixed.acceptance_rate < 0.8  # the kernel's own rate


def test_autocorrelation_time_of_an_autoregression() -> None:
    x, g = [torch.randn(400, 2, generator=seeded(1))], seeded(2)
    for _ in range(200):
        x.append(x[-1] * torch.tensor([0.5, -0.5]) + math.sqrt(0.75) * torch.randn(400, 2, generator=g))
    torch.testing.assert_close(autocorrelation_time(torch.stack(x)), torch.tensor([3.0, 1 / 3]), atol=0.05, rtol=0.05)


@pytest.mark.slow
def test_stuck_chains_spoil_neither_the_covariance_nor_the_step() -> None:
    """Chains whose score is not finite stay where they are: without them both are right."""
    score: Any = lambda x: torch.where(x[:, :1] > 50, math.nan, -x)  # noqa: E731
    x = torch.randn(60, 2, generator=seeded(1))
    x[:12] = 60.0  # a fifth: an acceptance rate of .9 over all chains is out of reach
    learned = warmup(by_trajectories(Target(score)), x, steps=200, generator=seeded(2))
    assert torch.equal(learned.draws[:12], x[:12])
    assert learned.step_size > 0.3
    torch.testing.assert_close(learned.covariance, torch.eye(2), atol=0.2, rtol=0)


@pytest.mark.slow
def test_what_warmup_finds_is_near_the_best_of_a_grid() -> None:
    law = targets.GaussianMixture(f64(0.5, 0.5), torch.tensor([[1.5], [-1.5]]).double() * torch.eye(1, 5).double())
    make, g = by_trajectories(Target(law.score)), seeded(1)
    x = law.sample(64, generator=g)
    learned = warmup(make, 2 * x, steps=400, generator=g)

    def worth(h: float, length: int) -> float:
        chains = sample(make(h, learned.covariance, length), x[:32], draws=200, generator=seeded(3))
        both = chains, replace(chains, draws=chains.draws.square())  # long trajectories know the mean too well
        return min(diagnostics.summary(found).ess_per_score_call for found in both)

    best = max(worth(share * learned.step_size, n) for share in (0.6, 1.0, 1.4) for n in (3, 5, 8))
    assert worth(learned.step_size, learned.length) > 0.6 * best  # type: ignore[arg-type]  # with the noise of the best


def test_a_broken_score_ends_with_its_numbers_by_warmup() -> None:
    broken = Target(score=lambda x: torch.where(x == 0, 0.0, math.nan))
    with pytest.raises(TuningError) as caught:
        warmup(lambda h, c: metropolis_hastings(broken, MALA(h, c), LineIntegral()), torch.zeros(5, 2), steps=200)
    assert caught.value.rate == 0.0


def test_chains_that_stay_at_one_place_have_no_shape() -> None:
    stuck = Target(score=lambda x: torch.zeros_like(x), support=lambda x: (x == 0).flatten(1).all(1))
    with pytest.raises(TuningError, match="chains that move in every coordinate"):
        warmup(lambda h, c: metropolis_hastings(stuck, MALA(h, c), LineIntegral()), torch.zeros(5, 2), steps=40)


def gaussian(seed: int, *, rotated: bool) -> targets.Gaussian:
    """Return a 50-dimensional Gaussian of condition number 1e4."""
    g = seeded(seed)
    variances = torch.logspace(0, 4, 50, dtype=torch.float64)
    if not rotated:
        return targets.Gaussian(variances.new_zeros(50), variances[torch.randperm(50, generator=g)].diag())
    axes, _ = torch.linalg.qr(torch.randn(50, 50, dtype=torch.float64, generator=g))
    covariance = axes @ variances.diag() @ axes.T
    return targets.Gaussian(variances.new_zeros(50), (covariance + covariance.T) / 2)


@pytest.mark.parametrize("diagonal", [True, False])
def test_the_geometric_mean_solves_its_equation(diagonal: bool) -> None:
    g = seeded()
    s, p = (
        torch.randn(5, 9, dtype=torch.float64, generator=g) @ torch.randn(9, 5, dtype=torch.float64, generator=g)
        for _ in range(2)
    )
    s, p = s @ s.T, p @ p.T
    if diagonal:
        s, p = s.diagonal(), p.diagonal()
    c = geometric_mean(s, p)
    assert c is not None
    torch.testing.assert_close(c * p * c if diagonal else c @ p @ c, s, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(c, c.T if not diagonal else c)
    assert geometric_mean(s, torch.zeros_like(p)) is None


@pytest.mark.parametrize("estimate", ["geometric", "draws"])
def test_the_geometric_mean_knows_a_gaussian_from_far_out(estimate: Any) -> None:
    """Chains far out and all on one side: S and G are those of the way in, and C is still the covariance.

    Not after one window, in which the shrinkage hides the widest directions, but after three.
    """
    g = seeded()
    law = gaussian(3, rotated=True)
    x = 1e5 + 1e3 * torch.randn(64, 50, dtype=torch.float64, generator=g)
    make = lambda h, c: metropolis_hastings(Target(law.score), MALA(h, c), LineIntegral())  # noqa: E731
    learned = warmup(make, x, steps=300, estimate=estimate, generator=g)
    error = (learned.covariance - law.covariance).norm() / law.covariance.norm()
    assert (float(error) < 0.05) == (estimate == "geometric")


def test_the_estimate_is_chosen_by_what_points_keep() -> None:
    x, _ = starts()
    given = warmup(mala, x, steps=60, estimate="geometric", generator=seeded(1))
    chosen = warmup(mala, x, steps=60, generator=seeded(1))
    assert torch.equal(chosen.covariance, given.covariance)
    law = targets.Gaussian(torch.zeros(3, dtype=torch.float64))
    walks = [
        warmup(
            lambda h, c: metropolis_hastings(law, RandomWalk(h, c), Exact()),
            x,
            steps=60,
            estimate=estimate,
            generator=seeded(1),
        )
        for estimate in (None, "draws")
    ]
    assert torch.equal(walks[0].covariance, walks[1].covariance)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "estimate", "wide", "covariance"),
    [
        *product([0], ["draws", "geometric"], [100.0], ["dense", "diagonal"]),
        *product([0], ["geometric"], [1e4], ["dense", "diagonal"]),
        *product([1, 2], ["geometric"], [1e4], ["dense"]),
    ],
)
def test_a_badly_scaled_gaussian_converges_within_2000_steps(
    seed: int, estimate: Any, wide: float, covariance: Any
) -> None:
    """From starts 100 times as wide as the least standard deviation, or 10,000; 500 steps of warm-up, 1,500 draws."""
    truth = gaussian(seed, rotated=covariance == "dense")
    target = Target(score=truth.score)
    g = seeded(seed)
    x = wide * torch.randn(64, 50, dtype=torch.float64, generator=g)
    learned = warmup(
        lambda h, c: metropolis_hastings(target, MALA(h, c), LineIntegral()),
        x,
        steps=500,
        covariance=covariance,
        estimate=estimate,
        generator=g,
    )
    chains = sample(learned.kernel, learned.draws, draws=1500, generator=g)
    assert diagnostics.summary(chains).table["r_hat"].max() < 1.01


@pytest.mark.parametrize(("chains", "number"), [(1, 1), (1000, 1), (1001, 2), (2300, 2), (5000, 2), (5001, 3)])
def test_many_chains_are_divided_into_blocks(chains: int, number: int) -> None:
    """The draws depend on it: every block has a generator of its own."""
    assert loop.blocks(chains) == number
    assert len(torch.zeros(chains).split(loop.block_size(chains))) == number
