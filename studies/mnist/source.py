"""MNIST's images as float32 tensors `(image, 1, row, column)` in [-1, 1]: from a folder, a cache, or its mirror.

MNIST is four files in IDX format: the bytes 0, 0, 8 (for uint8) and the number of axes; the size of every axis as a
big-endian 32-bit integer; the values. They are read gzipped or raw.
"""

import gzip
import hashlib
import math
import os
import struct
import urllib.request
import zlib
from http.client import HTTPException
from pathlib import Path
from typing import Literal, get_args, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.files import write_bytes

Split = Literal["train", "test"]

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
MAX_BYTES = 100_000_000  # of an unpacked file; MNIST's largest has 47,040,016
MAX_EXPANSION = 10  # beyond that, times the size of the file; MNIST's images reach 6
TIMEOUT_SECONDS = 10  # without a response, or without its next bytes
_SHA256 = {  # of the files as first published on yann.lecun.com/exdb/mnist
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
DATA = Path(__file__).parent.parent / "data"
WEIGHTS = Path(__file__).parent.parent / "weights"


@overload
def mnist(
    split: Split = "train", *, root: str | Path | None = None, labels: Literal[False] = False
) -> Float[Tensor, "image 1 28 28"]: ...
@overload
def mnist(
    split: Split = "train", *, root: str | Path | None = None, labels: Literal[True]
) -> tuple[Float[Tensor, "image 1 28 28"], Int[Tensor, " image"]]: ...
def mnist(
    split: Split = "train", *, root: str | Path | None = None, labels: bool = False
) -> Float[Tensor, "image 1 28 28"] | tuple[Float[Tensor, "image 1 28 28"], Int[Tensor, " image"]]:
    """Return MNIST's images of 28 x 28 pixels: 60,000 for training, 10,000 for testing.

    A folder may hold the files themselves, or hold them in a folder `mnist`.

    Args:
        split: "train" or "test".
        root: Folder to read. By default that in the environment variable `SCOREMH_DATA`, else the user's cache
            (`~/.cache/scoremh`); files that are in neither are downloaded into the cache.
        labels: Whether to return the digits that the images show as well, as a pair (images, labels).
    """
    checks.one_of(split, get_args(Split), "split")
    prefix = "t10k" if split == "test" else "train"
    images = _read_idx(_find(f"{prefix}-images-idx3-ubyte.gz", root), "image", 28, 28)
    x = images.float()[:, None].div_(127.5).sub_(1)
    if not labels:
        return x
    path = _find(f"{prefix}-labels-idx1-ubyte.gz", root)
    y = _read_idx(path, "image").long()
    if len(y) != len(x):
        fix = "Take images and labels from the same source."
        raise ValueError(checks.message(f"{path} to hold {len(x)} labels, one per image", len(y), fix))
    return x, y


def _read_idx(path: Path, *axes: int | str) -> Tensor:
    """Return the bytes in an IDX file as a tensor with these axes; a word stands for any size."""
    data = _unpacked(path)
    magic, header = bytes([0, 0, 8, len(axes)]), 4 + 4 * len(axes)
    if data[:4] != magic:
        raise _unreadable(path, f"to begin with the IDX magic number {magic.hex()}", data[:4].hex() or "no bytes")
    shape = struct.unpack(f">{len(axes)}I", data[4:header].ljust(header - 4, b"\0"))
    if 0 in shape or len(data) != header + math.prod(shape):
        expected = f"to hold at least one image and, as its header says, {header + math.prod(shape)} bytes"
        raise _unreadable(path, expected, f"{len(data)} bytes")
    if any(want not in (have, "image") for have, want in zip(shape, axes, strict=True)):
        raise _unreadable(path, f"to hold values of shape {axes}".replace("'", ""), str(shape))
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=header).view(shape)


def _unpacked(path: Path) -> bytes:
    """Return the bytes of a file, decompressed where they are gzip's, and not many times as many."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not packed:
            return file.read()
        most = max(MAX_BYTES, MAX_EXPANSION * path.stat().st_size)
        try:
            data = gzip.GzipFile(fileobj=file).read(most + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise _unreadable(path, "to be a whole gzip file", str(error)) from error
    if len(data) > most:
        raise _unreadable(path, f"to unpack to at most {most:,} bytes", "more")
    return data


def _unreadable(path: Path, expected: str, got: str) -> ValueError:
    return ValueError(checks.message(f"{path} {expected}", got, "Replace it by a whole copy of MNIST's file."))


def _find(name: str, root: str | Path | None) -> Path:
    """Return the path of a file of MNIST, gzipped or raw; download it if no folder has it."""
    places = _folders(root)
    for place in places:
        for folder in (place, place / "mnist"):
            for path in (folder / name, folder / name.removesuffix(".gz")):
                if path.is_file():
                    return path
    if root is None:
        return _download(name, places)
    fix = f"Put {_file_names()} there, gzipped or raw, or leave root out."
    raise FileNotFoundError(checks.message(f"{name} in {root} or its folder mnist", "no such file", fix))


def _folders(root: str | Path | None) -> list[Path]:
    """Return the folders to look in; without a root, the last one is the user's cache."""
    if root is not None:
        return [Path(root).expanduser()]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scoremh"
    given = os.environ.get("SCOREMH_DATA")
    return [Path(given).expanduser(), cache] if given else [cache]


def _download(name: str, places: list[Path]) -> Path:
    """Download a file into the last of the folders, with its checksum verified: whole, or not at all."""
    folder = places[-1] / "mnist"
    try:
        with urllib.request.urlopen(MIRROR + name, timeout=TIMEOUT_SECONDS) as answer:  # https  # nosec B310
            data: bytes = answer.read()
        found = hashlib.sha256(data).hexdigest()
        if found != _SHA256[name]:
            raise OSError(f"a file with SHA-256 {found} instead of {_SHA256[name]}")
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / name, data)
        return folder / name
    except (OSError, HTTPException) as error:
        expected = f"{name} in {' or '.join(map(str, places))}, or from {MIRROR}"
        fix = (
            f"Put {_file_names()} into {folder}; or pass their folder as root, or in SCOREMH_DATA. "
            "A clone of scoremh has the test split in studies/data."
        )
        raise OSError(checks.message(expected, error, fix)) from error


def _file_names() -> str:
    """Return the names of the four files, as a list in a sentence."""
    *first, last = _SHA256
    return f"{', '.join(first)} and {last}"


def mnist_test() -> Tensor:
    """Return the 10,000 test images, which a clone has."""
    return mnist("test", root=DATA)
