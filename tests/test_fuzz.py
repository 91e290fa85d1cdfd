"""Loaders given noise and forged files, and files that are damaged: the same as `make soak`, in fewer executions."""

import resource
from pathlib import Path

import pytest

from benchmarks.soak import damage, fuzz

EXECUTIONS = 5000 // len(fuzz.LOADERS) + 1
DAMAGES = 100
MAX_BYTES = 1_000_000_000


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz.LOADERS)
def test_a_loader_refuses_noise_by_name(name: str, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = fuzz.fuzz(name, EXECUTIONS, tmp_path)
    assert refused > EXECUTIONS / 3
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < MAX_BYTES


@pytest.mark.parametrize("name", damage.CASES)
def test_damage_is_refused_by_name_or_changes_nothing(name: str, tmp_path: Path) -> None:
    found = damage.campaign(name, DAMAGES, tmp_path)
    assert {outcome for _, outcome in found} <= {"refused by name", "the same result"}
    assert all(kind in ("delete", "add", "flip", "byte", "cut", "swap") for kind, _ in found)
    changed = {kind for kind, outcome in found if outcome == "the same result"}
    assert changed <= (
        {"delete"} if name != "store of a killed run" else {"delete", "flip", "byte", "cut", "add", "swap"}
    )
