"""MNIST: from the clone, a folder, a cache and a mirror; damaged files raise errors."""

import gzip
import hashlib
import struct
from pathlib import Path

import pytest
import torch

from studies.mnist import source
from studies.mnist.source import images

TRAIN = "train-images-idx3-ubyte.gz"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the user's cache and the internet out of the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SCOREMH_DATA", raising=False)
    monkeypatch.setattr(source, "MIRROR", f"{(tmp_path / 'mirror').as_uri()}/")
    (tmp_path / "mirror").mkdir()
    return tmp_path / "scoremh" / "mnist"


def test_the_test_split_is_in_the_clone() -> None:
    x = images("test")
    assert (x.shape, x.dtype, float(x.min()), float(x.max())) == ((10_000, 1, 28, 28), torch.float32, -1.0, 1.0)


@pytest.mark.usefixtures("cache")
def test_without_the_files_the_error_names_the_folders_and_the_mirror() -> None:
    with pytest.raises(OSError, match=rf"expected {TRAIN} in .*mnist, or from file:.*Put the file into"):
        images("train")


def test_a_download_is_kept_and_other_bytes_are_an_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(struct.pack(">IIII", 2051, 1, 28, 28) + bytes([255]) + bytes(783))
    (cache.parent.parent / "mirror" / TRAIN).write_bytes(packed)
    with pytest.raises(ValueError, match=r"got other bytes\. Delete the file"):
        images("train")
    monkeypatch.setitem(source.SHA256, TRAIN, hashlib.sha256(packed).hexdigest())
    (cache.parent.parent / "mirror" / TRAIN).unlink()
    assert images("train").sum() == 1 - 783  # from the cache
