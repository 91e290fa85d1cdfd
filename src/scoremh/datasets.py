"""Samples as tensors `(n, *event)`: from generators, from scikit-learn's images, or from your own file.

- `moons`, `s_curve`, `swiss_roll`: scikit-learn's curves and surfaces, with isotropic Gaussian noise. Draws are
  independent, except for `moons`, which spreads its points evenly.
- `pinwheel`: x = r (cos phi, sin phi) + delta u, where phi = 2 pi k / K + rate r on the arm k of K,
  r ~ N(1, radial_std^2) and delta ~ N(0, tangential_std^2). The paper prints u = (1, 1); u = (-sin phi, cos phi) is
  orthogonal to the radius.
- `gaussian`: N(mean, std^2).
- `digits`: images as float32 tensors in [-1, 1].
- `load`: csv, npy, npz and parquet files.

The defaults are the paper's parameters. Generators return tensors of `dtype` (by default torch's default) on the device
of their `generator`, and do not change global random state. Files are read by pandas or numpy, after checking that they
do not unpack to far more than their size; errors name the line and the column.
"""

import math
import re
import tokenize
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float
from numpy.lib import format as npy_format
from torch import Generator, Tensor

from scoremh._shared import checks, rng
from scoremh._shared.names import SUFFIXES, extra

__all__ = ["digits", "gaussian", "load", "moons", "pinwheel", "s_curve", "swiss_roll"]


def floating_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype, torch's default if it is None; raise an error if it is not a floating dtype."""
    if dtype is None:
        return torch.get_default_dtype()
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(checks.message("dtype to be a floating torch.dtype", dtype, "Use torch.float32, for example."))
    return dtype


def require_finite(value: float, name: str) -> None:
    """Raise an error unless the value is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        fix = f"Pass {name} as a Python number."
        raise TypeError(checks.message(f"{name} to be a number", checks.describe(value), fix))
    if not math.isfinite(value):
        raise ValueError(checks.message(f"{name} to be finite", value, f"Correct {name}."))


def require_std(std: float, name: str) -> None:
    """Raise an error unless the value is a standard deviation, which may be 0."""
    require_finite(std, name)
    if std < 0:
        raise ValueError(checks.message(f"{name} of at least 0", std, "Pass 0 for no noise."))


Variant = Literal["paper", "correct"]


def _like(n: int, dtype: torch.dtype | None, generator: Generator | None) -> Tensor:
    """Check n, and return an empty tensor with the dtype and device of the draws."""
    checks.count(n, "n")
    return torch.empty(0, dtype=floating_dtype(dtype), device=None if generator is None else generator.device)


def _draw(make: Callable[..., Any], n: int, noise: float, generator: Generator | None, like: Tensor) -> Tensor:
    """Draw with a function of scikit-learn, passing a 32-bit seed so that numpy's global state is not used."""
    require_std(noise, "noise")
    seed = rng.seeds(1, generator)[0] % 2**32
    x, _ = make(n, noise=noise, random_state=seed)
    return torch.from_numpy(x).to(like)


def moons(
    n: int = 10_000, *, noise: float = 0.1, generator: Generator | None = None, dtype: torch.dtype | None = None
) -> Float[Tensor, "draw 2"]:
    """Draw n points of two interlocking half circles; `noise` is a standard deviation."""
    from sklearn.datasets import make_moons  # here, so that `import scoremh` stays light

    return _draw(make_moons, n, noise, generator, _like(n, dtype, generator))


def s_curve(
    n: int = 10_000, *, noise: float = 0.1, generator: Generator | None = None, dtype: torch.dtype | None = None
) -> Float[Tensor, "draw 3"]:
    """Draw n points of a surface shaped like an S; `noise` is a standard deviation."""
    from sklearn.datasets import make_s_curve

    return _draw(make_s_curve, n, noise, generator, _like(n, dtype, generator))


def swiss_roll(
    n: int = 10_000, *, noise: float = 0.5, generator: Generator | None = None, dtype: torch.dtype | None = None
) -> Float[Tensor, "draw 3"]:
    """Draw n points of a rolled-up surface, about 30 wide; `noise` is a standard deviation."""
    from sklearn.datasets import make_swiss_roll

    return _draw(make_swiss_roll, n, noise, generator, _like(n, dtype, generator))


