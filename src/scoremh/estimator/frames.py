"""Conversion of the user's rows to numbers and back: arrays, and data frames with text, booleans, categories and dates.

Dates become seconds since 1970 and are written back in their own form: integers yyyymmdd, ISO text, or datetimes.
Missing values become NaN.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.names import extra

WHOLE_DATE, DATETIME = "%Y%m%d", "datetime"
DATE_FORMATS = (
    "%Y-%m-%d",
    *(f"%Y-%m-%d{gap}{time}" for gap in " T" for time in ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%H:%M:%SZ")),
)
MIN_DATE_SHARE = 0.5  # share of the different values that are dates, from which all must be; 3 % of numbers by chance
MIN_DATES = 3  # different values


@dataclass(frozen=True)
class ColumnLayout:
    """The dtype and the levels of a column of a data frame.

    Args:
        dtype: Name of its dtype.
        levels: Values that the numbers 0, 1, 2, ... stand for; None for a column of numbers or dates.
        ordered: Whether the levels are ordered.
        date: Format of its dates: "%Y%m%d" for whole numbers, a format of text, or "datetime"; None for other columns.
    """

    dtype: str
    levels: tuple[Any, ...] | None = None
    ordered: bool = False
    date: str | None = None

    @classmethod
    def of(cls, column: Any, kind: object = None) -> "ColumnLayout":
        """Return the layout of a column of a data frame, of a kind that the user gave or None."""
        dtype = column.dtype
        code = getattr(dtype, "kind", "O")
        if code == "M":
            return cls(str(dtype), date=DATETIME)
        if str(dtype) == "category":
            return cls("category", tuple(map(_plain, dtype.categories)), bool(dtype.ordered))
        if code == "b":
            return cls(str(dtype), (False, True))
        if (date := _date_format(column, kind)) is not None:
            return cls(str(dtype), date=date)
        if code in "iuf":
            return cls(str(dtype))
        values = [_plain(value) for value in column.dropna()]
        if not all(isinstance(value, str | bool) for value in values):
            fix = "Convert it to one of these, or leave it out."
            got = f"{dtype} in column {column.name!r}"
            raise TypeError(checks.message("columns of numbers, text, booleans, categories or dates", got, fix))
        return cls(str(dtype), tuple(sorted(set(values))))

    def numbers(self, column: Any) -> NDArray[np.float64]:
        """Return the values of a column as numbers, with NaN for missing values."""
        import pandas as pd

        missing = column.isna().to_numpy()
        if self.date is not None:
            return _seconds(column, self.date, _zone(self.dtype))
        if self.levels is None:
            if getattr(column.dtype, "kind", "O") in "iu":
                require_kept_apart(column, column.name)
            numbers: NDArray[np.float64] = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
            wrong, expected = np.isnan(numbers) & ~missing, "numbers"
        else:
            places = {level: float(place) for place, level in enumerate(self.levels)}
            found = [places.get(_plain(value), -1.0) for value in column.to_numpy(object)]
            numbers = np.where(missing, np.nan, found)
            wrong, expected = numbers < 0, ", ".join(map(repr, self.levels))
        if wrong.any():
            got, fix = repr(column.to_numpy(object)[wrong][0]), "The fit has not seen it: leave it out, or fit with it."
            raise ValueError(checks.message(f"column {column.name!r} of {expected}", got, fix))
        return numbers

    def values(self, numbers: NDArray[Any]) -> Any:
        """Return numbers as the user's values, with their dtype."""
        import pandas as pd

        if self.date is not None:
            return self._dates(numbers)
        if self.levels is None:
            return pd.Series(numbers).astype(self.dtype)
        missing = np.isnan(numbers)
        places = np.where(missing, -1, numbers).astype(int)
        if self.dtype == "category":
            return pd.Categorical.from_codes(places, categories=list(self.levels), ordered=self.ordered)
        found = np.array([*self.levels, None], dtype=object)[places]  # the place -1 is None
        return pd.Series(found).astype(self.dtype)

    def number(self, value: object, name: str) -> float:
        """Return a value of the user as a number; NaN for None."""
        with extra("cli"):  # the extra with pandas
            import pandas as pd

        series = pd.Series([value], name=name, dtype=object)
        if self.levels is not None and value is not None:
            texts = {str(level): level for level in self.levels}  # from the command line, where True is text
            series = pd.Series([texts.get(str(value), value)], name=name, dtype=object)
        return float(self.numbers(series)[0])

    def text(self, number: float) -> str:
        """Return the user's value of a number as text: a level, a date, or the number itself."""
        if np.isnan(number):
            return "missing"
        if self.levels is not None:
            return str(self.levels[min(max(round(number), 0), len(self.levels) - 1)])
        return f"{number:g}" if self.date is None else str(self._dates(np.array([number]))[0])

    def _dates(self, seconds: NDArray[Any]) -> Any:
        import pandas as pd

        missing = np.isnan(seconds)
        stamps = (np.where(missing, 0.0, seconds) * 1e6).round().astype("datetime64[us]")
        series = pd.Series(stamps).mask(missing)
        if self.date == DATETIME:
            zone = _zone(self.dtype)
            local = {"ambiguous": np.ones(len(series), bool), "nonexistent": "shift_forward"}
            return (series.dt.tz_localize(zone, **local) if zone else series).astype(self.dtype)
        text = series.dt.strftime(self.date).astype(object).where(~missing, None)
        return (pd.to_numeric(text) if self.date == WHOLE_DATE else text).astype(self.dtype)


