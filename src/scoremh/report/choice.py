"""The choice of what to show: finite rows, a few of them, the range of an axis, the columns that differ most."""

from itertools import combinations

import torch
from torch import Tensor

from scoremh.metrics import energy_distance

COMPARED_ROWS = 300  # rows that columns are compared on
SHORTLIST = 12  # columns of which all pairs are compared
CORRELATED_COLUMNS = 1000  # columns, the most different ones, whose second moments are compared
MAX_PAIRS = 3


def finite(x: Tensor) -> Tensor:
    """Return the rows without NaN or inf, those that float32 cannot hold included, as float64 on the CPU."""
    x = x.detach().cpu().double()
    return x[x.float().flatten(1).isfinite().all(1)]


def spaced(total: int, most: int) -> Tensor:
    """Return at most `most` of the indices below `total`, evenly spaced, the first and the last among them."""
    return torch.arange(total) if total <= most else torch.linspace(0, total - 1, most).round().long()


def few(x: Tensor, most: int) -> Tensor:
    """Return at most `most` rows, evenly spaced."""
    return x[spaced(len(x), most)]


def limits(data: Tensor, other: Tensor) -> tuple[float, float]:
    """Return the range of an axis: nearly all of the data, and of the other where it is no more than a width away."""
    low, high = _inner(data)
    width = high - low or 1.0
    if len(other):
        left, right = _inner(other)
        low, high = max(min(low, left), low - width), min(max(high, right), high + width)
    margin = 0.06 * (high - low or width)
    return low - margin, high + margin


def most_different(data: Tensor, samples: Tensor) -> list[tuple[int, int]]:
    """Return the pairs of columns on which samples and data differ most, the most different one first.

    The difference is the energy distance in units of the data's standard deviations. Every pair has a column that the
    pairs before it have not. Of many columns, those are compared whose marginals or second moments differ most.
    """
    width = data.shape[1]
    if width == 2 or not len(samples):
        return [(0, 1)]
    scale = data.std(0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    rows = min(COMPARED_ROWS, len(data), len(samples))
    a, b = ((few(x, rows) - data.mean(0)).div(scale).clamp(-10, 10) for x in (data, samples))
    ranked = {pair: energy_distance(a[:, list(pair)], b[:, list(pair)]) for pair in combinations(_shortlist(a, b), 2)}
    chosen: list[tuple[int, int]] = []
    for pair in sorted(ranked, key=lambda pair: -ranked[pair]):
        if len(chosen) < MAX_PAIRS and not {*pair} <= {column for one in chosen for column in one}:
            chosen.append(pair)
    return chosen


def _shortlist(a: Tensor, b: Tensor) -> list[int]:
    """Return columns, half of them for their marginals (W1) and half for a second moment with another column."""
    if a.shape[1] <= SHORTLIST:
        return list(range(a.shape[1]))
    apart = (a.sort(0).values - b.sort(0).values).abs().mean(0)
    order = apart.argsort(descending=True, stable=True)[:CORRELATED_COLUMNS]
    moments = [x[:, order].T @ x[:, order] / len(x) for x in (a, b)]
    change = (moments[0] - moments[1]).abs().triu(1)
    pairs = change.flatten().argsort(descending=True, stable=True)[: SHORTLIST // 4]
    joint = torch.cat([pairs // len(order), pairs % len(order)])
    return sorted({*order[: SHORTLIST // 2].tolist(), *order[joint].tolist()})


def _inner(x: Tensor) -> tuple[float, float]:
    """Return the range of nearly all values."""
    low, high = torch.quantile(few(x, 100_000), x.new_tensor([0.001, 0.999])).tolist()
    return low, high
