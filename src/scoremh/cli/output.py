"""What all commands share: how they speak, and how they end."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter, Token
from rich.console import Console

FAILED, WRONG, STOPPED = 1, 2, 130
CODES = f"""Exit codes: 0 done; {FAILED} failed on the way (a training that runs away, a full disk); {WRONG} asked for
something that cannot be (an option, a file, a value); {STOPPED} stopped by Ctrl-C."""


class Stopped(Exception):  # noqa: N818  # nothing went wrong
    """Ctrl-C, with a word on how to go on."""


@Parameter(name="*")
@dataclass(frozen=True)
class Output:
    """How to speak.

    Args:
        quiet: Say nothing but errors.
        json: Print the result as JSON, and nothing else.
        debug: Show the traceback of an error.
    """

    quiet: bool = False
    json: bool = False
    debug: bool = False

    @property
    def talks(self) -> bool:
        """Whether bars and words are wanted."""
        return not (self.quiet or self.json)

    def say(self, text: str) -> None:
        """Print words for a person."""
        if self.talks:
            Console().print(text, markup=False, highlight=False, soft_wrap=True)

    def tell(self, result: Mapping[str, Any], text: str) -> None:
        """Print the result, as JSON or in words."""
        if self.json:
            print(json.dumps(result, allow_nan=False, default=str))
        self.say(text)


TYPED: ContextVar[Sequence[str]] = ContextVar("typed", default=())


def command() -> str:
    """Return what was typed."""
    return shlex.join(["scoremh", *TYPED.get()])


def again() -> str:
    """Say what to type to go on with what was stopped."""
    return f"Nothing is lost. Go on: {command()}" + " --resume" * ("--resume" not in TYPED.get())


@contextmanager
def resumable(how: str) -> Iterator[None]:
    """Say, where Ctrl-C is pressed within, how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(f"stopped. {how}") from None


def _whole(_: type, tokens: Sequence[Token]) -> int:
    """Read a whole number; cyclopts would round 1.5."""
    try:
        return int(tokens[0].value)
    except ValueError as error:
        raise ValueError(f"expected a whole number, got {tokens[0].value!r}.") from error


Whole = Annotated[int, Parameter(converter=_whole)]
