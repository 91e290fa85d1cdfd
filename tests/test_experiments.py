"""The experiments run, small, and write what they say."""

import json
from pathlib import Path

import pytest
import torch

from scoremh import plots
from scoremh.experiments import mixture


def test_mixture_measures_weights_and_jumps() -> None:
    here, there = [5.0, 5.0], [-5.0, -5.0]
    draws = torch.tensor([[here, here, here], [here, there, here], [there, there, there], [there, here, here]])
    row = mixture.describe("made up", draws, 0.5)
    assert (row.weight, row.jumps, row.variance) == (0.75, 0.75, 0.0)
    assert mixture.describe("independent", draws[:, -1:]).jumps is None


def test_mixture_writes_its_picture_and_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mixture, "CHAINS", 200)
    monkeypatch.setattr(mixture, "STEPS", 120)
    rows = mixture.run(tmp_path / "new", progress=False)
    results = json.loads((tmp_path / "new" / "mixture.json").read_text())
    assert [row["weight"] for row in results["rows"]] == [row.weight for row in rows]
    assert "200 chains of 120 steps from N(0, I)" in results["setting"]
    picture = (tmp_path / "new" / "mixture.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000
    printed = capsys.readouterr().out
    assert "jumps" in printed
    assert "keep those of their start" in printed


def test_a_picture_without_panels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected at least one panel, got none"):
        plots.scatter_panels({}, tmp_path / "empty.png")
