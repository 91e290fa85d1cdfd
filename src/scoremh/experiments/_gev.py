"""What the experiments on heavy tails share: GEV(0, 1, xi), where chains start, and how far their draws are from it.

A draw is judged by its law alone, which is known: W1 and MMD are distances to as many equally likely quantiles of the
law, and tails are judged by the relative error of the 99 % and 99.9 % quantiles of the draws.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from scoremh import plots
from scoremh.experiments import _figures as figures
from scoremh.experiments._cells import markdown, spread
from scoremh.targets import GeneralizedExtremeValue

MIDDLE = 0.01  # chains start within the quantiles of this and of the rest
TAILS = {"q99": 0.99, "q999": 0.999}
METRICS = {"w1": "W1", "mmd": "MMD", "q99": "error of the 99 % quantile", "q999": "error of the 99.9 % quantile"}


def quantile(share: float | np.ndarray, xi: float) -> Any:
    """Return where GEV(0, 1, xi) has this share below it."""
    y = -np.log(-np.log(share))
    return y if xi == 0 else np.expm1(xi * y) / xi


def starts(chains: int, xi: float, generator: torch.Generator) -> Tensor:
    """Draw from N(0, 1), and move what lies outside the middle 98 % of the law to the ends of it.

    Some of N(0, 1) is outside the support, and some so near its end that the score is in the thousands: no step of a
    size that suits the rest leads away from there and back again, and MALA would never leave.
    """
    low, high = (float(quantile(share, xi)) for share in (MIDDLE, 1 - MIDDLE))
    return torch.randn(chains, 1, generator=generator).clamp(low, high)


def fresh(chains: int, xi: float, generator: torch.Generator) -> Tensor:
    """Draw from the law itself."""
    return GeneralizedExtremeValue(xi).sample(chains, generator=generator)


def measures(draws: Tensor, xi: float) -> dict[str, float | None]:
    """Return W1, MMD (half an energy distance) and the errors of quantiles; None where draws are not finite.

    Args:
        draws: Any shape; they are taken as one sample.
        xi: Of the law.
    """
    x = draws.detach().double().flatten().numpy()
    if not len(x) or not np.isfinite(x).all():
        return dict.fromkeys(METRICS)
    law = quantile((np.arange(len(x)) + 0.5) / len(x), xi)
    found: dict[str, float | None] = {
        "w1": float(np.abs(np.sort(x) - law).mean()),
        "mmd": float(stats.energy_distance(x, law) ** 2 / 2),  # SciPy's is the root
    }
    return found | {name: float(np.quantile(x, share) / quantile(share, xi) - 1) for name, share in TAILS.items()}


def mean_and_spread(values: Sequence[float], text: Callable[[float, float], str] | None = None) -> str:
    """Return mean +- standard deviation over seeds, as text; what is not finite is said to have run away.

    Args:
        values: One for every seed.
        text: Of a mean and a standard deviation.
    """
    away = sum(not math.isfinite(value) for value in values)
    if away:
        return "ran away" if away == len(values) else f"{away} of {len(values)} ran away"
    text = text or (lambda mean, error: f"{mean:.3g} +- {error:.1g}")
    return text(statistics.mean(values), spread(values)) if values else ""


def percent(values: Sequence[float]) -> str:
    """Return mean +- standard deviation of relative errors, as text."""
    return mean_and_spread(values, lambda mean, error: f"{_short(100 * mean, '+')} +- {_short(100 * error)} %")


def _short(value: float, sign: str = "") -> str:
    return f"{value:{sign}.1f}" if abs(value) < 100 else f"{value:{sign}.2g}"


def table(records: Mapping[str, Sequence[figures.Record]], xis: Sequence[float], key: str) -> str:
    """Return a table of one number: a row per name, a column per xi.

    Args:
        records: From a row's name to its records, over all xi and seeds.
        xis: The columns.
        key: In `METRICS`, or "acceptance".
    """
    text = percent if key in TAILS else mean_and_spread
    rows = [["xi", *(f"{xi:g}" for xi in xis)]]
    for name, there in records.items():
        rows.append([name, *(text(figures.values(figures.where(there, xi=xi), key)) for xi in xis)])
    return markdown(rows)


def curves(records: Mapping[str, Sequence[figures.Record]], xis: Sequence[float], key: str) -> dict[str, plots.Curve]:
    """Return the sizes of one number over xi, as means over seeds; where chains ran away there is no point.

    Args:
        records: From a curve's name to its records.
        xis: The abscissae.
        key: In `METRICS`.
    """
    lines: dict[str, plots.Curve] = {}
    for name, there in records.items():
        sizes = {xi: [abs(v) for v in figures.values(figures.where(there, xi=xi), key)] for xi in xis}
        good = {
            xi: statistics.mean(values) for xi, values in sizes.items() if values and all(map(math.isfinite, values))
        }
        lines[name] = (list(good), list(good.values()))
    return lines


def draw(panels: Mapping[str, Mapping[str, plots.Curve]], path: Path, *, columns: int, title: str) -> None:
    """Draw errors over xi, each panel with heights of its own.

    Args:
        panels: Of `curves`.
        path: The file to write.
        columns: Panels in a row.
        title: Above all.
    """
    labels = ("xi", "distance, relative error")
    plots.curve_panels(panels, path, labels=labels, log="y", columns=columns, shared=False, title=title)


def trend(xis: Sequence[float], values: Sequence[float]) -> float:
    """Return Spearman's rank correlation of a number with xi: 1 where it only grows, -1 where it only falls."""
    return 0.0 if len(set(values)) < 2 else float(stats.spearmanr(xis, values).statistic)