def pinwheel(
    n: int = 10_000,
    *,
    classes: int = 5,
    radial_std: float = 0.5,
    tangential_std: float = 0.05,
    rate: float = 0.25,
    variant: Variant = "paper",
    generator: Generator | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "draw 2"]:
    """Draw n points of a pinwheel with curved arms.

    "paper" is the paper's algorithm as printed: it adds the same number to both coordinates. Along the diagonal this
    noise gives an arm no width, so that the density and the Fisher information are infinite there. The losses of
    implicit and sliced score matching then have no lower bound, and long training diverges. "correct" has independent
    radial and tangential noise, which gives the arms width everywhere.

    Args:
        n: Number of points.
        classes: Number of arms K, all equally likely. The paper's text says six, its parameters five.
        radial_std: Standard deviation of the distance from the origin, whose mean is 1.
        tangential_std: Standard deviation of the noise across an arm.
        rate: Angle alpha, in radians, by which an arm turns over a distance of 1.
        variant: "paper" or "correct".
        generator: Random number generator; the same seed gives the same draws.
        dtype: Floating dtype of the points; torch's default if None.
    """
    like = _like(n, dtype, generator)
    checks.count(classes, "classes")
    require_std(radial_std, "radial_std")
    require_std(tangential_std, "tangential_std")
    require_finite(rate, "rate")
    checks.one_of(variant, get_args(Variant), "variant")
    arm = torch.randint(classes, (n, 1), generator=rng.resolve(generator, like.device), device=like.device)
    r, delta = rng.normal((2, n, 1), like, generator).unbind()
    r, delta = 1 + radial_std * r, tangential_std * delta
    phi = 2 * math.pi / classes * arm.to(like) + rate * r
    u = torch.cat([-phi.sin(), phi.cos()], dim=1) if variant == "correct" else torch.ones_like(phi)
    return r * torch.cat([phi.cos(), phi.sin()], dim=1) + delta * u


def gaussian(
    n: int = 10_000,
    *,
    mean: float = 3.0,
    std: float = math.sqrt(2),
    generator: Generator | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "draw 1"]:
    """Draw n numbers from a normal distribution; by default the paper's N(3, 2), where 2 is the variance."""
    like = _like(n, dtype, generator)
    require_finite(mean, "mean")
    require_std(std, "std")
    return mean + std * rng.normal((n, 1), like, generator)


def digits() -> Float[Tensor, "1797 1 8 8"]:
    """Return the handwritten digits that scikit-learn contains: 1797 images of 8 x 8 pixels in 17 levels."""
    from sklearn.datasets import load_digits  # here, so that `import scoremh` stays light

    return torch.from_numpy(load_digits().images).float()[:, None] / 8 - 1


# A file that unpacks to more than both of these raises an error: deflate reaches a factor of 1,000 only on zeros, from
# which nothing can be learned; images of mostly dark pixels reach 10.
MAX_EXPANSION = 100
MAX_WHOLE = 2**53  # not every larger whole number is a float64
FREE_BYTES = 256_000_000


class Contents(NamedTuple):
    """The values in a file, and for a table the names of its columns and the line numbers of its rows."""

    values: Any
    columns: Sequence[str] = ()
    lines: Sequence[int] = ()

    def row(self, i: int) -> str:
        """Return the place of a row, for an error."""
        return f"line {self.lines[i]}" if self.lines else f"row {i}"

    def column(self, *j: int) -> str:
        """Return the name or position of a column, for an error."""
        return repr(self.columns[j[0]]) if self.columns else ", ".join(map(str, j))


class TextFoundError(ValueError):
    """A file with text where numbers were expected."""


def load(path: str | Path, *, key: str | None = None, dtype: torch.dtype | None = None) -> Float[Tensor, "draw *event"]:
    """Read samples from a csv, tsv, npy, npz or parquet file; rows are samples.

    A row of a table is an event of shape `(columns,)`, and single numbers are events of shape `(1,)`. The values of a
    csv file are separated by commas or tabs, and a first line without any number is a header. An error is raised for
    text, missing and infinite values, values whose squares are infinite, a first line of numbers that look like names,
    rows of unequal length, pickles, files that unpack to 100 times their size, fewer than two rows, and constant
    columns of a table.

    Args:
        path: File to read; its suffix determines the format. Parquet needs `pip install 'scoremh[parquet]'`.
        key: Name of the array, if an npz file contains several.
        dtype: Floating dtype of the samples; torch's default if None.
    """
    return read(path, key=key, dtype=dtype)[0]


