"""A disk that can be filled: a tmpfs of its own, where one may be mounted."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SIZE = 32_000_000


class Disk:
    """A small disk.

    Args:
        path: Where it is mounted.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.ballast = path, path / "ballast"

    def fill(self, free: int = 0) -> None:
        """Fill it up, but for some bytes."""
        with self.ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                file.truncate(max(0, file.tell() - free))

    def empty(self) -> None:
        """Make room again."""
        self.ballast.unlink()

    def files(self) -> dict[str, bytes]:
        """Return all that is on it."""
        found = [path for path in self.path.rglob("*") if path.is_file() and path != self.ballast]
        return {str(path.relative_to(self.path)): path.read_bytes() for path in found}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Return a disk of 32 MB; skip where none can be mounted."""
    path = tmp_path / "disk"
    path.mkdir()
    call = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(path)]
    try:
        subprocess.run(call, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no tmpfs can be mounted")
    yield Disk(path)
    subprocess.run(["umount", "--lazy", str(path)], check=True)
