"""Files: atomic writes, checksums, safetensors without pickled code, and checks that a file belongs to its run.

A file is written under a temporary name and then renamed. If the write is killed or the disk is full, the old file
stays; a symbolic link is replaced and never followed. A checksum covers every byte of a file: the file is hashed with
64 zeros in place of the checksum, which are then replaced by the hash.

A lock on a folder allows one writer at a time. It names its owner, and the operating system frees it when the owner
dies.
"""

import glob
import hashlib
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from scoremh._shared import checks

MAX_SHOWN_CHARACTERS = 120  # shown of each of two different values
STALE_SECONDS = 3600.0  # age at which a temporary file counts as left by a killed process
MAX_HEADER_BYTES = 100_000_000  # the limit of safetensors for its header
BLANK = "0" * 64
_SEAL = re.compile(rb'"sha256": ?"([0-9a-f]{64})"')
# Errors that reading a damaged or forged file may raise.
DAMAGE = (
    SafetensorError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    ValueError,
    RuntimeError,
    OverflowError,
    MemoryError,
)


class TensorFile(NamedTuple):
    """The contents of a safetensors file."""

    metadata: dict[str, str]
    tensors: dict[str, Tensor]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a new, empty file that replaces the one at the path after a complete write."""
    if not path.parent.is_dir():
        got, fix = f"{path.parent}, which does not exist", f"Create {path.parent} first."
        raise FileNotFoundError(checks.message("a folder to write to", got, fix))
    _remove_stale(path)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))  # never through an existing link
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    """Delete temporary files that killed writes of this file left."""
    for old in path.parent.glob(f"{glob.escape(path.name)}.*.partial"):
        with suppress(OSError):
            if time.time() - old.lstat().st_mtime > STALE_SECONDS:
                old.unlink()


def write_bytes(path: Path, data: bytes | bytearray | memoryview) -> None:
    """Write a file, completely or not at all."""
    with replacing(path) as partial:
        partial.write_bytes(data)


def require_file(path: Path) -> None:
    """Raise an error if the path is a folder."""
    if path.is_dir():
        raise IsADirectoryError(checks.message("a file", f"{path}, which is a folder", "Pass a file in it."))


def require_no_links(folder: Path) -> None:
    """Raise an error if a folder has a symbolic link to a folder outside, so that files would be written there."""
    root = folder.resolve()
    for place, names, _ in os.walk(folder):
        for link in (Path(place) / name for name in names):
            if link.is_symlink() and not link.resolve().is_relative_to(root):
                got = f"{link}, a symbolic link to {link.resolve()}"
                fix = "Replace the link by a folder: nothing is written outside the folder of a run."
                raise ValueError(checks.message(f"{folder} to hold all of its folders", got, fix))


def sealed(raw: bytes) -> bytearray:
    """Return the bytes of a JSON or safetensors file with its checksum in place of `BLANK`, under "sha256"."""
    data, place = bytearray(raw), _SEAL.search(raw)
    assert place is not None  # `BLANK` was written there
    data[slice(*place.span(1))] = hashlib.sha256(raw).hexdigest().encode()
    return data


def require_seal(raw: bytes, path: str | Path, expected: str, fix: str) -> None:
    """Raise an error if the checksum of a file is missing or wrong."""
    place = _SEAL.search(raw)
    if place is None:
        raise ValueError(checks.message(expected, f"{path}, which has no checksum and cannot be read", fix))
    blank = bytearray(raw)
    blank[slice(*place.span(1))] = BLANK.encode()
    if hashlib.sha256(blank).hexdigest().encode() != place[1]:
        got = "a damaged or edited file, which cannot be read"
        raise ValueError(checks.message(f"{path} as it was written", got, fix))


def write_json(path: Path, contents: Mapping[str, Any]) -> None:
    """Write a JSON file with a checksum of all its bytes."""
    text = json.dumps({**contents, "sha256": BLANK}, indent=1, allow_nan=False)
    write_bytes(path, sealed(f"{text}\n".encode()))


def read_json(path: Path, fix: str) -> dict[str, Any]:
    """Return the contents of a file that `write_json` wrote, after verifying its checksum."""
    raw = path.read_bytes()
    require_seal(raw, path, f"{path} as it was written", fix)
    with naming(path, f"{path} to be JSON", fix):
        contents: dict[str, Any] = json.loads(raw)
        del contents["sha256"]
    return contents


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file with a checksum of all its bytes."""
    # cloned, because safetensors does not accept tensors that share memory, such as tied weights
    whole = {name: tensor.cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    write_bytes(path, sealed(safetensors.torch.save(whole, {**metadata, "sha256": BLANK})))


@contextmanager
def reading(path: str | Path, expected: str, fix: str) -> Iterator[TensorFile]:
    """Yield the contents of a safetensors file; errors in reading or using them name the file."""
    require_file(Path(path))
    if not Path(path).is_file():
        raise FileNotFoundError(checks.message(expected, f"{path}, which does not exist", fix))
    raw = Path(path).read_bytes()
    with naming(path, expected, fix):
        size = int.from_bytes(raw[:8], "little")
        if size > min(len(raw) - 8, MAX_HEADER_BYTES):
            raise ValueError(f"a header of {size} bytes in a file of {len(raw)}")
        require_seal(raw, path, expected, fix)
        yield TensorFile(json.loads(raw[8 : 8 + size])["__metadata__"], safetensors.torch.load(raw))


@contextmanager
def naming(path: str | Path, expected: str, fix: str) -> Iterator[None]:
    """Add the name of a file to errors that its contents cause."""
    try:
        yield
    except DAMAGE as error:
        if str(path) in str(error):
            raise
        got = f"{path}, which cannot be read ({checks.short(error)})"
        raise ValueError(checks.message(expected, got, fix)) from error


def require_same(header: Mapping[str, object], found: Mapping[str, object], path: Path, what: str, place: str) -> None:
    """Raise an error if a file or folder (`place`) holds another run or training (`what`) than the header describes."""
    for key, value in header.items():
        if found.get(key) != value:
            wanted, got = _where_they_differ(repr(value), repr(found.get(key)))
            fix = f"Use another {place}, or delete this one to start over."
            expected = f"{path} to hold this {what}, with {key} = {wanted}"
            raise ValueError(checks.message(expected, f"{key} = {got}", fix))


def _where_they_differ(a: str, b: str) -> tuple[str, str]:
    """Return two texts; long ones are cut to the part where they begin to differ."""
    shared = zip(a, b, strict=False)
    apart = next((place for place, (one, other) in enumerate(shared) if one != other), min(len(a), len(b)))
    start = max(0, apart - MAX_SHOWN_CHARACTERS // 2) if max(len(a), len(b)) > MAX_SHOWN_CHARACTERS else 0
    return _cut(a, start), _cut(b, start)


def _cut(text: str, start: int) -> str:
    """Return the part of a text from `start` on, with dots for omitted parts."""
    end = start + MAX_SHOWN_CHARACTERS
    return f"{'...' * (start > 0)}{text[start:end]}{'...' * (len(text) > end)}"


def fingerprint(x: Tensor) -> str:
    """Return a hash of a tensor's shape, dtype and values."""
    raw = x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{x.dtype}{tuple(x.shape)}".encode() + raw).hexdigest()


try:
    import fcntl
except ImportError:  # Windows has no such lock
    fcntl = None  # type: ignore[assignment]

LOCK = "writer.lock"


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of an existing folder; raise an error if another process holds it. A dead owner's lock is free."""
    if fcntl is None:
        yield
        return
    file = _locked_file(folder / LOCK, folder)
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(_owner()).encode(), 0)
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)  # before it is released: a later writer creates a new file
        os.close(file)


def _owner() -> dict[str, object]:
    return {"host": socket.gethostname(), "process": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}


def _locked_file(path: Path, folder: Path) -> int:
    """Return a descriptor of the locked lock file, after checking that the path still leads to it."""
    if path.is_symlink():
        got = f"a symbolic link to {path.readlink()}"
        raise OSError(checks.message(f"no symbolic link at {path}", got, "Remove the link; it is not followed."))
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and path.stat().st_ino == os.fstat(file).st_ino:
                return file
            os.close(file)
        except BlockingIOError as error:
            text = _described_owner(os.pread(file, 1000, 0))
            os.close(file)
            fix = "Wait for it to end, end it, or choose another folder."
            raise BlockingIOError(
                checks.message(f"no other writer in {folder}", f"{text} writing to it", fix)
            ) from error


def _described_owner(raw: bytes) -> str:
    """Return the owner of a lock, from the contents of its file."""
    try:
        owner = json.loads(raw)
        return f"process {owner['process']} on host {owner['host']}, since {owner['since']},"
    except (ValueError, KeyError, TypeError):
        return "another process"
