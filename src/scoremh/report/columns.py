"""The sections about columns: their histograms, a table of their statistics, and their correlations."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from scoremh import diagnostics
from scoremh.evaluation.verdicts import number
from scoremh.report import charts
from scoremh.report.choice import few, limits, spaced
from scoremh.report.contents import Contents
from scoremh.report.figures import axis, clip, figure, packed
from scoremh.report.panels import MAX_NAME_LENGTH, Grid, Panel, Section, data_title
from scoremh.sampling.chains import Chains

MAX_HISTOGRAMS, MAX_TABLE_ROWS, MAX_CORRELATED = 8, 30, 24  # columns
LABEL_LENGTH = 12  # characters of a name on the axis of a matrix
BY_CHAIN = ("draws", "acceptance_prob", "accepted", "nonfinite", "outside")  # fields of `Chains`, `(chain, ...)`
QUANTILES = (0.05, 0.5, 0.95)
HEAD = ["column", "", "mean", "sd", "5 %", "50 %", "95 %", "KS", "ESS", "R-hat"]


def marginals(contents: Contents, data: Tensor, own: Tensor) -> Section:
    """Return histograms of columns, of the data and of the draws."""
    names, run = contents.columns, clip(contents.run, MAX_NAME_LENGTH)
    shown = _most_apart(data, own)
    clouds = [(data_title(contents), data), (run, own)]
    panels = [
        Panel(
            clip(names[i], MAX_NAME_LENGTH),
            f"Histograms of {clip(names[i], MAX_NAME_LENGTH)}: {contents.data_name} and {run}",
            charts.histograms([(name, x[:, i]) for name, x in clouds], "", limits(data[:, i], own[:, i])),
        )
        for i in shown
    ]
    across = -(-len(panels) // -(-len(panels) // 4))  # at most four in a row, rows of nearly equal length
    rows = [panels[k : k + across] for k in range(0, len(panels), across)]
    note = f"{contents.data_name[:1].upper()}{contents.data_name[1:]} in grey, {run} in colour."
    hidden = "" if len(shown) == data.shape[1] else f" The {len(shown)} columns that differ most."
    return Section("Histograms", [note + hidden], rows)


def _most_apart(data: Tensor, own: Tensor) -> list[int]:
    """Return the columns whose distributions differ most, in their order."""
    apart = [-_kolmogorov_smirnov(data[:, i], own[:, i]) for i in range(data.shape[1])]
    return sorted(np.argsort(apart, kind="stable")[:MAX_HISTOGRAMS].tolist())


def _kolmogorov_smirnov(x: Tensor, y: Tensor) -> float:
    """Return the largest difference of two distribution functions; NaN where one has no values."""
    if not len(x) or not len(y):
        return float("nan")
    places = torch.cat([x, y])
    first, second = (torch.searchsorted(z.sort().values, places, right=True).double() / len(z) for z in (x, y))
    return float((first - second).abs().max())


def statistics(contents: Contents, data: Tensor, own: Tensor) -> Section:
    """Return a table with statistics of every column, of the data and of the draws."""
    mixing = {} if contents.chains is None else _mixing(contents.chains)
    title, run = data_title(contents), clip(contents.run, MAX_NAME_LENGTH)
    rows = []
    for i in spaced(data.shape[1], MAX_TABLE_ROWS).tolist():
        name, apart = clip(contents.columns[i], MAX_NAME_LENGTH), _kolmogorov_smirnov(data[:, i], own[:, i])
        rows.append([name, title, *_moments(data[:, i]), "", "", ""])
        chain = [_shown(float(mixing[key][i])) for key in ("ess_bulk", "r_hat")] if mixing else ["", ""]
        rows.append([name, run, *_moments(own[:, i]), _shown(apart), *chain])
    note = (
        "KS: largest difference of the distribution functions. ESS and R-hat: of the steps of the chains below; where "
        "every draw is the end of a chain of its own, they say how fast a chain forgets its start, and nothing about "
        "the draws."
    )
    return Section("Columns", [note], table=Grid(HEAD, rows))


def _mixing(chains: Chains) -> dict[str, NDArray[np.float64]]:
    """Return statistics of the chains that stayed finite; none where too few did."""
    kept = chains.draws.detach().float().flatten(1).isfinite().all(1)
    if int(kept.sum()) < 2:
        return {}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # chains that do not move have no R-hat, and show none
        return diagnostics.summary(replace(chains, **{name: getattr(chains, name)[kept] for name in BY_CHAIN})).table


def _moments(x: Tensor) -> list[str]:
    if not len(x):
        return ["—"] * 5
    return [_shown(v) for v in (float(x.mean()), float(x.std(correction=0)), *_quantiles(x))]


def _quantiles(x: Tensor) -> list[float]:
    found: list[float] = torch.quantile(few(x, 100_000), x.new_tensor(QUANTILES)).tolist()
    return found


def _shown(value: float) -> str:
    return number(value) if np.isfinite(value) else "—"


def correlations(contents: Contents, data: Tensor, own: Tensor) -> Iterator[Section]:
    """Yield rank correlations of the data, of the draws, and their difference, side by side."""
    width = data.shape[1]
    if width < 3 or min(len(data), len(own)) < 3:
        return
    shown = spaced(width, MAX_CORRELATED)
    names = [clip(contents.columns[i], LABEL_LENGTH) for i in shown.tolist()]
    both = [_rank_correlation(x[:, shown]) for x in (data, own)]
    titles = [data_title(contents), clip(contents.run, MAX_NAME_LENGTH), "difference"]
    panels = [
        Panel(title, f"Rank correlations, {title}", _matrix(one, names, end), square=True)
        for title, one, end in zip(titles, [*both, both[1] - both[0]], (1.0, 1.0, 0.5), strict=True)
    ]
    ends = "Spearman's, from -1 (orange) to 1 (blue); the difference from -0.5 to 0.5."
    note = ends if len(shown) == width else f"{ends} {len(shown)} of {width} columns."
    yield Section("Correlations", [note], [panels])


def _rank_correlation(x: Tensor) -> Tensor:
    ranks = torch.from_numpy(stats.rankdata(x.numpy(), axis=0))
    return torch.corrcoef(ranks.mT).nan_to_num()


def _matrix(values: Tensor, names: Sequence[str], end: float) -> dict[str, object]:
    scale = [[0, "--series-1"], [0.5, "--paper"], [1, "--series-0"]]
    numbers = list(range(len(names)))
    ticks = {"tickvals": numbers, "ticktext": list(names), "showgrid": False, "tickfont": {"size": 10}}
    shade = {"type": "heatmap", "z": packed(values), "zmin": -end, "zmax": end, "colorscale": scale, "showscale": False}
    shade |= {"hovertemplate": "%{x}, %{y}: %{z:.2f}<extra></extra>", "xgap": 1, "ygap": 1}
    ends = (-0.5, len(names) - 0.5)
    return figure([shade], axis("", ends, **ticks, tickangle=-60), axis("", ends[::-1], **ticks))
