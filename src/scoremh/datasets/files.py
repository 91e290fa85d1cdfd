"""Samples from a file: a checked tensor `(n, *event)`, or an error that says where the file is wrong."""

import csv
import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.extras import extra
from scoremh.datasets import _arguments

_SUFFIXES = (".csv", ".npy", ".npz", ".parquet")


class _Contents(NamedTuple):
    """What a file holds, with the names of its columns and the lines of its rows; an array has neither."""

    values: Any
    columns: Sequence[str] = ()
    lines: Sequence[int] = ()

    def row(self, i: int) -> str:
        return f"line {self.lines[i]}" if self.lines else f"row {i}"

    def column(self, *j: int) -> str:
        return repr(self.columns[j[0]]) if self.columns else ", ".join(map(str, j))


def load(path: str | Path, *, key: str | None = None, dtype: torch.dtype | None = None) -> Float[Tensor, "draw *event"]:
    """Read samples from a csv, npy, npz or parquet file; rows are samples.

    A row of a table is an event of shape `(columns,)`, and single numbers are events of shape `(1,)`. In a csv file a
    first line without any number is a header. Refused are text, missing and infinite values, rows of unequal length,
    pickles, fewer than two rows, and columns of a table that never change.

    Args:
        path: File to read; its suffix is its format. Parquet needs `pip install 'scoremh[parquet]'`.
        key: Name of the array, where an npz file holds several.
        dtype: Floating dtype of the samples; torch's default where None.
    """
    return read(path, key=key, dtype=dtype)[0]


def read(
    path: str | Path, *, key: str | None = None, dtype: torch.dtype | None = None
) -> tuple[Float[Tensor, "draw *event"], list[str]]:
    """Read samples as `load` does; return them and the names of their columns, where the file has some.

    Args:
        path: File to read; its suffix is its format.
        key: Name of the array, where an npz file holds several.
        dtype: Floating dtype of the samples; torch's default where None.
    """
    path, dtype = Path(path).expanduser(), _arguments.floating_dtype(dtype)
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        expected = f"to end in one of {', '.join(_SUFFIXES)}"
        raise _refuse(path, expected, repr(path.suffix), "Convert it to one of these.")
    if not path.is_file():
        fix = "Check the path; relative ones start from the working directory."
        raise FileNotFoundError(checks.message(f"{path} to be a file", "none there", fix))
    if key is not None and suffix != ".npz":
        raise _refuse(path, "to be an npz file, since key is given", f"key={key!r}", "Leave key out.")
    if path.stat().st_size == 0:
        raise _refuse(path, "to hold samples", "an empty file", "Write it again.")
    if suffix == ".csv":
        contents = _read_csv(path)
    else:
        contents = _read_parquet(path) if suffix == ".parquet" else _read_numpy(path, key)
    return _tensor(path, contents, dtype), list(contents.columns)


def _refuse(path: Path, expected: str, got: object, fix: str) -> ValueError:
    return ValueError(checks.message(f"{path} {expected}", got, fix))


def _number(cell: str) -> float | None:
    """Return a cell as a number, or None if it is text."""
    try:
        return None if "_" in cell else float(cell)  # Python reads 2024_01 as a number; a table does not mean one
    except ValueError:
        return None


def _read_csv(path: Path) -> _Contents:
    rows = _csv_rows(path)
    width, columns = len(rows[0][1]), _header(path, rows[0][1])
    rows = rows[1:] if columns else rows
    values = np.empty((len(rows), width))
    for i, (line, row) in enumerate(rows):
        if len(row) != width:
            fix = "Correct that line; values are separated by commas."
            raise _refuse(path, f"to have {width} values in every row", f"{len(row)} in line {line}", fix)
        for j, cell in enumerate(row):
            number = _number(cell) if cell else math.nan
            if number is None:
                raise _text(path, f"{cell!r} in line {line}, column {(columns or range(width))[j]!r}")
            values[i, j] = number
    return _Contents(values, columns, [line for line, _ in rows])


def _csv_rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return the cells of every row that is not blank, with the number of its line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise _refuse(path, "to be csv text in UTF-8", error, "Save it as csv again.") from error
    if not rows:
        raise _refuse(path, "to hold samples", "blank lines only", "Write it again.")
    return rows


