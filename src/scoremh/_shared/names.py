"""Names by which settings are chosen; here, so that the command line knows them without torch.

Optional libraries: imported where they are used; where one is missing, the error names the extra to install.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

ProposalName = Literal["mala", "rw", "pcn", "student"]
AcceptanceName = Literal["potential", "antisymmetric", "free", "simpson", "adaptive", "always"]


Extra = Literal["cli", "report", "metrics", "flows", "parquet", "cluster", "zarr"]


@contextmanager
def extra(name: Extra) -> Iterator[None]:
    """Import libraries of an extra within; refuse with the command that installs them where one is missing.

    >>> with extra("parquet"):
    ...     import pyarrow
    """
    try:
        yield
    except ImportError as error:
        from scoremh._shared import checks  # it loads torch, which the command line does without

        expected = f"{error.name}, of the extra {name!r}, to be installed"
        fix = f"Run: pip install 'scoremh[{name}]'"
        raise ImportError(checks.message(expected, error, fix), name=error.name) from error
