"""MNIST against its bytes, and where it is found: a folder, an environment variable, the cache, the mirror."""

import functools
import gzip
import hashlib
import http.server
import math
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from studies.mnist import source
from studies.mnist.source import mnist

SHARED = Path(__file__).parents[3] / "shared" / "data" / "mnist"
DATA = Path(__file__).parents[2] / "studies" / "data"  # the test split, in a clone
IMAGES, LABELS = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"


def test_a_clone_has_the_test_split() -> None:
    x, y = mnist("test", root=DATA, labels=True)
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((10_000, 1, 28, 28), torch.float32, (10_000,), torch.int64)
    assert torch.equal(x.unique(), torch.arange(256) / 127.5 - 1)
    assert y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    # An image and its label belong together: nearest class means recognise about 4 of 5.
    means = torch.stack([x[y == k].mean(0) for k in range(10)])
    assert (torch.cdist(x.flatten(1), means.flatten(1)).argmin(1) == y).float().mean() > 0.75
    for name in (IMAGES, LABELS):
        assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() == source._SHA256[name]


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the four files are not in {SHARED}")
@pytest.mark.parametrize(("split", "n"), [("train", 60_000), ("test", 10_000)])
def test_mnist_from_the_shared_folder(split: source.Split, n: int) -> None:
    x, y = mnist(split, root=SHARED, labels=True)
    assert (x.shape, y.shape) == ((n, 1, 28, 28), (n,))
    assert set(y.tolist()) == set(range(10))
    if split == "test":
        assert torch.equal(x, mnist("test", root=DATA))
    for path in SHARED.iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == source._SHA256[path.name]


