"""The application: its commands, and how it ends. A command's module, and torch with it, is loaded when it runs."""

import os
import sys
import traceback
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from scoremh import __version__
from scoremh.cli.output import ARGUMENTS, Interrupted

FAILED, INVALID, INTERRUPTED = 1, 2, 130
EXIT_CODES = f"""Exit codes: 0 success; {FAILED} runtime failure (training diverged, disk full); {INVALID} invalid input
(an option, a file, a value) or a missing dependency; {INTERRUPTED} interrupted by Ctrl-C."""
INVALID_INPUT = (CycloptsError, ValueError, TypeError, ImportError, FileNotFoundError, FileExistsError, PermissionError)
COMMANDS = {  # the first line of each command's own help
    "fit": "Learn a score, an acceptance and a step size from the rows of a file, and check the fit.",
    "sample": "Draw independent rows: each is the end of a chain of its own, started from noise.",
    "evaluate": "Compare the draws with rows that nothing was learned from, and give a verdict.",
    "report": "Write an HTML report: verdict, draws beside rows, traces, acceptance, training and distances.",
    "demo": "Learn two moons from samples, draw more with and without an accept step, and write a report.",
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
    app.command(f"scoremh.cli.{name}:{name}", name=name, help=line, sort_key=order)
app.command(
    "scoremh.cli.completion:install_completion",
    name="--install-completion",
    help="Install completion for the shell that is running: bash, zsh, fish or powershell.",
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
    """Let torch use one thread: threads within small matrices cost more than they give."""
    if "OMP_NUM_THREADS" in os.environ:
        return
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    else:
        os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it when it is loaded


def _is_runtime_failure(error: Exception) -> bool:
    from scoremh import DivergenceError, TuningError  # where a command failed, torch is loaded

    return isinstance(error, OSError | DivergenceError | TuningError | MemoryError)


def _exit(code: int, text: str, tokens: Sequence[str]) -> None:
    if "--debug" in tokens:
        traceback.print_exc()
    print("scoremh:", " ".join(text.split()), file=sys.stderr)
    raise SystemExit(code)
