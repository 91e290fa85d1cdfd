"""Arrays from npy, npz and parquet files: what a file claims to hold is compared with its size before it is read."""

import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from scoremh._shared.extras import extra
from scoremh.datasets._contents import Contents, refusal, require_honest_size, text_found

_HEADERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
PICKLES = "Pickles are refused, since reading one runs its code: save an array of numbers with numpy.save or savez."
_DAMAGE = (
    *(ValueError, TypeError, SyntaxError, tokenize.TokenError, RecursionError, OverflowError, MemoryError),
    *(OSError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error),
)


@contextmanager
def _numpy_errors(path: Path) -> Iterator[None]:
    """Raise our errors for those of numpy and zipfile."""
    try:
        yield
    except _DAMAGE as error:
        if str(path) in str(error):
            raise
        raise refusal(path, "to hold arrays of numbers in numpy's format", error, PICKLES) from error


def read_numpy(path: Path, key: str | None) -> Contents:
    """Return the array in an npy file, or that with a name in an npz file."""
    with path.open("rb") as file, _numpy_errors(path):
        if file.read(4) == b"PK\x03\x04" or zipfile.is_zipfile(path):
            found = _from_archive(path, file, key)
        else:
            file.seek(0)
            found = _array(path, file, path.stat().st_size)
    return Contents(found[:, None] if found.ndim == 1 else found)


def _from_archive(path: Path, file: IO[bytes], key: str | None) -> np.ndarray:
    with zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        names = list(members)
        key = names[0] if key is None and len(names) == 1 else key
        if key not in members:
            expected = "to hold one array, or key= to name one of them"
            shown = f"{names[:20]}{' and more' * (len(names) > 20)}"
            raise refusal(path, expected, f"key={key!r} and the arrays {shown}", "Pass one of those names as key.")
        info = members[key]
        require_honest_size(path, info.file_size, info.compress_size, "Save it with numpy.savez, uncompressed.")
        with archive.open(info) as member:
            return _array(path, member, info.file_size)


def _array(path: Path, file: IO[bytes] | zipfile.ZipExtFile, size: int) -> np.ndarray:
    """Return an array of numbers from npy data of this size; its header is believed only if it agrees with that."""
    try:
        header = _HEADERS[npy_format.read_magic(file)]
    except (KeyError, ValueError) as error:
        got = "pickled objects, or a file of another kind"
        raise refusal(path, "to hold arrays of numbers in numpy's format", got, PICKLES) from error
    shape, fortran, dtype = header(file)
    if dtype.hasobject:
        got = "pickled objects, or a file of another kind"
        raise refusal(path, "to hold arrays of numbers in numpy's format", got, PICKLES)
    if dtype.kind not in "biuf":
        raise text_found(path, f"values of type {dtype}")
    left, wanted = size - file.tell(), math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or wanted != left:
        expected = f"to hold, as its header says, {shape} values of type {dtype}"
        raise refusal(path, expected, f"{left:,} bytes of them", "It is damaged: write it again.")
    data = file.read(wanted)
    if len(data) != wanted:
        raise EOFError(f"{len(data):,} of {wanted:,} bytes")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def read_parquet(path: Path) -> Contents:
    """Return the numbers in a parquet file, and the names of its columns."""
    with extra("parquet"):
        import pandas as pd  # rather than pyarrow alone: it knows which columns are an index
        import pyarrow
        from pyarrow import parquet
    fix = "Write it again, with to_parquet in pandas."
    try:
        about = parquet.read_metadata(path)
        unpacked = about.num_rows * max(1, about.num_columns) * 8
        require_honest_size(path, unpacked, path.stat().st_size, "Save it as npy.")
        frame = pd.read_parquet(path, engine="pyarrow")
        _require_numbers(path, frame)
        return Contents(frame.to_numpy(np.float64, na_value=np.nan), [str(name) for name in frame.columns])
    except (pyarrow.ArrowException, *_DAMAGE, KeyError, IndexError, AttributeError) as error:
        if str(path) in str(error):
            raise
        raise refusal(path, "to be a parquet file", error, fix) from error


def _require_numbers(path: Path, frame: Any) -> None:
    """Refuse a frame with a column that holds no real numbers."""
    for name, column in frame.items():
        if column.dtype.kind not in "biuf":
            raise text_found(path, f"{next(iter(column), None)!r} of type {column.dtype} in row 0, column {name!r}")
