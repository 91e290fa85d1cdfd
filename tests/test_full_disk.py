"""Every writer on a full disk: an error, the old file whole, nothing half-written, and the same call goes on after."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from scoremh import (
    MALA,
    LineIntegral,
    Target,
    annealing,
    fit_score,
    metropolis_hastings,
    networks,
    replica_exchange,
    sample,
    targets,
)
from scoremh._shared.files import write_json
from scoremh.estimator.files import RunFolder
from scoremh.training import Recipe
from scoremh.types import Kernel
from studies.framework import runner
from tests.cli_cases import data, ended, run, whole
from tests.full_disk import Disk, disk

__all__ = ["data", "disk", "run", "whole"]  # fixtures
KERNEL = metropolis_hastings(Target(score=lambda x: -x), MALA(0.5), LineIntegral())
LAW = targets.Gaussian(torch.zeros(2), torch.eye(2))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def chains(folder: Path | None = None) -> object:
    return sample(KERNEL, torch.zeros(20, 2), draws=300, generator=seeded(), store=folder)


def kernel_at(level: float) -> Kernel:
    return metropolis_hastings(LAW.at(level), MALA(0.5 * level**2), LineIntegral())


def trained(path: Path) -> object:
    samples, recipe = LAW.sample(200, generator=seeded()), Recipe(steps=4, batch=16, check_every=2)
    return fit_score(samples, net=networks.ScoreMLP(2), recipe=recipe, generator=seeded(), checkpoint=path)


WRITERS: dict[str, Callable[[Path], object]] = {
    "chains": lambda folder: chains().save(folder / "chains.nc"),  # type: ignore[attr-defined]
    "plot": lambda folder: chains().plot(folder / "chains.png"),  # type: ignore[attr-defined]
    "report": lambda folder: chains().report(folder / "report.html"),  # type: ignore[attr-defined]
    "store": lambda folder: chains(folder / "store"),
    "anneal": lambda folder: annealing.anneal(
        kernel_at, [2.0, 1.0], torch.zeros(900, 2), steps_per_level=2, generator=seeded(), store=folder / "levels"
    ),
    "replicas": lambda folder: replica_exchange(
        kernel_at, [1.0, 0.5], torch.zeros(50, 2), model=LAW, draws=40, generator=seeded(), store=folder / "replicas"
    ),
    "checkpoint": lambda folder: trained(folder / "checkpoint"),
    "fit": lambda folder: trained(folder / "checkpoint").save(folder / "score.safetensors"),  # type: ignore[attr-defined]
    "json": lambda folder: write_json(folder / "run.json", {"numbers": list(range(3000))}),
    "study": lambda folder: runner.write_json({"numbers": list(range(3000))}, folder / "records.json"),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("free", [0, 4096])
def test_a_full_disk_is_an_error_and_loses_nothing(name: str, free: int, disk: Disk) -> None:
    (disk.path / "kept").write_bytes(b"kept")
    disk.fill(free)
    with pytest.raises(OSError, match=r"No space left on device|os error 28") as caught:
        WRITERS[name](disk.path)
    assert caught.value.errno in (errno.ENOSPC, None)
    assert not [path for path in disk.files() if path.endswith(".partial")]
    disk.empty()
    WRITERS[name](disk.path)
    written = disk.files()
    disk.fill()
    if name in ("chains", "plot", "report", "fit", "json", "study"):
        with pytest.raises(OSError, match="No space left"):
            WRITERS[name](disk.path)
    assert disk.files() == written


COMMANDS = {
    "sample": ["--draws", "60", "--seed", "1", "--quiet"],
    "evaluate": ["--seed", "1", "--quiet"],
    "report": ["--quiet"],
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_on_a_full_disk_ends_with_one_line(
    command: str, run: Path, disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    place = disk.path / "run"
    place.mkdir()
    for path in run.iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    before = disk.files()
    disk.fill()
    code, said = ended([command, str(place), *COMMANDS[command]], capsys)
    assert code == 1, said
    assert said.startswith("scoremh: ")
    assert said.count("\n") == 1
    assert {name: raw for name, raw in disk.files().items() if "sampling" not in name} == before
    RunFolder.open(place).get("metrics.json")
    disk.empty()
    from scoremh import cli

    cli.main([command, str(place), *COMMANDS[command], *["--resume"] * (place / "sampling").exists()])