def read_table(path: str | Path, *, key: str | None = None, missing: bool = False) -> tuple[Any, tuple[int, ...]]:
    """Read rows of numbers, text or both; return them and the shape of one event.

    Args:
        path: File to read.
        key: Name of the array, if an npz file contains several.
        missing: Whether to keep missing numbers as NaN; otherwise they raise an error. Missing text is None.

    Returns:
        A data frame if columns have names or text, else a flattened array of numbers.
    """
    try:
        x, names = read(path, key=key, dtype=torch.float64, constants=True, missing=missing)
    except TextFoundError:
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
    path: str | Path,
    *,
    key: str | None = None,
    dtype: torch.dtype | None = None,
    constants: bool = False,
    missing: bool = False,
) -> tuple[Float[Tensor, "draw *event"], list[str]]:
    """Read samples as `load` does; return them and the names of their columns, if the file has any."""
    path, dtype = Path(path).expanduser(), floating_dtype(dtype)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        expected = f"to end in one of {', '.join(SUFFIXES)}"
        raise file_error(path, expected, repr(path.suffix), "Convert it to one of these.")
    if not path.is_file():
        fix = "Check the path; a relative path starts from the working directory."
        raise FileNotFoundError(checks.message(f"{path} to be a file", "no such file", fix))
    if key is not None and suffix != ".npz":
        raise file_error(path, "to be an npz file, since key is given", f"key={key!r}", "Omit key.")
    if path.stat().st_size == 0:
        raise file_error(path, "to contain samples", "an empty file", "Write it again.")
    if suffix in (".csv", ".tsv"):
        contents = read_csv(path)
    else:
        contents = read_parquet(path) if suffix == ".parquet" else read_numpy(path, key)
    return _tensor(path, contents, dtype, constants=constants, missing=missing), list(contents.columns)


def _tensor(path: Path, contents: Contents, dtype: torch.dtype, *, constants: bool, missing: bool) -> Tensor:
    """Return the values as a tensor; raise an error if nothing can be learned from them."""
    values = contents.values
    if values.ndim == 0 or len(values) < 2 or 0 in values.shape:
        raise file_error(path, "to contain at least 2 rows of numbers", f"shape {values.shape}", "Add samples.")
    with np.errstate(over="ignore"):  # overflow gives inf, which is checked below
        native = values.astype(np.float64 if dtype == torch.float64 else np.float32)
    x = torch.from_numpy(native).to(dtype)
    if len(bad := (x.isinf() if missing else ~x.isfinite()).nonzero()):
        i, *j = bad[0].tolist()
        value = values[i, *j]
        got = f"{len(bad)} that are not, the first {value} in {contents.row(i)}, column {contents.column(*j)}"
        fix = "Pass dtype=torch.float64, or rescale." if np.isfinite(value) else "Remove or fill in those rows."
        raise file_error(path, f"to contain finite {str(dtype).removeprefix('torch.')} numbers", got, fix)
    _require_squares(path, contents, x)
    if x.ndim == 2 and not constants:  # images too
        _require_variation(path, contents, x)
    return x


def _require_variation(path: Path, contents: Contents, x: Tensor) -> None:
    """Raise an error for constant columns."""
    constant = (x == x[0]).all(0).nonzero().tolist()
    if constant:
        shown = ", ".join(contents.column(*j) for j in constant[:5]) + ", ..." * (len(constant) > 5)
        got = f"{len(constant)} constant: {shown}"
        fix = "Remove them: they have no score. Save images as an array (n, 1, row, column)."
        raise file_error(path, "to contain columns that vary", got, fix)


def _require_squares(path: Path, contents: Contents, x: Tensor) -> None:
    """Raise an error for numbers whose squares overflow, since they have no standard deviation."""
    most = torch.finfo(x.dtype).max ** 0.5
    if len(bad := (x.abs() > most).nonzero()):
        i, *j = bad[0].tolist()
        got = f"{len(bad)} that are not, the first {contents.values[i, *j]} in {contents.row(i)}"
        fix = "Remove it or rescale." if x.dtype == torch.float64 else "Pass dtype=torch.float64, or rescale."
        expected = f"to contain numbers below {most:.1e} in size, whose squares are finite"
        raise file_error(path, expected, f"{got}, column {contents.column(*j)}", fix)