def _date_format(column: Any, kind: object) -> str | None:
    """Return the format of a column of dates; None for other columns."""
    if kind not in (None, "date"):
        return None
    values = column.dropna()
    if getattr(column.dtype, "kind", "O") in "iuf":
        formats: Sequence[str] = (WHOLE_DATE,)
        values = values.unique()
        eight = (values >= 10_000_000) & (values <= 99_999_999)
        often = len(values) > 0 and eight.mean() >= MIN_DATE_SHARE
        values = np.asarray(values)[eight].astype(np.int64).astype(str) if often else []
    else:
        formats = DATE_FORMATS
        values = list(dict.fromkeys(value for value in values if isinstance(value, str)))
        values = values if any(value[:4].isdigit() and value[4:5] == "-" for value in values[:100]) else []
    parsed = {one: _parsed(values, one).notna().mean() for one in formats} if len(values) else {}
    best = max(parsed, key=lambda one: parsed[one], default=formats[0])
    likely = len(values) >= MIN_DATES and parsed[best] >= MIN_DATE_SHARE
    return best if likely or kind == "date" else None


def _parsed(texts: Any, date: str) -> Any:
    import pandas as pd

    return pd.to_datetime(pd.Series(texts, dtype=object), format=date, errors="coerce")


def _zone(dtype: str) -> str:
    """Return the time zone of a dtype of dates, "" if it has none.

    >>> _zone("datetime64[ns, Europe/Berlin]")
    'Europe/Berlin'
    """
    return dtype.partition(",")[2].strip(" ]")


def _seconds(column: Any, date: str, zone: str) -> NDArray[np.float64]:
    """Return dates as seconds since 1970 by the clocks of their zone.

    Raise an error for dates that do not exist or have another format.
    """
    import pandas as pd

    missing = column.isna().to_numpy()
    if date == DATETIME:
        if getattr(column.dtype, "kind", "O") != "M":
            column = pd.to_datetime(column, errors="coerce")
        aware = column.dt.tz is not None
        stamps = (column.dt.tz_convert(zone) if zone and aware else column).dt.tz_localize(None)
    else:
        text = column.where(~missing, None).astype(object)
        if date == WHOLE_DATE:
            text = text.map(lambda one: one if one is None or isinstance(one, str) else f"{one:.0f}")
        stamps = _parsed(text.to_numpy(object), date)
    wrong = stamps.isna().to_numpy() & ~missing
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        got = str(column.to_numpy(object)[row])
        other = any(_parsed([got], one).notna().any() for one in (*DATE_FORMATS, WHOLE_DATE, "%d.%m.%Y", "%m/%d/%Y"))
        expected = f"dates of one format, {_example(date)}," if other else "dates that exist"
        fix = f'Correct it, or pass columns={{{column.name!r}: "category"}} or another kind if these are not dates.'
        raise ValueError(checks.message(f"{expected} in column {column.name!r}", f"{got!r} in row {row}", fix))
    found = stamps.to_numpy("datetime64[us]").astype(np.float64) / 1e6
    return np.where(missing, np.nan, found)


def _example(date: str) -> str:
    """Return what a format looks like.

    >>> _example("%Y-%m-%d")
    'yyyy-mm-dd'
    """
    words = {"%Y": "yyyy", "%m": "mm", "%d": "dd", "%H": "hh", "%M": "mm", "%S": "ss", "%f": "ffffff"}
    for code, word in words.items():
        date = date.replace(code, word)
    return date


Layout = tuple[ColumnLayout, ...]


def layout_from_json(spec: list[dict[str, Any]] | None) -> Layout | None:
    """Return the layout that `layout_to_json` wrote."""
    if spec is None:
        return None
    return tuple(ColumnLayout(**one | {"levels": one["levels"] and tuple(one["levels"])}) for one in spec)


def layout_to_json(layout: Layout | None) -> list[dict[str, Any]] | None:
    """Return a layout in a form for JSON."""
    return None if layout is None else [asdict(column) for column in layout]


def is_frame(X: object) -> bool:
    """Return whether X is a pandas data frame."""
    return hasattr(X, "iloc") and hasattr(X, "columns")


