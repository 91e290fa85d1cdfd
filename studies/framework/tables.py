"""Records as text: numbers with their spread over seeds, and tables in Markdown."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd


def markdown(frame: pd.DataFrame, corner: str = "") -> str:
    """Return a table in Markdown; its index is the first column.

    >>> print(markdown(pd.DataFrame({"w1": ["0.1"]}, index=["ULA"]), "method"))
    | method | w1 |
    | --- | --- |
    | ULA | 0.1 |
    """
    lines = [[corner, *frame.columns], ["---"] * (1 + frame.shape[1])]
    lines += [[name, *row] for name, row in zip(frame.index, frame.fillna("").to_numpy().tolist(), strict=True)]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation, 0 of one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def over_seeds(values: Sequence[float], digits: int = 3) -> str:
    """Return the mean, and the standard deviation if there are several values.

    >>> over_seeds([1.0, 3.0], 2), over_seeds([0.5]), over_seeds([])
    ('2.00 +- 1.41', '0.500', '')
    """
    if not values:
        return ""
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} +- {spread(values):.{digits}f}" if len(values) > 1 else mean


def mean(values: Sequence[float]) -> float:
    """Return the mean; infinity where a value is infinite."""
    return statistics.mean(values) if all(map(math.isfinite, values)) else math.inf


def shown_seeds(settings: Mapping[str, Any]) -> str:
    """Return how many seeds there are, and which: "2 seeds (1, 2)"."""
    seeds = settings["seeds"]
    return f"{len(seeds)} seed{'s' * (len(seeds) > 1)} ({', '.join(map(str, seeds))})"


def version(settings: Mapping[str, Any]) -> str:
    """Return the version that the records were computed with, as a sentence."""
    return f"Computed with scoremh {settings['versions']['scoremh']}."


def number(value: float | None) -> str:
    """Return three digits and no exponent.

    >>> number(0.0123456), number(0.000123456), number(None)
    ('0.0123', '0.00012', '')
    """
    if value is None:
        return ""
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.5f}"


def number_and_spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation; "diverged" where a value is infinite.

    >>> number_and_spread([0.1, 0.2]), number_and_spread([math.inf])
    ('0.15 +- 0.07', 'diverged')
    """
    if not math.isfinite(mean(values)):
        return "diverged"
    return number(mean(values)) + (f" +- {spread(values):.1g}" if len(values) > 1 else "")