MAX_COLUMNS = 100_000
MAX_LINE_BYTES = 32 * MAX_COLUMNS
_INTEGER = re.compile(r"[+-]?\d+")
_TOO_LONG = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")


class _Cells(NamedTuple):
    """The cells of a csv file as text, with a row for every line that is not blank."""

    rows: np.ndarray
    columns: list[str]
    lines: list[int]


def _read_cells(path: Path) -> _Cells:
    """Return the cells of a csv file below its header, the names in the header, and the line numbers of the cells."""
    with extra("cli"):  # the extra with pandas
        import pandas as pd
    blank, tabs = _beginning(path)

    def read(engine: Literal["c", "python"]) -> Any:
        return pd.read_csv(
            path,
            sep="\t" if tabs else ",",
            header=None,
            dtype=str,
            keep_default_na=False,
            skip_blank_lines=False,
            skiprows=blank,
            encoding="utf-8-sig",
            engine=engine,
        )

    try:
        frame = read("c")
        if (frame == "").any(axis=None):
            frame = read("python")  # this engine fills short lines with NaN
    except pd.errors.ParserError as error:
        if found := _TOO_LONG.search(str(error)):
            raise _unequal_rows(path, *map(int, found.groups())) from error
        raise file_error(path, "to be csv text in UTF-8", error, "Save it as csv again.") from error
    except ValueError as error:  # not UTF-8, or an empty line in quotes
        raise file_error(path, "to be csv text in UTF-8", error, "Save it as csv again.") from error
    there = frame.notna().to_numpy()
    lines = (blank + 1 + there.any(1).nonzero()[0]).tolist()
    there, cells = there[there.any(1)], frame.to_numpy(dtype=object)[there.any(1)]
    if len(short := (~there.all(1)).nonzero()[0]):
        raise _unequal_rows(path, cells.shape[1], lines[short[0]], int(there[short[0]].sum()))
    if any("\n" in cell or "\r" in cell for cell in cells.flat):
        got = "a value in quotes that spans several lines"
        raise file_error(path, "to be csv text in UTF-8", got, "Save it as csv again.")
    cells = np.array([cell.strip() for cell in cells.flat], dtype=object).reshape(cells.shape)
    columns = header(path, list(cells[0]))
    return _Cells(cells[1:], columns, lines[1:]) if columns else _Cells(cells, [], lines)


def _beginning(path: Path) -> tuple[int, bool]:
    """Return the number of blank lines at the beginning of a file, and whether its values are separated by tabs."""
    blank, first = 0, b""
    with path.open("rb") as file:
        for line in file:
            if len(line) > MAX_LINE_BYTES:
                got = f"a line of more than {MAX_LINE_BYTES:,} characters; save wide arrays as npy"
                raise file_error(path, "to be csv text in UTF-8", got, "Save it as csv again.")
            first = first or line.strip(b"\r\n")
            blank += not first
    if not first:
        raise file_error(path, "to contain samples", "blank lines only", "Write it again.")
    tabs = b"\t" in first and b"," not in first
    if (width := 1 + first.count(b"\t" if tabs else b",")) > MAX_COLUMNS:
        raise file_error(path, f"to have at most {MAX_COLUMNS:,} columns", f"{width:,}", "Save wide arrays as npy.")
    return blank, tabs


def _unequal_rows(path: Path, width: int, line: int, got: int) -> ValueError:
    """Return the error for a row with more or fewer values than the first row."""
    fix = "Correct that line: commas or tabs separate values, and numbers have a decimal point."
    return file_error(path, f"to have {width} values in every row", f"{got} in line {line}", fix)


