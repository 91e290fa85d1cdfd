"""Tables with columns of text, as data frames."""

from pathlib import Path
from typing import Any

import numpy as np

from scoremh._shared.extras import extra
from scoremh.datasets._contents import is_whole, refusal
from scoremh.datasets._csv import csv_rows, header, number


def read_frame(path: Path) -> Any:
    """Return the table in a csv or parquet file as a data frame.

    Args:
        path: File to read.
    """
    with extra("cli"):  # the extra with pandas
        import pandas as pd
    if path.suffix.lower() == ".parquet":
        return pd.read_parquet(path)
    rows = list(csv_rows(path))
    names = header(path, rows[0][1])
    width = len(rows[0][1])
    for line, row in rows:
        if len(row) != width:
            fix = "Correct that line; values are separated by commas."
            raise refusal(path, f"to have {width} values in every row", f"{len(row)} in line {line}", fix)
    columns = zip(*(row for _, row in (rows[1:] if names else rows)), strict=True)
    names = names or [f"x{j}" for j in range(width)]
    return pd.DataFrame({name: _column(cells) for name, cells in zip(names, columns, strict=True)})


def _column(cells: tuple[str, ...]) -> Any:
    """Return cells as whole numbers, numbers, or text; blanks are missing."""
    values = [number(cell) if cell else np.nan for cell in cells]
    if any(value is None for value in values):
        return np.array([cell or None for cell in cells], dtype=object)
    numbers = np.array(values, dtype=np.float64)
    return numbers.astype(np.int64) if is_whole(numbers) else numbers