def idx(*shape: int, magic: bytes | None = None) -> bytes:
    """Return an IDX file whose values count from 0."""
    head = bytes([0, 0, 8, len(shape)]) if magic is None else magic
    sizes = b"".join(size.to_bytes(4, "big") for size in shape)
    return head + sizes + bytes(i % 251 for i in range(math.prod(shape)))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty place for the user's cache, on a machine without SCOREMH_DATA and without a mirror."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SCOREMH_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(source, "MIRROR", "http://127.0.0.1:9/")  # nobody listens there
    return tmp_path / "cache" / "scoremh" / "mnist"


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "gz"])
@pytest.mark.parametrize("where", ["root", "root of mnist", "SCOREMH_DATA", "cache"])
def test_where_mnist_is_found(
    raw: bool, where: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = {"root": tmp_path / "a", "root of mnist": tmp_path / "a" / "mnist", "cache": cache}.get(where, tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in {IMAGES: idx(3, 28, 28), LABELS: idx(3)}.items():
        (folder / (name.removesuffix(".gz") if raw else name)).write_bytes(data if raw else gzip.compress(data))
    if where == "SCOREMH_DATA":
        monkeypatch.setenv("SCOREMH_DATA", str(tmp_path))
    x, y = mnist("test", root=tmp_path / "a" if "root" in where else None, labels=True)
    assert y.tolist() == [0, 1, 2]
    assert x[0, 0, 0, :3].tolist() == pytest.approx([-1, 1 / 127.5 - 1, 2 / 127.5 - 1])


BAD_IDX: dict[str, tuple[bytes, str]] = {
    "another magic number": (idx(3, 28, 28, magic=b"\0\0\x0d\3"), "the IDX magic number 00000803, got 00000d03"),
    "labels for images": (idx(3), "the IDX magic number 00000803, got 00000801"),
    "an empty file": (b"", "the IDX magic number 00000803, got no bytes"),
    "truncated values": (idx(3, 28, 28)[:-1], "as its header says, 2368 bytes, got 2367 bytes"),
    "a truncated header": (idx(3, 28, 28)[:9], "at least one image and, as its header says, 16 bytes, got 9 bytes"),
    "no images": (idx(0, 28, 28), "to hold at least one image"),
    "images of another size": (idx(3, 8, 8), "to hold values of shape (image, 28, 28), got (3, 8, 8)"),
    "truncated gzip": (gzip.compress(idx(3, 28, 28))[:-20], "to be a whole gzip file, got Compressed file ended"),
    "damaged gzip": (gzip.compress(idx(3, 28, 28))[:-8] + 8 * b"?", "to be a whole gzip file, got CRC check failed"),
}


@pytest.mark.parametrize("case", BAD_IDX)
def test_bad_idx_files_raise_errors_with_their_names(case: str, tmp_path: Path) -> None:
    data, text = BAD_IDX[case]
    (tmp_path / IMAGES).write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        mnist("test", root=tmp_path)
    assert str(tmp_path / IMAGES) in str(caught.value)
    assert "Replace it by a whole copy of MNIST's file." in str(caught.value)


def test_labels_for_other_images_raise_errors(tmp_path: Path) -> None:
    (tmp_path / IMAGES).write_bytes(idx(3, 28, 28))
    (tmp_path / LABELS).write_bytes(idx(2))
    with pytest.raises(ValueError, match="to hold 3 labels, one per image, got 2"):
        mnist("test", root=tmp_path, labels=True)


def test_a_root_without_the_files_names_the_missing_ones(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=f"expected {IMAGES} in {tmp_path} or its folder mnist, got no such file"
    ):
        mnist("test", root=tmp_path)


def test_offline_the_error_names_the_missing_files(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCOREMH_DATA", "/nowhere")
    with pytest.raises(OSError, match="Connection refused") as caught:
        mnist()
    reason, train = caught.value.__cause__, "train-images-idx3-ubyte.gz"
    four = f"{train}, train-labels-idx1-ubyte.gz, {IMAGES} and {LABELS}"
    assert str(caught.value) == (
        f"expected {train} in /nowhere or {cache.parent}, or from http://127.0.0.1:9/, "
        f"got {reason}. Put {four} into {cache}; or pass their folder as root, or in SCOREMH_DATA. "
        "A clone of scoremh has the test split in studies/data."
    )


def test_a_silent_mirror_is_given_up(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(source, "MIRROR", f"http://127.0.0.1:{silent.getsockname()[1]}/")
        monkeypatch.setattr(source, "TIMEOUT_SECONDS", 0.05)
        with pytest.raises(OSError, match=r"got timed out\. Put train-images"):
            mnist()


@pytest.fixture
def mirror(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Serve a folder on this machine as the mirror."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...

    folder = tmp_path / "mirror"
    folder.mkdir()
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        monkeypatch.setattr(source, "MIRROR", f"http://127.0.0.1:{server.server_port}/")
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield folder
        server.shutdown()


def test_a_download_is_kept(mirror: Path, cache: Path) -> None:
    for name in (IMAGES, LABELS):
        shutil.copy(DATA / name, mirror)
    x, y = mnist("test", labels=True)
    assert torch.equal(x, mnist("test", root=DATA))
    assert {path.name for path in cache.iterdir()} == {IMAGES, LABELS}
    for name in (IMAGES, LABELS):
        (mirror / name).unlink()
    assert torch.equal(mnist("test", labels=True)[1], y)


def test_a_download_with_another_checksum_is_not_kept(mirror: Path, cache: Path) -> None:
    (mirror / IMAGES).write_bytes(gzip.compress(idx(3, 28, 28)))
    with pytest.raises(OSError, match=r"got a file with SHA-256 \w{64} instead of 8d422c7b.*Put train-images"):
        mnist("test")
    assert not cache.exists()


def test_a_file_that_is_not_on_the_mirror(mirror: Path, cache: Path) -> None:
    with pytest.raises(OSError, match=r"got HTTP Error 404: File not found. Put train-images"):
        mnist("test")
    assert not cache.exists()


def test_an_unknown_split_raises_an_error() -> None:
    with pytest.raises(ValueError, match="split to be one of 'train', 'test', got 'valid'"):
        mnist("valid")  # type: ignore[call-overload]