def _header(path: Path, first: list[str]) -> list[str]:
    """Return the names of the columns; none, if the first line is a sample."""
    if first == list(map(str, range(len(first)))):  # pandas writes this above columns without names
        fix = "Name the columns in a first line, as in x,y."
        raise _refuse(path, "to begin with a header or a sample", f"column numbers: {','.join(first)}", fix)
    _require_commas(path, first)
    if any(_number(cell) is not None for cell in first):
        return []
    if "" in first:  # pandas writes this above its index, which is no coordinate
        fix = "Name it; if it is an index, remove it (index=False in pandas)."
        raise _refuse(path, "to name every column", f"no name for column {first.index('')}", fix)
    if twice := {name for name in first if first.count(name) > 1}:
        raise _refuse(path, "to name columns apart", f"{min(twice)!r} more than once", "Rename one of them.")
    return first


def _require_commas(path: Path, first: list[str]) -> None:
    """Refuse a first line whose values are separated by semicolons or blanks."""
    parts = first[0].replace(";", " ").split() if len(first) == 1 else []
    if len(parts) > 1 and (";" in first[0] or all(_number(part) is not None for part in parts)):
        fix = "Save it with commas, sep=',' in pandas."
        raise _refuse(path, "to separate values by commas", f"{first[0]!r} in its first line", fix)


def _text(path: Path, got: str) -> ValueError:
    return _refuse(path, "to hold real numbers only", got, "Remove such columns, or encode them as numbers.")


@contextmanager
def _numpy_errors(path: Path) -> Iterator[None]:
    """Raise our errors for numpy's: it calls every file that it does not know a pickle, and offers to run it."""
    try:
        yield
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        got = "pickled objects, or a file of another kind" if "pickle" in str(error) else error
        fix = "Pickles are refused, since reading one runs its code: save an array of numbers with numpy.save or savez."
        raise _refuse(path, "to hold arrays of numbers in numpy's format", got, fix) from error


def _read_numpy(path: Path, key: str | None) -> _Contents:
    with path.open("rb") as file:  # numpy would leave a broken npz file open
        with _numpy_errors(path):
            found = np.load(file, allow_pickle=False)
        if isinstance(found, np.lib.npyio.NpzFile):
            names = found.files
            key = names[0] if key is None and len(names) == 1 else key
            if key not in names:
                expected = "to hold one array, or key= to name one of them"
                raise _refuse(path, expected, f"key={key!r} and the arrays {names}", "Pass one of those names as key.")
            with _numpy_errors(path):
                found = found[key]
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "biuf":
        raise _text(path, f"values of type {getattr(found, 'dtype', type(found).__name__)}")
    return _Contents(found[:, None] if found.ndim == 1 else found)


def _read_parquet(path: Path) -> _Contents:
    with extra("parquet"):
        import pandas as pd  # rather than pyarrow alone: it knows which columns are an index
        import pyarrow
    try:
        frame = pd.read_parquet(path, engine="pyarrow")
    except (pyarrow.ArrowException, OSError) as error:
        raise _refuse(path, "to be a parquet file", error, "Write it again, with to_parquet in pandas.") from error
    for name, column in frame.items():
        if not pd.api.types.is_numeric_dtype(column):
            raise _text(path, f"{next(iter(column), None)!r} of type {column.dtype} in row 0, column {name!r}")
    return _Contents(frame.to_numpy(np.float64, na_value=np.nan), [str(name) for name in frame.columns])


def _tensor(path: Path, contents: _Contents, dtype: torch.dtype) -> Tensor:
    """Return the values as a tensor, if something can be learned from them."""
    values = contents.values
    if values.ndim == 0 or len(values) < 2 or 0 in values.shape:
        raise _refuse(path, "to hold at least 2 rows of numbers", f"shape {values.shape}", "Add samples.")
    with np.errstate(over="ignore"):  # it shows below as inf
        native = values.astype(np.float64 if dtype == torch.float64 else np.float32)
    x = torch.from_numpy(native).to(dtype)
    if len(bad := (~x.isfinite()).nonzero()):
        i, *j = bad[0].tolist()
        value = values[i, *j]
        got = f"{len(bad)} that are not, the first {value} in {contents.row(i)}, column {contents.column(*j)}"
        fix = "Pass dtype=torch.float64, or rescale." if np.isfinite(value) else "Remove or fill in those rows."
        raise _refuse(path, f"to hold finite {str(dtype).removeprefix('torch.')} numbers", got, fix)
    constant = (x == x[0]).all(0).nonzero().tolist() if x.ndim == 2 else []  # images have such pixels
    if constant:
        shown = ", ".join(contents.column(*j) for j in constant[:5]) + ", ..." * (len(constant) > 5)
        got = f"{len(constant)} that never change: {shown}"
        fix = "Remove them: there is no score along them. Save images as an array (n, 1, row, column)."
        raise _refuse(path, "to hold columns that vary", got, fix)
    return x
