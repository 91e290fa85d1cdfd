"""Files that are written whole or not at all, and what tells one tensor from another."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from scoremh import _checks


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a place to write to, which becomes the file when all went well: a killed write leaves the old one."""
    if not path.parent.is_dir():
        got, fix = f"{path.parent}, which does not exist", f"Create {path.parent} first."
        raise FileNotFoundError(_checks.message("a folder to write to", got, fix))
    partial = path.with_name(path.name + ".partial")
    yield partial
    partial.replace(path)


def fingerprint(x: Tensor) -> str:
    """Return a hash of a tensor's shape, dtype and values."""
    raw = x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{x.dtype}{tuple(x.shape)}".encode() + raw).hexdigest()
