"""One verdict on draws, in words: good, usable, or do not use, with its reason and the one thing to do next."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from scoremh.evaluation.checks import DO_NOT_USE_RATE, USABLE_RATE, Check, Level, worst

MAX_NOTICED_SHIFT = 0.6  # standard deviations; draws are called good only where a larger shift would have been noticed
TABLE_WIDTH = 140  # characters
MIN_SHOWN_P = 0.001
P_NOTE = (
    f"p: the chance that any check has such a value where draws are fresh rows; a value counts against them below "
    f"{USABLE_RATE:g}, and for 'do not use' below {DO_NOT_USE_RATE:g}."
)
HEAD = ("check", "value", "good up to", "usable up to", "p", "says")
COLOURS: dict[Level, str] = {"good": "#2e7d32", "usable": "#b3540b", "do not use": "#c62828"}


@dataclass(frozen=True)
class Verdict:
    """What to think of draws; print it for one line.

    Args:
        level: "good", "usable" or "do not use".
        reason: Why, with the number and its limit.
        advice: The one thing to do next; empty where nothing has to be done.
    """

    level: Level
    reason: str
    advice: str = ""

    def __str__(self) -> str:
        """Return the verdict on one line."""
        return f"{self.level.capitalize()}: {self.reason}.{' ' * bool(self.advice)}{self.advice}"


def verdict(checks: Sequence[Check], noticed_shift: float, rows: int, advice: str = "") -> Verdict:
    """Return the verdict that checks lead to.

    Args:
        checks: Checks, corrected for their number.
        noticed_shift: Shift of one column, in standard deviations, that would have been noticed.
        rows: Number of rows that draws were compared with.
        advice: What to do where a check is not good.
    """
    bad = worst(checks)
    if bad is not None:
        limit = bad.usable if bad.level == "do not use" else bad.good
        return Verdict(bad.level, f"{bad.text}; the limit of {bad.name} is {number(limit)}", advice)
    if noticed_shift > MAX_NOTICED_SHIFT:
        needed = rows * (noticed_shift / MAX_NOTICED_SHIFT) ** 2  # a noticed shift falls with the root of the rows
        few = (
            f"with {rows:,} rows only a shift of {noticed_shift:.2g} standard deviations in one column would be noticed"
        )
        reason = f"nothing was found, but {few}; the limit is {MAX_NOTICED_SHIFT:g}"
        return Verdict("usable", reason, f"Compare at least {_rounded_up(needed):,} rows with as many draws.")
    return Verdict("good", f"all {len(checks)} checks passed; {power_line(noticed_shift, rows)}")


def power_line(noticed_shift: float, rows: int) -> str:
    """Return what a comparison could have seen.

    Args:
        noticed_shift: Shift of one column, in standard deviations, that would have been noticed.
        rows: Number of rows that draws were compared with.
    """
    return f"with {rows:,} rows a shift of {noticed_shift:.2g} standard deviations in one column would be noticed"


def number(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits, and no exponent where it can do without.

    >>> number(44.234), number(19.7, 1), number(0.00123), number(12345.6), number(float("inf"))
    ('44.2', '20', '0.00123', '12,300', 'inf')
    """
    short = float(f"{value:.{digits}g}")
    return f"{short:,.0f}" if 10 ** (digits - 1) <= abs(short) < 1e15 else f"{short:.{digits}g}"


def probability(p: float) -> str:
    """Return a p-value as text; those below 0.001 all say the same.

    >>> probability(0.0123), probability(1e-30)
    ('0.012', '< 0.001')
    """
    return number(p, 2) if p >= MIN_SHOWN_P else f"< {MIN_SHOWN_P:g}"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> str:
    """Return a table for a terminal.

    Args:
        head: Names of the columns.
        rows: Cells.
        title: Line above it.
    """
    table = Table(*head, title=title or None, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console = Console(width=TABLE_WIDTH)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def html_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in HTML, its texts escaped.

    Args:
        head: Names of the columns.
        rows: Cells.
    """
    names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in lines)}</tbody></table>"


def text_table(checks: Sequence[Check]) -> str:
    """Return the checks as a table for a terminal.

    Args:
        checks: Checks, corrected for their number.
    """
    return f"{aligned(HEAD, [cells(check) for check in checks])}\n{P_NOTE}"


def html_table(checks: Sequence[Check]) -> str:
    """Return the checks as an HTML table.

    Args:
        checks: Checks, corrected for their number.
    """
    return html_rows(HEAD, [cells(check) for check in checks])


def html_verdict(found: Verdict) -> str:
    """Return a verdict as HTML.

    Args:
        found: Verdict to show.
    """
    word = f'<strong style="color: {COLOURS[found.level]}">{found.level.capitalize()}</strong>'
    return f"<p>{word}: {html.escape(found.reason)}. {html.escape(found.advice)}</p>"


def cells(check: Check) -> tuple[str, ...]:
    """Return the cells of a row of a table.

    Args:
        check: Check to show.
    """
    numbers = map(number, (check.value, check.good, check.usable))
    return check.name, *numbers, probability(check.p_value), check.level


def _rounded_up(rows: float) -> int:
    """Return a number of rows with two significant digits, rounded up."""
    step = 10 ** max(0, len(str(int(rows))) - 2)
    return int(-(-rows // step) * step)