def read_csv(path: Path) -> Contents:
    """Return the numbers of a csv file, the names of its columns, and the line numbers of its rows."""
    cells, columns, lines = _read_cells(path)
    values = [number(cell) if cell else math.nan for cell in cells.flat]
    if None in values:
        i, j = divmod(values.index(None), cells.shape[1])
        cell = cells[i, j]
        shown = repr(cell) if len(cell) < 50 else f"{cell[:47]!r}..."
        raise text_error(path, f"{shown} in line {lines[i]}, column {(columns or range(cells.shape[1]))[j]!r}")
    table = np.array(values, dtype=np.float64).reshape(cells.shape)
    if not columns and len(table) > 2:
        whole = all(map(_INTEGER.fullmatch, cells[0])) and not any(map(_INTEGER.fullmatch, cells[1:].flat))
        if whole or _looks_like_names(table):
            fix = (
                "Name the columns, as in x2019,x2020; if the line is a sample, write it like the others, as in 2019.0."
            )
            got = f"numbers unlike the rest: {_shown(list(cells[0]))}"
            raise file_error(path, "to begin with a header or a sample", got, fix)
    return Contents(table, columns, lines)


def _looks_like_names(table: np.ndarray) -> bool:
    """Return whether a first row increases by one, as years do, and lies outside the range of the rows below it."""
    first, rest = table[0], table[1:]
    counts = len(first) > 1 and bool((np.diff(first) == 1).all()) and float(first[0]).is_integer()
    return counts and bool(((first < np.nanmin(rest, 0)) | (first > np.nanmax(rest, 0))).all())


def number(cell: str) -> float | None:
    """Return a cell as a number, or None if it is text."""
    try:
        return None if "_" in cell else float(cell)  # Python reads 2024_01 as a number, but in a table it is text
    except ValueError:
        return None


def header(path: Path, first: list[str]) -> list[str]:
    """Return the names of the columns, or no names if the first line is a sample."""
    if first == list(map(str, range(len(first)))):  # pandas writes this header for columns without names
        fix = "Name the columns in a first line, as in x,y."
        raise file_error(path, "to begin with a header or a sample", f"column numbers: {_shown(first)}", fix)
    _require_separators(path, first)
    if any(number(cell) is not None for cell in first):
        return []
    if "" in first:  # pandas writes this header for its index, which is not a coordinate
        fix = "Name it, or remove it if it is an index (index=False in pandas)."
        raise file_error(path, "to name every column", f"no name for column {first.index('')}", fix)
    name, times = Counter(first).most_common(1)[0]
    if times > 1:
        raise file_error(path, "to have different column names", f"{name!r} more than once", "Rename one of them.")
    return first


def _require_separators(path: Path, first: list[str]) -> None:
    """Raise an error if the values of the first line are separated by semicolons or blanks."""
    parts = first[0].replace(";", " ").split() if len(first) == 1 else []
    if len(parts) > 1 and (";" in first[0] or all(number(part) is not None for part in parts)):
        fix = "Save it with commas (sep=',' in pandas)."
        raise file_error(path, "to separate values by commas or tabs", f"{_shown(first)!r} in its first line", fix)


def _shown(first: list[str]) -> str:
    """Return the beginning of a line, for an error."""
    text = ",".join(first[:20])
    return text if len(text) < 100 and len(first) <= 20 else f"{text[:97]}..."


def read_frame(path: Path) -> Any:
    """Return the table in a csv or parquet file as a data frame."""
    with extra("cli"):  # the extra with pandas
        import pandas as pd
    if path.suffix.lower() == ".parquet":
        return pd.read_parquet(path)
    cells, names, _ = _read_cells(path)
    names = names or [f"x{j}" for j in range(cells.shape[1])]
    return pd.DataFrame({name: _column(column) for name, column in zip(names, cells.T, strict=True)})


def _column(cells: np.ndarray) -> Any:
    """Return cells as whole numbers, numbers or text; blank cells are missing values."""
    values = [number(cell) if cell else np.nan for cell in cells]
    if any(value is None for value in values):
        return np.array([cell or None for cell in cells], dtype=object)
    numbers = np.array(values, dtype=np.float64)
    return numbers.astype(np.int64) if is_whole(numbers) else numbers


_HEADERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
PICKLES = "Pickles are not read, since that would run their code: save an array of numbers with numpy.save or savez."
_DAMAGE = (
    *(ValueError, TypeError, SyntaxError, tokenize.TokenError, RecursionError, OverflowError, MemoryError),
    *(OSError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error),
)


