"""What all commands share: the output, interruptions, and numbers as they are typed."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter, Token

ARGUMENTS: ContextVar[Sequence[str]] = ContextVar("arguments", default=())  # of the command line


class Interrupted(Exception):  # noqa: N818  # no error
    """Ctrl-C, with the command that resumes."""


def _whole_number(_: type, tokens: Sequence[Token]) -> int:
    """Return a whole number; cyclopts would round 1.5."""
    try:
        return int(tokens[0].value)
    except ValueError as error:
        raise ValueError(f"expected a whole number, got {tokens[0].value!r}.") from error


Whole = Annotated[int, Parameter(converter=_whole_number)]
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


@Parameter(name="*", group="Output")
@dataclass(frozen=True)
class Output:
    """Verbosity and format of the output.

    Args:
        quiet: Print errors only.
        json: Print the result as JSON, and nothing else.
        debug: Show the traceback of an error.
    """

    quiet: Flag = False
    json: Flag = False
    debug: Flag = False

    @property
    def verbose(self) -> bool:
        """Whether to show progress bars and messages."""
        return not (self.quiet or self.json)

    def message(self, text: str) -> None:
        """Print a message, unless the output is quiet or JSON.

        Args:
            text: The message.
        """
        if self.verbose:
            from rich.console import Console

            Console().print(text, markup=False, highlight=False, soft_wrap=True)

    def result(self, result: Mapping[str, Any], text: str) -> None:
        """Print the result of a command, as JSON or as text.

        Args:
            result: The result as JSON holds it.
            text: The result as text.
        """
        if self.json:
            print(json.dumps(result, allow_nan=False, default=str))
        self.message(text)


def command_line() -> str:
    """Return the command that is running, as it was typed."""
    return shlex.join(["scoremh", *ARGUMENTS.get()])


@contextmanager
def resumable() -> Iterator[None]:
    """Name the command that resumes, where Ctrl-C is pressed within."""
    try:
        yield
    except KeyboardInterrupt:
        command = command_line() + " --resume" * ("--resume" not in ARGUMENTS.get())
        raise Interrupted(f"interrupted. Nothing is lost. Resume with: {command}") from None
