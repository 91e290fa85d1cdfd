"""Files: atomic writes, safetensors without pickled code, and checks that a file belongs to the run that resumes it."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from scoremh._shared import checks

MAX_SHOWN_CHARACTERS = 120  # of two values that differ


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces the file after a complete write; a killed write leaves the old file."""
    if not path.parent.is_dir():
        got, fix = f"{path.parent}, which does not exist", f"Create {path.parent} first."
        raise FileNotFoundError(checks.message("a folder to write to", got, fix))
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def require_file(path: Path) -> None:
    """Refuse a folder where a file is to be."""
    if path.is_dir():
        raise IsADirectoryError(checks.message("a file", f"{path}, which is a folder", "Name a file in it."))


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file."""
    with replacing(path) as partial:
        try:
            # cloned: weights that are tied share their memory
            whole = {
                name: tensor.cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
            }
            save_file(whole, partial, metadata)
        except SafetensorError as error:
            raise OSError(f"{path} could not be written: {error}") from error


@contextmanager
def reading(path: str | Path, expected: str, fix: str) -> Iterator[Any]:
    """Open a safetensors file; an error in it, or of what is read from it, names the file."""
    require_file(Path(path))
    if not Path(path).exists():
        raise FileNotFoundError(checks.message(expected, f"{path}, which does not exist", fix))
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, KeyError, TypeError) as error:
        got = f"{path}, which cannot be read ({error!r})"
        raise ValueError(checks.message(expected, got, fix)) from error


def require_same(header: Mapping[str, object], found: Mapping[str, object], path: Path, what: str, place: str) -> None:
    """Refuse a file or folder (`place`) that holds another run or training (`what`) than the header describes."""
    for key, value in header.items():
        if found.get(key) != value:
            wanted, got = _where_they_differ(repr(value), repr(found.get(key)))
            fix = f"Use another {place}, or delete this one to start over."
            expected = f"{path} to hold this {what}, with {key} = {wanted}"
            raise ValueError(checks.message(expected, f"{key} = {got}", fix))


def _where_they_differ(a: str, b: str) -> tuple[str, str]:
    """Return two texts, cut to the part where they begin to differ if they are long."""
    shared = zip(a, b, strict=False)
    apart = next((place for place, (one, other) in enumerate(shared) if one != other), min(len(a), len(b)))
    start = max(0, apart - MAX_SHOWN_CHARACTERS // 2) if max(len(a), len(b)) > MAX_SHOWN_CHARACTERS else 0
    return _cut(a, start), _cut(b, start)


def _cut(text: str, start: int) -> str:
    """Return the part of a text from a place on, with dots where something is left out."""
    end = start + MAX_SHOWN_CHARACTERS
    return f"{'...' * (start > 0)}{text[start:end]}{'...' * (len(text) > end)}"


def fingerprint(x: Tensor) -> str:
    """Return a hash of a tensor's shape, dtype and values."""
    raw = x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{x.dtype}{tuple(x.shape)}".encode() + raw).hexdigest()
