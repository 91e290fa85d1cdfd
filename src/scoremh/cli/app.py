"""The application: its commands, their output, and its exit after an error or an interruption.

A command's module is loaded when the command is called, and torch when the command runs.
"""

import json
import os
import shlex
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter, Token

from scoremh import __version__
from scoremh._shared.names import SUFFIXES

ARGUMENTS: ContextVar[Sequence[str]] = ContextVar("arguments", default=())  # of the command line


class Interrupted(Exception):  # noqa: N818  # not an error
    """An interruption by Ctrl-C; the message names the command that resumes."""


def _whole_number(_: type, tokens: Sequence[Token]) -> int:
    """Return a whole number; without this converter cyclopts would round 1.5."""
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
        verbose: Also print numbers for experts: kernels, score calls, conservativity.
        json: Print the result as JSON, and nothing else.
        debug: Show the traceback if an error occurs.
    """

    quiet: Flag = False
    verbose: Flag = False
    json: Flag = False
    debug: Flag = False

    @property
    def progress(self) -> bool:
        """Whether to show progress bars and messages."""
        return not (self.quiet or self.json)

    def message(self, text: str) -> None:
        """Print a message, unless the output is quiet or JSON.

        Args:
            text: The message.
        """
        if self.progress:
            from rich.console import Console

            Console().print(text, markup=False, highlight=False, soft_wrap=True)

    def result(self, result: Mapping[str, Any], text: str) -> None:
        """Print the result of a command, as JSON or as text.

        Args:
            result: The result, with values that JSON can hold.
            text: The result as text.
        """
        if self.json:
            print(json.dumps(result, allow_nan=False, default=str))
        self.message(text)


def require_file(path: Path, inside: str = "") -> None:
    """Raise an error if there is no such file, or no such file inside a folder, before a command loads torch."""
    place = path.expanduser() / inside if inside else path.expanduser()
    if place.is_file():
        return
    if inside:
        got = f"no {inside} in it" if path.is_dir() else "no such folder"
        fix = "Create one with `scoremh fit data.csv --out FOLDER` or ScoreMH.save."
        raise FileNotFoundError(f"expected {path} to be the folder of a run, got {got}. {fix}")
    fix = "Check the path; a relative path starts from the working directory."
    got = "a folder" if place.is_dir() else "no such file"
    raise FileNotFoundError(f"expected {path} to be a file, got {got}. {fix}")


def require_table(path: Path) -> None:
    """Raise an error unless a path is a file with the suffix of a table, before a command loads torch."""
    require_file(path)
    if path.suffix.lower() not in SUFFIXES:
        expected = f"{path} to end in one of {', '.join(SUFFIXES)}"
        raise ValueError(f"expected {expected}, got {path.suffix!r}. Convert it to one of these.")


def command_line() -> str:
    """Return the command that is running, as it was typed."""
    return shlex.join(["scoremh", *ARGUMENTS.get()])


@contextmanager
def resumable() -> Iterator[None]:
    """Turn Ctrl-C into an error message that names the command to resume with."""
    try:
        yield
    except KeyboardInterrupt:
        command = command_line() + " --resume" * ("--resume" not in ARGUMENTS.get())
        raise Interrupted(f"interrupted. Nothing is lost. Resume with: {command}") from None


FAILED, INVALID, INTERRUPTED = 1, 2, 130
EXIT_CODES = f"""Exit codes: 0 success; {FAILED} runtime failure (training diverged, disk full); {INVALID} invalid input
(an option, a file, a value) or a missing dependency; {INTERRUPTED} interrupted by Ctrl-C."""
INVALID_INPUT = (CycloptsError, ValueError, TypeError, ImportError, FileNotFoundError, FileExistsError, PermissionError)
COMMANDS = {  # the first line of each command's own help
    "fit": "Learn a score, an acceptance and a step size from the rows of a file, and check the fit.",
    "sample": "Draw independent rows; each is the last draw of its own chain, started from noise.",
    "evaluate": "Compare the draws with rows that were not used in the fit, and give a verdict.",
    "report": "Write an HTML report: verdict, draws beside rows, traces, acceptance, training and distances.",
    "demo": "Show what the accept step is worth: two moons, a product of learned scores, a table.",
    "doctor": "Show versions, threads, devices, and which extras are installed.",
}

app = App(
    name="scoremh",
    help="Metropolis-Hastings sampling when only a score is known.",
    help_epilogue=EXIT_CODES,
    version=__version__,
    suppress_keyboard_interrupt=False,
)
for order, (name, line) in enumerate(COMMANDS.items()):
    app.command(f"scoremh.cli.commands:{name}", name=name, help=line, sort_key=order)
app.command(
    "scoremh.cli.app:install_completion",
    name="--install-completion",
    help="Install completion for the current shell: bash, zsh, fish or powershell.",
)


def run(tokens: Sequence[str]) -> None:
    """Run a command.

    Args:
        tokens: Arguments of the command line.
    """
    ARGUMENTS.set(tokens)
    _use_one_thread()
    try:
        app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except (Interrupted, KeyboardInterrupt) as interrupt:
        _exit(INTERRUPTED, str(interrupt) or "interrupted.", tokens)
    except INVALID_INPUT as error:
        _exit(INVALID, str(error), tokens)
    except Exception as error:
        if not _is_runtime_failure(error):
            raise
        _exit(FAILED, str(error), tokens)


def _use_one_thread() -> None:
    """Make torch use one thread: more threads slow down small matrices."""
    if "OMP_NUM_THREADS" in os.environ:
        return
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    else:
        os.environ["OMP_NUM_THREADS"] = "1"  # torch reads this when it is loaded


def _is_runtime_failure(error: Exception) -> bool:
    from scoremh import DivergenceError, TuningError  # torch is loaded when a command has failed

    return isinstance(error, OSError | DivergenceError | TuningError | MemoryError)


def _exit(code: int, text: str, tokens: Sequence[str]) -> None:
    if "--debug" in tokens:
        traceback.print_exc()
    print("scoremh:", " ".join(text.split()), file=sys.stderr)
    raise SystemExit(code)


def install_completion(
    *,
    shell: Literal["zsh", "bash", "fish", "powershell"] | None = None,
    output: Output = Output(),  # noqa: B008  # frozen
) -> None:
    """Install completion for a shell.

    Args:
        shell: Shell to install completion for; the current shell by default.
        output: Verbosity and format of the output.
    """
    path = app.install_completion(shell=shell)  # the name of a shell  # nosec B604
    output.result({"path": str(path)}, f"Completion is installed in {path}. Open a new shell.")
