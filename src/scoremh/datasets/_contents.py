"""What a file of samples holds, its errors, and the bound on what a small file may unpack to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scoremh._shared import checks

# A file that unpacks to more than both of these is refused: deflate reaches a factor of 1,000 on zeros and on nothing
# that can be learned from; images of mostly dark pixels reach 10.
MAX_EXPANSION = 100
MAX_WHOLE = 2**53  # beyond, not every whole number is a float64
FREE_BYTES = 256_000_000


class Contents(NamedTuple):
    """What a file holds, with the names of its columns and the lines of its rows; an array has neither."""

    values: Any
    columns: Sequence[str] = ()
    lines: Sequence[int] = ()

    def row(self, i: int) -> str:
        """Return where a row is, for an error."""
        return f"line {self.lines[i]}" if self.lines else f"row {i}"

    def column(self, *j: int) -> str:
        """Return which column it is, for an error."""
        return repr(self.columns[j[0]]) if self.columns else ", ".join(map(str, j))


class TextFoundError(ValueError):
    """A file with text where numbers were expected."""


def refusal(path: Path, expected: str, got: object, fix: str) -> ValueError:
    """Return an error about a file."""
    return ValueError(checks.message(f"{path} {expected}", got, fix))


def text_found(path: Path, got: str) -> ValueError:
    """Return an error about values that are no numbers."""
    found = refusal(path, "to hold real numbers only", got, "Remove such columns, or encode them as numbers.")
    return TextFoundError(*found.args)


def is_whole(column: np.ndarray) -> bool:
    """Return whether numbers are whole, and small enough for float64 to tell them apart."""
    return bool((np.abs(column) < MAX_WHOLE).all()) and bool((column == np.rint(column)).all())


def require_honest_size(path: Path, unpacked: int, packed: int, fix: str = "Save it without compression.") -> None:
    """Refuse a file that would unpack to far more than it is.

    Args:
        path: The file.
        unpacked: Number of bytes that it says it holds.
        packed: Number of bytes that they take in the file.
        fix: What to do where it is no mistake.
    """
    most = max(FREE_BYTES, MAX_EXPANSION * packed)
    if unpacked > most:
        raise refusal(path, f"to unpack to at most {most:,} bytes", f"{unpacked:,} from {packed:,}", fix)
