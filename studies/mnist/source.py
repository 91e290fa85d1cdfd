"""MNIST's images as they were published, from a folder, a cache, or a mirror: gzipped files in IDX format."""

import gzip
import hashlib
import os
import urllib.request
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.files import write_bytes

Split = Literal["train", "test"]
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
TIMEOUT_SECONDS = 10  # without a response, or without its next bytes
SHA256 = {  # of the files as first published on yann.lecun.com/exdb/mnist
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
}
FILES: dict[Split, str] = {"train": "train-images-idx3-ubyte.gz", "test": "t10k-images-idx3-ubyte.gz"}
DATA = Path(__file__).parent.parent / "data"  # the test split, which a clone has
WEIGHTS = Path(__file__).parent.parent / "weights"


def images(split: Split) -> Float[Tensor, "image 1 28 28"]:
    """Return the images as float32 in [-1, 1]: 60,000 for training, 10,000 for testing."""
    pixels = torch.from_numpy(_contents(FILES[split], header=16))
    return pixels.view(-1, 1, 28, 28).float().div_(127.5).sub_(1)


def _contents(name: str, header: int) -> np.ndarray:
    """Return the values in a file, whose bytes have to be those that were published."""
    path = _found(name)
    packed = path.read_bytes()
    if hashlib.sha256(packed).hexdigest() != SHA256[name]:
        raise ValueError(checks.message(f"MNIST's {name} in {path.parent}", "other bytes", "Delete the file."))
    return np.frombuffer(gzip.decompress(packed), dtype=np.uint8, offset=header).copy()


def _found(name: str) -> Path:
    """Return the path of a file in the clone, in `SCOREMH_DATA` or in the user's cache; download it into the last."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scoremh" / "mnist"
    folders = [DATA, Path(os.environ.get("SCOREMH_DATA") or cache), cache]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    try:
        with urllib.request.urlopen(MIRROR + name, timeout=TIMEOUT_SECONDS) as answer:  # https  # nosec B310
            packed: bytes = answer.read()
    except OSError as error:
        expected = f"{name} in {' or '.join(map(str, folders[1:]))}, or from {MIRROR}"
        raise OSError(checks.message(expected, error, f"Put the file into {cache}.")) from error
    cache.mkdir(parents=True, exist_ok=True)
    write_bytes(cache / name, packed)
    return cache / name