def layout_of(X: Any, kinds: Mapping[str, Any] | None = None) -> Layout | None:
    """Return the layout of a data frame, or of an array of integers or with dates; None for other arrays.

    Args:
        X: Rows.
        kinds: Kinds that the user gave, by the names of columns: x0, x1, ... for an array.
    """
    kinds = kinds or {}
    if is_frame(X):
        if X.shape[1] == 0:
            raise ValueError(checks.message("a data frame with columns", "one without", "Pass at least one column."))
        if not X.columns.is_unique:
            twice = X.columns[X.columns.duplicated()][0]
            raise ValueError(checks.message("columns with different names", f"{twice!r} twice", "Rename one of them."))
        return tuple(ColumnLayout.of(X.iloc[:, j], kinds.get(str(X.columns[j]))) for j in range(X.shape[1]))
    if not (isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "iubf"):
        return None
    plain = ColumnLayout(str(X.dtype))
    layout = tuple(
        ColumnLayout.of(_series(X, j), kinds.get(f"x{j}")) if _may_be_dates(X[:, j], kinds.get(f"x{j}")) else plain
        for j in range(X.shape[1])
    )
    return layout if X.dtype.kind in "iub" or layout != (plain,) * X.shape[1] else None


def require_kept_apart(values: Any, name: str) -> None:
    """Raise an error if different whole numbers become the same float64; they can from 2^53 on."""
    whole = values.dropna().unique() if hasattr(values, "dropna") else np.unique(values)
    kept = len(np.unique(np.asarray(whole, dtype=np.float64)))
    if kept < len(whole):
        got = f"{len(whole):,} different numbers, of which it keeps {kept:,}"
        fix = "Subtract the smallest number from all, or leave the column out if it holds identifiers."
        raise ValueError(checks.message(f"whole numbers in column {name!r} that float64 keeps apart", got, fix))


def _may_be_dates(values: NDArray[Any], kind: object) -> bool:
    """Return whether values have eight digits, as dates have."""
    return kind == "date" or (len(values) > 0 and 10_000_000 <= float(np.nanmax(values, initial=0)) <= 99_999_999)


def _series(X: NDArray[Any], j: int) -> Any:
    with extra("cli"):  # the extra with pandas
        import pandas as pd

    return pd.Series(X[:, j], name=f"x{j}")


def as_numbers(X: Any, layout: Layout | None, *, missing: bool = False) -> Any:
    """Return rows with their values as numbers; raise an error for missing values unless `missing`."""
    if layout is None or not (is_frame(X) or any(one.date for one in layout)):
        if isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "iu":
            for j, column in enumerate(X.T):
                require_kept_apart(column, f"x{j}")
        require_finite(X, missing=missing)
        return X
    import pandas as pd

    frame = X if is_frame(X) else pd.DataFrame({f"x{j}": column for j, column in enumerate(np.asarray(X).T)})
    columns = [one.numbers(frame.iloc[:, j]) for j, one in enumerate(layout)]
    require_finite(np.stack(columns, 1), list(map(str, frame.columns)), missing=missing)
    numbers = pd.DataFrame(dict(enumerate(columns)), index=frame.index)
    numbers.columns = frame.columns
    if not is_frame(X):
        return numbers.to_numpy()
    floats = {one.dtype for one in layout}
    return numbers.astype(np.float32) if floats == {"float32"} else numbers


def require_finite(rows: Any, names: Sequence[str] = (), *, missing: bool = False) -> None:
    """Raise an error for infinite and, unless `missing`, for missing values, with their number in every column."""
    if not isinstance(rows, np.ndarray):
        return  # scikit-learn checks other rows
    if rows.ndim != 2:
        fix = "Reshape your data: X.reshape(len(X), -1)."
        raise ValueError(checks.message("rows as an array of 2 axes, (row, column)", checks.describe(rows), fix))
    if rows.dtype.kind != "f":
        return
    learn = 'Remove or fill in those rows, or learn where values are missing: missing="model" (--missing model).'
    for wrong, expected, what, fix in (
        (np.isinf(rows), "finite numbers", "inf", "Remove those rows, or replace inf by a number or by NaN."),
        (np.isnan(rows) & (not missing), "rows without missing values", "NaN", learn),
    ):
        counts = wrong.sum(0)
        if counts.any():
            places = ((names[j] if names else f"x{j}", counts[j]) for j in np.flatnonzero(counts).tolist())
            got = ", ".join(f"{count} {what} in {name!r}" for name, count in places)
            raise ValueError(checks.message(expected, got, fix))


def frame_of(rows: NDArray[Any], layout: Layout | None, names: Sequence[str]) -> Any:
    """Return rows of numbers as a data frame with these names and the values and dtypes of the layout."""
    with extra("cli"):  # the extra with pandas
        import pandas as pd

    columns: list[Any] = list(rows.T)
    if layout is not None:
        columns = [one.values(column) for one, column in zip(layout, rows.T, strict=True)]
    frame = pd.DataFrame(dict(enumerate(columns)))
    frame.columns = np.array(names, dtype=object)
    return frame


def hashable(rows: Any) -> Tensor:
    """Return rows as a tensor for hashing: different rows give different tensors."""
    if not is_frame(rows):
        return torch.from_numpy(rows)
    import pandas as pd

    return torch.from_numpy(pd.util.hash_pandas_object(rows, index=False).to_numpy(copy=True).view(np.int64))


def _plain(value: Any) -> Any:
    """Return a numpy scalar as a Python value, for JSON."""
    return value.item() if isinstance(value, np.generic) else value
