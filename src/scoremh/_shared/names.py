"""Names of settings, which the command line needs without importing torch, and imports of optional libraries."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

ProposalName = Literal["mala", "rw", "pcn", "student"]
AcceptanceName = Literal["potential", "antisymmetric", "free", "simpson", "exact", "always"]
SUFFIXES = (".csv", ".tsv", ".npy", ".npz", ".parquet")  # of files of rows


Extra = Literal["cli", "report", "metrics", "flows", "parquet", "cluster", "zarr"]


@contextmanager
def extra(name: Extra) -> Iterator[None]:
    """Import libraries of an extra inside the block; if one is missing, the error has the command that installs it.

    >>> with extra("parquet"):
    ...     import pyarrow
    """
    try:
        yield
    except ImportError as error:
        from scoremh._shared import checks  # imports torch, which the command line avoids

        expected = f"{error.name}, of the extra {name!r}, to be installed"
        fix = f"Run: pip install 'scoremh[{name}]'"
        raise ImportError(checks.message(expected, error, fix), name=error.name) from error
