"""The files of a run beside those of its estimator: chains, metrics, report, checkpoints."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from scoremh import Chains
from scoremh._shared import checks
from scoremh.datasets import files as tables
from scoremh.estimator import serialization
from scoremh.estimator.frames import layout_from_json, numbers_of
from scoremh.estimator.run_folder import CONFIG, RunFolder

CHAINS, METRICS, REPORT = "chains.nc", "metrics.json", "report.html"
TRAINING_CHECKPOINTS, SAMPLING_CHECKPOINTS = ("score.checkpoint", "acceptance.checkpoint"), "sampling"
ESTIMATOR = (serialization.SCORE, serialization.ACCEPTANCE, serialization.HELD_OUT)


def clear_run(path: Path) -> None:
    """Remove a run, and nothing else, from a folder.

    Args:
        path: Path of the folder.
    """
    if not (path / CONFIG).exists():
        return
    for name in (CONFIG, *ESTIMATOR, CHAINS, METRICS, REPORT, *TRAINING_CHECKPOINTS):
        (path / name).unlink(missing_ok=True)
    shutil.rmtree(path / SAMPLING_CHECKPOINTS, ignore_errors=True)


def removal(names: Sequence[str], of: str) -> str:
    """Return what to say of files that were removed.

    Args:
        names: Names of the files.
        of: What they were about.
    """
    return f"; removed {' and '.join(names)}, which {'was' if len(names) == 1 else 'were'} about {of}" if names else ""


def load_chains(folder: RunFolder) -> Chains:
    """Return the chains of a run.

    Args:
        folder: Folder of the run.
    """
    return Chains.load(folder.get(CHAINS, f"Draw samples first: scoremh sample {folder.path}."))


def reference_rows(folder: RunFolder, reference: Path | None) -> tuple[Tensor, str]:
    """Return rows to compare draws with, as events of the run, and what they are.

    Args:
        folder: Folder of the run.
        reference: File of rows; the held-out rows of the run if None.
    """
    event = folder.config["event"]
    if reference is None:
        return load_file(folder.get(serialization.HELD_OUT))["rows"].reshape(-1, *event), "held-out rows"
    rows, shape = tables.read_table(reference)
    columns, known = list(map(str, getattr(rows, "columns", ()))), folder.config["columns"]
    fix = "Pass rows with the columns of the fit."
    if list(shape) != event:
        raise ValueError(checks.message(f"rows of shape {tuple(event)}", f"{shape} in {reference}", fix))
    if columns and known and columns != known:
        raise ValueError(checks.message(f"the columns {', '.join(known)}", f"{', '.join(columns)} in {reference}", fix))
    numbers = numbers_of(rows, layout_from_json(folder.config["layout"]))
    return torch.from_numpy(numbers).reshape(-1, *event), str(reference)
