"""The application: its commands, and how it ends."""

import os
import sys
import traceback
from collections.abc import Callable, Sequence

import torch
from cyclopts import App, CycloptsError

from scoremh import DivergenceError, TuningError, __version__
from scoremh.cli.demo import demo
from scoremh.cli.doctor import doctor
from scoremh.cli.evaluate import evaluate
from scoremh.cli.fit import fit
from scoremh.cli.output import ARGUMENTS, Interrupted
from scoremh.cli.report import report
from scoremh.cli.sample import sample

FAILED, INVALID, INTERRUPTED = 1, 2, 130
EXIT_CODES = f"""Exit codes: 0 success; {FAILED} runtime failure (training diverged, disk full); {INVALID} invalid input
(an option, a file, a value) or a missing dependency; {INTERRUPTED} interrupted by Ctrl-C."""
INVALID_INPUT = (CycloptsError, ValueError, TypeError, ImportError, FileNotFoundError, FileExistsError, PermissionError)
RUNTIME_FAILURES = (OSError, DivergenceError, TuningError, MemoryError)

app = App(
    name="scoremh",
    help="Metropolis-Hastings sampling when only a score is known.",
    help_epilogue=EXIT_CODES,
    version=__version__,
    suppress_keyboard_interrupt=False,
)
COMMANDS: tuple[Callable[..., None], ...] = (fit, sample, evaluate, report, demo, doctor)
for order, command in enumerate(COMMANDS):
    app.command(command, sort_key=order)


def run(tokens: Sequence[str]) -> None:
    """Run a command.

    Args:
        tokens: Arguments of the command line.
    """
    ARGUMENTS.set(tokens)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # threads within small matrices cost more than they give
    try:
        app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except (Interrupted, KeyboardInterrupt) as interrupt:
        _exit(INTERRUPTED, str(interrupt) or "interrupted.", tokens)
    except INVALID_INPUT as error:
        _exit(INVALID, str(error), tokens)
    except RUNTIME_FAILURES as error:
        _exit(FAILED, str(error), tokens)


def _exit(code: int, text: str, tokens: Sequence[str]) -> None:
    if "--debug" in tokens:
        traceback.print_exc()
    print("scoremh:", " ".join(text.split()), file=sys.stderr)
    raise SystemExit(code)
