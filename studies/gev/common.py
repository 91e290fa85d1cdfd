"""What the studies of heavy tails share: GEV(0, 1, xi), where chains start, and how far their draws are from it.

The distribution is known: W1 and MMD are distances to as many of its equally likely quantiles, and tails are judged by
the relative error of the 99 % and 99.9 % quantiles of the draws.
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

from scoremh.targets import GeneralizedExtremeValue
from studies import plots
from studies.framework import Record
from studies.framework.study import values
from studies.framework.tables import spread, table

MIDDLE = 0.01  # chains start within the quantiles of this and of the rest
TAILS = {"q99": 0.99, "q999": 0.999}
METRICS = {"w1": "W1", "mmd": "MMD", "q99": "error of the 99 % quantile", "q999": "error of the 99.9 % quantile"}
Rows = Mapping[str, Sequence[Record]]
"""Records by the name of their row or curve."""


def seeded(seed: int, xi: float, use: int) -> torch.Generator:
    """Return a generator of its own for every distribution and use, the same for all samplers."""
    return torch.Generator().manual_seed(1_000_000 * seed + 10 * round(100 * (xi + 1)) + use)


def quantile(share: float | np.ndarray, xi: float) -> Any:
    """Return where GEV(0, 1, xi) has this share below it."""
    y = -np.log(-np.log(share))
    return y if xi == 0 else np.expm1(xi * y) / xi


def normal_starts(chains: int, xi: float, generator: torch.Generator) -> Tensor:
    """Return draws from N(0, 1); those outside the middle 98 % of the distribution are moved to the ends of it.

    Some of N(0, 1) is outside the support, and some so near its end that the score is in the thousands: no step of a
    size that suits the rest leads away from there and back again, and MALA would never leave.
    """
    low, high = (float(quantile(share, xi)) for share in (MIDDLE, 1 - MIDDLE))
    return torch.randn(chains, 1, generator=generator).clamp(low, high)


def exact_draws(chains: int, xi: float, generator: torch.Generator) -> Tensor:
    """Return independent draws."""
    return GeneralizedExtremeValue(xi).sample(chains, generator=generator)


def errors(draws: Tensor, xi: float) -> Record:
    """Return W1, MMD (half an energy distance) and the errors of quantiles; None where draws are not finite.

    Args:
        draws: Draws of any shape, taken as one sample.
        xi: Shape of the distribution.
    """
    x = draws.detach().double().flatten().numpy()
    if not len(x) or not np.isfinite(x).all():
        return dict.fromkeys(METRICS)
    exact = quantile((np.arange(len(x)) + 0.5) / len(x), xi)
    found = {
        "w1": float(np.abs(np.sort(x) - exact).mean()),
        "mmd": float(stats.energy_distance(x, exact) ** 2 / 2),  # SciPy's is the root
    }
    return found | {name: float(np.quantile(x, share) / quantile(share, xi) - 1) for name, share in TAILS.items()}


def mean_and_spread(numbers: Sequence[float], text: Callable[[float, float], str] | None = None) -> str:
    """Return mean +- standard deviation over seeds, as text; what is not finite is said to have run away.

    Args:
        numbers: A number for every seed.
        text: From a mean and a standard deviation to text; three digits and one if None.
    """
    away = sum(not math.isfinite(value) for value in numbers)
    if away:
        return "ran away" if away == len(numbers) else f"{away} of {len(numbers)} ran away"
    text = text or (lambda mean, error: f"{mean:.3g} +- {error:.1g}")
    return text(statistics.mean(numbers), spread(numbers)) if numbers else ""


def percent(numbers: Sequence[float]) -> str:
    """Return mean +- standard deviation of relative errors, as text."""

    def short(value: float, sign: str = "") -> str:
        return f"{value:{sign}.1f}" if abs(value) < 100 else f"{value:{sign}.2g}"

    return mean_and_spread(numbers, lambda mean, error: f"{short(100 * mean, '+')} +- {short(100 * error)} %")


def at(records: Sequence[Record], key: str, xi: float) -> list[float]:
    """Return one number of the records with this xi."""
    return values([record for record in records if record["xi"] == xi], key)


def table_over_xi(rows: Rows, xis: Sequence[float], key: str) -> str:
    """Return a table of one number: a row for every name, a column for every xi."""
    text = percent if key in TAILS else mean_and_spread
    return table([{"xi": name, **{f"{xi:g}": text(at(there, key, xi)) for xi in xis}} for name, there in rows.items()])


def curves(rows: Rows, xis: Sequence[float], key: str) -> dict[str, plots.Curve]:
    """Return one number over xi, as means over seeds, without points for diverged chains."""
    lines: dict[str, plots.Curve] = {}
    for name, there in rows.items():
        sizes = {xi: [abs(value) for value in at(there, key, xi)] for xi in xis}
        good = {xi: statistics.mean(found) for xi, found in sizes.items() if found and all(map(math.isfinite, found))}
        lines[name] = (list(good), list(good.values()))
    return lines


def draw(
    panels: Mapping[str, Mapping[str, plots.Curve]],
    path: Path,
    *,
    columns: int,
    title: str,
    families: Mapping[str, tuple[str, str]] | None = None,
) -> None:
    """Draw errors over xi, each panel with heights of its own.

    Args:
        panels: Curves by panel.
        path: File to write.
        columns: Number of panels in a row.
        title: Title of the picture.
        families: Sampler and step size of every curve, if there are several step sizes.
    """
    labels = ("xi", "distance, relative error")
    plots.curve_panels(
        panels, path, labels=labels, log="y", columns=columns, shared=False, families=families, title=title
    )


def trend(xis: Sequence[float], numbers: Sequence[float]) -> float:
    """Return Spearman's rank correlation of a number with xi: 1 where it only grows, -1 where it only falls."""
    return 0.0 if len(set(numbers)) < 2 else float(stats.spearmanr(xis, numbers).statistic)
