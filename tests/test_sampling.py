"""The loop and its records: thinning, warm-up, storage, resuming, files."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import arviz_base
import pytest
import torch
import xarray

from scoremh import MALA, Always, Chains, Exact, LineIntegral, RandomWalk, Target, metropolis_hastings, sample
from scoremh.sampling import store as stores
from scoremh.types import Kernel, Proposal
from tests.cases import TARGETS

loop = import_module("scoremh.sampling.sample")  # the package has a function of that name

MIXTURE = TARGETS["mixture"]
KERNELS = {
    "fused": metropolis_hastings(MIXTURE, MALA(0.6), LineIntegral()),
    "stepwise": metropolis_hastings(MIXTURE, MALA(0.6), Exact())._replace(run=None),
    "walk": metropolis_hastings(MIXTURE, RandomWalk(0.9), Exact()),
}


def start(chains: int = 12) -> torch.Tensor:
    x: torch.Tensor = MIXTURE.sample(chains, generator=torch.Generator().manual_seed(0))
    return x


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("segment", [1, 50, 100_000])
def test_thinning_and_warmup_select_from_the_same_chain(
    kernel: str, segment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SEGMENT_FLOATS", segment)
    steps = 3 + 4 * 5
    whole = sample(KERNELS[kernel], start(), draws=steps, generator=seeded())
    some = sample(KERNELS[kernel], start(), draws=5, warmup=3, thin=4, generator=seeded())
    assert torch.equal(some.draws, whole.draws[:, 6::4])
    for name in ("accepted", "nonfinite", "outside"):
        of_steps = getattr(whole, name)[:, 3:].reshape(12, 5, 4)
        assert torch.equal(getattr(some, name), of_steps.sum(2).int())
    torch.testing.assert_close(some.acceptance_prob, whole.acceptance_prob[:, 3:].reshape(12, 5, 4).mean(2))
    assert some.score_calls == whole.score_calls
    assert some.acceptance_rate == pytest.approx(float(whole.accepted[:, 3:].double().mean()))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_draw_changes_exactly_where_a_move_was_accepted(kernel: str) -> None:
    chains = sample(KERNELS[kernel], start(), draws=200, generator=seeded())
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

    chains = sample(kernel._replace(run=run), start(), draws=2, warmup=9000, thin=1000, generator=seeded())
    assert longest <= loop.SEGMENT_FLOATS
    assert chains.draws.untyped_storage().nbytes() == 12 * 2 * 2 * 8


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_stored_run_that_stopped_ends_with_the_same_bits(
    kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SEGMENT_FLOATS", 100)
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(loop, "MAX_BLOCK_CHAINS", 5)
    monkeypatch.setattr(stores, "CHUNK_NUMBERS", 60)
    whole = sample(KERNELS[kernel], start(), draws=40, warmup=7, thin=3, generator=seeded())
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
    options = {"draws": 40, "warmup": 7, "thin": 3, "store": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        sample(fragile, start(), generator=seeded(), **options)  # type: ignore[arg-type]
    assert len(list((tmp_path / "run").glob("block-*.safetensors"))) > 1
    assert len(list((tmp_path / "run" / "chains.zarr" / "posterior" / "x" / "c").glob("*/*/0"))) > 3
    resumed = sample(KERNELS[kernel], start(), generator=seeded(), **options)  # type: ignore[arg-type]
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
    first = sample(near, start(), draws=5, generator=seeded(), store=tmp_path)
    assert torch.equal(first.draws, sample(near, start(), draws=5, generator=seeded(), store=tmp_path).draws)
    with pytest.raises(ValueError, match="first step differs"):
        sample(far, start(), draws=5, generator=seeded(), store=tmp_path)


def test_a_store_tells_covariances_apart(tmp_path: Path) -> None:
    narrow, wide = (
        metropolis_hastings(MIXTURE, MALA(0.1, covariance=torch.tensor([c, c], dtype=torch.float64)), Exact())
        for c in (1.0, 25.0)
    )
    sample(narrow, start(), draws=5, generator=seeded(), store=tmp_path)
    with pytest.raises(ValueError, match="first step differs"):
        sample(wide, start(), draws=5, generator=seeded(), store=tmp_path)


def test_a_run_with_ones_own_proposal_can_be_resumed(tmp_path: Path) -> None:
    class Own(Proposal):
        def sample(self, at: Any, *, generator: torch.Generator | None = None) -> Any:
            return at.x + torch.randn(at.x.shape, generator=generator, dtype=at.x.dtype)

        def log_prob(self, to: Any, *, given: Any) -> Any:
            return -(to.x - given.x).square().sum(1) / 2

    runs = [
        sample(metropolis_hastings(MIXTURE, Own(), Exact()), start(), draws=5, generator=seeded(), store=tmp_path)
        for _ in range(2)
    ]
    assert torch.equal(runs[0].draws, runs[1].draws)


def test_the_cost_of_a_move_does_not_depend_on_the_warm_up() -> None:
    kernel = KERNELS["fused"]
    cold, warm = (sample(kernel, start(), draws=100, warmup=w, generator=seeded()) for w in (0, 2000))
    assert warm.moves > 10 * cold.moves
    assert warm.score_calls / warm.moves == pytest.approx(cold.score_calls / cold.moves, rel=0.2)


def test_a_store_refuses_another_run(tmp_path: Path) -> None:
    sample(KERNELS["fused"], start(), draws=3, generator=seeded(), store=tmp_path)
    with pytest.raises(
        ValueError, match=r"expected .*run.json to hold this run, with draws = 4, got draws = 3.*another folder"
    ):
        sample(KERNELS["fused"], start(), draws=4, generator=seeded(), store=tmp_path)
    with pytest.raises(ValueError, match="with initial = "):
        sample(KERNELS["fused"], start() + 1, draws=3, generator=seeded(), store=tmp_path)
    with pytest.raises(ValueError, match="with kernel = "):
        sample(KERNELS["walk"], start(), draws=3, generator=seeded(), store=tmp_path)
    with pytest.raises(ValueError, match="with seeds = "):
        sample(KERNELS["fused"], start(), draws=3, generator=seeded(2), store=tmp_path)


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    sample(KERNELS["fused"], start(), draws=3, generator=seeded(), store=tmp_path)
    (part,) = tmp_path.glob("*.safetensors")
    part.write_bytes(part.read_bytes()[:50])
    with pytest.raises(ValueError, match=f"{part.name}, which cannot be read .*Delete it: its 12 chains start again"):
        sample(KERNELS["fused"], start(), draws=3, generator=seeded(), store=tmp_path)


def test_a_failure_in_one_thread_stops_the_others() -> None:
    def score(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] < 1000 and bool(x.any()):
            raise ZeroDivisionError("a score of the user's that fails")
        return -x

    kernel = metropolis_hastings(Target(score=score), MALA(0.1), Always())
    with pytest.raises(ZeroDivisionError, match="of the user's"):
        sample(kernel, torch.zeros(1500, 2), draws=1, thin=10**6, generator=seeded(), pool=ThreadPoolExecutor(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("event", [(2,), (1, 4, 4)], ids=str)
def test_save_and_load_give_back_the_same(dtype: torch.dtype, event: tuple[int, ...], tmp_path: Path) -> None:
    kernel = metropolis_hastings(Target(score=lambda x: -x), MALA(0.4), LineIntegral())
    chains = sample(kernel, torch.zeros(4, *event, dtype=dtype), draws=6, thin=2, generator=seeded())
    chains.save(tmp_path / "chains.nc")
    loaded = Chains.load(tmp_path / "chains.nc")
    for name in ("draws", "accepted", "nonfinite", "outside", "acceptance_prob", "rejected"):
        assert torch.equal(getattr(loaded, name), getattr(chains, name)), name
        assert getattr(loaded, name).dtype == getattr(chains, name).dtype
    assert (loaded.thin, loaded.score_calls, loaded.description) == (2, chains.score_calls, chains.description)
    assert repr(loaded) == repr(chains)
    assert [path.name for path in tmp_path.iterdir()] == ["chains.nc"]


def test_arviz_reads_what_we_write(tmp_path: Path) -> None:
    chains = sample(KERNELS["fused"], start(), draws=10, generator=seeded())
    tree = chains.to_arviz()
    assert tree["posterior"]["x"].dims == ("chain", "draw", "x_dim_0")
    assert {"acceptance_rate", "diverging"} <= set(tree["sample_stats"].data_vars)
    assert tree["sample_stats"]["diverging"].dtype == bool
    chains.save(tmp_path / "chains.nc")
    found = xarray.open_datatree(tmp_path / "chains.nc", engine="h5netcdf")
    assert json.dumps(sorted(found.children)) == '["posterior", "sample_stats"]'
    xarray.testing.assert_equal(found["posterior"].to_dataset(), tree["posterior"].to_dataset())


def test_load_refuses_a_file_of_another_library(tmp_path: Path) -> None:
    arviz_base.from_dict({"posterior": {"x": torch.ones(1, 2).numpy()}}).to_netcdf(
        tmp_path / "other.nc", engine="h5netcdf"
    )
    with pytest.raises(ValueError, match=r"expected a file written by Chains.save, got .*other.nc"):
        Chains.load(tmp_path / "other.nc")
    with pytest.raises(FileNotFoundError, match=r"a folder to write to.*Create"):
        sample(KERNELS["fused"], start(), draws=2).save(tmp_path / "missing" / "chains.nc")


@pytest.mark.slow
def test_progress_shows_rate_and_acceptance(capsys: pytest.CaptureFixture[str]) -> None:
    sample(KERNELS["fused"], start(), draws=30_000, generator=seeded(), progress=True)
    shown = capsys.readouterr().err
    assert "sampling" in shown
    assert "100%" in shown
    assert "acceptance 0." in shown
    assert "steps/s" in shown


def test_silence_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    sample(KERNELS["fused"], start(), draws=10, generator=seeded())
    assert capsys.readouterr() == ("", "")


def test_the_text_of_chains_says_what_matters() -> None:
    text = repr(sample(KERNELS["fused"], start(), draws=10, generator=seeded()))
    assert text.startswith(
        "Chains(12 chains x 10 draws of (2,), MALA(step_size=0.6) with LineIntegral(): acceptance 0."
    )
    assert "score calls per accepted move" in text


def test_a_user_kernel_needs_only_init_and_step() -> None:
    kernel = Kernel(KERNELS["walk"].init, KERNELS["walk"].step)
    expected = sample(KERNELS["walk"]._replace(run=None), start(), draws=5, generator=seeded())
    assert torch.equal(sample(kernel, start(), draws=5, generator=seeded()).draws, expected.draws)


def test_a_store_opens_lazily_and_as_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "CHUNK_NUMBERS", 60)
    monkeypatch.setattr(loop, "SEGMENT_FLOATS", 48)
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    whole, seen = sample(KERNELS["fused"], start(), draws=20, thin=3, generator=seeded()), list[Any]()
    inner_run = KERNELS["fused"].run
    assert inner_run is not None

    def run(point, steps, *, generator):  # type: ignore[no-untyped-def]
        if (tmp_path / "block-00000.safetensors").exists():
            seen.append(Chains.load(tmp_path).draws if len(seen) > 2 else None)
        return inner_run(point, steps, generator=generator)

    found = sample(KERNELS["fused"]._replace(run=run), start(), draws=20, thin=3, generator=seeded(), store=tmp_path)
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
    with pytest.raises(BlockingIOError, match=rf"got process {other.pid} on host \S+, since .* at work there. Wait"):
        sample(KERNELS["fused"], start(), draws=2, generator=seeded(), store=tmp_path)
    other.kill()
    other.communicate()
    assert (tmp_path / "writer.lock").exists()  # a stale one
    sample(KERNELS["fused"], start(), draws=2, generator=seeded(), store=tmp_path)
    assert not (tmp_path / "writer.lock").exists()
    (tmp_path / "writer.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="got a symbolic link to"):
        sample(KERNELS["fused"], start(), draws=2, generator=seeded(), store=tmp_path)
    assert not (tmp_path / "elsewhere").exists()
