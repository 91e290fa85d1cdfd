"""The command line."""

import os
import sys
import traceback
from collections.abc import Sequence

import torch
from cyclopts import App, CycloptsError

from scoremh import DivergenceError, TuningError, __version__
from scoremh.cli.demo import demo
from scoremh.cli.doctor import doctor
from scoremh.cli.output import CODES, FAILED, STOPPED, TYPED, WRONG, Stopped
from scoremh.cli.papers import reproduce
from scoremh.cli.runs import evaluate, fit, report, sample

app = App(
    name="scoremh",
    help="Metropolis-Hastings sampling when only a score is known.",
    help_epilogue=CODES,
    version=__version__,
    suppress_keyboard_interrupt=False,
)
for each in (fit, sample, evaluate, report, demo, reproduce, doctor):
    app.command(each)

ASKED = (CycloptsError, ValueError, TypeError, ImportError, FileNotFoundError, FileExistsError, PermissionError)
BROKE = (OSError, DivergenceError, TuningError, MemoryError)


def main(tokens: Sequence[str] | None = None) -> None:
    """Run the command line: an error is one line and an exit code.

    Args:
        tokens: What was typed; that of the process if None.
    """
    tokens = sys.argv[1:] if tokens is None else tokens
    TYPED.set(tokens)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # threads within small matrices cost more than they give
    try:
        app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except (Stopped, KeyboardInterrupt) as stop:
        _end(STOPPED, str(stop) or "stopped.", tokens)
    except ASKED as error:
        _end(WRONG, str(error), tokens)
    except BROKE as error:
        _end(FAILED, str(error), tokens)


def _end(code: int, text: str, tokens: Sequence[str]) -> None:
    if "--debug" in tokens:
        traceback.print_exc()
    print("scoremh:", " ".join(text.split()), file=sys.stderr)
    raise SystemExit(code)
