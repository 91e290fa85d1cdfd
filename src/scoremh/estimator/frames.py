"""Conversion of the user's rows to numbers and back: arrays, and data frames with text, booleans and categories."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.names import extra


@dataclass(frozen=True)
class ColumnLayout:
    """The dtype and the levels of a column of a data frame.

    Args:
        dtype: Name of its dtype.
        levels: Values that the numbers 0, 1, 2, ... stand for; None for a column of numbers.
        ordered: Whether the levels are ordered.
    """

    dtype: str
    levels: tuple[Any, ...] | None = None
    ordered: bool = False

    @classmethod
    def of(cls, column: Any) -> "ColumnLayout":
        """Return the layout of a column of a data frame."""
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
            raise TypeError(checks.message("columns of numbers, text, booleans or categories", got, fix))
        return cls(str(dtype), tuple(sorted(levels)))

    def numbers(self, column: Any) -> NDArray[np.float64]:
        """Return the values of a column as numbers, with NaN for missing values."""
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
            got, fix = repr(column.to_numpy(object)[wrong][0]), "Remove such rows, or fit again with them."
            raise ValueError(checks.message(f"column {column.name!r} of {expected}", got, fix))
        return numbers

    def values(self, numbers: NDArray[Any]) -> Any:
        """Return numbers as the user's values, with their dtype."""
        import pandas as pd

        if self.levels is None:
            return pd.Series(numbers).astype(self.dtype)
        places = numbers.astype(int)
        if self.dtype == "category":
            return pd.Categorical.from_codes(places, categories=list(self.levels), ordered=self.ordered)
        return pd.Series(np.array(self.levels, dtype=object)[places]).astype(self.dtype)


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


def layout_of(X: Any) -> Layout | None:
    """Return the layout of a data frame or of an array of integers; None for other arrays."""
    if is_frame(X):
        return tuple(ColumnLayout.of(X.iloc[:, j]) for j in range(X.shape[1]))
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "iub":
        return tuple(ColumnLayout(str(X.dtype)) for _ in range(X.shape[1]))
    return None


def as_numbers(X: Any, layout: Layout | None) -> Any:
    """Return a data frame with its values as numbers, other X unchanged; raise an error for missing values."""
    if layout is None or not is_frame(X):
        return X
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
