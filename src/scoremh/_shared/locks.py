"""One writer at a time: a lock on a folder that names its owner, and that the operating system frees when it dies."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scoremh._shared import checks

try:
    import fcntl
except ImportError:  # Windows, where there is no lock
    fcntl = None  # type: ignore[assignment]

LOCK = "writer.lock"


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; refuse where another process holds it, and take over what a dead one has left.

    Args:
        folder: Folder to write to; it exists.
    """
    if fcntl is None:
        yield
        return
    file = _locked_file(folder / LOCK, folder)
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(_owner()).encode(), 0)
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)  # while it is held: a later writer locks a file of its own
        os.close(file)


def _owner() -> dict[str, object]:
    return {"host": socket.gethostname(), "process": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}


def _locked_file(path: Path, folder: Path) -> int:
    """Return a descriptor of the lock's file, locked; the file is the one that other processes see."""
    if path.is_symlink():
        got = f"a symbolic link to {path.readlink()}"
        raise OSError(checks.message(f"no link in the place of {path}", got, "Remove the link; it is not followed."))
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
                checks.message(f"no other writer in {folder}", f"{text} at work there", fix)
            ) from error


def _described_owner(raw: bytes) -> str:
    """Return who holds a lock, as its file says."""
    try:
        owner = json.loads(raw)
        return f"process {owner['process']} on host {owner['host']}, since {owner['since']},"
    except (ValueError, KeyError, TypeError):
        return "another process"
