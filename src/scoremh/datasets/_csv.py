"""Tables as text: rows of numbers, separated by commas or tabs, with or without a line of names above them."""

import csv
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from scoremh.datasets._contents import Contents, refusal, text_found

MAX_COLUMNS = 100_000
MAX_LINE_CHARACTERS = 32 * MAX_COLUMNS
_INTEGER = re.compile(r"[+-]?\d+")


class _Lines:
    """The lines of a file, of bounded length, each a row of its own."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.inside_row = file, False

    def __iter__(self) -> Iterator[str]:
        while line := self.file.readline(MAX_LINE_CHARACTERS + 1):
            if len(line) > MAX_LINE_CHARACTERS:
                raise csv.Error(f"a line of more than {MAX_LINE_CHARACTERS:,} characters; save wide arrays as npy")
            if self.inside_row:
                raise csv.Error("a value in quotes that goes over several lines")
            self.inside_row = True
            yield line


def read_csv(path: Path) -> Contents:
    """Return the numbers of a csv file, its names of columns, and the lines that its rows stand in."""
    rows = csv_rows(path)
    first_line, first = next(rows, (0, []))
    if not first:
        raise refusal(path, "to hold samples", "blank lines only", "Write it again.")
    width, columns, values, lines = len(first), header(path, first), array("d"), []
    if not columns:
        values.extend(_numbers(path, first, columns, first_line))
        lines.append(first_line)
    whole = not columns and all(map(_INTEGER.fullmatch, first))  # whether it alone is written in whole numbers
    for line, row in rows:
        _require_width(path, row, width, line)
        values.extend(_numbers(path, row, columns, line))
        lines.append(line)
        whole = whole and not any(map(_INTEGER.fullmatch, row))
    table = np.frombuffer(values, dtype=np.float64).reshape(-1, width)
    if not columns and len(table) > 2 and (whole or _looks_like_names(table)):
        fix = "Name the columns, as in x2019,x2020; if it is a sample, write it as the others, as in 2019.0."
        raise refusal(path, "to begin with a header or a sample", f"numbers unlike the rest: {_shown(first)}", fix)
    return Contents(table, columns, lines)


def _require_width(path: Path, row: list[str], width: int, line: int) -> None:
    """Refuse a row that has more or fewer values than the first."""
    if len(row) != width:
        fix = "Correct that line; values are separated by commas."
        raise refusal(path, f"to have {width} values in every row", f"{len(row)} in line {line}", fix)


def _looks_like_names(table: np.ndarray) -> bool:
    """Return whether a first row counts up by one, as years do, and lies outside of all that is below it."""
    first, rest = table[0], table[1:]
    counts = len(first) > 1 and bool((np.diff(first) == 1).all()) and float(first[0]).is_integer()
    return counts and bool(((first < np.nanmin(rest, 0)) | (first > np.nanmax(rest, 0))).all())


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of every row that is not blank, with the number of its line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            start = file.readline(MAX_LINE_CHARACTERS)
            file.seek(0)
            lines = _Lines(file)
            reader = csv.reader(lines, delimiter="\t" if "\t" in start and "," not in start else ",")
            for row in reader:
                lines.inside_row = False
                if len(row) > MAX_COLUMNS:
                    fix = "Save wide arrays as npy."
                    raise refusal(path, f"to have at most {MAX_COLUMNS:,} columns", f"{len(row):,}", fix)
                if row:
                    yield reader.line_num, [cell.strip() for cell in row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise refusal(path, "to be csv text in UTF-8", error, "Save it as csv again.") from error


def _numbers(path: Path, row: list[str], columns: list[str], line: int) -> list[float]:
    """Return the cells of a row as numbers, an empty one as NaN; refusal text."""
    numbers = []
    for j, cell in enumerate(row):
        value = number(cell) if cell else math.nan
        if value is None:
            shown = repr(cell) if len(cell) < 50 else f"{cell[:47]!r}..."
            raise text_found(path, f"{shown} in line {line}, column {(columns or range(len(row)))[j]!r}")
        numbers.append(value)
    return numbers


def number(cell: str) -> float | None:
    """Return a cell as a number, or None if it is text."""
    try:
        return None if "_" in cell else float(cell)  # Python reads 2024_01 as a number; a table does not mean one
    except ValueError:
        return None


def header(path: Path, first: list[str]) -> list[str]:
    """Return the names of the columns; none, if the first line is a sample."""
    if first == list(map(str, range(len(first)))):  # pandas writes this above columns without names
        fix = "Name the columns in a first line, as in x,y."
        raise refusal(path, "to begin with a header or a sample", f"column numbers: {_shown(first)}", fix)
    _require_separators(path, first)
    if any(number(cell) is not None for cell in first):
        return []
    if "" in first:  # pandas writes this above its index, which is no coordinate
        fix = "Name it; if it is an index, remove it (index=False in pandas)."
        raise refusal(path, "to name every column", f"no name for column {first.index('')}", fix)
    name, times = Counter(first).most_common(1)[0]
    if times > 1:
        raise refusal(path, "to name columns apart", f"{name!r} more than once", "Rename one of them.")
    return first


def _require_separators(path: Path, first: list[str]) -> None:
    """Refuse a first line whose values are separated by semicolons or blanks."""
    parts = first[0].replace(";", " ").split() if len(first) == 1 else []
    if len(parts) > 1 and (";" in first[0] or all(number(part) is not None for part in parts)):
        fix = "Save it with commas, sep=',' in pandas."
        raise refusal(path, "to separate values by commas or tabs", f"{_shown(first)!r} in its first line", fix)


def _shown(first: list[str]) -> str:
    """Return the beginning of a line."""
    text = ",".join(first[:20])
    return text if len(text) < 100 and len(first) <= 20 else f"{text[:97]}..."
