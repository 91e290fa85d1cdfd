"""Images as float32 tensors `(image, 1, row, column)` in [-1, 1], as the paper scales them.

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

Split = Literal["train", "test"]

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_TIMEOUT = 10  # seconds without an answer, or without the next bytes of it
_SHA256 = {  # of the files as first published on yann.lecun.com/exdb/mnist
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
_EMBEDDED = Path(__file__).parents[1] / "data"


def digits() -> Float[Tensor, "1797 1 8 8"]:
    """Return scikit-learn's handwritten digits, which come with it: 1797 images of 8 x 8 pixels in 17 levels."""
    from sklearn.datasets import load_digits  # here, so that `import scoremh` stays light

    return torch.from_numpy(load_digits().images).float()[:, None] / 8 - 1


@overload
def mnist(
    split: Split | None = None,
    *,
    root: str | Path | None = None,
    subset: Literal["embedded"] | None = None,
    labels: Literal[False] = False,
) -> Float[Tensor, "image 1 28 28"]: ...
@overload
def mnist(
    split: Split | None = None,
    *,
    root: str | Path | None = None,
    subset: Literal["embedded"] | None = None,
    labels: Literal[True],
) -> tuple[Float[Tensor, "image 1 28 28"], Int[Tensor, " image"]]: ...
def mnist(
    split: Split | None = None,
    *,
    root: str | Path | None = None,
    subset: Literal["embedded"] | None = None,
    labels: bool = False,
) -> Float[Tensor, "image 1 28 28"] | tuple[Float[Tensor, "image 1 28 28"], Int[Tensor, " image"]]:
    """Return MNIST's images of 28 x 28 pixels: 60,000 to train, 10,000 to test.

    A folder may hold the files themselves, or hold them in a folder `mnist`.

    Args:
        split: "train" or "test"; by default "train", of the embedded subset "test".
        root: the folder to read. By default that in the environment variable `SCOREMH_DATA`, else the user's cache
            (`~/.cache/scoremh`), where files that are in neither are downloaded to.
        subset: "embedded" for the test split that comes with this package and needs neither folder nor network.
        labels: return a pair, of the images and of the digits they show.
    """
    checks.one_of(split, (None, *get_args(Split)), "split")
    checks.one_of(subset, (None, "embedded"), "subset")
    if subset and (split == "train" or root is not None):
        got = f"split={split!r} and root={root!r}"
        fix = 'Leave root out and use split="test", or leave subset out.'
        raise ValueError(checks.message("the embedded subset to be the test split, with no root", got, fix))
    prefix = "t10k" if subset or split == "test" else "train"
    root = _EMBEDDED if subset else root
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
    data = path.read_bytes()
    try:
        data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    except (EOFError, OSError, zlib.error) as error:
        raise _unreadable(path, "to be a whole gzip file", str(error)) from error
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


def _unreadable(path: Path, expected: str, got: str) -> ValueError:
    return ValueError(checks.message(f"{path} {expected}", got, "Replace it by a whole copy of MNIST's file."))


def _find(name: str, root: str | Path | None) -> Path:
    """Return where a file of MNIST is, gzipped or raw, after downloading it if there is no other way."""
    places = _places(root)
    for place in places:
        for folder in (place, place / "mnist"):
            for path in (folder / name, folder / name.removesuffix(".gz")):
                if path.is_file():
                    return path
    if root is None:
        return _download(name, places)
    fix = f"Put {_four()} there, gzipped or raw, or leave root out."
    raise FileNotFoundError(checks.message(f"{name} in {root} or its folder mnist", "no such file", fix))


def _places(root: str | Path | None) -> list[Path]:
    """Return the folders to look in; without a root, the last one is the user's cache."""
    if root is not None:
        return [Path(root).expanduser()]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scoremh"
    given = os.environ.get("SCOREMH_DATA")
    return [Path(given).expanduser(), cache] if given else [cache]


def _download(name: str, places: list[Path]) -> Path:
    """Get a file that is in none of the places from the mirror into the last one: checked, and whole or not at all."""
    folder = places[-1] / "mnist"
    try:
        with urllib.request.urlopen(MIRROR + name, timeout=_TIMEOUT) as answer:
            data: bytes = answer.read()
        found = hashlib.sha256(data).hexdigest()
        if found != _SHA256[name]:
            raise OSError(f"a file with SHA-256 {found} instead of {_SHA256[name]}")
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{name}.{os.getpid()}.partial"
        partial.write_bytes(data)
        return partial.replace(folder / name)
    except (OSError, HTTPException) as error:
        expected = f"{name} in {' or '.join(map(str, places))}, or from {MIRROR}"
        fix = (
            f"Put {_four()} into {folder}; or set SCOREMH_DATA to a folder that holds them; "
            'or use mnist(subset="embedded"), the test split that comes with scoremh.'
        )
        raise OSError(checks.message(expected, error, fix)) from error


def _four() -> str:
    *first, last = _SHA256
    return f"{', '.join(first)} and {last}"
