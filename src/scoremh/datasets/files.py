"""Samples from a file: a checked tensor `(n, *event)`, or an error that says where the file is wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.extras import extra
from scoremh.datasets import _arguments
from scoremh.datasets._arrays import read_numpy, read_parquet
from scoremh.datasets._contents import Contents, TextFoundError, is_whole, refusal
from scoremh.datasets._csv import read_csv

_SUFFIXES = (".csv", ".tsv", ".npy", ".npz", ".parquet")


def load(path: str | Path, *, key: str | None = None, dtype: torch.dtype | None = None) -> Float[Tensor, "draw *event"]:
    """Read samples from a csv, tsv, npy, npz or parquet file; rows are samples.

    A row of a table is an event of shape `(columns,)`, and single numbers are events of shape `(1,)`. In a csv file,
    whose values are separated by commas or tabs, a first line without any number is a header. Refused are text, missing
    and infinite values, values whose squares are infinite, a first line of numbers that look like names, rows of
    unequal length, pickles, files that unpack to 100 times their size, fewer than two rows, and columns of a table that
    never change.

    Args:
        path: File to read; its suffix is its format. Parquet needs `pip install 'scoremh[parquet]'`.
        key: Name of the array, where an npz file holds several.
        dtype: Floating dtype of the samples; torch's default where None.
    """
    return read(path, key=key, dtype=dtype)[0]


def read_table(path: str | Path, *, key: str | None = None) -> tuple[Any, tuple[int, ...]]:
    """Read rows of numbers, text or both; return them and the shape of one event.

    Args:
        path: File to read; its suffix is its format.
        key: Name of the array, where an npz file holds several.

    Returns:
        A data frame where columns have names or text, an array of numbers otherwise, flattened; text that is missing is
        None, and missing numbers are refused.
    """
    try:
        x, names = read(path, key=key, dtype=torch.float64, constants=True)
    except TextFoundError:
        from scoremh.datasets.text_columns import read_frame

        frame = read_frame(Path(path).expanduser())
        return frame, (frame.shape[1],)
    rows = x.flatten(1).numpy()
    if not names:
        return rows, tuple(x.shape[1:])
    with extra("cli"):  # the extra with pandas
        import pandas as pd
    whole_or_real = (column.astype(np.int64) if is_whole(column) else column for column in rows.T)
    return pd.DataFrame(dict(zip(names, whole_or_real, strict=True))), tuple(x.shape[1:])


def read(
    path: str | Path, *, key: str | None = None, dtype: torch.dtype | None = None, constants: bool = False
) -> tuple[Float[Tensor, "draw *event"], list[str]]:
    """Read samples as `load` does; return them and the names of their columns, where the file has some.

    Args:
        path: File to read; its suffix is its format.
        key: Name of the array, where an npz file holds several.
        dtype: Floating dtype of the samples; torch's default where None.
        constants: Whether columns may never change.
    """
    path, dtype = Path(path).expanduser(), _arguments.floating_dtype(dtype)
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        expected = f"to end in one of {', '.join(_SUFFIXES)}"
        raise refusal(path, expected, repr(path.suffix), "Convert it to one of these.")
    if not path.is_file():
        fix = "Check the path; relative ones start from the working directory."
        raise FileNotFoundError(checks.message(f"{path} to be a file", "none there", fix))
    if key is not None and suffix != ".npz":
        raise refusal(path, "to be an npz file, since key is given", f"key={key!r}", "Leave key out.")
    if path.stat().st_size == 0:
        raise refusal(path, "to hold samples", "an empty file", "Write it again.")
    if suffix in (".csv", ".tsv"):
        contents = read_csv(path)
    else:
        contents = read_parquet(path) if suffix == ".parquet" else read_numpy(path, key)
    return _tensor(path, contents, dtype, constants=constants), list(contents.columns)


def _tensor(path: Path, contents: Contents, dtype: torch.dtype, *, constants: bool) -> Tensor:
    """Return the values as a tensor, if something can be learned from them."""
    values = contents.values
    if values.ndim == 0 or len(values) < 2 or 0 in values.shape:
        raise refusal(path, "to hold at least 2 rows of numbers", f"shape {values.shape}", "Add samples.")
    with np.errstate(over="ignore"):  # it shows below as inf
        native = values.astype(np.float64 if dtype == torch.float64 else np.float32)
    x = torch.from_numpy(native).to(dtype)
    if len(bad := (~x.isfinite()).nonzero()):
        i, *j = bad[0].tolist()
        value = values[i, *j]
        got = f"{len(bad)} that are not, the first {value} in {contents.row(i)}, column {contents.column(*j)}"
        fix = "Pass dtype=torch.float64, or rescale." if np.isfinite(value) else "Remove or fill in those rows."
        raise refusal(path, f"to hold finite {str(dtype).removeprefix('torch.')} numbers", got, fix)
    _require_squares(path, contents, x)
    if x.ndim == 2 and not constants:  # images too
        _require_variation(path, contents, x)
    return x


def _require_variation(path: Path, contents: Contents, x: Tensor) -> None:
    """Refuse columns that never change."""
    constant = (x == x[0]).all(0).nonzero().tolist()
    if constant:
        shown = ", ".join(contents.column(*j) for j in constant[:5]) + ", ..." * (len(constant) > 5)
        got = f"{len(constant)} that never change: {shown}"
        fix = "Remove them: there is no score along them. Save images as an array (n, 1, row, column)."
        raise refusal(path, "to hold columns that vary", got, fix)


def _require_squares(path: Path, contents: Contents, x: Tensor) -> None:
    """Refuse numbers whose squares are infinite: no standard deviation could be computed."""
    most = torch.finfo(x.dtype).max ** 0.5
    if len(bad := (x.abs() > most).nonzero()):
        i, *j = bad[0].tolist()
        got = f"{len(bad)} that are not, the first {contents.values[i, *j]} in {contents.row(i)}"
        fix = "Remove it or rescale." if x.dtype == torch.float64 else "Pass dtype=torch.float64, or rescale."
        expected = f"to hold numbers below {most:.1e} in size, whose squares are finite"
        raise refusal(path, expected, f"{got}, column {contents.column(*j)}", fix)
