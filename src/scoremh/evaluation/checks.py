"""A check of draws against rows: a number, the limits of "good" and "usable" for it, and whether it is chance.

A number counts against the draws only where it is beyond chance as well: its p-value, corrected for the number of
checks (Holm 1979), is below a rate. So of samplers whose draws are fresh rows at most the share `USABLE_RATE` is called
usable, and at most `DO_NOT_USE_RATE` is called do not use, by all checks together, whatever their number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["good", "usable", "do not use"]
LEVELS: tuple[Level, ...] = ("good", "usable", "do not use")
USABLE_RATE, DO_NOT_USE_RATE = 0.1, 0.01  # shares of perfect samplers that are called so, at most


@dataclass(frozen=True)
class Check:
    """One check of draws against rows.

    Args:
        name: What was checked.
        value: The number; larger is worse.
        good: Limit up to which it is good.
        usable: Limit up to which it is usable.
        p_value: Probability of such a number for fresh rows; after `corrected`, that of any of the checks.
        text: What the number is, as a sentence without its end.
    """

    name: str
    value: float
    good: float
    usable: float
    p_value: float
    text: str

    @property
    def level(self) -> Level:
        """What this check says of the draws."""
        if self.value <= self.good or self.p_value >= USABLE_RATE:
            return "good"
        return "usable" if self.value <= self.usable or self.p_value >= DO_NOT_USE_RATE else "do not use"


def corrected(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Return the checks with p-values corrected for their number, by Holm's method.

    Args:
        checks: Checks with their own p-values.
    """
    order = sorted(range(len(checks)), key=lambda i: checks[i].p_value)
    largest, found = 0.0, list(checks)
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(checks) - rank) * checks[i].p_value))
        found[i] = replace(checks[i], p_value=largest)
    return tuple(found)


def worst(checks: Sequence[Check]) -> Check | None:
    """Return the check that decides the verdict; None where all are good.

    Args:
        checks: Checks, corrected for their number.
    """
    bad = [check for check in checks if check.level != "good"]
    return max(bad, key=lambda check: (LEVELS.index(check.level), check.value / check.usable), default=None)
