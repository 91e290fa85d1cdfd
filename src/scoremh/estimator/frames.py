"""Rows as a user has them, as numbers, and back: arrays, and data frames with text, truth values and categories."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.utils.validation import FLOAT_DTYPES, validate_data
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.names import extra
from scoremh.estimator.table import Table

Estimator = TypeVar("Estimator", bound="FramesMixin")


@dataclass(frozen=True)
class ColumnLayout:
    """How a column of a data frame looks.

    Args:
        dtype: Name of its dtype.
        levels: Values that the numbers 0, 1, 2, ... stand for; None for a column of numbers.
        ordered: Whether levels have an order.
    """

    dtype: str
    levels: tuple[Any, ...] | None = None
    ordered: bool = False

    @classmethod
    def of(cls, column: Any) -> "ColumnLayout":
        """Return the layout of a column of a data frame.

        Args:
            column: The column.
        """
        dtype = column.dtype
        if str(dtype) == "category":
            return cls("category", tuple(map(_plain, dtype.categories)), bool(dtype.ordered))
        if getattr(dtype, "kind", "O") in "iuf":
            return cls(str(dtype))
        if getattr(dtype, "kind", "O") == "b":
            return cls(str(dtype), (False, True))
        levels = [_plain(value) for value in column.dropna().unique()]
        if not all(isinstance(value, str | bool) for value in levels):
            fix = "Convert it to one of these, or leave it out."
            got = f"{dtype} in column {column.name!r}"
            raise TypeError(checks.message("columns of numbers, text, truth values or categories", got, fix))
        return cls(str(dtype), tuple(sorted(levels)))

    def numbers(self, column: Any) -> NDArray[np.float64]:
        """Return the values of a column as numbers; NaN where they are missing.

        Args:
            column: The column of a data frame.
        """
        import pandas as pd

        missing = column.isna().to_numpy()
        if self.levels is None:
            numbers: NDArray[np.float64] = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
            wrong, expected = np.isnan(numbers) & ~missing, "numbers"
        else:
            places = {level: float(place) for place, level in enumerate(self.levels)}
            found = [places.get(_plain(value), -1.0) for value in column.to_numpy(object)]
            numbers = np.where(missing, np.nan, found)
            wrong, expected = numbers < 0, ", ".join(map(repr, self.levels))
        if wrong.any():
            got, fix = repr(column.to_numpy(object)[wrong][0]), "Leave such rows out, or fit again with them."
            raise ValueError(checks.message(f"column {column.name!r} of {expected}", got, fix))
        return numbers

    def values(self, numbers: NDArray[Any]) -> Any:
        """Return numbers as the user's values, with their dtype.

        Args:
            numbers: Numbers of the column.
        """
        import pandas as pd

        if self.levels is None:
            return pd.Series(numbers).astype(self.dtype)
        places = numbers.astype(int)
        if self.dtype == "category":
            return pd.Categorical.from_codes(places, categories=list(self.levels), ordered=self.ordered)
        return pd.Series(np.array(self.levels, dtype=object)[places]).astype(self.dtype)


Layout = tuple[ColumnLayout, ...]


def layout_from_json(spec: list[dict[str, Any]] | None) -> Layout | None:
    """Return the layout that JSON holds.

    Args:
        spec: What `layout_to_json` returned.
    """
    if spec is None:
        return None
    return tuple(ColumnLayout(**one | {"levels": one["levels"] and tuple(one["levels"])}) for one in spec)


def layout_to_json(layout: Layout | None) -> list[dict[str, Any]] | None:
    """Return a layout as JSON holds it.

    Args:
        layout: Layout of a data frame; None for arrays.
    """
    return None if layout is None else [asdict(column) for column in layout]


class FramesMixin:
    """An estimator whose draws have the columns and the dtypes of the rows that it was fitted on."""

    n_features_in_: int
    held_out_: NDArray[Any]
    table_: Table
    layout_: Layout | None

    def set_output(self: Estimator, *, transform: Literal["default", "pandas"] | None = None) -> Estimator:
        """Set the output format of `sample`, and return the estimator.

        Args:
            transform: "default" for an array, "pandas" for a data frame; None changes nothing.
        """
        if transform is not None:
            checks.one_of(transform, ("default", "pandas"), "transform")
            self._sklearn_output_config = {"transform": transform}  # scikit-learn's name for it: clones keep it
        return self

    @property
    def _names(self) -> list[str]:
        """The names of the columns; x0, x1, ... where they have none."""
        unnamed = [f"x{i}" for i in range(self.n_features_in_)]
        return [str(name) for name in getattr(self, "feature_names_in_", unnamed)]

    @property
    def _categories(self) -> Mapping[str, bool]:
        """The columns whose numbers stand for levels, and whether these have an order."""
        named = zip(self._names, self.layout_ or (), strict=False)
        return {name: column.ordered for name, column in named if column.levels is not None}

    def _numbers(self, X: Any, *, reset: bool = False, min_rows: int = 1) -> NDArray[Any]:
        """Return rows as an array of numbers, checked; levels of a data frame as their places."""
        if _is_frame(X):
            if not reset:
                validate_data(self, X, reset=False, skip_check_array=True)
            else:
                self.layout_ = tuple(ColumnLayout.of(X.iloc[:, j]) for j in range(X.shape[1]))
            X = _frame_of_numbers(X, self.layout_) if self.layout_ is not None else X
        elif reset:
            dtype = getattr(X, "dtype", None)
            whole = isinstance(dtype, np.dtype) and dtype.kind in "iub"
            self.layout_ = tuple([ColumnLayout(str(dtype))] * np.shape(X)[1]) if whole and np.ndim(X) == 2 else None
        rows: NDArray[Any] = validate_data(self, X, dtype=FLOAT_DTYPES, reset=reset, ensure_min_samples=min_rows)
        return rows

    def to_rows(self, x: Tensor) -> Any:
        """Return draws of `sample_chains` as an array or a data frame like the rows of the fit.

        Args:
            x: Draws `(draw, column)`, such as `chains.last`: numbers, levels of categories as their places.
        """
        rows = self.table_.within_bounds(x.numpy(), self.held_out_.dtype)
        like_rows = "pandas" if hasattr(self, "feature_names_in_") else get_config()["transform_output"]
        frame = getattr(self, "_sklearn_output_config", {}).get("transform", like_rows) == "pandas"
        if not frame and self.layout_ is None:
            return rows
        with extra("cli"):  # the extra with pandas
            import pandas as pd

        columns: list[Any] = list(rows.T)
        if self.layout_ is not None:
            columns = [layout.values(column) for layout, column in zip(self.layout_, rows.T, strict=True)]
        named = pd.DataFrame(dict(enumerate(columns)))
        named.columns = np.array(self._names, dtype=object)
        return named if frame else named.to_numpy()


def numbers_of(rows: Any, layout: Layout | None) -> NDArray[np.float64]:
    """Return rows as numbers.

    Args:
        rows: Array or data frame.
        layout: Layout of the data frame; None for numbers alone.
    """
    rows = _frame_of_numbers(rows, layout) if layout is not None and _is_frame(rows) else rows
    return np.array(rows, dtype=np.float64)


def hashable(rows: Any) -> Tensor:
    """Return rows as a tensor that is another one where they are others.

    Args:
        rows: Array or data frame.
    """
    if not _is_frame(rows):
        return torch.from_numpy(rows)
    import pandas as pd

    return torch.from_numpy(pd.util.hash_pandas_object(rows, index=False).to_numpy(copy=True).view(np.int64))


def _is_frame(X: object) -> bool:
    """Return whether rows are a data frame of pandas."""
    return hasattr(X, "iloc") and hasattr(X, "columns")


def _frame_of_numbers(X: Any, layout: Layout) -> Any:
    """Return a data frame of numbers; refuse missing values, with their counts by column."""
    import pandas as pd

    columns = [one.numbers(X.iloc[:, j]) for j, one in enumerate(layout)]
    counts = {str(name): int(np.isnan(c).sum()) for name, c in zip(X.columns, columns, strict=True)}
    if any(counts.values()):
        got = ", ".join(f"{count} NaN in {name!r}" for name, count in counts.items() if count)
        raise ValueError(checks.message("rows without missing values", got, "Remove or fill in those rows."))
    numbers = pd.DataFrame(dict(enumerate(columns)), index=X.index)
    numbers.columns = X.columns
    floats = {one.dtype for one in layout}
    return numbers.astype(np.float32) if floats == {"float32"} else numbers


def _plain(value: Any) -> Any:
    """Return a value without numpy's or pandas's type, as JSON holds it."""
    return value.item() if isinstance(value, np.generic) else value
