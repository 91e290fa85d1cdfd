"""The command line: `scoremh fit`, `sample`, `evaluate` and `report` on one run folder, `demo` and `doctor`."""

import sys
from collections.abc import Sequence

from scoremh._shared.names import extra


def main(tokens: Sequence[str] | None = None) -> None:
    """Run the command line; an error prints one line on standard error and sets the exit code.

    Args:
        tokens: Arguments of the command line; None for the arguments of the process.
    """
    try:
        with extra("cli"):
            import cyclopts  # noqa: F401  # the modules below need it
    except ImportError as error:
        print("scoremh:", error, file=sys.stderr)
        raise SystemExit(2) from None
    from scoremh.cli.app import run

    run(sys.argv[1:] if tokens is None else tokens)