@contextmanager
def _numpy_errors(path: Path) -> Iterator[None]:
    """Convert errors of numpy and zipfile to ours."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about headers written by Python 2
            yield
    except _DAMAGE as error:
        if str(path) in str(error):
            raise
        raise file_error(path, "to contain arrays of numbers in numpy's format", error, PICKLES) from error


def read_numpy(path: Path, key: str | None) -> Contents:
    """Return the array in an npy file, or the named array in an npz file."""
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
            expected = "to contain one array, or key= to name one of them"
            shown = f"{names[:20]}{' and more' * (len(names) > 20)}"
            raise file_error(path, expected, f"key={key!r} and the arrays {shown}", "Pass one of those names as key.")
        info = members[key]
        require_unpacked_size(path, info.file_size, info.compress_size, "Save it with numpy.savez, uncompressed.")
        with archive.open(info) as member:
            return _array(path, member, info.file_size)


def _array(path: Path, file: IO[bytes] | zipfile.ZipExtFile, size: int) -> np.ndarray:
    """Return an array of numbers from npy data; raise an error if its header does not agree with the size."""
    try:
        header = _HEADERS[npy_format.read_magic(file)]
    except (KeyError, ValueError) as error:
        got = "pickled objects, or a file of another kind"
        raise file_error(path, "to contain arrays of numbers in numpy's format", got, PICKLES) from error
    shape, _, dtype = header(file)
    if dtype.hasobject:
        got = "pickled objects, or a file of another kind"
        raise file_error(path, "to contain arrays of numbers in numpy's format", got, PICKLES)
    if dtype.kind not in "biuf":
        raise text_error(path, f"values of type {dtype}")
    left, wanted = size - file.tell(), math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or wanted != left:
        expected = f"to contain {shape} values of type {dtype}, according to its header"
        raise file_error(path, expected, f"{left:,} bytes of them", "It is damaged: write it again.")
    file.seek(0)
    array: np.ndarray = np.load(file, allow_pickle=False)
    return array


def read_parquet(path: Path) -> Contents:
    """Return the numbers in a parquet file, and the names of its columns."""
    with extra("parquet"):
        import pandas as pd  # not pyarrow alone, which does not recognise the columns of an index
        import pyarrow
        from pyarrow import parquet
    fix = "Write it again, with to_parquet in pandas."
    try:
        about = parquet.read_metadata(path)
        unpacked = about.num_rows * max(1, about.num_columns) * 8
        require_unpacked_size(path, unpacked, path.stat().st_size, "Save it as npy.")
        frame = pd.read_parquet(path, engine="pyarrow")
        _require_numbers(path, frame)
        return Contents(frame.to_numpy(np.float64, na_value=np.nan), [str(name) for name in frame.columns])
    except (pyarrow.ArrowException, *_DAMAGE, KeyError, IndexError, AttributeError) as error:
        if str(path) in str(error):
            raise
        raise file_error(path, "to be a parquet file", error, fix) from error


def _require_numbers(path: Path, frame: Any) -> None:
    """Raise an error unless all columns of a frame contain real numbers."""
    for name, column in frame.items():
        if column.dtype.kind not in "biuf":
            raise text_error(path, f"{next(iter(column), None)!r} of type {column.dtype} in row 0, column {name!r}")


def file_error(path: Path, expected: str, got: object, fix: str) -> ValueError:
    """Return an error about a file."""
    return ValueError(checks.message(f"{path} {expected}", got, fix))


def text_error(path: Path, got: str) -> ValueError:
    """Return an error about values that are not numbers."""
    found = file_error(path, "to contain real numbers only", got, "Remove such columns, or encode them as numbers.")
    return TextFoundError(*found.args)


def is_whole(column: np.ndarray) -> bool:
    """Return whether numbers are whole, and small enough for float64 to represent exactly."""
    return bool((np.abs(column) < MAX_WHOLE).all()) and bool((column == np.rint(column)).all())


def require_unpacked_size(path: Path, unpacked: int, packed: int, fix: str = "Save it without compression.") -> None:
    """Raise an error if a file would unpack to far more than its size."""
    most = max(FREE_BYTES, MAX_EXPANSION * packed)
    if unpacked > most:
        raise file_error(path, f"to unpack to at most {most:,} bytes", f"{unpacked:,} from {packed:,}", fix)
